"""The exercises of the museum's room of computation."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked.functional import attention_scores, cosine_weights
from unmasked_doctor import probes
from unmasked_lessons.embeddings import ship_vectors
from unmasked_lessons.exercises._check import Wrong, ask, draw, exercise, hold, judge, parts, same, tensor

_Attend = Callable[[Tensor, Tensor, Tensor, float, bool], tuple[Tensor, Tensor]]


@exercise("mended-attention", "An average with the right weights; dropout in training alone.")
def _mended_attention(answer: _Attend) -> None:
    for d in (4, 9):  # two, so that no constant fits
        q, k, v = draw((2, 3, d), (2, 5, d), (2, 5, d))
        context, weights = parts(ask(answer, q, k, v, 0.0, False, keep="query, key or value"), "context", "weights")
        _eval_weights(weights, attention_scores(q, k), d)
        right = attention_scores(q, k).softmax(-1) @ v
        wrong_value = {"It is not the product of the weights with the values. [wrong-value]": True}
        hold(context, right, "The weights are right, but", "the context", wrong_value)
    if probes.changes_from_call_to_call(lambda x: answer(x, k, v, 0.5, False)[0], q):
        raise Wrong("With training=False and a dropout of 0.5, two calls differ.", "dropout-in-eval")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        context, weights = answer(q, k, v, 0.5, True)
        if probes.weights_sum_to_one(weights):
            message = f"In training a row of weights sums to {weights.sum(-1).min().item():.2f}"
            raise Wrong(f"{message}; return it from before the dropout.", "weights-after-dropout")
        mean = torch.stack([answer(q, k, v, 0.5, True)[0] for _ in range(200)]).mean(0)
    if same(context, right):
        raise Wrong("With training=True and a dropout of 0.5, nothing is dropped.")
    if (mean - right).abs().max() > 0.5 * right.abs().max():
        raise Wrong("With training=True, 200 calls average to another context than without dropout.")
    leaf = q.clone().requires_grad_()
    attended = answer(leaf, k, v, 0.0, False)[0]
    if not attended.requires_grad or probes.cuts_gradients(lambda x: answer(x, k, v, 0.0, False)[0], q):
        raise Wrong("The gradient of the context with respect to the query is wrong, or missing.", "gradient-cut")


def _eval_weights(answered: Tensor, scores: Tensor, d: int) -> None:
    right = scores.softmax(-1)
    result = tensor(answered, "", right, "the weights")
    if same(result, right):
        return
    if same(result.sum(-2), torch.ones(2, 5)):
        raise Wrong("The columns of the weights sum to one; the rows should.", "softmax-over-queries")
    if evidence := probes.weights_sum_to_one(result):
        raise Wrong(f"With 3 queries and 5 keys, {evidence}.", "weights-not-normalized")
    # Rows of a softmax give the scores back, up to a constant; their spread gives the scale.
    centred = (result.log() - result.log().mean(-1, keepdim=True), scores - scores.mean(-1, keepdim=True))
    ratio = (centred[0] * centred[1]).sum() / centred[1].square().sum()
    if same(centred[0], ratio * centred[1]):
        root = d / ratio.item() ** 2
        message = f"With {d} features the scores are divided by the root of {root:.3g}."
        raise Wrong(message, "missing-scale" if abs(root - 1) < 1e-6 else "wrong-d-in-scale")
    hold(result, right, subject="the weights")


def _cases() -> list[tuple[str, bool, Tensor, str]]:
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
    cosines = cosine_weights(ship_vectors().lookup("my ship and crew"))
    return [
        ("a softmax over the keys", True, weights, ""),
        ("one matrix of (queries, keys)", True, weights[0, 0], ""),
        ("causal weights", True, scores.masked_fill(~visible, -torch.inf).softmax(-1), ""),
        ("a softmax over 1000 keys in float32", True, torch.randn(3, 1000, generator=generator).softmax(-1), ""),
        ("weights with a row of zeros", True, blind, "[fully-masked-row]"),
        ("a softmax over the queries", False, scores.softmax(-2), "[softmax-over-queries]"),
        ("cosines", False, cosines, "[weights-not-normalized]"),
        ("weights after dropout", False, weights * drops / 0.5, "[weights-after-dropout]"),
        ("weights masked after the softmax", False, weights * visible, "[mask-after-softmax]"),
        ("weights with a row of NaN", False, missing, "[fully-masked-row]"),
        ("rows that sum to one, with a negative number", False, shifted, ""),
        ("rows that sum to 0.5 and 1.5, and to one in the mean", False, unlike, "[weights-not-normalized]"),
    ]


@exercise("are-weights", "It accepts rows that are an average's, or empty, and no others.")
def _are_weights(answer: Callable[[Tensor], object]) -> None:
    judge(lambda weights: ask(answer, weights), _cases())
