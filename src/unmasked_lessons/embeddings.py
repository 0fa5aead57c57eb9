"""Word vectors: GloVe's files, and words out of them: the thirteen of two sentences, and 5,000 common ones.

The vectors are those of Pennington, Socher and Manning (2014), in the public domain (PDDL). For other words and exact
numbers, download ``glove.6B.zip`` from https://nlp.stanford.edu/projects/glove/ and hand it to `read_glove`.
"""

from __future__ import annotations

import difflib
import gzip
import json
import re
import zipfile
from array import array
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from io import BufferedIOBase
from itertools import chain, islice
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from unmasked._checks import _shown, checked, require_axes, require_values, tensor
from unmasked._shapes import Float
from unmasked.functional import _unit

__all__ = ["Embeddings", "UnknownWordError", "common_vectors", "read_glove", "ship_vectors"]


class UnknownWordError(KeyError):
    """Words have no vector: the text names them, each with the nearest words that have one."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would print the repr, quotes and all


@dataclass(frozen=True, eq=False, repr=False)
class Embeddings:
    """Words and their vectors, row by row.

    Attributes:
        words: The words, all different.
        vectors: Their vectors, in the same order.

    Examples:
        >>> vectors = ship_vectors()
        >>> vectors["ship"].shape, vectors.lookup("Process and ship your order").shape
        (torch.Size([50]), torch.Size([5, 50]))
        >>> vectors["shop"]
        Traceback (most recent call last):
        unmasked_lessons.embeddings.UnknownWordError: Embeddings(13 words, dim 50) has no vector for 'shop' ...
    """

    words: tuple[str, ...]
    vectors: Float[Tensor, "words dim"]
    _rows: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.words, Sequence) or isinstance(self.words, str):
            raise TypeError(f"words is {_shown(self.words)}; pass a tuple of strings")
        tensor("vectors", self.vectors, "Float")
        require_axes("vectors", self.vectors, "words", "dim")
        object.__setattr__(self, "_rows", {word: row for row, word in enumerate(self.words)})
        if len(self._rows) != len(self.vectors):
            raise ValueError(f"words holds {len(self._rows)} different words for {len(self.vectors)} vectors")

    def __repr__(self) -> str:
        return f"Embeddings({len(self)} words, dim {self.vectors.shape[1]})"

    def __len__(self) -> int:
        return len(self.words)

    def __iter__(self) -> Iterator[str]:
        return iter(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._rows

    def __getitem__(self, word: str) -> Float[Tensor, " dim"]:
        return self.lookup([word])[0]

    def lookup(self, words: str | Iterable[str]) -> Float[Tensor, "tokens dim"]:
        """The vectors of a text, one row for each token, repeated words included.

        Args:
            words: The tokens, or a sentence, which is lower-cased and split at white space.

        Raises:
            UnknownWordError: A word has no vector.
            TypeError: A token is not a string.
        """
        tokens = _tokens(words)
        if unknown := [token for token in dict.fromkeys(tokens) if token not in self]:
            raise _unknown(unknown, self.words, repr(self))
        return self.vectors[[self._rows[token] for token in tokens]]

    @checked
    def nearest(self, vector: Float[Tensor, " dim"], count: int = 5) -> list[str]:
        """The words whose vectors point most nearly where a vector points.

        Args:
            vector: Any vector of as many numbers, such as that of a word, or its context in a sentence.
            count: How many words.

        Returns:
            Words, the nearest first: by the cosine of the angle between the vectors, which says nothing of lengths.

        Raises:
            ValueError: The vector has another shape than those of words, or is zero, or there are fewer words than
                count, or count is less than one.

        Examples:
            >>> vectors = common_vectors()
            >>> vectors.nearest(vectors["king"], 3)
            ['king', 'prince', 'queen']
        """
        dim = self.vectors.shape[1]
        if vector.shape != (dim,):
            raise ValueError(f"vector has shape {tuple(vector.shape)}, expected ({dim},): pass one vector at a time")
        require_values(vector=vector)
        if not vector.isfinite().all():
            raise ValueError("vector holds NaN or inf and points nowhere: pass the vector of a word")
        if not vector.any():
            raise ValueError("vector is zero and points nowhere: pass the vector of a word, or an average of some")
        if not 1 <= count <= len(self):
            raise ValueError(f"count is {count}, expected 1 to {len(self)}, the number of words")
        cosines = _unit(self.vectors) @ _unit(vector).to(self.vectors)
        return [self.words[row] for row in cosines.topk(count).indices.tolist()]


@checked
def read_glove(
    path: str | PathLike[str],
    words: str | Iterable[str] | None = None,
    *,
    dim: int | None = None,
    member: str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Embeddings:
    """Read word vectors from a GloVe text file, plain, gzipped or inside its published zip.

    Only the words that are asked for are kept: lines of others are passed over unparsed, and reading stops at the last
    of them. Lines are split from the right, as tokens may hold spaces: those of GloVe's largest file do. The first of
    equal tokens wins.

    Args:
        path: The file: `.txt`, `.txt.gz`, or a `.zip`, as GloVe is published.
        words: The words to read, in the order of the result, or a sentence, lower-cased and split. None reads all.
        dim: Numbers per vector, by default what word2vec's header says or else the first line holds. It also chooses
            among the members of a zip by the number in their names.
        member: The name of the zip's member, where `dim` does not single one out.
        dtype: The vectors' dtype.

    Returns:
        The words and their vectors.

    Raises:
        UnknownWordError: A wanted word is not in the file.
        ValueError: A line is malformed, a zip needs a choice, nothing is there to read, or dtype holds no fractions.
        TypeError: A word is not a string.

    Examples:
        >>> with resources.as_file(resources.files("unmasked_lessons") / "data" / "ship_vectors.50d.txt") as path:
        ...     read_glove(path, "my ship")
        Embeddings(2 words, dim 50)
    """
    wanted = None if words is None else dict.fromkeys(_tokens(words))
    if wanted is not None and not wanted:
        raise ValueError("words is empty: name at least one, or pass None to read all")
    if not dtype.is_floating_point:
        raise ValueError(f"dtype is {dtype}, expected one of floating point, such as torch.float32")
    rows: dict[str, int] = {}
    numbers = array("d" if dtype == torch.float64 else "f")
    with _open(Path(path), dim, member) as file:
        for token, vector in _entries(file, path, dim, wanted):
            if token not in rows and (wanted is None or token in wanted):
                rows[token] = len(rows)
                numbers.extend(vector)
                if wanted is not None and len(rows) == len(wanted):
                    break
    if wanted is not None and len(rows) < len(wanted):
        with _open(Path(path), dim, member) as file:
            known = (token for token, _ in _entries(file, path, dim, None))
            raise _unknown([word for word in wanted if word not in rows], known, str(path))
    if not rows:
        raise ValueError(f"{path} holds no vectors")
    flat = torch.frombuffer(numbers, dtype=torch.float64 if numbers.typecode == "d" else torch.float32)
    vectors = flat.view(len(rows), -1).to(dtype)
    if wanted is None:
        return Embeddings(tuple(rows), vectors)
    return Embeddings(tuple(wanted), vectors[[rows[word] for word in wanted]])


def ship_vectors() -> Embeddings:
    """GloVe's vectors of the words in "I must go back to my ship and to my crew" and "We process and ship your order".

    Returns:
        13 words and their vectors of 50 numbers, float32: rows of ``glove.6B.50d.txt`` as published.

    Examples:
        >>> ship_vectors()
        Embeddings(13 words, dim 50)
        >>> ship_vectors()["ship"][:4]
        tensor([ 1.5213,  0.1052,  0.3816, -0.5080])
    """
    with resources.as_file(resources.files("unmasked_lessons") / "data" / "ship_vectors.50d.txt") as path:
        return read_glove(path)


def common_vectors() -> Embeddings:
    """GloVe's vectors of 5,000 common words, the most frequent first, each number rounded to one of 256 steps.

    They are for trying sentences: no cosine of two of them is off by more than 0.0083.

    Returns:
        5,000 words and their vectors of 50 numbers, float32.

    Examples:
        >>> common_vectors()
        Embeddings(5000 words, dim 50)
        >>> common_vectors().lookup("The mouse ate the cheese").shape
        torch.Size([5, 50])
    """
    content = (resources.files("unmasked_lessons") / "data" / "glove.6B.50d.u8").read_bytes()
    header, _, steps = content.partition(b"\n")  # one line of JSON, then a byte for each number, row by row
    description = json.loads(header)
    low, step = (torch.tensor(description[name], dtype=torch.float64, device="cpu") for name in ("low", "step"))
    rows = torch.frombuffer(bytearray(steps), dtype=torch.uint8).view(-1, len(low))
    return Embeddings(tuple(description["words"].split(" ")), (low + step * rows).float())


def _tokens(words: str | Iterable[str]) -> list[str]:
    if not isinstance(words, Iterable):
        raise TypeError(f"words is of the type {type(words).__name__}; pass strings, or a sentence")
    tokens = words.lower().split() if isinstance(words, str) else list(words)
    for token in tokens:
        if not isinstance(token, str):
            raise TypeError(f"words holds {token!r}, expected strings")
    return tokens


def _unknown(words: Sequence[str], known: Iterable[str], where: str) -> UnknownWordError:
    head = list(islice(known, 30_000))  # files are sorted by frequency: the words that are meant stand at the head
    near = [", ".join(map(repr, difflib.get_close_matches(word.lower(), head))) for word in words[:5]]
    named = [f"{word!r} (nearest: {names or 'none'})" for word, names in zip(words, near, strict=False)]
    more = f" and {len(words) - 5} more" if len(words) > 5 else ""
    return UnknownWordError(f"{where} has no vector for {', '.join(named)}{more}")


def _open(path: Path, dim: int | None, member: str | None) -> BufferedIOBase:
    suffix = path.suffix.lower()
    if suffix != ".zip":
        if member is not None:
            raise ValueError(f"member is {member!r}, but {path} is no zip: leave it out")
        return gzip.open(path) if suffix == ".gz" else path.open("rb")
    with zipfile.ZipFile(path) as archive:  # an open member keeps the archive's file open
        names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX")]
        chosen = [name for name in names if (f".{dim}d." in name if member is None else name == member)]
        if member is None and len(names) == 1:
            chosen = names
        if len(chosen) != 1:
            asked = f"choose one by dim or member, not by dim={dim}, member={member!r}"
            raise ValueError(f"{path} holds {', '.join(names)}: {asked}" if names else f"{path} holds no files")
        return cast(BufferedIOBase, archive.open(chosen[0]))  # ZipExtFile, which typeshed calls an IO[bytes]


def _entries(
    file: BufferedIOBase, path: str | PathLike[str], dim: int | None, wanted: Mapping[str, None] | None
) -> Iterator[tuple[str, list[float]]]:
    # Bytes, because GloVe's tokens hold characters (U+0085, U+00A0) at which str would split lines and words.
    where = f"{file.name} in {path}" if isinstance(file, zipfile.ZipExtFile) else path
    every = enumerate(chain([file.readline().removeprefix(BOM_UTF8)], file), 1)
    lines = ((number, line.rstrip()) for number, line in every if line.strip())
    start, first = next(lines, (0, b""))
    header = None if dim == 1 else re.fullmatch(rb"\d+ (\d+)", first)
    width = int(header[1]) if header else dim or _count_numbers(first.split()[1:])
    if dim not in (None, width):
        raise ValueError(f"line {start} of {where} announces {width} numbers per vector, but dim is {dim}")
    certain = header or dim or not width
    expected = f"{width or 'some'}" if certain else f"{width} as in line {start} (if that one is wrong, pass dim)"
    starts = wanted and {word.encode().partition(b" ")[0] for word in wanted}
    for number, line in lines if header or not first else chain([(start, first)], lines):
        if starts and line.partition(b" ")[0] not in starts:
            continue
        token, *fields = line.rsplit(b" ", width) if width else [line]
        surplus = _count_numbers(token.split(b" ")[1:])
        try:
            word, vector = token.decode(), list(map(float, fields))
            if len(vector) < width or not width or (surplus and not (wanted and word in wanted)):
                raise ValueError(f"{len(vector) + surplus} numbers after the token, expected {expected}")
            if b"_" in line[len(token) :] or not all(map(isfinite, vector)):  # float reads 1_0 as 10
                raise ValueError("numbers must be finite and hold no underscore")
        except ValueError as error:
            raise ValueError(f"line {number} of {where} is malformed: {error}") from error
        yield word, vector


def _count_numbers(fields: list[bytes]) -> int:
    """Count the numbers in which the fields end."""
    for count, text in enumerate(reversed(fields)):
        try:
            float(text)
        except ValueError:
            return count
    return len(fields)
