"""Right and wrong answers to the exercises of pytorch/cache."""

import torch

from unmasked import masks

RIGHT = {
    "chunk-mask": [
        lambda past, new: torch.ones(new, past + new).tril(past).bool(),
    ],
    "padded-positions": [
        masks.positions_of,
        lambda real: (real.long().cumsum(-1) - 1).masked_fill(~real, 1),
        lambda real: ((real.cumsum(-1) - 1) * real).int(),
    ],
    "ring-slots": [
        lambda n, w: torch.tensor([max(p for p in range(n) if p % w == slot) for slot in range(w)]),
    ],
}
WRONG = {
    "chunk-mask": [
        ("last ones, not the first. [top-left-causal]", lambda past, new: torch.ones(new, past + new).tril().bool()),
        ("True must say what a query [mask-polarity]", lambda past, new: ~masks.causal(new, past + new)),
        ("it should be [[1, 1, 1", lambda past, new: masks.causal(new, past + new).tril(past - 1)),
        ("For 2 in the cache and 3 new the dtype is torch.float32;", lambda past, new: torch.ones(new, past + new)),
    ],
    "padded-positions": [
        ("The padding is counted.", lambda real: torch.arange(real.size(1)).expand(real.shape)),
        ("There is a negative one, which no table has.", lambda real: real.cumsum(-1) - 1),
        ("they could be [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]].", lambda real: real.cumsum(-1)),
        ("a table is read at whole numbers", lambda real: masks.positions_of(real).float()),
        ("as long as the text has no position 99.", lambda real: masks.positions_of(real).masked_fill(~real, 99)),
        ("is (5,); it should be (2, 5).", lambda real: masks.positions_of(real)[0]),
    ],
    "ring-slots": [
        ("These are the tokens that are there, in other slots.", lambda n, w: torch.arange(n - w, n)),
        ("1, 2]; it should be [3, 4, 2].", lambda n, w: torch.arange(w)),
    ],
}
