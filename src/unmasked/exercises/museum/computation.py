"""The exercises of the museum's room of computation."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked import probes
from unmasked.embeddings import ship_vectors
from unmasked.exercises._check import Wrong, exercise
from unmasked.functional import attention_scores, cosine_weights

PAGE = "museum/computation"
_Attend = Callable[[Tensor, Tensor, Tensor, float, bool], tuple[Tensor, Tensor]]


@exercise("mended-attention", page=PAGE, task="An average with the right weights; dropout in training alone.")
def mended_attention(answer: _Attend) -> None:
    """Hold a function of query, key, value, dropout and training to attention."""
    generator = torch.Generator().manual_seed(0)
    for d in (4, 9):  # two, so that no constant fits
        q, k, v = (torch.randn(2, n, d, generator=generator, dtype=torch.float64) for n in (3, 5, 5))
        before = [x.clone() for x in (q, k, v)]
        given = answer(q, k, v, 0.0, False)
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise Wrong(f"It returned {type(given).__name__}; return two tensors, the context and the weights.")
        for name, x, was in zip(("query", "key", "value"), (q, k, v), before, strict=True):
            if not torch.equal(x, was):
                raise Wrong(f"The {name} that you were given was changed.", "input-overwritten")
        _eval_weights(given[1], attention_scores(q, k), d)
        right = attention_scores(q, k).softmax(-1) @ v
        if given[0].shape != right.shape or not torch.allclose(given[0], right):
            raise Wrong("The weights are right, but the context is not their product with the values.", "wrong-value")
    if probes.changes_from_call_to_call(lambda x: answer(x, k, v, 0.5, False)[0], q):
        raise Wrong("With training=False and a dropout of 0.5, two calls differ.", "dropout-in-eval")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        context, weights = answer(q, k, v, 0.5, True)
        if probes.weights_sum_to_one(weights):
            total = weights.sum(-1).min().item()
            raise Wrong(
                f"In training a row of weights sums to {total:.2f}; return it from before the dropout.",
                "weights-after-dropout",
            )
        mean = torch.stack([answer(q, k, v, 0.5, True)[0] for _ in range(200)]).mean(0)
    if torch.allclose(context, right):
        raise Wrong("With training=True and a dropout of 0.5, nothing is dropped.")
    if (mean - right).abs().max() > 0.5 * right.abs().max():
        raise Wrong("With training=True, 200 calls average to another context than without dropout.")
    leaf = q.clone().requires_grad_()
    attended = answer(leaf, k, v, 0.0, False)[0]
    if not attended.requires_grad or probes.cuts_gradients(lambda x: answer(x, k, v, 0.0, False)[0], q):
        raise Wrong("The gradient of the context with respect to the query is wrong, or missing.", "gradient-cut")


def _eval_weights(given: Tensor, scores: Tensor, d: int) -> None:
    right = scores.softmax(-1)
    if given.shape != right.shape:
        raise Wrong(f"The weights have the shape {tuple(given.shape)}; it should be {tuple(right.shape)}.")
    if torch.allclose(given, right):
        return
    if torch.allclose(given.sum(-2), torch.ones_like(given.sum(-2))):
        raise Wrong("The columns of the weights sum to one; the rows should.", "softmax-over-queries")
    if evidence := probes.weights_sum_to_one(given):
        raise Wrong(f"With 3 queries and 5 keys, {evidence}.", "weights-not-normalized")
    # Rows of a softmax give the scores back, up to a constant; their spread gives the scale.
    centred = (given.log() - given.log().mean(-1, keepdim=True), scores - scores.mean(-1, keepdim=True))
    ratio = (centred[0] * centred[1]).sum() / centred[1].square().sum()
    if torch.allclose(centred[0], ratio * centred[1]):
        root = d / ratio.item() ** 2
        told = f"With {d} features the scores are divided by the root of {root:.3g}"
        raise Wrong(f"{told}.", "missing-scale" if abs(root - 1) < 1e-6 else "wrong-d-in-scale")
    raise Wrong(f"The weights are off by up to {(given - right).abs().max().item():.2f}.")


def _cases() -> list[tuple[str, bool, str | None, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 3, 4, 5, generator=generator)
    weights = scores.softmax(-1)
    visible = torch.ones(4, 5, dtype=torch.bool).tril(1)
    blind = weights.clone()
    blind[1, 2, 3] = 0.0
    shifted, unlike, missing = weights.clone(), weights.clone(), weights.clone()
    shifted[0, 0, 0, :2] += torch.tensor([-1.0, 1.0])  # the sum stays
    unlike[0, 0, :2] *= torch.tensor([[0.5], [1.5]])  # so does the mean of all sums
    missing[1, 0, 2] = torch.nan
    drops = torch.rand(weights.shape, generator=generator) < 0.5
    return [
        ("a softmax over the keys", True, None, weights),
        ("one matrix of (queries, keys)", True, None, weights[0, 0]),
        ("causal weights", True, None, scores.masked_fill(~visible, -torch.inf).softmax(-1)),
        ("a softmax over 1000 keys in float32", True, None, torch.randn(3, 1000, generator=generator).softmax(-1)),
        ("weights with a row of zeros", True, "fully-masked-row", blind),
        ("a softmax over the queries", False, "softmax-over-queries", scores.softmax(-2)),
        ("cosines", False, "weights-not-normalized", cosine_weights(ship_vectors().lookup("my ship and crew"))),
        ("weights after dropout", False, "weights-after-dropout", weights * drops / 0.5),
        ("weights masked after the softmax", False, "mask-after-softmax", weights * visible),
        ("weights with a row of NaN", False, "fully-masked-row", missing),
        ("rows that sum to one, with a negative number", False, None, shifted),
        ("rows that sum to 0.5 and 1.5, and to one in the mean", False, "weights-not-normalized", unlike),
    ]


@exercise("are-weights", page=PAGE, task="It accepts rows that are an average's, or empty, and no others.")
def are_weights(answer: Callable[[Tensor], object]) -> None:
    """Hold a test of weights to weights and to what only looks like them."""
    for name, right, cause, weights in _cases():
        given = bool(answer(weights.clone()))
        if given != right:
            told = f"of {name}, of the shape {tuple(weights.shape)}"
            raise Wrong(f"It says {given} {told}; it should say {right}.", cause)
