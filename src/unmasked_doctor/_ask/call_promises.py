"""Promises that a call itself shows to be broken: each is asked by calls that differ in one thing."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import torch
from torch import Tensor

from unmasked_doctor._ask.call_designs import designs
from unmasked_doctor._ask.hidings import Hiding, Reach, hidden_seen, hidings, others_shown
from unmasked_doctor._ask.leaves import is_mask, mirrored, padded_before, padding_id
from unmasked_doctor._ask.promises import ALONE, CACHE, FUTURE, HIDDEN, MASK, NUMBERS, ORDER
from unmasked_doctor._ask.sequences import sequences
from unmasked_doctor._ask.user_call import UserCall
from unmasked_doctor._defaults import emptied
from unmasked_doctor._form import Leaf
from unmasked_doctor._report import Finding, Given, Open, Outcome, Passed
from unmasked_doctor._subject import STILL, brief
from unmasked_doctor._tensors import gaps
from unmasked_doctor._words import HIDES, KEPT, LENGTHS

__all__ = ["promises"]

_PLACE = re.compile(r"(?i)start|offset|(^|_)pos|past|shift")
_SAYS_NEIGHBORS = re.compile(r"(?i)adj|neighbou?r|connect")  # who is seen in one layer, and by another need not be
_SAYS_PADDING = re.compile(r"(?i)pad|valid|exist|alive|real|observed|length|lens?$")
_SAYS_HIDDEN = re.compile(r"(?i)pad|blocked|ignore|banned")
_SAYS_SHOWN = re.compile(r"(?i)valid|exist|real|alive|observed|keep|visible|allowed")


def promises(asked: UserCall, *, causal: bool | None, positions: bool | None) -> Iterator[Outcome]:
    """Ask for each promise that the call lets be asked."""
    yield from _repeated(asked)
    yield from _numbers(asked)
    hidden = _unseen(asked)
    yield from _masks(asked, None if causal is False else asked.with_masks_turned(), causal=causal)
    yield from _longer(asked)
    yield from _elements(asked)
    yield from _items(asked)
    yield from sequences(asked)
    if causal:
        yield from _future(asked, hidden)
    elif causal is None:
        yield Open(FUTURE, "whether no token may see a later one: pass causal=True or False")
    else:
        yield from _never_later(asked, hidden)
    if positions is False and not causal:
        yield from _order(asked)
    yield from _kept(asked)
    yield from _pieces(asked) if causal else ()
    yield from _deaf(asked, hidden)
    yield from designs(asked)


def _repeated(asked: UserCall) -> Iterator[Outcome]:
    again = asked.run(asked.given, seed=1)
    if any(
        x.shape != y.shape or bool((gaps(x, y) > asked.share).any()) for x, y in zip(asked.before, again, strict=True)
    ):
        text = "the same call twice gives two outputs, in evaluation"
        yield Finding(STILL, None, text, asked.evidence("called twice"))


def _numbers(asked: UserCall) -> Iterator[Outcome]:
    finite = all(bool(x.isfinite().all()) for x in asked.given if x.is_floating_point() and not bool((x <= -1e4).any()))
    output = asked.output
    if finite and not bool(output.isfinite().all()):
        count = int((~output.isfinite()).sum())
        text = "finite inputs give numbers that are NaN or infinite"
        rows = asked.by_row((~output.isfinite()).to(torch.float64)) > 0
        real = rows & ~_unseen(asked)
        evidence = asked.evidence(f"{count} of {output.numel()} are not finite")
        step = "" if bool(real.any()) else "mask"  # nobody may read what padding gives
        yield Finding(NUMBERS, "fully-masked-row", text, evidence, step=step)


def _unseen(asked: UserCall) -> Tensor:
    """Outputs of tokens that a mask, in the reading that is obeyed, or a length calls padding: (items, outputs)."""
    reach = asked.reaches.get(asked.main)
    shape = (1, 1) if reach is None else reach.moved.shape[:2]
    padded = torch.zeros(shape, dtype=torch.bool)
    if reach is None or len(reach.tokens) != shape[1]:
        return padded
    for at in range(len(asked.leaves)):
        for ways in hidings(asked, at, reach):
            own = [way for way in ways if way.hidden.size(1) == 1]
            blind = [way.hidden.all(-1) for way in ways if way.hidden.size(1) > 1 and bool(way.hidden.all(-1).any())]
            if blind and not own:  # in the sense that hides less
                padded = padded | min(blind, key=lambda each: int(each.sum()))
            if own:
                obeyed = [way for way in own if not bool(hidden_seen(reach, way).any())]
                way = obeyed[0] if obeyed else min(own, key=lambda each: int(each.hidden.sum()))
                padded = padded | way.hidden[:, 0]
    return padded


def _seen_by_others(asked: UserCall, reach: Reach, way: Hiding) -> Tensor:
    """What `hidden_seen` finds, without tokens that move one row, where nobody knows which is a token's own."""
    noticed = hidden_seen(reach, way)
    for item, output, token in noticed.nonzero().tolist() if reach.moved.size(1) == 1 else ():
        rows = asked.rows_that_move(reach.leaf, reach.tokens[token])
        noticed[item, output, token] = rows is None or bool(rows[item] > 1)
    return noticed


