"""Promises that a call itself shows to be broken: the call as its user makes it, and calls that differ in one thing.

Nothing has to be known of what the target computes. Which axis counts items and which counts tokens is told by calls
with one more of them; and one table says which outputs notice which token, from which all else is read.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from unmasked import _generators
from unmasked_doctor._ask.promises import ALONE, FUTURE, MASK, ORDER, prepared
from unmasked_doctor._asker import floats
from unmasked_doctor._form import Form, Leaf, mapped
from unmasked_doctor._report import Finding, Open, Outcome, Passed
from unmasked_doctor._subject import STILL, brief

__all__ = ["AsCalled", "promises"]

_MASK = re.compile(r"(?i)mask|pad|valid|allow|visible|hidden|keep|alive|exist|real|observed|length|lens?$")
_NO_MASK = re.compile(r"(?i)prefix|prompt|segment|type|loss|label|random|noise|hidden_?(state|size|dim)")
_LENGTHS = re.compile(r"(?i)length|lens?$|sizes?$|num_|^n_|counts?$")
_TOKENS_TOO = {"k", "key", "keys", "v", "value", "values", "val"}  # the queries' own, where they are as many
_OF_KEYS = re.compile(r"(?i)^(k|v|keys?|values?|val|context|memory|mem|cond.*|enc.*|kv|past.*|cache.*)$|encoder|memory")
_MOST = 12  # tokens that are changed
NUMBERS = "finite inputs give finite outputs"
_SHARE, _SHARE_ROUGH = 1e-7, 2e-3  # of the largest output: what moves less is rounding


@dataclass(frozen=True)
class _Reach:
    """Which outputs notice which tokens of an argument.

    Attributes:
        leaf: The argument's place among the tensors of the call.
        tokens: The tokens that were changed.
        moved: (items, outputs, tokens) for outputs with an axis of tokens, (items, 1, tokens) for others.
        gap: By how much each moved: the same shape.
    """

    leaf: int
    tokens: list[int]
    moved: Tensor
    gap: Tensor


@dataclass(frozen=True)
class _Hiding:
    """What an argument may hide, if it is read so.

    Attributes:
        told: The reading, in words.
        hidden: Which token is hidden from which output: (items, outputs or 1, tokens).
    """

    told: str
    hidden: Tensor


class AsCalled:
    """A target and a call of it.

    Attributes:
        form: The call, whose leaves are its tensors.
        axis: The axis of items, where there is one.
        main: Which leaf has the tokens that outputs are of.
    """

    def __init__(self, target: Callable[..., Any], form: Form, *, batch_first: bool) -> None:
        self.target, self.form, self.axis = target, form, 0 if batch_first else 1
        self.leaves = form.leaves
        self.content = [n for n, leaf in enumerate(self.leaves) if _is_content(leaf)]
        self.main = next((n for n in self.content if self.leaves[n].given.dim() > 2), self.content[0])
        self.share = _SHARE
        self.run = self._runner()
        self.main = self._main()
        self.packed = next((leaf for leaf in self.leaves if _is_offsets(leaf, self.leaves[self.main].given)), None)

    def _main(self) -> int:
        """The argument that outputs are of: the first, of queries by their names if there are some, as they are long."""
        output = self.output

        def fits(n: int) -> bool:
            x = self.leaves[n].given
            return x.dim() > 2 and x.dim() == output.dim() and x.shape[:-1] == output.shape[:-1]

        fitting = [n for n in self.content if fits(n)]
        named = [n for n in fitting if not _OF_KEYS.search(self.leaves[n].name)]
        return next(iter(named or fitting), self.main)

    def _runner(self) -> Callable[..., list[Tensor]]:
        """A copy of the target that may be called: in float64 where it runs so, or else in its own precision."""
        for make in self._makers():
            run = self._of(make())
            with contextlib.suppress(Exception):  # one that does not compute in this precision
                if run([leaf.given for leaf in self.leaves]):
                    self._make = make
                    return run
        raise ValueError("it gives no floating tensor")

    def fresh(self) -> Callable[..., list[Tensor]]:
        """Another copy, that was never called."""
        return self._of(self._make())

    def _makers(self) -> Iterator[Callable[[], Any]]:
        """Ways to copy the target, the most exact first: with parameters drawn anew, or as it is."""
        target = self.target
        held = target.parameters() if isinstance(target, nn.Module) else ()
        own = next((x.dtype for x in held if x.is_floating_point()), torch.float32)
        for self.dtype in (torch.float64, own):
            self.share = _SHARE if self.dtype == torch.float64 else _SHARE_ROUGH
            yield functools.partial(prepared, target, self.dtype) if isinstance(target, nn.Module) else lambda: target
        if isinstance(target, nn.Module):
            yield lambda: copy.deepcopy(target).eval()

    def _of(self, target: Any) -> Callable[..., list[Tensor]]:
        held = [*target.parameters(), *target.buffers()] if isinstance(target, nn.Module) else []
        device = next((x.device for x in held), torch.device("cpu"))

        def run(tensors: list[Tensor], seed: int = 0) -> list[Tensor]:
            rest = iter(tensors)

            def made(_: Leaf) -> Tensor:
                x = next(rest).clone().to(device)
                return x.to(self.dtype) if x.is_floating_point() else x

            args = tuple(mapped(value, made, copied=True) for value in self.form.args)
            kwargs = {name: mapped(value, made, copied=True) for name, value in self.form.kwargs.items()}
            with torch.no_grad(), _generators.forked():
                torch.manual_seed(seed)
                return [x.detach().to("cpu", torch.float64) for x in floats(target(*args, **kwargs))]

        return run

    # What is asked

    @property
    def given(self) -> list[Tensor]:
        return [leaf.given for leaf in self.leaves]

    @cached_property
    def before(self) -> list[Tensor]:
        return self.run(self.given)

    @property
    def output(self) -> Tensor:
        return self.before[0]

    def rows(self, n: int) -> int | None:
        """The axis of items of a tensor."""
        x, main = self.leaves[n].given, self.leaves[self.main].given
        if self.packed is not None or main.dim() < 3:
            return None
        count = main.size(self.axis)
        axes = [self.axis, 0] if x.dim() > 1 else [0]
        return next((axis for axis in axes if x.dim() > axis and x.size(axis) == count), None)

    @property
    def count(self) -> int:
        """How many items there are."""
        main = self.leaves[self.main].given
        return 1 if self.rows(self.main) is None else main.size(self.axis)

    @cached_property
    def grown(self) -> list[Tensor] | None:
        """The call with one item more, of other numbers; None where the target refuses that."""
        axes = {n: axis for n in range(len(self.leaves)) if (axis := self.rows(n)) is not None}
        spare = [n for n in axes if n not in self.content]  # which may have as many rows by chance
        for left_out in itertools.chain([()], ((n,) for n in spare)):
            more = self.given
            for n, axis in axes.items():
                if n not in left_out:
                    last = more[n].narrow(axis, self.count - 1, 1)
                    more[n] = torch.cat([more[n], _other(last) if n in self.content else last], axis)
            with contextlib.suppress(Exception):  # whatever a stranger's module raises
                self.run(more)
                return more
        return None

    @cached_property
    def of_items(self) -> list[int | None]:
        """The axis of items of each output: the one that grows with them."""
        if self.grown is None or self.rows(self.main) is None:
            return [None] * len(self.before)
        return [_grows(x, y) for x, y in zip(self.before, self.run(self.grown), strict=False)]

    @cached_property
    def of_tokens(self) -> int | None:
        """The axis of tokens of the main argument: the one along which it may be shortened, or else the usual one."""
        main = self.leaves[self.main].given
        items = self.rows(self.main)
        axes = [axis for axis in range(main.dim()) if axis != items]
        usual = axes[0] if axes else None
        for axis in axes[: main.dim() - (items is None)]:
            if main.size(axis) > 2 and self.shorter(axis) is not None:
                return axis
        return usual

    def shorter(self, axis: int) -> list[Tensor] | None:
        """The call with one token less, in all that has as many."""
        main = self.leaves[self.main].given
        size = main.size(axis)

        def cut(n: int) -> Tensor:
            x, items = self.leaves[n].given, self.rows(n)
            for place in range(x.dim()):
                features = n in self.content and place == x.dim() - 1 and n != self.main
                if place != items and x.size(place) == size and not features:
                    x = x.narrow(place, 0, size - 1)
            return x if n != self.main else main.narrow(axis, 0, size - 1)

        made = [cut(n) for n in range(len(self.leaves))]
        with contextlib.suppress(Exception):  # built for its own length
            output = self.run(made)[0]
            if output.dim() == self.output.dim():
                return made
        return None

    @cached_property
    def placed(self) -> int | None:
        """The axis of tokens of the first output; None where it has none."""
        axis, main, output = self.of_tokens, self.leaves[self.main].given, self.output
        if axis is None:
            return None
        size = main.size(axis)
        items = self.of_items[0]
        same = [place for place in range(output.dim()) if output.size(place) == size and place != items]
        fewer = self.shorter(axis)
        if fewer is not None:
            now = self.run(fewer)[0]
            same = [place for place in same if now.size(place) == size - 1]
        return axis if axis in same else same[0] if same else None

    def moved(self, tensors: list[Tensor], before: Tensor | None = None) -> Tensor | None:
        """By how much each row of the first output moved, as a share of the largest number: (items, tokens)."""
        before = self.output if before is None else before
        try:
            after = self.run(tensors)[0]
        except Exception:  # whatever a stranger's module raises
            return None
        if after.shape != before.shape:
            return None
        return self.by_row(_gaps(before, after))

    def by_row(self, gap: Tensor) -> Tensor:
        """The largest number of each row of an output: (items or 1, tokens or 1)."""
        items, tokens = self.of_items[0], self.placed
        kept = [axis for axis in (items, tokens) if axis is not None]
        gap = gap.movedim(kept, tuple(range(len(kept)))).flatten(len(kept))
        most = gap.amax(-1) if gap.dim() > len(kept) else gap
        if items is None:
            most = most.unsqueeze(0)
        return most if tokens is not None else most.unsqueeze(-1)

    def group(self, n: int) -> list[int]:
        """The arguments whose tokens are those of this one: the same tensor, or its keys and values."""
        x = self.leaves[n].given

        def goes_along(leaf: Leaf) -> bool:
            same = leaf.given.shape == x.shape and torch.equal(leaf.given, x)
            named = n == self.main and leaf.name.lower() in _TOKENS_TOO
            kept = x.dim() == leaf.given.dim() != self.leaves[self.main].given.dim() and x.shape == leaf.given.shape
            return same or kept or (named and leaf.given.shape[:-1] == x.shape[:-1])

        return [i for i in self.content if i == n or goes_along(self.leaves[i])]

    def changed(self, n: int, token: int) -> list[Tensor] | None:
        """The call with another token in one argument; None where that has no axis of tokens."""
        axis = self.token_axis(n)
        if axis is None:
            return None
        made = self.given
        for i in self.group(n):
            made[i] = made[i].clone()
            row = made[i].select(axis, token)  # whose last axis has features
            row.copy_(_other(row))
        return made

    def confirmed(self, output: int, token: int) -> bool:
        """Whether an output notices a token in another number of items, too; or whether that is refused."""
        axis, items, placed = self.of_tokens, self.of_items[0], self.placed
        if self.grown is None or axis is None or items is None or placed is None:
            return True
        made = [x.clone() for x in self.grown]
        for n in self.group(self.main):
            row = made[n].select(axis, token)
            row.copy_(_other(row))
        before, after = (self.run(tensors)[0] for tensors in (self.grown, made))
        return bool((_gaps(before, after).select(placed, output) > self.share).any())

    def token_axis(self, n: int) -> int | None:
        """The axis of tokens of an argument: that of the main one, where it has as many axes."""
        x, main = self.leaves[n].given, self.leaves[self.main].given
        if x.dim() == main.dim():
            return self.of_tokens
        return next((axis for axis in (2, 1) if x.dim() == 4 and self.longer(n, axis)), None)  # kept keys and values

    def longer(self, n: int, axis: int) -> bool:
        """Whether it takes one token more along an axis of arguments of one shape."""
        made = self.given
        for i in self.group(n):
            made[i] = torch.cat([made[i], made[i].narrow(axis, 0, 1)], axis)
        try:
            return self.run(made)[0].shape == self.output.shape
        except Exception:  # whatever a stranger's module raises
            return False

    @cached_property
    def reaches(self) -> dict[int, _Reach]:
        """For each argument of tokens, which outputs notice them."""
        found: dict[int, _Reach] = {}
        for n in self.content:
            axis = self.token_axis(n)
            if axis is None or any(n in self.group(known) for known in found):
                continue
            size = self.leaves[n].given.size(axis)
            tokens = list(range(size)) if size <= _MOST else [*torch.linspace(0, size - 1, _MOST).long().tolist()]
            gaps = []
            for token in tokens:
                made = self.changed(n, token)
                gap = None if made is None else self.moved(made)
                if gap is None:
                    break
                gaps.append(gap)
            if len(gaps) == len(tokens) and tokens:
                gap = torch.stack(gaps, -1)
                found[n] = _Reach(n, tokens, gap > self.share, gap)
        return found

    def is_padded(self, at: int) -> bool:
        """Whether whole numbers, as ids of words, count only by being zero, as where zero is padding at one end."""
        x = self.leaves[at].given
        if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool or not bool((x == 0).any()):
            return False
        if bool(((x == 0) | (x == 1)).all()):
            return False
        made = self.given
        made[at] = torch.where(x != 0, x.roll(1, 1).clamp(min=1), 0)
        others = self.moved(made)
        made[at] = x.clamp(min=1)
        without = self.moved(made)
        if others is None or without is None:
            return False
        return not bool((others > self.share).any()) and bool((without > self.share).any())

    def hidings(self, at: int, reach: _Reach) -> Iterator[list[_Hiding]]:
        """For an argument that may hide tokens, each way to read it, for the tokens that were asked about."""
        leaf, (items, outputs, _) = self.leaves[at], reach.moved.shape
        x, axis = leaf.given, self.token_axis(reach.leaf)
        if _NO_MASK.search(leaf.name) or axis is None:
            return
        size = self.leaves[reach.leaf].given.size(axis)
        if leaf is self.packed:
            which = torch.bucketize(torch.arange(size), x[1:], right=True)
            if outputs == size and reach.leaf == self.main:
                apart = which[:, None] != which[None, reach.tokens]
                yield [_Hiding(f"{leaf.name} parts sequences", apart[None])]
            return
        if tuple(x.shape) == (items, size) and self.is_padded(at):
            yield [_Hiding(f"0 is padding in {leaf.name}", (x == 0)[:, None, reach.tokens])]
            return
        if x.dim() == 1 and x.numel() == items and _LENGTHS.search(leaf.name) and not x.is_floating_point():
            if int(x.max()) <= size and int(x.min()) >= 0:
                yield [_Hiding(f"{leaf.name} counts tokens", (torch.arange(size) >= x[:, None])[:, None, reach.tokens])]
            return
        if not _is_mask(leaf):
            return
        hides = x.bool() if not x.is_floating_point() or bool((x == 1).any()) else x <= -1e4
        squeezed = hides.squeeze(1) if hides.dim() == 4 and hides.size(1) == 1 else hides
        senses = ["True hides", "True shows"] if not x.is_floating_point() or bool((x == 1).any()) else ["low hides"]
        made: list[Tensor] = []
        if squeezed.dim() == 2 and tuple(squeezed.shape) == (items, size):
            made.append(squeezed[:, None])
        if squeezed.dim() == 2 and tuple(squeezed.shape) == (outputs, size):
            made.append(squeezed[None])
        if squeezed.dim() == 3 and squeezed.size(0) in (1, items) and squeezed.size(1) in (1, outputs):
            made += [squeezed] if squeezed.size(2) == size else []
        ways = [
            _Hiding(f"{sense} in {leaf.name}", (y if sense != "True shows" else ~y)[..., reach.tokens])
            for y in made for sense in senses
        ]  # fmt: skip
        if ways:
            yield ways


def _is_content(leaf: Leaf) -> bool:
    return leaf.given.is_floating_point() and leaf.given.dim() > 1 and not _is_mask(leaf)


def _is_mask(leaf: Leaf) -> bool:
    x = leaf.given
    if x.dtype == torch.bool:
        return True
    binary = bool(((x == 0) | (x == 1)).all()) if x.numel() else False
    if x.is_floating_point():
        return x.dim() > 1 and (bool(((x == 0) | (x <= -1e4)).all()) or (binary and bool(_MASK.search(leaf.name))))
    return x.dim() > 1 and binary and bool(_MASK.search(leaf.name))


def _is_offsets(leaf: Leaf, main: Tensor) -> bool:
    x = leaf.given
    whole = not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)
    return whole and x.dim() == 1 and len(x) > 1 and bool(x[0] == 0) and int(x[-1]) == main.size(0)


def _other(x: Tensor) -> Tensor:
    """Other numbers, made of the same ones."""
    return 1 - x.flip(-1)


def _gaps(before: Tensor, after: Tensor) -> Tensor:
    """By how much each number differs, as a share of the largest; what is NaN in both does not."""
    same = (before == after) | (before.isnan() & after.isnan())
    size = before.nan_to_num(0, 0, 0).abs().max().clamp(min=1e-12)
    return torch.where(same, 0.0, (before - after).abs() / size).nan_to_num(torch.inf, torch.inf)


def _grows(x: Tensor, y: Tensor) -> int | None:
    axes = [axis for axis in range(x.dim()) if x.dim() == y.dim() and y.size(axis) == x.size(axis) + 1]
    return axes[0] if len(axes) == 1 else None


# The promises


def promises(asked: AsCalled, *, causal: bool | None, positions: bool | None) -> Iterator[Outcome]:
    """Ask for each promise that the call lets be asked."""
    yield from _repeated(asked)
    yield from _numbers(asked)
    hidden = _unseen(asked)
    yield from _masks(asked)
    yield from _items(asked)
    if causal:
        yield from _future(asked, hidden)
    if positions is False and not causal:
        yield from _order(asked)
    yield from _kept(asked)
    yield from _deaf(asked, hidden)


def _evidence(asked: AsCalled, text: str) -> str:
    shapes = ", ".join(f"{leaf.name} {tuple(leaf.given.shape)}" for leaf in asked.leaves)
    return f"called with {shapes}: {text}"


def _repeated(asked: AsCalled) -> Iterator[Outcome]:
    again = asked.run(asked.given, seed=1)
    if any(
        x.shape != y.shape or bool((_gaps(x, y) > asked.share).any()) for x, y in zip(asked.before, again, strict=True)
    ):
        text = "the same call twice gives two outputs, in evaluation"
        yield Finding(STILL, None, text, _evidence(asked, "called twice"))


def _numbers(asked: AsCalled) -> Iterator[Outcome]:
    finite = all(bool(x.isfinite().all()) for x in asked.given if x.is_floating_point() and not bool((x <= -1e4).any()))
    output = asked.output
    if finite and not bool(output.isfinite().all()):
        count = int((~output.isfinite()).sum())
        text = "finite inputs give numbers that are NaN or infinite"
        rows = asked.by_row((~output.isfinite()).to(torch.float64)) > 0
        real = rows & ~_unseen(asked)
        evidence = _evidence(asked, f"{count} of {output.numel()} are not finite")
        step = "" if bool(real.any()) else "mask"  # nobody may read what padding gives
        yield Finding(NUMBERS, "fully-masked-row", text, evidence, step=step)


def _unseen(asked: AsCalled) -> Tensor:
    """Outputs of tokens that a mask, in the reading that is obeyed, or a length calls padding: (items, outputs)."""
    reach = asked.reaches.get(asked.main)
    shape = (1, 1) if reach is None else reach.moved.shape[:2]
    padded = torch.zeros(shape, dtype=torch.bool)
    if reach is None or len(reach.tokens) != shape[1]:
        return padded
    for at in range(len(asked.leaves)):
        for ways in asked.hidings(at, reach):
            own = [way for way in ways if way.hidden.size(1) == 1]
            blind = [way.hidden.all(-1) for way in ways if way.hidden.size(1) > 1 and bool(way.hidden.all(-1).any())]
            if blind and not own:  # in the sense that hides less
                padded = padded | min(blind, key=lambda each: int(each.sum()))
            if own:
                obeyed = [way for way in own if not bool(_seen(reach, way).any())]
                way = obeyed[0] if obeyed else min(own, key=lambda each: int(each.hidden.sum()))
                padded = padded | way.hidden[:, 0]
    return padded


def _seen(reach: _Reach, way: _Hiding) -> Tensor:
    """Which hidden tokens real outputs notice, each token's own output aside: (items, outputs, tokens)."""
    seen = reach.moved & way.hidden
    if reach.moved.size(1) == len(reach.tokens):
        seen = seen & ~torch.eye(len(reach.tokens), dtype=torch.bool)
        seen = seen & ~way.hidden.all(1)[:, :, None]  # nobody reads what padding gives
    return seen & ~way.hidden.all(-1, keepdim=True)  # who may see nothing


