"""Ask which attention kernels can run, which did, and at what cost; and when PyTorch's encoder takes its fast path.

PyTorch leaves its fused kernels without a word. What makes it leave that of a CPU is dropout, a query that has not four
axes (from PyTorch 2.14 on, three will do), an additive mask that requires grad, a mask of one axis or three, values of
another width than the keys, a batch or heads that only broadcasting makes equal, and a last axis that is not
contiguous. The math backend, which then runs, holds the scores of all heads.
`sdpa_backends` says it before a call, with the reason, and `kernels_of` after one, with the memory.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.backends.cuda import (
    SDPAParams,
    can_use_cudnn_attention,
    can_use_efficient_attention,
    can_use_flash_attention,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from unmasked import _generators, _private
from unmasked._checks import checked
from unmasked._shapes import Shaped
from unmasked.plot.tables import Table, Tabular

__all__ = ["Backend", "Backends", "FastPath", "Kernel", "Kernels", "kernels_of", "sdpa_backends", "takes_fast_path"]

_FUSED = {
    SDPBackend.FLASH_ATTENTION: ("flash", can_use_flash_attention),
    SDPBackend.EFFICIENT_ATTENTION: ("efficient", can_use_efficient_attention),
    SDPBackend.CUDNN_ATTENTION: ("cudnn", can_use_cudnn_attention),
}


class Backend(NamedTuple):
    """One backend of `torch.nn.functional.scaled_dot_product_attention`, for given inputs.

    Attributes:
        name: "flash", "efficient", "cudnn" or "math".
        can_run: Whether it can.
        why_not: The reason why it cannot, in PyTorch's words. Text in parentheses is ours, where PyTorch gives none.
        chosen: Whether PyTorch picks it, left to itself.
    """

    name: str
    can_run: bool
    why_not: str
    chosen: bool


class Backends(Tabular, tuple[Backend, ...]):
    """The backends, printed as a table."""

    @property
    def table(self) -> Table:
        """The backends as text, a row for each."""
        rows = [(b.name, "chosen" if b.chosen else "yes" if b.can_run else "no", b.why_not) for b in self]
        return Table(("backend", "can run", "why not"), rows)


@checked
def sdpa_backends(
    query: Shaped[Tensor, "..."],
    key: Shaped[Tensor, "..."],
    value: Shaped[Tensor, "..."],
    *,
    attn_mask: Shaped[Tensor, "..."] | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    enable_gqa: bool = False,
) -> Backends:
    """Tell which backends of PyTorch's attention can run for these inputs, and why others cannot; nothing is run.

    The math backend alone makes the whole table of weights, and it alone has second derivatives: who needs one
    runs the call under ``torch.nn.attention.sdpa_kernel(SDPBackend.MATH)``. `kernels_of` says what did run.

    Arguments as for `torch.nn.functional.scaled_dot_product_attention`.

    Returns:
        The backends flash, efficient, cudnn and math. One that is switched off (`torch.nn.attention.sdpa_kernel`) is
        still said to run where it could, but is not chosen.

    Examples:
        >>> q = torch.ones(2, 3, 5, 4)
        >>> sdpa_backends(q, q, q, dropout_p=0.1)[0].why_not
        'Both fused kernels do not support non-zero dropout.'
    """
    inputs = (query, key, value, attn_mask, dropout_p, is_causal)
    kind = query.device.type
    choice = partial(_choose, *inputs, enable_gqa=enable_gqa)

    def is_choice(backend: SDPBackend) -> bool:
        return choice() == backend

    @cache
    def why_not_math(is_causal: bool) -> str:
        q, k, v = (torch.empty_like(x, device="meta") for x in (query, key, value))
        mask = None if attn_mask is None else torch.empty_like(attn_mask, device="meta")
        try:  # tensors without data: only shapes and dtypes are checked
            with sdpa_kernel(SDPBackend.MATH):
                F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal, enable_gqa=enable_gqa)
        except (RuntimeError, IndexError) as error:
            return str(error)
        return ""

    # A mask beside is_causal is refused by math alone, or, from PyTorch 2.14 on, before any kernel is chosen.
    invalid = why_not_math(is_causal and (attn_mask is None or torch.__version__ >= "2.14"))
    with warnings.catch_warnings(action="ignore"):
        chosen = None if invalid else choice()
    backends = []
    for backend, (name, can_use) in _FUSED.items():
        if invalid:
            can_run, why_not = False, invalid
        elif kind == "cuda":
            can_run, why_not = _answer(backend, partial(can_use, SDPAParams(*inputs, enable_gqa), debug=True))
        else:
            can_run, why_not = _answer(backend, partial(is_choice, backend))
        if not can_run and not why_not:
            why_not = _unsaid(name, kind, attn_mask)
        backends.append(Backend(name, can_run, why_not, chosen == backend))
    why_not = why_not_math(is_causal)
    return Backends([*backends, Backend("math", not why_not, why_not, chosen == SDPBackend.MATH)])


def _choose(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> SDPBackend | None:
    """Ask PyTorch which kernel it would run, or return None where it takes the call by none that is switched on."""

    def ask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> SDPBackend:
        return SDPBackend(
            _private.fused_choice(q, k, v, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        )

    try:
        choice = ask(query, key, value, attn_mask)
        if choice != SDPBackend.MATH and query.dim() == 3:
            # From 2.14 on, three axes are made four first. Asked of three, PyTorch overlooks a mask that requires grad.
            mask = attn_mask[None] if attn_mask is not None and attn_mask.dim() % 2 else attn_mask
            choice = ask(query[None], key[None], value[None], mask)
    except NotImplementedError:  # a device without fused kernels
        return SDPBackend.MATH
    except (RuntimeError, IndexError, ValueError):  # the call itself will say why
        return None
    return choice


def _kernel_name(*inputs: Any, **options: Any) -> str:
    """Name the kernel that PyTorch would run: "unknown" where it does not take the call."""
    choice = _choose(*inputs, **options)
    return "unknown" if choice is None else choice.name.removesuffix("_ATTENTION").lower()


def _answer(backend: SDPBackend, ask: Callable[[], bool]) -> tuple[bool, str]:
    """Ask whether a backend can run, and say what PyTorch warns of where it cannot."""
    with sdpa_kernel(backend), warnings.catch_warnings(action="always", record=True) as caught:
        try:
            can_run = ask()
        except (RuntimeError, IndexError):  # asked of an axis that the inputs do not have
            can_run = False
    reasons = [re.sub(r" \(Triggered internally.*", "", str(each.message), flags=re.DOTALL) for each in caught]
    return can_run, "" if can_run else " ".join(text for text in reasons if not text.endswith("because:"))


def _unsaid(name: str, kind: str, attn_mask: Tensor | None) -> str:
    """The reason that PyTorch does not put in words, where it is known: some versions log theirs beside Python."""
    if kind == "cpu" and name != "flash":
        return "(a CPU has no such kernel)"
    if kind == "cpu" and attn_mask is not None and attn_mask.requires_grad:
        return "(attn_mask requires grad)"
    return "(PyTorch does not say)"


class Kernel(NamedTuple):
    """One kernel of attention that ran.

    Attributes:
        name: "flash", "efficient", "cudnn" or "math", with "backward" behind it for that pass; "fast path" of an
            encoder layer or a module; "softmax" for one outside of all these, as attention written by hand has it.
        calls: How often it ran.
        operator: PyTorch's name of it.
    """

    name: str
    calls: int
    operator: str


class Kernels(Tabular, tuple[Kernel, ...]):
    """The kernels that ran, in their order, printed as a table; `peak_bytes` is the memory that they took.

    Attributes:
        peak_bytes: The most that was allocated at once while they ran, beyond what was there before: results, what is
            kept for the backward pass, and what is made on the way.
    """

    peak_bytes: int

    @property
    def names(self) -> tuple[str, ...]:
        """The names alone."""
        return tuple(kernel.name for kernel in self)

    @property
    def table(self) -> Table:
        """The kernels as text, a row for each."""
        return Table(("kernel", "calls", "operator"), [(k.name, str(k.calls), k.operator) for k in self])

    def _notes(self) -> list[str]:
        return [f"peak memory: {self.peak_bytes / 2**20:.1f} MiB"]


_FAST_LAYER, _FAST_MODULE = "aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention"
_OPERATOR = re.compile(r"aten::_scaled_dot_product_(?:(?P<fused>\w+?)_)??attention(?P<rest>\w*)$")


@checked
def kernels_of(f: Callable[..., object], *args: Any, **kwargs: Any) -> Kernels:
    """Run a function once, and say which kernels of attention ran in it, and how much memory it took.

    It calls ``f(*args, **kwargs)`` under `torch.profiler`, a backward pass included if ``f`` runs one. A softmax that
    no kernel contains is listed as well: attention that is written by hand has one, and so has
    `torch.nn.MultiheadAttention` when it is asked for its weights.

    Args:
        f: What to run: a model, a layer, or a function.
        args: Its positional arguments.
        kwargs: Its named arguments.

    Returns:
        The kernels, in the order in which they first ran, with ``names`` and ``peak_bytes``. The memory is counted by
        allocations, on a GPU and in what PyTorch allocates on a CPU; a kernel of a CPU has a buffer for each thread.

    Examples:
        >>> q = torch.ones(1, 2, 64, 8)
        >>> fused = kernels_of(torch.nn.functional.scaled_dot_product_attention, q, q, q)
        >>> dropped = kernels_of(torch.nn.functional.scaled_dot_product_attention, q, q, q, dropout_p=0.1)
        >>> fused.names, dropped.names, dropped.peak_bytes > 2 * fused.peak_bytes
        (('flash',), ('math',), True)
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with _quiet(), profile(activities=activities, profile_memory=True) as run:
        result = f(*args, **kwargs)  # named, so that it is still there, and counted, when the profiler stops
    del result
    ran: Counter[tuple[str, str]] = Counter()
    for event in sorted(run.events() or (), key=lambda each: each.time_range.start):
        if not (name := _name(event.name)):
            continue
        outer, parent = set(), event.cpu_parent
        while parent is not None:
            outer.add(_name(parent.name))
            parent = parent.cpu_parent
        if name not in outer and (name != "softmax" or not outer - {""}):  # no part of a kernel that is counted
            ran[name, event.name] += 1
    kernels = Kernels(Kernel(name, calls, operator) for (name, operator), calls in ran.items())
    kernels.peak_bytes = _peak(run)
    return kernels


