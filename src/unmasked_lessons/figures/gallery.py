"""The museum's gallery: a card for each mistake, by what one sees, with two maps drawn by running both of its lines."""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from html import escape
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked import masks
from unmasked._generators import forked
from unmasked.functional import attention_scores, attention_weights, self_attention
from unmasked.plot import table
from unmasked.positions import alibi
from unmasked_doctor.museum import ENTRIES, SYMPTOMS, Entry, drawn, reach
from unmasked_lessons.exercises.museum.index import WRONG, in_heads, right

Map = list[list[float]]

ROOMS = {
    "museum/heads": "Do my heads, tokens and batches stay apart?",
    "museum/masks": "Does my mask hide what it should?",
    "museum/weights": "Are these the right weights?",
    "museum/computation": "Are my weights what attention says they are?",
    "museum/models": "Does it stay right inside a model?",
}
"""The titles of the museum's pages."""

# What becomes a context of what a line of the museum gives.
_FINISH: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "batch-first-forgotten": lambda module, x: _filled(module)(x, x, x)[0],
    "padding-ignored": lambda attention, x: attention.context,
    "top-left-causal": lambda context, x: context,
    "is-causal-is-a-hint": lambda output_and_weights, x: output_and_weights[0],
    "fully-masked-row": lambda weights, x: weights @ x,
    "global-d-k": lambda scores, x: scores.softmax(-1) @ x,
    "alibi-sign": lambda scores, x: attention_weights(scores, allowed=_causal(x)) @ x,
    "packed-without-documents": lambda context, x: context,
    "softcap-after-mask": lambda scores, x: scores.softmax(-1) @ x,
}


def pairs(x: Tensor, num_heads: int) -> dict[str, dict[str, Map]]:
    """What `museum.reach` gives for the "wrong" and the "right" version of each mistake that two maps can tell."""
    sound = reach(in_heads(right, num_heads), x)
    both = {slug: {"wrong": reach(in_heads(wrong, num_heads), x), "right": sound} for slug, wrong in WRONG.items()}
    for slug in _FINISH:
        entry = ENTRIES[slug]
        both[slug] = {
            "wrong": reach(context_of(slug, entry.wrong, num_heads), x),
            "right": reach(context_of(slug, entry.right, num_heads), x),
        }
    return both


def context_of(slug: str, line: str, num_heads: int) -> Callable[[Tensor], Tensor]:
    """One of a mistake's lines, an expression, as a function of (batch, tokens, features) that gives the context.

    With a cache, the context is that of the last two tokens alone.
    """
    code = compile(line, slug, "eval")

    @torch.no_grad()
    def context(x: Tensor) -> Tensor:
        with forked():  # a module draws its weights before they are filled
            names = _names(x, num_heads)
            if slug == "top-left-causal":
                names["q"] = x[:, -2:]
            if slug == "softcap-after-mask":
                names["scores"] = names["scores"].masked_fill(~_causal(x), -math.inf)
            return _FINISH[slug](eval(code, names), x)

    return context


def _names(x: Tensor, num_heads: int) -> dict[str, Any]:
    """What the lines of the museum name."""
    tokens, features = x.shape[1:]
    functions: list[Any] = [_attend, _allowed_keys, _causal, attention_scores, attention_weights, self_attention]
    names: dict[str, Any] = {each.__name__.lstrip("_"): each for each in functions}
    names |= {"torch": torch, "nn": nn, "F": F, "math": math, "masks": masks}
    names |= {"x": x, "q": x, "k": x, "v": x, "scores": attention_scores(x, x)}
    names |= {"H": num_heads, "D": features // num_heads, "d_k": 50, "cap": 5.0, "bias": alibi(8, tokens)[:1]}
    names["ids"] = torch.arange(tokens) // 3
    names["allowed"] = masks.causal(tokens) & (torch.arange(tokens) > 1)  # padding in front
    names["module"] = _filled(nn.MultiheadAttention(features, 4, batch_first=True))
    return names


def _causal(x: Tensor) -> Tensor:
    return masks.causal(x.size(1))


def _allowed_keys(x: Tensor) -> Tensor:
    return torch.arange(x.size(1)) < x.size(1) - 2  # the last two are padding


def _attend(x: Tensor, allowed: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x, attn_mask=allowed)


def _filled(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(9)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return module.eval()


class Gallery:
    """Cards of the museum's mistakes; a choice of what one sees hides the others.

    Attributes:
        maps: By slug, the maps of both versions, as `pairs` gives them; a card without maps shows the wrong line.
    """

    def __init__(self, maps: Mapping[str, Mapping[str, Map]]) -> None:
        self.maps = maps

    def __repr__(self) -> str:
        return "\n".join(f"{symptom}: {', '.join(slugs)}" for symptom, slugs in SYMPTOMS.items())

    def _repr_html_(self) -> str:
        choices = {"Everything": tuple(ENTRIES), **SYMPTOMS}
        radios = "".join(
            f'<input type="radio" name="symptom" id="symptom-{number}"{" checked" * (number == 0)}>'
            f'<label for="symptom-{number}">{_coded(symptom)} <small>{len(slugs)}</small></label>'
            for number, (symptom, slugs) in enumerate(choices.items())
        )
        cards = "".join(
            self._card(number, ENTRIES[slug]) for number, slugs in enumerate(SYMPTOMS.values(), 1) for slug in slugs
        )
        others = ",".join(
            f'.gallery:has(#symptom-{number}:checked) .card:not([data-symptom="{number}"])'
            for number in range(1, len(choices))
        )
        return (
            f"<style>{others}{{display:none}}</style>"
            f'<div class="gallery"><fieldset><legend>What do you see?</legend>{radios}</fieldset>'
            f'<div class="cards">{cards}</div></div>'
        )

    def _card(self, symptom: int, entry: Entry) -> str:
        sides = "".join(
            f'<span class="card-{side}">{drawn(cells)}{side}</span>'
            for side, cells in self.maps.get(entry.slug, {}).items()
        )
        return (
            f'<a class="card" data-symptom="{symptom}" href="../{entry.page}/#{entry.slug}">'
            f'<span class="card-sides">{sides or f"<code>{escape(entry.wrong)}</code>"}</span>'
            f"<b>{_coded(entry.title)}</b><span>{_coded(entry.seen)}</span></a>"
        )


def _coded(title: str) -> str:
    return re.sub("`(.+?)`", r"<code>\1</code>", title)


class Rooms:
    """The museum's pages, each with how many mistakes it shows, and a link to it."""

    def __init__(self) -> None:
        self.counts = Counter(entry.page for entry in ENTRIES.values())

    def __repr__(self) -> str:
        return str(table(["Room", "Mistakes that it shows"], {ROOMS[page]: [n] for page, n in self.counts.items()}))

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th scope="row"><a href="../{page}/">{escape(ROOMS[page])}</a></th><td>{count}</td></tr>'
            for page, count in self.counts.items()
        )
        head = '<th scope="col">Room</th><th scope="col">Mistakes that it shows</th>'
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
