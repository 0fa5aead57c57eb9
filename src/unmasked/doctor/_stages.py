"""Attention judged stage by stage, by what its own forward pass multiplies: for modules that no whole reference fits.

What a stage takes is taken as given, and what it gives is compared with what is right: so norms before it, residuals
around it, positions within it and layers behind it need no reference of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from unmasked.doctor._chains import judge_chains
from unmasked.doctor._linear import judge_linear
from unmasked.doctor._look import Inside, Look, Run, Unseen, elsewhere, moved, other_token
from unmasked.doctor._observed import Call
from unmasked.doctor._patient import Patient, said
from unmasked.doctor._pieces import judge_padding, judge_pieces
from unmasked.doctor._rows import Rows
from unmasked.doctor._weighing import Weighing

__all__ = ["Inside", "look", "weigh"]


def look(patient: Patient) -> Inside:
    """Watch a forward pass, and judge what was seen."""
    inside = Inside()
    try:
        _Stages(Look(patient, inside)).judge()
    except Unseen as why:
        inside.unclear.append(str(why))
    except Exception as error:  # code like none that was seen: what it raises is told, never raised
        inside.unclear.append(f"watching it raised {said(error)}")
    return inside


def weigh(patient: Patient) -> Inside:
    """Watch a forward pass, and judge what becomes of its scores alone."""
    inside = Inside()
    try:
        seen = Look(patient, inside)
        base = seen.find(seen.run(seen.case(patient.items)))
        if base.calls:
            Weighing(seen, base).judge()
    except Exception as error:  # as above
        inside.unclear.append(f"watching it raised {said(error)}")
    return inside


class _Stages:
    """Asks about one stage after the other."""

    def __init__(self, look: Look):
        self.look = look

    def judge(self) -> None:
        if not self.look.patient.options.own:
            self.look.longer = 3
        try:
            base = self.look.find(self.look.run(self.look.case(self.look.patient.items)))
        except Exception:
            if not self.look.longer:
                raise
            self.look.longer = 0
            base = self.look.find(self.look.run(self.look.case(self.look.patient.items)))
        judge_padding(self.look)
        if not base.calls or not self.exponentials(base):
            judge_linear(self.look, base)
            judge_pieces(self.look, base)
            return
        other = self.look.find(self.look.run(self.look.changed(base.case, other_token)))
        if len(base.calls) > 1:
            self.independent(base)
        if len(other.calls) != len(base.calls):
            raise Unseen("what it does depends on its input")
        if not self.local(base, other):
            self.look.turned = True
            turned = [self.look.find(replace(run, calls=[])) for run in (base, other)]
            if turned[0].calls and len(turned[0].calls) == len(turned[1].calls) and self.local(*turned):
                base, other = turned
            else:
                self.look.turned = False
        if not Weighing(self.look, base).fits():
            self.look.sums = True
            summed = [self.look.find(replace(run, calls=[])) for run in (base, other)]
            if summed[0].calls and summed[1].calls and Weighing(self.look, summed[0]).fits():
                base, other = summed
            else:
                self.look.sums = False
        base, other = self.look.without_memory(base), self.look.without_memory(other)
        self.look.inside.seen = True
        self.places(base, other)
        garbled = bool(self.look.inside.wrong)
        if not garbled:
            self.sources(base)
        Weighing(self.look, base).judge()
        self.padded(base)
        self.merging(base)
        self.passing(base, other)
        if not garbled:
            judge_chains(self.look, base)
            self.projecting(base)
        if self.look.longer and not self.look.inside.wrong:
            self.look.longer = 0  # what is as many may be taken for what is not
            square = self.look.find(self.look.run(self.look.case(self.look.patient.items)))
            if len(square.calls) == len(base.calls):
                Weighing(self.look, self.look.without_memory(square)).judge()

    def exponentials(self, base: Run) -> bool:
        """Whether weights that no softmax of PyTorch made are exponentials of the products, or sum to one in a row."""
        call = base.calls[0]
        if call.at != call.place or call.over in ("keys", "logarithms"):
            return True
        shut, weighing = ~call.scores.isfinite(), Weighing(self.look, base)
        if weighing.fitted(call.product, call.scores, shut) is not None:
            return True
        if call.over == "heads" or shut.any():
            return call.over != "nothing"
        rows = [x - x.mean(-1, keepdim=True) for x in (call.product, call.scores)]  # divided by a number for each key
        product, scores = (x - x.mean(-2, keepdim=True) for x in rows)
        return weighing.fitted(product, scores, shut) is not None

    def independent(self, base: Run) -> None:
        shapes = {(tuple(c.query.shape), tuple(c.value.shape)) for c in base.calls}
        if len(shapes) > 1:
            raise Unseen("it has several calls of attention, of different sizes")
        first = base.calls[0]
        other = self.look.find(self.look.run(base.case, {first.place: lambda x: x + 1}))
        if len(other.calls) != len(base.calls) or any(
            not self.look.near(a.query, b.query) or not self.look.near(a.value, b.value)
            for a, b in zip(base.calls[1:], other.calls[1:], strict=True)
        ):
            raise Unseen("it has several calls of attention, one after the other")

    def local(self, base: Run, other: Run) -> bool:
        """Whether a changed token moves its own query, key and value alone."""
        return not any(elsewhere(getattr(base.call, n), getattr(other.call, n)) for n in ("query", "key", "value"))

    def places(self, base: Run, other: Run) -> None:
        """Ask where the queries, keys and values come from."""
        spread = []
        if self.misplaced(base, other):
            return None
        for name in ("query", "key", "value"):
            before, after = getattr(base.call, name), getattr(other.call, name)
            if not elsewhere(before, after):
                continue
            items, heads, tokens, _ = before.shape
            flat = [x.reshape(items, tokens, 1, -1).transpose(1, 2) for x in (before, after)]
            if items > 1 and name != "query" and self.look.near(before[1:], before[:1].expand_as(before[1:])):
                told = f"every item's queries meet the first item's {name}s"
                return self.look.wrong("only-first-item", told)
            if heads > 1 and not elsewhere(*flat):
                spread.append(name)
                continue
            if name != "value" and (_even(before, 2) or _even(before - before.mean(2, keepdim=True), 2)):
                told = "queries and keys are normalized over the tokens, not over the features"
                return self.look.wrong(None, told)
            self.look.inside.unclear.append(f"a token's {name} depends on other tokens")
        if spread:
            told = f"a view alone splits {' and '.join(spread)} into heads: a head takes whole tokens"
            self.look.wrong("view-without-transpose", told)
        return None

    def misplaced(self, base: Run, other: Run) -> bool:
        """Find tokens that share one query, key or value, and keys that stand in another order than values."""
        stands = {}
        for name in ("query", "key", "value"):
            before, after = getattr(base.call, name), getattr(other.call, name)
            if before.shape != after.shape or before.size(2) < 3:
                continue
            first = before[:, :, :1].expand_as(before)
            given = getattr(base.case, name)
            if self.look.near(before, first) and given.size(1) == before.size(2):
                if not self.look.near(before[:1].expand_as(before), before):  # it is no parameter
                    plural = "queries" if name == "query" else f"{name}s"
                    self.look.wrong(None, f"all tokens of an item have the same {name}: their {plural} are made of one")
                    return True
                continue
            which = moved(before, after)
            places = which[0].any(0).nonzero().flatten().tolist()
            if not which[1:].any() and len(places) == 1 and which[0, :, places[0]].all():
                stands[name] = places[0]
        if {"key", "value"} <= stands.keys() and stands["key"] != stands["value"]:
            told = "keys and values stand in different orders: a token's value is weighed by another token's key"
            self.look.wrong(None, told)
            return True
        return False

    def padded(self, base: Run) -> None:
        """Hide a key from every query of an item, as padding is hidden: queries of their own are not hidden for it."""
        if not self.look.patient.options.masked or self.look.inside.wrong or self.look.inside.unclear:
            return
        items, queries, keys = base.case.query.size(0), base.case.query.size(1), base.case.key.size(1)
        allowed = torch.ones(items, queries, keys, dtype=torch.bool)
        each = torch.arange(items) if self.look.patient.target.mask_axes != 2 else torch.zeros(items, dtype=torch.long)
        allowed[torch.arange(items), :, 1 + each % (keys - 1)] = False
        if self.look.patient.causal:
            allowed &= torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        run = self.look.find(self.look.run(replace(base.case, allowed=allowed)))
        if len(run.calls) == len(base.calls):
            causal = self.look.inside.causal
            Weighing(self.look, self.look.without_memory(run)).judge()
            self.look.inside.causal = causal

    def sources(self, base: Run) -> None:
        """Change one input alone, and ask which of queries, keys and values are made of it."""
        given = {"query": base.case.query, "key": base.case.key, "value": base.case.value}
        if self.look.patient.options.own:
            return
        inputs = [name for name, x in given.items() if name != "value" or x is not base.case.key]
        made: dict[str, list[str]] = {role: [] for role in given}
        for name in inputs:
            case = self.look.changed(base.case, lambda x, own=given[name]: x.flip(-1) + 0.1 if x is own else x)  # type: ignore[misc]
            other = self.look.find(self.look.run(case))
            if len(other.calls) != len(base.calls):
                raise Unseen("what it does depends on its input")
            other = self.look.without_memory(other)
            for role in given:
                if not self.look.near(getattr(base.call, role), getattr(other.call, role)):
                    made[role].append(name)
        for role, names in made.items():
            own = role if role in inputs else "key"
            if names == [own]:
                continue
            both = len(inputs) == 2 and made["query"] == ["key"] and made["key"] == ["query"]  # its own order of inputs
            if len(names) == 1 and not both:
                called = {"query": "its tokens", "key": "its context"} if len(inputs) == 2 else {}
                one, another = (called.get(name, f"what it is given as {name}") for name in (names[0], own))
                plural = "queries" if role == "query" else f"{role}s"
                told = f"its {plural} are made of {one}, not of {another}"
                self.look.wrong("wrong-value" if role == "value" else None, told)
            else:
                self.look.inside.unclear.append(f"of what its {role}s are made: of {' and '.join(names) or 'no input'}")

    def merging(self, base: Run) -> None:
        """Change one token's context, and ask which outputs move."""
        if any(call.context.size(2) < 2 for call in base.calls):
            return

        def put(places: Tensor) -> Callable[[Tensor], Tensor]:
            def change(result: Tensor) -> Tensor:
                flat = result.reshape(-1).clone()
                flat[places.reshape(-1)] += 1.0 + torch.arange(places.numel()) % 7
                return flat.view(result.shape)

            return change

        changed = self.look.run(base.case, {call.place: put(call.index[0, :, 1]) for call in base.calls})
        which = moved(base.output, changed.output)
        heads, count = base.call.context.shape[1:3]
        tokens = set(which[0].nonzero().flatten().tolist())
        if bool(which[1:].any()):
            items = len(which)
            places = [list(divmod(1, items))[::-1], list(divmod(items, count))]  # of one in a view as the other
            if which.nonzero().tolist() in [[place] for place in places]:
                told = "a view exchanges batch and tokens of what attention gives: outputs are those of other items"
                self.look.wrong("batch-and-tokens-swapped", told)
            else:
                self.look.inside.unclear.append("a token's context reaches other items")
        elif not tokens <= {1}:
            if len(base.calls) == 1 and tokens == {(h * count + 1) // heads for h in range(heads)}:
                told = "the heads are merged without transposing back: a token's output is read off other tokens"
                self.look.wrong("merge-without-transpose", told)
            else:
                told = "a token's context reaches other tokens' outputs"
                if 1 in tokens or not tokens or self.look.inside.unclear:
                    self.look.inside.unclear.append(told)
                else:
                    self.look.wrong(None, f"{told}, and not its own: outputs stand at other places than their tokens")
        self.blurred(base)
        for call in base.calls:
            for places in call.index[0, :, 1]:  # of one head
                alone = self.look.run(base.case, {call.place: put(places)})
                if not bool(moved(base.output, alone.output).any()):
                    self.look.wrong(None, "what one of the heads gives reaches no output")
                    return

    def blurred(self, base: Run) -> None:
        """Ask whether a layer behind takes the same from every head."""
        heads, _, dim = base.call.context.shape[1:]
        if self.look.near(base.call.context, base.call.context[:, :1].expand_as(base.call.context)):
            return  # heads that are the same are another question
        last = max(call.place for call in base.calls)
        for event in base.events[last + 1 :]:
            taken = event.given[0]
            if heads > 1 and event.kind != "softmax" and taken.dim() > 1 and taken.size(-1) == heads * dim:
                parts = taken.unflatten(-1, (heads, dim))
                if self.look.near(parts, parts[..., :1, :].expand_as(parts)):
                    self.look.wrong(
                        None, "the heads' outputs are averaged and repeated, where they belong side by side"
                    )
                return

    def passing(self, base: Run, other: Run) -> None:
        """Keep what attention gives, change one token, and ask which outputs move by another way."""

        def put(result: Tensor) -> Callable[[Tensor], Tensor]:
            return lambda _: result

        kept = self.look.run(other.case, {c.place: put(base.events[c.place].result) for c in base.calls})
        if kept.output.shape != base.output.shape or self.look.inside.wrong:
            return
        which = moved(base.output, kept.output)
        tokens = set(which[0].nonzero().flatten().tolist())
        heads, count = base.call.context.shape[1:3]
        others = bool(which[1:].any())
        if tokens <= {1} and not others:
            return
        if heads > 1 and not others and tokens | {1} == {n % count for n in range(heads, 2 * heads)} | {1}:
            told = "what comes to the heads beside attention is split by a view alone: other tokens reach in"
            self.look.wrong("view-without-transpose", told)
        elif not others and 1 not in tokens and not self.look.inside.unclear:
            told = "what passes by beside attention comes to other tokens' outputs, and not to its own"
            self.look.wrong(None, told)
        else:
            self.look.inside.unclear.append("a token reaches other tokens beside attention")

    def projecting(self, base: Run) -> None:
        """Ask how queries, keys and values were made: whether they turn with their places, and from which rows."""
        call = base.call
        width = max(x.size(-1) for x in (base.case.query, base.case.key, base.case.value))
        items = max(width, call.query.size(-1), call.value.size(-1)) + 9
        taken = {call.query.size(1), self.look.patient.tokens, width, call.query.size(1) * call.query.size(-1)}
        while items in taken or any(items % n == 0 for n in taken if n > 1):
            items += 1
        same = self.look.find(self.look.run(self.look.case(items, same=True)))
        if len(same.calls) != len(base.calls):
            raise Unseen("other sizes run through other code")
        same = self.look.without_memory(same)
        self.turning(same.call)
        Rows(self.look).judge(same)

    def turning(self, call: Call) -> None:
        """Give every place the same content: what differs is the place's own."""
        turns: dict[str, Tensor | None] = {n: self.turn(getattr(call, n)) for n in ("query", "key", "value")}
        q, k, v = turns["query"], turns["key"], turns["value"]
        if v is not None and not _still(v):
            if _rotates(v):
                self.look.wrong(None, "values are turned with their places, as queries and keys may be")
            else:  # such as a convolution over tokens, which has zeros before the first
                self.look.inside.unclear.append("its values change with their places, by no rotation")
            return
        for name, other in (("key", "query"), ("query", "key")):
            if turns[name] is None and turns[other] is not None and self.turned_with(call, name, other):
                plural = {"key": "keys", "query": "queries"}
                told = f"{plural[name]} are turned with their places into the {plural[other]}: a part of one is added"
                self.look.wrong(None, f"{told} to the other")
                return
        for name, turn in turns.items():
            if turn is None:
                self.look.inside.unclear.append(f"how a place changes its {name} is no linear map")
        if q is None or k is None or (_still(q) and _still(k)):
            return
        if q.shape != k.shape:
            return
        for name, turn in (("query", q), ("key", k)):
            if not _still(turn) and self.look.near(turn[:, 1:-1], turn[:, 1:2].expand_as(turn[:, 1:-1])):
                self.look.inside.unclear.append(f"its {name} changes at the ends alone, as by a convolution")
                return
        both = q.mT @ k  # heads tokens features features
        if not self.look.near(both, both[:, :1].expand_as(both), both.abs().max().item()):
            told = "a query and a key at one place are turned differently: scores depend on more than the distance"
            cause = None
            if _still(q) or _still(k):
                told = f"only {'keys' if _still(q) else 'queries'} are turned with their places"
            elif not torch.equal(q.abs().amax((0, 1)) > 1e-6, k.abs().amax((0, 1)) > 1e-6):
                cause, told = "rope-pairing", "queries are turned in other pairs of features than keys"
            elif self.look.near(q, k) and not _still(q @ q.mT):
                cause, told = "rope-pairing", "the angles are those of one pairing, and the pairs those of the other"
            self.look.wrong(cause, told)

    def turned_with(self, call: Call, name: str, other: str) -> bool:
        """Whether what is made of one's features at the first place becomes, further on, a sum with the other's.

        So many features must not be all that both are made of, of which every map is such a sum.
        """
        centred = [(x - x.mean(0)).permute(1, 2, 0, 3) for x in (getattr(call, name), getattr(call, other))]
        own, others = centred  # heads tokens items features
        if own.shape != others.shape:
            return False
        both = torch.cat([own[:, :1], others[:, :1]], -1)
        every = torch.cat([x[head, place] for x in centred for head in range(len(x)) for place in (0, -1)], -1)
        if int(torch.linalg.matrix_rank(every, rtol=1e-6)) < both.size(-1) + 2:
            return False
        made = both @ (torch.linalg.pinv(both, rtol=1e-9 if not self.look.rough else 1e-4) @ own)
        return self.look.near(made, own, own.abs().max().item() * 10)

    def turn(self, x: Tensor) -> Tensor | None:
        """The matrix that makes features at each place of those at the first: (heads, tokens, features, features)."""
        heads, tokens, dim = x.shape[1:]
        centred = (x - x.mean(0)).permute(1, 2, 0, 3)  # heads tokens items features
        first = centred[:, :1].expand_as(centred)
        if self.look.near(first, centred, centred.abs().max().item()):
            return torch.eye(dim, dtype=x.dtype).expand(heads, tokens, dim, dim)
        inverse = torch.linalg.pinv(centred[:, :1], rtol=1e-9 if not self.look.rough else 1e-4)
        turn: Tensor = inverse @ centred
        if not self.look.near(first @ turn, centred, centred.abs().max().item() * 10):
            return None
        return turn


def _even(x: Tensor, axis: int) -> bool:
    """Whether squares along this axis sum to the same in every item, as a norm over it makes them."""
    sums = x.square().sum(axis)
    return x.size(0) > 2 and bool((sums.std(0) < 1e-3 * sums.mean(0)).all())


def _rotates(turn: Tensor) -> bool:
    """Whether lengths are kept, as by a rotation."""
    return _still(turn @ turn.mT)


def _still(turn: Tensor) -> bool:
    eye = torch.eye(turn.size(-1), dtype=turn.dtype)
    return bool(((turn - eye).abs() < 1e-6).all())
