"""A target and a call of it as its user makes it: calls that differ in one thing, and which outputs notice which token.

Nothing has to be known of what the target computes. Which axis counts items and which counts tokens is told by calls
with one more of them; and one table says which outputs notice which token, from which all else is read.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from unmasked import _generators
from unmasked_doctor._ask.hidings import Reach
from unmasked_doctor._ask.leaves import (
    are_ids,
    are_key_and_value,
    is_content,
    is_mask,
    is_offsets,
    mirrored,
    numbers_items,
    padding_id,
)
from unmasked_doctor._ask.promises import prepared
from unmasked_doctor._asker import evaluated
from unmasked_doctor._call import bound, parameters_of, paths, shapes_of
from unmasked_doctor._form import Form, Leaf, mapped
from unmasked_doctor._report import Pair
from unmasked_doctor._tensors import floats, gaps

__all__ = ["UserCall"]

_KEPT = re.compile(r"(?i)^(past|cache|layer_past|kv_cache|past_.*|prev.*|memory|mems?|state|incremental_state)$|cache")
_PLACE = re.compile(r"(?i)^(step|offset|start|pos|position|index|cur|cache_position).*|_(step|offset|pos|start)$")
_TOKENS_TOO = {"k", "key", "keys", "v", "value", "values", "val"}  # the queries' own, where they are as many
_OF_KEYS = re.compile(r"(?i)^(k|v|keys?|values?|val|context|memory|mem|cond.*|enc.*|kv|past.*|cache.*)$|encoder|memory")
_MOST = 12  # tokens that are changed
_SHARE, _SHARE_ROUGH = 1e-7, 2e-3  # of the largest output: what moves less is rounding


class UserCall:
    """A target and a call of it.

    Attributes:
        form: The call, whose leaves are its tensors.
        axis: The axis of items, where there is one.
        content: Which leaves may be tokens.
        main: Which of these has the tokens that outputs are of.
    """

    def __init__(
        self, target: Callable[..., Any], call: Any, *, batch_first: bool, default: torch.device | None = None
    ) -> None:
        self.target, self.call, self.form, self.axis = target, call, bound(target, call), 0 if batch_first else 1
        self.leaves, self.default = self.form.leaves, default
        self.content = [n for n, leaf in enumerate(self.leaves) if is_content(leaf)]
        self.content = self.content or [n for n, leaf in enumerate(self.leaves) if are_ids(leaf)][:1]
        if not self.content:
            remedy = "pass floating tensors, such as (batch, tokens, features), or ids of (batch, tokens)"
            raise ValueError(f"call has {shapes_of(self.form)}, and none of them can be tokens: {remedy}")
        self.main = next((n for n in self.content if self.leaves[n].given.dim() > 2), self.content[0])
        self.words = not self.leaves[self.main].given.is_floating_point()
        self.share, self.dtype = _SHARE, torch.float64
        self.run = self._runner()
        self.main = self._main()
        self.packed = next((leaf for leaf in self.leaves if is_offsets(leaf, self.leaves[self.main].given)), None)

    def _main(self) -> int:
        """The argument that outputs are of: the first that is as long, and no keys by name if others are none."""
        output = self.output

        def fits(n: int) -> bool:
            x = self.leaves[n].given
            return not self.words and x.dim() > 2 and x.dim() == output.dim() and x.shape[:-1] == output.shape[:-1]

        fitting = [n for n in self.content if fits(n)]
        named = [n for n in fitting if not _OF_KEYS.search(self.leaves[n].name)]
        return next(iter(named or fitting), self.main)

    def _runner(self) -> Callable[..., list[Tensor]]:
        """A copy of the target that may be called: in float64 where it runs so, or else in its own precision."""
        found = None
        for make in self._makers():
            with contextlib.suppress(Exception):  # it cannot be copied, or does not compute in this precision
                run = self._of(make())
                outputs, kept = run(self.given), (make, run, self.dtype, self.share)
                found = found or (kept if outputs else None)
                if outputs and all(bool(x.isfinite().all()) for x in outputs):
                    found = kept  # what overflows in float64 alone, as float32's numbers times its lowest, is none
                    break
        if found is not None:
            self._make, run, self.dtype, self.share = found
            return run
        raise ValueError(f"{type(self.target).__name__} returns no floating tensor, of which something could be asked")

    def fresh(self) -> Callable[..., list[Tensor]]:
        """Another copy, that was never called."""
        return self._of(self._make())

    def copied(self) -> tuple[Any, Callable[..., list[Tensor]]]:
        """Another copy, and what calls it."""
        target = self._make()
        return target, self._of(target)

    def without_matrices(self) -> Callable[..., list[Tensor]]:
        """Another copy, whose matrices and their biases are zero, so that only what passes by beside them is left."""
        copied = self._make()
        for module in copied.modules():
            own = [*module.parameters(recurse=False)]
            for x in own if any(each.dim() > 1 for each in own) else ():
                nn.init.zeros_(x)
        return self._of(copied)

    @property
    def passed(self) -> dict[str, Any]:
        """Each argument of the call by its name, with a leaf in the place of each tensor."""
        return dict(zip(parameters_of(self.target), self.form.args, strict=False)) | dict(self.form.kwargs)

    @cached_property
    def numbered(self) -> dict[str, Form]:
        """For each plain whole number of the call, such as an offset, the form in which it is one larger."""

        def isinteger(value: Any) -> bool:
            return isinstance(value, int) and not isinstance(value, bool)

        form, found = self.form, {}
        for n, (name, value) in enumerate(zip(parameters_of(self.target), form.args, strict=False)):
            if isinteger(value):
                found[name] = replace(form, args=(*form.args[:n], value + 1, *form.args[n + 1 :]))
        for name, value in form.kwargs.items():
            if isinteger(value):
                found[name] = replace(form, kwargs={**form.kwargs, name: value + 1})
        return found

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
            yield lambda: functools.partial(_evaluate, target)

    def _cast(self, x: Tensor) -> Tensor:
        return x.to(self.dtype) if x.is_floating_point() else x

    def _elsewhere(self) -> contextlib.AbstractContextManager[Any]:
        """Where PyTorch makes tensors if nobody says where, while the target runs."""
        return contextlib.nullcontext() if self.default is None else self.default

    def _of(self, target: Any) -> Callable[..., list[Tensor]]:
        held = [*target.parameters(), *target.buffers()] if isinstance(target, nn.Module) else []
        device = next((x.device for x in held), torch.device("cpu"))

        def run(tensors: list[Tensor], seed: int = 0, form: Form = self.form) -> list[Tensor]:
            rest = iter(tensors)

            def made(_: Leaf) -> Tensor:
                return self._cast(next(rest).clone().to(device))

            args = tuple(mapped(value, made, copied=True) for value in form.args)
            kwargs = {name: mapped(value, made, copied=True) for name, value in form.kwargs.items()}
            with torch.no_grad(), _generators.forked(), self._elsewhere():
                torch.manual_seed(seed)
                return [x.detach().to("cpu", torch.float64) for x in floats(target(*args, **kwargs))]

        return run

    def evidence(self, text: str) -> str:
        """What was seen, with the shapes of the call."""
        return f"called with {', '.join(f'{x.name} {tuple(x.given.shape)}' for x in self.leaves)}: {text}"

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
        if self.packed is not None or main.dim() < 3 - self.words:
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
    def chosen(self) -> str:
        """The argument that has a number for each item and is no tensor, or that names items by their number; or ""."""
        names = [leaf.name for leaf in self.leaves if numbers_items(leaf, self.count)]
        plain = [
            name for name, value in self.passed.items()
            if isinstance(value, list | tuple) and len(value) == self.count > 1
            and all(isinstance(each, int | float) for each in value)
        ]  # fmt: skip
        return next(iter([*names, *plain]), "")

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
                    more[n] = torch.cat([more[n], self.other(n, last) if n in self.content else last], axis)
            with contextlib.suppress(Exception):  # whatever a stranger's module raises
                self.run(more)
                return more
        return None

    @cached_property
    def of_items(self) -> list[int | None]:
        """The axis of items of each output: the one that grows with them."""
        if self.grown is None or self.rows(self.main) is None:
            return [None] * len(self.before)
        return [_grown_axis(x, y) for x, y in zip(self.before, self.run(self.grown), strict=False)]

    @cached_property
    def _shorter(self) -> tuple[int | None, Tensor | None]:
        """The axis of tokens of the main argument, and the output with one token less.

        It is the one along which all that has as many may be shortened; or else the usual one, without an output.
        """
        main, items = self.leaves[self.main].given, self.rows(self.main)
        axes = [axis for axis in range(main.dim()) if axis != items]
        for axis in axes[: main.dim() - (items is None)]:
            with contextlib.suppress(Exception):  # built for its own length
                output = self.run([self.shortened(n, axis) for n in range(len(self.leaves))])[0]
                if main.size(axis) > 2 and output.dim() == self.output.dim():
                    return axis, output
        return next(iter(axes), None), None

    def shortened(self, n: int, axis: int) -> Tensor:
        """An argument of the call with one token less."""
        main, x, items = self.leaves[self.main].given, self.leaves[n].given, self.rows(n)
        size = main.size(axis)
        if n == self.main:
            return main.narrow(axis, 0, size - 1)
        for place in range(x.dim()):
            features = n in self.content and place == x.dim() - 1 and not self.words
            if place != items and x.size(place) == size and not features:
                x = x.narrow(place, 0, size - 1)
        return x

    @property
    def of_tokens(self) -> int | None:
        """The axis of tokens of the main argument."""
        return self._shorter[0]

    @cached_property
    def placed(self) -> int | None:
        """The axis of tokens of the first output; None where it has none."""
        (axis, fewer), main, output = self._shorter, self.leaves[self.main].given, self.output
        if axis is None:
            return None
        size = main.size(axis)
        items = self.of_items[0]
        same = [place for place in range(output.dim()) if output.size(place) == size and place != items]
        if fewer is not None:
            same = [place for place in same if fewer.size(place) == size - 1]
        return axis if axis in same else same[0] if same else None

    @cached_property
    def rows_and_more(self) -> int | None:
        """The axis of the first output that has a row for each token and others, as for a virtual one put in front."""
        (axis, fewer), output = self._shorter, self.output
        if axis is None or fewer is None or self.placed is not None:
            return None
        size, items = self.leaves[self.main].given.size(axis), self.of_items[0]
        more = [place for place in range(output.dim()) if place != items and output.size(place) > size]
        return next((place for place in more if fewer.size(place) == output.size(place) - 1), None)

    def rows_that_move(self, n: int, token: int) -> Tensor | None:
        """How many rows of that axis move with another token, for each item; None where there is none."""
        made = None if self.rows_and_more is None else self.changed(n, token)
        if made is None or self.rows_and_more is None or self.of_items[0] is None:
            return None
        gap = gaps(self.output, self.run(made)[0]).movedim((self.of_items[0], self.rows_and_more), (0, 1))
        return (gap.flatten(2).amax(-1) > self.share).sum(1)

    def moved(self, tensors: list[Tensor], before: Tensor | None = None) -> Tensor | None:
        """By how much each row of the first output moved, as a share of the largest number: (items, tokens)."""
        before = self.output if before is None else before
        try:
            after = self.run(tensors)[0]
        except Exception:  # whatever a stranger's module raises
            return None
        if after.shape != before.shape:
            return None
        return self.by_row(gaps(before, after))

    def any_moves(self, content: set[int], put: dict[int, Tensor] | None = None) -> bool:
        """Whether any output moves with other tokens of these arguments, or with others in their place."""
        made = self.given
        for n in content:
            for i in self.group(n):
                made[i] = self.other(i, made[i])
        for n, x in (put or {}).items():
            made[n] = x
        try:
            after = self.run(made)
        except Exception:  # whatever a stranger's module raises
            return True
        return any(
            x.shape != y.shape or bool((gaps(x, y) > self.share).any())
            for x, y in zip(self.before, after, strict=False)
        )

    def by_row(self, gap: Tensor) -> Tensor:
        """The largest number of each row of an output: (items or 1, tokens or 1)."""
        items, tokens = self.of_items[0], self.placed
        kept = [axis for axis in (items, tokens) if axis is not None]
        gap = gap.movedim(kept, tuple(range(len(kept))))
        most = gap.flatten(len(kept)).amax(-1) if gap.dim() > len(kept) else gap
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
            row.copy_(self.other(i, row))
        return made

    def other(self, n: int, x: Tensor) -> Tensor:
        """Other numbers in place of some of an argument's; of ids, other ids that it has, and never zero."""
        if x.is_floating_point():
            return mirrored(x)
        ids = self.leaves[n].given
        known = ids[ids > 0].unique()
        return torch.where(x > 0, known[(torch.searchsorted(known, x.contiguous()) + 1) % len(known)], x)

    def confirmed(self, output: int, token: int) -> bool:
        """Whether an output notices a token in another number of items, too; or whether that is refused."""
        axis, items, placed = self.of_tokens, self.of_items[0], self.placed
        if self.grown is None or axis is None or items is None or placed is None:
            return True
        made = [x.clone() for x in self.grown]
        for n in self.group(self.main):
            row = made[n].select(axis, token)
            row.copy_(self.other(n, row))
        before, after = (self.run(tensors)[0] for tensors in (self.grown, made))
        return bool((gaps(before, after).select(placed, output) > self.share).any())

    def token_axis(self, n: int) -> int | None:
        """The axis of tokens of an argument: that of the main one, where it has as many axes."""
        same = self.leaves[n].given.dim() == self.leaves[self.main].given.dim()
        return self.of_tokens if same else self._of_kept.get(n)

    @cached_property
    def _of_kept(self) -> dict[int, int]:
        """The axis of tokens of kept keys and values, along which they may be longer."""
        found = {}
        for n in self.content:
            for axis in (2, 1) if self.leaves[n].given.dim() == 4 else ():
                if n not in found and self.longer(n, axis):
                    found[n] = axis
        return found

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
    def keeps(self) -> list[str]:
        """The arguments, one or two, that take what is kept from piece to piece: by name, where not passed."""
        known = [*parameters_of(self.target)]
        passed = {*known[: len(self.form.args)], *self.form.kwargs}
        empty = {name for name, value in self.form.kwargs.items() if value is None or value == {}}
        if any(_PLACE.search(name) and name not in passed for name in known):
            return []  # where a piece begins must be said, too
        names = [name for name in known if _KEPT.search(name) and (name not in passed or name in empty)]
        return names if len(names) == 2 and are_key_and_value(*names) else names[:1]

    def in_pieces(self, names: list[str], plan: list[int], axis: int) -> Tensor | None:
        """The output of pieces of the tokens, joined; None where it returns nothing to go on with."""
        target, outputs, start = self._make(), [], 0
        kept = {name: copy.deepcopy(self.form.kwargs.get(name)) for name in names}  # may be filled in place
        for size in plan:
            rest = iter(self.given)

            def made(_: Leaf, start: int = start, size: int = size, rest: Iterator[Tensor] = rest) -> Tensor:
                return self._cast(next(rest).narrow(axis, start, size))

            args = tuple(mapped(value, made, copied=True) for value in self.form.args)
            kwargs = {key: mapped(value, made, copied=True) for key, value in self.form.kwargs.items()}
            try:
                with torch.no_grad(), _generators.forked(), self._elsewhere():
                    result = target(*args, **kwargs | kept)
            except Exception:  # whatever a stranger's module raises
                return None
            if not isinstance(result, tuple) or not isinstance(result[0], Tensor) or result[-1] is None:
                return None
            if len(result) <= len(names):
                return None
            kept = dict(zip(names, result[-len(names) :], strict=True))
            outputs.append(result[0].to("cpu", torch.float64))
            start += size
        return torch.cat(outputs, self.placed or 0)

    def from_nothing(self) -> UserCall | None:
        """The same call without what was kept of tokens before; None where that is passed nowhere, or needed."""
        known, axis, main = parameters_of(self.target), self.of_tokens, self.leaves[self.main]
        passed = self.passed
        empty: dict[str, Any] = {name: {} for name, value in passed.items() if type(value) is dict}
        kept = [name for name in passed if name in known and _KEPT.search(name)]
        kept = [name for name in kept if name in empty or known[name].default is None]
        if not kept or len(kept) > 2 or axis is None or main.name in kept or len(self.form.args) > len(known):
            return None
        more = (4 + main.given.size(axis) - 1) // main.given.size(axis)

        def made(leaf: Leaf) -> Tensor:
            if leaf.given.shape != main.given.shape:
                return leaf.given
            others = leaf.given if self.words else mirrored(leaf.given)
            return torch.cat([leaf.given, others] * more, axis)

        call = {name: mapped(value, made, copied=True) for name, value in passed.items() if name not in kept}
        call |= {name: empty[name] for name in kept if name in empty}
        try:
            return UserCall(self.target, call, batch_first=self.axis == 0, default=self.default)
        except Exception:  # whatever a stranger's module raises
            return None

    def with_masks_turned(self) -> UserCall | None:
        """The same call with padding at the other end of the tokens; None where no mask says what is padding."""
        x = self.leaves[self.main].given
        leaves = [
            replace(leaf, given=leaf.given.flip(1))
            if leaf.given.shape == x.shape[:2]
            and not leaf.given.is_floating_point()
            and (is_mask(leaf) or self.is_padded(n))
            else leaf
            for n, leaf in enumerate(self.leaves)
        ]
        if self.rows(self.main) != 0 or all(one is two for one, two in zip(leaves, self.leaves, strict=True)):
            return None
        twin = copy.copy(self)
        for name in [name for name in vars(twin) if isinstance(getattr(type(self), name, None), cached_property)]:
            del twin.__dict__[name]
        twin.leaves = leaves
        return twin

    def pair(self, promise: str, told: str, changed: list[tuple[int, int, int]], row: tuple[int, int]) -> Pair | None:
        """Two calls whose difference shows a broken promise, and lines of Python that make them.

        Args:
            promise: The check that asks for it.
            told: What differs, and what moves.
            changed: The argument, the axis and the place of all that is changed.
            row: The item and the token of an output that moves.

        Returns:
            The pair; None where no copy can be made as it was here.
        """
        if not isinstance(self.target, nn.Module):
            return None
        made, lines, known, written = self.given, [], set(), paths(self.call, self.form)
        for n, axis, place in changed:
            x = made[n] = made[n].clone()
            token = self.other(n, x.select(axis, place))
            x.select(axis, place).copy_(token)
            if self.leaves[n].given.data_ptr() not in known:  # one tensor may be passed several times
                known.add(self.leaves[n].given.data_ptr())
                at = ", ".join([":"] * axis + [str(place)])
                become = f"torch.tensor({token.tolist()})" if self.words else f"1 - x[{at}].flip(-1)"
                lines += [f"x = {written[n]}", f"x[{at}] = {become}"]
        index: list[str] = [":"] * self.output.dim()
        for along, place in ((self.of_items[0], row[0]), (self.placed, row[1])):
            if along is not None:
                index[along] = str(place)
        chosen = tuple(slice(None) if each == ":" else int(each) for each in index)
        gap = float((self.run(made)[0] - self.output)[chosen].abs().max())
        first = changed[0][0]
        code = "\n".join([
            "import copy", "", "import torch", "from unmasked_doctor import called, prepared", "",
            f"asked, second = prepared(target, {self.dtype}), copy.deepcopy(call)", *lines,
            f"print((called(asked, second) - called(asked, call))[{', '.join(index)}].abs().max().item())",
        ])  # fmt: skip
        return Pair(promise, told, self.given[first], made[first], gap, code)

    @cached_property
    def reaches(self) -> dict[int, Reach]:
        """For each argument of tokens, which outputs notice them."""
        found: dict[int, Reach] = {}
        for n in self.content:
            axis = self.token_axis(n)
            if axis is None or any(n in self.group(known) for known in found):
                continue
            size = self.leaves[n].given.size(axis)
            tokens = list(range(size)) if size <= _MOST else [*torch.linspace(0, size - 1, _MOST).long().tolist()]
            if (reach := self.reach(n, tokens, {})) is not None:
                found[n] = reach
        return found

    def reach(self, n: int, tokens: list[int], put: Mapping[int, Tensor]) -> Reach | None:
        """Which outputs notice these tokens of an argument, with others in the place of some arguments."""
        before = self.run([put.get(at, x) for at, x in enumerate(self.given)])[0] if put else self.output
        rows = []
        for token in tokens:
            made = self.changed(n, token)
            gap = None if made is None else self.moved([put.get(at, x) for at, x in enumerate(made)], before)
            if gap is None:
                return None
            rows.append(gap)
        apart = torch.stack(rows, -1) if rows else None
        return None if apart is None else Reach(n, tokens, apart > self.share, apart)

    def is_padded(self, at: int) -> bool:
        """Whether whole numbers, as ids of words, count only by being the one that stands for padding."""
        return at in self._padded

    @cached_property
    def _padded(self) -> set[int]:
        return {at for at in range(len(self.leaves)) if self._counts_by_padding(at)}

    def _counts_by_padding(self, at: int) -> bool:
        x = self.leaves[at].given
        pad = padding_id(x)
        if pad is None or at in self.content:
            return False
        known, made = x[x.ne(pad)].unique(), self.given
        rolled = x.roll(1, 1)
        made[at] = torch.where(x.eq(pad), x, torch.where(rolled.eq(pad), known[0], rolled))
        others = self.moved(made)
        made[at] = torch.where(x.eq(pad), known[0], x)
        without = self.moved(made)
        if others is None or without is None:
            return False
        return not bool((others > self.share).any()) and bool((without > self.share).any())


def _evaluate(target: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call a module that cannot be copied in evaluation mode, and leave its mode as it was."""
    with evaluated(target):
        return target(*args, **kwargs)


def _grown_axis(x: Tensor, y: Tensor) -> int | None:
    axes = [axis for axis in range(x.dim()) if x.dim() == y.dim() and y.size(axis) == x.size(axis) + 1]
    return axes[0] if len(axes) == 1 else None
