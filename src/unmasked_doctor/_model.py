"""Every attention of a whole model: what each computed in a run, and which layer differs from its likes."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from unmasked import _modes
from unmasked._checks import flag
from unmasked._private import uncompiled_module
from unmasked_doctor._alone import NAMED, alone
from unmasked_doctor._apart import Apart
from unmasked_doctor._ask.promises import BREAK, NUMBERS
from unmasked_doctor._ask.sequences import parted, sequences
from unmasked_doctor._ask.user_call import UserCall
from unmasked_doctor._asker import Asker, Given, other
from unmasked_doctor._blocks import blocks
from unmasked_doctor._defaults import emptied
from unmasked_doctor._examined import PADDED
from unmasked_doctor._later import Changed, with_other_later_tokens
from unmasked_doctor._mixers import mixers
from unmasked_doctor._model_run import hear_model
from unmasked_doctor._padded import AskedForPadding
from unmasked_doctor._pair_of import pair_of
from unmasked_doctor._pieces import fed_in_pieces
from unmasked_doctor._report import Finding, Layer, ModelReport, Open
from unmasked_doctor._rounded import FAR, rounded_places
from unmasked_doctor._subject import brief, place
from unmasked_doctor._target import with_article
from unmasked_doctor._tensors import all_equal
from unmasked_doctor._unlike import FACTS, TURNED_ALIKE, Seen, may_be_a_mistake, odd_ones, step_of, tiled
from unmasked_doctor._why.items import meeting, tokens_first
from unmasked_doctor._words import ITEMS

__all__ = ["diagnose_model"]

FUTURE = "no output sees later tokens"
ALIKE = "the same call gives the same again"
PIECES = "in pieces it gives what it gives at once"
_BY_LAYERS = (ITEMS, FUTURE, PADDED)  # promises that a layer may break


def diagnose_model(
    model: nn.Module, inputs: Any, *, causal: bool | None = None, batch_first: bool | None = None, strict: bool = False
) -> ModelReport:
    """Examine every attention of a whole model: what each layer computes, and which layer has a mistake.

    The model runs a few times, in evaluation mode and with its own parameters; it is left as it was, and so is what it
    is given. By inputs that differ in one thing it is asked for its promises: that no item reaches another one, that a
    causal model sees no later tokens, that padding is hidden, by whatever argument says what is padding, that finite
    inputs give finite outputs, that a call gives the same again, and, if it has a cache, that it may be fed in pieces.
    Each call of attention is heard, fused or written out, with its queries, keys, values, weights and masks, and with
    the layers that it reads and that read it. So the layer is named that breaks a promise, and the one that differs:
    from the textbook, or from its likes, which are three or more layers that have the same place in the model, and
    parameters of the same shapes.

    Args:
        model: The model: of transformers, of PyTorch's layers, or your own.
        inputs: What it takes in a forward pass: a tensor, a tuple, or a dict of keyword arguments. With three tokens
            or more, and several items.
        causal: Whether no output may see a later token; None if that is as most of its layers have it.
        batch_first: Whether items come before tokens in what it takes; None to take that from PyTorch's own layers,
            and from the axis that has positions.
        strict: Count as findings what PyTorch's own functions do too, such as NaN for an item that is all padding.

    Returns:
        The report: ``report.ok``, ``report.differences``, ``report.verdict``, ``report.layers``, and what could not be
        watched.

    Raises:
        TypeError: model is no module, inputs are none of these, or a flag is neither True nor False.
        ValueError: the model does not run with these inputs.

    Examples:
        >>> layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
        >>> model = nn.TransformerEncoder(layer, 4)
        >>> report = diagnose_model(model, torch.randn(2, 5, 6))
        >>> report.ok
        True
        >>> report.layers[3].name, report.layers[3].heads
        ('layers.3.self_attn', 2)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is {with_article(model)}; pass a torch.nn.Module")
    flag("strict", strict)
    for name, value in (("causal", causal), ("batch_first", batch_first)):
        if value is not None:
            flag(name, value)
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(inputs, Tensor):
        args = (inputs,)
    elif isinstance(inputs, Mapping):
        kwargs = dict(inputs)
    elif isinstance(inputs, tuple):
        args = inputs
    else:
        raise TypeError(f"inputs is {with_article(inputs)}; pass a tensor, a tuple, or a dict of keyword arguments")
    with _modes.elsewhere() as default:
        given = Given.of(model, args, kwargs, bare=isinstance(inputs, Tensor))
        asker = Asker(model, dict(uncompiled_module(model).named_modules()), given, default)
        apart = Apart(asker, batch_first)
        try:
            run = hear_model(model, args, kwargs, default, apart.axis)
        except Exception as error:  # whatever a model may raise
            refusal = f"{brief(error)}{place(error)}"
            raise ValueError(f"{type(model).__name__} does not run with these inputs: {refusal}") from error
        return _Examination(model, args, kwargs, run, default, apart, causal=causal, strict=strict).report()


