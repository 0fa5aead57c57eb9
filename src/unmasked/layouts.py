"""The same weights, kept six ways: conversions between the layouts of attention's projections.

| layout | weight | rows or columns | who keeps it |
| --- | --- | --- | --- |
| packed | in_proj_weight (3·heads·head_dim, in) | all of q, all of k, all of v | nn.MultiheadAttention |
| qkv | qkv.weight (3·heads·head_dim, in) | packed, by another name | CausalSelfAttention |
| separate | W_query, W_key, W_value .weight (heads·head_dim, in) | one matrix each | three nn.Linear |
| interleaved | qkv_layer.weight (heads·3·head_dim, in) | head by head: its q, k, v | GPT-NeoX, Megatron |
| stacked | query, key, value (heads, in, head_dim) | one matrix a head, transposed | einsum |
| conv1d | c_attn.weight (in, 3·heads·head_dim) | packed, transposed | GPT-2 |

Flax keeps (in, heads, head_dim): stacked, with its first two axes exchanged.

`load` takes a layer out of a checkpoint by the names that it has there:

| family | names of a layer | layout | its rotary embeddings pair |
| --- | --- | --- | --- |
| gpt2 | c_attn, c_proj | conv1d | nothing: it adds learned positions |
| gpt_neox | query_key_value, dense | interleaved | halves |
| llama | q_proj, k_proj, v_proj, o_proj | separate, grouped | halves; also Mistral's, Qwen2's; not Cohere's, Llama4's |
| llama_meta | wq, wk, wv, wo | separate, grouped | neighbors: interleaved |
| bert | self.query, self.key, self.value, output.dense | separate | nothing: it adds learned positions |

Weights do not tell by what scores are scaled, or whether they are capped. A checkpoint's config does, and
`options_of` makes a layer's options of it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from unmasked._checks import require_beside, require_divides, require_positive, size, tensor
from unmasked._layers import class_of, kind_of, unknown_options
from unmasked._layouts import LAYOUTS, SHARED, Layout, Spec, check_shapes, hint
from unmasked.multihead import MultiheadAttention

__all__ = ["Family", "Layout", "convert", "from_torch", "layout_of", "load", "options_of"]

Family = Literal["gpt2", "gpt_neox", "llama", "llama_meta", "bert"]
State = dict[str, Tensor]
_OPTIONS = {"dropout", "bias", "batch_first", "add_bias_kv", "add_zero_attn", "kdim", "vdim"}  # that a copy has, too


def convert(state: Mapping[str, Tensor], *, source: Layout, target: Layout, num_heads: int) -> State:
    """Convert attention weights, biases and output projection from one layout to another.

    The result shares no storage with ``state``. Rows packed and rows interleaved have the same shape: nothing but the
    names can tell them apart, so take the source from the model's code.

    Args:
        state: the tensors by the source layout's names (the table above); biases and output projection may be missing.
            The output projection is ``out_proj`` (packed, qkv, separate), ``linear_layer``, ``output`` or ``c_proj``,
            with ``.weight`` and ``.bias``.
        source: the layout of ``state``.
        target: the layout wanted.
        num_heads: number of heads.

    Returns:
        The tensors by the target layout's names.

    Raises:
        ValueError: a layout is unknown, a tensor is missing or of a wrong shape (the text says what it looks like:
            another layout, shared key heads, names with a prefix), or the target cannot hold query, key and value of
            different widths.

    Examples:
        >>> state = {"in_proj_weight": torch.randn(3 * 6, 6), "in_proj_bias": torch.randn(3 * 6)}
        >>> stacked = convert(state, source="packed", target="stacked", num_heads=2)
        >>> stacked["query"].shape, stacked["query_bias"].shape
        (torch.Size([2, 6, 3]), torch.Size([2, 3]))
        >>> back = convert(stacked, source="stacked", target="packed", num_heads=2)
        >>> torch.equal(back["in_proj_weight"], state["in_proj_weight"])
        True
    """
    _require_state(state)
    _require_one("source", source, LAYOUTS)
    _require_one("target", target, LAYOUTS)
    require_positive(num_heads=num_heads)
    old = LAYOUTS[source]
    missing, unknown = [n for n in old.weights if n not in state], [n for n in state if n not in old.names]
    if missing or unknown:
        problem = f"lacks {missing[0]!r}" if missing else f"holds {unknown[0]!r}, which is not one of its names"
        raise ValueError(f"state of layout {source!r} {problem}{hint(state, source, layout_of(state))}")
    _require_tensors(state)
    check_shapes(state, old, source, num_heads)
    return _converted(state, old, target, (num_heads, num_heads, num_heads))


def _converted(state: Mapping[str, Tensor], old: Spec, target: Layout, heads: tuple[int, int, int]) -> State:
    """Convert what was checked; the heads are those of query, key and value."""
    new = LAYOUTS[target]
    result: State = {}
    for names, targets in ((old.weights, new.weights), (old.biases, new.biases)):
        present = [name for name in names if name in state]
        if not present:
            continue
        if len(present) < len(names):
            raise ValueError(f"state holds {present[0]!r} but not all of {', '.join(names)}; pass all of them or none")
        matrices = old.split([state[name] for name in names], heads)
        if len(targets) == 1 and len({m.shape[1:] for m in matrices}) > 1:
            shapes = ", ".join(str(tuple(m.shape)) for m in matrices)
            raise ValueError(f"layout {target!r} keeps query, key and value in one tensor; theirs differ: {shapes}")
        result |= zip(targets, new.join(matrices, heads), strict=True)
    for kind in ("weight", "bias"):
        if (x := state.get(f"{old.output}.{kind}")) is not None:
            result[f"{new.output}.{kind}"] = x.mT if kind == "weight" and old.transposed != new.transposed else x
    return {name: x.detach().clone(memory_format=torch.contiguous_format) for name, x in result.items()}


class _Names(NamedTuple):
    """The names of a family of models for the projections of its attention, their layout, and that of our layer."""

    inputs: tuple[str, ...]
    output: str
    source: Layout
    target: Layout = "qkv"


_FAMILIES: dict[Family, _Names] = {
    "gpt2": _Names(("c_attn",), "c_proj", "conv1d"),
    "gpt_neox": _Names(("query_key_value",), "dense", "interleaved"),
    "llama": _Names(("q_proj", "k_proj", "v_proj"), "o_proj", "separate"),
    "llama_meta": _Names(("wq", "wk", "wv"), "wo", "separate"),
    "bert": _Names(("self.query", "self.key", "self.value"), "output.dense", "separate", "packed"),
}
# Tensors beside the weights that are none: masks and tables of old checkpoints, the norm after BERT's attention.
_BESIDE = re.compile(r"(masked_)?bias|(rotary_emb\.)?inv_freq|output\.LayerNorm\.\w+")


def load(
    state: Mapping[str, Tensor],
    family: Family,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    layer: int | str | None = None,
    target: Layout | None = None,
    config: object = None,
) -> State:
    """Take one attention layer out of a checkpoint, by the names and the layout of its family.

    Queries and keys that are turned by their positions must be turned as the checkpoint's are: the table above says
    which features are pairs. With the other pairing nothing raises, and scores are wrong.

    Llama's names are those of many models, and some of them scale their scores otherwise, cap them, or see a window
    alone. So these names want the checkpoint's config, too, or a warning says what cannot be known.

    Args:
        state: a checkpoint's tensors by their names: a whole model's, a layer's or those of one attention module.
        family: whose names they are, as in the table above.
        num_heads: number of heads.
        num_kv_heads: number of key heads, where queries share them; only the families of Llama do.
        layer: the layer's index, or all that stands before its names; needed where there are several layers.
        target: the layout wanted. Without one it is "qkv", for a `CausalSelfAttention`, and for BERT "packed", for a
            `MultiheadAttention` or PyTorch's.
        config: the checkpoint's config: transformers' own, or config.json as a dict. Make the layer with `options_of`
            it. It must name the same heads.

    Returns:
        The tensors by the target layout's names, in storage of their own; ``sinks`` too, where a layer has them.

    Warns:
        UserWarning: the names are Llama's and there is no config, or the layer sees a window alone.

    Raises:
        ValueError: the family is unknown, the names look like those of another one, a layer is not there or not the
            only one, it has tensors that no layer of ours could hold, their shapes do not fit the heads, or the config
            says something that no layer of ours does.

    Examples:
        >>> from unmasked import CausalSelfAttention
        >>> config = {"num_attention_heads": 4, "num_key_value_heads": 2, "attention_multiplier": 0.25}
        >>> layers = [f"model.layers.{n}.self_attn" for n in range(2)]
        >>> names = [f"{layer}.{x}_proj.weight" for layer in layers for x in "qkvo"]
        >>> state = {name: torch.randn(4 if name[-13] in "kv" else 8, 8) for name in names}
        >>> loaded = load(state, "llama", layer=1, num_heads=4, num_kv_heads=2, config=config)
        >>> layer = CausalSelfAttention(8, 8, out_bias=False, **options_of(config))
        >>> layer.scale
        0.25
        >>> layer.load_state_dict(loaded)
        <All keys matched successfully>
    """
    _require_state(state)
    _require_one("family", family, _FAMILIES)
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    require_positive(num_heads=num_heads, num_kv_heads=num_kv_heads)
    names, prefix = _FAMILIES[family], _prefix(state, family, layer)
    target = names.target if target is None else target
    _require_one("target", target, LAYOUTS)
    if config is not None:
        _check_config(config, int((_indices(prefix) or ["0"])[-1]), num_heads=num_heads, num_kv_heads=num_kv_heads)
    inputs, output = [prefix + name for name in names.inputs], prefix + names.output
    spec = LAYOUTS[names.source].renamed(tuple(inputs), output)
    own = {
        name: x
        for name, x in state.items()
        if name.startswith(prefix) and not _BESIDE.fullmatch(name.removeprefix(prefix))
    }
    sinks = own.pop(f"{prefix}sinks", None) if target == "qkv" else None
    if odd := [name for name in own if name not in spec.names]:
        raise ValueError(
            f"state holds {odd[0]!r}, which no layer of family {family!r} has, and for which ours has no place: "
            "without it the layer computes something else. The page on today's models has theirs as functions of state"
        )
    if missing := [name for name in (*spec.weights, f"{output}.weight") if name not in own]:
        raise ValueError(f"state lacks {missing[0]!r}, which a layer of family {family!r} has")
    _require_tensors(own if sinks is None else own | {f"{prefix}sinks": sinks})
    if sinks is not None and sinks.shape != (num_heads,):
        raise ValueError(f"{prefix}sinks has shape {tuple(sinks.shape)}; it must be ({num_heads},), one for each head")
    if len(inputs) == 3:
        require_divides("num_heads", num_heads, "num_kv_heads", num_kv_heads)
    elif num_kv_heads != num_heads:
        raise ValueError(f"num_kv_heads is {num_kv_heads}; in family {family!r} no heads share a key: leave it out")
    if num_kv_heads != num_heads and target != "qkv":
        raise ValueError(f"target is {target!r}, and {SHARED}; 'qkv', for CausalSelfAttention, keeps them shared")
    check_shapes(own, spec, names.source, num_heads, num_kv_heads)
    loaded = _converted(own, spec, target, (num_heads, num_kv_heads, num_kv_heads))
    if family == "llama" and config is None:
        warnings.warn(
            "config is None, and weights by Llama's names do not tell by what scores are scaled, whether they are "
            "capped, or whether a layer sees a window alone; pass the checkpoint's, config=model.config, and make the "
            "layer with options_of(config)",
            stacklevel=2,
        )
    return loaded if sinks is None else loaded | {"sinks": sinks.detach().clone()}


def options_of(config: object, *, layer: int = 0) -> dict[str, Any]:
    """Read off a checkpoint's config with which options a `CausalSelfAttention` computes what its layer does.

    They are heads, scale and soft-cap, where they are not the default. What the weights tell is not among them: the
    widths, which biases there are, and ``sinks``; nor how positions turn, for which there is
    `unmasked.positions.Rotary.from_config`.

    Args:
        config: transformers' own, or config.json as a dict.
        layer: the layer's index, from 0.

    Returns:
        num_heads, and as needed num_kv_heads, scale and softcap.

    Warns:
        UserWarning: the layer sees a window alone, which is an option of its cache, or a mask.

    Raises:
        TypeError: config is neither a mapping nor an object with attributes.
        ValueError: it names no number of heads, or something that the layer does not do.

    References:
        transformers: GraniteConfig for attention_multiplier; Gemma2Config for query_pre_attn_scalar and
        attn_logit_softcapping; GPT2Config for scale_attn_weights and scale_attn_by_inverse_layer_idx.

    Examples:
        >>> gemma = {"num_attention_heads": 8, "query_pre_attn_scalar": 256}
        >>> gemma["attn_logit_softcapping"] = 50.0
        >>> options_of(gemma)
        {'num_heads': 8, 'scale': 0.0625, 'softcap': 50.0}
    """
    size("layer", layer, least=0)
    read = _reader(config)
    heads = read("num_attention_heads", "n_head")
    if heads is None:
        raise ValueError("config has no num_attention_heads; pass that of the text model: config.text_config")
    options: dict[str, Any] = {"num_heads": heads}
    shared = read("num_key_value_heads")
    options |= {"num_kv_heads": shared} if shared not in (None, heads) else {}
    for name in ("clip_qkv", "alibi"):
        if read(name):
            raise ValueError(f"config has {name}={read(name)}, which CausalSelfAttention does not do: use attend")
    scale = read("attention_multiplier")
    if (squared := read("query_pre_attn_scalar")) is not None:
        scale = squared**-0.5
    if read("scale_attn_weights") is False:
        scale = 1.0
    if read("scale_attn_by_inverse_layer_idx"):
        if scale is None:
            scale = (read("n_embd") // heads) ** -0.5
        scale = scale / (layer + 1)
    options |= {} if scale is None else {"scale": float(scale)}
    cap = read("attn_logit_softcapping")
    options |= {} if cap is None else {"softcap": float(cap)}
    if (window := _window(read, layer)) is not None:
        warnings.warn(
            f"config has sliding_window={window} for layer {layer}; pass a cache with window={window}, or "
            f"allowed=masks.sliding_window(tokens, window={window})",
            stacklevel=2,
        )
    return options


def _reader(config: object) -> Callable[..., Any]:
    """Return a function that reads the first of some names that a config has."""
    if isinstance(config, str | bytes | list | tuple) or not (
        isinstance(config, Mapping) or hasattr(config, "__dict__")
    ):
        raise TypeError(f"config is {config!r}; pass the model's config, or config.json as a dict")

    def read(*names: str) -> Any:
        for name in names:
            value = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
            if value is not None:
                return value
        return None

    return read


def _window(read: Callable[..., Any], layer: int) -> int | None:
    """Return the tokens that a layer sees, if it sees a window alone: some configs name the kind of each layer."""
    window: int | None = read("sliding_window")
    kinds = read("layer_types")
    if kinds is not None:
        return window if "sliding" in kinds[min(layer, len(kinds) - 1)] else None
    return None if read("use_sliding_window") is False else window


def _check_config(config: object, layer: int, **heads: int) -> None:
    """Refuse a config of other heads than those that are named, or of what no layer of ours does."""
    options = options_of(config, layer=layer)
    options.setdefault("num_kv_heads", options["num_heads"])
    for name, value in heads.items():
        if options[name] != value:
            raise ValueError(f"{name} is {value}, and config has {options[name]}; pass what it has")


def _indices(prefix: str) -> list[str]:
    """Return the parts of a name that are indices: attn1 is none."""
    return [part for part in prefix.split(".") if part.isdecimal()]


def layout_of(state: Mapping[str, Tensor]) -> Layout | None:
    """Tell a layout by the names of its tensors.

    Args:
        state: attention weights by name.

    Returns:
        The layout that all its weights' names belong to, or None.

    Examples:
        >>> layout_of(torch.nn.MultiheadAttention(4, 2).state_dict())
        'packed'
    """
    _require_state(state)
    return next((layout for layout, spec in LAYOUTS.items() if all(name in state for name in spec.weights)), None)


def _require_one(name: str, value: object, names: Mapping[Any, object]) -> None:
    if not isinstance(value, str) or value not in names:
        raise ValueError(f"{name} is {value!r}; choose one of {', '.join(names)}")


def _require_state(state: Mapping[str, Tensor]) -> None:
    """Refuse what holds no tensors by their names."""
    if not isinstance(state, Mapping):
        raise TypeError(
            f"state is of the type {type(state).__name__}; pass tensors by name, as module.state_dict() does"
        )
    if odd := [name for name in state if not isinstance(name, str)]:
        raise TypeError(
            f"state holds {odd[0]!r} in the place of a name; pass tensors by name, as module.state_dict() does"
        )


def _require_tensors(state: Mapping[str, Tensor]) -> None:
    tensors = {f"state[{name!r}]": x for name, x in state.items()}
    for name, x in tensors.items():
        tensor(name, x)
    require_beside(**tensors)


def from_torch(module: nn.MultiheadAttention) -> MultiheadAttention:
    """Copy PyTorch's module into ours: the same options, weights, mode and requires_grad, in storage of its own.

    For a `CausalSelfAttention`, `convert` the module's state from the layout "packed" to "qkv".

    Args:
        module: a torch.nn.MultiheadAttention.

    Returns:
        A MultiheadAttention that computes the same.

    Raises:
        TypeError: module is of another class.
        ValueError: a MultiheadAttention cannot hold the module; the text says why.

    Examples:
        >>> theirs = torch.nn.MultiheadAttention(6, 3)
        >>> x = torch.randn(5, 2, 6)
        >>> torch.allclose(from_torch(theirs)(x, x, x)[0], theirs(x, x, x)[0], atol=1e-6)
        True
    """
    known = (MultiheadAttention, nn.MultiheadAttention)
    if (cls := class_of(module, *known)) is None:
        raise TypeError(f"module is a {kind_of(module, *known)}; from_torch takes a torch.nn.MultiheadAttention")
    if odd := unknown_options(module, cls, _OPTIONS):
        raise ValueError(f"module was made with {odd[0]}, which nn.MultiheadAttention does not have: use it as it is")
    copy = MultiheadAttention(
        module.embed_dim,
        module.num_heads,
        dropout=module.dropout,
        bias=module.in_proj_bias is not None,
        add_bias_kv=module.bias_k is not None,
        add_zero_attn=module.add_zero_attn,
        kdim=module.kdim,
        vdim=module.vdim,
        batch_first=module.batch_first,
        device="meta",  # where nothing is initialised, so that a copy does not move the random generator
    )
    state = module.state_dict(keep_vars=True)
    shapes, own = ({name: x.shape for name, x in each.items()} for each in (copy.state_dict(), state))
    if odd := sorted({name for name, _ in shapes.items() ^ own.items()}):
        raise ValueError(
            f"module and a new MultiheadAttention differ in {', '.join(odd)}; undo what changed module's "
            "parameters (a parametrization, pruning, a bias set to None, another shape)"
        )
    clones = {x: nn.Parameter(x.detach().clone()) for x in state.values()}  # tied ones stay tied
    copy.load_state_dict({name: clones[x] for name, x in state.items()}, assign=True)
    for name, x in state.items():
        copy.get_parameter(name).requires_grad_(x.requires_grad)
    return copy.train(module.training)


def _prefix(state: Mapping[str, Tensor], family: Family, layer: int | str | None) -> str:
    """Return the part before the names of the layer that is meant."""

    def prefixes(family: Family) -> list[str]:
        first = f"{_FAMILIES[family].inputs[0]}.weight"
        return [name.removesuffix(first) for name in state if f".{name}".endswith(f".{first}")]

    if not (all_prefixes := prefixes(family)):
        looks = [other for other in _FAMILIES if prefixes(other)]
        hint = f"; they look like those of family {looks[0]!r}" if looks else ""
        if not looks and (layout := layout_of(state)):
            hint = f"; they are those of layout {layout!r}: call convert"
        ends = f"{_FAMILIES[family].inputs[0]}.weight"
        raise ValueError(f"no name in state ends with {ends!r}, as those of family {family!r} do{hint}")
    if isinstance(layer, str):
        fits = [prefix for prefix in all_prefixes if prefix == f"{layer.rstrip('.')}." or prefix == layer == ""]
    elif layer is not None:
        fits = [prefix for prefix in all_prefixes if _indices(prefix)[-1:] == [str(layer)]]
    else:
        fits = all_prefixes
    if len(fits) == 1:
        return fits[0]
    layers = f"one attention layer, {all_prefixes[0]!r}"
    if len(all_prefixes) > 1:
        layers = f"{len(all_prefixes)} attention layers, from {all_prefixes[0]!r} to {all_prefixes[-1]!r}"
    raise ValueError(
        f"layer is {layer!r}, and state has {layers}; pass the number of one, or what stands before its names"
    )
