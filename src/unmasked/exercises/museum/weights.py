"""The exercises of the museum's room of weights."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from unmasked.exercises._check import Wrong, draw, exercise, tensor
from unmasked.heads import merge_heads, split_heads
from unmasked.museum import ENTRIES
from unmasked.probes import differs

_HEADS = 3
_X = draw((2, 5, 12), seed=9, dtype=torch.float32)[0]


def _module() -> nn.MultiheadAttention:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        return nn.MultiheadAttention(12, _HEADS, batch_first=True)


def _half_right(module: nn.MultiheadAttention) -> Iterator[tuple[str, Tensor]]:
    """Compute what each mistake with the weights gives on this module."""
    weight, bias, out = module.in_proj_weight, module.in_proj_bias, module.out_proj

    def attend(weight: Tensor, bias: Tensor | float, taken: tuple[int, int, int] = (0, 1, 2)) -> Tensor:
        parts = (_X @ weight.T + bias).chunk(3, dim=-1)
        q, k, v = (split_heads(parts[place], _HEADS) for place in taken)
        return merge_heads((q @ k.mT / 2).softmax(-1) @ v)

    context = attend(weight, bias)
    yield "zero-bias-parity", out(attend(weight, 0.0))
    yield "zero-bias-parity", context @ out.weight.T
    yield "weight-not-transposed", out(attend(torch.cat([part.T for part in weight.chunk(3)]), bias))
    yield "weight-not-transposed", context @ out.weight + out.bias
    rows = torch.arange(36).view(_HEADS, 3, 4).transpose(0, 1).flatten()  # head by head, in the order of parts
    yield "interleaved-qkv", out(attend(weight[rows], bias[rows]))
    yield "missing-out-proj", context
    yield "wrong-value", out(attend(weight, bias, (0, 1, 0)))
    yield "wrong-value", out(attend(weight, bias, (0, 1, 1)))
    yield "averaged-weights-parity", out(context.roll(-4, dims=-1))


@exercise("weights-that-tell", "On a module that is filled so, every mistake with the weights shows.")
def weights_that_tell(answer: Callable[[nn.MultiheadAttention], object]) -> None:
    """Hold a function that fills a module to what the module can then show."""
    module = _module()
    shapes = [parameter.shape for parameter in module.parameters()]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        filled = answer(module)
    module = filled if isinstance(filled, nn.MultiheadAttention) else module
    if [parameter.shape for parameter in module.parameters()] != shapes:
        raise Wrong("The shapes of the parameters have changed; fill them where they are.")
    with torch.no_grad():
        expected = module.train(False)(_X, _X, _X)[0]
        if not expected.isfinite().all():
            raise Wrong("The module's output is not finite: fill it with numbers of ordinary size.")
        for slug, given in _half_right(module):
            if not differs(given, expected):
                told = f"On the filled module this mistake gives the right numbers: {ENTRIES[slug].title}."
                raise Wrong(told, slug)


@exercise("mend-the-class", "The class gives PyTorch's numbers, with PyTorch's weights.")
def mend_the_class(answer: Callable[[nn.MultiheadAttention], Callable[[Tensor], Tensor]]) -> None:
    """Hold a class that takes its weights from nn.MultiheadAttention to that module."""
    module = _module()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=12**-0.5)
    copied = answer(module)
    given = tensor(copied(_X), f"For an input {tuple(_X.shape)}", _X)
    with torch.no_grad():
        expected = module(_X, _X, _X)[0]
        if gap := differs(given, expected):
            for slug, wrong in _half_right(module):
                if not differs(given, wrong):
                    raise Wrong(f"Off by up to {gap:.2f}. One mistake is left: {ENTRIES[slug].title}.", slug)
            raise Wrong(f"Off by up to {gap:.2f} from PyTorch's output, and by more than one mistake.")
        for parameter in module.parameters():
            parameter.add_(1.0)
        if differs(copied(_X), expected):
            raise Wrong("It was right, until the module that it copied was trained.", "aliased-weights")
