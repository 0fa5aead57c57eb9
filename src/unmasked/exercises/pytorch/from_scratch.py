"""The exercises of the page that builds multi-head attention from scratch."""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked import masks
from unmasked.exercises._check import Wrong, exercise
from unmasked.heads import merge_heads, split_heads

PAGE = "pytorch/from_scratch"
_HEADS, _EMBED_DIM = 3, 12


@exercise("multi-head", page=PAGE, task="It gives what PyTorch's layer gives, biases and every head included.")
def multi_head(answer: Callable[[Tensor, Tensor, Tensor, Mapping[str, Tensor], int], Tensor]) -> None:
    """Hold a function of query, key, value, a state_dict and a number of heads to nn.MultiheadAttention."""
    generator = torch.Generator().manual_seed(0)
    layer = nn.MultiheadAttention(_EMBED_DIM, _HEADS, batch_first=True, device="meta", dtype=torch.float64)
    state = {
        name: torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / _EMBED_DIM**0.5
        for name, parameter in layer.named_parameters()
    }
    layer.load_state_dict(state, assign=True)
    shapes = ((2, 5, _EMBED_DIM), (2, 7, _EMBED_DIM), (2, 7, _EMBED_DIM))
    query, key, value = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    given, right = answer(query, key, value, state, _HEADS), layer(query, key, value)[0].detach()
    if not isinstance(given, Tensor):
        raise Wrong(f"It returned {type(given).__name__}; return the output alone.")
    if given.shape != right.shape:
        raise Wrong(f"For 5 queries and 7 keys the shape is {tuple(given.shape)}; it should be {tuple(right.shape)}.")
    if torch.allclose(given, right):
        return
    off = f"The output is off by up to {(given - right).abs().max().item():.2f}."
    for (told, cause), wrong in _mistakes(query, key, value, state).items():
        if torch.allclose(given, wrong):
            raise Wrong(f"{off} {told}", cause)
    raise Wrong(off)


@exercise(
    "weights-dropout", page=PAGE, task="What is returned is what averaged the values, each weight zero or enlarged."
)
def weights_dropout(answer: Callable[[Tensor, Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]) -> None:
    """Hold a function of q, k, v, allowed and p to dropout on the weights."""
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 3, 20, 4), (2, 3, 30, 4), (2, 3, 30, 5)
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    allowed = masks.causal(20, 30)
    plain = (q @ k.mT / 2).masked_fill(~allowed, -torch.inf).softmax(-1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for p in (0.0, 0.5, 0.25):
            context, weights = answer(q, k, v, allowed, p)
            if weights.shape != plain.shape or context.shape != (2, 3, 20, 5):
                shapes_given = f"{tuple(context.shape)} and {tuple(weights.shape)}"
                raise Wrong(f"The shapes are {shapes_given}; they should be (2, 3, 20, 5) and {tuple(plain.shape)}.")
            kept = weights != 0
            if p and torch.allclose(weights, plain):
                if torch.allclose(context, plain @ v):
                    raise Wrong(f"With p = {p} nothing was dropped.")
                raise Wrong(f"With p = {p} the weights that you return are not those that averaged the values.")
            if torch.allclose(weights, plain * kept) and p:
                raise Wrong(f"With p = {p} the weights that are left keep their size; divide them by {1 - p:g}.")
            if not torch.allclose(weights, plain * kept / (1 - p)):
                sums = weights.sum(-1)
                if p and torch.allclose(sums, torch.ones_like(sums)):
                    raise Wrong(f"With p = {p} every row sums to 1: drop weights after the softmax, not scores.")
                raise Wrong(f"With p = {p} each weight should be 0 or {1 / (1 - p):.3g} times what it was.")
            dropped = 1 - kept.masked_select(allowed).double().mean().item()
            if abs(dropped - p) > 0.05:
                raise Wrong(f"With p = {p} a share of {dropped:.2f} is dropped.")
            if not torch.allclose(context, weights @ v):
                raise Wrong(f"With p = {p} the context is not the average by the weights that you return.")


@exercise("bias-never-missed", page=PAGE, task="It adds one number to all scores of a query, which no softmax sees.")
def bias_never_missed(answer: str) -> None:
    """Hold a name to the bias that no output depends on."""
    told = {"b_q": "the query's", "b_k": "", "b_v": "the value's", "b_o": "the output's"}
    name = str(answer).strip().lower()
    if name not in told:
        raise Wrong(f"It is {answer!r}; give one of {', '.join(map(repr, told))}.")
    if name == "b_k":
        return
    if name == "b_q":
        raise Wrong(
            "Without the query's bias a score loses a number that differs from key to key: its product with them."
        )
    raise Wrong(f"Without {told[name]} bias every output moves.", "zero-bias-parity")


def _mistakes(
    query: Tensor, key: Tensor, value: Tensor, state: Mapping[str, Tensor]
) -> dict[tuple[str, str | None], Tensor]:
    """What wrong versions give, by what is said of them."""
    w_o, b_o = state["out_proj.weight"], state["out_proj.bias"]
    matrices, biases = state["in_proj_weight"].chunk(3), state["in_proj_bias"].chunk(3)
    inputs = query, key, value
    flat = [F.linear(x, w, b) for x, w, b in zip(inputs, matrices, biases, strict=True)]

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

    context = attend(flat)
    unbiased = [F.linear(x, w) for x, w in zip(inputs, matrices, strict=True)]
    untransposed = [x @ w + b for x, w, b in zip(inputs, matrices, biases, strict=True)]
    interleaved = [part.flatten(0, 1) for part in state["in_proj_weight"].unflatten(0, (_HEADS, 3, -1)).unbind(1)]
    by_head = [F.linear(x, w, b) for x, w, b in zip(inputs, interleaved, biases, strict=True)]
    whole = _EMBED_DIM**-0.5
    return {
        ("The heads are joined as they lie: transpose back first.", "merge-without-transpose"): F.linear(
            context.reshape(2, 5, -1), w_o, b_o
        ),
        ("A view alone does not split heads: transpose after it.", "view-without-transpose"): out(attend(flat, view)),
        ("num_heads and head_dim are exchanged.", "swapped-view"): out(attend(flat, swapped)),
        ("There is one head; there should be 3.", None): F.linear(
            (flat[0] @ flat[1].mT * whole).softmax(-1) @ flat[2], w_o, b_o
        ),
        ("The scores are not divided by the root of head_dim.", "missing-scale"): out(attend(flat, scale=1.0)),
        ("Divide by the root of head_dim, not of embed_dim.", "wrong-d-in-scale"): out(attend(flat, scale=whole)),
        ("The output projection is left out.", "missing-out-proj"): merge_heads(context),
        ("The biases are left out.", "zero-bias-parity"): F.linear(merge_heads(attend(unbiased)), w_o),
        ("The biases of query, key and value are left out.", "zero-bias-parity"): out(attend(unbiased)),
        ("The bias of the output is left out.", "zero-bias-parity"): F.linear(merge_heads(context), w_o),
        ("The product is with the transpose: x @ W.T.", "weight-not-transposed"): out(attend(untransposed)),
        ("The rows are not packed head by head.", "interleaved-qkv"): out(attend(by_head)),
        ("The keys are averaged, not the values.", "wrong-value"): out(attend([flat[0], flat[1], flat[1]])),
    }
