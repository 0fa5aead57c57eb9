"""What a forward pass multiplies, judged stage by stage: for all attention, whatever stands before it and behind it.

The inputs of a stage are taken as they are, and its result is compared with what is right for these inputs: so norms
before it, residuals around it, positions within it and layers behind it need no reference of their own. Where a number
comes from, and where it goes, is found by changing it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from unmasked_doctor._judge.made import Made
from unmasked_doctor._judge.names import role_of
from unmasked_doctor._judge.rows import projections
from unmasked_doctor._judge.steps import Scores, judged
from unmasked_doctor._judge.turns import turning
from unmasked_doctor._listen.calls import LAYOUTS, PLURAL, ROLES, Call, layout_of, matches_in
from unmasked_doctor._listen.view import (
    Run,
    Unseen,
    View,
    changed,
    drawn,
    elsewhere,
    moved,
    other_token,
    unclear,
    without_memory,
)
from unmasked_doctor._report import Finding, Given, Open, Outcome
from unmasked_doctor._subject import Subject, brief

__all__ = ["Inside", "look"]

Put = dict[int, Callable[[Tensor], Tensor]]


@dataclass
class Inside:
    """What was seen in a forward pass.

    Attributes:
        outcomes: Findings, what stays open, and what was taken as given.
        seen: Whether attention was recognized at all.
        causal: Whether it hides later keys, though no mask was given.
        made: How queries, keys and values are made, if that is known.
        run: The run in which all was seen.
        view: The view in which it ran.
        scale: The factor of the products, for each head.
        placeless: Whether no position enters the queries, keys, values and scores.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    seen: bool = False
    causal: bool | None = None
    made: Made | None = None
    run: Run | None = None
    view: View | None = None
    scale: Tensor | None = None
    placeless: bool = False

    @property
    def findings(self) -> list[Finding]:
        return [each for each in self.outcomes if isinstance(each, Finding) and not each.caution]

    @property
    def opens(self) -> list[Open]:
        return [each for each in self.outcomes if isinstance(each, Open)]

    @property
    def right(self) -> bool:
        """Whether every stage was judged, and is right."""
        return self.seen and not self.findings and not self.opens

    def add(self, outcomes: Iterator[Outcome]) -> None:
        """Add outcomes, no finding twice; a finding after an open question depends on the answer, and is open, too."""
        for each in outcomes:
            if isinstance(each, Finding):
                if any(isinstance(old, Finding) and old.told == each.told for old in self.outcomes):
                    continue
                each = replace(each, how="open") if self.opens else each
            self.outcomes.append(each)


def look(subject: Subject) -> Inside:
    """Watch a forward pass, and judge what was seen."""
    inside = Inside()
    view = View(subject, longer=0 if subject.options.own else 3)
    try:
        _judge(view, inside)
        if inside.opens and not inside.findings:
            inside.add(_strays(*_base(view)))
    except Unseen as why:
        inside.outcomes.append(unclear(str(why)))
    except Exception as error:  # whatever a stranger's module raises is reported, never raised
        inside.outcomes.append(unclear(f"watching it raised {brief(error)}"))
    return inside