def _hides_some(reach: Reach, way: Hiding) -> bool:
    """Whether a reading hides tokens, and leaves outputs that notice anything."""
    lives = reach.moved.any(-1)
    if reach.moved.size(1) == len(reach.tokens):
        lives = lives & ~way.hidden.all(1)
    return bool(way.hidden.any()) and bool(lives.any())


def _masks(asked: UserCall, turned: UserCall | None, *, causal: bool | None) -> Iterator[Outcome]:
    """Ask whether what a mask hides is seen, read in either sense.

    What is causal, by itself or by another mask, sees no padding behind its tokens, whatever it does with a mask: so it
    is asked with padding at the other end, too.
    """
    for at, leaf in enumerate(asked.leaves):
        tried: list[tuple[Hiding, Tensor, Reach, UserCall]] = []
        for one in filter(None, (asked, turned)):
            for reach in one.reaches.values():
                of_tokens = one.leaves[reach.leaf].given.dim() == one.leaves[one.main].given.dim()
                for ways in hidings(one, at, reach) if of_tokens else ():
                    tried += [
                        (way, _seen_by_others(one, reach, way), reach, one) for way in ways if _hides_some(reach, way)
                    ]
        neighbors = _SAYS_NEIGHBORS.search(leaf.name) is not None
        named = HIDES.search(leaf.name) or LENGTHS.search(leaf.name) or neighbors
        if not tried or not (named or leaf is asked.packed or asked.is_padded(at)):
            continue
        seen_as = {(way.told, reach.leaf): 0 for way, _, reach, _ in tried}
        for way, seen, reach, _ in tried:
            seen_as[way.told, reach.leaf] += int(seen.sum())
        obeyed = [told for (told, _), count in seen_as.items() if not count]
        if obeyed:
            yield Passed(HIDDEN)
            yield from _sense(asked, leaf, obeyed)
            ways = [each[0] for each in tried if each[0].told in obeyed]
            yield from _padded_before(asked, leaf, ways) if causal else ()
            continue
        way, seen, reach, one = min(
            (each for each in tried if bool(each[1].any())), key=lambda each: seen_as[each[0].told, each[2].leaf]
        )
        if neighbors and not bool((way.hidden & ~seen).any()):
            continue  # all that it leaves out is seen: it says something else
        item, output, token = seen.nonzero()[0].tolist()
        cause = "padding-ignored" if bool((reach.moved | ~way.hidden).all()) else None
        if not bool(others_shown(reach, way).any()):  # what it hides alone is seen
            cause = "mask-polarity"
        senses = dict.fromkeys(each.told for each, *_ in tried)
        text = f"what {leaf.name} hides is seen" + (
            f", whether it is read as {' and '.join(senses)}" if len(senses) > 1 else ""
        )
        what = f"{asked.leaves[reach.leaf].name}'s token {reach.tokens[token]} of item {item}"
        evidence = f"{what} moves output {output} by {float(reach.gap[item, output, token]):.2g} of the largest"
        evidence += "" if one is asked else ", with padding at the other end"
        axis = asked.token_axis(reach.leaf)
        changed = [(n, axis, reach.tokens[token]) for n in asked.group(reach.leaf)] if axis is not None else []
        told = f"two calls differ only in token {reach.tokens[token]}, which {leaf.name} hides, and an output moves"
        pair = asked.pair(MASK, told, changed, (item, output)) if one is asked else None
        # A mask may be for something else than hiding, such as blocks: then only its name says that it hides.
        sure = (
            (cause is not None and not neighbors)
            or leaf is asked.packed
            or asked.is_padded(at)
            or _SAYS_PADDING.search(leaf.name)
        )
        step, pair = ("", pair) if sure else ("mask", None)
        yield Finding(MASK, cause, text, asked.evidence(evidence), pair=pair, step=step)


