"""The small models that pages train: each learns one thing within seconds, and the same each time, from its seed.

While one is made and trained, random numbers come from its seed, on one thread; the caller's random numbers and threads
stay as they were. None of them needs a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked.cache import KVCache
from unmasked.functional import Attention, attend
from unmasked.heads import merge_heads, split_heads

__all__ = [
    "Block",
    "PairSolver",
    "Singer",
    "Stack",
    "draw_pairs",
    "draw_riddles",
    "largest_weights",
    "likeness",
    "riddles_solved",
    "translate",
    "translations",
    "verse",
]

LETTERS, NUMBERS, BOXES = 8, 10, 5  # of riddles: letters on lids, numbers inside, boxes of one riddle


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Random numbers from a seed, on one thread; afterwards both go on as the caller had them.

    Small matrices are faster on one thread, and their sums are the same on a machine of any number of cores.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


def _fit(parameters: Iterable[nn.Parameter], loss: Callable[[], Tensor], *, steps: int, rate: float) -> None:
    """Take steps of Adam, each down the loss of a new batch."""
    optimizer = torch.optim.Adam(parameters, lr=rate)
    for _ in range(steps):
        error = loss()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()


def _mlp(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


# One number is asked for: what each part of a block is good for.

Without = Literal["", "MLP", "residual", "norms"]


def _boxes(count: int) -> tuple[Tensor, Tensor]:
    """Different letters on the lids of each riddle's boxes, and numbers inside, both (count, BOXES)."""
    letters = torch.rand(count, LETTERS).argsort(dim=-1)[:, :BOXES]
    return letters, torch.randint(NUMBERS, letters.shape)