def _judge(view: View, inside: Inside) -> None:
    view, base = _without_idle(*_base(view))
    if not base.calls or (base.call.at == base.call.place and not Scores(view, base).exponentials):
        inside.outcomes.append(unclear("what averages its values: no product of weights and values was recognized"))
        return
    _refuse_chained(view, base)
    other = view.asked(changed(base.case, other_token), base)
    view, base, other = _in_fitting_layout(view, base, other)
    inside.add(_memory(base))
    kept = [without_memory(run) for run in (base, other)]
    view = replace(view, memory=kept[0] is not base or kept[1] is not other)
    base, other = kept
    inside.seen, inside.run, inside.view = True, base, view
    inside.add(_token_sources(view, base, other))
    garbled = bool(inside.findings)
    if not garbled:
        inside.add(_input_sources(view, base))
    scores = Scores(view, base)
    inside.add(judged(scores))
    inside.add(_bias_tables(view, base) if scores.biased else iter(()))
    inside.add(_returned_weights(view, base))
    inside.causal, inside.scale = scores.causal, None if scores.fit is None else scores.fit.scale
    if view.subject.options.masked and not inside.findings and not inside.opens:
        inside.add(_padded(view, base))
    split = any(each.cause == "view-without-transpose" for each in inside.findings)
    inside.add(each for each in _merging(view, base)
               if not (split and isinstance(each, Finding) and each.cause == "merge-without-transpose"))  # fmt: skip
    if not inside.findings:
        inside.add(_beside_attention(view, base, other, clear=not inside.opens))
    if not garbled:
        inside.add(_chains(view, base))
        same = view.asked(view.case(_many_items(view, base), same=True), base)
        inside.add(turning(view, same))
        inside.made = Made(view, same)
        inside.add(projections(inside.made, scores, clear=not inside.findings))
    if any(each.step == "layout" for each in inside.findings) and not scores.biased:
        inside.placeless = _knows_no_places(view.run(view.case(view.subject.items, same=True)))
    if view.longer and not inside.findings:
        view = replace(view, longer=0)  # what is as many may be taken for what is not
        square = view.run(view.case(view.subject.items))
        if len(square.calls) == len(base.calls):
            seen = judged(Scores(view, without_memory(square)))
            inside.add(each for each in seen if isinstance(each, Finding))


def _without_idle(view: View, run: Run) -> tuple[View, Run]:
    """Leave out calls that repeat the query, key and value of another and reach no output, as one to fill a cache."""

    def idle(call: Call) -> bool:
        same = (all(view.near(getattr(call, n), getattr(other, n)) for n in ROLES)
                for other in run.calls if other is not call)  # fmt: skip
        if not any(same):
            return False
        other = view.run(run.case, {call.place: _change_at(call.index)})
        return not moved(run.output, other.output).any()

    if len(run.calls) < 2:
        return view, run
    view = replace(view, idle=frozenset(n for n, call in enumerate(run.calls) if idle(call)))
    return view, view.again(run)


def _base(view: View) -> tuple[View, Run]:
    """Run it with more keys than queries, or with as many where it raises an error then."""
    try:
        return view, view.run(view.case(view.subject.items))
    except Exception:  # such as one that takes a query, a key and a value of one length
        view = replace(view, longer=0)
        return view, view.run(view.case(view.subject.items))


def _many_items(view: View, base: Run) -> int:
    """Return a count of items that is larger than any count of features, and that none of its own sizes divides."""
    call, case = base.call, base.case
    width = max(x.size(-1) for x in (case.query, case.key, case.value))
    items = max(width, call.query.size(-1), call.value.size(-1)) + 9
    taken = {call.query.size(1), view.subject.tokens, width, call.query.size(1) * call.query.size(-1)}
    while items in taken or any(items % n == 0 for n in taken if n > 1):
        items += 1
    return items


def _in_fitting_layout(view: View, base: Run, other: Run) -> tuple[View, Run, Run]:
    """Choose the layout of heads in which a changed token moves its own query, key and value alone, if there is one."""

    def local(one: Run, two: Run) -> bool:
        pairs = ((getattr(one.call, n), getattr(two.call, n)) for n in ROLES)
        return not any(elsewhere(*pair) for pair in pairs)

    known = layout_of(base.events, base.case.sizes)
    order = range(len(LAYOUTS)) if known is None else [known]
    candidates = []
    for layout in order:
        seen = replace(view, layout=layout)
        laid = seen.again(base), seen.again(other)
        if laid[0].calls and len(laid[0].calls) == len(laid[1].calls):
            candidates.append(laid)
            if local(*laid):
                return seen, *laid
    return replace(view, layout=order[0]), *(candidates or [(base, other)])[0]


