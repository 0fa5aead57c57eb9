"""The exercises of the page about small caches: shared heads, the size of a cache, and a matrix that is absorbed."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from unmasked.cache import KVCache
from unmasked.exercises._check import Wrong, exercise

PAGE = "pytorch/grouped"


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


def _watched(answer: Callable[..., Any], *given: Tensor) -> tuple[Tensor, _Shapes]:
    with _Shapes() as seen:
        result = answer(*given)
    if not isinstance(result, Tensor):
        raise Wrong(f"It returned {type(result).__name__}; return a tensor.")
    return result.detach(), seen


@exercise("shared-heads", page=PAGE, task="Neighbors share a head of keys, and nothing is copied.")
def shared_heads(answer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Hold a function of query, key and value to attention whose heads share keys."""
    generator = torch.Generator().manual_seed(0)
    for heads, kv_heads in ((6, 2), (4, 4), (3, 1), (12, 3)):
        q = torch.randn(2, heads, 4, 5, generator=generator, dtype=torch.float64)
        k, v = torch.randn(2, 2, kv_heads, 7, 5, generator=generator, dtype=torch.float64)
        right = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        given, seen = _watched(answer, q, k, v)
        told = f"For {heads} heads of queries and {kv_heads} of keys"
        if given.shape != right.shape:
            raise Wrong(f"{told} the shape is {tuple(given.shape)}; it should be {tuple(right.shape)}.")
        if forbidden := {"repeat", "repeat_interleave", "expand", "scaled_dot_product_attention"} & seen.called:
            raise Wrong(f"{told} it calls {forbidden.pop()}; give the queries an axis for the groups instead.")
        if torch.allclose(given.to(right), right, rtol=1e-4, atol=1e-5):
            continue
        others = [x.repeat(1, heads // kv_heads, 1, 1) for x in (k, v)]
        if torch.allclose(given.to(right), F.scaled_dot_product_attention(q, *others), rtol=1e-4, atol=1e-5):
            raise Wrong(f"{told} heads alternate; neighbors should share: the axis of the groups comes second.")
        raise Wrong(f"{told} it is off by up to {(given.to(right) - right).abs().max().item():.2f}.")


@exercise("tokens-that-fit", page=PAGE, task="Half as many heads of keys, twice as many tokens.")
def tokens_that_fit(answer: Callable[[int, int, int, int, int], int]) -> None:
    """Hold a function of memory and sizes to the number of tokens of a cache."""
    dtypes = {2: torch.bfloat16, 4: torch.float32}
    for memory, layers, kv_heads, head_dim, itemsize in (
        (2**30, 32, 8, 128, 2),
        (100_000, 3, 2, 5, 4),
        (1, 1, 1, 1, 2),
    ):
        token = KVCache.bytes_per_token(kv_heads, head_dim, num_layers=layers, dtype=dtypes[itemsize])
        right, given = memory // token, answer(memory, layers, kv_heads, head_dim, itemsize)
        if given == right:
            continue
        told = (
            f"For {memory:,} bytes, {layers} layers, {kv_heads} heads of {head_dim} features and {itemsize} bytes a "
            f"number it is {given}; it should be {right}."
        )
        if given == 2 * memory // token:
            raise Wrong(f"{told} A token has a key, and a value, too.")
        if isinstance(given, float) and int(given) == right:
            raise Wrong(f"{told} What is left over keeps no token.")
        if given == memory // (token // layers):
            raise Wrong(f"{told} Every layer has a cache of its own.")
        raise Wrong(told)


@exercise("absorbed-scores", page=PAGE, task="No key was made: the query took the matrix in.")
def absorbed_scores(answer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Hold a function of queries, a matrix for each head, and latents to the scores of the keys that it never makes."""
    generator = torch.Generator().manual_seed(0)
    for heads, queries, keys, head_dim, latent_dim in ((3, 2, 11, 5, 7), (2, 6, 13, 4, 3)):
        q = torch.randn(heads, queries, head_dim, generator=generator, dtype=torch.float64)
        up = torch.randn(heads, head_dim, latent_dim, generator=generator, dtype=torch.float64)
        latent = torch.randn(keys, latent_dim, generator=generator, dtype=torch.float64)
        right = q @ (latent @ up.mT).mT / head_dim**0.5
        given, seen = _watched(answer, q, up, latent)
        told = f"For queries of {tuple(q.shape)} and latents of {tuple(latent.shape)}"
        if given.shape != right.shape:
            raise Wrong(f"{told} the shape is {tuple(given.shape)}; it should be {tuple(right.shape)}.")
        given = given.to(right)
        if not torch.allclose(given, right, rtol=1e-4, atol=1e-5):
            if torch.allclose(given, right * (head_dim / latent_dim) ** 0.5, rtol=1e-4, atol=1e-5):
                raise Wrong(f"{told} the scores are divided by the root of latent_dim; it is head_dim's.")
            if torch.allclose(given, right * head_dim**0.5, rtol=1e-4, atol=1e-5):
                raise Wrong(f"{told} the scores are not scaled.")
            raise Wrong(f"{told} the scores are off by up to {(given - right).abs().max().item():.2f}.")
        if any(keys in shape and head_dim in shape for shape in seen.made):
            raise Wrong(
                f"{told} the scores are right, but you made the keys, of {keys} tokens and {head_dim} features."
            )
