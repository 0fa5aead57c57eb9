"""Whoever takes a layer takes it with all of its options, or refuses by name the one that it does not know."""

import inspect
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from unmasked import CausalSelfAttention, LatentAttention, MultiheadAttention, bypass_, bypassed, is_bypassed
from unmasked.layouts import from_torch
from unmasked.parallel import HeadParallel
from unmasked.positions import Rotary

from .helpers import shaken

E, H, T = 12, 3, 5
SIZES: dict[type[nn.Module], dict[str, Any]] = {
    CausalSelfAttention: {"d_in": E, "d_out": E, "num_heads": H, "qkv_bias": True},
    LatentAttention: {"d_in": E, "d_out": E, "num_heads": H, "latent_dim": 5},
    MultiheadAttention: {"embed_dim": E, "num_heads": H, "batch_first": True},
    nn.MultiheadAttention: {"embed_dim": E, "num_heads": H, "batch_first": True},
}
# Of each option of each layer a value that is not the default, with what else it needs.
OF_PYTORCH = {
    "dropout": 0.25,
    "bias": False,
    "add_bias_kv": True,
    "add_zero_attn": True,
    "kdim": 7,
    "vdim": 7,
    "batch_first": False,
}
OPTIONS: dict[type[nn.Module], dict[str, Any]] = {
    CausalSelfAttention: {
        "num_kv_heads": 1,
        "context_length": T,
        "dropout": 0.25,
        "rotary": Rotary(E // H),
        "scale": 0.7,
        "softcap": 0.5,
        "sinks": True,
        "qkv_bias": False,
        "out_bias": False,
    },
    LatentAttention: {"head_dim": 6, "rotary": Rotary(4), "rotary_dim": 4, "normalize": True, "scale": 0.7},
    MultiheadAttention: OF_PYTORCH,
    nn.MultiheadAttention: OF_PYTORCH,
}
CASES = [(cls, name) for cls, options in OPTIONS.items() for name in options]


def made(cls: type[nn.Module], name: str | None = None) -> nn.Module:
    given = {} if name is None else {name: OPTIONS[cls][name]}
    if cls is LatentAttention and name in ("rotary", "rotary_dim"):
        given = {each: OPTIONS[cls][each] for each in ("rotary", "rotary_dim")}
    return shaken(cls(**SIZES[cls] | given, dtype=torch.float64).eval())


def run(layer: nn.Module, x: Tensor) -> Tensor:
    """What a layer gives, told to be causal where it has to be told; keys and values as wide as it wants them."""
    if not isinstance(layer, nn.MultiheadAttention):
        return layer(x)  # type: ignore[no-any-return]
    first = layer.batch_first
    q, k, v = (x[..., :width] if first else x[..., :width].transpose(0, 1) for width in (E, layer.kdim, layer.vdim))
    hidden = torch.ones(T, T).triu(1).bool()
    output: Tensor = layer(q, k, v, attn_mask=hidden, need_weights=False)[0]
    return output if first else output.transpose(0, 1)


def plain(x: Tensor) -> Tensor:
    """Causal self-attention of each slice, and nothing else."""
    q = x.unflatten(-1, (H, -1)).transpose(-3, -2)
    weights = (q @ q.mT / (E / H) ** 0.5).masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf).softmax(-1)
    return (weights @ q).transpose(-3, -2).flatten(-2)


def within(layer: Any, x: Tensor) -> Tensor:
    with bypassed(layer):
        return run(layer, x)


class Taker(NamedTuple):
    """What takes a layer and runs what it makes of it, what that must give, and the classes that it takes at all."""

    take: Callable[[Any, Tensor], Tensor]
    expected: Callable[[nn.Module, Tensor], Tensor] = run
    classes: tuple[type[nn.Module], ...] = (CausalSelfAttention, nn.MultiheadAttention)


TAKERS = {
    "bypass_": Taker(lambda layer, x: run(bypass_(layer), x), lambda layer, x: plain(x)),
    "bypassed": Taker(within, lambda layer, x: plain(x)),
    "from_torch": Taker(lambda layer, x: run(from_torch(layer), x), classes=(nn.MultiheadAttention,)),
    "HeadParallel": Taker(lambda layer, x: HeadParallel(layer)(x), classes=(CausalSelfAttention,)),
}


@pytest.mark.parametrize("cls", OPTIONS)
def test_the_tables_here_have_all_options_of_all_layers(cls: type[nn.Module]) -> None:
    taken = inspect.signature(cls).parameters.values()
    options = {each.name for each in taken if each.default is not each.empty} - {"device", "dtype"}
    assert options == set(OPTIONS[cls])


