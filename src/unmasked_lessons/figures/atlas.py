"""What each model of transformers attends with, read from the record that ``python -m tests.atlas`` makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Any, NamedTuple

from unmasked_lessons.measure import recorded

__all__ = ["TRAITS", "Atlas", "Counts", "Listing", "Model", "Trait"]

Check = Callable[["Model"], bool]


class Model:
    """What was measured of one model.

    Attributes:
        name: Its type, as configs have it.
        record: What the sweep has written of it.
    """

    def __init__(self, name: str, record: Mapping[str, Any]) -> None:
        self.name, self.record = name, record
        found = record["layers"]
        self.layers: list[dict[str, Any]] = found if isinstance(found, list) else []

    def any(self, key: str, *values: Any) -> bool:
        """Whether a layer has one of these values, or any that is not empty where none is named."""
        return any(
            layer.get(key) in values
            if values
            else bool(layer.get(key)) and not str(layer[key]).startswith("not measured")
            for layer in self.layers
        )

    def sees(self, words: str) -> bool:
        """Whether a layer sees what these words say."""
        return any(words in layer["sees"] for layer in self.layers)

    def turns(self, key: str, *values: Any) -> bool:
        """Whether a layer turns so."""
        return any(isinstance(layer["turns"], dict) and layer["turns"][key] in values for layer in self.layers)

    def normed(self, key: str, *values: Any) -> bool:
        """Whether queries or keys of a layer are normed so."""
        norms = [layer[role] for layer in self.layers for role in ("query_norm", "key_norm")]
        return any(isinstance(norm, dict) and norm.get(key) in values for norm in norms)

    def trial(self, *path: str) -> Any:
        """The answer of a trial; None where it was not measured."""
        found: Any = self.record
        for name in path:
            found = found.get(name) if isinstance(found, Mapping) else None
        return None if isinstance(found, str) and found.startswith("not measured") else found

    def off(self, *path: str) -> bool:
        """Whether a trial gave other numbers than it should."""
        gap = self.trial(*path)
        return isinstance(gap, int | float) and gap > 1e-3

    @property
    def kind(self) -> str:
        """What it is: by what it reads, and who sees whom."""
        if "input_ids" not in self.record["inputs"]:
            names = {"pixel_values": "images", "pixel_values_videos": "images", "past_values": "numbers"}
            return names.get(self.record["inputs"][0], "sound")
        if "decoder_input_ids" in self.record["inputs"]:
            return "encoder-decoder"
        return "decoder" if self.record.get("causal") is True else "encoder"


class Trait(NamedTuple):
    """A trait or a trap: its name, the page that explains it, which models have it, and of which it is asked."""

    label: str
    page: str
    has: Check
    of: Check = lambda model: bool(model.layers)
    trap: bool = False


def _decodes(model: Model) -> bool:
    return model.kind == "decoder"


def _said(*path: str) -> Check:
    return lambda model: model.trial(*path) is not None


def _off(*path: str) -> Check:
    return lambda model: model.off(*path)


def _packs(case: str, answer: str, *ways: str) -> Check:
    return lambda model: any(model.trial("packed", way, case) == answer for way in ways or ("eager", "sdpa"))


def _asked(case: str, *ways: str) -> Check:
    each = ways or ("eager", "sdpa")
    return lambda model: _decodes(model) and any(model.trial("packed", way, case) for way in each)


def _far(model: Model) -> bool:
    """Whether some layers place their tokens by turning, and others by nothing."""
    turned = [isinstance(layer["turns"], dict) for layer in model.layers if "another" not in layer["sees"]]
    return any(turned) and not all(turned)


TRAITS: dict[str, Trait] = {
    "grouped": Trait(
        "grouped heads",
        "grouped.py#which-head-uses-which",
        lambda m: any(1 < x["key_heads"] < x["heads"] for x in m.layers),
    ),
    "one-key": Trait("one key head", "grouped.py", lambda m: any(x["key_heads"] == 1 < x["heads"] for x in m.layers)),
    "latent": Trait("values of a latent", "grouped.py#a-latent-for-all-heads", lambda m: m.any("latent")),
    "shared": Trait("keys of an earlier layer", "models.py", lambda m: m.any("keys", "those of an earlier layer")),
    "key-is-value": Trait("keys that are the values", "grouped.py", lambda m: m.any("keys", "are the values too")),
    "window": Trait("a window", "long.py#sliding-windows", lambda m: m.sees("window before")),
    "both-sides": Trait("a window on both sides", "long.py#sliding-windows", lambda m: m.sees("both sides")),
    "chunk": Trait("chunks", "long.py#sliding-windows", lambda m: m.sees("a chunk") or m.sees("a block")),
    "chosen": Trait(
        "keys chosen by content", "linear.py#sparse-attention-choose-then-attend", lambda m: m.sees("content chooses")
    ),
    "state": Trait(
        "layers that mix tokens otherwise",
        "linear.py",
        lambda m: bool(m.trial("mixers")),
        lambda m: isinstance(m.trial("mixers"), Mapping) and m.kind == "decoder",
    ),
    "sink": Trait("a sink", "long.py#two-things-called-sink", lambda m: m.any("sink", True)),
    "cap": Trait("a soft-cap", "long.py#a-soft-cap-comes-before-the-mask", lambda m: m.any("cap")),
    "halves": Trait(
        "turns halves", "positions.py#halves-or-interleaved-which-is-mine", lambda m: m.turns("pairs", "halves")
    ),
    "interleaved": Trait(
        "turns interleaved pairs",
        "positions.py#halves-or-interleaved-which-is-mine",
        lambda m: m.turns("pairs", "interleaved"),
    ),
    "part": Trait(
        "turns a part",
        "positions.py#what-a-checkpoints-config-says",
        lambda m: any(isinstance(x["turns"], dict) and x["turns"]["share"] < 1 for x in m.layers),
    ),
    "slope": Trait(
        "a slope by distance", "positions.py#alibi-slopes-and-sign", lambda m: m.any("added", "a slope by distance")
    ),
    "by-distance": Trait(
        "learned numbers by distance", "positions.py", lambda m: m.any("added", "numbers by distance")
    ),
    "by-place": Trait(
        "numbers by place",
        "positions.py#rows-and-columns-or-no-positions-at-all",
        lambda m: m.any("added", "numbers by place"),
    ),
    "some-nowhere": Trait("layers without positions", "positions.py#rows-and-columns-or-no-positions-at-all", _far),
    "norm": Trait(
        "norms of queries and keys",
        "models.py#qwen3-a-norm-on-every-query-and-key",
        lambda m: m.normed("over", "each head", "all heads"),
    ),
    "norm-all": Trait(
        "a norm over all heads",
        "models.py#qwen3-a-norm-on-every-query-and-key",
        lambda m: m.normed("over", "all heads"),
    ),
    "norm-after": Trait(
        "a norm after turning",
        "models.py#qwen3-a-norm-on-every-query-and-key",
        lambda m: m.normed("stands", "after turning"),
    ),
    "scale": Trait(
        "another scale",
        "scale.py",
        lambda m: any(not x["scale"].startswith(("1/sqrt", "not measured")) for x in m.layers),
    ),
    "gate": Trait("a gate", "models.py#qwen3-next-a-gate-on-what-was-found", lambda m: m.any("gate", True)),
    "biases": Trait(
        "biases",
        "layouts.py",
        lambda m: any(set("qkv") & set(x["biases"]) for x in m.layers if not x["biases"].startswith("not")),
    ),
    "packs": Trait(
        "packs by position_ids alone",
        "packing.py#where-do-positions-begin",
        _packs("plain", "isolated"),
        _asked("plain"),
    ),
    "meet": Trait(
        "packed texts meet", "packing.py#where-do-positions-begin", _packs("plain", "leaks"), _asked("plain"), True
    ),
    "two-rows": Trait(
        "with FlashAttention two packed rows meet",
        "packing.py#where-do-positions-begin",
        _packs("two rows", "leaks", "flash_attention_2"),
        _asked("two rows", "flash_attention_2"),
        True,
    ),
    "padding": Trait(
        "padding on the left shows", "cache.py#padding-on-the-left", _off("left_padding"), _said("left_padding"), True
    ),
    "padding-placed": Trait(
        "padding shows, with positions too",
        "cache.py#padding-on-the-left",
        _off("left_padding_with_positions"),
        _said("left_padding_with_positions"),
        True,
    ),
    "places": Trait(
        "positions begin elsewhere",
        "cache.py#positions-go-on-counting",
        _off("positions_from_zero"),
        _said("positions_from_zero"),
        True,
    ),
    "steps": Trait(
        "steps need position_ids",
        "cache.py#positions-go-on-counting",
        lambda m: m.off("steps") and not m.off("steps_with_positions"),
        _said("steps"),
        True,
    ),
    "steps-off": Trait(
        "steps differ from one pass",
        "cache.py#prefill-chunks-steps",
        lambda m: m.off("steps") and (m.off("steps_with_positions") or m.trial("steps_with_positions") is None),
        _said("steps"),
        True,
    ),
    "pieces": Trait("a second piece differs", "cache.py#prefill-chunks-steps", _off("pieces"), _said("pieces"), True),
    "crop": Trait(
        "crop does not bring it back",
        "serving.py#what-was-refused-must-go",
        lambda m: m.off("crop", "gap"),
        _said("crop", "gap"),
        True,
    ),
    "four-axes": Trait(
        "a mask of four axes does not hide",
        "packing.py#what-their-attention_mask-means",
        lambda m: m.trial("mask_of_four_axes", "eager") is False,
        _said("mask_of_four_axes", "eager"),
        True,
    ),
    "unheard": Trait(
        "watch hears nothing as loaded",
        "watching.py#what-watch-cannot-see",
        lambda m: m.trial("watch", "heard") == 0,
        lambda m: bool(m.layers),
        True,
    ),
    "sdpa": Trait(
        "sdpa gives other numbers",
        "watching.py#weights-from-transformers-itself",
        _off("implementations", "sdpa"),
        _said("implementations", "sdpa"),
        True,
    ),
    "flex": Trait(
        "flex gives other numbers",
        "flex.py",
        _off("implementations", "flex_attention"),
        _said("implementations", "flex_attention"),
        True,
    ),
    "flash": Trait(
        "FlashAttention gives other numbers",
        "kernels.py",
        _off("implementations", "flash_attention_2"),
        _said("implementations", "flash_attention_2"),
        True,
    ),
    "no-weights": Trait(
        "eager gives no weights",
        "watching.py#weights-from-transformers-itself",
        lambda m: m.trial("output_attentions", "eager") == "none",
        lambda m: bool(m.layers) and m.trial("output_attentions", "eager") is not None,
        True,
    ),
}
"""The traits and traps of the atlas, by their anchors."""


class Atlas:
    """The models of the record, their traits counted.

    Examples:
        >>> atlas = Atlas()
        >>> atlas.count("grouped") < len(atlas.models)
        True
    """

    def __init__(self) -> None:
        self.record = recorded("atlas")
        self.models = [Model(name, each) for name, each in self.record["models"].items()]
        self.missing: dict[str, str] = self.record["missing"]

    def having(self, trait: str, kind: str = "") -> list[Model]:
        """The models that have a trait."""
        return [m for m in self.asked(trait, kind) if TRAITS[trait].has(m)]

    def asked(self, trait: str, kind: str = "") -> list[Model]:
        """The models of which it was measured whether they have it."""
        return [m for m in self.models if kind in ("", m.kind) and TRAITS[trait].of(m)]

    def count(self, trait: str, kind: str = "") -> int:
        """How many have it."""
        return len(self.having(trait, kind))

    def share(self, trait: str, kind: str = "") -> float:
        """What share of those of which it was measured has it."""
        return self.count(trait, kind) / len(self.asked(trait, kind))

    def has(self, model: str, trait: str) -> bool:
        """Whether a model has it.

        Raises:
            KeyError: There is no such model in the record, or it was not measured of it.
        """
        found = {m.name: m for m in self.asked(trait)}
        if model not in found:
            raise KeyError(f"{model!r}: {trait!r} was not measured of it; the record has {len(self.models)} models")
        return TRAITS[trait].has(found[model])


class Counts:
    """How many models have each trait, as bars from the most to the fewest."""

    def __init__(self, atlas: Atlas, *, traps: bool) -> None:
        rows = [(name, atlas.count(name), len(atlas.asked(name))) for name, t in TRAITS.items() if t.trap == traps]
        self.rows = sorted(rows, key=lambda row: -row[1] / max(row[2], 1))

    def __repr__(self) -> str:
        return "\n".join(f"{TRAITS[name].label}: {has} of {of}" for name, has, of in self.rows)

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th scope="row">{_link(name)}</th><td>{has} of {of}</td>'
            f'<td><meter min="0" max="{max(of, 1)}" value="{has}" aria-hidden="true"></meter></td></tr>'
            for name, has, of in self.rows
        )
        head = '<tr><th scope="col">What</th><th scope="col">Models</th><th scope="col">Share</th></tr>'
        return f'<table class="atlas-counts"><thead>{head}</thead><tbody>{rows}</tbody></table>'


class Listing:
    """All models as a table: two choices leave some of them, without a script; a script sorts and searches."""

    def __init__(self, atlas: Atlas) -> None:
        self.atlas = atlas

    def __repr__(self) -> str:
        return "\n".join(
            f"{m.name}: {', '.join(TRAITS[each].label for each in self._of(m))}" for m in self.atlas.models
        )

    def _of(self, model: Model, *, trap: bool | None = None) -> list[str]:
        return [name for name, t in TRAITS.items() if trap in (None, t.trap) and t.of(model) and t.has(model)]

    def _repr_html_(self) -> str:
        kinds = sorted({m.kind for m in self.atlas.models})
        counts = {name: self.atlas.count(name) for name in TRAITS}
        options = [(f"t-{name}", f"{t.label} ({counts[name]})", t.trap) for name, t in TRAITS.items() if counts[name]]
        of_kind = "".join(f'<option value="k-{kind}">{kind}</option>' for kind in kinds)
        traits, traps = (
            "".join(
                f'<option value="{value}">{escape(label)}</option>' for value, label, each in options if each == trap
            )
            for trap in (False, True)
        )
        chosen = [f"k-{kind}" for kind in kinds] + [value for value, *_ in options]
        style = ",".join(f'.atlas:has(option[value="{each}"]:checked) tbody>tr:not(.{each})' for each in chosen)
        choices = (
            f'<label>Kind <select><option value="">all</option>{of_kind}</select></label>'
            f'<label>Trait or trap <select><option value="">all</option><optgroup label="Traits">{traits}</optgroup>'
            f'<optgroup label="Traps">{traps}</optgroup></select></label>'
        )
        head = "".join(f'<th scope="col">{each}</th>' for each in COLUMNS)
        rows = "".join(map(self._row, self.atlas.models))
        return (
            f"<style>{style}{{display:none}}</style>"
            f'<div class="atlas"><div class="atlas-choices">{choices}</div>'
            f'<table class="atlas-models"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        )

    def _row(self, model: Model) -> str:
        classes = " ".join([f"k-{model.kind}", *(f"t-{name}" for name in self._of(model))])
        cells = (
            model.kind,
            str(model.record.get("year") or ""),
            "<br>".join(dict.fromkeys(_heads(x) for x in model.layers)),
            _kept(model),
            "<br>".join(dict.fromkeys(_placed(x) for x in model.layers)),
            "<br>".join(f"{x['layers']} × {escape(x['sees'])}" for x in model.layers),
            ", ".join(map(_link, self._of(model, trap=False))),
            ", ".join(map(_link, self._of(model, trap=True))),
        )
        named = "".join(
            f'<td data-of="{of}">{cell}</td>' if cell else "<td></td>"
            for of, cell in zip(COLUMNS[1:], cells, strict=True)
        )
        broken = model.name.replace("_", "_<wbr>")
        name = f'<th scope="row"><a href="#{model.name}">{broken}</a></th>'
        return f'<tr id="{model.name}" class="{classes}">{name}{named}</tr>'


COLUMNS = ("Model", "Kind", "Year", "Heads", "Cache", "Positions", "Sees", "Traits", "Traps")


def _link(trait: str) -> str:
    page, _, anchor = TRAITS[trait].page.partition("#")
    address = f"../{page.removesuffix('.py')}/" + (f"#{anchor}" if anchor else "")
    return f'<a href="{address}">{escape(TRAITS[trait].label)}</a>'


def _heads(layer: Mapping[str, Any]) -> str:
    return f"{layer['heads']} : {layer['key_heads']}"


def _kept(model: Model) -> str:
    """The bytes of its cache for each further token, and what is there however short the text."""
    found = model.trial("cache")
    if found is None:
        return ""
    early, late, fixed = (found[name] for name in ("early", "late", "fixed"))
    told = f"{early:,.0f}" + (f", later {late:,.0f}" if late != early else "")
    return told + (f" + {fixed:,.0f}" if fixed > 0 else "")


def _placed(layer: Mapping[str, Any]) -> str:
    """How a layer places its tokens, in a few words."""
    turns = layer["turns"]
    if isinstance(turns, dict):
        part = "" if turns["share"] == 1 else f", {turns['share']:.0%}"
        return (
            f"{turns['pairs']}{part}, base {turns['base']:,.0f}"
            if isinstance(turns["base"], float)
            else f"{turns['pairs']}{part}"
        )
    return escape(layer["added"] or turns or "none here")