def draw_riddles(count: int, kinds: int = 1) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Boxes with different letters on their lids, and a question after the number in one of them.

    Args:
        count: How many riddles.
        kinds: 1, if all questions ask for the number; 2, if half of them ask for nine minus the number.

    Returns:
        What a model is given, letters and numbers (count, BOXES), the letter that is asked for and the kind of the
        question (count,); and the right answers (count,).

    Examples:
        >>> given, right = draw_riddles(2)
        >>> [tuple(each.shape) for each in given]
        [(2, 5), (2, 5), (2,), (2,)]
    """
    letters, numbers = _boxes(count)
    place = torch.randint(BOXES, (count, 1))
    kind = torch.randint(kinds, (count,))
    number = numbers.gather(1, place)[:, 0]
    right = torch.where(kind == 1, NUMBERS - 1 - number, number)
    return (letters, numbers, letters.gather(1, place)[:, 0], kind), right


class Block(nn.Module):
    """A block over the words of riddles, whole or without one of its parts.

    Args:
        width: How many features a word has.
        without: What it lacks: "MLP", "residual" (what a part finds replaces the words), "norms", or nothing.

    Raises:
        ValueError: `without` names none of these.

    Examples:
        >>> Block(4, "norms")(torch.zeros(1, 2, 4)).shape
        torch.Size([1, 2, 4])
    """

    def __init__(self, width: int, without: Without = "") -> None:
        super().__init__()
        if without not in ("", "MLP", "residual", "norms"):
            raise ValueError(f'without={without!r}: pass "MLP", "residual" or "norms", or "" for a whole block')
        norm = nn.Identity if without == "norms" else nn.LayerNorm
        self.norm_1 = norm(width)
        self.attention = nn.MultiheadAttention(width, 1, batch_first=True)
        self.norm_2 = norm(width)
        self.mlp = _mlp(width)
        self.without = without

    def forward(self, x: Tensor) -> Tensor:
        """What the block makes of words x (riddles, words, features), in the same shape."""
        seen = self.norm_1(x)
        found: Tensor = self.attention(seen, seen, seen)[0]
        if self.without == "residual":
            replaced: Tensor = self.mlp(self.norm_2(found))
            return replaced
        x = x + found
        return x if self.without == "MLP" else x + self.mlp(self.norm_2(x))


class Stack(nn.Module):
    """Blocks over boxes and a question; the number is read from the last word, which is the question.

    Args:
        depth: How many blocks.
        without: What every block lacks, as in `Block`. Without norms there is none before the answer, either.
        size: What the words are multiplied by before the first block.

    Examples:
        >>> Stack(1)(*draw_riddles(3)[0]).shape  # riddles numbers
        torch.Size([3, 10])
    """

    WIDTH = 24

    def __init__(self, depth: int, without: Without = "", size: float = 1.0) -> None:
        super().__init__()
        self.letter, self.number, self.asked, self.kind = (
            nn.Embedding(number, self.WIDTH) for number in (LETTERS, NUMBERS, LETTERS, 2)
        )
        self.blocks = nn.Sequential(*(Block(self.WIDTH, without) for _ in range(depth)))
        self.norm = nn.Identity() if without == "norms" else nn.LayerNorm(self.WIDTH)
        self.read = nn.Linear(self.WIDTH, NUMBERS)
        self.size = size

    def embed(self, letters: Tensor, numbers: Tensor, asked: Tensor, kind: Tensor) -> Tensor:
        """The words of riddles: a box is the sum of its letter and its number, the question stands last.

        Args:
            letters: (count, BOXES), as `draw_riddles` gives them.
            numbers: (count, BOXES).
            asked: The letter that is asked for (count,).
            kind: The kind of the question (count,).

        Returns:
            (count, BOXES + 1, WIDTH).
        """
        boxes = self.letter(letters) + self.number(numbers)
        question = self.asked(asked) + self.kind(kind)
        return torch.cat([boxes, question[:, None]], dim=1) * self.size

    def forward(self, letters: Tensor, numbers: Tensor, asked: Tensor, kind: Tensor) -> Tensor:
        """The scores of each number as the answer, (count, NUMBERS); the arguments are those of `embed`."""
        words = self.blocks(self.embed(letters, numbers, asked, kind))
        scores: Tensor = self.read(self.norm(words[:, -1]))
        return scores


def riddles_solved(
    depth: int, without: Without = "", *, kinds: int = 1, size: float = 1.0, steps: int = 120, batch: int = 32
) -> float:
    """Train a stack of blocks on riddles, and try it on new ones.

    Args:
        depth: How many blocks.
        without: What every block lacks, as in `Stack`.
        kinds: Which questions there are, as in `draw_riddles`.
        size: What the words are multiplied by, as in `Stack`.
        steps: How many steps are taken.
        batch: How many riddles each step takes.

    Returns:
        The share of right answers to 1,000 riddles.

    Examples:
        >>> riddles_solved(1, steps=1) < 0.5  # one step is not enough
        True
    """
    with _seeded(0):
        model = Stack(depth, without, size)

        def loss() -> Tensor:
            given, right = draw_riddles(batch, kinds)
            return F.cross_entropy(model(*given), right)

        _fit(model.parameters(), loss, steps=steps, rate=0.005)
    with _seeded(1), torch.no_grad():
        given, right = draw_riddles(1000, kinds)
        hits: Tensor = model(*given).argmax(dim=-1) == right
    return hits.double().mean().item()


def likeness(depth: int, without: Without = "") -> list[float]:
    """How alike the words of riddles are on their way through an untrained stack.

    Args:
        depth: How many blocks.
        without: What every block lacks, as in `Stack`.

    Returns:
        The mean cosine between two different words of a riddle, before the first block and after each.

    Examples:
        >>> len(likeness(2))  # before the first block, and after each
        3
    """
    with _seeded(0), torch.no_grad():
        model = Stack(depth, without)
        stream = [model.embed(*draw_riddles(200)[0])]
        for block in model.blocks:
            stream.append(block(stream[-1]))
    others = ~torch.eye(BOXES + 1, dtype=torch.bool)
    cosines = [F.cosine_similarity(x[:, :, None], x[:, None], dim=-1) for x in stream]
    return [each[:, others].mean().item() for each in cosines]


def largest_weights(sizes: Sequence[float]) -> Tensor:
    """How much of the attention a word's favorite gets in an untrained block, without a norm before it and with one.

    Args:
        sizes: What the words of riddles are multiplied by.

    Returns:
        (sizes, 2), means over 200 riddles: without the norm, with it.

    Examples:
        >>> without, with_norm = largest_weights([100])[0]
        >>> bool(without > with_norm)
        True
    """
    with _seeded(0), torch.no_grad():
        model = Stack(1)
        words = model.embed(*draw_riddles(200)[0])
        block = cast(Block, model.blocks[0])
        seen = [each for size in sizes for each in (size * words, block.norm_1(size * words))]
        largest = [block.attention(x, x, x)[1].amax(dim=-1).mean() for x in seen]
    return torch.stack(largest).view(len(sizes), 2)


# Two numbers are asked for: what a second head is good for.

Pair = tuple[Tensor, Tensor, Tensor, Tensor]


def draw_pairs(count: int) -> tuple[Pair, Tensor]:
    """Boxes with different letters, and questions that ask for the numbers in two of them, in an order.

    Args:
        count: How many riddles.

    Returns:
        What a model is given, letters and numbers (count, BOXES), the letter that is asked for first and the one that
        is asked for second (count,); and the right numbers (count, 2).

    Examples:
        >>> (letters, numbers, first, second), right = draw_pairs(2)
        >>> bool((numbers[letters == first[:, None]] == right[:, 0]).all())
        True
    """
    letters, inside = _boxes(count)
    asked = torch.rand(letters.shape).argsort(dim=-1)[:, :2]
    first, second = letters.gather(1, asked).T
    return (letters, inside, first, second), inside.gather(1, asked)


class PairSolver(nn.Module):
    """A model with one step of attention for riddles that ask for two numbers, after a question that is one query.

    Args:
        num_heads: How many heads attention has.

    Examples:
        >>> scores, weights = PairSolver(2)(*draw_pairs(3)[0])
        >>> scores.shape, weights.shape  # riddles, first and second, numbers; riddles heads boxes
        (torch.Size([3, 2, 10]), torch.Size([3, 2, 5]))
    """

    WIDTH = 32

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.letter, self.number, self.first, self.second = (
            nn.Embedding(number, self.WIDTH) for number in (LETTERS, NUMBERS, LETTERS, LETTERS)
        )
        self.attention = nn.MultiheadAttention(self.WIDTH, num_heads, batch_first=True)
        self.read = nn.Linear(self.WIDTH, 2 * NUMBERS)

    @classmethod
    def trained(cls, num_heads: int, *, seed: int, steps: int = 250) -> PairSolver:
        """A model after its training.

        Args:
            num_heads: How many heads attention has.
            seed: What training starts from.
            steps: How many batches of 128 riddles it learns from.

        Returns:
            The model, whose parameters ask for no gradient any more.
        """
        with _seeded(seed):
            model = cls(num_heads)

            def loss() -> Tensor:
                given, right = draw_pairs(128)
                return F.cross_entropy(model(*given)[0].flatten(0, 1), right.flatten())

            _fit(model.parameters(), loss, steps=steps, rate=0.01)
        return model.requires_grad_(False)

    def forward(self, letters: Tensor, numbers: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """The scores of each number as the first and the second answer, and the weights; of what `draw_pairs` gives.

        Returns:
            Scores (riddles, 2, NUMBERS), and weights (riddles, heads, BOXES).
        """
        boxes = self.letter(letters) + self.number(numbers)
        question = (self.first(first) + self.second(second))[:, None]  # one query in each riddle
        taken, weights = self.attention(question, boxes, boxes, average_attn_weights=False)
        return self.read(taken[:, 0]).unflatten(-1, (2, NUMBERS)), weights[:, :, 0]

    def right(self) -> Tensor:
        """Whether its answers to 1,000 new riddles are right, the first and the second of each, (1000, 2)."""
        with _seeded(1):
            given, numbers = draw_pairs(1000)
        right: Tensor = self(*given)[0].argmax(dim=-1) == numbers
        return right


# A translator: one sentence asks another.

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
    chance, pairs = torch.Generator().manual_seed(0), []

    def drawn(words: dict[str, str]) -> tuple[str, str]:
        return list(words.items())[int(torch.randint(len(words), (1,), generator=chance))]

    for _ in range(count):
        (a, x), (b, y), (c, z), (d, w), (v, verb) = map(drawn, (ADJECTIVES, NOUNS, ADJECTIVES, NOUNS, VERBS))
        pairs.append((f"the {a} {b} {v} the {c} {d}".split(), f"le {y} {x} {verb} le {w} {z}".split()))
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
    sizes = len(english), source.size(1), 1 + len(french), target.size(1)
    with _seeded(3):
        tables = nn.ModuleList([nn.Embedding(size, 32) for size in sizes]).double()
        for table in tables:
            nn.init.normal_(table.weight, std=0.1)  # type: ignore[arg-type]  # to mypy a Module's, not a Parameter
        query, key, value, guess = (nn.Linear(32, size).double() for size in (32, 32, 32, sizes[2]))

        def run(rows: Tensor) -> tuple[Tensor, Tensor]:
            asked = tables[0](source[rows])
            queries = query(tables[2](before[rows]) + tables[3].weight)
            weights = (queries @ key(asked + tables[1].weight).mT / 32**0.5).softmax(dim=-1)
            return weights, guess(weights @ value(asked))

        def loss() -> Tensor:
            rows = torch.randint(len(pairs), (64,))
            return F.cross_entropy(run(rows)[1].flatten(0, 1), target[rows].flatten())

        parts = nn.ModuleList([*tables, query, key, value, guess])
        _fit(parts.parameters(), loss, steps=300, rate=0.01)
    with torch.no_grad():
        weights, said = run(torch.arange(len(pairs)))
    return weights, (said.argmax(dim=-1) == target).double().mean().item()


# A song, word by word: what attention, a mask, positions and a cache are good for.

NAMES = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
HUMS = 8  # at most: who sings may hum before a verse, so that its words stand at other places each time


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
        self.mlp = nn.ModuleList([_mlp(self.WIDTH) for _ in range(blocks)])
        self.norm = nn.ModuleList([nn.LayerNorm(self.WIDTH) for _ in range(2 * blocks + 1)])
        self.read = nn.Linear(self.WIDTH, len(self.vocabulary))

    @classmethod
    def trained(cls, blocks: int = 2, lacks: Lack = "", *, steps: int = 200) -> Singer:
        """A singer after its training.

        Args:
            blocks: How many blocks it has.
            lacks: What it has to do without, in training and afterwards.
            steps: How many batches of 16 texts it learns from.

        Returns:
            The model, whose parameters ask for no gradient any more.
        """
        with _seeded(0):
            model = cls(blocks, lacks)

            def loss() -> Tensor:
                texts = model.texts(16)
                return F.cross_entropy(model(texts[:, :-1]).flatten(0, 1), texts[:, 1:].flatten())

            _fit(model.parameters(), loss, steps=steps, rate=0.01)
        return model.requires_grad_(False)

    def texts(self, count: int) -> Tensor:
        """Texts as in the training: up to eight *la*, a verse, and the beginning of the next, or *la* after the last.

        Args:
            count: How many are drawn.

        Returns:
            Numbers of words, (count, LENGTH + 1).
        """
        drawn = []
        for hums, number in zip(torch.randint(HUMS + 1, (count,)), torch.randint(1, 11, (count,)), strict=True):
            after = verse(int(number) - 1) if number > 1 else ""
            words = ["la"] * int(hums) + f"{verse(int(number))} {after}".split()
            words += ["la"] * self.LENGTH
            drawn.append([self.vocabulary.index(word) for word in words[: self.LENGTH + 1]])
        return torch.tensor(drawn)

    def numbers_of(self, words: str) -> Tensor:
        """The numbers by which the model knows words, (1, words).

        Args:
            words: A text in its vocabulary, with spaces between words.

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
            ValueError: The singer lacks attention or a mask, and what it keeps of a word would change with later ones.
        """
        if self.lacks in ("attention", "mask"):
            raise ValueError(f"lacks is {self.lacks!r}; keys and values can be kept under the causal mask alone")
        return [KVCache(1, self.HEADS, self.LENGTH, self.WIDTH // self.HEADS) for _ in self.qkv]

    def _embed(self, words: Tensor, past: int = 0) -> Tensor:
        if past + words.size(1) > self.LENGTH:
            raise ValueError(f"words has {past + words.size(1)} words with what came before; at most {self.LENGTH}")
        x: Tensor = self.word(words)
        return x if self.lacks == "positions" else x + self.place(torch.arange(past, past + words.size(1)))

    def _split(self, number: int, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values of a block."""
        return split_heads(self.qkv[number](self.norm[2 * number](x)), 3 * self.HEADS).chunk(3, dim=1)

    def _attend(self, *qkv: Tensor, need_weights: bool = False, is_causal: bool = True) -> Attention:
        alone = torch.eye(qkv[0].size(-2), dtype=torch.bool) if self.lacks == "attention" else None
        return attend(*qkv, allowed=alone, is_causal=is_causal and self.lacks != "mask", need_weights=need_weights)

    def _block(self, number: int, x: Tensor, found: Attention) -> Tensor:
        """The words after a block whose attention found something."""
        x = x + self.out[number](merge_heads(found.context))
        more: Tensor = self.mlp[number](self.norm[2 * number + 1](x))
        return x + more

    def forward(self, words: Tensor, caches: Sequence[KVCache] | None = None, *, silent: int | None = None) -> Tensor:
        """Scores of each word as the next one.

        Args:
            words: Those that are new, (texts, words).
            caches: One for each block, with what came before; none if nothing did.
            silent: A head that finds nothing but zeros, in each block.

        Returns:
            (texts, words, vocabulary).

        Raises:
            ValueError: There are more words than the model has places.
        """
        heard = torch.ones(self.HEADS, 1, 1)
        if silent is not None:
            heard[silent] = 0
        x = self._embed(words, caches[0].length if caches else 0)
        for number in range(len(self.qkv)):
            query, key, value = self._split(number, x)
            if caches:
                key, value = caches[number].append(key, value)
            found = self._attend(query, key, value)
            x = self._block(number, x, found._replace(context=found.context * heard))
        scores: Tensor = self.read(self.norm[-1](x))
        return scores

    def sing(self, start: str, count: int, *, silent: int | None = None) -> str:
        """Write on, each time the likeliest word.

        Args:
            start: A text in its vocabulary.
            count: How many words are added.
            silent: A head that finds nothing but zeros, in each block.

        Returns:
            The text with what was added.

        Raises:
            ValueError: A word is not in the vocabulary, or the text becomes longer than the model has places.
        """
        words = self.numbers_of(start)
        for _ in range(count):
            words = torch.cat([words, self(words, silent=silent)[:, -1:].argmax(dim=-1)], dim=1)
        return self.words_of(words)

    def verses_right(self) -> float:
        """The share of verses that it sings without a mistake, of all ten, after no *la*, two, four, six and eight.

        It is given the number and *green*, and every word that it adds must be right.
        """
        sung = []
        for hums in range(0, HUMS + 1, 2):
            for number in range(1, 11):
                words = [*["la"] * hums, *verse(number).split()]
                begun = hums + 2
                sung.append(self.sing(" ".join(words[:begun]), len(words) - begun) == " ".join(words))
        return sum(sung) / len(sung)

    def words_right(self) -> float:
        """The share of next words that it guesses in new texts, where it sees what it saw in training."""
        with _seeded(1):
            texts = self.texts(200)
        right = self(texts[:, :-1]).argmax(dim=-1) == texts[:, 1:]
        return float(right.double().mean())

    def weights(self, words: Tensor) -> Tensor:
        """The weights of all heads for a text.

        Args:
            words: One text, (1, words).

        Returns:
            (blocks, heads, queries, keys).
        """
        x, weights = self._embed(words), []
        for number in range(len(self.qkv)):
            found = self._attend(*self._split(number, x), need_weights=True)
            weights.append(cast(Tensor, found.weights)[0])
            x = self._block(number, x, found)
        return torch.stack(weights)

    def projected(self, words: Tensor, *, is_causal: bool = True) -> tuple[Tensor, ...]:
        """Queries, keys and values of the second block, where words have met each other once.

        Args:
            words: (texts, words).
            is_causal: Whether the first block hides later words, as it does in training.

        Returns:
            Three tensors (texts, heads, words, features).
        """
        x = self._embed(words)
        return self._split(1, self._block(0, x, self._attend(*self._split(0, x), is_causal=is_causal)))

    def changed_keys(self, words: Tensor, before: int, *, is_causal: bool = True) -> Tensor:
        """How much the second block's keys of a text change when words are added to its end.

        Args:
            words: The text with what is added, (1, words).
            before: How many words it had.
            is_causal: Whether the first block hides later words.

        Returns:
            For each of the words that it had, the largest change of a number of its keys, (before,).
        """
        _, longer, _ = self.projected(words, is_causal=is_causal)
        _, shorter, _ = self.projected(words[:, :before], is_causal=is_causal)
        return (longer[:, :, :before] - shorter).abs().amax(dim=(0, 1, 3))
