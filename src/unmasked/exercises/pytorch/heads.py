"""The exercises of the page about heads."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from unmasked.exercises._check import Wrong, exercise
from unmasked.functional import attend
from unmasked.heads import split_heads

PAGE = "pytorch/heads"
_SIZES = ((1, 2, 3, 2), (2, 5, 3, 4), (3, 4, 2, 5))  # batch, tokens, heads, head_dim; the smallest, to be shown, first


@exercise("split-heads", page=PAGE, task="Head h has the h-th block of every token's features.")
def split(answer: Callable[[Tensor, int], Tensor]) -> None:
    """Hold a function of features and a number of heads to the split."""
    for batch, tokens, heads, head_dim in _SIZES:
        x = _tagged(batch, tokens, heads * head_dim)
        right = split_heads(x, heads)
        given = _shaped(answer(x.clone(), heads), right, f"{tuple(x.shape)} and {heads} heads")
        if torch.equal(given, right):
            continue
        told = f"Head 0 of x = {x[0].int().tolist()}" if tokens == 2 else f"Head 0 of x of {tuple(x.shape)}"
        shown = f"{told} is {given[0, 0].int().tolist()}; it should be {right[0, 0].int().tolist()}."
        if torch.equal(given, x.reshape(right.shape)):
            raise Wrong(f"{shown} A view alone fills the heads in the order of memory.", "view-without-transpose")
        if torch.equal(given, x.unflatten(-1, (head_dim, heads)).permute(0, 3, 1, 2)):
            raise Wrong(f"{shown} num_heads and head_dim are exchanged in the view.", "swapped-view")
        if batch > 1 and torch.equal(given, right[:1].expand_as(right)):
            raise Wrong("Every item of the batch is the first one.", "only-first-item")
        raise Wrong(shown)


@exercise("merge-heads", page=PAGE, task="Each token has the features of its heads side by side.")
def merge(answer: Callable[[Tensor], Tensor]) -> None:
    """Hold a function of the heads' context to the merge."""
    for batch, tokens, heads, head_dim in _SIZES:
        right = _tagged(batch, tokens, heads * head_dim)
        x = split_heads(right, heads).contiguous()
        given = _shaped(answer(x.clone()), right, str(tuple(x.shape)))
        if torch.equal(given, right):
            continue
        shown = f"Token 0 of x of {tuple(x.shape)} is {given[0, 0].int().tolist()}; "
        shown += f"it should be {right[0, 0].int().tolist()}."
        if torch.equal(given, x.reshape(right.shape)):
            raise Wrong(f"{shown} Transpose back before you join.", "merge-without-transpose")
        if torch.equal(given, x.permute(0, 2, 3, 1).flatten(-2)):
            raise Wrong(f"{shown} The heads' features are interleaved: num_heads and head_dim are exchanged.")
        if batch > 1 and torch.equal(given, right[:1].expand_as(right)):
            raise Wrong("Every item of the batch is the first one.", "only-first-item")
        raise Wrong(shown)


@exercise("packed-projection", page=PAGE, task="The rows of query, key and value stand one below the other.")
def packed_projection(answer: Callable[[Tensor, Tensor, int], Sequence[Tensor]]) -> None:
    """Hold a function of x, the packed weight and a number of heads to three projections."""
    generator = torch.Generator().manual_seed(0)
    for batch, tokens, heads, head_dim in _SIZES:
        x, weight = (
            torch.randn(*shape, generator=generator, dtype=torch.float64)
            for shape in ((batch, tokens, 7), (3 * heads * head_dim, 7))
        )
        rows = F.linear(x, weight)  # batch tokens 3·heads·head_dim
        right = [split_heads(part, heads) for part in rows.chunk(3, dim=-1)]
        when = f"{tuple(x.shape)}, weight of {tuple(weight.shape)} and {heads} heads"
        parts = list(answer(x.clone(), weight.clone(), heads))
        if len(parts) != 3:
            raise Wrong(f"It returned {len(parts)} tensors; return three: query, key and value.")
        given = torch.stack([_shaped(part, right[0], when) for part in parts])

        by_head = split_heads(rows, heads).chunk(3, dim=-1)
        viewed = [part.reshape(right[0].shape) for part in rows.chunk(3, dim=-1)]
        wrong: Sequence[tuple[Sequence[Tensor], str, str | None]] = [
            (by_head, "The rows are read head by head; here all of the query's come first.", "interleaved-qkv"),
            (viewed, "A view alone fills the heads in the order of memory.", "view-without-transpose"),
            ([right[1], right[0], right[2]], "Query and key are exchanged.", None),
        ]
        for name, mine, theirs in zip(("query", "key", "value"), given, right, strict=True):
            if torch.allclose(mine, theirs, atol=1e-5):
                continue
            shown = f"For x of {when} the {name} is off by up to {(mine - theirs).abs().max().item():.2f}."
            for tensors, reason, cause in wrong:
                if torch.allclose(given, torch.stack(list(tensors)), atol=1e-5):
                    raise Wrong(f"{shown} {reason}", cause)
            raise Wrong(shown)


def _tagged(batch: int, tokens: int, features: int) -> Tensor:
    return torch.arange(float(batch * tokens * features)).view(batch, tokens, features)


