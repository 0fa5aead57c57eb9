"""A song, word by word: what attention, a mask, positions and a cache are good for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked.cache import KVCache
from unmasked.functional import Attention, attend
from unmasked.heads import merge_heads, split_heads
from unmasked_lessons.teaching._training import fit, mlp, seeded

NAMES = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
STEPS = 46  # up or down, that a rounded number can be away from zero: a printable character tells it
HUMS = 8  # at most: the singer may hum before a verse, so that its words stand at other places each time


def verse(number: int) -> str:
    """A verse of *Ten green bottles*, without its walls: it names a number twice, and ends with the one below.

    Args:
        number: From 1 to 10.

    Returns:
        Its words, with spaces between them.

    Raises:
        ValueError: The song has no such verse.

    Examples:
        >>> verse(7)[:45]
        'seven green bottles seven green bottles and i'
    """
    if not 1 <= number <= 10:
        raise ValueError(f"number is {number}; the song has verses from 10 down to 1")
    line = "{} green bottles"
    return f"{line} {line} and if one bottle should fall there will be {line}".format(
        NAMES[number], NAMES[number], NAMES[number - 1]
    )


def step(numbers: Tensor) -> float:
    """The step of which a rounded matrix or vector has whole numbers: its largest number has `STEPS`."""
    return float(f"{numbers.abs().max().item() / STEPS:.4g}")


Lack = Literal["", "attention", "mask", "positions"]


class Singer(nn.Module):
    """A small language model for the song of the green bottles: blocks of attention and MLP, words and their places.

    It is trained on texts that begin with up to eight *la*, for humming, and go on with a verse and the beginning of
    the next one. So no word has a place of its own, and the model must look at the words before.

    Attributes:
        vocabulary: The words that it knows.
        lacks: What it has to do without.

    Args:
        blocks: How many blocks it has.
        lacks: Nothing, "attention" (each word sees itself alone), "mask" (each word sees all words, those that come
            later too) or "positions" (no word knows its place).

    Raises:
        ValueError: There is no block, or nothing of that name to lack.

    Examples:
        >>> singer = Singer()
        >>> singer.words_of(singer.numbers_of("seven green bottles"))
        'seven green bottles'
        >>> singer(singer.numbers_of("seven green bottles")).shape  # texts words vocabulary
        torch.Size([1, 3, 22])
    """

    WIDTH, HEADS, LENGTH = 32, 2, 26

    def __init__(self, blocks: int = 2, lacks: Lack = "") -> None:
        super().__init__()
        if blocks < 1:
            raise ValueError(f"blocks is {blocks}; a singer needs at least one")
        if lacks not in get_args(Lack):
            raise ValueError(f'lacks={lacks!r}: pass "attention", "mask" or "positions", or "" for a whole singer')
        self.lacks: Lack = lacks
        self.vocabulary = ["la", *sorted({word for number in range(1, 11) for word in verse(number).split()})]
        self.word = nn.Embedding(len(self.vocabulary), self.WIDTH)
        self.place = nn.Embedding(self.LENGTH, self.WIDTH)
        self.qkv = nn.ModuleList([nn.Linear(self.WIDTH, 3 * self.WIDTH, bias=False) for _ in range(blocks)])
        self.out = nn.ModuleList([nn.Linear(self.WIDTH, self.WIDTH) for _ in range(blocks)])
        self.mlp = nn.ModuleList([mlp(self.WIDTH) for _ in range(blocks)])
        self.norm = nn.ModuleList([nn.LayerNorm(self.WIDTH) for _ in range(2 * blocks + 1)])
        self.read = nn.Linear(self.WIDTH, len(self.vocabulary))

    @classmethod
    def trained(cls, blocks: int = 2, lacks: Lack = "", *, steps: int = 200) -> Singer:
        """A singer after its training on so many batches of 16 texts; its parameters ask for no gradient any more."""
        with seeded(0):
            model = cls(blocks, lacks)

            def loss() -> Tensor:
                texts = model.texts(16)
                return F.cross_entropy(model(texts[:, :-1]).flatten(0, 1), texts[:, 1:].flatten())

            fit(model.parameters(), loss, steps=steps, rate=0.01)
        return model.requires_grad_(False)

    def rounded(self) -> Singer:
        """Round the parameters in place to what a page sends to a browser, and return the singer.

        Each becomes a whole number of steps, at most `STEPS` up or down; a matrix or a vector has a step of its own,
        which has four digits. A singer that was rounded stays as it is.

        Examples:
            >>> singer = Singer().rounded()
            >>> bool(singer.word.weight.unique().numel() <= 2 * STEPS + 1)
            True
        """
        with torch.no_grad():
            for each in self.parameters():
                each.copy_(step(each) * (each / step(each)).round().double())
        return self

    def texts(self, count: int) -> Tensor:
        """Texts as in the training, drawn: the numbers of their words, (count, LENGTH + 1).

        Each has up to eight *la*, a verse, and the beginning of the next, or *la* after the last.
        """
        drawn = []
        for hums, number in zip(torch.randint(HUMS + 1, (count,)), torch.randint(1, 11, (count,)), strict=True):
            after = verse(int(number) - 1) if number > 1 else ""
            words = ["la"] * int(hums) + f"{verse(int(number))} {after}".split()
            words += ["la"] * self.LENGTH
            drawn.append([self.vocabulary.index(word) for word in words[: self.LENGTH + 1]])
        return torch.tensor(drawn)

    def numbers_of(self, words: str) -> Tensor:
        """The numbers by which the model knows the words of a text, (1, words).

        Raises:
            ValueError: A word is not in the vocabulary.
        """
        if unknown := sorted({*words.split()} - {*self.vocabulary}):
            raise ValueError(f"words has {unknown}: the song has only {', '.join(self.vocabulary)}")
        return torch.tensor([[self.vocabulary.index(word) for word in words.split()]])

    def words_of(self, numbers: Tensor) -> str:
        """The words of the first text, numbers (texts, words)."""
        return " ".join(self.vocabulary[number] for number in numbers[0].tolist())

    def new_caches(self) -> list[KVCache]:
        """A cache for each block, with room for the longest text.

        Raises:
            ValueError: The singer lacks attention or a mask: keys and values of a word would change with later ones.
        """
        if self.lacks in ("attention", "mask"):
            raise ValueError(f"lacks is {self.lacks!r}; keys and values can be kept under the causal mask alone")
        return [KVCache(1, self.HEADS, self.LENGTH, self.WIDTH // self.HEADS) for _ in self.qkv]

    def _embed(self, words: Tensor, past: int = 0) -> Tensor:
        if past + words.size(1) > self.LENGTH:
            raise ValueError(f"words has {past + words.size(1)} words with what came before; at most {self.LENGTH}")
        x: Tensor = self.word(words)
        return x if self.lacks == "positions" else x + self.place(torch.arange(past, past + words.size(1)))

    def _split(self, index: int, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values of a block."""
        return split_heads(self.qkv[index](self.norm[2 * index](x)), 3 * self.HEADS).chunk(3, dim=1)

    def _attend(self, *qkv: Tensor, need_weights: bool = False, is_causal: bool = True) -> Attention:
        alone = torch.eye(qkv[0].size(-2), dtype=torch.bool) if self.lacks == "attention" else None
        return attend(*qkv, allowed=alone, is_causal=is_causal and self.lacks != "mask", need_weights=need_weights)

    def _block(self, index: int, x: Tensor, attention: Attention) -> Tensor:
        """Return the words after a block with this result of its attention."""
        x = x + self.out[index](merge_heads(attention.context))
        more: Tensor = self.mlp[index](self.norm[2 * index + 1](x))
        return x + more

    def forward(self, words: Tensor, caches: Sequence[KVCache] | None = None, *, silent: int | None = None) -> Tensor:
        """Scores of each word as the next one.

        Args:
            words: The new ones, (texts, words).
            caches: One for each block, with the words before; None if there are none.
            silent: A head whose context is zeros, in each block.

        Returns:
            (texts, words, vocabulary).

        Raises:
            ValueError: There are more words than the model has places.
        """
        heard = torch.ones(self.HEADS, 1, 1)
        if silent is not None:
            heard[silent] = 0
        x = self._embed(words, caches[0].length if caches else 0)
        for index in range(len(self.qkv)):
            query, key, value = self._split(index, x)
            if caches:
                key, value = caches[index].append(key, value)
            attention = self._attend(query, key, value)
            x = self._block(index, x, attention._replace(context=attention.context * heard))
        scores: Tensor = self.read(self.norm[-1](x))
        return scores

    def sing(self, start: str, count: int, *, silent: int | None = None) -> str:
        """Write on, so many words, each time the likeliest, and return the text with them.

        Args:
            start: A text in its vocabulary.
            count: How many words are added.
            silent: As for `forward`.

        Raises:
            ValueError: A word is not in the vocabulary, or the text becomes longer than the model has places.
        """
        words = self.numbers_of(start)
        for _ in range(count):
            words = torch.cat([words, self(words, silent=silent)[:, -1:].argmax(dim=-1)], dim=1)
        return self.words_of(words)

    def verses_right(self, after: Sequence[int] = range(0, HUMS + 1, 2)) -> float:
        """The share of verses that it sings without a mistake, of all ten.

        It is given some *la*, the number and *green*, and every word that it adds must be right.

        Args:
            after: How many *la*, each of which all verses are tried after.
        """
        sung = []
        for hums in after:
            for number in range(1, 11):
                words = [*["la"] * hums, *verse(number).split()]
                begun = hums + 2
                sung.append(self.sing(" ".join(words[:begun]), len(words) - begun) == " ".join(words))
        return sum(sung) / len(sung)

    def words_right(self) -> float:
        """The share of next words that it guesses in new texts, where it sees what it saw in training."""
        with seeded(1):
            texts = self.texts(200)
        right = self(texts[:, :-1]).argmax(dim=-1) == texts[:, 1:]
        return float(right.double().mean())

    def weights(self, words: Tensor) -> Tensor:
        """The weights of all heads for one text (1, words): (blocks, heads, queries, keys)."""
        x, weights = self._embed(words), []
        for index in range(len(self.qkv)):
            attention = self._attend(*self._split(index, x), need_weights=True)
            weights.append(cast(Tensor, attention.weights)[0])
            x = self._block(index, x, attention)
        return torch.stack(weights)

    def projected(self, words: Tensor, *, is_causal: bool = True) -> tuple[Tensor, ...]:
        """Queries, keys and values of the second block, each (texts, heads, words, features), of texts (texts, words).

        By then the words have met each other once, those before them alone if the first block is causal, as in
        training.
        """
        x = self._embed(words)
        return self._split(1, self._block(0, x, self._attend(*self._split(0, x), is_causal=is_causal)))

    def changed_keys(self, words: Tensor, before: int, *, is_causal: bool = True) -> Tensor:
        """Measure the changes of the second block's keys of a text when words are added to its end.

        Args:
            words: The text with what is added, (1, words).
            before: How many words it had.
            is_causal: As for `projected`.

        Returns:
            For each of the words that it had, the largest change of a number of its keys, (before,).
        """
        _, longer, _ = self.projected(words, is_causal=is_causal)
        _, shorter, _ = self.projected(words[:, :before], is_causal=is_causal)
        return (longer[:, :, :before] - shorter).abs().amax(dim=(0, 1, 3))
