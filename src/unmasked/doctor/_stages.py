"""Attention judged stage by stage, by what its own forward pass multiplies: for modules that no whole reference fits.

What a stage takes is taken as given, and what it gives is compared with what is right: so norms before it, residuals
around it, positions within it and layers behind it need no reference of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from unmasked.doctor._mistakes import Case
from unmasked.doctor._observed import Call, Event, calls_of, observed
from unmasked.doctor._patient import Patient
from unmasked.doctor._weights import Weights, appended, head_counts, role_of

__all__ = ["Inside", "look"]

_CAPS = (5, 10, 15, 20, 25, 30, 40, 50, 100)
_SHUT = -1e3  # a score as low as this hides


@dataclass
class Inside:
    """What was seen within.

    Attributes:
        seen: Whether attention was recognized at all.
        wrong: Mistakes: the museum's slug or None, what is done, and whether that is proved.
        unclear: What was seen and could not be judged.
        causal: Whether it hides later keys by itself.
    """

    seen: bool = False
    wrong: list[tuple[str | None, str, bool]] = field(default_factory=list)
    unclear: list[str] = field(default_factory=list)
    causal: bool | None = None

    @property
    def right(self) -> bool:
        """Whether every stage was judged, and is right."""
        return self.seen and not self.wrong and not self.unclear


@dataclass
class _Run:
    case: Case
    events: list[Event]
    output: Tensor
    calls: list[Call] = field(default_factory=list)

    @property
    def call(self) -> Call:
        """The calls as one: heads of a list stand side by side."""
        if len(self.calls) == 1:
            return self.calls[0]
        first = self.calls[0]
        names = ("query", "key", "product", "scores", "softmax", "weights", "value", "context")
        joined: dict[str, Any] = {name: torch.cat([getattr(call, name) for call in self.calls], 1) for name in names}
        return replace(first, **joined)


def look(patient: Patient) -> Inside:
    """Watch a forward pass, and judge what was seen."""
    inside = Inside()
    try:
        _Look(patient, inside).judge()
    except _Unseen as why:
        if str(why):
            inside.unclear.append(str(why))
    return inside


class _Unseen(Exception):  # noqa: N818  # it is an answer
    """Nothing can be said, and why."""


class _Look:
    def __init__(self, patient: Patient, inside: Inside):
        self.patient, self.inside = patient, inside
        self.rough = patient.target.dtype != torch.float64
        self.turned = self.memory = False
        self.longer = 0
        self.allowed = torch.ones(1, dtype=torch.bool)
        self.scale: Tensor | None = None
        self.added = self.rest = torch.zeros(1)

    # What is asked

    def near(self, a: Tensor, b: Tensor, size: float = 1.0) -> bool:
        if a.shape != b.shape:
            return False
        gap = (a - b).abs().max().item() if a.numel() else 0.0
        return gap <= (2e-3 if self.rough else 1e-7) * max(size, 1e-3)  # constants may have been kept in float32

    def run(self, case: Case, put: dict[int, Callable[[Tensor], Tensor]] | None = None) -> _Run:
        kept: list[Tensor] = []

        def ask() -> None:
            target, c = self.patient.target, case
            if self.patient.inputs == "x":
                kept.append(target(c.query))
            else:
                kept.append(target(c.query, c.key, c.value, allowed=c.allowed))

        events = observed(ask, put)
        return _Run(case, events, kept[0].detach())

    def find(self, run: _Run) -> _Run:
        c = run.case
        run.calls = calls_of(run.events, c.query.size(0), c.query.size(1), c.key.size(1), turned=self.turned)
        return run

    def case(self, items: int, *, same: bool = False) -> Case:
        keys = self.patient.tokens + self.longer
        case = self.patient.case(items, self.patient.tokens, keys, Weights({}, {}, 1, 1), causal=False)
        if same:
            case = self.changed(case, lambda x: x[:, :1].expand_as(x).clone())
            case = replace(case, allowed=None if case.allowed is None else torch.ones_like(case.allowed))
        return case

    @staticmethod
    def changed(case: Case, change: Callable[[Tensor], Tensor]) -> Case:
        made: dict[int, Tensor] = {}
        for x in (case.query, case.key, case.value):
            made.setdefault(id(x), change(x))
        return replace(case, query=made[id(case.query)], key=made[id(case.key)], value=made[id(case.value)])

    # What is judged

    def judge(self) -> None:
        if self.patient.inputs != "x":
            self.longer = 3
        try:
            base = self.find(self.run(self.case(self.patient.items)))
        except Exception:
            if not self.longer:
                raise
            self.longer = 0
            base = self.find(self.run(self.case(self.patient.items)))
        if not base.calls:
            return
        moved = self.run(self.changed(base.case, _other_token))
        self.find(moved)
        if len(base.calls) > 1:
            self.independent(base)
        if len(moved.calls) != len(base.calls):
            raise _Unseen("what it does depends on its input")
        if not self.local(base, moved):
            self.turned = True
            turned = [self.find(replace(run, calls=[])) for run in (base, moved)]
            if turned[0].calls and len(turned[0].calls) == len(turned[1].calls) and self.local(*turned):
                base, moved = turned
            else:
                self.turned = False
        base = self.without_memory(base)
        moved = self.without_memory(moved)
        self.inside.seen = True
        self.places(base, moved)
        garbled = bool(self.inside.wrong)
        self.weighing(base)
        self.merging(base)
        if not garbled:
            self.projecting(base)

    def without_memory(self, run: _Run) -> _Run:
        """Leave out keys that no input makes: a bias for keys, zeros, memory slots."""
        call, keys = run.call, run.case.key.size(1)
        if call.key.size(2) == keys:
            return run
        varied = (call.key - call.key[:1]).abs().amax((0, 1, 3)) + (call.value - call.value[:1]).abs().amax((0, 1, 3))
        kept = (varied > 0).nonzero().flatten()
        if len(kept) != keys:
            raise _Unseen(f"it has {call.key.size(2)} keys where it was given {keys}")
        self.memory = True
        less: dict[str, Any] = {name: getattr(call, name)[:, :, kept] for name in ("key", "value")}
        less |= {n: getattr(call, n)[..., kept] for n in ("product", "scores", "softmax", "weights")}
        return replace(run, calls=[replace(call, **less)]) if len(run.calls) == 1 else run

    def independent(self, base: _Run) -> None:
        shapes = {(tuple(c.query.shape), tuple(c.value.shape)) for c in base.calls}
        if len(shapes) > 1:
            raise _Unseen("it has several calls of attention, of different sizes")
        first = base.calls[0]
        other = self.find(self.run(base.case, {first.place: lambda x: x + 1}))
        if len(other.calls) != len(base.calls) or any(
            not self.near(a.query, b.query) or not self.near(a.value, b.value)
            for a, b in zip(base.calls[1:], other.calls[1:], strict=True)
        ):
            raise _Unseen("it has several calls of attention, one after the other")

    def local(self, base: _Run, moved: _Run) -> bool:
        """Whether a changed token moves its own query, key and value alone."""
        return all(
            not bool(_elsewhere(getattr(base.call, n), getattr(moved.call, n))) for n in ("query", "key", "value")
        )

    def places(self, base: _Run, moved: _Run) -> None:
        """Ask where the queries, keys and values come from."""
        spread = []
        for name in ("query", "key", "value"):
            before, after = getattr(base.call, name), getattr(moved.call, name)
            if not _elsewhere(before, after):
                continue
            items, heads, tokens, _ = before.shape
            flat = [x.reshape(items, tokens, 1, -1).transpose(1, 2) for x in (before, after)]
            if items > 1 and name != "query" and self.near(before[1:], before[:1].expand_as(before[1:])):
                told = f"every item's queries meet the first item's {name}s"
                return self.wrong("only-first-item", told)
            if heads > 1 and not _elsewhere(*flat):
                spread.append(name)
                continue
            self.inside.unclear.append(f"a token's {name} depends on other tokens")
        if spread:
            told = f"a view alone splits {' and '.join(spread)} into heads: a head takes whole tokens"
            self.wrong("view-without-transpose", told)
        return None

    def wrong(self, cause: str | None, told: str, *, proved: bool = True) -> None:
        self.inside.wrong.append((cause, told, proved and not self.inside.unclear))

    def weighing(self, base: _Run) -> None:
        """Ask what becomes of the products: scale, what is added, what is hidden, the softmax and what comes after."""
        call, inside = base.call, self.inside
        if call.over == "queries":
            if torch.equal(call.softmax, call.weights):
                return self.wrong("softmax-over-queries", "the softmax runs over the queries: columns sum to one")
            inside.unclear.append("its softmax runs over the queries, and something follows")
            return None
        if call.over != "keys":
            told = "the softmax does not run over the keys"
            return self.wrong("weights-not-normalized", told)
        hidden = self.hidden(base)
        scores, shut = call.scores, (call.scores <= _SHUT) | ~call.scores.isfinite()
        fitted = self.fitted(call.product, scores, shut)
        cap = None
        if fitted is None:
            for cap in (*map(float, _CAPS), *self.constants()):
                if bool((scores[~shut].abs() < cap * (1 - 1e-12)).all()):
                    fitted = self.fitted(call.product, cap * (scores / cap).clamp(-1, 1).atanh(), shut)
                    if fitted is not None:
                        break
            else:
                cap = None
        if fitted is None and hidden is not None:
            fitted = self.masked_wrongly(call, hidden)
            if inside.wrong:
                return None
        if fitted is None:
            inside.unclear.append("its scores are not a multiple of query times key plus something fixed")
            return None
        self.scale, added = fitted
        self.added, self.rest = added, scores - fitted[0][:, None, None] * call.product
        self.hiding(call, shut, added, hidden)
        if not inside.wrong:
            self.after(call, hidden)
            self.sloped(added, shut)
        return None

    def constants(self) -> list[float]:
        """Numbers that its modules keep as attributes."""
        found = []
        for module in self.patient.target.modules.values():
            for each in module.modules():
                for holder in (each, getattr(each, "config", None), getattr(each, "cfg", None)):
                    for value in vars(holder).values() if hasattr(holder, "__dict__") else ():
                        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
                            found.append(float(value))
        return sorted(set(found))

    def hidden(self, base: _Run) -> Tensor | None:
        """What should be hidden, as far as that is known: (batch, 1, queries, keys)."""
        call, allowed = base.call, base.case.allowed
        items, _, queries, keys = call.scores.shape
        hidden = None
        if allowed is not None:
            hidden = ~(allowed if allowed.dim() == 3 else allowed.expand(items, -1, -1)).unsqueeze(1)
            self.allowed = ~hidden
        if self.patient.causal:
            future = torch.ones(queries, keys, dtype=torch.bool).triu(1 + keys - queries).expand(items, 1, -1, -1)
            hidden = future if hidden is None else hidden | future
        return hidden if hidden is None or hidden.shape[-2:] == call.scores.shape[-2:] else None

    def fitted(self, product: Tensor, scores: Tensor, shut: Tensor) -> tuple[Tensor, Tensor] | None:
        """Find scores = c * product + added, with a number for each head, and the same for every item."""
        shown = (~shut).to(product.dtype)
        count = shown.sum(0).clamp(min=1)
        scores = scores.masked_fill(shut, 0.0)
        means = [(x * shown).sum(0) / count for x in (product, scores)]
        m, s = ((x - mean) * shown for x, mean in zip((product, scores), means, strict=True))
        power = m.square().sum((0, 2, 3))
        if not bool((power > 1e-12).all()):
            return None
        c = (m * s).sum((0, 2, 3)) / power
        rest = s - c[:, None, None] * m
        size = max(scores.abs().max().item(), product.abs().max().item() * c.abs().max().item(), 1e-3)
        if rest.abs().max().item() > (1e-3 if self.rough else 1e-8) * size:
            return None
        return c, means[1] - c[:, None, None] * means[0]

    def masked_wrongly(self, call: Call, hidden: Tensor) -> tuple[Tensor, Tensor] | None:
        """Find masks that fill or multiply where they should hide."""
        hidden = hidden.expand_as(call.scores)
        fitted = self.fitted(call.product, call.scores, hidden | ~call.scores.isfinite())
        if fitted is not None:
            values = call.scores[hidden]
            if self.near(values, torch.zeros_like(values)):
                told = "the scores are multiplied by zeros and ones, and a score of zero is no mask"
                self.wrong("float-mask-of-ones", told)
            elif values.isfinite().all() and (values - values[0]).abs().max() < 1e-6:
                self.wrong("boolean-mask-added", f"what should be hidden gets the score {values[0]:.3g}, and is seen")
            return fitted
        for cap in (*map(float, _CAPS), *self.constants()):
            values = call.scores[hidden]
            if self.near(values, torch.full_like(values, -cap), float(cap)):
                told = (
                    f"scores are capped at {cap:g} after the mask: what is hidden gets the score -{cap:g}, and is seen"
                )
                self.wrong("softcap-after-mask", told)
                return None
        return None

    def hiding(self, call: Call, shut: Tensor, added: Tensor, hidden: Tensor | None) -> None:
        """Compare what is hidden with what should be."""
        items, heads = shut.shape[:2]
        future = torch.ones(shut.shape[-2:], dtype=torch.bool).triu(1 + shut.size(-1) - shut.size(-2))
        self.inside.causal = bool(shut[..., future].all()) and bool(future.any())
        if hidden is None:
            if self.patient.causal is False and shut.any():
                self.inside.unclear.append("some keys are hidden from some queries")
            return None
        hidden = hidden.expand_as(shut)
        if self.patient.causal and shut.size(-1) != shut.size(-2):
            left = torch.ones(shut.shape[-2:], dtype=torch.bool).triu(1).expand_as(shut)
            if bool((shut == left).all()) or (
                self.patient.inputs.endswith("allowed") and bool((shut == (left | ~self.allowed)).all())
            ):
                told = "the first query is aligned with the first key, and the last query misses the newest keys"
                return self.wrong("top-left-causal", told)
        if bool((shut | ~hidden).all()):
            if bool((shut == hidden).all()):
                return None
            own = torch.eye(*shut.shape[-2:], dtype=torch.bool).roll(shut.size(-1) - shut.size(-2), 1)
            if bool((shut & own)[:, :, 1:][~hidden[:, :, 1:] & own[1:]].all()) and bool((shut & own).any()):
                self.wrong(None, "no query sees its own token")
            elif self.patient.inputs != "x" and not self.patient.causal:
                self.inside.unclear.append("more is hidden than the mask says")
            return None
        by_mask = bool((hidden != hidden[:1]).any()) or not self.patient.causal
        if bool((shut == ~hidden).all()) or (bool((shut | hidden).all()) and bool((hidden & ~shut).any())):
            return self.wrong("mask-polarity", "what may be seen is hidden, and what may not is seen")
        if by_mask and bool((shut == hidden[:1]).all()):
            return self.wrong("only-first-item", "every item is masked as the first one of the batch is")
        if by_mask and items * heads == hidden[:, 0].size(0) * heads:
            turned = hidden[:, 0][torch.arange(items * heads) % items].view(items, heads, *shut.shape[-2:])
            if bool((shut == turned).all()) and bool((turned != hidden).any()):
                told = (
                    "masks are repeated item after item, where every head of an item needs the same: they are mixed up"
                )
                return self.wrong("batch-indexed-for-head", told)
        leak = hidden & ~shut
        values, others = self.rest[leak], self.rest[~hidden & ~shut]
        at = 0.0 if not others.numel() else others.median().item()
        if not shut.any():
            for level, rest, cause, told in (
                (1.0, 0.0, "boolean-mask-added", "the mask of what is hidden is added: those scores grow by one"),
                (0.0, 1.0, "float-mask-of-ones", "zeros and ones are added: what is hidden stays only one behind"),
            ):
                if self.near(values, torch.full_like(values, level)) and self.near(
                    others, torch.full_like(others, rest)
                ):
                    return self.wrong(cause, told)
        if bool((values < at - 20).all()):
            self.inside.unclear.append("what should be hidden is only lowered")
            return None
        if self.near(call.weights * hidden, torch.zeros_like(call.weights)):
            if self.near(call.weights, call.softmax * ~hidden):
                told = "the weights are masked after the softmax, and no longer sum to one"
                return self.wrong("mask-after-softmax", told)
            return None
        if not shut.any():
            if by_mask:
                return self.wrong("padding-ignored", "the mask is ignored")
            return self.wrong("no-causal-mask", "no query is kept from later keys")
        nxt = torch.ones(shut.shape[-2:], dtype=torch.bool).triu(2 + shut.size(-1) - shut.size(-2))
        if not by_mask and bool((shut | ~nxt).all()) and not bool((shut & future & ~nxt).any()):
            return self.wrong(None, "each query sees one token of the future")
        self.wrong(None, "some keys that should be hidden are seen")
        return None

    def after(self, call: Call, hidden: Tensor | None) -> None:
        """Ask whether the weights are used as the softmax gave them."""
        if self.near(call.softmax, call.weights):
            return
        sums = call.weights.sum(-1)
        if hidden is not None and self.near(sums, torch.ones_like(sums)):
            shown = call.softmax * ~hidden
            if self.near(call.weights, shown / shown.sum(-1, keepdim=True)):
                return
        self.inside.unclear.append("weights are changed between the softmax and the values")

    def sloped(self, added: Tensor, shut: Tensor) -> None:
        """Find a bias that grows with the distance by ALiBi's own slopes."""
        heads, queries, keys = added.shape
        if queries != keys or heads < 2 or queries < 3:
            return
        row = added[:, -1] - added[:, -1, -1:]
        open_row = ~shut[:, :, -1].any(0)
        if not bool(open_row.all()):
            return
        steps = row[:, :-1] - row[:, 1:]
        slope = steps.mean(-1)
        if self.near(steps, slope[:, None].expand_as(steps)) and bool((slope > 1e-6).all()):
            ratio = slope[1:] / slope[:-1]
            if self.near(ratio, ratio[:1].expand_as(ratio)) and abs(ratio[0].item() - 1) > 1e-3:
                self.wrong("alibi-sign", "the bias grows with the distance: what is far is preferred")

    def merging(self, base: _Run) -> None:
        """Change one token's context, and ask which outputs move."""
        places = base.calls
        if any(call.context.size(2) < 2 for call in places):
            return

        def put(call: Call) -> Callable[[Tensor], Tensor]:
            def change(result: Tensor) -> Tensor:
                flat = result.reshape(-1).clone()
                flat[call.index[0, :, 1].reshape(-1)] += 1.0 + torch.arange(call.index[0, :, 1].numel()) % 7
                return flat.view(result.shape)

            return change

        other = self.run(base.case, {call.place: put(call) for call in places})
        moved = _moved(base.output, other.output)
        if bool(moved[1:].any()):
            self.inside.unclear.append("a token's context reaches other items")
            return
        tokens = set(moved[0].nonzero().flatten().tolist())
        if tokens <= {1}:
            return
        heads, count = base.call.context.shape[1:3]
        bare = {(h * count + 1) // heads for h in range(heads)}
        if len(places) == 1 and tokens == bare:
            told = "the heads are merged without transposing back: a token's output is read off other tokens"
            self.wrong("merge-without-transpose", told)
        else:
            self.inside.unclear.append("a token's context reaches other tokens' outputs")

    def projecting(self, base: _Run) -> None:
        """Ask how queries, keys and values were made: whether they turn with their places, and from which rows."""
        call = base.call
        width = max(x.size(-1) for x in (base.case.query, base.case.key, base.case.value))
        items = max(width, call.query.size(-1), call.value.size(-1)) + 9
        taken = {call.query.size(1), self.patient.tokens, width, call.query.size(1) * call.query.size(-1)}
        while items in taken or any(items % n == 0 for n in taken if n > 1):
            items += 1
        same = self.find(self.run(self.case(items, same=True)))
        if len(same.calls) != len(base.calls):
            raise _Unseen("other sizes run through other code")
        same = self.without_memory(same)
        self.turning(same.call)
        self.rows(same)

    def turning(self, call: Call) -> None:
        """Give every place the same content: what differs is the place's own."""
        turns: dict[str, Tensor | None] = {n: self.turn(getattr(call, n)) for n in ("query", "key", "value")}
        q, k, v = turns["query"], turns["key"], turns["value"]
        if v is not None and not _still(v):
            self.wrong(None, "values are turned with their places, as queries and keys may be")
            return
        for name, turn in turns.items():
            if turn is None:
                self.inside.unclear.append(f"how a place changes its {name} is no linear map")
        if q is None or k is None or (_still(q) and _still(k)):
            return
        if q.shape != k.shape:
            return
        both = q.mT @ k  # heads tokens features features
        if not self.near(both, both[:, :1].expand_as(both), both.abs().max().item()):
            told = "a query and a key at one place are turned differently: scores depend on more than the distance"
            if _still(q) or _still(k):
                told = f"only {'keys' if _still(q) else 'queries'} are turned with their places"
            self.wrong(None, told)

    def turn(self, x: Tensor) -> Tensor | None:
        """The matrix that makes features at each place of those at the first: (heads, tokens, features, features)."""
        heads, tokens, dim = x.shape[1:]
        centred = (x - x.mean(0)).permute(1, 2, 0, 3)  # heads tokens items features
        first = centred[:, :1].expand_as(centred)
        if self.near(first, centred, centred.abs().max().item()):
            return torch.eye(dim, dtype=x.dtype).expand(heads, tokens, dim, dim)
        inverse = torch.linalg.pinv(centred[:, :1], rtol=1e-9 if not self.rough else 1e-4)
        turn: Tensor = inverse @ centred
        if not self.near(first @ turn, centred, centred.abs().max().item() * 10):
            return None
        return turn

    def rows(self, same: _Run) -> None:
        """Find of which parameters' rows queries, keys and values are made, and judge scale and order by them."""
        made = _Made(self, same)
        call = same.call
        unused = _unused(self.patient, self.case(2))
        for name in unused:
            weight = name.removesuffix("bias") + "weight"
            if name.endswith("bias") and weight in self.patient.target.tensors.keys() - unused:
                self.wrong("zero-bias-parity", f"{name} is never added, which biases of zero hide")
        if made.flipped:
            told = f"multiplied by {made.flipped} as it is kept, not by its transpose"
            self.wrong("weight-not-transposed", told)
        for role, others in (("value", ("query", "key")), ("key", ("query",)), ("query", ("key",))):
            for other in others:
                if made.full(role) and torch.equal(made.ids[role], made.ids[other]) and made.left(role, unused):
                    cause = "wrong-value" if role == "value" else None
                    return self.wrong(cause, f"the {other}'s projection passed as the {role}'s, which is never used")
        if appended(self.patient.target.tensors) and not self.memory:
            self.inside.unclear.append("what bias_k and bias_v are for")
        if not self.inside.wrong:
            self.output(same, unused)
            self.order(made, call)
        if self.scale is not None:
            self.scaling(made, call)
        return None

    def output(self, same: _Run, unused: set[str]) -> None:
        """Where the output is the merged context times a matrix, ask which."""
        call, target = same.call, self.patient.target
        merged = call.context.transpose(1, 2).flatten(2)
        by_feature = call.context.permute(0, 2, 3, 1).flatten(2)
        for rest in (torch.zeros_like(same.output), same.case.query):
            if rest.shape != same.output.shape:
                continue
            y = same.output - rest
            size = y.abs().max().item()
            if self.near(y, merged, size):
                lost = [n for n in unused if target.tensors[n].dim() == 2 and role_of(n) == "out"]
                if lost:
                    self.wrong("missing-out-proj", f"the output projection is left out: {lost[0]} is never used")
                return
            for name, tensor in target.tensors.items():
                owner = target.owners[name]
                if not isinstance(owner, nn.Linear) or tensor is not owner.weight or name in unused:
                    continue
                matrix = tensor.detach()
                if matrix.shape != (y.size(-1), merged.size(-1)):
                    continue
                bias = 0 if owner.bias is None else owner.bias.detach()
                if self.near(y, merged @ matrix.mT + bias, size):
                    return
                if call.context.size(1) > 1 and self.near(y, by_feature @ matrix.mT + bias, size):
                    self.inside.unclear.append("its heads are merged feature by feature")
                elif matrix.size(0) == matrix.size(1) and self.near(y, merged @ matrix + bias, size):
                    self.wrong("weight-not-transposed", f"multiplied by {name} as it is kept, not by its transpose")

    def order(self, made: _Made, call: Call) -> None:
        """Compare the heads of queries, keys and values: which rows each is made of."""
        heads, dim = call.query.size(1), call.query.size(-1)
        declared = self.patient.num_heads or made.heads
        if declared and heads != declared and dim == declared and heads * dim == declared * heads:
            told = f"the view has heads and head_dim exchanged: there are {heads} heads of {dim} features"
            return self.wrong("swapped-view", told)
        if heads < 2:
            return None
        kinds = {role: made.kind(role) for role in ("query", "key", "value")}
        if made.full("query") and len(set(made.groups("query"))) == 1:
            return self.wrong(None, "every head's queries are made of the same rows: the heads are one head")
        if {"in a row", "apart"} <= {kinds["query"], kinds["key"]}:
            which = "query" if kinds["query"] == "apart" else "key"
            told = f"the {which}'s view has heads and head_dim exchanged: a head takes one feature of every {heads}"
            return self.wrong("swapped-view", told)
        ranks = {role: made.ranks(role) for role in ("key", "value") if made.full(role)}
        if len(ranks) < 2:
            return None
        count = max(ranks["key"]) + 1
        if 1 < count < heads and max(ranks["value"]) + 1 == count:
            right = [h * count // heads for h in range(heads)]
            dealt = [h % count for h in range(heads)]
            if ranks["key"] != ranks["value"]:
                told = "a query head's keys and values come from different key heads"
                return self.wrong("repeat-for-repeat-interleave", told)
            if ranks["key"] == dealt and call.copied:
                told = "the heads of keys and values are dealt out in turn: neighbors among the query heads share none"
                return self.wrong("repeat-for-repeat-interleave", told)
            if ranks["key"] not in (right, dealt):
                self.inside.unclear.append(f"query heads have the key heads {ranks['key']}")
        return None

    def scaling(self, made: _Made, call: Call) -> None:
        """Judge the factor between rows times rows and scores."""
        assert self.scale is not None
        dim, tensors = call.query.size(-1), self.patient.target.tensors
        q, k = made.factor("query"), made.factor("key")
        if q is None or k is None:
            plain = self.near(self.scale, torch.full_like(self.scale, dim**-0.5))
            if made.affine.get("query") and made.affine.get("key") and not plain:
                self.inside.unclear.append("by what its scores are divided")
            return None
        total = self.scale * q * k
        if self.near(total, torch.full_like(total, dim**-0.5)) or dim == 1:
            return None
        one = total[0].item()
        learned = any(t.numel() in (1, call.query.size(1)) and t.requires_grad for t in tensors.values())
        if not self.near(total, torch.full_like(total, one)):
            if not learned:
                self.inside.unclear.append("its heads divide scores by different numbers")
            return None

        def near(number: float) -> bool:
            return abs(one - number) < 1e-6 * number

        if near(1.0):
            spread = (self.added - self.added.mean((1, 2), keepdim=True)).abs().max().item()
            if spread < 1e-6 or not tensors:  # T5 adds a learned bias, and does not divide
                self.wrong("missing-scale", "the scores are not divided by the root of head_dim")
            return None
        heads, _, keys = call.scores.shape[1:]
        sizes = {self.patient.embed_dim: "embed_dim", heads: "num_heads", dim * heads: "all heads"}
        sizes |= {keys: "the number of keys", call.scores.size(0): "the batch"}
        told = [(n**-0.5, f"divided by the root of {sizes[n]}, {n}") for n in sizes if n not in (1, dim)]
        told += [(1 / n, f"divided by {sizes[n]}, {n}") for n in sizes if n not in (1, dim)]
        told += [(1 / dim, f"divided by head_dim, {dim}"), (dim**0.5, "multiplied by the root of head_dim")]
        kept = self.constants()
        told += [
            (c**-0.5, f"divided by the root of {c:g}, a part of a head") for c in kept if c < dim and dim - c in kept
        ]
        for number, how in told:
            if near(number):
                return self.wrong("wrong-d-in-scale", f"the scores are {how}, not divided by the root of {dim}")
        if learned or any(near(v) for c in kept for v in (c, c**-0.5, 1 / c)):
            return None  # its own temperature
        number = one**-2
        if abs(number - round(number)) < 1e-5 * number and number < 1e6:
            told_of = (
                f"the scores are divided by the root of {round(number)}, none of its sizes: a name read from outside"
            )
            return self.wrong("global-d-k", told_of)
        self.inside.unclear.append(f"the scores are multiplied by {one:.4g}")
        return None


class _Made:
    """Of which rows of which parameters each feature of queries, keys and values is made, at the first place.

    Attributes:
        ids: By role: (heads, features), the number of the row, -1 where none fits.
        ratio: By role: by what the row's product was multiplied.
        affine: By role: whether it is an affine map of what layers took.
        flipped: A matrix of nn.Linear that was multiplied without being transposed.
        heads: The number of heads that the module declares.
    """

    def __init__(self, look: _Look, same: _Run):
        self.ids: dict[str, Tensor] = {}
        self.ratio: dict[str, Tensor] = {}
        self.affine: dict[str, bool] = {}
        self.flipped: str | None = None
        target, call = look.patient.target, same.call
        tensors = {n: t.detach() for n, t in target.tensors.items()}
        counts = head_counts(target, tensors, look.patient.embed_dim)
        self.heads = counts[0] if len(counts) == 1 else None
        inputs = _inputs(same)
        blocks: list[tuple[str, bool, Tensor]] = []  # name, whether turned against nn.Linear, (rows, in)
        widths = {z.size(-1) for z in inputs}
        for name, tensor in tensors.items():
            for turned, matrix in _unfolded(tensor, widths):
                fixed = isinstance(target.owners[name], nn.Linear | nn.Conv1d | nn.Conv2d)
                blocks.append((name, turned and fixed, matrix))
        blocks += [("", False, torch.eye(width, dtype=call.query.dtype)) for width in sorted(widths) if width <= 256]
        offsets, total = [], 0
        for _, _, matrix in blocks:
            offsets.append(total)
            total += matrix.size(0)
        self.blocks, self.offsets, self.total = blocks, offsets, total
        limit = 1e-3 if look.rough else 1e-9
        features: dict[str, Tensor] = {}
        for role in ("query", "key", "value"):
            x = getattr(call, role)[:, :, 0]
            features[role] = (x - x.mean(0)).flatten(1)  # items, heads * features
            self.ids[role] = torch.full((features[role].size(1),), -1)
            self.ratio[role] = torch.full((features[role].size(1),), math.nan, dtype=x.dtype)
        for z in inputs:
            for (_, turned, matrix), offset in zip(blocks, offsets, strict=True):
                if matrix.size(1) != z.size(-1):
                    continue
                u = z @ matrix.mT
                norm = u.norm(dim=0)
                for role, x in features.items():
                    size = x.norm(dim=0)
                    fit = (x / size.clamp(min=1e-30)).mT @ (u / norm.clamp(min=1e-30))
                    best, row = fit.abs().max(-1)
                    hit = (1 - best < limit) & ((self.ids[role] < 0) | torch.tensor(not turned & False))
                    hit &= self.ids[role] < 0
                    sign = fit.gather(1, row[:, None])[:, 0].sign()
                    self.ids[role] = torch.where(hit, row + offset, self.ids[role])
                    self.ratio[role] = torch.where(hit, sign * size / norm[row].clamp(min=1e-30), self.ratio[role])
        joined = torch.cat(inputs, -1) if inputs else None
        for role, x in features.items():
            shape = getattr(call, role).shape
            self.ids[role] = self.ids[role].view(shape[1], shape[3])
            self.ratio[role] = self.ratio[role].view(shape[1], shape[3])
            self.affine[role] = bool((self.ids[role] >= 0).all())
            if not self.affine[role] and joined is not None and joined.size(1) < x.size(0):
                solved = torch.linalg.pinv(joined, rtol=1e-10) @ x
                self.affine[role] = look.near(joined @ solved, x, 10 * x.abs().max().item())
            used = {self.block(int(i)) for i in self.ids[role].flatten() if i >= 0}
            names = [blocks[b][0] for b in used if blocks[b][1] and blocks[b][2].size(0) == blocks[b][2].size(1)]
            self.flipped = self.flipped or (names[0] if names else None)

    def block(self, row: int) -> int:
        return max(b for b, offset in enumerate(self.offsets) if offset <= row)

    def full(self, role: str) -> bool:
        """Whether every feature has a row."""
        return bool((self.ids[role] >= 0).all())

    def left(self, role: str, unused: set[str]) -> bool:
        """Whether a matrix, or rows of a packed one, that this role's name or place means are never used."""
        if any(role_of(name) == role for name in unused):
            return True
        used = {int(i) for ids in self.ids.values() for i in ids.flatten() if i >= 0}
        for (name, turned, matrix), offset in zip(self.blocks, self.offsets, strict=True):
            rows = used & set(range(offset, offset + matrix.size(0)))
            if rows and not turned and name not in unused and len(rows) < matrix.size(0):
                missing = matrix.size(0) - len(rows)
                if missing == self.ids[role].unique().numel() and role_of(name) in ("qkv", "kv", "?"):
                    return True
        return False

    def groups(self, role: str) -> list[frozenset[int]]:
        return [frozenset(head.tolist()) for head in self.ids[role]]

    def ranks(self, role: str) -> list[int]:
        """The place of each head's rows among all that there are."""
        groups = self.groups(role)
        order = sorted(set(groups), key=min)
        return [order.index(group) for group in groups]

    def kind(self, role: str) -> str:
        """Whether a head's rows stand in a row, or apart by the number of heads."""
        ids = self.ids[role]
        if not self.full(role) or ids.size(1) < 2:
            return "unknown"
        steps = ids.sort(-1).values.diff(dim=-1)
        if bool((steps == 1).all()):
            return "in a row"
        return "apart" if bool((steps == ids.size(0)).all()) else "unknown"

    def factor(self, role: str) -> float | None:
        """By what all rows of this role are multiplied."""
        ratio = self.ratio[role]
        if not self.full(role):
            return None
        one = ratio.flatten()[0].item()
        return one if bool(((ratio - one).abs() < 1e-6 * max(abs(one), 1e-6)).all()) else None


def _unfolded(tensor: Tensor, widths: set[int]) -> list[tuple[bool, Tensor]]:
    """Read a parameter as (rows, in) in each way that its shape allows, and say whether that turns it."""
    if tensor.dim() < 2 or not tensor.is_floating_point():
        return []
    squeezed = tensor.flatten(1) if tensor.dim() > 2 and tensor[0, 0].numel() == 1 else tensor
    found = []
    for axis in range(squeezed.dim() - 1, -1, -1):
        if squeezed.size(axis) in widths:
            found.append((axis != squeezed.dim() - 1, squeezed.movedim(axis, -1).reshape(-1, squeezed.size(axis))))
    return found


def _inputs(run: _Run) -> list[Tensor]:
    """What layers took before the first score, at the first place, less its mean: (batch, features), each once."""
    items, tokens = run.case.query.shape[:2]
    first = min(call.first for call in run.calls)
    used = {i for call in run.calls for i in call.used}
    found: list[Tensor] = []
    given = [run.case.query, run.case.key, run.case.value]
    taken = [x for i, e in enumerate(run.events[:first]) if i not in used and e.kind != "softmax" for x in e.given[:1]]
    for x in [*given, *taken]:
        if x.dim() == 4 and x.size(-1) == 1:
            x = x[..., 0]
        if x.dim() == 3 and x.shape[0] == items and x.shape[1] in (tokens, run.case.key.size(1)):
            z = x[:, 0]
        elif x.dim() == 3 and x.shape[1] == items and x.shape[0] in (tokens, run.case.key.size(1)):
            z = x[0]
        elif x.dim() == 3 and x.shape[0] == items and x.shape[2] in (tokens, run.case.key.size(1)):
            z = x[..., 0]
        elif x.dim() == 2 and x.shape[0] == items * tokens:
            z = x.view(items, tokens, -1)[:, 0]
        else:
            continue
        z = z - z.mean(0)
        if not any(z.shape == old.shape and torch.allclose(z, old) for old in found) and bool(z.abs().max() > 0):
            found.append(z)
    return found[:12]


def _unused(patient: Patient, case: Case) -> set[str]:
    """Names of the parameters that the output does not hang on, as far as autograd sees."""
    target = patient.target
    names = [n for n, t in target.tensors.items() if t.requires_grad and t.is_leaf]
    if not names:
        return set()
    with torch.enable_grad():
        try:
            if patient.inputs == "x":
                output = target(case.query)
            else:
                output = target(case.query, case.key, case.value, allowed=case.allowed)
            given = torch.autograd.grad(output.square().sum(), [target.tensors[n] for n in names], allow_unused=True)
        except Exception:
            return set()
    return {name for name, grad in zip(names, given, strict=True) if grad is None}


def _other_token(x: Tensor) -> Tensor:
    x = x.clone()
    x[0, 1] = x[0, 1].flip(-1) + 0.5
    return x


def _moved(before: Tensor, after: Tensor) -> Tensor:
    """Which tokens differ: without the axis of features, and of heads if there is one."""
    size = before.abs().max().item()
    limit = 1e-10 if before.dtype == torch.float64 else 1e-4
    return ((before - after).abs() > limit * max(size, 1e-3)).any(-1)


def _elsewhere(before: Tensor, after: Tensor) -> bool:
    """Whether anything moved but what belongs to token 1 of the first item."""
    if before.shape != after.shape:
        return True
    moved = _moved(before, after)
    moved[0, :, 1] = False
    return bool(moved.any())


def _still(turn: Tensor) -> bool:
    eye = torch.eye(turn.size(-1), dtype=turn.dtype)
    return bool(((turn - eye).abs() < 1e-6).all())
