"""What calls alone tell: what each output depends on, in which order, and under which mask."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from unmasked import probes
from unmasked.doctor._distances import counts_distances
from unmasked.doctor._masking import obeys_its_mask
from unmasked.doctor._patient import Patient, forgets_batch_first, said
from unmasked.doctor._standing import keeps_places
from unmasked.doctor._target import is_triangle
from unmasked.probes import Evidence, changed, differs, moved


def behaviour(patient: Patient, calls: list[dict[str, Any]]) -> None:
    """Ask what needs only calls, and stop at what would only show the same again."""
    f, before = patient.f, len(patient.notes.findings)
    if patient.options.masked:
        obeys_its_mask(patient)
    if len(patient.notes.findings) == before:
        mixed = patient.ask("batch items independent", lambda b, t: probes.mixes_items(f, patient.noise(max(b, 2), t)))
        if mixed is None:
            _keeps_its_place(patient)
        else:
            cause, told, also = _why_mixed(patient)
            patient.find("batch items independent", cause, told, mixed, also=also)
    if len(patient.notes.findings) == before:
        _sees_others(patient)
    if len(patient.notes.findings) == before and patient.inputs.startswith("x_context"):
        _reads_its_context(patient)
    if len(patient.notes.findings) == before and "equality with the reference" not in patient.notes.passed:
        keeps_places(patient)  # what is right step by step may have sorted its tokens
    if len(patient.notes.findings) == before:
        _keeps_time(patient, calls)
    if len(patient.notes.findings) == before and patient.positions and patient.options.own:
        _has_order(patient)
        if patient.fixed is None and not patient.options.masked and len(patient.notes.findings) == before:
            counts_distances(patient)
    if len(patient.notes.findings) == before and patient.options.own:
        _notices_itself(patient)
    if len(patient.notes.findings) == before and not patient.positions and not patient.equal:
        _averages(patient)
    if len(patient.notes.findings) == before and patient.inputs.startswith("qkv") and patient.causal:
        _aligned(patient)


def _keeps_its_place(patient: Patient) -> None:
    """Ask whether an item's output depends on where in the batch the item is."""
    check, x = "an item is the same anywhere in the batch", patient.noise(patient.items, patient.tokens)
    gap = differs(patient.f(x.flip(0)).flip(0), patient.f(x))
    if gap:
        told = "an item's output depends on its place in the batch: something that heads should have is dealt to items"
        evidence = patient.sized(f"with the items in reverse order, outputs are off by {gap:.3g}")
        patient.find(check, None, told, evidence, also=("batch-indexed-for-head",))
    else:
        patient.notes.passed.append(check)


def _sees_others(patient: Patient) -> None:
    """Ask whether any token counts for another at all."""
    x, other = patient.noise(patient.items, patient.tokens), patient.noise(patient.items, patient.tokens, 4)
    first, last = x.clone(), x.clone()
    first[:, 0], last[:, -1] = other[:, 0], other[:, -1]
    before = patient.f(x)
    if differs(patient.f(first)[:, 1:], before[:, 1:]) or differs(patient.f(last)[:, :-1], before[:, :-1]):
        return
    reach = _reach(patient, x[:1])  # the ends may be in windows of their own
    if not (reach & ~torch.eye(len(reach), dtype=torch.bool)).any():
        evidence = patient.sized("changing any token moves no other token's output")
        patient.find("other tokens are seen", None, "no output depends on another token: nothing attends", evidence)


def _reads_its_context(patient: Patient) -> None:
    """Ask whether every token of the context counts."""
    check, keys = "every token of the context counts", patient.fixed or patient.tokens + 3
    query, context, _ = patient.three(patient.items, patient.tokens, keys)
    try:
        before = patient.target(query, context)
        lost = [n for n in range(keys) if not differs(patient.target(query, changed(context, n)), before)]
    except Exception as error:
        patient.open(check, f"a target that takes a context of another length: it raised {said(error)}")
        return
    evidence = f"{patient.items} items of {patient.tokens} tokens, a context of {keys}: changing token"
    if len(lost) == keys:
        told = "no output depends on the context: its tokens attend to something else"
        patient.find(check, None, told, f"{evidence} 0 of it, or any other, leaves the output as it was")
    elif lost:
        patient.open(check, f"whether some may be out of sight: {evidence} {lost[0]} of it leaves the output as it was")
    else:
        patient.notes.passed.append(check)


