"""One target on the table: the sizes that all differ, the precision that it computes in, and whether it runs at all."""

from __future__ import annotations

import copy
import inspect
import itertools
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from unmasked import masks
from unmasked_doctor import probes
from unmasked_doctor._listen.hear import heard
from unmasked_doctor._report import Finding, Open, Outcome, Passed, Standing
from unmasked_doctor._target import INPUTS, Options, Target, WrongShape
from unmasked_doctor.probes import Evidence

__all__ = ["STILL", "Because", "Case", "Subject", "brief", "explained", "gradients", "precise", "runs", "still"]

STILL = "the same at every call, in evaluation"
_OUTPUTS = "every other check of its outputs"
# Of the second difference of its outputs, for steps of _STEP: what float64 and float32 leave at most.
_STEP, _DOUBLE, _SINGLE = 1e-6, 1e-9, 1e-4


@dataclass(frozen=True)
class Case:
    """What a target was asked: three inputs (batch, tokens, features), and who may see whom."""

    query: Tensor
    key: Tensor
    value: Tensor
    allowed: Tensor | None  # (queries, keys) or (batch, queries, keys)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The numbers of items, queries and keys."""
        return self.query.size(0), self.query.size(1), self.key.size(1)


class Because(NamedTuple):
    """What evidence means, if it fits: a mistake's cause, or what would have to be known.

    Rows are made one after the other, each only where none before it fits.
    """

    cause: str | None
    text: str
    fits: object = True
    also: tuple[str, ...] = ()
    open: bool = False
    how: Standing = "open"
    step: str = ""


def explained(rows: Iterable[Because], check: str, evidence: object) -> Finding | Open:
    """What the first row that fits says."""
    row = next(row for row in rows if row.fits)
    if row.open:
        return Open(check, f"{row.text}: {evidence}")
    return Finding(check, row.cause, row.text, str(evidence), how=row.how, also=row.also, step=row.step)


