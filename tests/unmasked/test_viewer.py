"""`unmasked.show` gives a table that any reader has, data that a browser reads, and one file."""

import base64
import json
import os
import re
import struct
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest
import torch

import unmasked
from unmasked import masks, show
from unmasked.plot import Viewer

from ..refusals import refused

WEIGHTS = torch.tensor([[1.0, 0.0], [0.25, 0.75]])


def data(viewer: Viewer) -> dict[str, object]:
    match = re.search(r'data-show="([^"]*)"', viewer._repr_html_())
    assert match
    return dict(json.loads(unescape(match[1])))


def numbers(viewer: Viewer) -> torch.Tensor:
    content = data(viewer)
    read = base64.b64decode(str(content["weights"]))
    return torch.tensor(struct.unpack(f"<{len(read) // 4}f", read)).reshape(content["shape"])


def cells(viewer: Viewer) -> list[str]:
    return re.findall(r"<td>([^<]+)</td>", viewer._repr_html_())


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 5), (4, 2, 3, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_every_number_reaches_the_browser_whatever_its_shape_and_type(shape: tuple[int, ...], dtype: torch.dtype):
    torch.manual_seed(0)
    weights = torch.randn(shape).softmax(-1).to(dtype).requires_grad_()
    got = numbers(show(weights))
    assert got.shape == (1,) * (4 - len(shape)) + shape
    assert torch.equal(got.reshape(shape), weights.detach().float())


def test_numbers_that_are_none_and_infinite_ones_reach_it_too():
    odd = torch.tensor([[torch.nan, torch.inf, -torch.inf, 0.0, -1.0]])
    assert numbers(show(odd)).flatten().tolist()[1:] == [torch.inf, -torch.inf, 0.0, -1.0]
    assert numbers(show(odd)).flatten()[0].isnan()
    assert cells(show(odd)) == ["NaN", "∞", "−∞", "0", "−1.00"]


def test_whole_numbers_and_masks_are_shown_as_they_are():
    assert cells(show(masks.causal(2))) == ["1.00", "0", "1.00", "1.00"]
    assert cells(show(torch.tensor([[2, 0]]))) == ["2.00", "0"]


def test_the_table_says_what_rows_and_columns_are_and_what_a_zero_is():
    html = show(WEIGHTS, queries=["my", "ship"], title="weights of one head")._repr_html_()
    assert ">weights of one head (2, 2): rows are queries, columns are keys; 0 is exactly zero, as blocked" in html
    assert re.findall(r'<th scope="row">([^<]+)<', html) == ["my", "ship"]
    assert re.findall(r'<th scope="col">([^<]+)<', html) == ["my", "ship"]
    assert cells(show(WEIGHTS)) == ["1.00", "0", "0.25", "0.75"]
    assert "zero" not in show(torch.ones(1, 1))._repr_html_().split("<script>")[0]


def test_a_large_table_is_cut_and_says_so():
    viewer = show(torch.arange(2 * 3 * 30 * 40).reshape(2, 3, 30, 40))
    assert len(cells(viewer)) == 24 * 16
    assert cells(viewer)[16] == "40.00"
    caption = "rows are queries, columns are keys; item 0, head 0; the first 24 of 30 rows and 16 of 40 columns"
    assert caption in viewer._repr_html_()


def test_names_are_text_wherever_they_stand(tmp_path: Path):
    name = '</script><script>alert("&")</script>'
    viewer = show(torch.ones(1, 1), queries=[name], title=name)
    assert data(viewer)["queries"] == data(viewer)["keys"] == [name]
    for html in (viewer._repr_html_(), viewer.save(tmp_path / "page.html").read_text(encoding="utf-8")):
        assert "alert(" in html
        assert "<script>alert" not in html
        assert html.count("<script>") == html.count("</script>") == 1


def test_keys_are_called_as_queries_only_where_the_matrices_are_square():
    assert data(show(torch.ones(2, 2), queries=["a", "b"]))["keys"] == ["a", "b"]
    assert data(show(torch.ones(2, 3), queries=["a", "b"]))["keys"] == ["0", "1", "2"]
    assert data(show(torch.ones(2, 2), keys=["a", "b"]))["queries"] == ["0", "1"]


def test_the_same_weights_give_the_same_html_and_others_another_mark():
    one, again, other = (show(torch.full((2, 2), size))._repr_html_() for size in (0.5, 0.5, 0.25))
    assert one == again
    assert len(set(re.findall(r'data-mark="(\w+)"', one + other))) == 2
    assert "MARK" not in one


def test_it_prints_what_it_is():
    assert repr(show(torch.ones(2, 4, 3, 5))) == (
        "weights: 2 items, 4 heads, 3 queries, 5 keys; a notebook shows them live, and .save('weights.html') writes a "
        "page"
    )


def shown(weights: object, **names: list[str]) -> Callable[[], object]:
    return lambda: show(weights, **names)


ONE_LAYER = "pass one layer's tensor, (heads, queries, keys). nn.MultiheadAttention returns it with need_weights=True"
AXES = "expected (queries, keys), (heads, queries, keys) or (batch, heads, queries, keys)"
UP_TO = "a browser is shown up to 524,288 of them, and 2,048 queries or keys: cut out a part, as weights[..., :128, "
test_what_cannot_be_shown_is_refused_with_the_remedy = refused(
    {
        TypeError: {
            f"weights is None; {ONE_LAYER} and average_attn_weights=False": shown(None),
            f"weights is a tuple; {ONE_LAYER} and average_attn_weights=False": shown((WEIGHTS, WEIGHTS)),
            "weights is torch.complex64; pass real numbers, as weights.abs() holds them": shown(WEIGHTS + 1j),
        },
        ValueError: {
            f"weights has shape (2,), {AXES}": shown(WEIGHTS[0]),
            f"weights has shape (1, 1, 1, 2, 2), {AXES}": shown(WEIGHTS[None, None, None]),
            "weights has shape (2, 0), which holds no numbers: pass at least one query and one key": shown(
                torch.ones(2, 0)
            ),
            f"weights has shape (12, 512, 512), 3,145,728 numbers; {UP_TO}:128], or choose some heads": shown(
                torch.ones(12, 512, 512)
            ),
            f"weights has shape (1, 2049), 2,049 numbers; {UP_TO}:128], or choose some heads": shown(
                torch.ones(1, 2049)
            ),
            "queries has 1 names, but weights is (2, 2), with 2 queries: pass 2": shown(WEIGHTS, queries=["a"]),
            "keys has 2 names, but weights is (2, 3), with 3 keys: pass 3": shown(
                torch.ones(2, 3), queries=["a", "b"], keys=["a", "b"]
            ),
        },
    }
)


def test_as_much_as_is_offered_is_shown():
    assert numbers(show(torch.ones(2, 512, 512))).shape == (1, 2, 512, 512)
    assert numbers(show(torch.ones(256, 2048))).shape == (1, 1, 256, 2048)


def test_a_page_is_one_file_that_may_ask_for_nothing(tmp_path: Path):
    path = show(WEIGHTS, title="a & b").save(tmp_path / "weights.html")
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>\n<html lang=")
    assert "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'" in text
    assert "<title>a &amp; b</title>" in text
    assert not re.search(r"https?:|//\w+\.", text)
    assert [each.name for each in tmp_path.iterdir()] == ["weights.html"]


def test_a_page_that_is_there_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "weights.HTM"
    show(WEIGHTS, title="first").save(path)
    show(WEIGHTS, title="second").save(str(path))
    assert "<h1>second</h1>" in path.read_text(encoding="utf-8")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space left"):
        show(WEIGHTS, title="third").save(path)
    assert "<h1>second</h1>" in path.read_text(encoding="utf-8")
    assert os.listdir(tmp_path) == ["weights.HTM"]


def test_a_file_that_is_no_page_is_never_overwritten(tmp_path: Path):
    model = tmp_path / "weights.pt"
    model.write_bytes(b"a model")
    text = f"path is {str(model)!r}; a page ends with .html: pass {str(tmp_path / 'weights.html')!r}"
    with pytest.raises(ValueError, match=re.escape(text)):
        show(WEIGHTS).save(model)
    assert model.read_bytes() == b"a model"


def test_a_folder_that_is_missing_or_in_the_way_is_named(tmp_path: Path):
    path = tmp_path / "none" / "weights.html"
    text = (
        f"path is {str(path)!r}, but there is no folder {str(path.parent)!r}: make it with Path({str(path.parent)!r})"
    )
    with pytest.raises(FileNotFoundError, match=re.escape(text)):
        show(WEIGHTS).save(path)
    path.mkdir(parents=True)
    with pytest.raises(IsADirectoryError, match=re.escape(f"path is {str(path)!r}, which is a folder: pass a file")):
        show(WEIGHTS).save(path)


def test_it_is_a_name_of_the_package():
    assert unmasked.show is show
