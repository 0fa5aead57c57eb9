"""The exercises of the page about keys and values from elsewhere."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked.exercises._check import Wrong, exercise
from unmasked.functional import scaled_dot_product_attention

PAGE = "learn/cross"


@exercise("cross-attention", page=PAGE, task="Every token of x gets an average of the memory's tokens.")
def cross_attention(answer: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Hold a function of x and memory to cross-attention without matrices.

    Equation: (8.1)
    """
    for tokens, remembered in ((3, 3), (2, 5), (4, 1)):  # of one length first, where a mistake runs and can be named
        x, memory = _draw((2, tokens, 4), (2, remembered, 4))
        right = scaled_dot_product_attention(x, memory, memory).context
        where = f"For x of {tuple(x.shape)} and memory of {tuple(memory.shape)}"
        given = _same_shape(answer(x, memory), right, where)
        if torch.allclose(given, right):
            continue
        off = f"{where} it is off by up to {(given - right).abs().max().item():.2f}."
        scores = x @ memory.mT
        if torch.allclose(given, scores.softmax(-1) @ memory):
            raise Wrong(f"{off} The scores are not divided by the root of {x.size(-1)}, the features.", "missing-scale")
        scores = scores / 2
        if torch.allclose(given, scores.softmax(-1) @ x):
            raise Wrong(f"{off} It averages x, where it should average memory.", "wrong-value")
        if torch.allclose(given, scores.mT.softmax(-1) @ x) or torch.allclose(given, scores.mT.softmax(-1) @ memory):
            raise Wrong(f"{off} The memory asks and x is asked: x must give the queries.")
        if torch.allclose(given, (x @ x.mT / 2).softmax(-1) @ x):
            raise Wrong(f"{off} x asks itself, not the memory.", "wrong-value")
        if torch.allclose(given, scores.softmax(-2) @ memory):
            raise Wrong(f"{off} The softmax goes over the queries, not the keys.", "softmax-over-queries")
        raise Wrong(off)


@exercise("appended-pair", page=PAGE, task="The pair is one key and one value more, for every query.")
def appended_pair(answer: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
    """Hold a function of q, k, v, bias_k and bias_v to what add_bias_kv does, and not to a shift.

    Equation: (8.2, 8.3, 8.4)
    """
    for leading in ((), (2, 3)):
        q, k, v, bias_k, bias_v = _draw((*leading, 4, 7), (*leading, 5, 7), (*leading, 5, 7), (1, 7), (1, 7))
        longer = [torch.cat([x, b.expand(*leading, 1, 7)], dim=-2) for x, b in ((k, bias_k), (v, bias_v))]
        right = scaled_dot_product_attention(q, *longer, need_weights=True)
        assert right.weights is not None
        try:
            context, weights = answer(q, k, v, bias_k, bias_v)
        except (TypeError, ValueError) as error:
            raise Wrong(f"Return two tensors, context and weights ({error}).") from None
        shifted = scaled_dot_product_attention(q, k + bias_k, v + bias_v, need_weights=True)
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
            if _equal(weights, scaled_dot_product_attention(q, *longer, scale=1.0, need_weights=True).weights):
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

    Equation: (8.5)
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
