"""Some of those whom the doctor was tried on: correct attention in several styles, and attention with one mistake each.

`HEALTHY` must give no finding, `SICK` the finding that names its mistake; `NOT_SEEN` says why some of the museum's
mistakes cannot be seen from outside. `ward` examines them all. They take 12 features, most of them in 3 heads.

>>> E, H
(12, 3)
"""

# A module that is called returns Any, and the patients are written as their like is written: without casts.
# mypy: disable-error-code="no-any-return, operator, index"

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked.causal import CausalSelfAttention
from unmasked.doctor._diagnose import diagnose
from unmasked.doctor._report import Report

__all__ = ["HEALTHY", "NOT_SEEN", "SICK", "Patient", "ward"]
E, H = 12, 3
D = E // H


@dataclass(frozen=True)
class Patient:
    """Someone to examine.

    Attributes:
        make: Makes the target.
        options: What `unmasked.diagnose` is told of it, beside embed_dim.
        cause: The slug of its mistake, or None.
    """

    make: Callable[[], Callable[..., Any]]
    options: Mapping[str, Any]
    cause: str | None = None

    def examine(self) -> Report:
        """Let the doctor see it."""
        return diagnose(self.make(), **{"embed_dim": E, **self.options})


HEALTHY: dict[str, Patient] = {}
SICK: dict[str, Patient] = {}


def healthy(name: str, **options: Any) -> Callable[[Any], Any]:
    def admit(make: Any) -> Any:
        assert name not in HEALTHY
        HEALTHY[name] = Patient(make, options)
        return make

    return admit


def sick(cause: str, name: str = "", **options: Any) -> Callable[[Any], Any]:
    def admit(make: Any) -> Any:
        full = f"{cause}: {name}" if name else cause
        assert full not in SICK, full
        SICK[full] = Patient(make, options, cause)
        return make

    return admit


def ward(patients: Mapping[str, Patient]) -> dict[str, Report]:
    """Examine patients.

    Args:
        patients: By name, as `HEALTHY` and `SICK` have them.

    Returns:
        Their reports, by name.

    Examples:
        >>> name = "PyTorch's module"
        >>> ward({name: HEALTHY[name]})[name].ok
        True
    """
    return {name: patient.examine() for name, patient in patients.items()}


healthy("PyTorch's module", inputs="qkv")(lambda: nn.MultiheadAttention(E, H, batch_first=True))
healthy("this package's causal layer", causal=True)(lambda: CausalSelfAttention(E, E, H, dropout=0.2, qkv_bias=True))


@healthy("one packed layer, transposed", causal=True)
class Conv1D(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n_head = H
        self.c_attn = nn.Parameter(torch.randn(E, 3 * E) * 0.3)
        self.c_proj = nn.Parameter(torch.randn(E, E) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (x @ self.c_attn).split(c, dim=2)
        q, k, v = (y.view(b, t, H, D).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).contiguous().view(b, t, c) @ self.c_proj


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(E, D, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).mT * D**-0.5
        shut = torch.full(scores.shape[-2:], -math.inf, dtype=x.dtype, device=x.device).triu(1)
        return (scores + shut).softmax(-1) @ self.value(x)


@healthy("a list of heads", causal=True)
class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Head() for _ in range(H))
        self.proj = nn.Linear(E, E)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(torch.cat([head(x) for head in self.heads], -1))


@healthy("shared keys and values", causal=True)
class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads = 6, 2
        self.q_proj, self.o_proj = nn.Linear(E, 6 * 4, bias=False), nn.Linear(6 * 4, E, bias=False)
        self.k_proj, self.v_proj = nn.Linear(E, 2 * 4, bias=False), nn.Linear(E, 2 * 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, 4)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


@healthy("rotary positions", causal=True, positions=True)
class Rotary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(E, 3 * E, bias=False), nn.Linear(E, E, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (H, D)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        angle = torch.arange(x.size(1)).to(x)[:, None] * 10.0 ** -torch.arange(D // 2).to(x)
        turn = torch.polar(torch.ones_like(angle.float()), angle.float()) if x.dtype == torch.half else None
        turn = torch.polar(torch.ones_like(angle), angle) if turn is None else turn

        def rotate(y: Tensor) -> Tensor:
            pairs = torch.view_as_complex(y.unflatten(-1, (-1, 2)).to(turn.real.dtype).contiguous())
            return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)

        y = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Plain(nn.Module):
    causal = False
    heads = H

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.num_heads = self.heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(E, E, bias=bias) for _ in range(4))
        self.dropout = nn.Dropout(0.3)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), x.size(1), self.heads, E // self.heads).transpose(1, 2)

    def scale(self, q: Tensor) -> float:
        return math.sqrt(q.size(-1))

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-2, -1) / self.scale(q)

    def weigh(self, scores: Tensor) -> Tensor:
        if self.causal:
            scores = self.mask(scores, torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1))
        return scores.softmax(-1)

    def mask(self, scores: Tensor, future: Tensor) -> Tensor:
        return scores.masked_fill(future, -math.inf)

    def merge(self, context: Tensor) -> Tensor:
        return context.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor) -> Any:
        q, k, v = (self.split(y) for y in self.project(x))
        return self.out_proj(self.merge(self.dropout(self.weigh(self.scores(q, k))) @ v))


