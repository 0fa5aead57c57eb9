"""Attention on more than one device: each has some of the heads, or some of the tokens.

The processes of a `torch.distributed` group, its *ranks*, compute one attention together; outputs and gradients are
those of the whole. Heads in parallel need all tokens on every rank, and a head for each rank at least. A ring needs
neither: it sends the keys and values around, and merges the contexts of each rank.

Both are written to be read, and held to PyTorch's own where that runs. In production take
`torch.distributed.tensor.parallel` and `torch.distributed.tensor.experimental.context_parallel`, as the page says.

Run as a module, by torchrun or by itself, it demonstrates both.
"""

from unmasked.parallel.heads import HeadParallel, head_bytes
from unmasked.parallel.ranks import Traffic, count_bytes, launch
from unmasked.parallel.ring import positions_of_rank, ring_attention, ring_bytes

__all__ = [
    "HeadParallel",
    "Traffic",
    "count_bytes",
    "head_bytes",
    "launch",
    "positions_of_rank",
    "ring_attention",
    "ring_bytes",
]