def _sense(asked: UserCall, leaf: Leaf, obeyed: list[str]) -> Iterator[Outcome]:
    """Tell in which sense a mask is obeyed, and where its name says the other."""
    if len(set(obeyed)) > 1 or not obeyed[0].startswith("True "):
        return
    yield Given(obeyed[0])
    shows = obeyed[0].startswith("True shows")
    of_keys = leaf.given.dim() == 2 and leaf.given.size(0) == asked.count  # what a tokenizer makes
    if (shows and _SAYS_HIDDEN.search(leaf.name)) or (not shows and _SAYS_SHOWN.search(leaf.name)):
        text = f"{obeyed[0]}, and its name says the other"
    elif not shows and leaf.given.dtype != torch.bool and of_keys and not _SAYS_HIDDEN.search(leaf.name):
        text = f"{obeyed[0]}, which is of {leaf.given.dtype}: tokenizers mark what is a token with 1"
    else:
        return
    evidence = asked.evidence(f"tokens that it {'does not mark' if shows else 'marks'} move no other output")
    yield Finding(MASK, "mask-polarity", text, evidence, step="mask")


def _padded_before(asked: UserCall, leaf: Leaf, ways: list[Hiding]) -> Iterator[Outcome]:
    """Where padding stands before the tokens, give one more of it: what a text gives must stay."""
    placed, shape = asked.placed, asked.leaves[asked.main].given.shape[:2]
    hidden = next((way.hidden[:, 0] for way in ways if way.hidden.size(1) == 1), None)
    if hidden is None or hidden.shape != shape or asked.rows(asked.main) != 0 or placed != 1:
        return
    made = padded_before(asked.given, ~hidden, asked.content if not asked.words else [])
    try:
        after = None if made is None else asked.run(made)[0].narrow(1, 1, shape[1])
    except Exception:  # built for its own length
        return
    if after is None or after.shape != asked.output.shape:
        return
    gap = asked.by_row(gaps(asked.output, after)).masked_fill(hidden, 0.0)
    if float(gap.max()) > asked.share:
        text = f"with one more token of padding before a text, which {leaf.name} hides, it gives something else"
        evidence = asked.evidence(f"outputs of real tokens move by {float(gap.max()):.2g}: its positions count padding")
        yield Finding(MASK, None, text, evidence, step="positions")


def _longer(asked: UserCall) -> Iterator[Outcome]:
    """Where padding is told by the tokens alone, zeros or one id at the end of an item: ask with one more of it."""
    axis, placed, x = asked.of_tokens, asked.placed, asked.leaves[asked.main].given
    if axis != 1 or placed is None or len(asked.leaves) > len(asked.group(asked.main)) or asked.of_items[0] is None:
        return
    pad = padding_id(x) if asked.words else 0
    if pad is None:
        return
    padded = x.eq(pad) if asked.words else x.eq(0).all(-1)
    behind = padded.flip(1).cumprod(1).flip(1).bool()
    if int(padded.sum(1).max()) < 2 or not torch.equal(padded, behind):
        return
    made = asked.given
    for n in asked.group(asked.main):
        made[n] = torch.cat([made[n], torch.full_like(x[:, :1], pad)], 1)
    try:
        after = asked.run(made)[0]
    except Exception:  # built for its own length
        return
    if after.dim() != asked.output.dim() or after.size(placed) != x.size(1) + 1:
        return
    gap = asked.by_row(gaps(asked.output, after.narrow(placed, 0, x.size(1)))).masked_fill(padded, 0.0)
    if float(gap.max()) <= asked.share:
        yield Passed(HIDDEN)
        return
    item, token = (gap == gap.max()).nonzero()[0].tolist()
    text = f"padding behind the tokens, {f'id {pad}' if asked.words else 'zeros'}, is seen"
    evidence = f"one more of it moves output {token} of item {item} by {float(gap.max()):.2g} of the largest"
    yield Finding(MASK, "padding-ignored", text, asked.evidence(evidence), step="mask")


