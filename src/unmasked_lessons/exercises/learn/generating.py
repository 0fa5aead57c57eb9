"""The exercises of the page about writing with a cache."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unmasked_lessons.exercises._check import Wrong, exercise, hold

_WORDS = 7


@exercise("write-on", "Each word is handed to the model once, and the likeliest word comes next.")
def _write_on(answer: Callable[[Callable[..., Any], list[int], int], list[int]]) -> None:
    """Hold a loop that writes to the words of a small model, and to handing over each word once, with what was kept."""
    for text, count in (([3, 1, 4], 4), ([2], 3), ([5, 0], 1)):
        when = f"For the text {text} and {count} new words"
        model = _Model()
        result = answer(model, list(text), count)
        right = _written(text, count)
        if not isinstance(result, list) or not all(isinstance(word, int) for word in result):
            raise Wrong(f"{when} it returned {result!r}; return a list of {count} whole numbers, the new words.")
        if result == [*text, *right]:
            raise Wrong(f"{when} it returned the text as well; return the new words alone.")
        if result != right:
            raise Wrong(f"{when} it wrote {result}; the likeliest words are {right}.")
        if model.seen > len(text) + count:
            raise Wrong(
                f"{when} the words are right, but the model was handed {model.seen} of them. With what was kept, "
                f"{len(text) + count - 1} are enough: the text once, and then each new word alone.",
            )


@exercise("cache-size", "A key and a value for each token, in each head of each layer.")
def _cache_size(answer: Callable[[int, int, int, int], float]) -> None:
    for sizes in ((3, 5, 7, 11), (1, 1, 1, 1), (32, 8, 128, 1)):
        right = 2 * math.prod(sizes)
        where = "For {} layers, {} heads, {} features and {} tokens".format(*sizes)
        hold(answer(*sizes), right, where, known={"Keys are kept, and values too.": right // 2})


class _Model:
    """A stand-in for a language model: the next word depends on all words so far, and on their order."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, words: Any, kept: Any = None) -> tuple[Tensor, tuple[int, ...]]:
        if not isinstance(words, list) or not words or not all(isinstance(word, int) for word in words):
            raise Wrong(f"The model was handed {words!r}; it takes a list of the words that are new to it.")
        if kept is not None and not isinstance(kept, tuple):
            raise Wrong(
                f"The model was handed {kept!r} as what was kept; hand over what its last call returned, or None."
            )
        self.seen += len(words)
        known = (*(kept or ()), *words)
        return _scores(known), known


def _scores(known: tuple[int, ...]) -> Tensor:
    """One-hot scores, in which the likeliest word comes of a hash of the words and their places."""
    likeliest = sum((place + 2) * (word + 1) ** 2 for place, word in enumerate(known)) % _WORDS
    return torch.nn.functional.one_hot(torch.tensor(likeliest), _WORDS).float()


def _written(text: list[int], count: int) -> list[int]:
    words = list(text)
    for _ in range(count):
        words.append(int(_scores(tuple(words)).argmax()))
    return words[len(text) :]
