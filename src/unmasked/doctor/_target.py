"""Any attention as one function of (batch, tokens, features): a copy of the target that may be called and changed."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

__all__ = ["Inputs", "Target", "WrongShape", "is_triangle"]

Inputs = Literal["x", "qkv", "qkv_allowed"]


class WrongShape(Exception):  # noqa: N818  # it is what the doctor finds, not a fault of the program
    """What came out has not the shape (batch, queries, features)."""


class Target:
    """A target's copy in evaluation mode and float64, with its parameters drawn anew, behind one way of calling it.

    Zeros and ones hide mistakes: so no parameter of the copy is left at what it was initialised to. The target itself
    is never called where it could be copied.

    Attributes:
        modules: What of the copy are modules: the target, or those that a function refers to.
        tensors: Every parameter by its name, and for functions every floating tensor that they refer to.
        owners: For each name of ``tensors``, the module that holds it, or None.
        copied: Whether a copy was made of all that could be changed.
        originals: The target's modules and tensors, of which those of the copy are copies.
        dtype: What the copy computes in.
    """

    def __init__(
        self, target: Callable[..., Any], inputs: Inputs, *, batch_first: bool, dtype: torch.dtype = torch.float64
    ):
        self.inputs, self.batch_first, self.dtype = inputs, batch_first, dtype
        self.originals: dict[str, nn.Module | Tensor] = {}
        self.copied, self.mask_axes = True, 4
        self.handles: list[Any] = []  # hooks that watch it
        self.spied: list[dict[str, Any]] = []  # what every nn.MultiheadAttention in it was called with
        self._modes: list[tuple[nn.Module, bool]] = []  # of what could not be copied
        self._memo: dict[int, Any] = {}
        self.weights: Tensor | None = None  # what the last call returned beside its output
        found: dict[str, Any] = {}
        self.call = self._copy(target, found)
        self.modules = {name: thing for name, thing in found.items() if isinstance(thing, nn.Module)}
        self.tensors: dict[str, Tensor] = {}
        self.owners: dict[str, nn.Module | None] = {}
        for name, thing in found.items():
            if isinstance(thing, nn.Module):
                if not self.copied:
                    self._modes += [(module, module.training) for module in thing.modules()]
                thing.eval()
                if self.copied:
                    thing.to(dtype)
                    _draw(thing)
                for inner, parameter in thing.named_parameters(remove_duplicate=False):
                    full = f"{name}.{inner}" if name else inner
                    self.tensors[full] = parameter
                    self.owners[full] = thing.get_submodule(inner.rpartition(".")[0])
            elif isinstance(thing, Tensor) and thing.is_floating_point():
                self.tensors[name], self.owners[name] = thing, None
        if not self.copied:
            self.dtype = next((t.dtype for t in self.tensors.values()), dtype)

    def __call__(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, *,
                 allowed: Tensor | None = None) -> Tensor:  # fmt: skip
        """Attend: one tensor for "x", three for "qkv"; the rest are as the first, and everything is allowed."""
        key, value = query if key is None else key, query if value is None else value
        items, queries, keys = query.size(0), query.size(1), key.size(1)
        given = [query] if self.inputs == "x" else [query, key, value]
        kept = {id(x): x.clone() for x in given}  # the target may write into them
        result = self.raw(*(kept[id(x)] for x in given), allowed=allowed)
        if dataclasses.is_dataclass(result):
            result = vars(result)
        parts = list(result.values()) if isinstance(result, dict) else [result]
        parts = list(result) if isinstance(result, tuple | list) else parts
        tensors = [part for part in parts if isinstance(part, Tensor)]
        if not tensors:
            raise WrongShape(f"it returned {type(result).__name__}, and no tensor in it")
        output, *rest = tensors
        self.weights = next((w for w in rest if w.shape[-2:] == (queries, keys) and w.is_floating_point()), None)
        wanted = (items, queries) if self.batch_first else (queries, items)
        if output.dim() != 3 or tuple(output.shape[:2]) != wanted:
            names = "(batch, tokens, features)" if self.batch_first else "(tokens, batch, features)"
            raise WrongShape(
                f"from inputs of shape {(*wanted, query.size(-1))} it made {tuple(output.shape)}; "
                f"{names} would begin {wanted}"
            )
        return output if self.batch_first else output.transpose(0, 1)

    def raw(self, *given: Tensor, allowed: Tensor | None = None) -> Any:
        """Call it with these very tensors, (batch, tokens, features), and return what it returns."""
        items, queries, keys = given[0].size(0), given[0].size(1), given[-1].size(1)
        passed = list(given)
        if not self.batch_first:
            turned = {id(x): x.transpose(0, 1) for x in given}
            passed = [turned[id(x)] for x in given]
        if self.inputs == "qkv_allowed":
            everything = torch.ones(queries, keys, dtype=torch.bool, device=given[0].device)
            passed.append(self._mask(everything if allowed is None else allowed, items))
        return self.call(*passed)

    def _mask(self, allowed: Tensor, items: int) -> Tensor:
        """Give a mask the axes that the target takes: (batch, 1, q, k), (batch, q, k) or (q, k)."""
        if self.mask_axes == 2:
            return allowed if allowed.dim() == 2 else allowed[0]
        allowed = allowed if allowed.dim() == 3 else allowed.expand(items, -1, -1)
        return allowed.unsqueeze(1) if self.mask_axes == 4 else allowed

    def release(self) -> None:
        """Leave what could not be copied as it was found."""
        for handle in self.handles:
            handle.remove()
        for module, mode in self._modes:
            module.training = mode

    @contextmanager
    def training(self) -> Iterator[None]:
        """Be in training mode for a while."""
        for module in self.modules.values():
            module.train()
        try:
            yield
        finally:
            for module in self.modules.values():
                module.eval()

    def _copy(self, target: Callable[..., Any], found: dict[str, Any], prefix: str = "") -> Callable[..., Any]:
        """Copy a module, a bound method, a partial, or a function with the modules it refers to; collect them."""
        if isinstance(target, nn.Module):
            found[prefix], self.originals[prefix] = self._deepcopy(target), target
            return found[prefix]  # type: ignore[no-any-return]
        if isinstance(target, functools.partial):
            function = self._copy(target.func, found, prefix)
            options = {name: self._own(value, found, name) for name, value in target.keywords.items()}
            args = [self._own(value, found, f"argument {i}") for i, value in enumerate(target.args)]
            return functools.partial(function, *args, **options)
        if isinstance(target, types.MethodType):
            owner = self._copy(target.__self__, found, prefix)  # type: ignore[arg-type]
            return types.MethodType(target.__func__, owner)
        if isinstance(target, types.FunctionType):
            return self._rebind(target, found)
        if hasattr(target, "__dict__") and not inspect.isbuiltin(target):
            twin = self._deepcopy(target)
            for name, value in list(vars(twin).items()):
                vars(twin)[name] = self._own(value, found, name, copied=True)
            return twin  # type: ignore[no-any-return]
        return target

    def _rebind(self, function: types.FunctionType, found: dict[str, Any]) -> Callable[..., Any]:
        names = function.__code__.co_names
        scope = function.__globals__
        mine = {n: scope[n] for n in names if n in scope and self._is_ours(scope[n], scope)}
        if mine:
            scope = scope | {name: self._own(value, found, name) for name, value in mine.items()}
        cells = []
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError:  # not yet assigned
                cells.append(cell)
                continue
            own = self._own(content, found, name)
            cells.append(cell if own is content else types.CellType(own))
        defaults = tuple(self._own(value, found, f"default {i}") for i, value in enumerate(function.__defaults__ or ()))
        twin = types.FunctionType(function.__code__, scope, function.__name__, defaults or None, tuple(cells) or None)
        twin.__kwdefaults__ = function.__kwdefaults__
        return twin

    def _own(self, value: Any, found: dict[str, Any], name: str, *, copied: bool = False) -> Any:
        if isinstance(value, nn.Module):
            found[name] = value if copied else self._deepcopy(value)
            self.originals[name] = value
            return found[name]
        if isinstance(value, Tensor) and value.is_floating_point() and value.dim():
            found[name] = value.detach().to(self.dtype, copy=True).requires_grad_(value.requires_grad)
            self.originals[name] = value
            return found[name]
        if isinstance(value, dict | list | tuple) and value:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            twins = {key: self._own(item, found, f"{name}.{key}", copied=copied) for key, item in items}
            return (
                twins if type(value) is dict else type(value)(twins.values()) if type(value) in (list, tuple) else value
            )
        if isinstance(value, types.FunctionType) and not copied and id(value) not in self._memo:
            self._memo[id(value)] = value  # a function may refer to itself
            inner: dict[str, Any] = {}
            twin = self._rebind(value, inner)
            found.update(inner)
            return twin if inner else value
        if _is_instance(value) and not copied:
            twin = self._deepcopy(value)
            for each, content in list(vars(twin).items()):
                vars(twin)[each] = self._own(content, found, f"{name}.{each}", copied=True)
            return twin
        return value

    @staticmethod
    def _is_ours(value: Any, scope: dict[str, Any]) -> bool:
        """Whether a name that a function reads from outside may hold weights, or lead to some."""
        if isinstance(value, types.FunctionType):
            return value.__globals__ is scope
        if _is_instance(value):
            return type(value).__module__ == scope.get("__name__")
        return isinstance(value, nn.Module | Tensor | list | tuple | dict)

    def _deepcopy(self, thing: Any) -> Any:
        # Tensors that a forward pass has left behind cannot be copied with their graph, and need not be.
        left = {id(tensor): tensor.detach().clone() for tensor in _left_behind(thing)}
        for memo in (self._memo, self._memo | left):
            before = dict(memo)
            try:
                twin = copy.deepcopy(thing, memo)
            except Exception:
                memo.clear()
                memo.update(before)
                continue
            self._memo.update(memo)
            return twin
        self.copied = False
        return thing


def _is_instance(value: Any) -> bool:
    """Whether it is an object of somebody's class, and no function, module or class itself."""
    plain = isinstance(value, type | types.ModuleType | types.FunctionType | types.MethodType | nn.Module | Tensor)
    return hasattr(value, "__dict__") and not plain


