"""The exercises of the page about heads."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from unmasked.functional import attend
from unmasked.heads import split_heads
from unmasked_lessons.exercises._check import ask, draw, exercise, hold, parts, same

_SIZES = ((1, 2, 3, 2), (2, 5, 3, 4), (3, 4, 2, 5))  # batch, tokens, heads, head_dim; the smallest, to be shown, first
_SPLIT, _MERGED = ": batch, heads, tokens, head_dim", ": batch, tokens, features"


@exercise("split-heads", "Head h has the h-th block of every token's features.")
def _split(answer: Callable[[Tensor, int], Tensor]) -> None:
    for batch, tokens, heads, head_dim in _SIZES:
        x = _tagged(batch, tokens, heads * head_dim)
        right = split_heads(x, heads)
        known = {
            "A view alone fills the heads in the order of memory. [view-without-transpose]": x.reshape(right.shape),
            "num_heads and head_dim are exchanged in the view. [swapped-view]": (
                x.unflatten(-1, (head_dim, heads)).permute(0, 3, 1, 2)
            ),
            "Every item of the batch is the first one. [only-first-item]": right[:1].expand_as(right),
        }
        shape = f"x = {x[0].int().tolist()}" if tokens == 2 else f"x of {tuple(x.shape)}"
        hold(ask(answer, x, heads), right, f"For {shape} and {heads} heads", "head 0", known, axes=_SPLIT, shown=_first)


@exercise("merge-heads", "Each token has the features of its heads side by side.")
def _merge(answer: Callable[[Tensor], Tensor]) -> None:
    for batch, tokens, heads, head_dim in _SIZES:
        right = _tagged(batch, tokens, heads * head_dim)
        x = split_heads(right, heads).contiguous()
        known = {
            "Transpose back before you join. [merge-without-transpose]": x.reshape(right.shape),
            "The heads' features are interleaved: num_heads and head_dim are exchanged.": (
                x.permute(0, 2, 3, 1).flatten(-2)
            ),
            "Every item of the batch is the first one. [only-first-item]": right[:1].expand_as(right),
        }
        hold(ask(answer, x), right, f"For x of {tuple(x.shape)}", "token 0", known, axes=_MERGED, shown=_first)


@exercise("packed-projection", "The rows of query, key and value stand one below the other.")
def _packed_projection(answer: Callable[[Tensor, Tensor, int], Sequence[Tensor]]) -> None:
    for batch, tokens, heads, head_dim in _SIZES:
        x, weight = draw((batch, tokens, 7), (3 * heads * head_dim, 7))
        rows = F.linear(x, weight)  # batch tokens 3·heads·head_dim
        right = [split_heads(part, heads) for part in rows.chunk(3, dim=-1)]
        three = parts(list(ask(answer, x, weight, heads)), "query", "key", "value")
        viewed = [part.reshape(right[0].shape) for part in rows.chunk(3, dim=-1)]
        exchanged = [right[1], right[0], right[2]]
        known = {  # of all three, as another mistake may give one of them
            "The rows are read head by head; here all of the query's come first. [interleaved-qkv]": (
                all(map(same, three, split_heads(rows, heads).chunk(3, dim=-1)))
            ),
            "A view alone fills the heads in the order of memory. [view-without-transpose]": (
                all(map(same, three, viewed))
            ),
            "Query and key are exchanged.": all(map(same, three, exchanged)),
        }
        where = f"For x of {tuple(x.shape)}, weight of {tuple(weight.shape)} and {heads} heads"
        for subject, result, exact in zip(("query", "key", "value"), three, right, strict=True):
            hold(result, exact, where, f"the {subject}", known, axes=_SPLIT)


@exercise("appended-pair", "The pair is one key and one value more, for every query.")
def _appended_pair(answer: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
    """Equation: (6.4, 6.5, 6.6)."""
    for leading in ((), (2, 3)):
        q, k, v, bias_k, bias_v = draw((*leading, 4, 7), (*leading, 5, 7), (*leading, 5, 7), (1, 7), (1, 7))
        longer = [torch.cat([x, b.expand(*leading, 1, 7)], dim=-2) for x, b in ((k, bias_k), (v, bias_v))]
        scores = q @ longer[0].mT
        right = (scores / 7**0.5).softmax(-1)
        context, weights = parts(answer(q, k, v, bias_k, bias_v), "context", "weights")
        shifted = attend(q, k + bias_k, v + bias_v, need_weights=True).weights
        where = f"For q of {tuple(q.shape)} and k of {tuple(k.shape)}"
        known = {
            "What is added to all keys changes no weight: append the pair. [bias-kv-as-shift]": shifted,
            "The pair stands before the others; the last column should be its own.": right.roll(1, dims=-1),
            "The scale is missing. [missing-scale]": scores.softmax(-1),
        }
        hold(weights, right, where, "the weights", known)
        known = {"It averages the keys. [wrong-value]": right @ longer[0]}
        hold(context, right @ longer[1], f"{where} the weights are right, but", "the context", known)


@exercise("softmax-one", "A row sums to less than one, by the share of a score of zero.")
def _softmax_one(answer: Callable[[Tensor], Tensor]) -> None:
    """Equation: (6.7)."""
    (drawn,) = draw((2, 3, 5))
    for size, scores in {"of a few units": drawn, "about 1000": drawn + 1000, "about -1000": drawn - 1000}.items():
        mixed = (scores - scores.amax(-1, keepdim=True)).exp()
        known = {
            "Subtract the largest score first: an exponential overflows.": lambda result: not result.isfinite().all(),
            "That is the usual softmax: one more stands in the denominator.": scores.softmax(-1),
            "If you subtract the largest score, the one has to be divided by its exponential too.": (
                mixed / (1 + mixed.sum(-1, keepdim=True))
            ),
        }
        result, right = ask(answer, scores, keep="scores"), F.pad(scores, (0, 1)).softmax(-1)[..., :-1]
        hold(result, right, f"For scores {size}", "the sum of the first row", known, shown=_first_sum)


def _tagged(batch: int, tokens: int, features: int) -> Tensor:
    return torch.arange(float(batch * tokens * features)).view(batch, tokens, features)


def _first(result: Tensor) -> list[int] | list[list[int]]:
    return result[0, 0].int().tolist()


def _first_sum(weights: Tensor) -> str:
    return f"{weights[0, 0].sum().item():.4f}"