def _refuse_chained(view: View, base: Run) -> None:
    """Raise `Unseen` where one call of attention takes what another gave, or where their sizes differ."""
    if len(base.calls) < 2:
        return
    if len({(tuple(c.query.shape), tuple(c.value.shape)) for c in base.calls}) > 1:
        raise Unseen("it has several calls of attention, of different sizes")
    other = view.again(view.run(base.case, {base.calls[0].place: lambda x: x + 1}))
    if len(other.calls) != len(base.calls) or any(
        not view.near(a.query, b.query) or not view.near(a.value, b.value)
        for a, b in zip(base.calls[1:], other.calls[1:], strict=True)
    ):
        raise Unseen("it has several calls of attention, one after the other")


def _memory(base: Run) -> Iterator[Outcome]:
    """Find keys that no token makes, and that do not stand where their values do."""
    call, keys = base.call, base.case.key.size(1)
    if call.key.size(2) == keys or call.cut:
        return
    own, values = call.tokens_own
    if int(own.sum()) == int(values.sum()) == keys and not torch.equal(own, values):
        text = "keys and values that no token makes stand at different places: each key has another token's value"
        evidence = "seen where other tokens change them"
        yield Finding("equality with the reference", None, text, evidence, how="followed", step="layout")
    yield Given("keys that no token makes")


# Where queries, keys and values come from


def _token_sources(view: View, base: Run, other: Run) -> Iterator[Outcome]:
    """Find queries, keys and values that do not come from their own token alone."""
    misplaced = list(_misplaced(view, base, other))
    if misplaced:
        yield from misplaced
        return
    spread = []
    for name in ROLES:
        before, after = getattr(base.call, name), getattr(other.call, name)
        if not elsewhere(before, after):
            continue
        items, heads, tokens, _ = before.shape
        flat = [x.reshape(items, tokens, 1, -1).transpose(1, 2) for x in (before, after)]
        if items > 1 and name != "query" and view.near(before[1:], before[:1].expand_as(before[1:])):
            yield view.wrong("layout", "only-first-item", f"every item's queries meet the first item's {name}s")
            return
        if heads > 1 and not elsewhere(*flat):
            spread.append(name)
        elif name != "value" and _normalized_over_tokens(before):
            yield view.wrong("layout", None, "queries and keys are normalized over the tokens, not over the features")
            return
        elif name == "key" and not elsewhere(*(x.mT.reshape(x.shape) for x in (before, after))):
            yield view.wrong(
                "layout", None, "keys are reshaped where they should be transposed: a key is made of several tokens"
            )
            return
        else:
            yield unclear(f"a token's {name} depends on other tokens")
    if spread:
        text = f"a view alone splits {' and '.join(spread)} into heads: a head takes whole tokens"
        yield view.wrong("layout", "view-without-transpose", text)


def _misplaced(view: View, base: Run, other: Run) -> Iterator[Outcome]:
    """Find tokens that share one query, key or value, and keys that do not stand where their values do."""
    stands = {}
    for name in ROLES:
        before, after = getattr(base.call, name), getattr(other.call, name)
        if before.shape != after.shape or before.size(2) < 3:
            continue
        source = getattr(base.case, name)
        if view.near(before, before[:, :, :1].expand_as(before)) and source.size(1) == before.size(2):
            if not view.near(before[:1].expand_as(before), before):  # it is no parameter
                text = f"all tokens of an item have the same {name}: their {PLURAL[name]} are made of one"
                yield view.wrong("layout", None, text)
                return
            continue
        which = moved(before, after)
        places = which[0].any(0).nonzero().flatten().tolist()
        if not which[1:].any() and len(places) == 1 and which[0, :, places[0]].all():
            stands[name] = places[0]
    if {"key", "value"} <= stands.keys() and stands["key"] != stands["value"]:
        text = "keys and values stand in different orders: a token's value is weighed by another token's key"
        yield view.wrong("layout", None, text)


def _normalized_over_tokens(x: Tensor) -> bool:
    """Whether a head's squares, or its variances, sum to the same in every item, as after a norm over the tokens."""
    if x.size(0) <= 2:
        return False
    squares = (each.square().sum((2, 3)) for each in (x, x - x.mean(2, keepdim=True)))
    return any(bool((sums.std(0) < 1e-3 * sums.mean(0)).all()) for sums in squares)


