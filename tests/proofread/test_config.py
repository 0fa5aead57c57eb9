from dataclasses import replace
from pathlib import Path

import pytest

from proofread.settings import Settings, SettingsError


def load(root: Path, text: str) -> Settings:
    (root / "pyproject.toml").write_text(text)
    return Settings.load(root)


def test_a_project_that_sets_nothing_has_the_defaults(tmp_path: Path) -> None:
    assert Settings.load(tmp_path) == Settings()
    assert load(tmp_path, "[project]\nname = 'x'\n") == Settings()


def test_each_setting_is_read(tmp_path: Path) -> None:
    text = """
    [tool.proofread]
    timeout = 0.5
    memory = "1.5 GiB"
    output = "3 kB"
    workers = 2
    cache = "kept"
    pages = ["docs", "README.md"]
    packages = ["mine", "yours"]
    cite_equations = true
    data = "4 kB"
    rich = "20 MB"
    docstrings = "equations"
    start = "spawn"
    """
    kept, packages = Path("kept"), ("mine", "yours")
    expected = Settings(0.5, 3 * 2**29, 3000, 2, kept, packages, True, 4000, ("docs", "README.md"))
    expected = replace(expected, rich=20_000_000, docstrings="equations", start="spawn")
    assert load(tmp_path, text) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("start = 'thread'", 'start (\'thread\') must be "fork" or "spawn": set start = "spawn"'),
        ("timeuot = 3", "has no setting timeuot; there are timeout, memory, output, workers, cache, packages, cite_"),
        ("timeout = 0", "timeout (0) must be a positive number of seconds, such as 300"),
        ("timeout = true", "timeout (True) must be a positive number of seconds"),
        ("timeout = nan", "timeout (nan) must be a positive number of seconds"),
        ("memory = 4", 'memory (4) must be a size with its unit (B, kB, MB, GB, KiB, MiB, GiB), such as "4 GiB"'),
        ("memory = '0 GB'", "memory ('0 GB') must be more than nothing"),
        ("output = 'much'", "output ('much') must be a size with its unit"),
        ("data = 100", "data (100) must be a size with its unit"),
        ("workers = 0", "workers (0) must be a whole number of at least 1"),
        ("cache = ''", "cache ('') must be the name of a folder"),
        ("pages = 'docs'", "pages ('docs') must be a list of files and folders, such as [\"docs\"]"),
        ("packages = 'mine'", "packages ('mine') must be a list of names of packages, such as [\"mypackage\"]"),
        ("cite_equations = 'yes'", "cite_equations ('yes') must be true or false"),
        ("docstrings = 'none'", 'docstrings (\'none\') must be one of "off", "equations" and "check"'),
        ("docstrings = []", "docstrings ([]) must be one of"),
        (
            "docstrings = 'off'\ncite_equations = true",
            "docstrings ('off') reads no citations, which cite_equations (True)",
        ),
        ("packages = ['my-package']", "packages (['my-package']) must be a list of names of packages"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_named_with_its_file_and_remedy(
    tmp_path: Path, line: str, message: str
) -> None:
    with pytest.raises(SettingsError) as raised:
        load(tmp_path, f"[tool.proofread]\n{line}\n")
    assert str(raised.value).startswith(f"{tmp_path / 'pyproject.toml'}: [tool.proofread] ")
    assert message in str(raised.value)


def test_settings_that_are_no_table_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"pyproject\.toml: tool\.proofread \(3\) must be a table"):
        load(tmp_path, "[tool]\nproofread = 3\n")
    assert load(tmp_path, "tool = 3\n") == Settings()


def test_a_file_that_is_not_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"pyproject\.toml is not TOML: .*line 1"):
        load(tmp_path, "[tool.proofread\n")
    (tmp_path / "pyproject.toml").write_bytes(b"[tool.proofread]\n# caf\xe9\n")
    with pytest.raises(SettingsError) as raised:
        Settings.load(tmp_path)
    told = "is not TOML: byte 0xe9 on line 2 is not UTF-8; save it as UTF-8"
    assert str(raised.value) == f"{tmp_path / 'pyproject.toml'} {told}"
