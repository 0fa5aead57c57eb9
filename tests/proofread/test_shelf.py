"""What is kept is served only where all that it was made of is as it was."""

import json
import os
from pathlib import Path

import pytest

from proofread.keep import shelf
from proofread.keep.files import seal, unsealed
from proofread.keep.shelf import Shelf, prune


class Maker:
    """Makes things, and counts them."""

    def __init__(self) -> None:
        self.made = 0
        self.answer = "yes"

    def make(self) -> dict[str, int]:
        self.made += 1
        return {"thing": self.made}

    def ask(self, question: str) -> str:
        return self.answer

    def make_asking(self, oracle) -> list[str]:
        self.made += 1
        return [oracle("is it so?")]


@pytest.fixture
def maker() -> Maker:
    return Maker()


def test_what_was_made_of_the_same_is_made_once(tmp_path, maker):
    for _ in range(2):
        assert Shelf(tmp_path).made("a", {"of": [1, "x"]}, maker.make) == {"thing": 1}


@pytest.mark.parametrize(("name", "of"), [("b", [1]), ("a", [2]), ("a", ["1"]), ("a", [1, None])])
def test_what_was_made_of_something_else_is_not_taken(tmp_path, maker, name, of):
    Shelf(tmp_path).made("a", [1], maker.make)
    assert Shelf(tmp_path).made(name, of, maker.make) == {"thing": 2}


def test_another_version_of_a_library_or_of_the_engine_makes_it_anew(tmp_path, maker, monkeypatch):
    Shelf(tmp_path).made("a", 1, maker.make)
    now = shelf.environment() | shelf.installed(["everything"])
    for changed in ("proofread", "nbconvert", "jupytext", "pygments"):
        assert changed in now
        monkeypatch.setattr(shelf, "installed", lambda _, changed=changed: now | {changed: "another"})
        assert Shelf(tmp_path).made("a", 1, maker.make)["thing"] == maker.made > 1


def test_what_makes_a_page_of_a_run_is_a_part_of_what_it_was_made_of(tmp_path, maker, monkeypatch):
    Shelf(tmp_path).made("a", 1, maker.make)
    asked = []
    monkeypatch.setattr(shelf, "sources", lambda *patterns: asked.extend(patterns) or "another")
    assert Shelf(tmp_path).made("a", 1, maker.make) == {"thing": 2}
    made_of = {path.name for pattern in asked for path in Path(shelf.__file__).parents[1].glob(pattern)}
    assert made_of >= {"render.py", "notebook.py", "page.py", "cells.html.j2"}


def test_it_is_made_anew_once_an_answer_is_another(tmp_path, maker):
    kept = Shelf(tmp_path)
    assert kept.made("a", 1, maker.make_asking, oracle=maker.ask) == ["yes"]
    assert kept.made("a", 1, maker.make_asking, oracle=maker.ask) == ["yes"]
    assert maker.made == 1
    maker.answer = "no"
    assert kept.made("a", 1, maker.make_asking, oracle=maker.ask) == ["no"]
    assert kept.made("a", 1, maker.make_asking, oracle=maker.ask) == ["no"]
    assert maker.made == 2


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"made": {"thing": 7}}', '{"answers": [["x"]], "made": 7}'])
def test_a_damaged_file_is_made_anew(tmp_path, maker, damage):
    Shelf(tmp_path).made("a", 1, maker.make)
    (file,) = tmp_path.rglob("*.json")
    file.write_bytes(damage.encode())
    assert Shelf(tmp_path).made("a", 1, maker.make) == {"thing": 2}
    assert json.loads(unsealed(file))["made"] == {"thing": 2}
    file.write_bytes(seal(damage.encode()))
    assert Shelf(tmp_path).made("a", 1, maker.make) == {"thing": 3}
    file.write_bytes(file.read_bytes().replace(b"3", b"4"))
    assert Shelf(tmp_path).made("a", 1, maker.make) == {"thing": 4}
    assert json.loads(unsealed(file))["made"] == {"thing": 4}


def test_three_versions_of_a_thing_are_kept(tmp_path, maker):
    for version in range(5):
        Shelf(tmp_path).made("a", version, maker.make)
    Shelf(tmp_path).made("another", 0, maker.make)
    assert len(list(tmp_path.rglob("*.json"))) == 4
    assert Shelf(tmp_path).made("a", 4, maker.make) == {"thing": 5}


def test_where_nothing_can_be_kept_things_are_made_all_the_same(tmp_path, maker):
    Path(tmp_path, "made").write_text("no folder")
    assert [Shelf(tmp_path).made("a", 1, maker.make)["thing"] for _ in range(2)] == [1, 2]


def test_what_was_made_is_removed_but_for_the_latest_and_then_all_of_it(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    for version in range(2):
        shelf.made("thing", version, lambda: "made")
        os.utime(
            max((tmp_path / "made").glob("*/*.json"), key=lambda file: file.stat().st_mtime_ns), (version, version)
        )
    size = next((tmp_path / "made").glob("*/*.json")).stat().st_size
    assert prune(tmp_path, every=False) == size
    assert shelf.made("thing", 1, lambda: "anew") == "made"
    assert prune(tmp_path, every=True) == size
    assert shelf.made("thing", 1, lambda: "anew") == "anew"
