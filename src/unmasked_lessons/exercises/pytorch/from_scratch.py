"""The exercises of the page that builds multi-head attention from scratch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked import masks
from unmasked.heads import merge_heads, split_heads
from unmasked_lessons.exercises._check import Wrong, draw, exercise, hold, parts, same, tensor

_HEADS, _EMBED_DIM = 3, 12


@exercise("multi-head", "It gives what PyTorch's layer gives, biases and every head included.")
def _multi_head(answer: Callable[[Tensor, Tensor, Tensor, Mapping[str, Tensor], int], Tensor]) -> None:
    layer = nn.MultiheadAttention(_EMBED_DIM, _HEADS, batch_first=True, device="meta", dtype=torch.float64)
    shapes = {name: parameter.shape for name, parameter in layer.named_parameters()}
    *drawn, query, key, value = draw(*shapes.values(), (2, 5, _EMBED_DIM), (2, 7, _EMBED_DIM), (2, 7, _EMBED_DIM))
    state = dict(zip(shapes, (each / _EMBED_DIM**0.5 for each in drawn), strict=True))
    layer.load_state_dict(state, assign=True)
    right = layer(query, key, value)[0].detach()
    result = answer(query, key, value, state, _HEADS)
    hold(result, right, "For 5 queries and 7 keys", "the output", of_weights((query, key, value), state))


@exercise("weights-dropout", "What is returned is what averaged the values, each weight zero or enlarged.")
def _weights_dropout(answer: Callable[[Tensor, Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]) -> None:
    q, k, v = draw((2, 3, 20, 4), (2, 3, 30, 4), (2, 3, 30, 5))
    allowed = masks.causal(20, 30)
    plain = (q @ k.mT / 2).masked_fill(~allowed, -torch.inf).softmax(-1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for p in (0.0, 0.5, 0.25):
            context, weights = parts(answer(q, k, v, allowed, p), "context", "weights")
            tensor(weights, "", plain, "the weights")
            tensor(context, "", plain @ v, "the context")
            kept = weights != 0
            dropped = 1 - kept.masked_select(allowed).double().mean().item()
            ones = torch.ones(1, dtype=torch.float64).expand(2, 3, 20)
            enlarged = same(weights, plain * kept / (1 - p))
            mistakes = {
                "nothing was dropped.": p and same(weights, plain) and same(context, plain @ v),
                "the weights that you return are not those that averaged the values.": p and same(weights, plain),
                f"the weights that are left keep their size; divide them by {1 - p:g}.": (
                    p and same(weights, plain * kept)
                ),
                "every row sums to 1: drop weights after the softmax, not scores.": (
                    p and not enlarged and same(weights.sum(-1), ones)
                ),
                f"each weight should be 0 or {1 / (1 - p):.3g} times what it was.": not enlarged,
                f"a share of {dropped:.2f} is dropped.": abs(dropped - p) > 0.05,
                "the context is not the average by the weights that you return.": not same(context, weights @ v),
            }
            for sentence, is_made in mistakes.items():
                if is_made:
                    raise Wrong(f"With p = {p} {sentence}")


@exercise("bias-never-missed", "It adds one number to all scores of a query, which no softmax sees.")
def _bias_never_missed(answer: str) -> None:
    product = "Without the query's bias a score loses a number that differs from key to key: its product with them."
    messages = {
        "b_q": product,
        "b_k": "",
        "b_v": "Without the value's bias every output moves. [zero-bias-parity]",
        "b_o": "Without the output's bias every output moves. [zero-bias-parity]",
    }
    name = str(answer).strip().lower()
    if name not in messages:
        raise Wrong(f"It is {answer!r}; give one of {', '.join(map(repr, messages))}.")
    if messages[name]:
        raise Wrong(messages[name])


def of_weights(inputs: Sequence[Tensor], state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Compute what mistakes with a layer's weights give, each by the sentence that names it, as `hold` takes `known`.

    Args:
        inputs: Query, key and value, (2, tokens, 12) each: there are 3 heads of 4 features.
        state: The tensors of an nn.MultiheadAttention of this size.
    """
    weight, bias = state["in_proj_weight"], state["in_proj_bias"]
    w_o, b_o = state["out_proj.weight"], state["out_proj.bias"]

    def project(weight: Tensor = weight, bias: Tensor = bias) -> list[Tensor]:
        return list(map(F.linear, inputs, weight.chunk(3), bias.chunk(3)))

    def view(x: Tensor) -> Tensor:
        return x.reshape(2, _HEADS, x.size(1), -1)

    def swapped(x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (-1, _HEADS))
        return heads.permute(0, 3, 1, 2)

    def attend(
        parts: list[Tensor], split: Callable[[Tensor], Tensor] = lambda x: split_heads(x, _HEADS), scale: float = 0.5
    ) -> Tensor:
        q, k, v = map(split, parts)
        return (q @ k.mT * scale).softmax(-1) @ v

    def out(context: Tensor) -> Tensor:
        return F.linear(merge_heads(context), w_o, b_o)

    flat, whole = project(), _EMBED_DIM**-0.5
    context, as_many = attend(flat), flat[0].shape == flat[2].shape  # queries as keys
    bare = attend(project(bias=0 * bias))
    transposed = torch.cat([part.T for part in weight.chunk(3)])
    rows = torch.arange(3 * _EMBED_DIM).view(_HEADS, 3, -1).transpose(0, 1).flatten()  # head by head
    return {
        "The heads are joined as they lie: transpose back first. [merge-without-transpose]": (
            F.linear(context.reshape(2, 5, -1), w_o, b_o)
        ),
        "A view alone does not split heads: transpose after it. [view-without-transpose]": out(attend(flat, view)),
        "num_heads and head_dim are exchanged. [swapped-view]": out(attend(flat, swapped)),
        "There is one head; there should be 3.": out(attend(flat, lambda x: x[:, None], whole)),
        "The scores are not divided by the root of head_dim. [missing-scale]": out(attend(flat, scale=1.0)),
        "Divide by the root of head_dim, not of embed_dim. [wrong-d-in-scale]": out(attend(flat, scale=whole)),
        "The output projection is left out. [missing-out-proj]": merge_heads(context),
        "The biases are left out. [zero-bias-parity]": out(bare) - b_o,
        "The biases of query, key and value are left out. [zero-bias-parity]": out(bare),
        "The bias of the output is left out. [zero-bias-parity]": out(context) - b_o,
        "The product is with the transpose: x @ W.T. [weight-not-transposed]": out(attend(project(transposed))),
        "The output's product is with the transpose: x @ W.T. [weight-not-transposed]": merge_heads(context) @ w_o
        + b_o,
        "The rows are not packed head by head. [interleaved-qkv]": out(attend(project(weight[rows]))),
        "Rows and biases are not packed head by head. [interleaved-qkv]": out(
            attend(project(weight[rows], bias[rows]))
        ),
        "The queries are averaged, not the values. [wrong-value]": as_many and out(attend([flat[0], flat[1], flat[0]])),
        "The keys are averaged, not the values. [wrong-value]": out(attend([flat[0], flat[1], flat[1]])),
        "The heads stand in another order. [averaged-weights-parity]": out(context.roll(-1, dims=1)),
    }