def _masks(asked: AsCalled) -> Iterator[Outcome]:
    """Ask whether what a mask hides, read in either sense, is seen."""
    for at, leaf in enumerate(asked.leaves):
        tried: list[tuple[_Hiding, Tensor, _Reach]] = []
        for reach in asked.reaches.values():
            for ways in asked.hidings(at, reach):
                tried += [(way, _seen(reach, way), reach) for way in ways if bool(way.hidden.any())]
        if not tried or not (_MASK.search(leaf.name) or leaf is asked.packed or asked.is_padded(at)):
            continue
        if any(not bool(seen.any()) for _, seen, _ in tried):
            yield Passed(MASK)
            continue
        way, seen, reach = min(tried, key=lambda each: int(each[1].sum()))
        item, output, token = seen.nonzero()[0].tolist()
        gap = float(reach.gap[item, output, token])
        cause = "padding-ignored" if bool((reach.moved | ~way.hidden).all()) else None
        what = f"{asked.leaves[reach.leaf].name}'s token {reach.tokens[token]} of item {item}"
        senses = " and ".join(dict.fromkeys(each.told for each, *_ in tried))
        text = f"what {leaf.name} hides is seen, whether it is read as {senses}" if len(tried) > 1 else (
            f"what {leaf.name} hides is seen"
        )  # fmt: skip
        evidence = f"{what} moves output {output} by {gap:.2g} of the largest"
        yield Finding(MASK, cause, text, _evidence(asked, evidence))
        return