def _left_behind(thing: Any, depth: int = 4) -> Iterator[Tensor]:
    """Tensors that are not leaves, in a module or an object, and in what it holds."""
    if isinstance(thing, Tensor):
        if not thing.is_leaf:
            yield thing
    elif depth:
        held = thing.modules() if isinstance(thing, nn.Module) else [thing]
        for each in held:
            inside = each.values() if isinstance(each, dict) else each if isinstance(each, list | tuple) else ()
            for value in (*inside, *vars(each).values()) if hasattr(each, "__dict__") else inside:
                if isinstance(value, Tensor | list | tuple | dict):
                    yield from _left_behind(value, depth - 1)


def _draw(module: nn.Module) -> None:
    """Draw what is learned anew; of a frozen module, everything but masks."""
    generator = torch.Generator().manual_seed(7)
    frozen = not any(parameter.requires_grad for parameter in module.parameters())
    with torch.no_grad():
        for parameter in module.parameters():
            kept = not parameter.is_floating_point() or not (parameter.requires_grad or frozen)
            if not kept and parameter.isfinite().all() and not is_triangle(parameter):
                std = parameter.size(-1) ** -0.5 if parameter.dim() > 1 else 0.5
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * std)


def is_triangle(values: Tensor) -> bool:
    """Whether the last two axes are a square with one value on one side of the diagonal, and another on the other."""
    if values.dim() < 2 or values.size(-1) != values.size(-2) or values.size(-1) < 2:
        return False
    square = values.reshape(-1, *values.shape[-2:])[0].nan_to_num()
    size = square.size(-1)
    for offset in (0, -1, 1):
        low = torch.ones(size, size, dtype=torch.bool).tril(offset)
        sides = square[low].unique(), square[~low].unique()
        if all(len(side) == 1 for side in sides) and sides[0] != sides[1]:
            return True
    return False