def _shaped(given: object, right: Tensor, when: str) -> Tensor:
    if not isinstance(given, Tensor):
        raise Wrong(f"For x of {when} it returned {type(given).__name__}; return a tensor.")
    if given.shape != right.shape:
        axes = "batch, heads, tokens, head_dim" if right.dim() == 4 else "batch, tokens, features"
        wanted = f"{tuple(right.shape)}: {axes}"
        raise Wrong(f"For x of {when} the shape is {tuple(given.shape)}; it should be {wanted}.")
    return given.detach().cpu().to(right.dtype)


@exercise("appended-pair", page=PAGE, task="The pair is one key and one value more, for every query.")
def appended_pair(answer: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
    """Hold a function of q, k, v, bias_k and bias_v to what add_bias_kv does, and not to a shift.

    Equation: (6.4, 6.5, 6.6)
    """
    for leading in ((), (2, 3)):
        q, k, v, bias_k, bias_v = _draw((*leading, 4, 7), (*leading, 5, 7), (*leading, 5, 7), (1, 7), (1, 7))
        longer = [torch.cat([x, b.expand(*leading, 1, 7)], dim=-2) for x, b in ((k, bias_k), (v, bias_v))]
        right = attend(q, *longer, need_weights=True)
        assert right.weights is not None
        try:
            context, weights = answer(q, k, v, bias_k, bias_v)
        except (TypeError, ValueError) as error:
            raise Wrong(f"Return two tensors, context and weights ({error}).") from None
        shifted = attend(q, k + bias_k, v + bias_v, need_weights=True)
        if _equal(weights, shifted.weights):
            raise Wrong(
                f"For k of {tuple(k.shape)} the weights have {k.size(-2)} columns; they should have {k.size(-2) + 1}. "
                "What is added to all keys changes no weight: append the pair.",
                "bias-kv-as-shift",
            )
        where = f"For q of {tuple(q.shape)} and k of {tuple(k.shape)}"
        weights = _same_shape(weights, right.weights, f"{where}, of the weights,")
        context = _same_shape(context, right.context, f"{where}, of the context,")
        if _equal(weights, right.weights.roll(1, dims=-1)):
            raise Wrong("The pair stands before the others; the last column should be its own.")
        if not torch.allclose(weights, right.weights):
            off = (weights - right.weights).abs().max().item()
            if _equal(weights, attend(q, *longer, scale=1.0, need_weights=True).weights):
                raise Wrong(f"The weights are off by up to {off:.2f}: the scale is missing.", "missing-scale")
            raise Wrong(f"The weights are off by up to {off:.2f}.")
        if not torch.allclose(context, right.context):
            off = (context - right.context).abs().max().item()
            if torch.allclose(context, right.weights @ longer[0]):
                raise Wrong(f"The context is off by up to {off:.2f}: it averages the keys.", "wrong-value")
            raise Wrong(f"The weights are right, the context is off by up to {off:.2f}.")


@exercise("softmax-one", page=PAGE, task="A row sums to less than one, by the share of a score of zero.")
def softmax_one(answer: Callable[[Tensor], Tensor]) -> None:
    """Hold a function of scores to the weights that add_zero_attn leaves to the real keys.

    Equation: (6.7)
    """
    cases = {
        "of a few units": _draw((2, 3, 5))[0],
        "about 1000": 1000 + _draw((2, 3, 5))[0],
        "about -1000": _draw((2, 3, 5))[0] - 1000,
    }
    for name, scores in cases.items():
        before = scores.clone()
        right = torch.cat([scores, scores.new_zeros(2, 3, 1)], dim=-1).softmax(-1)[..., :-1]
        given = _same_shape(answer(scores), right, f"For scores {name}")
        if not torch.equal(scores, before):
            raise Wrong("The scores that you were given were changed.", "input-overwritten")
        if torch.allclose(given, right):
            continue
        if not given.isfinite().all():
            raise Wrong(f"For scores {name} it gives {given.flatten()[0].item()}: subtract the largest score first.")
        total, wanted = given.sum(-1)[0, 0].item(), right.sum(-1)[0, 0].item()
        told = f"For scores {name} the first row sums to {total:.4f}; it should sum to {wanted:.4f}."
        if torch.allclose(given, scores.softmax(-1)):
            raise Wrong(f"{told} That is the usual softmax: one more stands in the denominator.")
        largest = scores.amax(-1, keepdim=True)
        mixed = (scores - largest).exp()
        if torch.allclose(given, mixed / (1 + mixed.sum(-1, keepdim=True))):
            raise Wrong(f"{told} If you subtract the largest score, the one has to be divided by its exponential too.")
        raise Wrong(told)


def _draw(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def _equal(given: object, right: Tensor | None) -> bool:
    return (
        isinstance(given, Tensor) and right is not None and given.shape == right.shape and torch.allclose(given, right)
    )


def _same_shape(given: object, right: Tensor, where: str) -> Tensor:
    if not isinstance(given, Tensor):
        raise Wrong(f"{where} it returned {type(given).__name__}; return a tensor.")
    if given.shape != right.shape:
        raise Wrong(f"{where} the shape is {tuple(given.shape)}; it should be {tuple(right.shape)}.")
    return given.to(right.dtype)