@pytest.mark.usefixtures("alone", "unhooked")
@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize(("cls", "name"), CASES, ids=[f"{cls.__module__}.{cls.__name__} {name}" for cls, name in CASES])
def test_an_option_is_taken_or_refused_by_name_and_never_dropped(cls: type[nn.Module], name: str, taker: str) -> None:
    layer, x = made(cls, name), torch.randn(2, T, E, dtype=torch.float64)
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    take, expected, classes = TAKERS[taker]
    right, message = expected(layer, x), ""
    try:
        given = take(layer, x)
    except (TypeError, ValueError) as error:
        message = str(error)
        torch.testing.assert_close(layer.state_dict(), before, rtol=0, atol=0)
    if message:
        assert name in message or (f"{cls.__name__}" in message and not isinstance(layer, classes)), message
        return
    torch.testing.assert_close(given, right)
    if name == "context_length" and taker == "HeadParallel":
        with pytest.raises(ValueError, match=re.escape("more than context_length (5)")):
            take(layer, torch.randn(2, T + 1, E, dtype=torch.float64))


@pytest.mark.usefixtures("alone", "unhooked")
@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("cls", [CausalSelfAttention, MultiheadAttention, nn.MultiheadAttention])
def test_an_option_that_is_added_tomorrow_is_refused_by_all(
    cls: type[nn.Module], taker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x = made(cls), torch.randn(2, T, E, dtype=torch.float64)
    signature = inspect.signature(cls)
    more = inspect.Parameter("tomorrow", inspect.Parameter.KEYWORD_ONLY, default=None)
    now = signature.replace(parameters=[*signature.parameters.values(), more])
    monkeypatch.setattr(cls, "__signature__", now, raising=False)
    layer.tomorrow = 7
    words = "tomorrow=7" if isinstance(layer, TAKERS[taker].classes) else f"(module|layer) is a .*{cls.__name__}[;,] "
    with pytest.raises((TypeError, ValueError), match=words):
        TAKERS[taker].take(layer, x)


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("rotary", "rotary=Rotary(4, base=10000, pairing='halves')"),
        ("scale", "scale=0.7"),
        ("softcap", "softcap=0.5"),
        ("sinks", "sinks=True"),
    ],
)
def test_a_layer_that_does_more_is_not_said_to_be_bypassed(option: str, words: str) -> None:
    layer = made(CausalSelfAttention, option)
    with torch.no_grad():
        layer.qkv.weight.copy_(torch.eye(E).repeat(3, 1))  # type: ignore[union-attr, operator]
    message = f"it was made with {words}, and is more than plain attention"
    assert is_bypassed(layer).reasons[0] == message  # type: ignore[arg-type]
    for refuse in (bypass_, lambda layer: bypassed(layer).__enter__()):
        with pytest.raises(ValueError, match=re.escape(f"module cannot be bypassed: {message}") + "$"):
            refuse(layer)


class Normed(CausalSelfAttention):
    def forward(self, x: Tensor, **options: Any) -> Tensor:
        return super().forward(nn.functional.layer_norm(x, x.shape[-1:]), **options)


class Scaled(nn.MultiheadAttention):
    def forward(self, query: Tensor, *args: Any, **options: Any) -> Any:
        return super().forward(2 * query, *args, **options)


class Adapted(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x.mean(-1, keepdim=True)


def adapted() -> nn.Module:
    layer = made(CausalSelfAttention)
    layer.qkv = Adapted(E, 3 * E, dtype=torch.float64)
    return layer


@pytest.mark.usefixtures("alone", "unhooked")
@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Normed(E, E, H, qkv_bias=True).double(), "Normed whose forward is its own"),
        (lambda: Scaled(E, H, batch_first=True).double(), "Scaled whose forward is its own"),
        (adapted, "CausalSelfAttention whose qkv is a Adapted"),
    ],
    ids=["a norm", "a factor", "an adapter"],
)
def test_a_class_that_computes_otherwise_is_refused_with_what_is_its_own(
    make: Callable[[], nn.Module], words: str, taker: str
) -> None:
    layer, x = make(), torch.randn(2, T, E, dtype=torch.float64)
    name = words.partition(" ")[0]
    with pytest.raises(TypeError, match=f" is a {words}|(module|layer) is a {name}(; from_torch takes|, which cannot)"):
        TAKERS[taker].take(layer, x)


class Named(CausalSelfAttention):
    """A class that computes the same, with another constructor."""

    def __init__(self, width: int, window: int = 3) -> None:
        super().__init__(width, width, H, qkv_bias=True, dtype=torch.float64)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("taker", ["bypass_", "bypassed", "HeadParallel"])
def test_a_class_that_computes_the_same_is_taken(taker: str) -> None:
    layer, x = shaken(Named(E)), torch.randn(2, T, E, dtype=torch.float64)
    take, expected, _ = TAKERS[taker]
    right = expected(layer, x)
    torch.testing.assert_close(take(layer, x), right)