def _elements(asked: UserCall) -> Iterator[Outcome]:
    """Change all that a mask of places, such as those of an image or of pairs, hides, in each sense."""
    main, output = asked.leaves[asked.main].given, asked.output
    for leaf in asked.leaves:
        x = leaf.given
        if main.dim() < 4 or x.shape != main.shape[:-1] or not is_mask(leaf) or not HIDES.search(leaf.name):
            continue
        worst = []
        for hidden in (x.bool(), ~x.bool()):
            made = asked.given
            made[asked.main] = torch.where(hidden[..., None], mirrored(main), main)
            after = asked.run(made)[0]
            gap = gaps(output, after).amax(-1) if output.shape[:-1] == x.shape == after.shape[:-1] else None
            if gap is None or not bool(hidden.any()):
                break
            worst.append(float(gap.masked_fill(hidden, 0.0).max()))
        if len(worst) < 2:
            continue
        if min(worst) > asked.share:
            text = f"what {leaf.name} hides is seen, whether True hides in it or shows"
            yield Finding(MASK, "padding-ignored", text, asked.evidence(f"outputs move by {min(worst):.2g}"))
        else:
            yield Passed(HIDDEN)


def _items(asked: UserCall) -> Iterator[Outcome]:
    """Change one item, its tokens and then its masks, and put the items in another order, at two sizes."""
    axis, count = asked.of_items[0], asked.count
    if asked.packed is not None:
        return
    if axis is None or asked.grown is None:
        yield Open(ALONE, "a call that takes one item more, and outputs with an axis of items")
        return
    if asked.chosen:
        yield Open(ALONE, f"a call without {asked.chosen}, which says more of each item, or which item is which")
        return
    shown = [dict(_apart(asked, tensors, axis)) for tensors in (asked.given, asked.grown)]
    both = [what for what in shown[1] if what in shown[0] or count < 2]
    if both:
        text = f"an item's output depends on {both[0]}"
        evidence = f"it moves by {shown[1][both[0]]:.2g} of the largest, with {count + 1} items"
        pair = None
        if both[0] == "another item" and count > 1:
            changed = [(n, rows, 0) for n in asked.content if (rows := asked.rows(n)) is not None]
            made = asked.given
            for n, rows, _ in changed:
                made[n] = made[n].clone()
                made[n].select(rows, 0).copy_(asked.other(n, made[n].select(rows, 0)))
            moved = asked.moved(made)
            if moved is not None and bool((moved[1:] > asked.share).any()):
                item, token = (moved[1:] == moved[1:].max()).nonzero()[0].tolist()
                told = f"two calls differ only in item 0, and an output of item {item + 1} moves"
                pair = asked.pair(ALONE, told, changed, (item + 1, token))
        yield Finding(ALONE, None, text, asked.evidence(evidence), pair=pair)
    else:
        yield Passed(ALONE)


def _apart(asked: UserCall, tensors: list[Tensor], axis: int) -> Iterator[tuple[str, float]]:
    """What an item's output depends on beside itself, and by how much of the largest it moves."""
    before = asked.run(tensors)[0]
    size = before.size(axis)
    rows = {n: at for n in range(len(tensors)) if (at := asked.rows(n)) is not None and tensors[n].size(at) == size}

    def gap(made: list[Tensor], kept: list[int], expected: Tensor) -> float:
        try:
            after = asked.run(made)[0]
        except Exception:  # a mask that it refuses
            return 0.0
        if after.shape != expected.shape or not kept:
            return 0.0
        most = float(gaps(expected, after).index_select(axis, torch.tensor(kept)).max())
        return most if most > asked.share else 0.0

    for what, content in (("another item", True), ("another item's mask", False)):
        worst = 0.0
        for at in (0, size - 1):
            made = [x.clone() for x in tensors]
            for n, place in rows.items():
                if (n in asked.content) == content:
                    row = made[n].narrow(place, at, 1)
                    row.copy_(asked.other(n, row) if content else tensors[n].narrow(place, (at + 1) % size, 1))
            worst = max(worst, gap(made, [n for n in range(size) if n != at], before))
        if worst:
            yield what, worst
    turned = [x.roll(1, rows[n]) if n in rows else x for n, x in enumerate(tensors)]
    if moved := gap(turned, list(range(size)), before.roll(1, axis)):
        yield "its place in the batch", moved
    for at in range(size) if size > 1 else ():
        single = [x.narrow(rows[n], at, 1) if n in rows else x for n, x in enumerate(tensors)]
        if moved := gap(single, [0], before.narrow(axis, at, 1)):
            yield "whether others are there", moved
            return


