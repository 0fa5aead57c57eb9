"""More modules to try the doctor on, unlike those of the zoo: right attention, and mistakes of the museum."""

# A module that is called returns Any, and the examples are written as users write theirs: without casts.
# mypy: disable-error-code="no-any-return, operator, index"

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked import CausalSelfAttention, MultiheadAttention, self_attention
from unmasked.functional import attend
from unmasked_doctor import examples
from unmasked_doctor.examples import NOT_SEEN, Causal, D, E, Example, H, Plain

from .zoo.attention import SDPA_CAUSAL, Attention
from .zoo.cases import Style

__all__ = ["NOT_SEEN", "RIGHT", "WRONG"]

RIGHT, WRONG = {**examples.RIGHT}, {**examples.WRONG}


def right(name: str, **options: Any) -> Callable[[Any], Any]:
    """Add a right example, by what makes it and how `diagnose` is called."""

    def add(make: Any) -> Any:
        assert name not in RIGHT
        RIGHT[name] = Example(make, options)
        return make

    return add


def wrong(cause: str, name: str = "", **options: Any) -> Callable[[Any], Any]:
    """Add an example of a mistake."""

    def add(make: Any) -> Any:
        full = f"{cause}: {name}" if name else cause
        assert full not in WRONG, full
        WRONG[full] = Example(make, options, cause)
        return make

    return add


right("PyTorch's module, tokens first", inputs="qkv", batch_first=False)(
    lambda: nn.MultiheadAttention(E, H, dropout=0.3)
)
right("PyTorch's module, no bias", inputs="qkv")(lambda: nn.MultiheadAttention(E, H, bias=False, batch_first=True))
right("PyTorch's module, add_bias_kv", inputs="qkv")(
    lambda: nn.MultiheadAttention(E, H, add_bias_kv=True, batch_first=True)
)
right("PyTorch's module, add_zero_attn", inputs="qkv")(
    lambda: nn.MultiheadAttention(E, H, add_zero_attn=True, batch_first=True)
)
right("PyTorch's function", inputs="qkv_allowed")(lambda: F.scaled_dot_product_attention)
right("PyTorch's function, no mask", inputs="qkv")(lambda: F.scaled_dot_product_attention)
right("this package's module", inputs="qkv")(lambda: MultiheadAttention(E, H, batch_first=True))
right("this package's causal layer, shared keys", causal=True)(lambda: CausalSelfAttention(E, 2 * E, 6, num_kv_heads=2))
right("this package's function", inputs="qkv_allowed")(
    lambda: lambda q, k, v, allowed: attend(q, k, v, allowed=allowed[:, 0]).context
)
right("this package's self-attention")(lambda: lambda x: self_attention(x, need_weights=False).context)