def _items(asked: AsCalled) -> Iterator[Outcome]:
    """Change one item, its tokens and then its masks, and put the items in another order, at two sizes."""
    axis, count = asked.of_items[0], asked.count
    if asked.packed is not None:
        return
    if axis is None or asked.grown is None:
        yield Open(ALONE, "a call that takes one item more, and outputs with an axis of items")
        return
    shown = [dict(_apart(asked, tensors, axis)) for tensors in (asked.given, asked.grown)]
    both = [what for what in shown[1] if what in shown[0] or count < 2]
    if both:
        text = f"an item's output depends on {both[0]}"
        evidence = f"it moves by {shown[1][both[0]]:.2g} of the largest, with {count + 1} items"
        yield Finding(ALONE, None, text, _evidence(asked, evidence))
    else:
        yield Passed(ALONE)


def _apart(asked: AsCalled, tensors: list[Tensor], axis: int) -> Iterator[tuple[str, float]]:
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
        most = float(_gaps(expected, after).index_select(axis, torch.tensor(kept)).max())
        return most if most > asked.share else 0.0

    for what, content in (("another item", True), ("another item's mask", False)):
        worst = 0.0
        for at in (0, size - 1):
            made = [x.clone() for x in tensors]
            for n, place in rows.items():
                if (n in asked.content) == content:
                    row = made[n].narrow(place, at, 1)
                    row.copy_(_other(row) if content else tensors[n].narrow(place, (at + 1) % size, 1))
            worst = max(worst, gap(made, [n for n in range(size) if n != at], before))
        if worst:
            yield what, worst
    turned = [x.roll(1, rows[n]) if n in rows else x for n, x in enumerate(tensors)]
    if moved := gap(turned, list(range(size)), before.roll(1, axis)):
        yield "its place in the batch", moved


