"""What one word of a sentence takes from the others, as arcs and bars: until the script `sentence.js` draws them."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from torch import Tensor

from unmasked.embeddings import ship_vectors
from unmasked.functional import attention_scores, attention_weights

STEP, LEFT, BARS = 26, 74, 150  # from line to line; where words begin, and bars
WIDEST = 170  # the bar of a weight of one
_STYLE = "font:14px var(--md-text-font);fill:currentColor;flex:0 1 330px;min-width:0;max-width:100%"


@dataclass(frozen=True)
class Asked:
    """A sentence, one word of which is asked what it takes from the others.

    Attributes:
        words: The sentence.
        word: The word that is asked; of several the first.
        weights: Of self-attention on the words' embeddings, (queries, keys).
    """

    words: Sequence[str]
    word: str
    weights: Tensor

    @property
    def start(self) -> int:
        """Where the word stands."""
        return self.words.index(self.word)

    @property
    def row(self) -> list[float]:
        """What the word takes from each word."""
        taken: list[float] = self.weights[self.start].tolist()
        return taken

    @property
    def kept(self) -> float:
        """What the word takes from itself."""
        return self.row[self.start]

    @property
    def neighbor(self) -> str:
        """The other word from which it takes most."""
        others = [place for place in range(len(self.words)) if place != self.start]
        return self.words[max(others, key=self.row.__getitem__)]

    @property
    def data(self) -> dict[str, object]:
        """What the script is given."""
        return {"words": self.words, "weights": self.weights, "start": self.start}

    def svg(self) -> str:
        """The drawing, one line for each word."""
        row, start = self.row, self.start
        most = row[self.words.index(self.neighbor)]
        said = ", ".join(f"{word} {weight:.0%}" for word, weight in zip(self.words, row, strict=True))
        label = escape(f"{self.word} takes: {said}")
        parts = [
            f'<svg style="{_STYLE}" viewBox="0 0 330 {STEP * len(row)}" role="img" aria-label="{label}">',
            *(_line(word, row[place], place, start, most) for place, word in enumerate(self.words)),
        ]
        return "".join([*parts, "</svg>"])


def _line(word: str, weight: float, place: int, start: int, most: float) -> str:
    """What is drawn of one word: its arc, if it is another than the one that is asked, its name, bar and weight."""
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
    """Ask a word what it takes from the others in each of several sentences.

    Args:
        word: The word.
        sentences: Texts of words that `ship_vectors` knows, with the word among them.

    Returns:
        The sentences, with the weights of self-attention.

    Raises:
        ValueError: A sentence lacks the word.
    """
    asked = []
    for sentence in sentences:
        words = sentence.split()
        if word not in words:
            raise ValueError(f"sentences has {sentence!r}, which lacks word={word!r}: ask a word that stands in it")
        vectors = ship_vectors().lookup(words)
        asked.append(Asked(words, word, attention_weights(attention_scores(vectors, vectors))))
    return asked


def side_by_side(asked: Sequence[Asked]) -> str:
    """The drawings of sentences as HTML, beside each other where there is room.

    Args:
        asked: The sentences.

    Returns:
        An element for a page.
    """
    drawings = "".join(each.svg() for each in asked)
    return f'<div style="display:flex;flex-wrap:wrap;gap:1rem;align-items:flex-start">{drawings}</div>'