@right("a closure over matrices", num_heads=H)
def closure() -> Callable[[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(1)
    w = {name: torch.randn(E, E, generator=generator) * 0.3 for name in ("q", "k", "v", "o")}

    def attend(x: Tensor) -> Tensor:
        q, k, v = ((x @ w[name]).unflatten(-1, (H, D)).transpose(1, 2) for name in "qkv")
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2) @ w["o"]

    return attend


@right("names that say nothing", num_heads=H)
class Nameless(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(E, E) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        split = lambda y: y.unflatten(-1, (H, D)).transpose(1, 2)  # noqa: E731
        y = F.scaled_dot_product_attention(split(self.c(x)), split(self.a(x)), split(self.d(x)))
        return self.b(y.transpose(1, 2).flatten(2))


def slipped(cause: str, name: str, family: type[Plain], strict: bool = False, /, **steps: Callable[..., Any]) -> None:
    """Add an example that does a step of attention otherwise."""
    options = {"causal": True} if issubclass(family, Causal) else {}
    wrong(cause, name, **options | ({"strict": True} if strict else {}))(
        type(cause.title().replace("-", ""), (family,), steps)
    )


DEALT_IN_TURN = Style(
    Attention,
    dim=E,
    heads=6,
    groups=2,
    width=4,
    widen=lambda k, v, times: (k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1)),
    **SDPA_CAUSAL,
)
wrong("repeat-for-repeat-interleave", **DEALT_IN_TURN.call, strict=True)(DEALT_IN_TURN.make)

MERGE = WRONG["merge-without-transpose"].make.merge  # type: ignore[attr-defined]
SPLIT = WRONG["view-without-transpose"].make.split  # type: ignore[attr-defined]
slipped("merge-without-transpose", "causal", Causal, merge=MERGE)
slipped("view-without-transpose", "and back", Causal, split=SPLIT, merge=MERGE)


class BatchForHead(nn.Module):
    """A matrix a head, of which each takes the item of its number, by an index or by broadcasting."""

    def __init__(self, indexed: bool) -> None:
        super().__init__()
        self.indexed = indexed
        self.query, self.key, self.value = (nn.Parameter(torch.randn(H, E, D)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        if not self.indexed:
            return F.scaled_dot_product_attention(x @ self.query, x @ self.key, x @ self.value)
        q, k, v = (torch.stack([x[i] @ w[i] for i in range(H)]) for w in (self.query, self.key, self.value))
        return F.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1).expand(x.shape)


wrong("batch-indexed-for-head", num_heads=H)(lambda: BatchForHead(indexed=True))
wrong("batch-indexed-for-head", "by broadcasting", num_heads=H)(lambda: BatchForHead(indexed=False))
wrong("batch-transposed")(lambda: lambda x: (x @ x.permute(2, 1, 0) / math.sqrt(E)).softmax(-1) @ x)


slipped(
    "batch-and-tokens-swapped",
    "",
    Plain,
    forward=lambda self, x: Plain.forward(self, x.transpose(0, 1)).transpose(0, 1),
)
slipped(
    "batch-and-tokens-swapped",
    "by a view",
    Causal,
    forward=lambda self, x: Causal.forward(self, x.reshape(x.size(1), x.size(0), E)).reshape(x.shape),
)


wrong("no-causal-mask", causal=True)(Plain)


slipped("mask-polarity", "", Causal, mask=lambda self, scores, future: scores.masked_fill(~future, -1e4))
slipped("float16-overflow", "", Causal, True, mask=lambda self, scores, future: scores.masked_fill(future, -1e9))
slipped("dropout-in-eval", "", Plain, weigh=lambda self, scores: F.dropout(Plain.weigh(self, scores), 0.2))
slipped("gradient-cut", "", Plain, weigh=lambda self, scores: Plain.weigh(self, scores.detach()))
slipped("gradient-cut", "by a new tensor", Plain, merge=lambda self, y: Plain.merge(self, y.detach().clone()))
slipped("wrong-d-in-scale", "no root", Plain, scale=lambda self, q: float(q.size(-1)))
slipped("global-d-k", "", Plain, scale=lambda self, q: math.sqrt(64))
slipped(
    "forward-called-directly",
    "",
    Plain,
    project=lambda self, x: tuple(layer.forward(x) for layer in (self.q_proj, self.k_proj, self.v_proj)),
)


wrong("top-left-causal", inputs="qkv", causal=True)(
    lambda: lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)
)
wrong("missing-scale", "of three arguments", inputs="qkv")(lambda: lambda q, k, v: (q @ k.mT).softmax(-1) @ v)


@wrong("is-causal-is-a-hint", causal=True)
class Hint(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(E, H, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        visible = torch.zeros(x.size(1), x.size(1), dtype=torch.bool, device=x.device)
        return self.attention(x, x, x, attn_mask=visible, is_causal=True)[0]


@wrong("is-causal-is-a-hint", "without a mask", causal=True)
class HintAlone(Hint):
    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, is_causal=True)[0]


@wrong("fully-masked-row", inputs="qkv_allowed", strict=True)
def fully_masked_row() -> Callable[..., Tensor]:
    def attend(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
        scores = q @ k.mT / math.sqrt(q.size(-1))
        return scores.masked_fill(~allowed.squeeze(1), -math.inf).softmax(-1) @ v

    return attend


@wrong("mask-buffer", causal=True, strict=True)
class MaskBuffer(Causal):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("future", torch.ones(64, 64).triu(1))

    def mask(self, scores: Tensor, future: Tensor) -> Tensor:
        return scores.masked_fill(self.future[: scores.size(-2), : scores.size(-1)].bool(), -math.inf)


@wrong("bias-kv-as-shift")
class BiasKvAsShift(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.bias_k, self.bias_v = nn.Parameter(torch.randn(1, 1, E)), nn.Parameter(torch.randn(1, 1, E))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x)
        return q, k + self.bias_k, v + self.bias_v


@wrong("aliased-weights")
def aliased_weights() -> nn.Module:
    module = Plain()
    module.k_proj.weight.data = module.q_proj.weight.data
    return module


class Packed(Plain):
    def __init__(self) -> None:
        super().__init__()
        del self.q_proj, self.k_proj, self.v_proj
        self.in_proj_weight, self.in_proj_bias = nn.Parameter(torch.randn(3 * E, E)), nn.Parameter(torch.zeros(3 * E))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = F.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        return q, k, v


right("PyTorch's names, another class")(Packed)


slipped("zero-bias-parity", "", Packed, project=lambda self, x: F.linear(x, self.in_proj_weight).chunk(3, -1))
slipped("averaged-weights-parity", "", Packed, merge=lambda self, y: Packed.merge(self, y.flip(1)))


@wrong("weight-not-transposed", "packed")
class PackedNotTransposed(Packed):
    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (x @ w + b for w, b in zip(self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3), strict=True))
        return q, k, v


@wrong("interleaved-qkv")
class InterleavedQkv(Packed):
    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows = F.linear(x, self.in_proj_weight, self.in_proj_bias).unflatten(-1, (H, 3, D))
        q, k, v = (part.flatten(-2) for part in rows.unbind(-2))
        return q, k, v


@wrong("weights-not-normalized", "no softmax, and no weights to be seen", causal=False)
def linear_attention() -> Callable[[Tensor], Tensor]:
    a, b = torch.randn(E, 7), torch.randn(E, 7)
    return lambda x: (x @ a) @ (x @ b).mT @ x.tanh()


@wrong("weights-after-dropout", strict=True)
class WeightsAfterDropout(Plain):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = (self.split(y) for y in self.project(x))
        weights = self.dropout(self.weigh(self.scores(q, k)))
        return self.out_proj(self.merge(weights @ v)), weights


@wrong("input-overwritten", causal=True)
class InputOverwritten(Causal):
    def forward(self, x: Tensor) -> Tensor:
        x -= x.mean(-1, keepdim=True)
        return super().forward(x)


@wrong("need-weights-costs", strict=True)
class NeedWeights(Hint):
    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


right("a wrapped module whose weights are dropped")(NeedWeights)
