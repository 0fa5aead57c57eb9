import copy
import gzip
import math
import pickle
import re
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from unmasked_lessons.embeddings import Embeddings, UnknownWordError, common_vectors, read_glove, ship_vectors

from ..refusals import refused

ODYSSEY = "I must go back to my ship and to my crew"
AMAZON = "We process and ship your order"


def weights(x: Tensor) -> Tensor:
    return torch.softmax(x @ x.mT / math.sqrt(x.shape[-1]), dim=-1)


def test_the_published_figures_of_ship_and_i_are_in_the_bundled_vectors() -> None:
    vectors = ship_vectors()
    assert len(vectors) == 13
    assert vectors.vectors.dtype == torch.float32
    published = [0.11891, 0.15255, -0.082073, -0.74144, 0.75917, -0.48328, -0.31009, 0.51476, -0.98708, 0.00061757]
    torch.testing.assert_close(vectors["i"][:10], torch.tensor(published), rtol=0, atol=0)
    torch.testing.assert_close(vectors["ship"][-3:], torch.tensor([-0.5061, 0.4827, -0.6620]), rtol=0, atol=5e-5)


def test_the_exact_weights_of_ship_agree_with_the_source_notebook_to_its_four_digits() -> None:
    rows = {ODYSSEY: 6, AMAZON: 3}
    printed = {
        ODYSSEY: [0.0303, 0.0302, 0.0276, 0.0407, 0.0459, 0.0343, 0.5530, 0.0297, 0.0459, 0.0343, 0.1281],
        AMAZON: [0.0431, 0.0258, 0.0419, 0.7811, 0.0490, 0.0590],
    }
    for sentence, row in rows.items():
        found = weights(ship_vectors().lookup(sentence))[row]
        torch.testing.assert_close(found, torch.tensor(printed[sentence]), rtol=0, atol=5.1e-5)


def test_lookup_takes_a_sentence_or_tokens_and_repeats_rows() -> None:
    vectors = Embeddings(("to", "Ship", "my"), torch.arange(6.0).view(3, 2))
    assert vectors.lookup(["my", "Ship", "my"]).tolist() == [[4, 5], [2, 3], [4, 5]]
    assert vectors.lookup("To MY").tolist() == [[0, 1], [4, 5]]
    assert vectors["Ship"].tolist() == [2, 3]
    assert "ship" not in vectors
    assert list(vectors) == ["to", "Ship", "my"]


def test_the_common_vectors_are_those_of_the_published_file_but_for_the_rounding() -> None:
    common, exact = common_vectors(), ship_vectors()
    assert (len(common), common.words[0], common.vectors.dtype) == (5000, "the", torch.float32)
    off = (common.lookup(list(exact)) - exact.vectors).abs()
    assert 1e-3 < off.max() < 0.025
    assert common_vectors().vectors is not common.vectors  # who writes into one changes no other


def test_the_nearest_words_are_by_angle_whatever_the_lengths() -> None:
    vectors = Embeddings(
        ("right", "up", "left", "far"), torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [9.0, 8.0]])
    )
    for length in (1.0, 1e-30, 1e30):
        assert vectors.nearest(length * torch.tensor([0.1, 0.02]), 4) == ["right", "far", "up", "left"]
    assert vectors.nearest(torch.tensor([-5.0, 1.0]), 1) == ["left"]


def nearest(vector: Tensor, count: int = 1) -> Callable[[], object]:
    return lambda: ship_vectors().nearest(vector, count)


ONE = "expected (50,): pass one vector at a time"
test_what_has_no_nearest_words_or_is_no_word_is_refused = refused(
    {
        ValueError: {
            "vector has shape (2, 50); it must be (dim,)": nearest(torch.ones(2, 50)),
            f"vector has shape (49,), {ONE}": nearest(torch.ones(49)),
            "vector is zero and points nowhere: pass the vector of a word, or an average of some": nearest(
                torch.zeros(50)
            ),
            "vector holds NaN or inf and points nowhere: pass the vector of a word": (
                nearest(torch.full((50,), torch.nan)),
                nearest(torch.cat([torch.ones(49), torch.tensor([torch.inf])])),
            ),
            "count is 0, expected 1 to 13, the number of words": nearest(torch.ones(50), 0),
            "count is 14, expected 1 to 13, the number of words": nearest(torch.ones(50), 14),
            "words holds 1 different words for 2 vectors": lambda: Embeddings(("a", "a"), torch.zeros(2, 3)),
        },
        TypeError: {
            "words holds 1, expected strings": (
                lambda: ship_vectors().lookup(["the", 1]),
                lambda: read_glove(Path(), ["the", 1]),
            ),
        },
    }
)


