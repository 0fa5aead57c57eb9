"""Whether a model hides padding: by each argument that may say what is padding, and which layer looks at it."""

from __future__ import annotations

import re
from collections import Counter

import torch

from unmasked_doctor._ask.leaves import padded_before
from unmasked_doctor._asker import Noticed, Padding
from unmasked_doctor._examined import PADDED, Examined
from unmasked_doctor._listen.calls import Call
from unmasked_doctor._model_run import ModelRun
from unmasked_doctor._pair_of import pair_of
from unmasked_doctor._report import Finding, Open, Pair
from unmasked_doctor._tensors import OTHER_SIZES, all_equal, share_moved
from unmasked_doctor._unlike import Seen
from unmasked_doctor._words import HIDES

__all__ = ["AskedForPadding"]


class AskedForPadding(Examined):
    """An examination that asks whether padding is hidden."""

    def padding(self) -> None:
        """Hide tokens by the model's own arguments, in either sense, and see who looks at them."""
        if self.apart.axis:
            return
        keys = {seen.call.weights.size(-1) for seen in self.seen}
        asked: dict[str, tuple[Padding, list[tuple[Seen, Call, bool]]]] = {}
        every = [*self.asker.paddings(keys)]
        self.masks = [(each.name, each.real.to("cpu", torch.bool)) for each in every if each.how != "made"]
        for padding in every:
            name = padding.name if padding.how != "made" else ""
            self.real_tokens += [padding.real] if padding.how != "made" else []
            if name in asked and not any(leaks for *_, leaks in asked[name][1]):
                continue
            same = padding.given is self.asker.given
            run = self.run if same else self.again("padding", f"with {padding.name}", padding.given)
            calls = None if run is None else self.leaks(padding, run)
            if calls is not None and (name not in asked or _count(calls) < _count(asked[name][1])):
                asked[name] = padding, calls
        for padding, calls in asked.values():
            self.seen_padding(padding, calls)

    def seen_padding(self, padding: Padding, calls: list[tuple[Seen, Call, bool]]) -> None:
        """Tell whether outputs of real tokens notice what is hidden, and which calls look at it."""
        count, name = _count(calls), padding.name
        noticed = None
        if count and count == len(calls):
            named = name in self.asker.given.tensors() or re.match("(key_)?(attention|pad)", name)
            if padding.how == "words":
                return  # which need not be padding
            sees = self.asker.sees(padding) if named else None
            if sees:
                text, evidence = (
                    f"no layer hides what {name} says is padding",
                    "the weights of padded tokens are not zero",
                )
                self.find(None, PADDED, "padding-ignored", text, evidence, pair=self.shown(padding, sees))
            elif "padding is hidden" not in self.passed:
                self.open.append(Open("padding is hidden", f"an argument that hides tokens: {name} hides none"))
        else:
            for seen, _, leaks in calls:
                seen.hides_padding = not leaks and seen.hides_padding is not False
                seen.padding = name if leaks or seen.hides_padding else seen.padding
            noticed = self.asker.sees(padding)
            if count:
                self.leaking(padding, calls)
            elif noticed is None:
                self.passed.append("padding is hidden")
                self.padded_before(padding)
        if noticed is not None:
            self.reaching(padding, calls, noticed)
        if count < max(len(calls), 1):
            self.all_padding(padding)

    def padded_before(self, padding: Padding) -> None:
        """Where padding stands before the tokens that are written, give one more of it: what a text gives must stay."""
        if self.causal is False or not (self.causal or all(seen.causal for seen in self.seen)):
            return  # what reads a text whole may have a place for each column
        tensors, content = padding.given.tensors(), padding.given.content()
        features = [n for n, (name, x) in enumerate(tensors.items()) if name in content and x.is_floating_point()]
        made = None if padding.how != "given" else padded_before([*tensors.values()], padding.real, features)
        before = self.asker.run(padding.given)
        after = None if made is None else self.asker.once(padding.given.with_(dict(zip(tensors, made, strict=True))))
        if before is None or after is None or not before.outputs or not after.outputs:
            return
        x, y, real = before.outputs[0], after.outputs[0], padding.real.to(before.outputs[0].device)
        if x.shape[:2] == real.shape and y.size(1) == x.size(1) + 1:
            x, y = x[real], y[:, 1:][real]
        share = share_moved(x, y, 0, torch.arange(len(x))) if x.shape == y.shape and x.dim() else None
        if share and share > OTHER_SIZES:
            text = f"with one more token of padding before a text, which {padding.name} hides, it gives something else"
            evidence = f"outputs of real tokens move by {share:.2g} of the largest: its positions count padding"
            self.find(None, PADDED, None, text, evidence, how="followed", step="positions")

    def shown(self, padding: Padding, noticed: Noticed) -> Pair | None:
        """Two calls that differ in hidden tokens alone, where such calls were noticed."""
        told = f"two calls differ only in tokens that {padding.name} hides, and the output of a real token moves"
        return None if noticed.given is None else pair_of(self.asker, PADDED, told, padding.given, noticed.given)

    def reaching(self, padding: Padding, calls: list[tuple[Seen, Call, bool]], noticed: Noticed) -> None:
        """Name the calls that look at padding, which reaches outputs; or else the module by which it does."""
        said = "the words that other layers hide" if padding.how == "words" else f"what {padding.name} hides"
        evidence = f"where only hidden tokens change, outputs of real ones move by {noticed.share:.2g} of the largest"
        module = noticed.first
        looking, first = [(seen, call) for seen, call, leaks in calls if leaks], self.near(module)
        if not looking:
            text = f"{said} reaches outputs of real tokens, though no attention that was found looks at it"
            evidence = f"{evidence}, first in {module!r}"
            if padding.how == "made":
                self.open.append(Open(PADDED, f"all that mixes tokens to be found: {text}, {evidence}"))
            else:
                step = "" if noticed.pooled else "layout"  # convolutions look at neighbors, by design
                pair = None if step else self.shown(padding, noticed)
                where = self.beside(module)
                self.note(Finding(PADDED, None, text, evidence, how="followed", where=where, step=step, pair=pair))
        if first is not None:  # what the others look at may have come from there
            looking = [each for each in looking if each[0].kin == first.kin] or looking
        if padding.how == "made":  # another argument may hide tokens from calls of another kind
            hide = {seen.kin for seen, _, leaks in calls if not leaks}
            looking = [each for each in looking if each[0].kin in hide]
        for seen, call in looking:
            shown = (call.weights > 0).any(1)
            only = not bool(shown[padding.real.to(shown.device)[:, None].expand_as(shown)].any())
            cause = "mask-polarity" if only else "padding-ignored"
            text = f"it attends to {said}" + (" alone" if only else "")
            keys = shown.any(1).to("cpu")
            others = (name for name, real in self.masks if name != padding.name and torch.equal(real, keys))
            if (other := next(others, "")) and not only:
                text += f", and hides what {other} hides, which is the mask of other tokens"
            self.find(seen, PADDED, cause, text, evidence, how="followed", pair=self.shown(padding, noticed))
            self.looks.add(seen.name)

    def beside(self, name: str) -> str:
        """The call of attention in the same layer as a module, or else the outermost module with none in it."""
        seen = self.near(name)
        if seen is not None:
            return seen.name
        ends = [name[:n] for n in range(len(name)) if name[n] == "."] + [name]
        free = (end for end in ends if not any(f"{s.name}.".startswith(f"{end}.") for s in self.seen))
        found = next(free, "")
        simple = found == name and not any(self.modules[name].children()) if found in self.modules else True
        return "" if simple else found  # a layer that mixes no tokens only hands on what it was given

    def leaks(self, padding: Padding, run: ModelRun) -> list[tuple[Seen, Call, bool]] | None:
        """Of each call that may see the tokens: whether a real one sees padding; None if there are no such calls."""
        mask = padding.real.to("cpu", torch.bool)
        items, tokens = mask.shape
        found, safe = [], False
        for seen, now in zip(self.seen, run.calls, strict=True):
            weights = now.call.weights.amax(1)
            if weights.size(-1) != tokens or weights.size(0) != items:
                continue
            real = mask if weights.size(1) == tokens else torch.ones(weights.shape[:2], dtype=torch.bool)
            leak = (weights > 0) & ~mask[:, None, :] & real[..., None]
            if not leak.any() and seen.causal and not mask[:, -1].all():
                safe = True
                continue  # what is causal does not see what comes last anyway
            found.append((seen, now.call, bool(leak.any())))
        return found if found or safe else None

    def leaking(self, padding: Padding, calls: list[tuple[Seen, Call, bool]]) -> None:
        """Tell which calls see padding, where others of their place hide it; and whose padding they hide instead."""
        mask = padding.real.to("cpu", torch.bool)
        for seen, call, leaks in calls:
            if not leaks:
                continue
            items, heads = call.weights.shape[:2]
            hides = torch.stack(
                [
                    ~(call.weights[..., ~mask[item]] > 0).any(-1)[..., -1]
                    for item in range(items)
                    if not mask[item].all()
                ]
            ).any(0)  # items heads: whether the last query sees none of an item's padding
            turned = hides.reshape(-1).view(heads, items).T if hides.numel() else hides
            if heads > 1 and bool(hides.any()) and not bool(hides[-1].all()) and bool(turned[-1].all()):
                text = (
                    f"{padding.name} is repeated for heads in the order of another layout: items hide what others pad"
                )
                evidence = "the heads of an item hide the padding of another"
                self.find(seen, PADDED, None, text, evidence, how="followed", step="mask")
        rates = Counter(seen.place for seen, _, leaks in calls if leaks)
        for seen, _, leaks in calls:
            likes = [other for other, *_ in calls if other.place == seen.place]
            if leaks and len(likes) == 2 and rates[seen.place] == 1:
                text = f"it attends to padding, which {padding.name} hides in the other layer"
                evidence = "its weights are not zero where tokens are padding"
                self.find(seen, PADDED, "padding-ignored", text, evidence, step="mask")

    def all_padding(self, padding: Padding) -> None:
        """Hide all of an item, and look for what is no number."""
        check = "an item that is all padding gives numbers"
        before = self.asker.run(self.asker.given)
        after = self.asker.run(padding.all_hidden) if padding.all_hidden is not None else None
        if before is None or after is None:
            return
        both = [(x, y) for x, y in zip(before.outputs, after.outputs, strict=False)
                if x.shape == y.shape and x.dim() and x.size(0) == len(padding.real)]  # fmt: skip
        if any(not y[:-1].isfinite().all() and x[:-1].isfinite().all() for x, y in both):
            text = f"an item that is all padding, by {padding.name}, makes others NaN"
            self.find(
                None, check, "fully-masked-row", text, "outputs of the other items are no numbers", how="followed"
            )
        elif any(y[-1:].isnan().any() and not x.isnan().any() for x, y in both):
            text = f"an item that is all padding, by {padding.name}, gives NaN"
            evidence = "as nn.MultiheadAttention does where it returns weights; a loss over all items is NaN then"
            found = Finding(check, "fully-masked-row", text, evidence, how="followed", caution=True)
            (self.findings if self.strict else self.cautions).append(found)
        elif both:
            self.passed.append(check)

    def unread_masks(self) -> None:
        """Find a mask that hides some tokens, and that no output notices."""
        before = self.asker.run(self.asker.given)
        asked = any(each.check == PADDED for each in self.findings)  # then it was named
        for name, x in self.asker.given.tensors().items() if before is not None and not asked else ():
            values = set(x.unique().tolist()) if HIDES.search(name) and x.dim() > 1 else set()
            if values != {0, 1} or name in self.asker.given.content():
                continue
            after = self.asker.once(self.asker.given.with_({name: (x == 0).to(x.dtype)}))
            if before is None or after is None or not before.outputs:
                continue
            if all_equal(before.outputs, after.outputs):
                text = f"no output notices {name}"
                self.find(None, "every argument counts", None, text, "the mask turned moves nothing", step="inputs")


def _count(calls: list[tuple[Seen, Call, bool]]) -> int:
    """How many of them look at padding."""
    return sum(leaks for *_, leaks in calls)