def _keeps_time(patient: Patient, calls: list[dict[str, Any]]) -> None:
    """Ask what the order of the tokens does."""
    f, check, before = patient.f, "permutation equivariance", len(patient.notes.findings)
    if patient.causal:
        _is_causal(patient, calls)
        return
    if patient.causal is None:
        patient.open("leaks from the future", "whether no token may see a later one: pass causal=True or False")
    else:
        _windows(patient)
    if patient.positions or len(patient.notes.findings) > before:
        return
    x = patient.noise(patient.items, patient.tokens)
    causal = probes.sees_the_future(f, x) is None
    if patient.causal is None and causal:
        return
    evidence = patient.ask(check, lambda b, t: probes.breaks_equivariance(f, patient.noise(b, t)))
    if evidence is None:
        return
    alike = f(x[:, :1].expand_as(x).clone())
    if causal:
        told = "no output sees a later token: it is causal, and causal=False was given"
        patient.find(check, None, told, evidence)
    elif not differs(alike, alike[:, :1].expand_as(alike)):  # equal tokens have equal outputs, wherever they are
        patient.open(check, f"whether its scores depend on positions: pass positions=True if they do ({evidence})")
    else:
        told = "its outputs depend on the order of the tokens (if it adds positions, pass positions=True)"
        also: tuple[str, ...] = ("view-without-transpose", "swapped-view")
        also += () if patient.causal is False else ("boolean-mask-added", "mask-after-softmax")
        patient.find(check, "merge-without-transpose", told, evidence, also=also)


def _has_order(patient: Patient) -> None:
    """Where positions are said to count, exchange tokens: an output that sees both must notice.

    In a short sequence all may be in one window, and order counts for nothing: so the sequence is a long one. The mask
    of one that sees later tokens may be where the positions count, as in frames: then all outputs are asked.
    """
    check = "the order of its tokens counts"
    for tokens in [patient.fixed] if patient.fixed else (160, 64, 32, 16):
        x = patient.noise(1, tokens)
        with contextlib.suppress(Exception):  # it may take no sequence that long
            before = patient.f(x)
            seen = differs(patient.f(changed(x, 0))[:, -1], before[:, -1])
            break
    else:
        return
    if x.size(1) < 3:
        return
    order = torch.arange(x.size(1)).roll(1)
    order[-1], order[0] = x.size(1) - 1, x.size(1) - 2  # the last keeps its place, and sees the others in any mask
    after = patient.f(x[:, order])
    masked = bool(differs(patient.f(changed(x, x.size(1) - 1))[:, :-1], before[:, :-1]))
    masked = masked and bool(differs(after, before[:, order]))
    if seen and not masked and not differs(after[:, -1], before[:, -1]):
        told = (
            "positions=True says that the order of its tokens counts, and it does not: no position reaches the scores"
        )
        evidence = f"1 item of {x.size(1)} tokens: with all but the last in another order, the last output is the same"
        patient.find(check, None, told, evidence)
    else:
        patient.notes.passed.append(check)


def _notices_itself(patient: Patient) -> None:
    """Ask whether outputs stand where their own tokens do: each must notice its token, as its query."""
    check, x = "an output belongs to its own token", patient.noise(1, patient.tokens)
    reach = _reach(patient, x)
    several = reach.sum(-1) > 1  # of one key alone any query has the value
    lost = (several & ~reach.diagonal()).nonzero().flatten().tolist()
    if not lost:
        patient.notes.passed.append(check)
        return
    seen = reach[lost[0]].nonzero().flatten().tolist()
    told = "an output depends on other tokens and not on its own: what it gives stands at other places than its tokens"
    evidence = f"1 item of {x.size(1)} tokens: the output of token {lost[0]} depends on the tokens {seen}"
    patient.find(check, None, told, evidence)


def _averages(patient: Patient) -> None:
    check = "weights sum to one"
    evidence = patient.ask(check, lambda b, t: probes.is_no_average(patient.f, patient.noise(b, t)))
    if evidence is None and patient.inputs.startswith("qkv"):
        patient.notes.passed.remove(check)
        evidence = patient.ask(check, functools.partial(_averages_values, patient))
        if evidence is not None and _Softmax.in_(lambda: patient.f(patient.noise(2, 3)), ("exp", "exp_", "exp2")):
            # What counts beside the keys, such as a sink, would show among equal keys too.
            told = "where all values are equal the output is not that value, though it is where keys are equal too"
            patient.find(check, "weights-not-normalized", told, evidence)
            return
    if evidence is None:
        return
    if _jumps(patient):
        told = "weights are divided by the sums of blocks of keys: the more blocks there are, the larger is the output"
        patient.find(check, "weights-not-normalized", told, evidence)
    elif _grows(patient):
        told = "the more copies of a token there are, the larger is its output: weights are not divided by their sum"
        also = ("mask-after-softmax", "softmax-over-queries")
        patient.find(check, "weights-not-normalized", told, evidence, also=also)
    else:
        needs = (
            "whether something beside its tokens counts in the sum, as sinks or learned keys do, or a mixing of heads"
        )
        patient.open(check, f"{needs}: {evidence}")


