"""A run tries a third of the cases that are drawn, others when the sources change, and those whose file has changed."""

import pytest

from . import drawn

NAMES = [f"test_it[{number}]" for number in range(300)]


def test_a_third_is_drawn_and_every_case_by_some_sources() -> None:
    draws = [{name for name in NAMES if drawn.is_drawn(name, str(digest))} for digest in range(30)]
    assert all(0.2 < len(draw) / len(NAMES) < 0.45 for draw in draws)
    assert set().union(*draws) == {*NAMES}


@pytest.mark.parametrize("new", [frozenset({"docs/assets/site.css"}), frozenset[str](), None])
def test_what_changed_is_tried_and_all_where_nobody_knows(
    monkeypatch: pytest.MonkeyPatch, new: frozenset[str] | None
) -> None:
    monkeypatch.setattr(drawn, "ALL", False)
    monkeypatch.setattr(drawn, "changed", lambda: new)
    for files in (["docs/page.py", "docs/assets"], ["docs/assets/site.css"], ["docs/page.py"]):
        tried = sum(drawn.is_tried(name, *files) for name in NAMES)
        if new is None or (new and files != ["docs/page.py"]):
            assert tried == len(NAMES)
        else:
            assert 0.2 < tried / len(NAMES) < 0.45
    monkeypatch.setattr(drawn, "ALL", True)
    assert all(drawn.is_tried(name, "docs/page.py") for name in NAMES)
