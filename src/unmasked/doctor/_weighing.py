"""What becomes of query times key until values are averaged: the scale, what is added, what is hidden, the softmax."""

from __future__ import annotations

import torch
from torch import Tensor

from unmasked.doctor._look import Look, Run
from unmasked.doctor._observed import Call

__all__ = ["Weighing"]

_CAPS = (5, 10, 15, 20, 25, 30, 40, 50, 100)
_SHUT = -1e3  # a score as low as this hides


class Weighing:
    """Judges the weights of one run."""

    def __init__(self, look: Look, base: Run):
        self.look, self.base, self.call = look, base, base.call
        self.allowed = torch.ones(1, dtype=torch.bool)
        self.rest = torch.zeros(1)

    def judge(self) -> None:
        """Ask what becomes of the products: scale, what is added, what is hidden, the softmax and what comes after."""
        call, inside = self.call, self.look.inside
        if call.at == call.place and call.over != "keys":
            return self.by_hand()
        if call.over == "queries":
            if torch.equal(call.softmax, call.weights):
                return self.look.wrong("softmax-over-queries", "the softmax runs over the queries: columns sum to one")
            inside.unclear.append("its softmax runs over the queries, and something follows")
            return None
        if call.over == "unknown":
            inside.unclear.append("over which axis its softmax runs")
            return None
        if call.over != "keys":
            told = "the softmax does not run over the keys"
            return self.look.wrong("weights-not-normalized", told)
        hidden = self.hidden()
        scores, shut = call.scores, (call.scores <= _SHUT) | ~call.scores.isfinite()
        fitted = self.fitted(call.product, scores, shut)
        cap = None
        if fitted is None:
            for cap in self.caps():
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
            self.unfitted(shut)
            if inside.wrong:
                return None
        if fitted is None:
            inside.unclear.append("its scores are not a multiple of query times key plus something fixed")
            return None
        self.look.scale, added = fitted
        self.look.added, self.rest = added, scores - fitted[0][:, None, None] * call.product
        self.hiding(call, shut, added, hidden)
        if not inside.wrong:
            self.after(call, hidden)
            self.sloped(added, shut)
        return None

    def by_hand(self) -> None:
        """Judge exponentials that no softmax divides by the sums of their rows."""
        call, look = self.call, self.look
        cause, whose = "weights-not-normalized", {"heads": "over the heads", "queries": "over the queries"}
        if call.over == "logarithms":
            return look.wrong(cause, "the values are averaged with the logarithms of the weights")
        if call.over == "queries":
            cause = "softmax-over-queries"
        elif call.over == "nothing" and (evened := self.evened()) is not None:
            look.inside.unclear.append(evened)
            return None
        divided = f"by their sums {whose.get(call.over, 'over all queries and keys')}"
        if call.over == "nothing":
            divided = "by what is not the sum of their row"
        told = f"the exponentials of the scores are divided {divided}: the weights of a query do not sum to one"
        return look.wrong(cause, told)

    def evened(self) -> str | None:
        """Why exponentials whose rows do not sum to one may be right: what is moved by scores, and what is not."""
        call, look = self.call, self.look
        same = look.find(look.run(look.case(self.base.case.query.size(0), same=True)))
        if len(same.calls) != 1:
            return "what divides the exponentials of its scores"
        drawn = torch.randn(same.events[same.call.first].result.shape, generator=torch.Generator().manual_seed(5))

        def stirred(result: Tensor) -> Tensor:
            return result + drawn.to(result)

        other = look.run(same.case, {same.call.first: stirred})
        if look.near(other.output, same.output, same.output.abs().max().item()):
            return "its weights are divided by their sums only after the values are averaged"
        moved = look.find(look.run(self.base.case, {call.first: lambda result: result + 0.5}))
        sums = [each.call.weights.sum(-1) for each in (self.base, moved) if each.calls]
        if len(sums) == 2 and all(bool((x < 1).all()) for x in sums):  # something else counts in the sum, and stays
            step = sums[1].logit() - sums[0].logit()
            one = step.mean((0, 2), keepdim=True).expand_as(step)
            if look.near(step, one) and bool((step > 1e-6).all()):
                return "something beside its tokens counts in the sum of the weights"
        gates = look.run(self.base.case, {call.first: lambda result: result + 0.3 * self._drawn(result)})
        stirred_sums = look.find(gates)
        if stirred_sums.calls and look.near(stirred_sums.call.weights.sum(-1), call.weights.sum(-1)):
            return "the weights of a query are multiplied by a number of its own"
        return None

    @staticmethod
    def _drawn(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=torch.Generator().manual_seed(6)).to(like)

    def hidden(self) -> Tensor | None:
        """What should be hidden, as far as that is known: (batch, 1, queries, keys)."""
        call, allowed = self.call, self.base.case.allowed
        items, _, queries, keys = call.scores.shape
        hidden = None
        if allowed is not None:
            hidden = ~(allowed if allowed.dim() == 3 else allowed.expand(items, -1, -1)).unsqueeze(1)
            self.allowed = ~hidden
        if self.look.patient.causal:
            future = torch.ones(queries, keys, dtype=torch.bool).triu(1 + keys - queries).expand(items, 1, -1, -1)
            hidden = future if hidden is None else hidden | future
        return hidden if hidden is None or hidden.shape[-2:] == call.scores.shape[-2:] else None

    def fitted(self, product: Tensor, scores: Tensor, shut: Tensor) -> tuple[Tensor, Tensor] | None:
        """Find scores = c * product + added, with a number for each head, and the same for every item."""
        shown = (~shut).to(product.dtype)
        scores = scores.masked_fill(shut, 0.0)
        size = max(scores.abs().max().item(), 1e-3)
        found = self._fitted(product, scores, shown, size)
        if found is None:  # a row's maximum, or another number of its own, may have been taken off
            rows = [
                x - (x * shown).sum(-1, keepdim=True) / shown.sum(-1, keepdim=True).clamp(min=1)
                for x in (product, scores)
            ]
            found = self._fitted(rows[0], rows[1], shown, size)
        return found

    def _fitted(self, product: Tensor, scores: Tensor, shown: Tensor, size: float) -> tuple[Tensor, Tensor] | None:
        count = shown.sum(0).clamp(min=1)
        means = [(x * shown).sum(0) / count for x in (product, scores)]
        m, s = ((x - mean) * shown for x, mean in zip((product, scores), means, strict=True))
        power = m.square().sum((0, 2, 3))
        if not bool((power > 1e-12).all()):
            return None
        c = (m * s).sum((0, 2, 3)) / power
        size = max(size, product.abs().max().item() * c.abs().max().item())
        if (s - c[:, None, None] * m).abs().max().item() > (1e-3 if self.look.rough else 1e-8) * size:
            return None
        return c, means[1] - c[:, None, None] * means[0]

    def fits(self) -> bool:
        """Whether the scores are made of the products at all, before anything is judged."""
        call = self.call
        if call.over != "keys":
            return True
        shut = (call.scores <= _SHUT) | ~call.scores.isfinite()
        return self.fitted(call.product, call.scores, shut) is not None

    def unfitted(self, shut: Tensor) -> None:
        """Find what else the scores may be made of: weights, or something of each item's own."""
        call = self.call
        for event in self.base.events[call.first + 1 : call.at]:
            alike = event.kind == "softmax" and event.result.numel() == call.out.max() + 1
            if alike and self.fitted(event.result.reshape(-1)[call.out], call.scores, shut) is not None:
                return self.look.wrong(None, "a softmax is taken before the mask, and another one after it")
        if self.zeroed(shut) or self.base.case.allowed is not None or len(self.base.calls) > 1:
            return None
        turned = self.look.find(self.look.run(self.look.changed(self.base.case, lambda x: x.flip(-1) + 0.1)))
        if len(turned.calls) != 1 or turned.call.scores.shape != call.scores.shape:
            return None
        shut = shut | (turned.call.scores <= _SHUT)
        m = (call.product - turned.call.product).masked_fill(shut, 0.0)
        s = (call.scores - turned.call.scores).masked_fill(shut, 0.0)
        c = (m * s).sum((0, 2, 3)) / m.square().sum((0, 2, 3)).clamp(min=1e-30)
        if bool(c.abs().min() > 0) and self.look.near(s, c[:, None, None] * m, s.abs().max().item()):
            return self.look.wrong(None, "what is added to the scores differs from item to item")
        return None

    def zeroed(self, shut: Tensor) -> bool:
        """Whether scores are zero where they should be hidden: then a key left out outweighs one that was kept.

        A rectifier makes zeros too, but of nothing that is less than what it keeps.
        """
        call = self.call
        zero = (call.scores == 0) & (call.product.abs() > 1e-9) & ~shut
        fitted = self.fitted(call.product, call.scores, shut | zero) if bool(zero.any()) else None
        if fitted is None:
            return False
        at, kept = fitted[0][:, None, None] * call.product + fitted[1], ~zero & ~shut
        least = at.masked_fill(~(zero & (call.weights > 1e-6)), torch.inf).amin(-1)  # of what is zero, and counts
        lowest = call.scores.masked_fill(~kept, torch.inf).amin(-1)
        if not bool(((least < lowest - 1e-6) & (lowest < -1e-6)).any()):
            return False
        by_place = torch.equal(zero, zero[:1, :1].expand_as(zero))
        told = "what is left out gets the score zero, which is no mask: it counts for more than keys that were kept"
        self.look.wrong("float-mask-of-ones" if by_place else None, told)
        return True

    def caps(self) -> list[float]:
        """Numbers that scores may be capped at; what is as large as to hide is a mask's own."""
        return [*map(float, _CAPS), *(c for c in self.look.constants() if c < -_SHUT)]

    def masked_wrongly(self, call: Call, hidden: Tensor) -> tuple[Tensor, Tensor] | None:
        """Find masks that fill or multiply where they should hide."""
        hidden = hidden.expand_as(call.scores)
        fitted = self.fitted(call.product, call.scores, hidden | ~call.scores.isfinite())
        if fitted is not None:
            values = call.scores[hidden]
            if self.look.near(values, torch.zeros_like(values)):
                told = "the scores are multiplied by zeros and ones, and a score of zero is no mask"
                self.look.wrong("float-mask-of-ones", told)
            elif values.isfinite().all() and (values - values[0]).abs().max() < 1e-6:
                self.look.wrong(
                    "boolean-mask-added", f"what should be hidden gets the score {values[0]:.3g}, and is seen"
                )
            return fitted
        for cap in self.caps():
            values = call.scores[hidden]
            if self.look.near(values, torch.full_like(values, -cap), float(cap)):
                told = (
                    f"scores are capped at {cap:g} after the mask: what is hidden gets the score -{cap:g}, and is seen"
                )
                self.look.wrong("softcap-after-mask", told)
                return None
        return None

    def hiding(self, call: Call, shut: Tensor, added: Tensor, hidden: Tensor | None) -> None:
        """Compare what is hidden with what should be."""
        items, heads = shut.shape[:2]
        future = torch.ones(shut.shape[-2:], dtype=torch.bool).triu(1 + shut.size(-1) - shut.size(-2))
        self.look.inside.causal = bool(shut[..., future].all()) and bool(future.any())
        if hidden is None:
            if not self.inside_causal(shut, future):
                self.banded(shut)
            return None
        hidden = hidden.expand_as(shut)
        if self.look.patient.causal and shut.size(-1) != shut.size(-2):
            left = torch.ones(shut.shape[-2:], dtype=torch.bool).triu(1).expand_as(shut)
            if bool((shut == left).all()) or (
                self.look.patient.inputs.endswith("allowed") and bool((shut == (left | ~self.allowed)).all())
            ):
                told = "the first query is aligned with the first key, and the last query misses the newest keys"
                return self.look.wrong("top-left-causal", told)
        if bool((shut | ~hidden).all()):
            if bool((shut == hidden).all()):
                return None
            own = torch.eye(*shut.shape[-2:], dtype=torch.bool).roll(shut.size(-1) - shut.size(-2), 1)
            if bool((shut & own)[:, :, 1:][~hidden[:, :, 1:] & own[1:]].all()) and bool((shut & own).any()):
                self.look.wrong(None, "no query sees its own token")
            elif self.base.case.allowed is not None:
                self.look.inside.unclear.append("more is hidden than the mask says")
            else:
                self.banded(shut)
            return None
        by_mask = bool((hidden != hidden[:1]).any()) or not self.look.patient.causal
        if bool((shut == ~hidden).all()) or (bool((shut | hidden).all()) and bool((hidden & ~shut).any())):
            return self.look.wrong("mask-polarity", "what may be seen is hidden, and what may not is seen")
        if by_mask and shut.size(-1) == shut.size(-2) and bool((shut == hidden.mT).all()):
            return self.look.wrong(None, "the mask is transposed: where a query may see a key, the key sees the query")
        if by_mask and bool((shut == hidden[:1]).all()):
            return self.look.wrong("only-first-item", "every item is masked as the first one of the batch is")
        if by_mask and items * heads == hidden[:, 0].size(0) * heads:
            turned = hidden[:, 0][torch.arange(items * heads) % items].view(items, heads, *shut.shape[-2:])
            if bool((shut == turned).all()) and bool((turned != hidden).any()):
                told = (
                    "masks are repeated item after item, where every head of an item needs the same: they are mixed up"
                )
                return self.look.wrong(None, told)
        leak = hidden & ~shut
        values, others = self.rest[leak], self.rest[~hidden & ~shut]
        at = 0.0 if not others.numel() else others.median().item()
        if not shut.any():
            for level, rest, cause, told in (
                (1.0, 0.0, "boolean-mask-added", "the mask of what is hidden is added: those scores grow by one"),
                (0.0, 1.0, "float-mask-of-ones", "zeros and ones are added: what is hidden stays only one behind"),
            ):
                if self.look.near(values, torch.full_like(values, level)) and self.look.near(
                    others, torch.full_like(others, rest)
                ):
                    return self.look.wrong(cause, told)
        if bool((values < at - 20).all()):
            self.look.inside.unclear.append("what should be hidden is only lowered")
            return None
        if self.look.near(call.weights * hidden, torch.zeros_like(call.weights)):
            if self.look.near(call.weights, call.softmax * ~hidden):
                told = "the weights are masked after the softmax, and no longer sum to one"
                return self.look.wrong("mask-after-softmax", told)
            return None
        if not shut.any():
            if by_mask:
                return self.look.wrong("padding-ignored", "the mask is ignored")
            return self.look.wrong("no-causal-mask", "no query is kept from later keys")
        nxt = torch.ones(shut.shape[-2:], dtype=torch.bool).triu(2 + shut.size(-1) - shut.size(-2))
        if not by_mask and bool((shut | ~nxt).all()) and not bool((shut & future & ~nxt).any()):
            return self.look.wrong(None, "each query sees one token of the future")
        self.look.wrong(None, "some keys that should be hidden are seen")
        return None

    def inside_causal(self, shut: Tensor, future: Tensor) -> bool:
        """Whether nothing is hidden, or just the future where that was not said."""
        plain = not bool(shut.any()) or bool((shut == future).all())
        return plain and (self.look.patient.causal is None or not bool(shut.any()))

    def banded(self, shut: Tensor) -> None:
        """Judge a window: what is shut must be what lies too far to either side."""
        queries, keys = shut.shape[-2:]
        one = shut[0, 0]
        if not bool((shut == one).all()) or queries != keys:
            return self.look.inside.unclear.append("some keys are hidden from some queries")
        distance = torch.arange(queries)[:, None] - torch.arange(keys)
        left, right = int(distance[~one].max()), int(-distance[~one].min())
        if not torch.equal(one, (distance > left) | (distance < -right)):
            return self.look.inside.unclear.append("some keys are hidden from some queries")
        widths = self.look.constants("window", "span", "radius", "width", "local", "context", "band", "side", "reach")
        if self.look.patient.causal is not True and 0 < min(left, right) != max(left, right) < queries - 1:
            told = f"a window shows {left} tokens to the left and {right} to the right"
            if max(left, right) in widths or left + right + 2 in widths:
                return self.look.wrong(None, told, proved=False)
            return self.look.inside.unclear.append(told)
        return None

    def after(self, call: Call, hidden: Tensor | None) -> None:
        """Ask whether the weights are used as the softmax gave them."""
        if self.look.near(call.softmax, call.weights):
            return None
        if call.others and self.look.near(call.weights, call.softmax / _sums(call.softmax)):
            told = "after the sink is dropped the weights are divided by their sum again: the sink has no effect"
            return self.look.wrong(None, told)
        sums = call.weights.sum(-1)
        if hidden is not None and self.look.near(sums, torch.ones_like(sums)):
            shown = call.softmax * ~hidden
            if self.look.near(call.weights, shown / shown.sum(-1, keepdim=True)):
                return None
        for shift in range(1, call.softmax.size(1)):
            if self.look.near(call.weights, call.softmax.roll(shift, 1)):
                return self.look.wrong(None, "a head's values are averaged with the weights of another head")
        if any(self.look.near(call.weights, other) for other in call.others):
            told = "of the weights with a sink, a wrong column is dropped: all weights move by one token"
            return self.look.wrong(None, told)
        if self.tabled(call, sums):
            return None
        self.look.inside.unclear.append("weights are changed between the softmax and the values")
        return None

    def tabled(self, call: Call, sums: Tensor) -> bool:
        """Whether a table that no input moves is added to the weights, or multiplied, and undoes what they sum to.

        The identity and a constant may be added on purpose, to keep signals alive through many layers.
        """
        if len(sums) < 2 or self.look.near(sums, sums[:1, :, :1].expand_as(sums)):
            return False
        soft = call.softmax > 1e-6
        for done, table in (
            ("a table is added to the weights", call.weights - call.softmax),
            ("the weights are multiplied by a table", (call.weights / call.softmax.clamp(min=1e-30)) * soft),
        ):
            same = soft.all(0) | (done.startswith("a table") & torch.ones_like(soft[0]))
            one = table[:1].expand_as(table)
            if not self.look.near(table * same, one * same, max(1.0, table.abs().max().item())):
                continue
            if table.size(-1) == table.size(-2):
                eye = torch.eye(table.size(-1), dtype=torch.bool)
                off = table[0][:, ~eye]
                if self.look.near(off, off[:, :1].expand_as(off)):
                    continue
            if self.look.near(table[0], table[0][..., :1].expand_as(table[0])):  # a number for each query, as of a gate
                continue
            told = f"{done} after the softmax: what belongs to the scores undoes that they sum to one"
            self.look.wrong("weights-not-normalized", told, proved=False)
            return True
        return False

    def sloped(self, added: Tensor, shut: Tensor) -> None:
        """Find a bias that grows with the distance by ALiBi's own slopes."""
        heads, queries, keys = added.shape
        if queries != keys or heads < 2 or queries < 3:
            return
        if not bool(shut[:, :, 0].any()) and self.geometric(added[:, 0, 1:] - added[:, 0, :-1]):
            self.look.wrong("alibi-sign", "the bias grows with the distance to what comes later: it has a sign")
            return
        row = added[:, -1] - added[:, -1, -1:]
        open_row = ~shut[:, :, -1].any(0)
        if not bool(open_row.all()):
            return
        if self.geometric(row[:, :-1] - row[:, 1:]):
            self.look.wrong("alibi-sign", "the bias grows with the distance: what is far is preferred")

    def geometric(self, steps: Tensor) -> bool:
        """Whether steps from key to key are slopes above zero, each head's the same part of that of the head before."""
        slope = steps.mean(-1)
        if not (self.look.near(steps, slope[:, None].expand_as(steps)) and bool((slope > 1e-6).all())):
            return False
        ratio = slope[1:] / slope[:-1]
        return self.look.near(ratio, ratio[:1].expand_as(ratio)) and abs(ratio[0].item() - 1) > 1e-3


def _sums(weights: Tensor) -> Tensor:
    return weights.sum(-1, keepdim=True).clamp(min=1e-30)
