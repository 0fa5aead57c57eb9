"""One word on its way through the trained singer: for the scripts `singer.js`, `strip.js` and `sing.js`.

It stands on each page of *learn*, with the part open that the page explains.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from unmasked_lessons.teaching.song import STEPS, Singer, step, verse

ZERO = 79  # the character of a number that is zero: all others are printable, too
LINE, LEFT, CELL, RIGHT = 26, 86, 4.5, 236  # from line to line; where cells begin, how wide they are, where words begin
_STYLE = "font:13px var(--md-text-font);fill:currentColor;display:block;width:100%;max-width:26rem;height:auto"
_COLORS = {True: "var(--unmasked-teal, #2f8f8c)", False: "var(--unmasked-amber, #c8702a)"}  # above zero, and below it


def packed(singer: Singer) -> dict[str, Any]:
    """A singer as the script reads it: each number is a character, so many steps behind that of zero, or before it.

    Raises:
        ValueError: The singer is not rounded.
    """
    parameters: dict[str, list[float | str]] = {}
    for name, numbers in singer.state_dict().items():
        size = step(numbers)
        steps = (numbers / size).round()
        if not (size * steps.double()).float().equal(numbers) or steps.abs().max() > STEPS:
            raise ValueError(f"singer has numbers in {name} that are no whole steps: pass singer.rounded()")
        rows = steps.long().view(-1, numbers.size(-1)).tolist()
        parameters[name] = [size, *("".join(chr(ZERO + each) for each in row) for row in rows)]
    return {"words": singer.vocabulary, "heads": singer.HEADS, "length": singer.LENGTH, "parameters": parameters}


class Stop(NamedTuple):
    """A place on the way of a word: its vector there, and the word that would come next if the way ended."""

    name: str
    vector: Tensor
    word: str
    chance: float


class Strip:
    """The way of a word of a text: a notebook shows it as a still picture, the browser as one that opens.

    Args:
        here: The page, such as "masks".
        follow: The index of the word.
        sings: Whether the reader may change the song.
        singer: A rounded one; by default the trained one of one block.
        words: The text: the verse of nine up to "there will be", unless another is given.
    """

    def __init__(
        self,
        here: str,
        *,
        follow: int = -1,
        sings: bool = False,
        singer: Singer | None = None,
        words: Sequence[str] = verse(9).split()[:15],
    ) -> None:
        self.singer = singer or Singer.trained(1).rounded()
        self.here, self.sings, self.words = here, sings, list(words)
        self.follow = range(len(words))[follow]

    @property
    def data(self) -> dict[str, Any]:
        """What the script gets."""
        return {
            "singer": packed(self.singer),
            "text": self.words,
            "follow": self.follow,
            "here": self.here,
            "sings": self.sings,
        }

    def stops(self) -> list[Stop]:
        """The word itself, with its place, and with what each part of each block adds."""
        singer, vectors = self.singer, list[Tensor]()
        numbers = singer.numbers_of(" ".join(self.words))

        def note(_: object, args: tuple[Tensor, ...], output: Tensor) -> None:
            vectors.append(args[0][0, self.follow])

        hooks = [norm.register_forward_hook(note) for norm in singer.norm]
        try:
            singer(numbers)
        finally:
            for hook in hooks:
                hook.remove()
        vectors.insert(0, singer.word(numbers)[0, self.follow])
        names = ["the word", "its place"]
        blocks = len(singer.qkv)
        for block in range(1, blocks + 1):
            names += [f"{part} {block}" if blocks > 1 else part for part in ("attention", "MLP")]
        found = []
        for name, vector in zip(names, vectors, strict=True):
            chances = singer.read(singer.norm[-1](vector)).softmax(dim=-1)
            found.append(Stop(name, vector, singer.vocabulary[int(chances.argmax())], chances.max().item()))
        return found

    def __repr__(self) -> str:
        told = ", ".join(f"{stop.name}: {stop.word} {stop.chance:.0%}" for stop in self.stops())
        return f"{self.words[self.follow]} on its way, and what would come next: {told}"

    def _repr_html_(self) -> str:
        """The stops as SVG: the cells of each vector, and what would come next."""
        stops, lines = self.stops(), []
        for place, stop in enumerate(stops):
            y = LINE * (place + 0.5)
            lines.append(
                f'<text x="0" y="{y + 5:g}">{stop.name}</text>{_cells(stop.vector.tolist(), y - 8)}'
                f'<text x="{RIGHT}" y="{y + 5:g}">→ {stop.word} {stop.chance:.0%}</text>'
            )
        box = f'viewBox="0 0 340 {LINE * len(stops)}" role="img" aria-label="{self!r}"'
        return f'<svg style="{_STYLE}" {box}>{"".join(lines)}</svg>'


def _cells(vector: Sequence[float], top: float) -> str:
    """The numbers as cells, the stronger the larger: those of one color and strength are one path."""
    largest, paths = max(map(abs, vector)), defaultdict[tuple[bool, str], str](str)
    for place, each in enumerate(vector):
        paths[each > 0, f"{abs(each) / largest:.1f}"] += f"M{place} 0h1v1h-1z"
    drawn = (f'<path fill="{_COLORS[up]}" opacity="{strength}" d="{path}"/>' for (up, strength), path in paths.items())
    return f'<g transform="translate({LEFT} {top:g}) scale({CELL} 16)">{"".join(drawn)}</g>'