def _grows(patient: Patient) -> bool:
    """Whether the output grows with every copy of a token alike, and no softmax is called that would prevent it.

    What a learned key adds to the sum weighs less with every copy; and heads that are mixed with a bias after the
    softmax grow as well, though the softmax did its work.
    """
    x = patient.noise(1, 1)
    first, second, fourth, eighth = (patient.f(x.expand(-1, n, -1).clone())[:, -1] for n in (1, 2, 4, 8))
    step = second - first
    linear = not differs(fourth - second, 2 * step) and not differs(eighth - fourth, 4 * step)
    return linear and bool(differs(second, first)) and not _Softmax.in_(lambda: patient.f(x))


def _jumps(patient: Patient) -> bool:
    """Whether the output of copies of a token stays, and after every so many of them grows by the same step."""
    if patient.fixed or not patient.options.own or patient.options.masked:
        return False
    x = patient.noise(1, 1)
    given = [patient.f(x.expand(-1, n, -1).clone())[:, -1] for n in range(1, 26)]
    grown = [n for n in range(1, 25) if differs(given[n], given[n - 1])]
    if len(grown) < 2 or grown[0] < 3:
        return False
    every = {b - a for a, b in itertools.pairwise(grown)}
    steps = [given[n] - given[n - 1] for n in grown]
    return every == {grown[0]} and all(not differs(step, steps[0]) for step in steps)


class _Softmax(TorchFunctionMode):
    """Hears whether a softmax is called."""

    names: tuple[str, ...] = (
        "softmax",
        "log_softmax",
        "scaled_dot_product_attention",
        "multi_head_attention_forward",
        "flex_attention",
    )

    def __init__(self, names: tuple[str, ...] = names) -> None:
        super().__init__()
        self.heard, self.names = False, names

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.heard = self.heard or getattr(function, "__name__", "") in self.names
        return function(*args, **(kwargs or {}))

    @classmethod
    def in_(cls, call: Callable[[], object], names: tuple[str, ...] = names) -> bool:
        mode = cls(names)
        with mode:
            call()
        return mode.heard


def _averages_values(patient: Patient, items: int, tokens: int) -> Evidence | None:
    """Keep the values equal, and let queries and keys differ: each query alone with a key is as among all of them."""
    query, key, value = (patient.noise(items, tokens, place, place) for place in range(3))
    same = value[:, :1].expand_as(value).clone()
    among = patient.target(query, key, same)
    alone = [patient.target(query[:, n : n + 1], key[:, :1], same[:, :1]) for n in range(tokens)]
    gap = differs(among, torch.cat(alone, 1))
    if not gap:
        return None
    told = f"{items} items of {tokens} tokens: with equal values, a query has another output than with one, off by"
    return Evidence(f"{told} {gap:.3g}: weights do not sum to one, or features are mixed between tokens", gap, ())


def _why_mixed(patient: Patient) -> tuple[str, str, tuple[str, ...]]:
    f, x = patient.f, patient.noise(patient.items, patient.tokens)
    before = f(x)
    others = x.clone()
    others[1:] += patient.noise(patient.items, patient.tokens, 4)[1:]
    if not differs(f(others), before):
        return "only-first-item", "every output is computed from the first item of the batch", ()
    tokens = x.clone()
    tokens[:, -1] += 1
    alone = not differs(f(tokens)[:, :-1], before[:, :-1])
    if alone:
        told = "attention runs across the batch: an item sees other items, and no other token of its own"
        if forgets_batch_first(patient.target):
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


def _is_causal(patient: Patient, calls: list[dict[str, Any]]) -> None:
    f = patient.f
    also: tuple[str, ...]
    leak = patient.ask("no leak from the future, in value and gradient",
                     lambda b, t: probes.sees_the_future(f, patient.noise(b, t)))  # fmt: skip
    x = patient.noise(patient.items, patient.tokens)
    if leak is None:
        past = patient.ask("the past is seen", lambda b, t: probes.misses_the_past(f, patient.noise(b, t)))
        if past is not None:
            needs = f"whether earlier tokens may be out of sight, as in a sliding window: {past}"
            patient.open("the past is seen", needs)
        _stays_causal(patient, x)
        return
    cause, told, also = _why_it_leaks(patient, x, calls)
    patient.find("no leak from the future", cause, told, leak, also=also)


def _stays_causal(patient: Patient, x: Tensor) -> None:
    """Ask once more with the opposite numbers in its matrices, which were drawn, and as likely as not the others."""
    drawn = [t for t in patient.target.tensors.values() if t.requires_grad and t.is_leaf and t.dim() > 1]
    drawn = [t for t in drawn if min(t.shape[-2:]) > 1 and t.isfinite().all() and not is_triangle(t)]
    if not patient.target.copied or not drawn:
        return
    signs = {id(t): t for t in drawn}.values()

    def turn() -> None:
        for tensor in signs:
            tensor.neg_()

    turn()
    leak = probes.sees_the_future(patient.f, x)
    turn()
    if leak is not None and leak.difference > 1e-3:
        told = "which tokens are hidden hangs on the signs of its weights: what was masked is mixed before the softmax"
        patient.find("no leak from the future", None, told, f"with the opposite weights: {leak}")