def test_unknown_words_are_named_with_the_nearest_known_ones() -> None:
    with pytest.raises(UnknownWordError) as caught:
        ship_vectors().lookup("my shop zzz")
    assert isinstance(caught.value, KeyError)
    assert str(caught.value) == (
        "Embeddings(13 words, dim 50) has no vector for 'shop' (nearest: 'ship'), 'zzz' (nearest: none)"
    )
    with pytest.raises(UnknownWordError, match=r"'I' \(nearest: 'i'\)"):
        ship_vectors()["I"]
    with pytest.raises(UnknownWordError, match=r"'t5' \(nearest: .*\) and 2 more$"):
        ship_vectors().lookup("t1 t2 t3 t4 t5 t6 t7")


def test_unknown_words_survive_the_way_out_of_a_worker_process() -> None:
    with pytest.raises(UnknownWordError) as caught:
        ship_vectors()["shop"]
    for other in (pickle.loads(pickle.dumps(caught.value)), copy.copy(caught.value)):
        assert (type(other), str(other)) == (UnknownWordError, str(caught.value))


def test_near_words_are_looked_for_at_the_head_of_a_large_vocabulary() -> None:
    head = [f"{number}" for number in range(29_999)]
    vectors = Embeddings(("shape", *head, "ship"), torch.zeros(30_001, 1))
    with pytest.raises(UnknownWordError, match=r"\(nearest: 'shape'\)$"):
        vectors["shope"]
    with pytest.raises(UnknownWordError, match=r"\(nearest: none\)$"):
        vectors["chip"]


FILE = """\
the 1 2 3
. . . 4 5 6
at name@domain.com 7 8 9
\x85 -1 -2 -3
5 1e-1 2 3
the 0 0 0
\u00e9t\u00e9\u00a0x 3 2 1
"""


@pytest.fixture
def glove(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.txt"
    path.write_bytes(FILE.encode())
    return path


def test_tokens_may_hold_spaces_and_odd_characters_and_the_first_of_a_repeated_token_wins(glove: Path) -> None:
    vectors = read_glove(glove)
    assert vectors.words == ("the", ". . .", "at name@domain.com", "\x85", "5", "\u00e9t\u00e9\u00a0x")
    assert vectors["the"].tolist() == [1, 2, 3]
    assert vectors["at name@domain.com"].tolist() == [7, 8, 9]


def test_wanted_words_come_in_the_wanted_order_and_once(glove: Path) -> None:
    vectors = read_glove(glove, ["at name@domain.com", "the", "at name@domain.com", ". . ."], dtype=torch.float64)
    assert vectors.words == ("at name@domain.com", "the", ". . .")
    assert vectors.vectors.tolist() == [[7, 8, 9], [1, 2, 3], [4, 5, 6]]
    assert vectors.vectors.dtype == torch.float64
    assert read_glove(glove, "5 THE", dtype=torch.bfloat16).words == ("5", "the")


def test_float64_keeps_the_digits_that_float32_rounds(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a 0.123456789012 1\n")
    assert read_glove(tmp_path / "a.txt", dtype=torch.float64)["a"][0].item() == 0.123456789012


@pytest.mark.parametrize("header", [b"", b"7 3\n"])
@pytest.mark.parametrize("end", [b"\n", b" \n", b"\r\n"])
@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b"\n"])
def test_gzip_a_header_a_byte_order_mark_blank_lines_and_line_ends_are_tolerated(
    tmp_path: Path, before: bytes, header: bytes, end: bytes
) -> None:
    path = tmp_path / "tiny.txt.GZ"
    path.write_bytes(gzip.compress(before + (header + FILE.encode() + b"\n\n").replace(b"\n", end)))
    assert read_glove(path).words == ("the", ". . .", "at name@domain.com", "\x85", "5", "\u00e9t\u00e9\u00a0x")
    assert read_glove(path, ["the", ". . ."]).vectors.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_a_zip_is_read_in_place_by_dim_or_member(tmp_path: Path) -> None:
    path = tmp_path / "glove.6B.ZIP"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("glove.2d.dir/", "__MACOSX/._glove.6B.2d.txt"):
            archive.writestr(name, "")
        archive.writestr("glove.6B.2d.txt", "a 1 2\n")
        archive.writestr("glove.6B.3d.txt", "a 1 2 3\nb 1 2\n")
    assert read_glove(path, dim=2)["a"].tolist() == [1, 2]
    assert read_glove(path, ["a"], member="glove.6B.2d.txt")["a"].tolist() == [1, 2]
    with pytest.raises(ValueError, match=r"line 2 of glove\.6B\.3d\.txt in .*glove\.6B\.ZIP is malformed: 2 numbers"):
        read_glove(path, dim=3)
    for options, chosen in [
        ({}, "dim=None, member=None"),
        ({"dim": 5}, "dim=5, member=None"),
        ({"member": "x"}, "dim=None, member='x'"),
    ]:
        text = f"holds glove.6B.2d.txt, glove.6B.3d.txt: choose one by dim or member, not by {chosen}"
        with pytest.raises(ValueError, match=re.escape(text)):
            read_glove(path, **options)