def _name(operator: str) -> str:
    """Name the kernel of an operator, or say "" for one that is no attention."""
    if operator in (_FAST_LAYER, _FAST_MODULE):
        return "fast path"
    if operator == "aten::_softmax":
        return "softmax"
    if not (match := _OPERATOR.match(operator)):
        return ""
    name = match["fused"] or ("math" if "math" in match["rest"] else match["rest"].strip("_"))
    return f"{name} backward" if match["rest"].endswith("_backward") else name


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the profiler from writing to the terminal, and leave the environment as it was."""
    asked = "KINETO_LOG_LEVEL" in os.environ
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    try:
        yield
    finally:
        if not asked:
            del os.environ["KINETO_LOG_LEVEL"]


def _peak(run: profile) -> int:
    """The highest sum of what was allocated and not yet freed, on the device that has most."""
    now: Counter[tuple[Any, int]] = Counter()
    peak = 0
    for device, size in _private.allocations(run):
        now[device] += size
        peak = max(peak, now[device])
    return peak


_KINDS = (nn.TransformerEncoderLayer, nn.TransformerEncoder, nn.MultiheadAttention)
# The functions in which PyTorch decides, and its name for the reason there.
_REASONS = {
    nn.TransformerEncoderLayer.forward.__code__: "why_not_sparsity_fast_path",
    nn.MultiheadAttention.forward.__code__: "why_not_fast_path",
}


class FastPath(NamedTuple):
    """The answer whether PyTorch computes a call on a fast path: false in a condition where it does not.

    Attributes:
        operators: The fast operators that run, one for each layer that has one: that of a whole encoder layer, or that
            of the attention in it.
        why_not: What keeps the call, or a layer of it, from the fast path of a whole layer, in PyTorch's words; ""
            where nothing does.
    """

    operators: tuple[str, ...]
    why_not: str

    def __bool__(self) -> bool:
        return bool(self.operators)


@checked
def takes_fast_path(layer: nn.Module, *args: Any, **kwargs: Any) -> FastPath:
    """Say whether a call of PyTorch's encoder or attention module takes its fast path, and if not, why.

    In evaluation without gradients PyTorch may compute `torch.nn.TransformerEncoderLayer` by one operator, and the
    attention of `torch.nn.MultiheadAttention` by another. They answer otherwise than the same modules in training: the
    layer's takes every entry of a floating mask that is not zero for -inf, so that a bias such as ALiBi's hides keys,
    and rows that may see nothing can be NaN. ``torch.backends.mha.set_fastpath_enabled(False)`` switches both off.

    The call is made once, its result thrown away, and the random generators left as they were.

    Args:
        layer: nn.TransformerEncoderLayer, nn.TransformerEncoder or nn.MultiheadAttention.
        args: The positional arguments of the call.
        kwargs: Its named arguments.

    Returns:
        FastPath(operators, why_not), true if there is an operator, of a plain call, neither traced nor compiled.

    Raises:
        TypeError: layer is none of the three, or the call does not fit its forward.

    Examples:
        >>> layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        >>> x, alibi = torch.zeros(2, 3, 16), torch.zeros(3, 3)
        >>> takes_fast_path(layer, x, src_mask=alibi).why_not
        'training is enabled'
        >>> with torch.no_grad():
        ...     path = takes_fast_path(layer.eval(), x, src_mask=alibi)
        >>> bool(path), path.operators
        (True, ('aten::_transformer_encoder_layer_fwd',))
    """
    if not isinstance(layer, _KINDS):
        raise TypeError(f"layer is {type(layer).__name__}; give one of nn.{', nn.'.join(k.__name__ for k in _KINDS)}")
    with _generators.forked(), _Paths() as paths:
        layer(*args, **kwargs)
    asked = [("", layer)]
    if isinstance(layer, nn.TransformerEncoder):
        asked = [(f"layers.{name}: ", each) for name, each in layer.layers.named_children()]
    own = "has a forward pass of its own: kernels_of tells what runs in it"
    reasons = {name: paths.reasons.get(id(each), f"{type(each).__name__} {own}") for name, each in asked}
    why_not = "; ".join(name + reason for name, reason in reasons.items() if reason)
    return FastPath(tuple(paths.operators), why_not or ("" if paths.operators else "(PyTorch does not say)"))


class _Paths(_private.DispatchMode):
    """Hears which fast operators run, and reads off PyTorch's frames why a module has left its fast path."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []
        self.reasons: dict[int, str] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = f"{func.namespace}::{func.overloadpacket.__name__}"
        if name in (_FAST_LAYER, _FAST_MODULE):
            self.operators.append(name)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if reason := _REASONS.get(frame.f_code):
                local = frame.f_locals
                self.reasons[id(local["self"])] = local.get(reason, "")  # the last word counts: it is decided by then
            frame = frame.f_back
        return func(*args, **(kwargs or {}))