def _why_it_leaks(patient: Patient, x: Tensor, calls: list[dict[str, Any]]) -> tuple[str | None, str, tuple[str, ...]]:
    """Tell mistakes from each other by which outputs notice which tokens."""
    if any(call.get("is_causal") for call in calls):
        return "is-causal-is-a-hint", "is_causal=True is passed to nn.MultiheadAttention as if it were a mask", ()
    f = patient.f
    if probes.breaks_equivariance(f, x) is None:
        return "no-causal-mask", "every token sees every other", ()
    reach = _reach(patient, x)
    early = reach.tril()
    if torch.equal(reach[1:], early[1:]):
        return None, "a token does not see itself: the mask hides the diagonal too, and the first sees nothing", ()
    for ahead in range(1, x.size(1) - 1):
        if torch.equal(reach, torch.ones_like(reach).tril(ahead)):
            return None, f"each token sees {ahead} of those that come after it: the mask is moved by so many places", ()
    if not early[:-1].tril(-1).any():
        return "mask-polarity", "a token sees what comes after it, and not what came before", ()
    if _last_alone_averages(patient, x):
        if not _Softmax.in_(lambda: f(x), (*_Softmax.names, "exp", "exp_", "exp2")):
            return None, "later tokens count in the sum that the weights of earlier ones are divided by", ()
        told = "weights are masked after the softmax: later tokens still count in the sum that they are divided by"
        return "mask-after-softmax", told, ()
    if reach.all():
        told = "later tokens count, though not as much as earlier ones: the mask adds too little"
        return "boolean-mask-added", told, ("float-mask-of-ones", "merge-without-transpose", "view-without-transpose")
    if torch.equal(reach[0], early[0]) and reach[1:].all():
        told = "later tokens move the weights of earlier ones, and are hidden after that: by a mask that comes too late"
        return None, told, ("mask-after-softmax",)
    if torch.equal(early, torch.ones_like(early).tril()):
        return None, "some later tokens get through the mask, while all earlier ones are seen", ()
    told = "some outputs are read off other tokens, so that later ones get through the mask"
    return "merge-without-transpose", told, ("view-without-transpose", "swapped-view")


def _last_alone_averages(patient: Patient, x: Tensor) -> bool:
    """Whether among copies of a token the last has the output of the token alone, and those before it do not."""
    alone, among = patient.f(x[:, :1])[:, 0], patient.f(x[:, :1].expand_as(x).clone())
    return differs(among[:, -1], alone) < 1e-3 * differs(among[:, 0], alone)  # it may add something to the sum


def _reach(patient: Patient, x: Tensor) -> Tensor:
    """Tell which outputs notice which tokens: (outputs, tokens)."""
    before = patient.f(x)
    columns = [moved(patient.f(changed(x, token)), before).any(0) for token in range(x.size(1))]
    return torch.stack(columns, -1)


def _windows(patient: Patient) -> None:
    """Ask how far each token sees to both sides, where it does not see all."""
    tokens = patient.fixed or 2 * patient.tokens + 3
    try:
        reach = _reach(patient, patient.noise(1, tokens))
    except Exception:  # it takes no sequence that long
        return
    if reach.all():
        return
    row, middle = reach[tokens // 2].tolist(), tokens // 2
    near = next((n for n, seen in enumerate(row[middle + 1 :]) if not seen), tokens)
    back = next((n for n, seen in enumerate(row[:middle][::-1]) if not seen), tokens)
    band = torch.ones_like(reach).tril(near).triu(-back)
    check = "as many tokens before it as behind it"
    if not torch.equal(reach, band) or near == back:
        return
    evidence = f"1 item of {tokens} tokens: each sees {back} before it and {near} behind it"
    if near == back + 1:
        told = "its window is one longer ahead than back: one end of it is off by one"
        patient.find(check, None, told, evidence)
    else:
        patient.open(check, f"whether its window should be longer on one side: {evidence}")


def _aligned(patient: Patient) -> None:
    x = patient.noise(patient.items, patient.tokens)
    try:
        patient.target(x[:, -1:], x, x)
    except Exception:
        patient.open("causal alignment with a cache", "a target that takes fewer queries than keys")
        return
    check = "causal alignment with a cache"
    evidence = patient.ask(check, lambda b, t: probes.misaligns_a_cache(patient.target, patient.noise(b, t)))
    if evidence is not None:
        told = "the first query is aligned with the first key, not the last with the last"
        patient.find(check, "top-left-causal", told, evidence)