def test_a_zip_without_files_says_so(tmp_path: Path) -> None:
    zipfile.ZipFile(tmp_path / "empty.zip", "w").close()
    with pytest.raises(ValueError, match=r"empty\.zip holds no files$"):
        read_glove(tmp_path / "empty.zip")


@pytest.mark.parametrize(
    ("text", "options", "cause"),
    [
        ("a 1 2 3\nb 1 2\n", {}, "line 2 of .* is malformed: 2 numbers after the token, expected 3 as in line 1"),
        ("\na 1 2\nb 1 2 3\n", {}, r"line 3 of .*: 3 numbers .* 2 as in line 2 \(if that one is wrong, pass dim\)$"),
        ("a 1 2\nb 1 2 3\n", {"dim": 3}, "line 1 of .* is malformed: 2 numbers after the token, expected 3$"),
        ("a 1 2\nb 1 1_0\n", {}, "line 2 of .* is malformed: numbers must be finite and hold no underscore"),
        ("a_b 1 2\nb 1 nan\n", {}, "line 2 of .* is malformed: numbers must be finite and hold no underscore"),
        ("a -inf 2\n", {}, "line 1 of .* is malformed: numbers must be finite and hold no underscore"),
        ("a 1\n", {"member": "b"}, r"member is 'b', but .*bad\.txt is no zip: leave it out"),
        (
            "a 1\n",
            {"dtype": torch.long},
            r"dtype is torch.int64, expected one of floating point, such as torch.float32",
        ),
        ("a 1 2 3\nb 1 x 3\n", {}, "line 2 of .* is malformed: could not convert string to float: b'x'"),
        ("a 1 2 3\nb 1 2 3 4\n", {}, "line 2 of .* is malformed: 4 numbers after the token, expected 3"),
        ("a 1 2 3\n\nb 1 2\n", {}, "line 3 of .* is malformed: 2 numbers after the token, expected 3"),
        ("a 1 2 3\n", {"dim": 2, "words": ["a"]}, "line 1 of .* is malformed: 3 numbers after the token, expected 2"),
        ("a\n", {}, "line 1 of .* is malformed: 0 numbers after the token, expected some$"),
        ("9 3\na 1 2\n", {}, "line 2 of .* is malformed: 2 numbers after the token, expected 3"),
        ("9 3\na 1 2 3\n", {"dim": 2}, "line 1 of .* announces 3 numbers per vector, but dim is 2"),
        ("a 1 2\n\udcff 1 2\n", {}, "line 2 of .* is malformed: 'utf-8' codec can't decode byte 0xff"),
        ("", {}, "holds no vectors"),
        ("a 1\n", {"words": []}, "words is empty: name at least one, or pass None to read all"),
    ],
)
def test_a_malformed_line_is_named_by_number_and_cause(
    tmp_path: Path, text: str, options: dict[str, Any], cause: str
) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=cause):
        read_glove(path, **options)


def test_wanted_words_that_the_file_lacks_are_named_with_near_ones(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ship 1 2\ncrew 3 4\n")
    with pytest.raises(UnknownWordError, match=r"a.txt has no vector for 'chip' \(nearest: 'ship'\)$"):
        read_glove(tmp_path / "a.txt", ["crew", "chip"])


def test_lines_of_other_words_are_not_parsed_and_none_after_the_last_word_found(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("ship 1 2\nother x\ncrew 3 4\n")
    assert read_glove(path, ["crew", "ship"]).vectors.tolist() == [[3, 4], [1, 2]]
    path.write_text("ship 1 2\ncrew 3 4\ncrew x\n")
    assert read_glove(path, ["crew", "ship"]).vectors.tolist() == [[3, 4], [1, 2]]


def test_reading_a_few_words_of_a_big_file_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "big.txt"
    with path.open("w") as file:
        file.writelines(f"word{i} {' '.join(['0.123456'] * 50)}\n" for i in range(20_000))
    read_glove(path, ["word1"])
    tracemalloc.start()
    try:
        assert read_glove(path, ["word19999", "word3"]).words == ("word19999", "word3")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 9e6
    assert peak < 2e5
