"""Riddles of boxes, each with a letter and a number: what the parts of a block and a second head are good for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked_lessons.teaching._training import fit, mlp, seeded

LETTERS, NUMBERS, BOXES = 8, 10, 5  # of riddles: letters on lids, numbers inside, boxes of one riddle

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
        The inputs of a model, letters and numbers (count, BOXES), the letter that is asked for and the kind of the
        question (count,); and the right answers (count,).

    Examples:
        >>> inputs, right = draw_riddles(2)
        >>> [tuple(each.shape) for each in inputs]
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
        without: The part that it lacks: "MLP", "residual" (a part's output replaces the words), "norms", or "" for
            none.

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
        self.mlp = mlp(width)
        self.without = without

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output for words x, (riddles, words, features), in the same shape."""
        seen = self.norm_1(x)
        attended: Tensor = self.attention(seen, seen, seen)[0]
        if self.without == "residual":
            replaced: Tensor = self.mlp(self.norm_2(attended))
            return replaced
        x = x + attended
        return x if self.without == "MLP" else x + self.mlp(self.norm_2(x))


class Stack(nn.Module):
    """Blocks over boxes and a question; the number is read from the last word, which is the question.

    Args:
        depth: How many blocks.
        without: The part that every block lacks, as in `Block`. Without norms there is none before the answer, either.
        size: A factor of the words before the first block.

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
        """The words of riddles, as `draw_riddles` gives them, (count, BOXES + 1, WIDTH).

        A box is the sum of its letter and its number, and the question stands last.
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

    Arguments as for `Stack` and `draw_riddles`, and ``steps``, each of which takes a batch of riddles.

    Returns:
        The share of right answers to 1,000 riddles.

    Examples:
        >>> riddles_solved(1, steps=1) < 0.5
        True
    """
    with seeded(0):
        model = Stack(depth, without, size)

        def loss() -> Tensor:
            inputs, right = draw_riddles(batch, kinds)
            return F.cross_entropy(model(*inputs), right)

        fit(model.parameters(), loss, steps=steps, rate=0.005)
    with seeded(1), torch.no_grad():
        inputs, right = draw_riddles(1000, kinds)
        hits: Tensor = model(*inputs).argmax(dim=-1) == right
    return hits.double().mean().item()


def likeness(depth: int, without: Without = "") -> list[float]:
    """Measure how alike the words of riddles are on their way through an untrained stack; arguments as for `Stack`.

    Returns:
        The mean cosine between two different words of a riddle, before the first block and after each.

    Examples:
        >>> len(likeness(2))
        3
    """
    with seeded(0), torch.no_grad():
        model = Stack(depth, without)
        stream = [model.embed(*draw_riddles(200)[0])]
        for block in model.blocks:
            stream.append(block(stream[-1]))
    others = ~torch.eye(BOXES + 1, dtype=torch.bool)
    cosines = [F.cosine_similarity(x[:, :, None], x[:, None], dim=-1) for x in stream]
    return [each[:, others].mean().item() for each in cosines]


def largest_weights(sizes: Sequence[float]) -> Tensor:
    """Measure each word's largest weight in an untrained block, without a norm before it and with one.

    Args:
        sizes: Factors of the words of riddles.

    Returns:
        (sizes, 2), means over 200 riddles: without the norm, with it.

    Examples:
        >>> without, with_norm = largest_weights([100])[0]
        >>> bool(without > with_norm)
        True
    """
    with seeded(0), torch.no_grad():
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
        The inputs of a model, letters and numbers (count, BOXES), the letters that are asked for first and second
        (count,); and the right numbers (count, 2).

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
        """A model after its training on so many batches of 128 riddles; its parameters ask for no gradient any more."""
        with seeded(seed):
            model = cls(num_heads)

            def loss() -> Tensor:
                inputs, right = draw_pairs(128)
                return F.cross_entropy(model(*inputs)[0].flatten(0, 1), right.flatten())

            fit(model.parameters(), loss, steps=steps, rate=0.01)
        return model.requires_grad_(False)

    def forward(self, letters: Tensor, numbers: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores, (riddles, 2, NUMBERS), and weights, (riddles, heads, BOXES), of inputs of `draw_pairs`."""
        boxes = self.letter(letters) + self.number(numbers)
        question = (self.first(first) + self.second(second))[:, None]  # one query in each riddle
        taken, weights = self.attention(question, boxes, boxes, average_attn_weights=False)
        return self.read(taken[:, 0]).unflatten(-1, (2, NUMBERS)), weights[:, :, 0]

    def right(self) -> Tensor:
        """Mark the right answers to 1,000 new riddles, the first and the second of each, (1000, 2)."""
        with seeded(1):
            inputs, numbers = draw_pairs(1000)
        right: Tensor = self(*inputs)[0].argmax(dim=-1) == numbers
        return right