def _future(asked: AsCalled, padded: Tensor) -> Iterator[Outcome]:
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
    yield Finding(FUTURE, "no-causal-mask" if dense else None, text, _evidence(asked, f"{evidence} of the largest"))


def _order(asked: AsCalled) -> Iterator[Outcome]:
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
    gap = asked.by_row(_gaps(before, after.roll(-1, placed))) if after.shape == before.shape else None
    if gap is not None and float(gap.max()) > asked.share:
        text = "its outputs depend on the order of the tokens, and positions=False says that it must not count"
        yield Finding(ORDER, None, text, _evidence(asked, f"in another order, off by {float(gap.max()):.2g}"))


def _kept(asked: AsCalled) -> Iterator[Outcome]:
    """Call it between two equal calls with other tokens, masks and lengths, which must change nothing."""
    check = "calls do not change each other"
    between = [_other(x) if n in asked.content else x for n, x in enumerate(asked.given)]
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
    gaps = [float(_gaps(x, y).max()) if x.shape == y.shape else torch.inf for x, y in pairs if x.numel()]
    if max(gaps, default=0.0) > asked.share:
        text = "what a call gives depends on the calls before it: something is kept from call to call"
        yield Finding(check, None, text, _evidence(asked, f"after another call, off by {max(gaps):.2g} of the largest"))
    else:
        yield Passed(check)


def _deaf(asked: AsCalled, padded: Tensor) -> Iterator[Outcome]:
    """Name tokens that no output notices, and that nothing hides."""
    for reach in asked.reaches.values():
        unseen = ~reach.moved.any(1)  # items, tokens
        for at in range(len(asked.leaves)):
            for ways in asked.hidings(at, reach):
                for way in ways:
                    unseen = unseen & ~way.hidden.all(1) if way.hidden.size(0) == unseen.size(0) else unseen & False
        lost = unseen.all(0)
        lost = lost & (~lost).cumsum(0).bool()  # behind a token that is noticed: a window forgets what is before
        if bool(lost.any()):
            which = ", ".join(str(reach.tokens[n]) for n in lost.nonzero().flatten().tolist())
            name = asked.leaves[reach.leaf].name
            text = f"no output notices some tokens of {name}, which nothing hides"
            yield Finding("every token is seen", None, text, _evidence(asked, f"token {which} moves no output"),
                          step="mask")  # fmt: skip
