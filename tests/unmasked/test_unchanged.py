"""What is refused changes nothing: caches, layers and process groups are as they were, and go on as if not asked."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unmasked import (
    CausalSelfAttention,
    KVCache,
    LatentAttention,
    MultiheadAttention,
    bypass_,
    bypassed,
    is_bypassed,
    masks,
)
from unmasked.layouts import from_torch
from unmasked.parallel import HeadParallel
from unmasked.positions import Rotary
from unmasked_lessons.embeddings import common_vectors

from .helpers import shaken

pytestmark = pytest.mark.usefixtures("unhooked")
E, H, B = 12, 3, 2
Call = Callable[[Any, Any, Tensor], object]


def rotary(x: Tensor, positions: Tensor) -> Tensor:
    return Rotary(4)(x, positions)


CACHES: dict[str, Callable[[CausalSelfAttention, Tensor], KVCache]] = {}


def kept(name: str) -> Callable[[Any], None]:
    def keep(make: Any) -> None:
        CACHES[name] = make

    return keep


@kept("empty")
def _(layer: CausalSelfAttention, x: Tensor) -> KVCache:
    return layer.cache(B, 8)


@kept("some tokens")
def _(layer: CausalSelfAttention, x: Tensor) -> KVCache:
    cache = layer.cache(B, 8)
    layer(x[:, :5], cache=cache)
    return cache


@kept("a full ring")
def _(layer: CausalSelfAttention, x: Tensor) -> KVCache:
    cache = layer.cache(B, 8, window=3)
    layer(x[:, :5], cache=cache)
    return cache


@kept("several lengths")
def _(layer: CausalSelfAttention, x: Tensor) -> KVCache:
    cache = layer.cache(B, 8)
    layer(x[:, :5], cache=cache)
    cache.crop(torch.tensor([5, 3]))
    return cache


def mask(cache: Any, tokens: int = 1, **axes: int) -> Tensor:
    """A mask of all tokens so far, with another size for one of its axes."""
    sizes = {"batch": B, "heads": H, "queries": tokens, "keys": cache.length + tokens} | axes
    return torch.ones(*sizes.values(), dtype=torch.bool)


def changed(**options: Any) -> Call:
    """A call after an option of the layer was set, which no constructor would have taken."""

    def call(layer: Any, cache: Any, x: Tensor) -> object:
        before = {name: getattr(layer, name) for name in options}
        try:
            for name, value in options.items():
                setattr(layer, name, value)
            return layer(x, cache=cache)
        finally:
            for name, value in before.items():
                setattr(layer, name, value)

    return call


def nested(x: Tensor) -> Tensor:
    return torch.nested.nested_tensor([*x])


def appended(**wrong: Callable[[Tensor], Tensor]) -> Call:
    """A right key and value are appended, one of them made wrong."""

    def call(layer: Any, cache: Any, x: Tensor) -> object:
        new = {name: torch.ones(B, H, 1, 4, dtype=torch.float64) for name in ("key", "value")}
        return cache.append(**new | {name: change(new[name]) for name, change in wrong.items()})

    return call


ANY: dict[str, Call] = {
    "x has other features": lambda layer, cache, x: layer(x[..., 1:], cache=cache),
    "x has another batch": lambda layer, cache, x: layer(x[:1], cache=cache),
    "x has no batch": lambda layer, cache, x: layer(x[0], cache=cache),
    "x has one axis": lambda layer, cache, x: layer(x[0, 0], cache=cache),
    "x is float32": lambda layer, cache, x: layer(x.float(), cache=cache),
    "x is integers": lambda layer, cache, x: layer(x.long(), cache=cache),
    "x is elsewhere": lambda layer, cache, x: layer(x.to("meta"), cache=cache),
    "x is sparse": lambda layer, cache, x: layer(x.to_sparse(), cache=cache),
    "x is nested": lambda layer, cache, x: layer(torch.nested.nested_tensor([*x], layout=torch.jagged), cache=cache),
    "x is a list": lambda layer, cache, x: layer(x.tolist(), cache=cache),
    "x is None": lambda layer, cache, x: layer(None, cache=cache),
    "x is too long": lambda layer, cache, x: layer(torch.cat([x] * 9, dim=1), cache=cache),
    "positions do not fit": lambda layer, cache, x: layer(x, cache=cache, positions=torch.arange(3)),
    "positions are no integers": lambda layer, cache, x: layer(x, cache=cache, positions=torch.ones(1)),
    "positions are a list": lambda layer, cache, x: layer(x, cache=cache, positions=[1]),
    "gradients are wanted": lambda layer, cache, x: torch.enable_grad()(layer)(x.requires_grad_(), cache=cache),
    "rotary raises": changed(rotary=lambda x, positions: int("no")),
    "rotary changes the dtype": changed(rotary=lambda x, positions: x.float()),
    "rotary changes the shape": changed(rotary=lambda x, positions: x[..., :2]),
    "scale is NaN": changed(scale=float("nan")),
    "scale is a word": changed(scale="small"),
}
OF_CAUSAL: dict[str, Call] = {
    "allowed is a list": lambda layer, cache, x: layer(x, cache=cache, allowed=[True]),
    "allowed is a word": lambda layer, cache, x: layer(x, cache=cache, allowed="all"),
    "allowed is additive": lambda layer, cache, x: layer(x, cache=cache, allowed=mask(cache).double()),
    "allowed has other keys": lambda layer, cache, x: layer(x, cache=cache, allowed=mask(cache, keys=cache.length + 3)),
    "allowed has other queries": lambda layer, cache, x: layer(x, cache=cache, allowed=mask(cache, queries=4)),
    "allowed has other heads": lambda layer, cache, x: layer(x, cache=cache, allowed=mask(cache, heads=4)),
    "allowed has another batch": lambda layer, cache, x: layer(x, cache=cache, allowed=mask(cache, batch=5)),
    "allowed has more axes": lambda layer, cache, x: layer(x, cache=cache, allowed=mask(cache)[None, None]),
    "softcap is zero": changed(softcap=0.0),
    "sinks are of other heads": changed(sinks=nn.Parameter(torch.zeros(5))),
    "dropout is no probability": changed(dropout=1.5, training=True),
    "the cache is another layer's": lambda layer, cache, x: layer(
        x, cache=LatentAttention(E, E, H, latent_dim=2).cache(2, 9)
    ),
    "crop by half a token": lambda layer, cache, x: cache.crop(2.5),
    "crop behind the end": lambda layer, cache, x: cache.crop(9),
    "crop one sequence behind its end": lambda layer, cache, x: cache.crop(torch.tensor([0, 9])),
    "crop three sequences": lambda layer, cache, x: cache.crop(torch.tensor([0, 0, 0])),
    "crop by a word": lambda layer, cache, x: cache.crop("all"),
    "reorder by numbers that are not there": lambda layer, cache, x: cache.reorder(torch.tensor([0, 2])),
    "reorder by fractions": lambda layer, cache, x: cache.reorder(torch.ones(2)),
    "reorder by a list": lambda layer, cache, x: cache.reorder([1, 0]),
    "crop by numbers without values": lambda layer, cache, x: cache.crop(torch.zeros(B, dtype=torch.long).to("meta")),
    "reorder by numbers without values": lambda layer, cache, x: cache.reorder(torch.zeros(B).long().to("meta")),
    "append what is no tensor": lambda layer, cache, x: cache.append([1.0], [1.0]),
    "append keys alone": lambda layer, cache, x: cache.append(torch.ones(B, H, 1, 4).double(), None),
    "append a sparse value": appended(value=Tensor.to_sparse),
    "append a sparse key": appended(key=Tensor.to_sparse),
    "append a nested value": appended(value=nested),
    "append a value without numbers": appended(value=lambda x: x.to("meta")),
    "append a value of float32": appended(value=Tensor.float),
    "append more values than keys": appended(value=lambda x: torch.cat([x, x], dim=2)),
    "append another shape": lambda layer, cache, x: cache.append(*[torch.ones(B, H, 1, 5).double()] * 2),
}
OF_LATENT: dict[str, Call] = {
    "there is no such form": lambda layer, cache, x: layer(x, cache=cache, form="folded"),
    "the cache is another layer's": lambda layer, cache, x: layer(x, cache=KVCache(B, H, 8, 4)),
    "append what is no tensor": lambda layer, cache, x: cache.append([1.0]),
    "append another shape": lambda layer, cache, x: cache.append(torch.ones(B, 1, 3).double()),
    "append what is sparse": lambda layer, cache, x: cache.append(torch.ones(B, 1, 9).double().to_sparse()),
    "append what has no numbers": lambda layer, cache, x: cache.append(torch.ones(B, 1, 9).double().to("meta")),
}


def state(cache: Any) -> list[Any]:
    held = [cache._memory, cache.cache_seqlens] if isinstance(cache, KVCache) else [cache._kept]
    return [cache.length, *(each.clone() for each in held)]


def assert_refused_and_as_before(layer: Any, cache: Any, call: Call, step: Tensor) -> None:
    before, parameters = state(cache), [p.clone() for p in layer.parameters()]
    with pytest.raises((TypeError, ValueError)):
        call(layer, cache, step.clone())
    torch.testing.assert_close(state(cache), before, rtol=0, atol=0)
    torch.testing.assert_close([*layer.parameters()], parameters, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("held", CACHES)
@pytest.mark.parametrize("call", ANY | OF_CAUSAL)
def test_a_refused_call_leaves_a_cache_as_it_was(call: str, held: str) -> None:
    layer = shaken(CausalSelfAttention(E, E, H, rotary=rotary, dtype=torch.float64).eval())
    x = torch.randn(B, 6, E, dtype=torch.float64)
    with torch.no_grad():
        cache, again = (CACHES[held](layer, x) for _ in range(2))
        assert_refused_and_as_before(layer, cache, (ANY | OF_CAUSAL)[call], x[:, :1])
        torch.testing.assert_close(layer(x[:, 5:], cache=cache), layer(x[:, 5:], cache=again))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("call", ANY | OF_LATENT)
def test_a_refused_call_leaves_a_cache_of_latents_as_it_was(call: str) -> None:
    layer = LatentAttention(E, E, H, latent_dim=5, rotary=rotary, rotary_dim=4, dtype=torch.float64)
    x = torch.randn(B, 6, E, dtype=torch.float64)
    with torch.no_grad():
        cache = layer.cache(B, 8)
        layer(x[:, :5], cache=cache)
        assert_refused_and_as_before(layer, cache, (ANY | OF_LATENT)[call], x[:, :1])
        torch.testing.assert_close(layer(x[:, 5:], cache=cache), layer(x)[:, 5:])


MODES = {"inference": torch.inference_mode, "no grad": torch.no_grad, "grad": torch.enable_grad}


@pytest.mark.parametrize("held", ["keys", "a ring", "latents"])
@pytest.mark.parametrize("there", MODES)
@pytest.mark.parametrize("here", MODES)
def test_a_cache_that_is_made_and_filled_in_one_mode_goes_on_in_another(here: str, there: str, held: str) -> None:
    layer: Any = LatentAttention(E, E, H, latent_dim=5) if held == "latents" else CausalSelfAttention(E, E, H)
    layer.requires_grad_(False)
    x = torch.randn(B, 8, E)
    with MODES[here]():
        cache = layer.cache(B, 8, **{"window": 3} if held == "a ring" else {})
        parts = [layer(x[:, :4], cache=cache)]
    with MODES[there]():
        parts += [layer(part, cache=cache) for part in x[:, 4:].split([1, 2, 1], dim=1)]
        if held == "keys":
            cache.crop(torch.tensor([6, 3]))
            cache.reorder(torch.tensor([1, 0]))
    with MODES[here]():
        whole = layer(x) if held != "a ring" else layer(x, allowed=masks.sliding_window(8, window=3))
        torch.testing.assert_close(torch.cat(parts, dim=1), whole)
        if held == "keys":
            right = torch.stack([layer(torch.cat([x[1, :3], x[0, 6:7]]))[-1], layer(x[0, :7])[-1]])
            torch.testing.assert_close(layer(x[:1, 6:7].expand(B, 1, E), cache=cache)[:, 0], right)
            cache.crop(0)


def reshaped() -> nn.Module:
    layer = CausalSelfAttention(E, E, H, qkv_bias=True)
    layer.qkv.weight = nn.Parameter(torch.randn(E, E))
    return layer


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "rotary": lambda: CausalSelfAttention(E, E, H, rotary=rotary, num_kv_heads=1),
    "sinks": lambda: CausalSelfAttention(E, E, H, sinks=True, num_kv_heads=1),
    "grouped": lambda: CausalSelfAttention(E, E, H, num_kv_heads=1),
    "reshaped": reshaped,
    "appended": lambda: MultiheadAttention(E, H, add_bias_kv=True),
    "two widths": lambda: nn.MultiheadAttention(E, H, kdim=5),
}


def dropping(layer: Any) -> Any:
    layer.dropout = 0.5
    return layer


TAKERS: dict[str, Callable[[Any], object]] = {
    "bypass_": bypass_,
    "bypassed": lambda layer: bypassed(layer).__enter__(),
    "from_torch": from_torch,
    "HeadParallel": lambda layer: HeadParallel(dropping(layer)),
}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("name", "taker"),
    [
        (name, taker)
        for name, taker in product(LAYERS, TAKERS)
        if taker != "from_torch" or name not in ("appended", "two widths")  # which it takes
    ],
)
def test_a_layer_that_is_refused_is_as_it_was_and_so_is_the_group(name: str, taker: str) -> None:
    layer = shaken(LAYERS[name]())
    layer.get_parameter("out_proj.weight").grad = torch.ones(E, E)
    before = [(p, p.detach().clone(), p.requires_grad, p.grad) for p in layer.parameters()]
    with pytest.raises((TypeError, ValueError)):
        TAKERS[taker](layer)
    for p, value, requires_grad, grad in before:
        assert torch.equal(p, value)
        assert p.requires_grad is requires_grad
        assert p.grad is grad
    fine, x = CausalSelfAttention(E, E, H), torch.randn(B, 4, E)
    torch.testing.assert_close(HeadParallel(fine)(x), fine(x))


def test_layers_are_bypassed_and_copied_under_another_default_device() -> None:
    theirs = nn.MultiheadAttention(E, H)
    for layer in (CausalSelfAttention(E, E, H, qkv_bias=True), MultiheadAttention(E, H)):
        with torch.device("meta"):
            copy: Any = from_torch(theirs)
            bypass_(layer)
            assert is_bypassed(layer)
        assert torch.equal(layer.out_proj.weight, torch.eye(E))
        assert copy.out_proj.weight.device.type == "cpu"


@pytest.mark.usefixtures("alone")
def test_caches_and_parts_of_layers_work_under_another_default_device() -> None:
    layer, x = CausalSelfAttention(E, E, H, rotary=Rotary(4)).eval(), torch.randn(B, 4, E)
    with torch.device("meta"), torch.no_grad():
        cache = layer.cache(B, 8)
        parts = [layer(part, cache=cache) for part in x.split([2, 1, 1], dim=1)]
        cache.crop(torch.tensor([3, 2], device="cpu"))
        cache.reorder(torch.tensor([1, 0], device="cpu"))
        shared = HeadParallel(layer)(x)
    torch.testing.assert_close(torch.cat(parts, dim=1), layer(x))
    torch.testing.assert_close(shared, layer(x))


def test_trees_and_vectors_are_made_where_their_tensors_are_and_not_by_default() -> None:
    parents, ship = torch.tensor([-1, 0, 0, 1]), common_vectors()["ship"]
    right = masks.tree(parents, 6)
    with torch.device("meta"):
        assert torch.equal(masks.tree(parents, 6), right)
        assert torch.equal(common_vectors()["ship"], ship)
        assert common_vectors().nearest(ship, 1) == ["ship"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: MultiheadAttention(E, H),
        lambda: nn.Sequential(nn.Linear(2, 2), nn.ModuleList([CausalSelfAttention(E, E, H)])),
        lambda: LatentAttention(E, E, H, latent_dim=4),
    ],
)
def test_a_script_is_refused_in_words_that_say_what_to_do(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(
        TypeError, match=r"cannot be scripted: .*; call torch.export.export or torch.compile, or script"
    ):
        torch.jit.script(make())
