"""The exercises of the page about small caches: shared heads, the size of a cache, and a matrix that is absorbed."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from unmasked.cache import KVCache
from unmasked_lessons.exercises._check import Wrong, draw, exercise, hold, tensor


class _Shapes(TorchFunctionMode):
    """Keeps the shape of every tensor that is made, copies and views alike, and the names of what was called."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[int, ...]] = []
        self.called: set[str] = set()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.called.add(getattr(function, "__name__", ""))
        if isinstance(result, Tensor):
            self.made.append(tuple(result.shape))
        return result


@exercise("shared-heads", "Neighbors share a head of keys, and nothing is copied.")
def _shared_heads(answer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    for heads, kv_heads in ((6, 2), (4, 4), (3, 1), (12, 3)):
        q, k, v = draw((2, heads, 4, 5), (2, kv_heads, 7, 5), (2, kv_heads, 7, 5))
        right = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        where = f"For {heads} heads of queries and {kv_heads} of keys"
        with _Shapes() as seen:
            result = answer(q, k, v)
        tensor(result, where, right)
        if forbidden := {"repeat", "repeat_interleave", "expand", "scaled_dot_product_attention"} & seen.called:
            raise Wrong(f"{where} it calls {forbidden.pop()}; give the queries an axis for the groups instead.")
        k, v = (x.repeat(1, heads // kv_heads, 1, 1) for x in (k, v))
        alternate = "Heads alternate; neighbors should share: the axis of the groups comes second."
        hold(result, right, where, known={alternate: F.scaled_dot_product_attention(q, k, v)})


@exercise("tokens-that-fit", "Half as many heads of keys, twice as many tokens.")
def _tokens_that_fit(answer: Callable[[int, int, int, int, int], int]) -> None:
    dtypes = {2: torch.bfloat16, 4: torch.float32}
    for sizes in ((2**30, 32, 8, 128, 2), (100_000, 3, 2, 5, 4), (1, 1, 1, 1, 2)):
        memory, layers, kv_heads, head_dim, itemsize = sizes
        token = KVCache.bytes_per_token(kv_heads, head_dim, num_layers=layers, dtype=dtypes[itemsize])
        known = {
            "A token has a key, and a value, too.": 2 * memory // token,
            "What is left over keeps no token.": memory / token,
            "Every layer has a cache of its own.": memory // (token // layers),
        }
        where = f"For {memory:,} bytes, {layers} layers, {kv_heads} heads of {head_dim} features and {itemsize} bytes"
        hold(answer(*sizes), memory // token, f"{where} a number", known=known)


@exercise("absorbed-scores", "No key was made: the query took the matrix in.")
def _absorbed_scores(answer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    for heads, queries, keys, head_dim, latent_dim in ((3, 2, 11, 5, 7), (2, 6, 13, 4, 3)):
        q, up, latent = draw((heads, queries, head_dim), (heads, head_dim, latent_dim), (keys, latent_dim))
        right = q @ (latent @ up.mT).mT / head_dim**0.5
        known = {
            "They are divided by the root of latent_dim; it is head_dim's.": right * (head_dim / latent_dim) ** 0.5,
            "They are not scaled.": right * head_dim**0.5,
        }
        where = f"For queries of {tuple(q.shape)} and latents of {tuple(latent.shape)}"
        with _Shapes() as seen:
            result = answer(q, up, latent)
        hold(result, right, where, "the scores", known)
        if any(keys in shape and head_dim in shape for shape in seen.made):
            made = f"you made the keys, of {keys} tokens and {head_dim} features."
            raise Wrong(f"{where} the scores are right, but {made}")