def _future(asked: UserCall, padded: Tensor) -> Iterator[Outcome]:
    """Ask whether an output notices a later token."""
    reach = asked.reaches.get(asked.main)
    if reach is not None and len(reach.tokens) < 2:
        return
    if reach is None or asked.placed is None or reach.moved.size(1) < 2:
        yield Open(FUTURE, "outputs with an axis of tokens, as many as it was given")
        return
    later = torch.arange(reach.moved.size(1))[:, None] < torch.tensor(reach.tokens)
    leaks = reach.moved & later & ~padded[..., None]
    if len(reach.tokens) == padded.size(1):
        leaks = leaks & ~padded[:, None, :]  # what is padding is asked about by itself
    if not bool(leaks.any()):
        yield Passed(FUTURE)
        return
    item, output, token = leaks.nonzero()[0].tolist()
    if not asked.confirmed(output, reach.tokens[token]):
        yield Open(
            FUTURE, f"other sizes: only of {reach.moved.size(1)} tokens does token {reach.tokens[token]} move it"
        )
        return
    text = "later tokens are seen, and causal=True says that none is"
    dense = bool((reach.moved | padded[..., None]).all())
    evidence = (
        f"token {reach.tokens[token]} of item {item} moves output {output} by {reach.gap[item, output, token]:.2g}"
    )
    axis = asked.token_axis(asked.main)
    changed = [(n, axis, reach.tokens[token]) for n in asked.group(asked.main)] if axis is not None else []
    told = f"two calls differ only in token {reach.tokens[token]}, and the output of token {output} moves"
    pair = asked.pair(FUTURE, told, changed, (item, output))
    cause = "no-causal-mask" if dense else None
    step = "mask" if asked.leaves[asked.main].given.dim() > 3 else ""  # which axis of an image is time, nobody said
    yield Finding(FUTURE, cause, text, asked.evidence(f"{evidence} of the largest"), pair=pair, step=step)


def _never_later(asked: UserCall, padded: Tensor) -> Iterator[Outcome]:
    """Tell of outputs that notice earlier tokens and no later one, though nobody asked for that."""
    reach = asked.reaches.get(asked.main)
    if reach is None or reach.moved.size(1) != len(reach.tokens) or len(reach.tokens) < 4:
        return
    size = len(reach.tokens)
    if any(is_mask(leaf) and list(leaf.given.shape).count(size) > 1 for leaf in asked.leaves):
        return  # which may hide them
    moved = reach.moved & ~padded[..., None]
    later = torch.ones(size, size).triu(1).bool()
    if bool((moved & later.mT).any()) and not bool((moved & later).any()):
        text = "no output notices a later token, and causal=False says that they may be seen"
        evidence = asked.evidence("other numbers in a token move its own and later outputs alone")
        yield Finding("later tokens are seen", None, text, evidence, step="mask")


def _order(asked: UserCall) -> Iterator[Outcome]:
    """Put the tokens in another order, with all that goes along with them."""
    axis, placed = asked.of_tokens, asked.placed
    if axis is None or placed is None or any(leaf.given.dim() < 2 for leaf in asked.leaves):
        return
    size = asked.leaves[asked.main].given.size(axis)
    made = asked.given
    for n, x in enumerate(made):
        items = asked.rows(n)
        own = n in asked.group(asked.main)
        for place in [axis] if own else [p for p in range(x.dim()) if p != items and n not in asked.content]:
            made[n] = made[n].roll(1, place) if x.size(place) == size else made[n]
    before = asked.output
    after = asked.run(made)[0]
    gap = asked.by_row(gaps(before, after.roll(-1, placed))) if after.shape == before.shape else None
    if gap is not None and float(gap.max()) > asked.share:
        text = "its outputs depend on the order of the tokens, and positions=False says that it must not count"
        yield Finding(ORDER, None, text, asked.evidence(f"in another order, off by {float(gap.max()):.2g}"))


