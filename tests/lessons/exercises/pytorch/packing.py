"""Right and wrong answers to the exercises of pytorch/packing."""

import torch
import torch.nn.functional as F
from torch import Tensor

from unmasked import masks


def by_hand(ids: Tensor) -> Tensor:
    runs, document = [], -1
    for place, each in enumerate(ids.tolist()):
        document += place == 0 or each != ids[place - 1].item()
        runs.append(document)
    return torch.tensor([[i >= j and runs[i] == runs[j] for j in range(len(ids))] for i in range(len(ids))])


def by_value(ids: Tensor) -> Tensor:
    return (ids[:, None] == ids).tril()


RIGHT = {
    "packed-causal": [by_hand, lambda ids: by_hand(ids)[None, None]],
    "cumulative-lengths": [
        lambda lengths: F.pad(lengths.cumsum(0), (1, 0)).int(),
        lambda lengths: torch.tensor([0, *lengths.cumsum(0).tolist()], dtype=torch.int32),
    ],
    "restarted-positions": [lambda ids: by_hand(ids).sum(-1) - 1],
}
WRONG = {
    "packed-causal": [
        ("A query sees a key that comes later. [no-causal-mask]", masks.documents),
        ("A document sees those before it. [packed-without-documents]", lambda ids: masks.causal(len(ids))),
        ("[1, 1, 0, 1]]; it should be", by_value),
        ("An id that comes back is another document.", by_value),
        ("True must say what a query may see, not what it may not. [mask-polarity]", lambda ids: ~by_hand(ids)),
        ("For the ids [0, 0, 1] the dtype is torch.float32; return torch.bool.", lambda ids: by_hand(ids).float()),
        ("For the ids [0, 0, 1] the shape of the mask is (3,); it should be (3, 3).", lambda ids: by_hand(ids)[0]),
    ],
    "cumulative-lengths": [
        ("The zero is missing: the first document begins there.", lambda lengths: lengths.cumsum(0)),
        ("The end is missing: the last document ends there.", lambda lengths: lengths.cumsum(0) - lengths),
        ("kernels take torch.int32.", lambda lengths: F.pad(lengths.cumsum(0), (1, 0))),
        ("For the lengths [3, 4, 2] the shape is (3,); it should be (4,).", lambda lengths: lengths),
    ],
    "restarted-positions": [
        ("is [1, 2, 1]; it should be [0, 1, 0]. Positions are counted from zero.", lambda ids: by_hand(ids).sum(-1)),
        ("1, 2]; it should be [0, 1, 0]. They run on. [positions-not-reset]", lambda ids: torch.arange(len(ids))),
        ("An id that comes back is another document.", lambda ids: by_value(ids).sum(-1) - 1),
        ("For the ids [0, 0, 1] it is [0, 0, 1]; it should be [0, 1, 0].", lambda ids: ids),
    ],
}
