"""A translator of small sentences: the words of one sentence attend to those of another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked_lessons.teaching._training import fit, seeded

NOUNS = {"cat": "chat", "dog": "chien", "ship": "navire", "book": "livre"}
ADJECTIVES = {"black": "noir", "red": "rouge", "green": "vert", "tiny": "minuscule"}
VERBS = {"looks at": "regarde", "points at": "montre", "aims at": "vise"}
Translation = tuple[list[str], list[str]]


def translations(count: int) -> list[Translation]:
    """Sentences of a small grammar in English and in French, where the adjective stands after the noun.

    Args:
        count: How many.

    Returns:
        The words of each, in English and in French.

    Examples:
        >>> english, french = translations(1)[0]
        >>> len(english), len(french)
        (8, 7)
    """
    generator, pairs = torch.Generator().manual_seed(0), []

    def draw(words: dict[str, str]) -> tuple[str, str]:
        return list(words.items())[int(torch.randint(len(words), (1,), generator=generator))]

    for _ in range(count):
        # Each name is an example of what it holds, in English and in French.
        (tiny, petit), (cat, chat), (red, rouge), (book, livre), (sees, voit) = map(
            draw, (ADJECTIVES, NOUNS, ADJECTIVES, NOUNS, VERBS)
        )
        english = f"the {tiny} {cat} {sees} the {red} {book}"
        french = f"le {chat} {petit} {voit} le {livre} {rouge}"
        pairs.append((english.split(), french.split()))
    return pairs


def translate(pairs: Sequence[Translation]) -> tuple[Tensor, float]:
    """Train one cross-attention to write each French word, given the one before and its place.

    Args:
        pairs: English and French sentences, each language's of one length.

    Returns:
        Its weights (pairs, French words, English words), and its share of right words.

    Examples:
        >>> weights, right = translate(translations(8))
        >>> weights.shape
        torch.Size([8, 7, 8])
    """
    english, french = (sorted({word for pair in pairs for word in pair[side]}) for side in (0, 1))
    source = torch.tensor([[english.index(word) for word in pair[0]] for pair in pairs])
    target = torch.tensor([[1 + french.index(word) for word in pair[1]] for pair in pairs])
    before = F.pad(target[:, :-1], (1, 0))  # the word that has just been written; 0 at the start
    sizes = len(english), source.size(1), 1 + len(french), target.size(1)  # English words and places, then French ones
    with seeded(3):
        tables = nn.ModuleList([nn.Embedding(size, 32) for size in sizes]).double()
        for table in tables:
            nn.init.normal_(table.weight, std=0.1)  # type: ignore[arg-type]  # mypy takes it for a Module or a Tensor
        query, key, value, output = (nn.Linear(32, size).double() for size in (32, 32, 32, sizes[2]))

        def run(rows: Tensor) -> tuple[Tensor, Tensor]:
            memory = tables[0](source[rows])
            queries = query(tables[2](before[rows]) + tables[3].weight)
            weights = (queries @ key(memory + tables[1].weight).mT / 32**0.5).softmax(dim=-1)
            return weights, output(weights @ value(memory))

        def loss() -> Tensor:
            rows = torch.randint(len(pairs), (64,))
            return F.cross_entropy(run(rows)[1].flatten(0, 1), target[rows].flatten())

        parts = nn.ModuleList([*tables, query, key, value, output])
        fit(parts.parameters(), loss, steps=300, rate=0.01)
    with torch.no_grad():
        weights, scores = run(torch.arange(len(pairs)))
    return weights, (scores.argmax(dim=-1) == target).double().mean().item()