def _kept(asked: UserCall) -> Iterator[Outcome]:
    """Call it between two equal calls with other tokens, masks and lengths, which must change nothing."""
    check = KEPT
    between = [asked.other(n, x) if n in asked.content else x for n, x in enumerate(asked.given)]
    turned = list(between)
    for n, x in enumerate(between):
        rows = asked.rows(n)
        if n not in asked.content and rows is not None:
            turned[n] = x.roll(1, rows)
    used = asked.fresh()
    try:
        first = used(asked.given)[0]
        second = used(turned)[0]
        again, fresh = used(asked.given)[0], asked.fresh()(turned)[0]
    except Exception as error:  # a mask that it refuses
        yield Open(check, f"a target that takes the masks of its items in another order: {brief(error)}")
        return
    pairs = [(first, again), (second, fresh)]
    for form in asked.numbered.values():
        with contextlib.suppress(Exception):  # a number that it refuses
            other = asked.fresh()
            other(asked.given, form=form)
            pairs.append((first, other(asked.given)[0]))
    with emptied(asked.target) as kept:
        if kept:
            pairs.append((second, asked.fresh()(turned)[0]))
    for tensors in _other_lengths(asked):
        try:
            pairs.append((used(tensors)[0], asked.fresh()(tensors)[0]))
        except Exception:  # built for its own length: asked fresh it would raise, too
            used = asked.fresh()
    apart = [float(gaps(x, y).max()) if x.shape == y.shape else torch.inf for x, y in pairs if x.numel()]
    if max(apart, default=0.0) > asked.share:
        text = "what a call gives depends on the calls before it: something is kept from call to call"
        yield Finding(check, None, text, asked.evidence(f"after another call, off by {max(apart):.2g} of the largest"))
    else:
        yield Passed(check)


def _other_lengths(asked: UserCall) -> Iterator[list[Tensor]]:
    """The same call with one token less; and with one less of its tokens and one more of another argument's."""
    axis = asked.of_tokens
    if axis is None or asked.leaves[asked.main].given.size(axis) < 3:
        return
    yield [asked.shortened(n, axis) for n in range(len(asked.leaves))]
    own = asked.group(asked.main)
    rest = [n for n in asked.content if n not in own and asked.token_axis(n) == axis]
    if len(rest) == 1 and len(own) + 1 == len(asked.leaves):
        made = asked.given
        made[rest[0]] = torch.cat([made[rest[0]], made[rest[0]].narrow(axis, 0, 1)], axis)
        for n in own:
            made[n] = asked.shortened(n, axis)
        yield made


def _pieces(asked: UserCall) -> Iterator[Outcome]:
    """Give the sequence in pieces, each with what the one before returned beside its output."""
    if not asked.keeps:  # what was kept was passed
        asked = asked.from_nothing() or asked
    names, main, axis = asked.keeps, asked.leaves[asked.main].given, asked.of_tokens
    if not names or axis is None or asked.placed is None or main.size(axis) < 3:
        return
    if any(n not in asked.group(asked.main) for n in range(len(asked.leaves))):
        return  # what else goes along with the tokens is not known
    size = main.size(axis)
    for plan in ([size - 2, 1, 1], [1] * size, [2, size - 2]):
        output = asked.in_pieces(names, plan, axis)
        if output is None or output.shape != asked.output.shape:
            return
        gap = asked.by_row(gaps(asked.output, output)).amax(0)
        if float(gap.max()) > asked.share:
            kept = " and ".join(names)
            text = f"in pieces, each with the {kept} that the one before returned, it gives another output than at once"
            at = int((gap > asked.share).nonzero()[0])
            evidence = (
                f"{size} tokens given as {' + '.join(map(str, plan))}: output {at} is off by {float(gap[at]):.2g}"
            )
            yield Finding(CACHE, None, text, asked.evidence(f"{evidence} of the largest"))
            return
    yield Passed(CACHE)


