"""The weights of one word of a sentence, as arcs and bars, and the words nearest to its context.

It stands on the page until the script `sentence.js` draws it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from torch import Tensor

from unmasked.functional import self_attention
from unmasked_lessons.embeddings import Embeddings, common_vectors

COMMON = 150  # this many of the most frequent words are near to all others, and are named as near to none
NEAREST = 5  # words are named
STEP, LEFT, BARS = 26, 74, 160  # from line to line; where words begin, and bars
WIDEST = 170  # the bar of a weight of one
_STYLE = "font:14px var(--md-text-font);fill:currentColor;flex:0 1 330px;min-width:0;max-width:100%"


@dataclass(frozen=True)
class Asked:
    """A sentence with the weights of self-attention, one word of which is asked for its row."""

    words: Sequence[str]
    word: str  # of several the first
    weights: Tensor  # of self-attention on the words' embeddings, (queries, keys)
    # For each word, the words that are nearest to its embedding and to its context; nothing for weights of another
    # origin.
    near: Sequence[tuple[list[str], list[str]]] = ()

    @property
    def start(self) -> int:
        """The index of the word."""
        return self.words.index(self.word)

    @property
    def row(self) -> list[float]:
        """The weights of the word."""
        taken: list[float] = self.weights[self.start].tolist()
        return taken

    @property
    def kept(self) -> float:
        """The weight of the word itself."""
        return self.row[self.start]

    @property
    def neighbor(self) -> str:
        """The other word with the largest weight."""
        others = [place for place in range(len(self.words)) if place != self.start]
        return self.words[max(others, key=self.row.__getitem__)]

    @property
    def data(self) -> dict[str, object]:
        """The sentence as the script reads it."""
        return {"words": self.words, "weights": self.weights, "start": self.start, "near": self.near}

    def svg(self) -> str:
        """The drawing: one line for each word, and below them the nearest words."""
        row, start, height = self.row, self.start, STEP * len(self.words)
        most = row[self.words.index(self.neighbor)]
        takes = ", ".join(f"{word} {weight:.0%}" for word, weight in zip(self.words, row, strict=True))
        parts = [_line(word, row[place], place, start, most) for place, word in enumerate(self.words)]
        if self.near:
            before, after = (", ".join(words) for words in self.near[start])
            takes += f". Nearest words before: {before}; after: {after}"
            parts += [
                f'<text x="0" y="{height + 20}">looked up: {escape(before)}</text>',
                f'<text x="0" y="{height + 42}" font-weight="700">here: {escape(after)}</text>',
            ]
            height += 52
        label = escape(f"{self.word} takes: {takes}")
        parts.insert(0, f'<svg style="{_STYLE}" viewBox="0 0 330 {height}" role="img" aria-label="{label}">')
        return "".join([*parts, "</svg>"])


def _line(word: str, weight: float, place: int, start: int, most: float) -> str:
    """Draw the line of one word: an arc, unless it is the word that is asked, its name, bar and weight."""
    y, own = STEP * (place + 0.5), place == start
    color = "var(--unmasked-amber, #c8702a)" if weight == most or own else "var(--unmasked-teal, #2f8f8c)"
    arc = bold = ""
    if own:
        bold = ' font-weight="700"'
    else:
        begin, reach = STEP * (start + 0.5), LEFT - 10 - 6.5 * abs(place - start)
        path = f"M{LEFT - 8} {begin} C{reach} {begin} {reach} {y} {LEFT - 8} {y}"
        width = 1 + 40 * weight
        arc = f'<path d="{path}" fill="none" stroke="{color}" stroke-width="{width:.1f}" opacity="0.7"/>'
    long = WIDEST * weight
    return (
        f'{arc}<text x="{LEFT}" y="{y + 5}"{bold}>{escape(word)}</text>'
        f'<rect x="{BARS}" y="{y - 7}" width="{long:.1f}" height="14" fill="{color}"/>'
        f'<text x="{BARS + long + 6:.1f}" y="{y + 5}">{weight:.0%}</text>'
    )


def ask(word: str, *sentences: str) -> list[Asked]:
    """Attend within each of several sentences, of words that `common_vectors` knows, and ask one word for its row."""
    vectors, asked = common_vectors(), []
    rarer = Embeddings(vectors.words[COMMON:], vectors.vectors[COMMON:])
    for sentence in sentences:
        words = sentence.split()
        if word not in words:
            raise ValueError(f"sentences has {sentence!r}, which lacks word={word!r}: ask a word that stands in it")
        x = vectors.lookup(words)
        context, weights = self_attention(x)
        assert weights is not None  # self_attention always has them
        near = [
            (_others(rarer, x[place], each), _others(rarer, context[place], each)) for place, each in enumerate(words)
        ]
        asked.append(Asked(words, word, weights, near))
    return asked


def _others(vectors: Embeddings, vector: Tensor, word: str) -> list[str]:
    """Return the words nearest to a vector, but for one."""
    return [each for each in vectors.nearest(vector, NEAREST + 1) if each != word][:NEAREST]


def script_data(asked: Sequence[Asked], *, together: bool = False) -> dict[str, object]:
    """Return the data of the script: the sentences that it begins with, and whether all of them stand side by side."""
    sentences = [each.data for each in asked]
    return {"sentences": sentences, "common": COMMON, "nearest": NEAREST, "together": together}


def side_by_side(asked: Sequence[Asked]) -> str:
    """Return the drawings of sentences as HTML, beside each other where there is room."""
    drawings = "".join(each.svg() for each in asked)
    return f'<div style="display:flex;flex-wrap:wrap;gap:1rem;align-items:flex-start">{drawings}</div>'
