"""The examination: every check, in order, and what its failure means."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from unmasked import masks, probes
from unmasked.doctor._mistakes import Case, Mistake, Steps, attend, mistakes
from unmasked.doctor._report import Finding, Inconclusive, Notes, Report
from unmasked.doctor._target import Inputs, Target, WrongShape, is_triangle
from unmasked.doctor._weights import Weights, named, readings
from unmasked.probes import Evidence, differs

__all__ = ["diagnose"]

_EQUAL = "equality with the reference"


def diagnose(
    target: Callable[..., Any],
    *,
    embed_dim: int,
    num_heads: int | None = None,
    causal: bool | None = None,
    inputs: Inputs = "x",
    batch_first: bool = True,
    weights: Mapping[str, Any] | None = None,
    positions: bool = False,
    strict: bool = False,
) -> Report:
    """Examine an attention module or function: what holds of it, what does not, and which mistake explains it.

    The target is copied, and the copy examined in evaluation mode, in float64, with parameters drawn anew, since those
    of a fresh module (biases of zero) hide mistakes. Neither the target nor the global random generator is moved.

    Args:
        target: A module, or any function. It returns a tensor, or a tuple or a dict that begins with it.
        embed_dim: Features of its input.
        num_heads: Number of heads; None to take it from the module's attributes, or to try.
        causal: Whether no token may see a later one, of itself; None if that is not known.
        inputs: What it takes: "x", one tensor; "qkv", three; "qkv_allowed", three and a boolean mask whose True means
            that a query may see a key.
        batch_first: Whether its tensors are (batch, tokens, features), and not (tokens, batch, features).
        weights: Where each weight is, if names do not tell: by "query", "key", "value", "out" or "qkv", and the same
            with "_bias", a parameter's name, a parameter or a view of one, (out, in), or an nn.Linear. Their order
            then counts: another is a mistake.
        positions: Whether it adds positions to its tokens, so that their order matters and no reference applies.
        strict: Count as findings what PyTorch's own functions do too: NaN for a query that may see nothing, weights
            that are returned after dropout.

    Returns:
        The report: ``report.ok``, and findings with their causes.

    Raises:
        TypeError: target cannot be called.
        ValueError: an option is out of range, or the target does not take these inputs.

    Examples:
        >>> module = torch.nn.MultiheadAttention(12, 3, batch_first=True)
        >>> diagnose(module, embed_dim=12, inputs="qkv").ok
        True
        >>> class Merged(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.qkv, self.proj = torch.nn.Linear(12, 36), torch.nn.Linear(12, 12)
        ...     def forward(self, x):
        ...         q, k, v = self.qkv(x).unflatten(-1, (9, 4)).transpose(1, 2).chunk(3, 1)
        ...         context = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        ...         return self.proj(context.reshape(x.shape))
        >>> diagnose(Merged(), embed_dim=12, num_heads=3).causes
        ('merge-without-transpose',)
    """
    if not callable(target):
        raise TypeError(f"target is a {type(target).__name__}; pass a module or a function")
    if inspect.isclass(target):
        raise TypeError(f"target is the class {target.__name__}; pass an object of it: {target.__name__}(...)")
    if inputs not in ("x", "qkv", "qkv_allowed"):
        raise ValueError(f'inputs is {inputs!r}; choose "x", "qkv" or "qkv_allowed"')
    for name, size in (("embed_dim", embed_dim), ("num_heads", 1 if num_heads is None else num_heads)):
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} is {size!r}; it must be a whole number, 1 or more")
    with torch.random.fork_rng(devices=[]):
        patient = _Examination(target, embed_dim, num_heads, causal, inputs, batch_first, weights or None, positions)
        try:
            notes = patient.examine()
        finally:
            patient.release()
    findings = [*notes.findings, *(notes.cautions if strict else [])]
    findings.sort(key=lambda finding: not finding.certain)
    name = getattr(target, "__name__", type(target).__name__)
    return Report(
        name,
        tuple(findings),
        () if strict else tuple(notes.cautions),
        tuple(notes.passed),
        tuple(notes.inconclusive),
    )


class _Examination:
    """One target, on the table."""

    def __init__(
        self,
        original: Callable[..., Any],
        embed_dim: int,
        num_heads: int | None,
        causal: bool | None,
        inputs: Inputs,
        batch_first: bool,
        weights: Mapping[str, Any] | None,
        positions: bool,
    ):
        self.original, self.embed_dim, self.num_heads = original, embed_dim, num_heads
        self.causal, self.inputs, self.batch_first = causal, inputs, batch_first
        self.given, self.positions, self.notes = weights, positions, Notes()
        self.equal = False
        self.admitted: list[Target] = []
        self.target = self._admit()
        self.items, self.tokens = self._sizes()

    def _admit(self, dtype: torch.dtype = torch.float64) -> Target:
        admitted = Target(self.original, self.inputs, batch_first=self.batch_first, dtype=dtype)
        _spy(admitted)
        self.admitted.append(admitted)
        return admitted

    def release(self) -> None:
        """Leave everything as it was found."""
        for target in reversed(self.admitted):
            target.release()

    def _sizes(self) -> tuple[int, int]:
        """Take a batch and a number of tokens that no size of the target equals, and more items than heads."""
        heads = min(self.num_heads or 4, 8)
        taken = {self.embed_dim, heads, self.embed_dim // heads}
        items = next(n for n in itertools.count(heads + 1) if n not in taken)
        return items, next(n for n in itertools.count(5) if n not in taken | {items})

    # Findings

    def _find(self, check: str, cause: str | None, told: str, evidence: object, **more: Any) -> None:
        self.notes.findings.append(Finding(check, cause, told, str(evidence), **more))

    def _caution(self, check: str, cause: str | None, told: str, evidence: object, **more: Any) -> None:
        self.notes.cautions.append(Finding(check, cause, told, str(evidence), **more))

    def _open(self, check: str, needs: str) -> None:
        self.notes.inconclusive.append(Inconclusive(check, needs))

    def _ask(self, check: str, question: Callable[[int, int], Evidence | None]) -> Evidence | None:
        """Ask at the smallest sizes that show something; note that the check holds if none does."""
        for items, tokens in ((1, 2), (2, 2), (2, 3), (self.items, self.tokens)):
            try:
                evidence = question(items, tokens)
            except Exception as error:
                if (items, tokens) != (self.items, self.tokens):
                    continue
                self._open(check, f"the target raised {_said(error)}")
                return None
            if evidence is not None:
                return evidence
        self.notes.passed.append(check)
        return None

    # What the target is asked with

    def _noise(self, items: int, tokens: int, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(items, tokens, self.embed_dim, generator=generator, dtype=torch.float64).to(
            self.target.dtype
        )

    def _f(self, x: Tensor) -> Tensor:
        return self.target(x)

    def _case(self, items: int, queries: int, keys: int, weights: Weights, *, causal: bool) -> Case:
        """Make inputs and a mask as the target takes them."""
        query = self._noise(items, queries)
        if self.inputs == "x":
            key = value = query
        else:
            key, value = self._noise(items, keys, 1), self._noise(items, keys, 2)
        allowed = masks.causal(queries, keys) if causal else None
        if self.inputs == "qkv_allowed":
            generator = torch.Generator().manual_seed(3)
            drawn = torch.rand(items, queries, keys, generator=generator) < 0.6
            drawn |= torch.eye(queries, keys, dtype=torch.bool).roll(keys - queries, 1)
            drawn = drawn[0] if self.target.mask_axes == 2 else drawn
            allowed = masks.combine(allowed, drawn)
        return Case(query, key, value, allowed, weights)

    def _answer(self, items: int, queries: int, keys: int) -> Tensor:
        """Let the target answer; what it masks by itself it is not told."""
        case = self._case(items, queries, keys, Weights({}, {}, 1, 1), causal=False)
        if self.inputs == "x":
            return self.target(case.query)
        return self.target(case.query, case.key, case.value, allowed=case.allowed)

    # The examination

    def examine(self) -> Notes:
        """Ask everything that can be asked."""
        with torch.no_grad():
            runs = self._runs()
        if not runs:
            return self.notes
        calls = [dict(call) for call in self.target.spied]
        with torch.no_grad():
            if self._is_still():
                self._leaves_inputs()
                explained = self._explain()
                if not explained:
                    self._behaviour(calls)
                self._numbers(explained)
        self._structure(calls)
        return self.notes

    def _runs(self) -> bool:
        """Call it; if that fails, find out whether it is the sizes."""
        error = self._failure(self.items, self.tokens)
        if error is not None and "dtype" in str(error):
            self.target = self._admit(torch.float32)
            error = self._failure(self.items, self.tokens)
        if error is None:
            self.notes.passed.append("it runs, with sizes that all differ")
            return self._answers() and self._computes()
        said = _said(error)
        if isinstance(error, TypeError) and "argument" in str(error) and not self._takes():
            raise ValueError(
                f'inputs is {self.inputs!r}, and the target refuses what that gives: {said}; choose "x", "qkv" or '
                '"qkv_allowed", or wrap it: lambda x: target(...)'
            ) from error
        if "is_causal" in str(error):
            told = "is_causal=True is passed without a mask: it is a hint about a mask, not one"
            self._find("it runs", "is-causal-is-a-hint", told, f"it raises {said}", certain=True)
            return False
        heads = self.num_heads or 0
        dims = {self.embed_dim, self.embed_dim // heads if heads else self.embed_dim}
        for dim in dims:
            if dim**3 <= 1_000_000 and self._failure(dim, dim) is None:  # beyond, the input alone would be too large
                told = f"it runs only where batch, tokens and features are as many ({dim}): `.T` turns the batch too"
                self._find("it runs", "batch-transposed", told, self._sized(said))
                return False
        if heads and self._failure(heads, self.tokens) is None:
            told = f"it runs only with as many items as heads ({heads}): what should index the head indexes the batch"
            self._find("it runs", "batch-indexed-for-head", told, self._sized(said))
            return False
        told = "it does not run on what it was given: see embed_dim, num_heads, inputs and batch_first"
        if isinstance(error, WrongShape):
            told = "its output has not the shape of an attention's: see inputs and batch_first"
            also = ("batch-first-forgotten", "batch-and-tokens-swapped") if "no tensor" not in said else ()
            self._find("it runs", None, told, self._sized(said), also=also)
        else:
            self._find("it runs", None, told, self._sized(said))
        return False

    def _takes(self) -> bool:
        """Whether the target could be called with as many tensors as it is given."""
        count = {"x": 1, "qkv": 3, "qkv_allowed": 4}[self.inputs]
        called = self.original.forward if isinstance(self.original, nn.Module) else self.original
        try:
            inspect.signature(called).bind(*range(count))
        except TypeError:
            return False
        except ValueError:  # it tells no signature
            return False
        return True

    def _answers(self) -> bool:
        """Ask whether there is anything in its output to examine."""
        check = "its output is finite, and depends on its input"
        first, other = (self._f(self._noise(self.items, self.tokens, seed)) for seed in (0, 9))
        if not first.isfinite().any() and self.inputs != "qkv_allowed":  # a mask's polarity may be the reason
            self._find(check, None, "no number of its output is finite", self._sized(f"all are {first.flatten()[0]}"))
            return False
        same = torch.allclose(first, other, rtol=100 * torch.finfo(first.dtype).eps, atol=0.0)
        if first.isfinite().all() and same:
            told = "its output does not depend on its input"
            self._find(check, None, told, self._sized("two inputs drawn at random have the same output"))
            return False
        return True

    def _computes(self) -> bool:
        """Take the precision that it computes in, or what rounding does would be taken for mistakes."""
        if self.target.dtype != torch.float64:
            return True
        with _Precision() as seen:
            self._f(self._noise(self.items, self.tokens))
        if seen.bits < 32:
            needs = "a target that computes in float32 or float64: somewhere inside it computes in 16 bits"
            self._open("every other check of its outputs", needs)
            return False
        if seen.bits < 64:
            self.target = self._admit(torch.float32)
            self.target.mask_axes = self.admitted[-2].mask_axes
            return self._failure(self.items, self.tokens) is None
        return True

    def _sized(self, said: str) -> str:
        return f"{self.items} items of {self.tokens} tokens of {self.embed_dim} features: {said}"

    def _failure(self, items: int, tokens: int) -> Exception | None:
        axes = (4, 3, 2) if self.inputs == "qkv_allowed" else (4,)
        first: Exception | None = None
        for count in axes:
            self.target.mask_axes = count
            try:
                self.target(self._noise(items, tokens))
            except Exception as error:
                first = first or error
                continue
            return None
        return first

    def _is_still(self) -> bool:
        """Ask whether anything is random: nothing else can be asked of what is."""
        check = "the same at every call, in evaluation"
        drawn = self._ask(check, lambda b, t: probes.changes_from_call_to_call(self._f, self._noise(b, t)))
        if drawn is not None:
            self._find(check, "dropout-in-eval", "its output is random though it is in evaluation mode", drawn)
            self._open("every other check of its outputs", "outputs that do not change from call to call")
        return drawn is None

    # By hypothesis

    def _explain(self) -> bool:
        """Compare with the reference, and, where it disagrees, with every mistake; say whether that explained it."""
        if self.positions:
            self._open(_EQUAL, "a reference with the same positions: compare with one of your own")
            return False
        bases = [bool(self.causal)] if self.causal is not None else [False, True]
        shapes = [(self.items, self.tokens, self.tokens)]
        if self.inputs != "x":
            longer = self.tokens + 3
            try:
                self._answer(self.items, self.tokens, longer)
                shapes.append((self.items, self.tokens, longer))
            except Exception:  # self-attention, in three arguments
                pass
        given = None
        if self.given is not None:
            given = named(self.target, self.given, _originals(self.target))
        every = readings(self.target, embed_dim=self.embed_dim, num_heads=self.num_heads, given=given)
        read = list(itertools.islice(every, 400))
        if not read:
            self._open(_EQUAL, self._what_weights())
            return False
        asked = {(shape, causal): self._case(*shape, read[0], causal=causal) for shape in shapes for causal in bases}
        answers = {shape: self._answer(*shape) for shape in shapes}

        def fits(weights: Weights, causal: bool, steps: Steps | None = None) -> bool:
            for shape in shapes:
                case = replace(asked[shape, causal], weights=weights)
                try:
                    expected = attend(case, steps)
                except (RuntimeError, IndexError, ValueError, TypeError):
                    return False
                if expected.shape != answers[shape].shape:
                    return False
                if case.allowed is not None:  # a row that may see nothing is another question
                    shut = ~case.allowed.any(-1)
                    if steps is not None and "weigh" in _changes(steps):  # what is inverted sees nothing here
                        shut = shut | case.allowed.all(-1)
                    expected = torch.where(shut[..., None].expand_as(expected), torch.nan, expected)
                if expected.isnan().all() or differs(answers[shape], expected):
                    return False
            return True

        for weights, causal in itertools.product(read, bases):
            if fits(weights, causal):
                self.notes.passed.append(_EQUAL)
                self.equal = True
                self.causal = causal if self.causal is None else self.causal
                return False  # equal here; the probes still ask whether it is everywhere
        budget = 4_000
        for weights, causal in itertools.product(read, bases):
            found = []
            for mistake in mistakes(self._case(*shapes[-1], weights, causal=causal)):
                budget -= len(shapes)
                if fits(weights, causal, mistake.steps):
                    found.append(mistake)
            if found:
                return self._named(found, weights, causal)
            if budget < 0:
                break
        spoilt = bool(self.notes.findings)
        for weights, causal in itertools.product([] if spoilt else read[:1], bases):
            if self._constant_scale(lambda steps, w=weights, c=causal: fits(w, c, steps), weights, causal):  # type: ignore[misc]
                return True
            if self._two_at_once(lambda steps, w=weights, c=causal: fits(w, c, steps), weights, causal):  # type: ignore[misc]
                return True
        if given is not None:
            case = self._case(*shapes[0], read[0], causal=bases[0])
            gap = differs(answers[shapes[0]], attend(case))
            told = "with these weights it is not the reference, and no mistake of the museum explains it"
            self._find(_EQUAL, None, told, f"off by {gap:.3g}")
        else:
            self._open(_EQUAL, self._what_weights())
        return False

    def _what_weights(self) -> str:
        names = ", ".join(self.target.tensors) or "none that could be seen"
        return (
            "which weights are the query's, key's, value's and output's: no reading of them gives the target's output; "
            f"pass weights=dict(query=..., key=..., value=..., out=...) and num_heads; it has {names}"
        )

    def _named(self, found: list[Mistake], weights: Weights, causal: bool) -> bool:
        wrong = [m for m in found if weights.pinned or not m.is_order]
        if not wrong:  # its own order of rows, and nobody said that there is another
            self.notes.passed.append(f"{_EQUAL}, in an order of rows of its own")
            return False
        first = next((m for m in wrong if m.cause), wrong[0])
        also = tuple(dict.fromkeys(m.cause for m in wrong if m.cause and m.cause != first.cause))
        cause = first.cause
        if cause == "batch-and-tokens-swapped" and _forgets_batch_first(self.target):
            cause, also = "batch-first-forgotten", (cause, *also)
        if cause == "no-causal-mask" and any(call.get("is_causal") for call in self.target.spied):
            cause, also = "is-causal-is-a-hint", (cause, *also)
        self._find(_EQUAL, cause, first.told, self._smallest(weights, causal), certain=True, also=also)
        return True

    def _smallest(self, weights: Weights, causal: bool) -> str:
        for items, tokens in ((1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (self.items, self.tokens)):
            for keys in (tokens,) if self.inputs == "x" else (tokens, tokens + 3):
                case = self._case(items, tokens, keys, weights, causal=causal)
                try:
                    gap = differs(self._answer(items, tokens, keys), attend(case))
                except Exception:
                    continue
                if gap:
                    counted = f"{items} {_s(items, 'item')} of {tokens} {_s(tokens, 'token')}"
                    counted += f", {keys} keys" if keys != tokens else ""
                    return f"{counted}: off by {gap:.3g} from attention with its weights; the mistake has its output"
        return "the mistake has its output"

    def _constant_scale(self, fits: Callable[[Steps], bool], weights: Weights, causal: bool) -> bool:
        """Try the root of every number as the scale: a number that no size here explains comes from elsewhere."""
        for number in [*range(2, 129), *range(160, 1025, 32)]:
            if fits(Steps(scale=lambda c, n=number: n**-0.5)):  # type: ignore[misc]
                told = f"the scores are divided by the root of {number}, none of its sizes: a name read from outside"
                self._find(_EQUAL, "global-d-k", told, self._smallest(weights, causal), certain=True)
                return True
        return False

    def _two_at_once(self, fits: Callable[[Steps], bool], weights: Weights, causal: bool) -> bool:
        case = self._case(self.items, self.tokens, self.tokens, weights, causal=causal)
        by_cause: dict[str, list[Mistake]] = {}
        for mistake in mistakes(case):
            if mistake.cause and (weights.pinned or not mistake.is_order):
                by_cause.setdefault(mistake.cause, []).append(mistake)
        known = [mistake for group in by_cause.values() for mistake in group[:3]]  # pairs of all would be too many
        for one, other in itertools.combinations(known, 2):
            changes = [_changes(m.steps) for m in (one, other)]
            if changes[0].keys() & changes[1].keys():
                continue
            if fits(replace(Steps(), **changes[0], **changes[1])):
                for mistake in (one, other):
                    self._find(_EQUAL, mistake.cause, mistake.told, self._smallest(weights, causal), certain=True)
                return True
        return False

    # By behaviour

    def _behaviour(self, calls: list[dict[str, Any]]) -> None:
        """Ask what needs only calls, and stop at what would only show the same again."""
        f, before = self._f, len(self.notes.findings)
        if self.inputs == "qkv_allowed":
            self._obeys_its_mask()
        if len(self.notes.findings) == before:
            mixed = self._ask("batch items independent", lambda b, t: probes.mixes_items(f, self._noise(max(b, 2), t)))
            if mixed is not None:
                cause, told, also = self._why_mixed()
                self._find("batch items independent", cause, told, mixed, also=also)
        if len(self.notes.findings) == before and not self.equal:
            self._sees_others()
        if len(self.notes.findings) == before:
            self._keeps_time(calls)
        if len(self.notes.findings) == before and not self.positions and not self.equal:
            self._averages()
        if len(self.notes.findings) == before and self.inputs != "x" and self.causal:
            self._aligned()

    def _sees_others(self) -> None:
        """Ask whether any token counts for another at all."""
        x, other = self._noise(self.items, self.tokens), self._noise(self.items, self.tokens, 4)
        first, last = x.clone(), x.clone()
        first[:, 0], last[:, -1] = other[:, 0], other[:, -1]
        before = self._f(x)
        if not (differs(self._f(first)[:, 1:], before[:, 1:]) or differs(self._f(last)[:, :-1], before[:, :-1])):
            evidence = self._sized("changing the first or the last token moves no other token's output")
            self._find("other tokens are seen", None, "no output depends on another token: nothing attends", evidence)

    def _keeps_time(self, calls: list[dict[str, Any]]) -> None:
        """Ask what the order of the tokens does."""
        f, check = self._f, "permutation equivariance"
        if self.causal:
            self._is_causal(calls)
            return
        if self.causal is None:
            self._open("leaks from the future", "whether no token may see a later one: pass causal=True or False")
        if self.positions:
            return
        if self.causal is None and probes.sees_the_future(f, self._noise(self.items, self.tokens)) is None:
            return
        moved = self._ask(check, lambda b, t: probes.breaks_equivariance(f, self._noise(b, t)))
        if moved is not None and probes.sees_the_future(f, self._noise(self.items, self.tokens)) is None:
            self._find(check, None, "no output sees a later token: it is causal, and causal=False was given", moved)
        elif moved is not None:
            told = "its outputs depend on the order of the tokens (if it adds positions, pass positions=True)"
            also: tuple[str, ...] = ("view-without-transpose", "swapped-view")
            also += () if self.causal is False else ("boolean-mask-added", "mask-after-softmax")
            self._find(check, "merge-without-transpose", told, moved, also=also)

    def _averages(self) -> None:
        check = "weights sum to one"
        evidence = self._ask(check, lambda b, t: probes.is_no_average(self._f, self._noise(b, t)))
        if evidence is None and self.inputs != "x":
            self.notes.passed.remove(check)
            evidence = self._ask(check, self._averages_values)
        if evidence is not None:
            also = ("mask-after-softmax", "softmax-over-queries")
            self._find(check, "weights-not-normalized", "the weights of a query do not sum to one", evidence, also=also)

    def _averages_values(self, items: int, tokens: int) -> Evidence | None:
        """Keep the values equal, and let queries and keys differ."""
        query, key = self._noise(items, tokens), self._noise(items, tokens, 1)

        def f(value: Tensor) -> Tensor:
            count = value.size(1)
            return self.target(query[:, :count], key[:, :count], value)

        value = self._noise(items, tokens, 2)
        same = value[:, :1].expand_as(value).clone()
        return probes.is_no_average(lambda v: f(v) if v.size(1) == 1 else f(same), value)

    def _why_mixed(self) -> tuple[str, str, tuple[str, ...]]:
        f, x = self._f, self._noise(self.items, self.tokens)
        before = f(x)
        changed = x.clone()
        changed[1:] += self._noise(self.items, self.tokens, 4)[1:]
        if not differs(f(changed), before):
            return "only-first-item", "every output is computed from the first item of the batch", ()
        tokens = x.clone()
        tokens[:, -1] += 1
        alone = not differs(f(tokens)[:, :-1], before[:, :-1])
        if alone:
            told = "attention runs across the batch: an item sees other items, and no other token of its own"
            if _forgets_batch_first(self.target):
                return "batch-first-forgotten", told, ("batch-and-tokens-swapped",)
            return "batch-and-tokens-swapped", told, ("batch-first-forgotten",)
        first = x.clone()
        first[0] += 1
        if differs(f(first)[1:], before[1:]):
            last = x.clone()
            last[-1] += 1
            if not differs(f(last)[:-1], before[:-1]):
                return (
                    "only-first-item",
                    "other items reach into the first item of the batch",
                    ("batch-indexed-for-head",),
                )
        return "batch-indexed-for-head", "items of the batch reach each other", ("batch-and-tokens-swapped",)

    def _obeys_its_mask(self) -> None:
        x = self._noise(self.items, self.tokens)
        if self._f(x).isnan().all():
            told = "where the mask says True, for may see, the target does not look: with all True it sees nothing"
            shape = f"{self.items} items of {self.tokens} tokens, everything allowed: every output is NaN"
            self._find("mask polarity", "mask-polarity", told, shape)
            return

        def question(items: int, tokens: int) -> Evidence | None:
            q, k, v = (self._noise(items, tokens, seed) for seed in range(3))
            allowed = torch.ones(tokens, tokens, dtype=torch.bool)
            allowed[:, 0] = False
            allowed[0, 1] = True
            if self.causal:
                allowed[:, 0], allowed[:, -1] = True, False
                allowed[0] = True
                allowed &= masks.causal(tokens)  # what else is allowed, it may still not see
            return probes.attends_to_what_is_hidden(self.target_masked, q, k, v, allowed)

        evidence = self._ask("mask polarity, and padding respected", question)
        if evidence is None:
            return
        x, y, z = (self._noise(self.items, self.tokens, seed) for seed in range(3))
        hidden = torch.ones(self.tokens, self.tokens, dtype=torch.bool)
        hidden[:, 0] = False
        everything = self.target_masked(x, y, z, torch.ones_like(hidden))
        if not differs(self.target_masked(x, y, z, hidden), everything):
            self._find("padding respected", "padding-ignored", "the mask changes nothing", evidence)
            return
        flipped = probes.attends_to_what_is_hidden(lambda q, k, v, a: self.target_masked(q, k, v, ~a), x, y, z, hidden)
        if flipped is None:
            told = "where the mask says True, for may see, the target does not look"
            self._find("mask polarity", "mask-polarity", told, evidence)
            return
        told = "what the mask hides still counts"
        also = ("float-mask-of-ones", "mask-after-softmax")
        self._find("mask polarity, and padding respected", "boolean-mask-added", told, evidence, also=also)

    def target_masked(self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor) -> Tensor:
        """Call with a mask."""
        return self.target(query, key, value, allowed=allowed)

    def _is_causal(self, calls: list[dict[str, Any]]) -> None:
        f = self._f
        also: tuple[str, ...]
        leak = self._ask("no leak from the future, in value and gradient",
                         lambda b, t: probes.sees_the_future(f, self._noise(b, t)))  # fmt: skip
        x = self._noise(self.items, self.tokens)
        if leak is None:
            past = self._ask("the past is seen", lambda b, t: probes.misses_the_past(f, self._noise(b, t)))
            if past is not None:
                needs = f"whether earlier tokens may be out of sight, as in a sliding window: {past}"
                self._open("the past is seen", needs)
            return
        if any(call.get("is_causal") for call in calls):
            told = "is_causal=True is passed to nn.MultiheadAttention as if it were a mask"
            self._find("no leak from the future", "is-causal-is-a-hint", told, leak)
        elif probes.breaks_equivariance(f, x) is None:
            self._find("no leak from the future", "no-causal-mask", "every token sees every other", leak)
        elif self._blind_to_the_past(x):
            told = "a token sees what comes after it, and not what came before"
            self._find("no leak from the future", "mask-polarity", told, leak)
        elif self._last_alone_averages(x):
            told = "weights are masked after the softmax: later tokens still count in the sum that they are divided by"
            self._find("no leak from the future", "mask-after-softmax", told, leak)
        elif probes.misses_the_past(f, x) is None and self._all_reach_all(x):
            told = "later tokens count, though not as much as earlier ones: the mask adds too little"
            also = ("float-mask-of-ones", "merge-without-transpose", "view-without-transpose")
            self._find("no leak from the future", "boolean-mask-added", told, leak, also=also)
        else:
            told = "some outputs are read off other tokens, so that later ones get through the mask"
            also = ("view-without-transpose", "swapped-view")
            self._find("no leak from the future", "merge-without-transpose", told, leak, also=also)

    def _blind_to_the_past(self, x: Tensor) -> bool:
        changed = x.clone()
        changed[:, 0] += 1
        return not differs(self._f(changed)[:, 1:-1], self._f(x)[:, 1:-1])

    def _last_alone_averages(self, x: Tensor) -> bool:
        """Whether among copies of a token the last has the output of the token alone, and those before it do not."""
        alone, among = self._f(x[:, :1])[:, 0], self._f(x[:, :1].expand_as(x).clone())
        return not differs(among[:, -1], alone) and differs(among[:, 0], alone) > 0

    def _all_reach_all(self, x: Tensor) -> bool:
        before = self._f(x)
        for token in range(x.size(1)):
            changed = x.clone()
            changed[:, token] += 1
            after = self._f(changed)
            if not all(differs(after[:, t], before[:, t]) for t in range(x.size(1))):
                return False
        return True

    def _aligned(self) -> None:
        x = self._noise(self.items, self.tokens)
        try:
            self.target(x[:, -1:], x, x)
        except Exception:
            self._open("causal alignment with a cache", "a target that takes fewer queries than keys")
            return
        check = "causal alignment with a cache"
        evidence = self._ask(check, lambda b, t: probes.misaligns_a_cache(self.target, self._noise(b, t)))
        if evidence is not None:
            told = "the first query is aligned with the first key, not the last with the last"
            self._find(check, "top-left-causal", told, evidence)

    # What no output shows

    def _numbers(self, explained: bool) -> None:
        if not explained:
            self._gradients()
        self._half()
        self._blind()
        self._returned_weights()

    def _leaves_inputs(self) -> None:
        check, count = "inputs left as they were", 1 if self.inputs == "x" else 3

        def question(items: int, tokens: int) -> Evidence | None:
            return probes.overwrites_inputs(self.target.raw, *(self._noise(items, tokens, n) for n in range(count)))

        evidence = self._ask(check, question)
        if evidence is not None:
            self._find(check, "input-overwritten", "it writes into its input", evidence)

    def _gradients(self) -> None:
        parameters = [(n, t) for n, t in self.target.tensors.items() if t.requires_grad and t.is_leaf]
        check = "gradients reach the input and every parameter"
        with torch.enable_grad():
            try:
                output = self._f(self._noise(self.items, self.tokens).requires_grad_() * 1)  # it may be written into
                if output.requires_grad:
                    output.sum().backward()
            except Exception as error:
                self._find(check, "gradient-cut", "it cannot be trained: its backward pass fails", _said(error))
                return
        if self.target.dtype != torch.float64:
            self._open(check, "a target that computes in float64, where a derivative can be measured")
            return
        cut = self._ask(check, lambda b, t: probes.cuts_gradients(self._f, self._noise(b, t), parameters)
                        if t > 1 and b > 1 else None)  # fmt: skip
        if cut is not None:
            unused = "nor does the output depend on it" in cut.text
            note = self._caution if unused else self._find
            note(check, "gradient-cut", "a parameter is not used" if unused else "a gradient is cut off", cut)

    def _half(self) -> None:
        check = "float16 range"
        half = self._admit()
        if not half.copied:
            self._open(check, "a target that copy.deepcopy can copy: its own numbers are left as they are")
            return
        half.mask_axes = self.target.mask_axes
        for module in half.modules.values():
            module.half()
        allowed = None
        if self.inputs == "qkv_allowed":
            allowed = torch.ones(self.tokens, self.tokens, dtype=torch.bool).tril()

        def f(x: Tensor) -> Tensor:
            return half(x) if allowed is None else half(x, x, x, allowed=allowed[: x.size(1), : x.size(1)])

        with torch.no_grad():
            x = self._noise(self.items, self.tokens)
            if not self._f(x).isfinite().all():
                return
            try:
                evidence = probes.fails_in_half(f, x)
                f(x.half())
            except Exception as error:
                evidence = None if "overflow" not in str(error) else evidence
                if evidence is None:
                    self._open(check, f"a target that runs in float16: it raised {_said(error)}")
                    return
        if evidence is None:
            self.notes.passed.append(check)
        else:
            told = "it does not survive float16: a number of its own, such as -1e9, is beyond 65504"
            self._find(check, "float16-overflow", told, evidence)

    def _blind(self) -> None:
        hidden = {"mask-polarity", "padding-ignored"} & {finding.cause for finding in self.notes.findings}
        if self.inputs != "qkv_allowed" or hidden:
            return
        q, k, v = (self._noise(self.items, self.tokens, seed) for seed in range(3))
        allowed = torch.ones(self.tokens, self.tokens, dtype=torch.bool)
        try:
            evidence = probes.is_blinded(self.target_masked, q, k, v, allowed)
        except Exception as error:
            self._open("rows that may see nothing", f"the target raised {_said(error)}")
            return
        if evidence is None:
            self.notes.passed.append("no NaN where a query may see nothing")
            return
        told = "a query that may see nothing gives NaN: a softmax over -inf alone"
        place = self._find if "others" in evidence.text else self._caution
        place("no NaN where a query may see nothing", "fully-masked-row", told, evidence)

    def _returned_weights(self) -> None:
        x = self._noise(self.items, self.tokens)
        with torch.no_grad():
            self.target(x)
            if self.target.weights is None:
                return
            evidence = probes.weights_sum_to_one(self.target.weights)
            if evidence is not None:
                if not self.notes.findings:
                    told = "the weights that it returns do not sum to one"
                    self._find("weights sum to one", "weights-not-normalized", told, evidence)
                return
            with self.target.training():
                try:
                    self.target(x)
                except Exception:
                    return
                if self.target.weights is not None:
                    evidence = probes.weights_sum_to_one(self.target.weights)
        if evidence is not None:
            told = "the weights that it returns in training are taken after dropout"
            self._caution("weights sum to one, in training", "weights-after-dropout", told, evidence)

    # What only modules have

    def _structure(self, calls: list[dict[str, Any]]) -> None:
        modules = self.target.modules
        if not modules:
            return
        x = self._noise(self.items, self.tokens)
        for module in modules.values():
            with torch.no_grad():
                skipped = probes.skips_hooks(module, functools.partial(self.target, x))
            if skipped is not None:
                told = "a submodule is called as .forward(...), which skips its hooks"
                self._find("hooks run", "forward-called-directly", told, skipped)
        shared = None
        for original in self.target.originals.values():
            if isinstance(original, nn.Module):
                shared = shared or probes.shares_memory(original)
                self._buffers(original)
        if shared is not None:
            told = "a parameter was copied by aliasing it: training one moves the other"
            self._find("parameters have their own memory", "aliased-weights", told, shared)
        else:
            self.notes.passed.append("parameters have their own memory")
        if any(call.get("need_weights") for call in calls) and self.target.weights is None:
            told = "nn.MultiheadAttention is asked for weights, off the fused kernels, and they are dropped"
            self._caution("what it costs", "need-weights-costs", told, "need_weights is not False in the call")

    def _buffers(self, module: nn.Module) -> None:
        kept = module.state_dict()
        for name, buffer in module.named_buffers():
            if name in kept and buffer.is_floating_point() and is_triangle(buffer):
                size = buffer.numel() * buffer.element_size()
                told = "a mask is kept as a floating buffer in the state_dict: it grows with the square of the context"
                evidence = f"{name!r} of shape {tuple(buffer.shape)} takes {size} bytes"
                self._find("no mask in the state_dict", "mask-buffer", told, evidence, certain=True)


class _Precision(TorchDispatchMode):
    """Sees in how many bits, at the fewest, the operations within it compute.

    Attributes:
        bits: The fewest bits of a floating result.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bits = 64

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else [result]:
            if isinstance(each, Tensor) and each.is_floating_point():
                self.bits = min(self.bits, torch.finfo(each.dtype).bits)
        return result


def _said(error: Exception) -> str:
    text = (str(error).strip() or "no text").split("\n")[0]
    return f"{type(error).__name__}: {text[:160]}"


def _s(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"


def _changes(steps: Steps) -> dict[str, Any]:
    right = Steps()
    return {name: step for name, step in vars(steps).items() if step is not getattr(right, name)}


def _originals(target: Target) -> dict[str, Tensor]:
    """The target's own tensors, by the names that their copies have."""
    found: dict[str, Tensor] = {}
    for name, thing in target.originals.items():
        if isinstance(thing, Tensor):
            found[name] = thing
        else:
            found |= {
                f"{name}.{inner}" if name else inner: p for inner, p in thing.named_parameters(remove_duplicate=False)
            }
    return found


def _forgets_batch_first(target: Target) -> bool:
    return any(getattr(m, "batch_first", None) is False for module in target.modules.values() for m in module.modules())


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