def _other_items(x: Tensor) -> Tensor:
    """Return other tokens for each item: other numbers, or the ids of another item, so that more than order differs."""
    return other(x) if x.is_floating_point() else x.roll(1, 0)


class _Examination(AskedForPadding):
    """One examination of a model: each method asks one question, and notes what it finds, passes or leaves open."""

    def report(self) -> ModelReport:
        """Ask all questions, in an order that lets findings name the broken promises."""
        self.batch_first_forgotten()
        if self.seen:
            self.padding()
            self.places()
            for seen in self.seen:
                self.alone(seen)
            self.among_others()
            self.blocks()
            self.stale()
            self.unused()
        self.information()
        self.in_pieces()
        self.items()
        self.numbers()
        self.unnoticed()
        self.unread_masks()
        self.repeatable()
        self.unheard()
        self.mixing()
        self.settle()
        layers = tuple(self.layer(seen) for seen in self.seen)
        self.findings.sort(key=lambda finding: finding.how == "open")
        return ModelReport(
            type(self.model).__name__,
            layers,
            tuple(each for each in self.findings if not each.step),
            tuple(each for each in self.findings if each.step),
            tuple(self.cautions),
            tuple(self.passed),
            tuple(self.open),
            tuple(dict.fromkeys(seen.name for seen in self.seen)),
            tuple(self.unwatched),
        )

    def settle(self) -> None:
        """Let a finding of a step that decides what tokens see stand for the promise that it breaks.

        That is the finding of the layer in which the promise is broken, or else each of them. A broken promise without
        such a finding stays as it is, unless another promise is explained already.
        """
        promises = [each for each in self.findings if not each.step and each.check in _BY_LAYERS]
        steps = [each for each in self.findings if each.step in BREAK]
        for promise in promises:
            able = [each for each in steps if each.check == PADDED or promise.check != PADDED]
            own = promise.check == PADDED and promise.where in self.looks
            reasons = [each for each in able if each.where == promise.where] or ([] if own else able)
            if reasons:
                self.findings = [each for each in self.findings if each is not promise and each not in reasons]
                shown = f"{promise.told}: {promise.evidence}"
                self.findings += [
                    replace(each, check=promise.check, step="", evidence=shown, pair=promise.pair) for each in reasons
                ]
                steps = [each for each in steps if each not in reasons]
            elif not own and any(each.check in _BY_LAYERS and each not in promises for each in self.findings):
                self.findings.remove(promise)  # by what was named already

    # One layer

    def alone(self, seen: Seen) -> None:
        """Find what is wrong in one call by itself."""
        for each in alone(seen, backward=self.backward()):
            self.note(each)

    # One layer among those of its place

    def among_others(self) -> None:
        """Find the layer that differs from its likes in a fact that designs do not vary from layer to layer."""
        for name, fact in FACTS.items():
            for group in self.likes(fact.among):
                for seen, value, usual, count in odd_ones(group, fact.of):
                    follows = fact.follows and any(finding.where == seen.name for finding in self.findings)
                    if follows or (fact.good and value) or not may_be_a_mistake(name, seen, value, usual):
                        continue
                    cause, text, evidence = fact.explain(seen, value, usual)
                    evidence = f"{evidence}; {count} of {len(group)} layers do otherwise"
                    self.find(seen, name, cause, text, evidence, step=step_of(name))
        self.scales()
        if any(len(group) >= 3 for group in self.groups.values()):
            self.passed.append("each layer compared with others of its kind")
        other = [seen for seen in self.seen if tiled(seen.wires.reads.get("key"))]
        if other and len(other) > len(self.seen) / 2:
            text = "its key heads are repeated in the order 0 1 0 1; those of published models are in the order 0 0 1 1"
            evidence = f"so in {len(other)} of {len(self.seen)} calls; right, if the checkpoint was trained so"
            self.find(None, "heads", "repeat-for-repeat-interleave", text, evidence, step="heads")

    def scales(self) -> None:
        """Find the layer that does not divide by the root of head_dim, where the others of the model do."""
        roots = [
            (seen, abs(seen.scale * seen.call.query.size(-1) ** 0.5 - 1) < 1e-3) for seen in self.seen
            if seen.scale is not None and len(seen.wires.reads) == 3 and seen.finite
        ]  # fmt: skip
        odd = [seen for seen, root in roots if not root]
        pair = len(roots) == 2 and roots[0][0].place == roots[1][0].place
        for seen in odd if pair or 3 * len(odd) <= len(roots) else ():
            cause = "missing-scale" if abs((seen.scale or 0) - 1) < 1e-3 else "wrong-d-in-scale"
            text = "its scores are not divided by the root of head_dim, as those of the other layers are"
            evidence = f"they are multiplied by {seen.scale:g}; so in {len(odd)} of {len(roots)} layers"
            self.find(seen, "scale", cause, text, evidence, step="scale")

    def blocks(self) -> None:
        """Ask layers as modules by themselves."""
        for name, found in blocks(self.asker, [seen.name for seen in self.seen], batch_first=not self.apart.axis):
            self.note(replace(found, where=self.beside(name)))

    # With other inputs

    def batch_first_forgotten(self) -> None:
        """Find that the model takes tokens for items."""
        if not self.apart.forgotten:
            return
        text = "items reach each other, and the tokens of an item do not"
        evidence = "of two inputs that differ in one item alone, the others' outputs differ by " \
            f"{self.apart.share:.0%} of the largest; if tokens come first, pass batch_first=False"  # fmt: skip
        self.find(None, "items", "batch-first-forgotten", text, evidence, how="followed")

    def items(self) -> None:
        """Ask whether an item reaches another one."""
        check = ITEMS
        if self.apart.known and not self.apart.share:
            share = self.asker.without_others(self.apart.axis, self.real_tokens)
            if not share:
                self.passed.append(check)
            else:
                text, evidence = "what one item gives depends on which others are beside it", "given alone, its outputs"
                self.find(None, check, None, text, f"{evidence} differ by {share:.2g} of the largest", how="followed")
        elif self.apart.share and not self.apart.forgotten:
            evidence = (
                f"of two inputs that differ in one item alone, the others' outputs differ by {self.apart.share:.2g}"
            )
            text = "what one item gives depends on the others"
            cause, why = self.why_items_meet()
            text = f"{text}: {why}" if why else text
            evidence += f" of the largest, first in {self.apart.first!r}"
            changed = self.asker.changed(self.asker.given, self.apart.axis, self.apart.at)
            told = "two calls differ in one item alone, and the output of another item moves"
            pair = None if changed is None else pair_of(self.asker, check, told, self.asker.given, changed)
            self.find(self.near(self.apart.first), check, cause, text, evidence, how="followed", pair=pair)
        elif not self.apart.known and not self.packed():
            self.open.append(Open(check, "outputs with an axis of items, the same from call to call"))

    def why_items_meet(self) -> tuple[str | None, str]:
        """The mistake by which items reach each other, and what is told of it."""
        given, axis = self.asker.given, self.apart.axis
        ways = [given, *(self.asker.changed(given, axis, at) for at in range(min(self.asker.items(given, axis), 4)))]
        runs = [functools.partial(self.asker.once, each) for each in ways if each is not None]
        try:
            grown = functools.partial(self.asker.once, self.asker.grown(given, 0))
            first = "" if axis else tokens_first((self.model, runs[0]), (self.model, grown))
            text = first or meeting(runs, 1e-4)
        except Exception:  # whatever a model may raise, when it is asked once more
            return None, ""
        return "batch-first-forgotten" if first or self.apart.mistaken else None, text

    def packed(self) -> bool:
        """Note items that lie in one axis, one after another, and reach each other; tell whether there are such."""
        rows = [len(x) for x in self.asker.given.content().values() if x.dim() == 2]
        if not any(True for size in rows for _ in parted(self.asker.given.every(), size)):
            return False
        try:
            asked = UserCall(self.model, (*self.args, dict(self.kwargs)), batch_first=True, default=self.default)
            found = [each for each in sequences(asked) if isinstance(each, Finding)]
        except Exception:  # whatever a stranger's model raises as it is copied
            return False
        for each in found:
            self.note(replace(each, check=ITEMS))
        return bool(found)

    def numbers(self) -> None:
        """Find outputs that are NaN though no input is; it is a caution if only those of padding are."""
        answers = self.asker.run(self.asker.given)
        inputs = [x for x in self.asker.given.tensors().values() if x.is_floating_point()]
        if answers is None or any(x.isnan().any() for x in inputs):
            return
        for x in answers.outputs:
            if not x.isnan().any():
                continue
            real_tokens = [real for real in self.real_tokens if x.shape[:2] == real.shape]
            caution = any(not bool(x[real.to(x.device)].isnan().any()) for real in real_tokens) and not self.strict
            first = next((name for name, y in answers.modules.items() if y.isnan().any()), "")
            blind = any(seen.call.weights.isnan().all(-1).any() for seen in self.seen)
            text = f"{int(x.isnan().sum())} of {x.numel()} numbers of an output are NaN, and what went in is finite"
            found = Finding(NUMBERS, "fully-masked-row" if blind else None, text, f"first in {first!r}", how="followed",
                            where=self.beside(first) if first else "", caution=caution)  # fmt: skip
            if caution:
                self.cautions.append(found)
            else:
                self.note(found)
            return

    def unnoticed(self) -> None:
        """Find an argument of tokens that no output notices."""
        before, content = self.asker.run(self.asker.given), self.asker.given.content()
        for name, x in content.items() if before is not None and len(content) > 1 else ():
            new = _other_items(x)
            after = None if torch.equal(new, x) else self.asker.once(self.asker.given.with_({name: new}))
            if before is None or after is None or not before.outputs:
                continue
            if all_equal(before.outputs, after.outputs):
                text = f"no output notices {name}"
                self.find(None, "every argument counts", None, text, "other tokens in it move nothing", step="inputs")

    def repeatable(self) -> None:
        """Call it again, after all the other calls, and ask whether it gives the same."""
        before = self.asker.run(self.asker.given)
        if before is not None and before.outputs and not self.asker.still(self.asker.given, before):
            text = "the same call gives something else again, in evaluation: it draws, or keeps something"
            self.find(None, ALIKE, None, text, "called twice, with other calls in between", how="followed")
            return
        other = self.asker.changed(self.asker.given, self.apart.axis, 0)
        after = None if other is None else self.asker.once(other)
        with emptied(self.model) as kept:
            if kept and other is not None and after is not None and not self.asker.still(other, after):
                text = "a default argument keeps tensors of an earlier call, and they change what a call gives"
                self.find(None, ALIKE, None, text, "called with it as it was, and with it empty", how="followed")

    def stale(self) -> None:
        """Find the layer of integer weights whose queries, keys or values are far larger or smaller than its likes'."""
        for group in self.likes("place"):
            for role in ("query", "key", "value") if len(group) > 2 and all(seen.whole for seen in group) else ():
                sizes = torch.tensor([max(seen.size(role), 1e-30) for seen in group]).log2()
                off = (sizes - sizes.median()).abs()
                at = int(off.argmax())
                rest = torch.cat([off[:at], off[at + 1 :]])
                if float(off[at]) > 1.5 and float(rest.max()) < 0.5 * float(off[at]):
                    by = 2 ** float(sizes[at] - sizes.median())
                    text = (
                        f"its {role} is {by:.2g} times as large as in others of its kind, by a scale of whole numbers"
                    )
                    evidence = (
                        f"by the root of the mean square; the others differ by at most {2 ** float(rest.max()):.2g}"
                    )
                    self.find(group[at], "quantization", None, text, evidence, step="scale")

    def unused(self) -> None:
        """Find the parameter that changes no output, though it does in the likes of its layer."""
        around = {seen.name for seen in self.seen if seen.name}
        names = {
            name: x for name, x in uncompiled_module(self.model).named_parameters()
            if x.requires_grad and any(name.startswith(f"{each}.") for each in around)
        }  # fmt: skip
        used = self.asker.counts(names)
        if used is None:
            return
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(re.sub(r"[0-9]+", "*", name), []).append(name)
        for group in groups.values():
            idle = [name for name in group if not used[name]]
            parts = group[0].split(".")
            if len(group) < 3 and len(parts) > 1 and NAMED.search(parts[-2]):  # what makes queries, keys or values
                self.idle_projections(idle, names, used)
            if not idle or len(group) < 3 or (len(idle) > 0.25 * len(group) and (len(group), len(idle)) != (3, 1)):
                continue
            for name in idle:
                seen = next((seen for seen in self.seen if name.startswith(f"{seen.name}.")), None)
                if (
                    seen is None
                    or name == group[-1]
                    or not any(used[each] for each in names if each.startswith(f"{seen.name}."))
                ):
                    continue  # the whole layer counts for nothing, or it is the last, and not all it gives may be read
                if not any(finding.where == seen.name for finding in self.findings):
                    told = f"its {name[len(seen.name) + 1 :]} counts for nothing"
                    evidence = (
                        f"no output changes with it; {len(group) - len(idle)} of {len(group)} layers do otherwise"
                    )
                    cause = "missing-out-proj" if re.search(r"(?i)out|o_proj|c_proj|\.?proj\.", name) else None
                    self.find(seen, "parameters", cause, told, evidence, how="followed", step="parameters")

    def idle_projections(self, idle: list[str], names: Mapping[str, Tensor], used: Mapping[str, bool]) -> None:
        """Find a projection that changes no output, in a layer whose other parameters do."""
        for name in idle:
            seen = next((seen for seen in self.seen if name.startswith(f"{seen.name}.")), None)
            if seen is not None and any(used[each] for each in names if each.startswith(f"{seen.name}.")):
                told = f"its {name[len(seen.name) + 1 :].rpartition('.')[0]} counts for nothing"
                self.find(
                    seen, "parameters", None, told, f"no output changes with {name}", how="followed", step="parameters"
                )

    def mixing(self) -> None:
        """List the modules that mix tokens, and in which no attention was heard."""
        lengths = {seen.call.query.size(-2) for seen in self.seen} | {
            x.size(1 - self.apart.axis) for x in self.asker.given.content().values() if x.dim() == 2 or not self.seen
        }
        names = {seen.name for seen in self.seen}
        try:
            found = mixers(self.model, self.modules, self.args, self.kwargs, names, {n for n in lengths if n > 2})
        except Exception as error:  # whatever a model may raise
            self.open.append(Open("what mixes tokens", f"the model to run again: {brief(error)}"))
            return
        listed = [text.partition(" (")[0] for text in self.unwatched]
        for name in found:
            if any(f"{name}.".startswith(f"{each}.") or each.startswith(f"{name}.") for each in listed):
                continue
            kind = type(self.modules[name]).__name__
            self.unwatched.append(f"{name} ({kind}): it mixes tokens, and no attention was found in it")

    def places(self) -> None:
        """Give every position the same token, and note for each call whether its scores depend on the distance alone.

        They do where positions rotate queries and keys; if all its scores are the same, the rotations are alike. A call
        whose values are not all the same is not asked: a layer before it gave its tokens different results.
        """
        square = [seen for seen in self.seen if seen.call.query.size(-2) == seen.call.key.size(-2) > 2]
        axis = 1 - self.apart.axis
        sizes = {seen.call.key.size(-2) for seen in square}
        alike = {
            name: x.narrow(axis, 0, 1).expand_as(x).clone() for name, x in self.asker.given.content().items()
            if x.dim() > axis and x.size(axis) in sizes and not (x.is_floating_point() and x.dim() < 3)
        }  # fmt: skip
        run = self.again("positions", "on a token that is repeated", self.asker.given.with_(alike) if alike else None)
        if rounded := rounded_places(lambda: self.asker.once(self.asker.given)):
            self.find(None, "positions", None, FAR, rounded, how="followed", step="positions")
        for seen, now in zip(self.seen, run.calls, strict=True) if run else ():
            product, value = now.call.product, now.call.value
            if seen in square and (value - value[:, :, :1]).abs().max() < 1e-3 * value.abs().max():
                gap = (product[..., 1:, 1:] - product[..., :-1, :-1]).abs().max()  # of scores of one distance
                seen.by_distance = bool(gap < 1e-3 * product.abs().max())
                turned = [turn.kind for turn in seen.wires.turns.values()] == ["turned", "turned"]
                if turned and (product - product[..., :1, :1]).abs().max() < 1e-5 * product.abs().max():
                    evidence = "where all tokens are the same, all its scores are"
                    self.find(seen, "positions", None, TURNED_ALIKE, evidence, step="positions")

    def information(self) -> None:
        """Change the later tokens, and ask whether earlier outputs move though the model is causal."""
        sees_later = None if self.causal is False else self.later_tokens_seen()
        if sees_later is False:
            self.passed.append(FUTURE)
        elif sees_later is None and self.causal:
            self.open.append(Open(FUTURE, "outputs with an axis of tokens, as many as an argument has"))

    def later_tokens_seen(self) -> bool | None:
        """Note an earlier output that notices later tokens, or leave that open; None if it cannot be asked."""
        sizes = [(seen, seen.call.query.size(-2), seen.call.key.size(-2)) for seen in self.seen]
        those = [seen for seen, queries, keys in sizes if queries > 2 and (queries == keys or seen.causal)]
        if not self.causal and not any(seen.causal for seen in those):
            return None
        axis, content = 1 - self.apart.axis, self.asker.given.content()
        decoded = {name: x for name, x in content.items() if re.search(r"(?i)decoder|tgt", name)}
        asked = {name: x for name, x in (decoded or content).items() if x.dim() > axis}
        lengths = {x.size(axis) for x in decoded.values()} or {seen.call.query.size(-2) for seen in those}
        lengths = lengths & {x.size(axis) for x in asked.values()}
        first_run = self.asker.run(self.asker.given)
        of_outputs = {x.size(axis) for x in first_run.outputs[:1] if x.dim() > axis} if first_run is not None else set()
        lengths = lengths & of_outputs if len(lengths) > 1 else lengths
        if not lengths and self.causal and asked:
            # A token of the argument may be several tokens for attention.
            lengths = {next(iter(asked.values())).size(axis)}
        tokens = min(lengths, default=0)
        real = next(iter(self.real_tokens), None)
        able = tokens > 2 and len(lengths) == 1
        changed = with_other_later_tokens(self.asker, asked, axis, tokens, real) if able else None
        if changed is None:
            return None
        if changed.first_early is not None and len(asked) > 1:  # an encoder may see one of two sequences whole
            each = [with_other_later_tokens(self.asker, {name: x}, axis, tokens, real) for name, x in asked.items()]
            known = [one for one in each if one is not None and one.came_in]
            order = [one for one in known if one.first_early is None] + [
                one for one in known if self.starts_causal(one)
            ]
            changed = next(iter(order), changed)
        reached = [seen for seen in those if changed.at_all(seen.name)]
        causal = [seen for seen in reached if seen.causal]
        if not self.causal and (not causal or len(causal) < 0.75 * len(reached)):
            return None
        moved = changed.first_early
        if moved is None:
            return False if changed.came_in else None
        sure = self.causal and all(x.dim() == 3 and x.size(2) != tokens for x in asked.values())
        if (
            all(x.is_floating_point() for x in asked.values())
            and not sure
            and not self.mixed_by(moved, [*changed.before])
        ):
            self.open.append(Open(FUTURE, "inputs one of whose axes is that of tokens, such as ids"))
            return True
        seen = self.near(moved)
        text = "earlier outputs move when later tokens change, though every call of attention is causal"
        if len(causal) < len(reached):
            text = "earlier outputs move when later tokens change, though "
            text += "causal=True was asked" if self.causal else "most of its calls of attention are causal"
        shown = None if seen is None else seen.call.weights > 0
        dense = shown is not None and bool((shown | ~shown.any(-2, keepdim=True)).all())  # but for what pads
        evidence = f"of two inputs that differ from token {tokens // 2} on, an earlier output differs by "
        evidence += f"{changed.share(moved, early=True):.2g} of the largest, first in {moved!r}"
        cause = "no-causal-mask" if dense else None
        read = seen is not None and any(
            moved == f"{seen.name}.{name}" for reads in seen.wires.reads.values() for name, _ in reads
        )  # what it reads moved already
        told = f"two calls differ from token {tokens // 2} on, and the output of an earlier token moves"
        pair = pair_of(self.asker, FUTURE, told, self.asker.given, changed.given)
        where = "" if read else self.beside(moved)
        self.note(Finding(FUTURE, cause, text, evidence, how="followed", where=where, pair=pair))
        return True

    def starts_causal(self, changed: Changed) -> bool:
        """Whether the first call of attention that other tokens reach is causal, as in a decoder."""
        return next((seen.causal for seen in self.seen if changed.at_all(seen.name)), False)

    def in_pieces(self) -> None:
        """Feed a sequence in pieces to a causal model that has a cache."""
        fed = fed_in_pieces(self.asker, 1 - self.apart.axis) if FUTURE in self.passed else None
        if fed is None:
            return
        if not fed.share:
            self.passed.append(PIECES)
        elif not fed.sure:
            self.open.append(Open(PIECES, "a cache that grows: what it keeps may be meant to be less than all"))
        else:
            text = "fed with its tokens in pieces, by its cache, it gives something else than fed with all at once"
            evidence = f"the output of a token that is fed alone differs by {fed.share:.2g} of the largest, "
            where = self.beside(fed.first) if fed.first in self.modules else ""
            evidence += f"first in {fed.first!r}"
            self.note(Finding(PIECES, None, text, evidence, how="followed", where=where))

    def mixed_by(self, name: str, order: list[str]) -> bool:
        """Whether a call of attention ended before a module or belongs to it, so that it may have mixed its tokens."""
        heard = [seen.name for seen in self.seen]
        before = set(order[: order.index(name)])
        return any(
            each in before or f"{name}.".startswith(f"{each}.") or f"{each}.".startswith(f"{name}.") for each in heard
        )

    # What was not heard

    def unheard(self) -> None:
        """List the modules that are called attention, and in which no call was heard."""
        called = {seen.name for seen in self.seen}
        for name, module in self.modules.items():
            if not re.search(r"(?i)(attention|attn)$", type(module).__name__) or name not in self.run.outputs:
                continue
            listed = any(text.startswith(f"{name} (") or text.startswith(f"{name}.") for text in self.unwatched)
            if not listed and not any(
                call == name or call.startswith(f"{name}.") or name.startswith(f"{call}.") for call in called
            ):
                self.unwatched.append(f"{name} ({type(module).__name__}): no call of attention was found in it")

    def layer(self, seen: Seen) -> Layer:
        """Describe a call for the report."""
        call, turns = seen.call, seen.wires.turns
        queries, keys = call.weights.shape[-2:]
        kind = "causal" if seen.causal else "keys of another length" if queries != keys else "every token sees every"
        if not seen.causal and queries == keys and not bool((call.weights > 0).all()):
            kind = "masked"
        choices = {
            "positions": any(turn.kind == "turned" for turn in turns.values()),
            "norms of queries and keys": any(turn.kind == "other" for turn in turns.values()),
            "what is added to its scores": seen.bias,
            f"a window of {seen.window}": seen.window is not None,
            "its mask": kind == "masked",
            f"its scale of {seen.scale}": seen.scale is not None
            and abs(seen.scale * call.query.size(-1) ** 0.5 - 1) > 1e-3,
            "what is done to its values": seen.wires.value is not None
            and (seen.wires.value.kind, seen.wires.value.gain) != ("plain", 1.0),
            "what is done to its context": seen.wires.after is not None
            and (seen.wires.after.kind, seen.wires.after.gain) != ("plain", 1.0),
        }
        return Layer(
            name=seen.name,
            kind=kind,
            kernel=seen.kernel,
            heads=call.query.size(1),
            kv_heads=seen.kv_heads,
            head_dim=call.query.size(-1),
            causal=seen.causal,
            window=seen.window,
            scale=seen.scale,
            bias=seen.bias,
            turned=turns["query"].kind == "turned" if "query" in turns else None,
            findings=tuple(finding for finding in self.findings if finding.where == seen.name),
            verdict=seen.verdict,
            given=tuple(name for name, holds in choices.items() if holds and seen.verdict != "open"),
        )
