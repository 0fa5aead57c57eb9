"""What is asked of a model by calls on it: two inputs that differ in one thing, and what moves in its outputs."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from unmasked import _generators
from unmasked_doctor._form import mapped
from unmasked_doctor._tensors import OTHER_SIZES, ends_in, floats, share_moved
from unmasked_doctor._words import HIDES, HIDES_NOT, LENGTHS

__all__ = ["Answers", "Asker", "Given", "Noticed", "Padding", "evaluated", "other"]

# What an argument is called that says something of the tokens, and is none of them.
_ABOUT = re.compile(
    r"(?i)mask|^pad|pad(ding)?_|padding|position|token_type|label|length|_size|grid|bbox|timestep|_ids_type|alloc|len$"
)
_PADDING = re.compile(
    r"(?i)(^|_)(attention|attn|padding|pad|key_padding|valid|token)_?mask$|^(mask|src_mask|x_mask|pads?|padded)$|padding"
)
_DECODED = ("decoder_input_ids", "decoder_inputs_embeds", "tgt", "decoder_ids", "decoder_inputs")


@dataclass(frozen=True)
class Given:
    """The inputs of a model, and what its forward calls each of them; ``bare`` if they are a tensor by itself."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    names: tuple[str, ...]
    bare: bool = False

    def path(self, name: str) -> str | None:
        """How an argument is written, behind the name of the inputs; None where that cannot be told."""
        if name in self.names:
            return "" if self.bare else f"[{self.names.index(name)}]"
        return None if self.args or "[" in name else f"[{name!r}]"

    @classmethod
    def of(cls, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, bare: bool = False) -> Given:
        parameters = inspect.signature(model.forward).parameters.values()
        names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        return cls(args, kwargs, tuple([*names, *(f"args[{n}]" for n in range(len(args)))][: len(args)]), bare)

    def every(self) -> dict[str, Any]:
        """Each argument by its name."""
        return {**dict(zip(self.names, self.args, strict=True)), **self.kwargs}

    def tensors(self) -> dict[str, Tensor]:
        """Each tensor by its name; of those in lists and dictionaries, with its place in them."""
        return {path: x for name, value in self.every().items() for path, x in _within(name, value)}

    def content(self) -> dict[str, Tensor]:
        """What says what tokens are: no masks, no positions, no types."""
        return {
            name: x for name, x in self.tensors().items()
            if x.dim() > 1 and x.dtype != torch.bool and not x.is_nested and not _ABOUT.search(name)
        }  # fmt: skip

    def with_(self, changed: Mapping[str, Any]) -> Given:
        """The same with other values in the place of some."""
        args = tuple(_put(name, x, changed) for name, x in zip(self.names, self.args, strict=True))
        kwargs = {name: _put(name, x, changed) for name, x in self.kwargs.items()}
        inside = self.tensors().keys() | set(self.names)
        kwargs |= {name: x for name, x in changed.items() if name not in inside}
        return replace(self, args=args, kwargs=kwargs)

    def copied(self) -> Given:
        """The same, of which a call may write into anything, such as a cache."""

        def copy(value: Any) -> Any:
            with contextlib.suppress(Exception):  # what cannot be copied is passed as it is
                return mapped(value, Tensor.clone, Tensor, copied=True)
            return value

        kwargs = {name: copy(x) for name, x in self.kwargs.items()}
        return replace(self, args=tuple(map(copy, self.args)), kwargs=kwargs)


