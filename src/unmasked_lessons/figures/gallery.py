"""The museum's gallery: a card for each mistake, by what one sees, with maps of both of its lines."""

import re
from collections import Counter
from collections.abc import Mapping
from html import escape

from unmasked.plot import table
from unmasked_doctor.museum import ENTRIES, SYMPTOMS, Entry, drawn
from unmasked_lessons.experiments.gallery import Map

ROOMS = {
    "museum/heads": "Do my heads, tokens and batches stay apart?",
    "museum/masks": "Does my mask hide what it should?",
    "museum/weights": "Are these the right weights?",
    "museum/computation": "Are my weights what attention says they are?",
    "museum/models": "Does it stay right inside a model?",
}
"""The titles of the museum's pages."""


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
            f'<input type="radio" name="symptom" id="symptom-{index}"{" checked" * (index == 0)}>'
            f'<label for="symptom-{index}">{_coded(symptom)} <small>{len(slugs)}</small></label>'
            for index, (symptom, slugs) in enumerate(choices.items())
        )
        cards = "".join(
            self._card(index, ENTRIES[slug]) for index, slugs in enumerate(SYMPTOMS.values(), 1) for slug in slugs
        )
        others = ",".join(
            f'.gallery:has(#symptom-{index}:checked) .card:not([data-symptom="{index}"])'
            for index in range(1, len(choices))
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