class Causal(Plain):
    causal = True


healthy("step by step")(Plain)
healthy("step by step, causal", causal=True)(Causal)


# Each does one step of `Plain` otherwise.
_SLIPS: dict[str, dict[str, Callable[..., Any]]] = {
    "merge-without-transpose": {"merge": lambda self, context: context.reshape(len(context), -1, E)},
    "view-without-transpose": {"split": lambda self, x: x.reshape(len(x), H, -1, D)},
    "weight-not-transposed": {
        "project": lambda self, x: tuple(x @ f.weight + f.bias for f in (self.q_proj, self.k_proj, self.v_proj))
    },
    "wrong-value": {"project": lambda self, x: (self.q_proj(x), self.k_proj(x), self.q_proj(x))},
    "missing-scale": {"scale": lambda self, q: 1.0},
    "wrong-d-in-scale": {"scale": lambda self, q: math.sqrt(E)},
    "softmax-over-queries": {"weigh": lambda self, scores: scores.softmax(-2)},
    "weights-not-normalized": {"weigh": lambda self, scores: scores.exp()},
}
for _cause, _step in _SLIPS.items():
    sick(_cause)(type(_cause.title().replace("-", ""), (Plain,), _step))

NOT_SEEN: dict[str, str] = {
    "head-dim-one": "it is in the sizes of a test, not in the module; the doctor's sizes all differ",
    "expanded-mask": "it takes memory, and changes no number",
    "hidden-nan": "it is in the data: attention that is right passes a hidden NaN on, PyTorch's too",
    "bypass-conditions": "it is in what is expected of a module, which is itself right",
    "packed-initialization": "parameters of either start attend rightly",
    "projection-variance": "it is in what is expected of a module, which is itself right",
    "foreign-norms": "cosines are not attention",
    "embedding-reader": "it reads a file",
    "rope-base": "it is in what a checkpoint was trained with: any base is right for some",
    "norm-after-rope": "it is in what a checkpoint was trained with, and shows in positions, which the doctor leaves",
    "window-off-by-one": "it is in what a checkpoint was trained with: any window is right for some",
    "sink-share-returned": "without its sink, attention is plain attention, which is right",
    "rope-in-bfloat16": "it shows at positions beyond the doctor's short sequences",
    "left-padding-positions": "it is in the positions that a model is given",
    "packed-without-documents": "it is in the mask that a model is given",
    "positions-not-reset": "it is in the positions that a model is given",
    "two-finfo-min": "it is in the masks that a model is given: each alone is right",
    "fast-path-bias": "it is in what PyTorch makes of a mask that is itself right",
    "dropout-leaves-the-kernel": "it takes memory, and changes no number",
    "frozen-with-zero-gradient": "it is in the loop that trains",
}
