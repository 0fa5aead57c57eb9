from pathlib import Path

import pytest

from proofread.pages.page import Page, PageError, find_pages, read

from .conftest import Project


def page(tmp_path: Path, text: str, name: str = "page.py") -> Page:
    return read(Project(tmp_path).write(name, text), tmp_path)


def test_cells_know_the_line_they_begin_on(tmp_path: Path) -> None:
    script = page(
        tmp_path,
        '''
        # ---
        # jupyter: {}
        # ---

        # %% [markdown]
        # # Title
        #
        # text

        # %% tags=["raises-exception", "hide-input"]

        #| alt: one line
        x = 1

        # %% [markdown]
        """
        quoted
        """

        # %%
        y = 2


        z = 3
        ''',
    )
    assert [(c.line, c.is_code, c.source.split("\n")[0]) for c in script.cells] == [
        (6, False, "# Title"),
        (12, True, "#| alt: one line"),
        (17, False, "quoted"),
        (21, True, "y = 2"),
    ]
    assert script.cells[1].tags == ("raises-exception", "hide-input")
    assert script.path == "page.py"


def test_code_before_the_first_marker_is_a_cell(tmp_path: Path) -> None:
    assert [(c.line, c.source) for c in page(tmp_path, "import os\n\n# %%\nx = 1\n").cells] == [
        (1, "import os"),
        (4, "x = 1"),
    ]


def test_an_empty_cell_does_not_shift_the_next(tmp_path: Path) -> None:
    assert [(c.line, c.source) for c in page(tmp_path, "# %%\n\n# %%\nx = 1\n").cells][-1] == (4, "x = 1")


def test_options_stand_before_the_code_and_are_not_shown(tmp_path: Path) -> None:
    (cell,) = page(
        tmp_path,
        """
        # %%
        #| alt: a first line
        #|   and a second
        #| timeout: 300
        x = 1
        #| alt: not an option
        """,
    ).cells
    assert [(o.key, o.value, o.line) for o in cell.options] == [
        ("alt", "a first line\nand a second", 2),
        ("timeout", "300", 4),
    ]
    assert cell.option("timeout") == "300"
    assert cell.shown == "x = 1\n#| alt: not an option"


def test_a_markdown_page_runs_its_python_fences(tmp_path: Path) -> None:
    markdown = page(
        tmp_path,
        """
        # Title

        ```python title="a.py"
        x = 1
        ```

        ```py
        not run
        ```

        ````md
        ```python
        not run
        ```
        ````
        text
        """,
        name="page.md",
    )
    assert [(c.line, c.is_code) for c in markdown.cells] == [(1, False), (4, True), (5, False)]
    assert markdown.code == "x = 1"
    assert "".join(c.fence or c.source for c in markdown.cells) == (tmp_path / "page.md").read_text()


def test_a_page_that_is_quoted_in_a_cell_is_no_cell(tmp_path: Path) -> None:
    quoted = '"""\n# %%\nx = 1\n\n# %% [markdown]\n# Prose.\n"""'
    code, prose = page(tmp_path, f"# %%\ntext = {quoted}\n\n# %% [markdown]\n# It's prose.\n").cells
    assert (code.line, code.is_code, code.source.count("# %%")) == (2, True, 2)
    assert (prose.line, prose.source) == (11, "It's prose.")


def test_a_cell_begins_where_jupyter_has_it_begin(tmp_path: Path) -> None:
    script = page(
        tmp_path,
        """
        #%%
        x = 1
        # %%%
        #   %% x = 2
        x = 2

        # %% [markdown]
        # ```mermaid
        # %%
        # ```
        #%% [raw]
        # nothing

        # %%
        for i in range(3):
            # %%
            print(i)
        """,
    )
    assert [(c.line, c.is_code, c.source.split("\n")[0]) for c in script.cells] == [
        (2, True, "x = 1"),
        (5, True, "x = 2"),
        (8, False, "```mermaid"),
        (15, True, "for i in range(3):"),
        (17, True, "    print(i)"),
    ]


def test_a_byte_order_mark_is_no_part_of_a_page(tmp_path: Path) -> None:
    (cell,) = page(tmp_path, "\ufeff# %%\nx = 1\n").cells
    assert (cell.line, cell.source) == (2, "x = 1")


@pytest.mark.parametrize("character", ["\f", "\v", "\x85", "\u2028", "\r"])
def test_a_character_that_ends_a_line_only_for_some_is_named(tmp_path: Path, character: str) -> None:
    (tmp_path / "page.md").write_bytes(f"one\r\ntwo{character}three\n".encode())
    with pytest.raises(PageError) as raised:
        read(tmp_path / "page.md", tmp_path)
    message = f"page.md:2: the character {character!a} ends a line for some programs and not for others; take it out"
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("page.py", b"# %%\nx = 3\n\n# %% [markdown]\n# It\0is.\n", "5: the character '\\x00' is no text; take it out"),
        ("page.md", b"# Title\n\nIt\0is.\n", "3: the character '\\x00' is no text; take it out"),
        ("page.py", b"\xef\xbb\xbf# %%\rx = 3\r", "1: the character '\\r' ends a line for some programs"),
        ("page.py", b"\xef\xbb\xbf# %%\r\nx = 3\r\n", None),
        ("page.py", b"# %%\nx = 3\n", None),
    ],
)
def test_bytes_that_are_no_text_are_told_with_their_line(
    tmp_path: Path, name: str, data: bytes, told: str | None
) -> None:
    (tmp_path / name).write_bytes(data)
    assert find_pages([tmp_path]) == [tmp_path / name]
    if told is None:
        assert [cell.source for cell in read(tmp_path / name, tmp_path).cells] == ["x = 3"]
        return
    with pytest.raises(PageError) as raised:
        read(tmp_path / name, tmp_path)
    assert str(raised.value).startswith(f"{name}:{told}")