class Subject:
    """One target, its copies, and what it is asked with.

    Attributes:
        original: The target itself, which nothing is asked of.
        options: What the doctor is told of it.
        target: The copy that is asked.
        items, tokens: A batch and a number of tokens that no size of the target equals.
        fixed: The number of tokens that it was built for, if it takes no other.
        causal: Whether no token may see a later one, of itself; None if that is not known.
        upcast: Whether it casts queries and keys to float32, whatever it computes in.
    """

    def __init__(self, original: Callable[..., Any], options: Options, default: torch.device | None = None):
        self.original, self.options, self.default = original, options, default
        self.embed_dim, self.num_heads = options.embed_dim, options.num_heads
        self.causal = True if options.cache is not None else options.causal  # or it could not be kept
        self.inputs, self.positions, self.fixed = options.inputs, options.positions, options.tokens
        self.upcast = False
        self.admitted: list[Target] = []
        self.target = self.admit()
        self.trial = self.admit(device=torch.device("cpu")) if self.target.device.type != "cpu" else None
        heads = min(self.num_heads or 4, 8)
        taken = {self.embed_dim, heads, self.embed_dim // heads, self.fixed}
        self.items = next(n for n in itertools.count(heads + 1) if n not in taken)
        self.tokens = self.fixed or next(n for n in itertools.count(5) if n not in taken | {self.items})

    def admit(self, dtype: torch.dtype = torch.float64, device: torch.device | None = None) -> Target:
        admitted = Target(self.original, self.options, dtype=dtype, default=self.default, device=device)
        _spy(admitted)
        self.admitted.append(admitted)
        return admitted

    def like(self) -> Target:
        """Another copy, as it was before anything was asked."""
        return self.admit(self.target.dtype).with_axes(self.target.mask_axes)

    def knowing(self, causal: bool | None, positions: bool | None = None) -> Subject:
        """The same, of which it is known whether a token may see a later one, and whether order counts."""
        twin = copy.copy(self)
        twin.causal = causal
        twin.positions = self.positions if positions is None else positions
        return twin

    def release(self) -> None:
        """Leave everything as it was found."""
        for target in reversed(self.admitted):
            target.release()

    @property
    def rough(self) -> bool:
        """Whether it computes in less than float64."""
        return self.target.dtype != torch.float64

    # What it is asked with

    def noise(self, items: int, tokens: int, seed: int = 0, place: int = 0) -> Tensor:
        """Draw tokens with the features of queries, keys or values, by their place in this order."""
        generator, shape = torch.Generator().manual_seed(seed), (items, tokens, self.options.widths[place])
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(self.target.dtype)

    def three(self, items: int, queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values as different as the target takes them."""
        query = self.noise(items, queries)
        if self.options.own:
            if keys != queries:
                raise ValueError("tokens that attend to themselves have as many keys as queries")
            return query, query, query
        key = self.noise(items, keys, 1, place=1)
        return query, key, key if self.inputs.startswith("x_context") else self.noise(items, keys, 2, place=2)

    def case(self, items: int, queries: int, keys: int) -> Case:
        """Make inputs and a mask as the target takes them; what it masks by itself it is not told."""
        return Case(
            *self.three(items, queries, keys), self.drawn(items, queries, keys) if self.options.masked else None
        )

    def drawn(self, items: int, queries: int, keys: int) -> Tensor:
        """Draw who may see whom, another mask for each item where the target takes that."""
        generator = torch.Generator().manual_seed(3)
        if self.target.mask_axes == 1:
            drawn = torch.rand(items, 1, keys, generator=generator) < 0.6
            drawn[..., 0] = True
            return drawn.expand(-1, queries, -1)
        drawn = torch.rand(items, queries, keys, generator=generator) < 0.6
        drawn |= torch.eye(queries, keys, dtype=torch.bool).roll(keys - queries, 1)
        return drawn[0] if self.target.mask_axes == 2 else drawn

    def may(self, case: Case, queries: int, keys: int) -> Tensor | None:
        """Who may see whom in a case, (items or 1, queries, keys): by its mask, and by being causal."""
        causal = masks.causal(queries, keys)[None] if self.causal else None
        allowed = case.allowed
        if allowed is not None and allowed.dim() == 2:
            allowed = allowed[None]
        return masks.combine(causal, allowed)

    # What it answers

    def f(self, x: Tensor) -> Tensor:
        """Let it attend to its own tokens, also where it takes others."""
        return self.target(x)

    def answer(self, case: Case) -> Tensor:
        return self.target(case.query, case.key, case.value, case.allowed)

    def sized(self, text: str) -> str:
        return f"{self.items} items of {self.tokens} tokens of {self.embed_dim} features: {text}"

    def ask(self, check: str, question: Callable[[int, int], Evidence | None], rows: Iterable[Because]) -> Outcome:
        """Ask at the smallest sizes that show something, which the first row that fits names; or else it holds."""
        sizes = [(items, self.fixed or tokens) for items, tokens in ((2, 3), (self.items, self.tokens))]
        for items, tokens in dict.fromkeys(sizes):
            try:
                evidence = question(items, tokens)
            except Exception as error:  # whatever a target may raise at a size that it does not take
                if (items, tokens) != (self.items, self.tokens):
                    continue
                return Open(check, f"the target raised {brief(error)}")
            if evidence is not None and self._confirmed(question):
                return explained(rows, check, self._least(question) or evidence)
        return Passed(check)

    def _confirmed(self, question: Callable[[int, int], Evidence | None]) -> bool:
        """Whether another size shows it too, so that no coincidence of sizes does; or is refused."""
        try:
            return question(self.items + 1, self.fixed or self.tokens + 2) is not None
        except Exception:  # as above
            return True

    def _least(self, question: Callable[[int, int], Evidence | None]) -> Evidence | None:
        """The evidence of the smallest sizes that show it."""
        for items, tokens in ((1, 1), (1, 2), (2, 2)):
            try:
                evidence = question(items, self.fixed or tokens)
            except Exception:  # as above
                continue
            if evidence is not None:
                return evidence
        return None

    def failure(self, items: int, tokens: int) -> Exception | None:
        """Return what it raises at these sizes, or None."""
        return self.attempt(items, tokens)[0]

    def attempt(self, items: int, tokens: int) -> tuple[Exception | None, Target]:
        """Call it at these sizes, with masks of four axes and fewer, until it runs.

        It is called on the CPU first, where an index is checked.

        Returns:
            The error of the first call, or None; and the target, with the axes of a mask with which it ran.
        """
        first: Exception | None = None
        for count in (4, 3, 2, 1) if self.options.masked else (4,):
            for target in filter(None, (self.trial, self.target)):
                error = _raised(target.with_axes(count), self.noise(items, tokens))
                if isinstance(error, IndexError):
                    break
            if error is None:
                return None, self.target.with_axes(count)
            first = first or error
        return first, self.target


def gradients(subject: Subject) -> dict[str, Tensor | None]:
    """The gradient of each parameter, of the output times drawn numbers; None where the output is not made of it.

    None are given where the output has no gradient at all; and what the target raises is raised.
    """
    target = subject.target
    with torch.enable_grad():
        # The input's gradient is asked for, too: without it, PyTorch 2.13 ends the process by a segmentation fault in
        # the backward pass of a GroupNorm whose input is stored channels last.
        x = subject.noise(subject.items, subject.tokens).requires_grad_()
        output = subject.f(x * 1)  # it may write there
        if not output.requires_grad:
            return {}
        drawn = torch.randn(output.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
        leaves = [*(target.tensors[name] for name in target.trained), x]
        grads = torch.autograd.grad((output * drawn.to(output)).sum(), leaves, allow_unused=True)
    return dict(zip(target.trained, grads, strict=False))


def _raised(target: Target, x: Tensor) -> Exception | None:
    try:
        target(x)
    except Exception as error:  # whatever a target may raise is told, never raised
        return error
    return None


def brief(error: Exception) -> str:
    text = (str(error).strip() or "no text").split("\n")[0]
    return f"{type(error).__name__}: {text[:160]}"


def _spy(target: Target) -> None:
    """Watch what is passed to every nn.MultiheadAttention."""
    signature = inspect.signature(nn.MultiheadAttention.forward)

    def hook(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        bound = signature.bind(module, *args, **options)
        bound.apply_defaults()
        target.spied.append(bound.arguments)

    for name, module in target.modules.items():
        for child in module.modules():
            if isinstance(child, nn.MultiheadAttention) and not (child is module and not name):
                target.handles.append(child.register_forward_pre_hook(hook, with_kwargs=True))


# Whether it runs


def runs(subject: Subject) -> tuple[list[Outcome], bool]:
    """Call it at sizes that all differ, and find out what it computes in; tell whether more can be asked."""
    outcomes: list[Outcome] = []
    error, subject.target = subject.attempt(subject.items, subject.tokens)
    if error is not None and not isinstance(error, WrongShape):
        error = _in_its_own_precision(subject, error)
    pools = isinstance(error, WrongShape) and error.pooled  # then a length at which the shapes agree is chance
    if error is not None and subject.fixed is None and not pools:
        error = _at_its_own_length(subject, error)
        if subject.fixed is not None:
            needs = f"how many it is built for: pass tokens={subject.fixed}, which it takes"
            outcomes.append(Open("other numbers of tokens", needs))
    if error is None and subject.fixed is None:  # as many outputs as tokens may have been chance
        more = subject.failure(subject.items, subject.tokens + 4)
        error = more if isinstance(more, WrongShape) and more.pooled else None
    if error is not None:
        return [*outcomes, *_why_not(subject, error)], False
    outcomes.append(Passed("it runs" if subject.fixed else "it runs, with sizes that all differ"))
    faults = _answers(subject)
    return [*outcomes, *faults], not faults


def _why_not(subject: Subject, error: Exception) -> Iterator[Outcome]:
    if isinstance(error, WrongShape) and error.pooled and _pools(subject, error):
        yield Passed("it runs, with sizes that all differ")
        needs = f"an output for each token: of any number of tokens it makes {error.pooled}; pass what makes them, with"
        yield Open(_OUTPUTS, f"{needs} x_context")
        return
    if isinstance(error, TypeError) and "argument" in str(error) and not _takes(subject):
        raise ValueError(
            f"inputs is {subject.inputs!r}, and the target refuses what that gives: {brief(error)}; choose "
            f"{', '.join(INPUTS[:-1])} or {INPUTS[-1]}, or wrap it in a function of these"
        ) from error
    yield explained(_why_it_fails(subject, error), "it runs", subject.sized(f"{brief(error)}{place(error)}"))


def place(error: Exception) -> str:
    """The last line of the target's own that ran, beside those of libraries and of the doctor."""
    library, frames = str(Path(__file__).parents[1]), traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if "site-packages" not in each.filename and not each.filename.startswith(library)]
    return f", at line {own[-1].lineno} of {Path(own[-1].filename).name}" if own else ""


def _why_it_fails(subject: Subject, error: Exception) -> Iterator[Because]:
    text = "is_causal=True is passed without a mask: it is a hint about a mask, not one"
    yield Because("is-causal-is-a-hint", text, "is_causal" in str(error), how="followed")
    heads = subject.num_heads or 0
    for dim in {subject.embed_dim, subject.embed_dim // (heads or 1)}:
        text = f"it runs only where batch, tokens and features are as many ({dim}): `.T` turns the batch too"
        small = dim**3 <= 1_000_000  # beyond, the input alone would be too large
        yield Because("batch-transposed", text, small and subject.failure(dim, dim) is None)
    text = f"it runs only with as many items as heads ({heads}): what should index the head indexes the batch"
    yield Because("batch-indexed-for-head", text, heads and subject.failure(heads, subject.tokens) is None)
    text = "it does not run where its parameters are: a tensor of its own, such as a mask, is on another device"
    yield Because(None, text, "same device" in str(error))
    text = "its output has not the shape of an attention's: see inputs and batch_first"
    also = () if "no tensor" in str(error) else ("batch-first-forgotten", "batch-and-tokens-swapped")
    yield Because(None, text, isinstance(error, WrongShape), also)
    text = "it does not run on what it was given: see embed_dim, num_heads, inputs and batch_first"
    yield Because(None, text)


def _in_its_own_precision(subject: Subject, error: Exception) -> Exception | None:
    """Try float32, and what its parameters have, where float64 is refused: by a kernel, or by a number kept inside."""
    own = [t.dtype for thing in subject.target.originals.values() for t in _tensors(thing) if t.is_floating_point()]
    first = subject.target
    for dtype in dict.fromkeys([torch.float32, *own]):
        if dtype != torch.float64:
            subject.target = subject.admit(dtype)
            failure, subject.target = subject.attempt(subject.items, subject.tokens)
            if failure is None:
                return None
    subject.target = first
    return error


def _tensors(thing: nn.Module | Tensor) -> list[Tensor]:
    return [thing] if isinstance(thing, Tensor) else [*thing.parameters(), *thing.buffers()]


def _at_its_own_length(subject: Subject, error: Exception) -> Exception | None:
    """Look for the number of tokens that it was built for, among the sizes of what it holds, and in multiples."""
    held = {size for thing in subject.target.originals.values() for t in _tensors(thing) for size in t.shape}
    tokens = subject.tokens
    lengths = sorted(n for n in held | {n - 1 for n in held} if 1 < n <= 1024 and n not in (subject.items, tokens))
    for length in dict.fromkeys([8, 16, *lengths, 4, 9, 49, 64]):
        subject.tokens = length
        if subject.failure(1, length) is None:
            failure, subject.target = subject.attempt(subject.items, length)
            if failure is None:
                subject.fixed = length
                return None
    subject.tokens = tokens
    return error


def _takes(subject: Subject) -> bool:
    """Whether the target could be called with as many tensors as it is given."""
    count = {"x": 1, "x_context": 2, "qkv": 3}[subject.inputs.removesuffix("_allowed")] + subject.options.masked
    called = subject.original.forward if isinstance(subject.original, nn.Module) else subject.original
    try:
        inspect.signature(called).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # it tells no signature
        return False
    return True


def _pools(subject: Subject, error: WrongShape) -> bool:
    """Whether it makes as many outputs of any number of tokens: queries of its own read them."""
    more = subject.failure(subject.items, subject.tokens + 4)
    return isinstance(more, WrongShape) and more.pooled == error.pooled


def _answers(subject: Subject) -> list[Outcome]:
    """Ask whether there is anything in its output to examine."""
    check = "its output is finite, and depends on its input"
    first, other = (subject.f(subject.noise(subject.items, subject.tokens, seed)) for seed in (0, 9))
    if not first.isfinite().any() and not subject.options.masked:  # a mask's polarity may be the reason
        text = "no number of its output is finite"
        return [Finding(check, None, text, subject.sized(f"all are {first.flatten()[0]}"))]
    same = torch.allclose(first, other, rtol=100 * torch.finfo(first.dtype).eps, atol=0.0)
    if first.isfinite().all() and same:
        evidence = subject.sized("two inputs drawn at random have the same output")
        return [Finding(check, None, "its output does not depend on its input", evidence)]
    return []


def precise(subject: Subject) -> list[Outcome]:
    """Take the precision that it computes in, or what rounding does would be taken for mistakes."""
    modules = (module for thing in subject.target.modules.values() for module in thing.modules())
    if any(".quantized" in type(module).__module__ for module in modules):
        needs = "a target that is not quantized: its rounding moves every output; examine it before it is quantized"
        return [Open(_OUTPUTS, needs)]
    narrow = Open(_OUTPUTS, "a target that computes in float32 or float64: somewhere inside it computes in 16 bits")
    if subject.rough:
        return [] if subject.target.dtype == torch.float32 else [narrow]
    x = subject.noise(subject.items, subject.tokens)
    events, _ = heard(lambda: subject.f(x))
    softmaxes = (e for e in events if e.kind == "softmax" and e.kernel == "written out")
    bits = min((torch.finfo(e.inputs[0].dtype).bits for e in softmaxes), default=64)
    if bits < 32 and subject.target.copied:
        text = "the softmax is computed in 16 bits, inside of what computes in more"
        evidence = subject.sized(f"it has {bits} bits")
        return [Finding("the softmax keeps its precision", None, text, evidence, step="softmax")]
    if min((torch.finfo(x.dtype).bits for e in events for x in e.inputs if x.is_floating_point()), default=64) < 32:
        return [narrow]
    subject.upcast = any(e.kind == "product" and e.inputs[0].dim() == 3 and e.inputs[0].dtype == torch.float32
                         for e in events)  # fmt: skip
    step = _STEP * subject.noise(subject.items, subject.tokens, 4)
    outputs = []
    for times in range(3):
        torch.manual_seed(1)
        outputs.append(subject.f(x + times * step).nan_to_num())
    if outputs[0].any() and torch.equal(outputs[0], outputs[2]):  # so small a step is rounded away
        return [narrow]
    size = max(outputs[0].abs().max().item(), 1e-3)
    bend = (outputs[2] - 2 * outputs[1] + outputs[0]).abs().max().item() / size
    if bend <= _DOUBLE:
        return []
    if bend > _SINGLE:
        return [narrow]
    subject.target = subject.admit(torch.float32).with_axes(subject.target.mask_axes)
    return [] if subject.failure(subject.items, subject.tokens) is None else [narrow]


def still(subject: Subject) -> Outcome:
    """Ask whether anything is random, or kept: nothing else can be asked of what is."""
    check = STILL
    random = Because("dropout-in-eval", "its output is random though it is in evaluation mode")
    drawn = subject.ask(check, lambda b, t: probes.changes_from_call_to_call(subject.f, subject.noise(b, t)), [random])
    x, between = (subject.noise(subject.items, subject.tokens, seed) for seed in (0, 9))
    outputs = []
    for _ in range(3):
        torch.manual_seed(1)
        outputs.append(subject.f(x))
        subject.f(between)
    gap = max(probes.differs(output, outputs[0]) for output in outputs[1:])
    if gap:
        text = "a call changes what the next one gives, with nothing drawn at random: it keeps something, and never"
        after = subject.sized(f"after another input, off by {gap:.3g}")
        return Finding(check, None, f"{text} resets", drawn.evidence if isinstance(drawn, Finding) else after)
    return drawn