def _input_sources(view: View, base: Run) -> Iterator[Outcome]:
    """Change one input alone, and find the queries, keys and values that are made of it and should not be."""
    if view.subject.options.own:
        return
    sources = {"query": base.case.query, "key": base.case.key, "value": base.case.value}
    inputs = [name for name, x in sources.items() if name != "value" or x is not base.case.key]
    made: dict[str, list[str]] = {role: [] for role in sources}
    for name in inputs:
        own = sources[name]
        case = changed(base.case, lambda x, own=own: x.flip(-1) + 0.1 if x is own else x)  # type: ignore[misc]
        other = view.asked(case, base)
        for role in sources:
            if not view.near(getattr(base.call, role), getattr(other.call, role)):
                made[role].append(name)
    exchanged = len(inputs) == 2 and made["query"] == ["key"] and made["key"] == ["query"]  # it may take keys first
    for role, names in made.items():
        right = role if role in inputs else "key"
        if names == [right]:
            continue
        if len(names) == 1 and not exchanged:
            called = {"query": "its tokens", "key": "its context"} if len(inputs) == 2 else {}
            one, another = (called.get(name, f"what it is given as {name}") for name in (names[0], right))
            text = f"its {PLURAL[role]} are made of {one}, not of {another}"
            yield view.wrong("inputs", "wrong-value" if role == "value" else None, text)
        else:
            yield unclear(f"of what its {PLURAL[role]} are made: of {' and '.join(names) or 'no input'}")


def _bias_tables(view: View, base: Run) -> Iterator[Outcome]:
    """Change one column of a table of biases that has a column for each head, and find those that reach more heads."""
    heads = base.call.query.size(1)
    for name, table in view.target.tensors.items():
        one_each = heads > 1 and table.dim() == 2 and table.size(1) == heads
        if not one_each or not view.target.copied or isinstance(view.target.owners[name], nn.Linear):
            continue
        column = table[:, 0].clone()
        try:
            table[:, 0] += drawn(column)
            other = view.asked(base.case, base).call
        finally:
            table[:, 0] = column
        by_head = (other.scores - base.call.scores).nan_to_num().abs().amax((0, 2, 3)) > 1e-6
        if by_head.sum() > 1 and view.near(other.product, base.call.product):
            text = f"a column of {name}, which has one for each head, reaches several heads: viewed, not permuted"
            yield view.wrong("bias", "view-without-transpose", text)
            return


def _padded(view: View, base: Run) -> Iterator[Outcome]:
    """Hide a key from every query of an item, as padding is hidden; the hidden token's own query still attends."""
    items, queries, keys = base.case.query.size(0), base.case.query.size(1), base.case.key.size(1)
    allowed = torch.ones(items, queries, keys, dtype=torch.bool)
    each = torch.arange(items) if view.target.mask_axes != 2 else torch.zeros(items, dtype=torch.long)
    allowed[torch.arange(items), :, 1 + each % (keys - 1)] = False
    run = view.run(replace(base.case, allowed=allowed))
    if len(run.calls) == len(base.calls):
        yield from judged(Scores(view, without_memory(run)))


# Where the results of attention go