def _apart_from_its_kin(asked: UserCall, n: int) -> Iterator[Outcome]:
    """Of arguments that are changed along with others, as queries with keys, name those that alone move nothing."""
    kin = asked.group(n)
    tensors = {each: asked.leaves[each].given for each in kin}
    for each, x in tensors.items():
        alike = [other for other, y in tensors.items() if torch.equal(x, y)]
        if len(alike) == len(kin):
            return
        if each == alike[0] and not asked.any_moves(set(), {other: asked.other(other, x) for other in alike}):
            name = asked.leaves[each].name
            evidence = asked.evidence(f"other numbers in {name} alone move nothing")
            yield Finding("every argument counts", None, f"no output depends on {name}", evidence, step="inputs")


def _unused(asked: UserCall) -> Iterator[Outcome]:
    """Name whole numbers, such as positions, or a row of them, that change nothing when they come in another order."""
    for n, leaf in enumerate(asked.leaves):
        x = leaf.given
        if n in asked.content or is_mask(leaf) or x.dtype == torch.bool or x.is_floating_point() or x.dim() == 0:
            continue
        tried = {leaf.name: x.flip(-1)}
        for at in range(len(x)) if x.dim() > 2 and len(x) < 5 else ():
            tried[f"{leaf.name}[{at}]"] = torch.cat([x[:at], x[at : at + 1].flip(-1), x[at + 1 :]])
        half = torch.cat([x[:1].flip(-1), x[1:]]) if x.dim() == 2 else x  # rows, as of edges, may turn together
        for what, other in tried.items():
            if torch.equal(other, x) or asked.any_moves(set(), {n: other}):
                continue
            if x.dim() != 2 or (not torch.equal(half, x) and not asked.any_moves(set(), {n: half})):
                evidence = asked.evidence(f"the other way round {what} moves nothing")
                yield Finding("every argument counts", None, f"no output depends on {what}", evidence, step="inputs")
                break
    for name, form in asked.numbered.items():
        with contextlib.suppress(Exception):  # a number that it refuses
            after = asked.fresh()(asked.given, form=form)
            if _PLACE.search(name) and all(map(torch.equal, asked.before, after)):
                evidence = asked.evidence(f"with {name} one larger, nothing moves")
                yield Finding("every argument counts", None, f"no output depends on {name}", evidence, step="inputs")


def _deaf(asked: UserCall, padded: Tensor) -> Iterator[Outcome]:
    """Name tokens that no output notices, and that nothing hides; and where no output notices another token at all."""
    check = "every token is seen"
    for reach in asked.reaches.values():
        unseen = ~reach.moved.any(1)  # items, tokens
        for at in range(len(asked.leaves)):
            for ways in hidings(asked, at, reach):
                for way in ways:
                    unseen = unseen & ~way.hidden.all(1) if way.hidden.size(0) == unseen.size(0) else unseen & False
        lost = unseen.all(0)
        name = asked.leaves[reach.leaf].name
        if bool(lost.all()) and not bool(padded.all()):
            if asked.any_moves({reach.leaf}):
                continue  # another output than the first
            text = f"no output depends on {name}"
            evidence = asked.evidence(f"other numbers in {name} move nothing")
            yield Finding("every argument counts", None, text, evidence, step="inputs")
            continue
        yield from _apart_from_its_kin(asked, reach.leaf)
        lost = lost & (~lost).cumsum(0).bool()  # behind a token that is noticed: a window forgets what is before
        if bool(lost.any()):
            which = ", ".join(str(reach.tokens[n]) for n in lost.nonzero().flatten().tolist())
            text = f"no output notices some tokens of {name}, which nothing hides"
            evidence = asked.evidence(f"token {which} moves no output")
            yield Finding(check, None, text, evidence, step="mask")
    yield from _unused(asked)
    own = asked.reaches.get(asked.main)
    image = asked.leaves[asked.main].given.dim() > 3  # of which one axis may not attend
    if own is not None and not image and len(asked.reaches) == 1 and own.moved.size(1) == len(own.tokens) > 2:
        others = own.moved & ~torch.eye(len(own.tokens), dtype=torch.bool)
        alone = all(asked.leaves[n].given.dim() < 2 or n in asked.group(asked.main) for n in asked.content)
        if alone and not bool(others.any()):
            text = "no output depends on another token: nothing attends"
            evidence = asked.evidence("each token moves its own output alone")
            yield Finding("other tokens are seen", None, text, evidence, step="mask")
