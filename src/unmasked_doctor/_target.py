"""Any attention as one function of (batch, tokens, features): a copy of the target that may be called and changed."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from unmasked._checks import flag
from unmasked._private import uncompiled_function, uncompiled_module
from unmasked_doctor._form import Form

__all__ = [
    "INPUTS",
    "Inputs",
    "Options",
    "Target",
    "WrongShape",
    "is_triangle",
    "known_or_none",
    "restored",
    "slope",
    "with_article",
]

Inputs = Literal["x", "x_allowed", "x_context", "x_context_allowed", "qkv", "qkv_allowed"]
INPUTS: tuple[str, ...] = get_args(Inputs)


@dataclasses.dataclass(frozen=True)
class Options:
    """What the doctor is told of a target: the arguments of `unmasked.diagnose`, which raises what is raised here."""

    embed_dim: int
    num_heads: int | None = None
    causal: bool | None = None
    inputs: Inputs = "x"
    batch_first: bool = True
    weights: Mapping[str, Any] | None = None
    positions: bool | None = None
    tokens: int | None = None
    key_dim: int | tuple[int, int] | None = None
    cache: str | None = None
    training: bool = False
    form: Form | None = None

    def __post_init__(self) -> None:
        if self.inputs not in INPUTS:
            names = ", ".join(f'"{name}"' for name in INPUTS[:-1])
            raise ValueError(f'inputs is {self.inputs!r}; choose {names} or "{INPUTS[-1]}"')
        widths = self.key_dim if isinstance(self.key_dim, tuple) else (self.key_dim,)
        sizes = [("embed_dim", self.embed_dim), ("num_heads", self.num_heads), ("tokens", self.tokens)]
        for name, size in [*sizes, *(("key_dim", width) for width in widths)]:
            least = 2 if name == "tokens" else 1  # with one token there is nothing to weigh
            needed = size is not None or name == "embed_dim" or (name == "key_dim" and isinstance(self.key_dim, tuple))
            if needed and (not isinstance(size, int) or isinstance(size, bool) or size < least):
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be a whole number, {least} or more")
        for name in ("batch_first", "training"):
            flag(name, getattr(self, name))
        for name in ("causal", "positions"):
            known_or_none(name, getattr(self, name))
        if self.key_dim is not None and self.own:
            raise ValueError(
                f"key_dim is {self.key_dim!r}, and with inputs={self.inputs!r} the keys are of the tokens themselves: "
                'leave it out, or choose inputs="x_context" or "qkv"'
            )
        if isinstance(self.key_dim, tuple) and (len(self.key_dim) != 2 or not self.inputs.startswith("qkv")):
            raise ValueError(
                f'key_dim is {self.key_dim!r}; a pair tells features of keys and of values, for inputs="qkv" or '
                '"qkv_allowed" alone: pass one number'
            )
        if self.weights is not None and not isinstance(self.weights, Mapping):
            raise TypeError(
                f"weights is {with_article(self.weights)}; pass a dict of roles and parameters: "
                "weights=dict(query=..., out=...)"
            )
        if self.cache is not None and not (isinstance(self.cache, str) and self.cache.isidentifier()):
            raise ValueError(
                f'cache is {self.cache!r}; pass "kv" where forward(x, cache=None) returns (output, cache), or the name '
                'of that argument, such as "past_key_value"'
            )
        if self.cache is not None and self.inputs != "x":
            raise ValueError(
                f'cache is {self.cache!r} and inputs is {self.inputs!r}; a cache is examined with inputs="x": wrap the '
                "target so that it takes tokens and a cache"
            )
        if self.cache is not None and self.causal is False:
            raise ValueError(
                f"cache is {self.cache!r} and causal is False; what is kept in a cache has not seen later tokens: pass "
                "causal=True, or leave cache out"
            )

    @property
    def own(self) -> bool:
        """Whether tokens attend to themselves, so that one tensor is query, key and value."""
        return self.inputs in ("x", "x_allowed")

    @property
    def masked(self) -> bool:
        """Whether it takes a mask."""
        return self.inputs.endswith("_allowed")

    @property
    def cache_name(self) -> str:
        """The argument that takes a cache."""
        return "cache" if self.cache in (None, "kv") else str(self.cache)

    @property
    def widths(self) -> tuple[int, int, int]:
        """Features of queries, keys and values."""
        keys = self.embed_dim if self.key_dim is None else self.key_dim
        return (self.embed_dim, *(keys if isinstance(keys, tuple) else (keys, keys)))


def known_or_none(name: str, value: object) -> None:
    """Refuse what is neither True, False nor None."""
    if value is not True and value is not False and value is not None:
        raise ValueError(f"{name} is {value!r}; pass True, False, or None if that is not known")


class WrongShape(Exception):  # noqa: N818  # it is what the doctor finds, not a fault of the program
    """What came out has not the shape (batch, queries, features).

    Attributes:
        pooled: How many outputs it has, if only their number is another than the queries'.
    """

    def __init__(self, text: str, pooled: int | None = None):
        super().__init__(text)
        self.pooled = pooled


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
        default: Where PyTorch makes tensors if nobody says where, while the target runs.
        mask_axes: How many axes its masks have: see `with_axes`.
    """

    def __init__(
        self,
        target: Callable[..., Any],
        options: Options,
        *,
        dtype: torch.dtype = torch.float64,
        default: torch.device | None = None,
        device: torch.device | None = None,
    ):
        self.options, self.dtype, self.default = options, dtype, default
        self.inputs, self.batch_first = options.inputs, options.batch_first
        self.originals: dict[str, nn.Module | Tensor] = {}
        self.copied, self.mask_axes = True, 4
        self.handles: list[Any] = []  # hooks that watch it
        self.spied: list[dict[str, Any]] = []  # what every nn.MultiheadAttention in it was called with
        self._modes: list[tuple[nn.Module, bool]] = []  # of what could not be copied
        self._memo: dict[int, Any] = {}
        self.weights: Tensor | None = None  # what the last call returned beside its output
        things: dict[str, Any] = {}
        self.call = self._own(target, things)
        self.modules = {name: thing for name, thing in things.items() if isinstance(thing, nn.Module)}
        self.tensors: dict[str, Tensor] = {}
        self.owners: dict[str, nn.Module | None] = {}
        for thing in self.modules.values():
            if not self.copied:
                self._modes += [(module, module.training) for module in thing.modules()]
            thing.eval()
            if self.copied:
                with warnings.catch_warnings():  # copies of scripted parameters are no leaves, and nobody asks them
                    warnings.simplefilter("ignore", UserWarning)
                    thing.to(device=device, dtype=dtype)
        self.device = self._device(things)
        if self.copied:
            self._materialize()
            for thing in self.modules.values():
                draw(thing)
        for name, tensor, owner in _named(things):
            self.tensors[name], self.owners[name] = tensor, owner
        if not self.copied:
            self.dtype = next((t.dtype for t in self.tensors.values()), dtype)

    def __call__(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, allowed: Tensor | None = None
    ) -> Tensor:
        """Attend: keys and values are of the queries' tokens where they are not given, and everything is allowed."""
        key = self.wide(query, 1) if key is None else key
        value = (key if key.size(-1) == self.options.widths[2] else self.wide(query, 2)) if value is None else value
        chosen = self.chosen(query, key, value)
        kept = {id(x): x.clone() for x in chosen}  # the target may write into them
        return self.read(self.raw(*(kept[id(x)] for x in chosen), allowed=allowed), query, key.size(1))

    @property
    def untouched(self) -> dict[str, Tensor]:
        """The target's own tensors, by the names that their copies have."""
        return {name: tensor for name, tensor, _ in _named(self.originals)}

    @property
    def trained(self) -> list[str]:
        """Names of what a backward pass reaches."""
        return [name for name, tensor in self.tensors.items() if tensor.requires_grad and tensor.is_leaf]

    def called_with(self, option: str) -> bool:
        """Whether an nn.MultiheadAttention within was called with this option."""
        return any(call.get(option) for call in self.spied)

    def chosen(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Choose what of these the target takes."""
        if self.options.own:
            return (query,)
        return (query, key) if self.inputs.startswith("x_context") else (query, key, value)

    def wide(self, x: Tensor, place: int) -> Tensor:
        """Give each token the features that keys or values have: its own, or so many sums of them."""
        width = self.options.widths[place]
        if width == x.size(-1):
            return x
        generator = torch.Generator("cpu").manual_seed(place)
        mixed = torch.randn(x.size(-1), width, generator=generator, dtype=torch.float64, device="cpu")
        return torch.matmul(x, (mixed * x.size(-1) ** -0.5).to(x.dtype))

    def read(self, result: Any, query: Tensor, keys: int) -> Tensor:
        """Find the output in what it returned, and the weights beside it, if there are any."""
        tensors = [part.to("cpu") for part in _parts(result) if isinstance(part, Tensor)]
        if not tensors:
            raise WrongShape(f"it returned {type(result).__name__}, and no tensor in it")
        output, *rest = tensors
        items, queries = query.shape[:2]
        self.weights = next((w for w in rest if _are_weights(w, queries, keys)), None)
        first = self.batch_first or self.options.form is not None  # which gives (batch, tokens, features)
        wanted = (items, queries) if first else (queries, items)
        if output.dim() != 3 or tuple(output.shape[:2]) != wanted:
            names = "(batch, tokens, features)" if first else "(tokens, batch, features)"
            axis = 1 if first else 0
            pooled = output.dim() == 3 and output.size(1 - axis) == items
            raise WrongShape(
                f"from inputs of shape {(*wanted, query.size(-1))} it made {tuple(output.shape)}; "
                f"{names} would begin {wanted}",
                output.size(axis) if pooled else None,
            )
        return output if first else output.transpose(0, 1)

    def raw(self, *tensors: Tensor, allowed: Tensor | None = None, **more: Any) -> Any:
        """Call it with these very tensors, (batch, tokens, features), and return what it returns."""
        items, queries, keys = tensors[0].size(0), tensors[0].size(1), tensors[-1].size(1)
        if self.options.form is not None:
            return self._as_called(self.options.form, tensors, allowed, more)
        passed = list(tensors)
        if not self.batch_first:
            turned = {id(x): x.transpose(0, 1) for x in tensors}
            passed = [turned[id(x)] for x in tensors]
        if self.options.masked:
            everything = torch.ones(queries, keys, dtype=torch.bool)
            passed.append(self._mask(everything if allowed is None else allowed, items))
        with contextlib.nullcontext() if self.default is None else self.default:
            return self.call(*(x.to(self.device) for x in passed), **more)

    def _as_called(self, form: Form, tensors: tuple[Tensor, ...], allowed: Tensor | None, more: dict[str, Any]) -> Any:
        """Call it as its user does, with these tokens in the place of the user's."""
        query, key, value = (tensors[0], tensors[min(1, len(tensors) - 1)], tensors[-1])
        with contextlib.nullcontext() if self.default is None else self.default:
            args, kwargs = form.arguments(query.to(self.device), key.to(self.device), value.to(self.device), allowed)
            return form.read(self.call(*args, **kwargs | more), query.size(0), query.size(1))

    def step(self, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Call it with tokens and a cache, None to begin one; return its output and the cache that it gives."""
        result = self.raw(x.clone(), **{self.options.cache_name: cache})
        parts = _parts(result)
        return self.read(parts[0], x, x.size(1)), parts[-1] if len(parts) > 1 else None

    def _mask(self, allowed: Tensor, items: int) -> Tensor:
        """Give a mask the axes that the target takes: (batch, 1, q, k), (batch, q, k), (q, k), or (batch, k)."""
        if self.mask_axes == 2:
            return allowed if allowed.dim() == 2 else allowed[0]
        allowed = allowed if allowed.dim() == 3 else allowed.expand(items, -1, -1)
        if self.mask_axes == 1:
            return allowed.any(1)
        return allowed.unsqueeze(1) if self.mask_axes == 4 else allowed

    def _device(self, things: Mapping[str, Any]) -> torch.device:
        """Where its parameters are, to which its inputs go."""
        tensors: dict[str, Tensor] = {}
        for name, thing in things.items():
            module = isinstance(thing, nn.Module)
            held = dict((*thing.named_parameters(), *thing.named_buffers())) if module else {"": thing}
            tensors |= {f"{name}.{inner}".strip("."): t for inner, t in held.items() if isinstance(t, Tensor)}
        for name, tensor in tensors.items():
            if tensor.is_meta:
                raise ValueError(
                    f"{name!r} of the target is on the meta device, where tensors have no values; give it some: "
                    'target.to_empty(device="cpu"), and then initialize or load its parameters'
                )
        return next((tensor.device for tensor in tensors.values()), torch.device("cpu"))

    def _materialize(self) -> None:
        """Let lazy modules see an input, from which they take their shapes."""
        lazy = nn.parameter.is_lazy
        if any(lazy(parameter) for module in self.modules.values() for parameter in module.parameters()):
            x = torch.ones(2, self.options.tokens or 5, self.options.embed_dim, dtype=self.dtype)
            for axes in (4, 3, 2, 1):
                with torch.no_grad(), contextlib.suppress(Exception):  # if it fails, it is asked again, and heard
                    self.with_axes(axes)(x)
                    return

    def with_axes(self, mask_axes: int) -> Target:
        """Return the same target, which gets its masks with so many axes."""
        twin = copy.copy(self)
        twin.mask_axes = mask_axes
        if self.options.form is not None:
            form = self.options.form.with_mask(mask_axes)
            twin.options, twin.mask_axes = dataclasses.replace(self.options, form=form), form.mask_axes
        return twin

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

    def _rebind(self, function: types.FunctionType, things: dict[str, Any]) -> Callable[..., Any]:
        names = function.__code__.co_names
        scope = function.__globals__
        mine = {n: scope[n] for n in names if n in scope and self._is_ours(scope[n], scope)}
        if mine:
            scope = scope | {name: self._own(value, things, name) for name, value in mine.items()}
        cells = []
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError:  # not yet assigned
                cells.append(cell)
                continue
            own = self._own(content, things, name)
            cells.append(cell if own is content else types.CellType(own))
        defaults = tuple(
            self._own(value, things, f"default {i}") for i, value in enumerate(function.__defaults__ or ())
        )
        twin = types.FunctionType(function.__code__, scope, function.__name__, defaults or None, tuple(cells) or None)
        twin.__kwdefaults__ = function.__kwdefaults__
        return twin

    def _own(self, value: Any, things: dict[str, Any], name: str = "", *, copied: bool = False) -> Any:
        """Copy what holds weights or leads to some, and collect them: a module, a tensor, a function, an object."""
        value = _uncompiled(value)

        def part(each: Any, key: object, copied: bool = copied) -> Any:
            return self._own(each, things, f"{name}.{key}" if name else str(key), copied=copied)

        if isinstance(value, nn.Module):
            things[name], self.originals[name] = value if copied else self._deepcopy(value), value
            return things[name]
        if isinstance(value, Tensor) and value.is_floating_point() and value.dim():
            things[name] = value.detach().to(self.dtype, copy=True).requires_grad_(value.requires_grad)
            self.originals[name] = value
            return things[name]
        if isinstance(value, dict | list | tuple) and value:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            twins = {key: part(each, key) for key, each in items}
            return (
                twins if type(value) is dict else type(value)(twins.values()) if type(value) in (list, tuple) else value
            )
        if isinstance(value, functools.partial):
            args = [part(each, f"argument {i}") for i, each in enumerate(value.args)]
            options = {key: part(each, key) for key, each in value.keywords.items()}
            return functools.partial(self._own(value.func, things, name, copied=copied), *args, **options)
        if isinstance(value, types.MethodType):
            return types.MethodType(value.__func__, self._own(value.__self__, things, name, copied=copied))
        if isinstance(value, types.FunctionType) and not copied and id(value) not in self._memo:
            self._memo[id(value)] = value  # a function may refer to itself
            inner: dict[str, Any] = {}
            twin = self._rebind(value, inner)
            things.update(inner)
            return twin if inner else value
        if _is_instance(value) and not copied:
            twin = self._deepcopy(value)
            for key, each in list(vars(twin).items()):
                vars(twin)[key] = part(each, key, copied=True)
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
        memo = dict(self._memo)
        try:
            with _Detached():
                twin = copy.deepcopy(thing, memo)
        except Exception:
            self.copied = False
            return thing
        self._memo.update(memo)
        return twin


def with_article(thing: object) -> str:
    """Return the name of a thing's type, after its article."""
    name = type(thing).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


@contextmanager
def restored(tensor: Tensor) -> Iterator[Tensor]:
    """Let a tensor be changed in place for a while, and put its own numbers back, which are also given."""
    kept = tensor.detach().clone()
    with torch.no_grad():
        try:
            yield kept
        finally:
            tensor.copy_(kept)


def slope(f: Callable[[Tensor], Tensor], x: Tensor, cotangent: Tensor, tensor: Tensor, step: Tensor) -> float:
    """Half of what a sum of outputs moves by between a step back and a step ahead."""
    with restored(tensor) as kept:
        ends = []
        for sign in (1, -1):
            tensor.copy_(kept + sign * step)
            ends.append((f(x) * cotangent).sum().item())
    return (ends[0] - ends[1]) / 2


def _named(things: Mapping[str, nn.Module | Tensor]) -> Iterator[tuple[str, Tensor, nn.Module | None]]:
    """Every parameter and tensor by its name, with the module that holds it."""
    for name, thing in things.items():
        if isinstance(thing, Tensor):
            yield name, thing, None
            continue
        owners = dict(thing.named_modules(remove_duplicate=False))
        for inner, parameter in thing.named_parameters(remove_duplicate=False):
            yield f"{name}.{inner}" if name else inner, parameter, owners[inner.rpartition(".")[0]]


def _uncompiled(target: Any) -> Any:
    """The module or function that torch.compile was given, which computes the same and can be copied and watched."""
    return uncompiled_module(target) if isinstance(target, nn.Module) else uncompiled_function(target)


def _parts(result: Any) -> list[Any]:
    """What it returned, in order: of a tuple, a dictionary or a dataclass its parts."""
    if dataclasses.is_dataclass(result):
        result = vars(result)
    if isinstance(result, Mapping):
        return list(result.values())
    return list(result) if isinstance(result, tuple | list) else [result]


def _are_weights(result: Tensor, queries: int, keys: int) -> bool:
    """Whether a second result can be weights: scores and biases have this shape too, but no rows that sum to one."""
    if result.shape[-2:] != (queries, keys) or not result.is_floating_point() or not result.isfinite().any():
        return False
    return not bool((result < 0).any())


def _is_instance(value: Any) -> bool:
    """Whether it is an object of somebody's class, and no function, module or class itself."""
    plain = isinstance(value, type | types.ModuleType | types.FunctionType | types.MethodType | nn.Module | Tensor)
    return hasattr(value, "__dict__") and not plain


class _Detached(TorchFunctionMode):
    """Copies tensors that a forward pass has left behind without their graph, with which they cannot be copied."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            args = (args[0].detach(), args[1])
        return func(*args, **(kwargs or {}))


def draw(module: nn.Module) -> None:
    """Draw what is learned anew; of a frozen module, everything but masks; and not what another number goes with.

    A parametrized weight is kept, since what is kept beside it, as by spectral_norm, was made of it.
    """
    kept_whole = {
        id(parameter)
        for each in module.modules()
        for name, parameter in each.named_parameters(recurse=False)
        if name.endswith(("_orig", "_g", "_v")) or type(each).__name__ in ("ParametrizationList",)
    }
    generator = torch.Generator().manual_seed(7)
    frozen = not any(parameter.requires_grad for parameter in module.parameters())
    with torch.no_grad():
        for parameter in module.parameters():
            kept = not parameter.is_floating_point() or not (parameter.requires_grad or frozen)
            kept = kept or id(parameter) in kept_whole
            if not kept and parameter.isfinite().all() and not is_triangle(parameter):
                if parameter.dim() > 1:  # a convolution's last axis is no axis of features
                    std = (parameter.size(-1) if parameter.size(-1) > 3 else parameter[0].numel()) ** -0.5
                else:
                    std = 0.5
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * std)


def is_triangle(values: Tensor) -> bool:
    """Whether the last two axes are a square with one value on one side of the diagonal, and another on the other."""
    if values.dim() < 2 or values.size(-1) != values.size(-2) or values.size(-1) < 2:
        return False
    square = values.reshape(-1, *values.shape[-2:])[0].nan_to_num()
    size = square.size(-1)
    low, high = square[[-1, -1], [0, size // 2 - 1]], square[[0, 0], [-1, -(size // 2)]]
    if size > 3 and (low[0] != low[1] or high[0] != high[1]):  # of a large matrix, four numbers mostly tell
        return False
    for offset in (0, -1, 1):
        low = torch.ones(size, size, dtype=torch.bool).tril(offset)
        sides = square[low].unique(), square[~low].unique()
        if all(len(side) == 1 for side in sides) and sides[0] != sides[1]:
            return True
    return False