def _change_at(places: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that changes a result at these indices of its flattened entries."""

    def change(result: Tensor) -> Tensor:
        flat = result.reshape(-1).clone()
        flat[places.reshape(-1)] += 1.0 + torch.arange(places.numel()).to(flat) % 7
        return flat.view(result.shape)

    return change


def _merging(view: View, base: Run) -> Iterator[Outcome]:
    """Change one token's context, and find whether other outputs move than its own, or a head moves none."""
    if any(call.context.size(2) < 2 for call in base.calls):
        return
    if base.output[0, 1].isnan().any():
        yield unclear("the token that is changed has no output but NaN")
        return
    after = view.run(base.case, {call.place: _change_at(call.index[0, :, 1]) for call in base.calls})
    which = moved(base.output, after.output)
    heads, count = base.call.context.shape[1:3]
    tokens = set(which[0].nonzero().flatten().tolist())
    if bool(which[1:].any()):
        items = len(which)
        # Where item 0, token 1 stands in a view that takes (batch, tokens) for (tokens, batch), or the reverse.
        places = [list(divmod(1, items))[::-1], list(divmod(items, count))]
        if which.nonzero().tolist() in [[place] for place in places]:
            text = "a view exchanges batch and tokens of what attention gives: outputs are those of other items"
            yield view.wrong("layout", "batch-and-tokens-swapped", text)
        else:
            yield unclear("a token's context reaches other items")
    elif not tokens <= {1}:
        text = "a token's context reaches other tokens' outputs"
        if len(base.calls) == 1 and tokens == {(h * count + 1) // heads for h in range(heads)}:
            text = "the heads are merged without transposing back: a token's output is read off other tokens"
            yield view.wrong("layout", "merge-without-transpose", text)
        else:
            yield unclear(text)
    yield from _averaged_heads(view, base)
    for call in base.calls:
        for places in call.index[0, :, 1]:  # of one head
            alone = view.run(base.case, {call.place: _change_at(places)})
            if not bool(moved(base.output, alone.output).any()):
                yield view.wrong("output", None, "what one of the heads gives reaches no output")
                return


def _averaged_heads(view: View, base: Run) -> Iterator[Outcome]:
    """Find a layer behind that takes the same from every head, though their contexts differ."""
    heads, _, dim = base.call.context.shape[1:]
    if view.near(base.call.context, base.call.context[:, :1].expand_as(base.call.context)):
        return
    last = max(call.place for call in base.calls)
    for event in base.events[last + 1 :]:
        taken = event.inputs[0]
        if heads > 1 and event.kind != "softmax" and taken.dim() > 1 and taken.size(-1) == heads * dim:
            parts = taken.unflatten(-1, (heads, dim))
            if view.near(parts, parts[..., :1, :].expand_as(parts)):
                yield view.wrong(
                    "output", None, "the heads' outputs are averaged and repeated, where they belong side by side"
                )
            return


def _beside_attention(view: View, base: Run, other: Run, *, clear: bool) -> Iterator[Outcome]:
    """Change one token, keep the results of attention, and find outputs that move: the token reaches them beside it."""
    put: Put = {c.place: lambda _, kept=base.events[c.place].result: kept for c in base.calls}  # type: ignore[misc]
    kept = view.run(other.case, put)
    if kept.output.shape != base.output.shape:
        return
    which = moved(base.output, kept.output)
    tokens = set(which[0].nonzero().flatten().tolist())
    heads, count = base.call.context.shape[1:3]
    others = bool(which[1:].any())
    if tokens == {1} and not others:
        yield Given("what passes by beside attention")
    if tokens <= {1} and not others:
        return
    if heads > 1 and not others and tokens | {1} == {n % count for n in range(heads, 2 * heads)} | {1}:
        text = "what comes to the heads beside attention is split by a view alone: other tokens reach in"
        yield view.wrong("layout", "view-without-transpose", text)
    elif not others and 1 not in tokens and clear:
        yield view.wrong(
            "layout", None, "what passes by beside attention comes to other tokens' outputs, and not to its own"
        )
    else:
        yield unclear("a token reaches other tokens beside attention")


def _knows_no_places(same: Run) -> bool:
    """Whether a run on tokens that are all the same has no more different numbers than one token makes."""
    for role in ROLES if same.calls else ():
        x = getattr(same.call, role)
        limit = 1e-9 * max(x.abs().max().item(), 1e-3)
        for numbers in x.flatten(1).sort(-1).values:
            if int((numbers.diff() > limit).sum()) + 1 > numbers.numel() // x.size(2):
                return False
    return bool(same.calls)


def _returned_weights(view: View, base: Run) -> Iterator[Outcome]:
    """Compare the weights that it returns with those that it used, of each head or their mean."""
    tokens = view.subject.tokens
    square = view.run(view.subject.case(view.subject.items, tokens, tokens))
    returned = view.target.weights
    if returned is None or len(square.calls) != len(base.calls):
        return
    used = square.call.weights
    if used.shape[-2:] != returned.shape[-2:]:
        return
    returned = returned.reshape(-1, *returned.shape[-2:])
    rows = [x.flatten(0, -3) for x in (used, used.mean(1))]
    if any(view.near(returned, x) for x in rows):
        return
    if any(view.near(returned.mT, x) for x in rows):
        yield view.wrong(
            "returned", None, "the weights that it returns are transposed: rows are keys, and columns queries"
        )
    else:
        yield Given("what it returns beside its output")


def _strays(view: View, base: Run) -> Iterator[Outcome]:
    """Follow a token's query to its row of weights, and the context of this row to the outputs, in any layout.

    Where the query is made of this token alone, the output of this token must notice the context.
    """
    x, small = base.case.query, 0.05 if view.subject.rough else 1e-4  # so small that tokens that are sorted stay so
    items, tokens = x.shape[:2]
    matches = list(matches_in(base.events))
    strays = []
    for n, token in enumerate((1, tokens // 2, tokens - 2)):
        own = torch.zeros(items, tokens, dtype=torch.bool)
        own[n % items, token] = True
        rows = []
        for which in (own, ~own):
            other = torch.where(which[..., None], x + small * (x.flip(-1) + 0.5), x)
            run = view.run(changed(base.case, lambda given, other=other: other if given is x else given))  # type: ignore[misc]
            now = list(matches_in(run.events))
            if [each.place for each in now] != [each.place for each in matches]:
                return
            rows.append([moved(a.query, b.query) for a, b in zip(matches, now, strict=True)])
        for call, mine, others in zip(matches, *rows, strict=True):
            places = call.places[(mine & ~others).flatten()[call.rows]]
            reached = [_reached(view, base, call.place, where) for where in (places, places[:1], places[-1:])]
            there = [there for item, there in reached[0] if item == n % items]
            if any(each != reached[0] for each in reached) or not there or len(there) != len(reached[0]):
                continue  # heads come out at different tokens
            if token not in there:
                strays.append((token, there))
                break
    # A causal model may mean to give each token's result to the next: so no token sees itself.
    shifted = view.subject.causal and all(there == [here + 1] for here, there in strays)
    if strays and not shifted:
        text = "what attention gives for a token comes out at others: its outputs stand at other places than its tokens"
        yield view.wrong("layout", None, text, "open")


def _reached(view: View, base: Run, place: int, where: Tensor) -> list[list[int]]:
    """Return the outputs, (item, token) each, that move with these entries of an event's result."""
    if not len(where):
        return []
    other = view.run(base.case, {place: _change_at(where)})
    reached: list[list[int]] = moved(base.output, other.output).nonzero().tolist()
    return reached


def _chains(view: View, base: Run) -> Iterator[Outcome]:
    """Find a matrix that is applied to its own result, and keys or values that are made of another role's result."""
    known = {t.untyped_storage().data_ptr(): name for name, t in view.target.tensors.items() if t.dim() > 1}
    used = {number for call in base.calls for number in call.used}
    places = [(e, e.matrix) for n, e in enumerate(base.events) if e.kind == "product" and n not in used]
    named = [(e, m, known[m.untyped_storage().data_ptr()]) for e, m in places
             if m is not None and m.untyped_storage().data_ptr() in known]  # fmt: skip
    for (before, one, first), (after, two, second) in itertools.combinations(named, 2):
        ids, end = after.ids[0], before.first + before.result.numel()
        if ids is None or int(ids.min()) < before.first or int(ids.max()) >= end:
            continue
        roles = role_of(first), role_of(second)
        if one.data_ptr() == two.data_ptr() and one.shape == two.shape:
            yield view.wrong("projections", None, f"{second} is applied twice: to what it gave itself")
            return
        if roles in (("query", "key"), ("query", "value"), ("key", "value"), ("value", "key")):
            text = f"{second} is applied to what {first} gave, not to the tokens: {PLURAL[roles[1]]} are made"
            yield view.wrong("projections", None, f"{text} of the {roles[0]}")
            return