def _within(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif type(value) in (list, tuple, dict):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _within(f"{name}[{key}]", each)


def _put(name: str, value: Any, changed: Mapping[str, Any]) -> Any:
    if name in changed:
        return changed[name]
    if not any(each.startswith(f"{name}[") for each in changed):
        return value  # itself, which a call may write into
    if type(value) is dict:
        return {key: _put(f"{name}[{key}]", each, changed) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_put(f"{name}[{n}]", each, changed) for n, each in enumerate(value))
    return value


@dataclass
class Answers:
    """What a run of a model gave: its outputs, and the first tensor that each module gave, in their order.

    Attributes:
        outputs: The tensors of floating numbers.
        modules: Of each module, by its name.
        whole: All that it gave.
    """

    outputs: list[Tensor] = field(default_factory=list)
    modules: dict[str, Tensor] = field(default_factory=dict)
    whole: Any = None

    def named(self) -> dict[str, Tensor]:
        """What each module gave, and then the outputs."""
        return self.modules | {f"output {number}": x for number, x in enumerate(self.outputs)}


@dataclass(frozen=True)
class Padding:
    """An argument that says which tokens are padding.

    Attributes:
        name: What it is called.
        given: The model's inputs with a mask that hides some.
        real: Which tokens it leaves, (items, tokens).
        all_hidden: The inputs with a mask that hides all of the last item; None where that cannot be asked.
        how: Whether it is "given" so, "made" here, or of "words", the tokens themselves.
    """

    name: str
    given: Given
    real: Tensor
    all_hidden: Given | None = None
    how: str = "given"


class Noticed(NamedTuple):
    """How outputs of real tokens notice what is hidden.

    Attributes:
        share: By how much they move, as a share of the largest.
        first: The first module in which they move.
        pooled: Whether that gave one vector for all tokens of an item.
        given: The inputs with other hidden tokens; None where their vectors were changed.
    """

    share: float
    first: str
    pooled: bool
    given: Given | None = None


def other(x: Tensor) -> Tensor:
    """Other tokens or numbers, made of the same, in one item or in one token."""
    axis = x.dim() - 1
    changed = x.roll(1, axis) if x.dim() else x
    if x.is_floating_point():
        return 0.7 * changed + 0.3 * x.flip(axis) + 0.1 * x.abs().mean() + (0 if x.any() else 1)
    if torch.equal(changed, x):
        return torch.where(x > 0, x - 1, x + 1)
    return changed


@contextlib.contextmanager
def evaluated(model: nn.Module, *, gradients: bool = False) -> Iterator[None]:
    """Set a model to evaluation, and leave it, and the generators, as they were."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with _generators.forked(), torch.set_grad_enabled(gradients):
            yield
    finally:
        for module, mode in modes:
            module.training = mode


class Asker:
    """Runs a model, and sees what moves.

    Args:
        model: The model.
        modules: Its modules by name.
        given: Its inputs.
        default: The device of the caller where that is not the CPU.
    """

    def __init__(
        self, model: nn.Module, modules: Mapping[str, nn.Module], given: Given, default: torch.device | None
    ) -> None:
        self.model, self.modules, self.given, self.default = model, modules, given, default
        self.first_run: Answers | None = None

    def run(self, given: Given) -> Answers | None:
        """Run the model; None where it does not run with these inputs."""
        if given is not self.given:
            return self.once(given)
        self.first_run = self.first_run or self.once(given)
        return self.first_run

    def once(self, given: Given, *, copied: bool = True, seed: int = 0) -> Answers | None:
        """Run the model anew; without copies, it may go on writing into what it is given."""
        answers, given = Answers(), given.copied() if copied else given

        def leave(name: str) -> Callable[..., None]:
            def note(_: nn.Module, args: Any, output: Any) -> None:
                first = next(floats(output), None)
                if first is not None:
                    answers.modules.pop(name, None)
                    answers.modules[name] = first.detach()

            return note

        handles = [module.register_forward_hook(leave(name)) for name, module in self.modules.items()]
        try:
            with evaluated(self.model), contextlib.nullcontext() if self.default is None else self.default:
                torch.manual_seed(seed)
                answers.whole = self.model(*given.args, **given.kwargs)
                answers.outputs = [x.detach() for x in floats(answers.whole)]
        except Exception:  # whatever a model may raise
            return None
        finally:
            for handle in handles:
                handle.remove()
        return answers

    def items(self, given: Given, axis: int) -> int:
        """How many items the inputs have."""
        return next((x.size(axis) for x in given.content().values()), 1)

    def grown(self, given: Given, axis: int) -> Given:
        """The inputs with one item more, which is another one."""
        count, content = self.items(given, axis), given.content()
        more: dict[str, Tensor] = {}
        for name, x in given.tensors().items():
            rows = _rows(x, axis, count)
            if rows is not None:
                last = _other_item(x, rows, count - 1) if name in content else x.narrow(rows, count - 1, 1)
                more[name] = torch.cat([x, last], rows)
        return given.with_(more)

    def changed(self, given: Given, axis: int, at: int) -> Given | None:
        """The inputs that differ in one row of an axis alone; None where there are none."""
        made: dict[str, Tensor] = {}
        content = given.content()
        size = next((x.size(axis) for x in content.values() if x.dim() > axis), 0)
        for name, x in content.items():
            rows = _rows(x, axis, size) if axis == 0 else axis if x.dim() > 1 and x.size(axis) == size else None
            if rows is None:
                continue
            row, place = x.narrow(rows, at % size, 1), at % size
            if axis and not x.is_floating_point():
                new = self._other_word(x, axis, place)
            else:
                new = _other_item(x, rows, place) if axis == 0 else other(row)
            if not torch.equal(new, row):
                made[name] = x.clone()
                made[name].narrow(rows, place, 1).copy_(new)
        return given.with_(made) if made else None

    def _other_word(self, x: Tensor, axis: int, at: int) -> Tensor:
        """Words that stand elsewhere in the same items."""
        row = x.narrow(axis, at, 1)
        for step in range(1, x.size(axis)):
            new = x.narrow(axis, (at + step) % x.size(axis), 1)
            if not torch.equal(new, row):
                return new
        return row

    def reached(self, axis: int, given: Given | None = None) -> tuple[str, float, int] | bool | None:
        """Where a row of an axis reaches others: the module, how much moved, and the row; False if none does.

        None where that cannot be told.
        """
        given = given or self.given
        before, known = self.run(given), False
        count = next((x.size(axis) for x in given.content().values() if x.dim() > axis), 0)
        if before is None or count < 2:
            return None
        more = self.run(self.grown(given, axis)) if axis == 0 else None
        for at in (0, count - 1):
            changed = self.changed(given, axis, at)
            after = self.run(changed) if changed is not None else None
            if after is None:
                continue
            rest = torch.tensor([n for n in range(count) if n != at])
            for number, (x, y) in enumerate(_pairs(before, after)):
                if x.dim() <= axis or x.size(axis) != count or (axis == 1 and x.dim() < 3):
                    continue
                if axis == 0 and (more is None or len(more.outputs) <= number or _grows(x, more.outputs[number])):
                    continue
                share = share_moved(x, y, axis, rest)
                known = known or share is not None
                if share and not self.still(given, before):
                    return None  # what changes from call to call tells nothing
                if share:
                    return self.first(before, after, axis, rest, count), share, at
        return False if known else None

    def without_others(self, axis: int, reals: Collection[Tensor]) -> float:
        """By how much an item's outputs differ if it is given alone, as a share of the largest, among so many others.

        It must be so among one item more, too, so that no coincidence of sizes makes it. Outputs of what is padding, by
        one of these tables, mean nothing.
        """
        share = self._without_others(self.given, axis, reals)
        before = self.run(self.given)
        if not share or before is None or not self.still(self.given, before, seed=1):
            return 0.0  # what changes from call to call, or with what is drawn, tells nothing
        return min(share, self._without_others(self.grown(self.given, axis), axis, reals))

    def _without_others(self, given: Given, axis: int, reals: Collection[Tensor]) -> float:
        before, count, worst = self.run(given), self.items(given, axis), 0.0
        for at in range(count) if before is not None and count > 1 else ():
            rows = {name: _rows(x, axis, count) for name, x in given.tensors().items()}
            alone = {name: x.narrow(rows[name] or 0, at, 1) for name, x in given.tensors().items()
                     if rows[name] is not None}  # fmt: skip
            after = self.once(given.with_(alone))
            for x, y in _pairs(before, after) if before is not None and after is not None else ():
                if x.dtype not in (torch.float32, torch.float64) or x.dim() <= axis or x.size(axis) != count:
                    continue
                x = x.narrow(axis, at, 1)
                real = next((each[min(at, len(each) - 1)] for each in reals if x.shape[1:2] == each.shape[1:]), None)
                if real is not None and axis == 0 and x.shape == y.shape:
                    x, y = x[:, real.to(x.device)], y[:, real.to(x.device)]
                worst = max(worst, (share_moved(x, y, axis, torch.tensor([0])) or 0.0) if x.numel() else 0.0)
        return worst if worst > OTHER_SIZES else 0.0

    def still(self, given: Given, before: Answers, *, seed: int = 0) -> bool:
        """Whether the model gives the same again; with another seed, whatever numbers it draws."""
        again = self.once(given, seed=seed)
        return again is not None and not any(
            x.dim() and share_moved(x, y, 0, torch.arange(x.size(0))) for x, y in _pairs(before, again)
        )

    def first(self, before: Answers, after: Answers, axis: int, at: Tensor, count: int) -> str:
        """The first module whose output moved there."""
        for name, x in before.modules.items():
            y = after.modules.get(name)
            if y is not None and x.dim() > axis + 1 and x.size(axis) == count and share_moved(x, y, axis, at):
                return name
        return ""

    def mixes_before(self, name: str) -> bool:
        """Whether a module that runs before this one mixes the tokens of an item."""
        changed, before = self.changed(self.given, 1, 0), self.run(self.given)
        after = None if changed is None else self.run(changed)
        for each, x in before.modules.items() if before is not None and after is not None else ():
            y = after.modules.get(each) if after is not None else None
            if each == name:
                break
            if y is not None and x.dim() > 2 and x.size(0) == self.items(self.given, 0) and x.size(1) > 1:
                moved = [bool(share_moved(x, y, 1, torch.tensor([n]))) for n in range(x.size(1))]
                if sum(moved) > 1:
                    return True
        return False

    def placed(self, axis: int) -> bool | None:
        """Whether it counts where a row stands along an axis: rows in another order give other rows."""
        content = {name: x for name, x in self.given.content().items() if x.dim() > axis}
        turned = self.given.with_({name: x.roll(1, axis) for name, x in content.items()})
        before, after = self.run(self.given), self.run(turned)
        if before is None or after is None:
            return None
        for x, y in _pairs(before, after):
            if x.dim() > axis + 1 and x.shape == y.shape:
                return bool(share_moved(x.roll(1, axis), y, axis, torch.arange(x.size(axis))))
        return None

    def counts(self, parameters: Mapping[str, Tensor]) -> dict[str, bool] | None:
        """Which parameters change an output; None where gradients do not tell."""
        if not parameters:
            return None
        try:
            with (
                evaluated(self.model, gradients=True),
                contextlib.nullcontext() if self.default is None else self.default,
            ):
                torch.manual_seed(0)
                given = self.given.copied()
                outputs = [x for x in floats(self.model(*given.args, **given.kwargs)) if x.requires_grad]
                total = sum((x * torch.randn_like(x)).sum() for x in outputs)
                if not isinstance(total, Tensor):
                    return None
                found = torch.autograd.grad(total, [*parameters.values()], allow_unused=True)
        except Exception:  # whatever a model may raise
            return None
        return {name: x is not None for name, x in zip(parameters, found, strict=True)}

    def sees(self, padding: Padding) -> Noticed | None:
        """How outputs of real tokens move where only what is hidden changes.

        An argument that has as many tokens may be none of those that are hidden: all of them must be noticed, or those
        whose name begins as that of the mask does.
        """
        before, found = self.run(padding.given), None
        for given in self._hidden_changes(padding):
            after = self._with_other_vectors(padding) if given is None else self.once(given)
            noticed = None if before is None or after is None else _noticed(before, after, padding)
            if after is not None and not noticed:
                return None
            found = found or (noticed and noticed._replace(given=given))
        return found

    def _hidden_changes(self, padding: Padding) -> Iterator[Given | None]:
        """Inputs in which what is hidden differs, one argument at a time; None for the vectors of padding words."""
        real, content = padding.real, padding.given.content()
        word = re.split(r"[_.\[]", padding.name)[0]
        named = {name: x for name, x in content.items() if re.split(r"[_.\[]", name)[0] == word}
        for name, x in (named or content).items():
            times = x.size(1) // real.size(1) if x.size(0) == real.size(0) and x.size(1) % real.size(1) == 0 else 0
            if not times or name in _DECODED or (times > 1 and x.dim() > 2):
                continue  # a series is cut into patches
            if padding.how == "words" and not x.is_floating_point():
                continue
            hidden = ~real.repeat_interleave(times, 1).view(x.shape[:2] + (1,) * (x.dim() - 2)).to(x.device)
            new = torch.where(hidden, other(x) if x.dim() > 2 else x.roll(1, 1), x)
            if not torch.equal(new, x):
                yield padding.given.with_({name: new})
        if padding.how == "words":
            yield None

    def _with_other_vectors(self, padding: Padding) -> Answers | None:
        """Run the model with other vectors of the words that are padding."""
        real = padding.real

        def change(_: nn.Module, args: Any, output: Any) -> Any:
            if not isinstance(output, Tensor) or output.dim() != 3 or output.shape[:2] != real.shape:
                return None
            return torch.where(real[..., None].to(output.device), output, output.roll(1, 2) + output.abs().mean())

        found = [module for module in self.modules.values() if isinstance(module, nn.Embedding)]
        handles = [module.register_forward_hook(change) for module in found]
        try:
            return self.once(padding.given)
        finally:
            for handle in handles:
                handle.remove()

    def paddings(self, keys: Collection[int]) -> Iterator[Padding]:
        """Each argument that may say which tokens are padding, in each sense that it may have.

        Args:
            keys: How many keys the calls of attention have.
        """
        content, known = self.given.content(), False
        items = self.items(self.given, 0)
        shapes = {y.shape[:2] for y in content.values()} | {torch.Size((items, count)) for count in keys}
        for name, x in self.given.tensors().items():
            if HIDES_NOT.search(name) or "causal" in name.lower():
                continue
            flat = x.flatten(1) if x.dim() > 2 and x.shape[1:-1].numel() == 1 else x
            values = set(flat.unique().tolist()) if HIDES.search(name) and flat.dim() == 2 else set()
            if values and flat.shape in shapes and (values <= {0, 1} or (0 in values and max(values - {0}) < -1e3)):
                known = True
                yield from self._by_mask(name, x, flat, values)
            elif LENGTHS.search(name) and x.shape == (items,) and not (x.is_floating_point() or x.dtype == torch.bool):
                for count in sorted(
                    {shape[1] for shape in shapes if 1 < shape[1] >= int(x.max()) and int(x.min()) > 0}
                ):
                    known = True
                    yield self._by_lengths(name, x, count)
        for name, x in content.items():
            if x.dim() == 2 and not x.is_floating_point() and name not in _DECODED:
                real = ~ends_in(x, 0)
                if int((~real).sum(1).max()) > 1 and bool(real.any(1).all()):  # one 0 may be there by chance
                    yield Padding(name, self.given, real, how="words")
        if not known:
            yield from self._not_passed()

    def _by_mask(self, name: str, x: Tensor, flat: Tensor, values: set[float]) -> Iterator[Padding]:
        if not values <= {0, 1}:
            yield Padding(name, self.given, flat == 0)
        elif len(values) == 2:
            for sense in (1, 0) if x.dtype != torch.bool or "pad" not in name else (0, 1):
                yield self._hidden(name, flat == sense, sense, x, self.given)
        else:
            yield self._hidden(name, _some(flat), int(next(iter(values))), x)

    def _by_lengths(self, name: str, x: Tensor, count: int) -> Padding:
        short = x.clone()
        if int(x.min()) == count:
            short[-1] = count - max(count // 3, 1)
        real = torch.arange(count, device=x.device) < short[:, None]
        return Padding(name, self.given.with_({name: short}), real, how="given" if torch.equal(short, x) else "made")

    def _not_passed(self) -> Iterator[Padding]:
        """Arguments that are not passed, and change nothing where they hide nothing."""
        tensors, content = self.given.tensors(), self.given.content()
        for name in inspect.signature(self.model.forward).parameters:
            if name in tensors or not _PADDING.search(name) or re.search("encoder|cross|memory", name):
                continue
            like = next((x for n, x in content.items() if n not in _DECODED), None)
            if like is None or like.dim() > 3 or (like.dim() == 2 and like.is_floating_point()) or like.size(1) < 3:
                continue
            before = self.run(self.given)
            for dtype in (torch.long, torch.bool) if name == "attention_mask" else (torch.bool,):
                for sense in (1, 0):
                    idle = torch.full(like.shape[:2], sense, dtype=dtype, device=like.device)
                    after = self.run(self.given.with_({name: idle}))
                    if before is None or after is None or not before.outputs or not after.outputs:
                        continue
                    x, y = before.outputs[0], after.outputs[0]
                    if x.dim() and share_moved(x, y, 0, torch.arange(x.size(0))) == 0.0:
                        yield self._hidden(name, _some(idle), sense, idle)
                        break

    def _hidden(self, name: str, real: Tensor, sense: int, like: Tensor, given: Given | None = None) -> Padding:
        def mask(shown: Tensor) -> Tensor:
            return (shown if sense else ~shown).to(like.dtype).view(like.shape)

        none = torch.ones_like(real)
        none[-1] = False
        return Padding(
            name,
            given or self.given.with_({name: mask(real)}),
            real,
            self.given.with_({name: mask(none)}) if len(real) > 1 else None,
            "made" if given is None else "given",
        )


def _noticed(before: Answers, after: Answers, padding: Padding) -> Noticed | None:
    """How what is hidden is noticed; None where it is not."""
    shares = (_share_of_real(x, y, padding) for x, y in _pairs(before, after))
    share = next((each for each in shares if each is not None), None)
    if not share:
        return None
    now = after.named()
    for name, x in before.named().items():
        y = now.get(name)
        if y is not None and _share_of_real(x, y, padding, within=True):
            return Noticed(share, name, x.dim() < 3)
    return Noticed(share, "", True)


def _share_of_real(x: Tensor, y: Tensor, padding: Padding, *, within: bool = False) -> float | None:
    """By how much what is of real tokens moved; of an item that has no axis of tokens, all of it must have moved."""
    real = padding.real
    if x.shape != y.shape or not x.dim() or x.size(0) != real.size(0):
        return None
    if x.shape[:2] == real.shape:
        return share_moved(x.flatten(0, 1), y.flatten(0, 1), 0, real.flatten().nonzero().flatten())
    if padding.how == "made" or (within and (x.dim() == 1 or real.size(1) in x.shape)):
        return None
    partly = (~real).any(1).nonzero().flatten()
    x, y = x[partly.to(x.device)], y[partly.to(y.device)]
    if x.dim() == 1:
        return share_moved(x, y, 0, torch.arange(len(x)))
    return min((share_moved(x, y, 1, torch.tensor([n])) or 0.0 for n in range(x.size(1))), default=None)


def _rows(x: Tensor, axis: int, count: int) -> int | None:
    """The axis of items of a tensor: the usual one, or the only one that has as many."""
    if x.dim() > axis and x.size(axis) == count:
        return axis
    axes = [n for n, size in enumerate(x.shape) if size == count]
    return axes[0] if len(axes) == 1 else None


def _other_item(x: Tensor, axis: int, at: int) -> Tensor:
    """Another item, in the place of one: of words, those of its neighbor, which each column is known to take."""
    row = x.narrow(axis, at, 1)
    if not x.is_floating_point():
        for step in range(1, x.size(axis)):
            new = x.narrow(axis, (at + step) % x.size(axis), 1)
            if not torch.equal(new, row):
                return new
    return other(row)


def _some(x: Tensor) -> Tensor:
    """All tokens but the first third of the last item."""
    real = torch.ones(x.shape, dtype=torch.bool, device=x.device)
    real[-1, : max(x.size(1) // 3, 1)] = False
    return real


def _pairs(one: Answers, two: Answers) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(one.outputs, two.outputs, strict=False)


def _grows(x: Tensor, more: Tensor) -> bool:
    """Whether an output is of pairs of items, or has no axis of items at all."""
    return x.dim() != more.dim() or x.size(0) == more.size(0) or x.shape[1:] != more.shape[1:]
