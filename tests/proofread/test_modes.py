"""A project that adopts proofread page by page: off, run, or check, by patterns or by a page itself."""

import json
import os
from pathlib import Path

import pytest

from proofread.checks.check import check
from proofread.checks.checked import Report
from proofread.pages.page import find_pages
from proofread.settings import Settings, SettingsError

from .conftest import Project

pytest_plugins = ["pytester"]

LOG = "# Changelog\n\nIn 1.2 it is 40% faster, by $\\nonsense{$.\n\n```python\nimport nothing_of_that_name\n```\n"
TOUR = """\
# Tour

It takes 5 steps, not 9<!--= steps -->, and {{ site_name }} has {{ steps }}, $\\nonsense{$, $$a = b$$

```python
steps = 4
print(steps)
```

They are {{ steps }}, as [the log](log.md) says.
"""
BOOK = "# Book\n\nThey are 3<!--= row -->.\n\n```python\nrows = 3\n```\n\nNo, 3<!--= rows -->.\n"


class Adopting(Project):
    def page(self, name: str, text: str) -> None:
        self.write(f"docs/{name}", text)

    def modes(self, **modes: str) -> None:
        table = "".join(f"{json.dumps(pattern)} = {json.dumps(mode)}\n" for pattern, mode in modes.items())
        self.write("pyproject.toml", f'[tool.proofread]\npages = ["docs"]\n[tool.proofread.modes]\n{table}')

    def checked(self, **options: object) -> Report:
        return check(find_pages([self.root / "docs"]), root=self.root, **options)


@pytest.fixture
def project(tmp_path: Path) -> Adopting:
    project = Adopting(tmp_path)
    project.page("log.md", LOG)
    project.page("tours/one.md", TOUR)
    project.page("book.md", BOOK)
    return project


def modes(report: Report) -> dict[str, str]:
    return {checked.page.path.removeprefix("docs/"): checked.mode for checked in report.pages}


def test_a_page_is_off_run_or_checked_and_the_summary_counts_them(project: Adopting) -> None:
    project.modes(**{"docs/log.md": "off", "docs/tours": "run"})
    report = project.checked()
    assert modes(report) == {"book.md": "check", "log.md": "off", "tours/one.md": "run"}
    (finding,) = report.findings
    assert str(finding).startswith("docs/book.md:3: 3 cannot be checked: row fails with NameError")
    assert str(report).splitlines()[0] == (
        "1 page checked, 1 only run, 1 off; 2 of them run now; cells: 2 ran; "
        "values: 1 held, 1 failed, 2 not looked at; formulas: 1 not looked at; "
        "0 of 1 sentence with none of these; 1 finding"
    )


def test_a_page_that_is_only_run_shows_its_figures_and_leaves_what_is_not_its_own(project: Adopting) -> None:
    project.modes(**{"docs/log.md": "off", "docs/tours": "run"})
    (tour,) = (checked for checked in project.checked().pages if checked.mode == "run")
    published = [text.published for text in tour.texts]
    assert "{{ site_name }} has 4, " in published[0]
    assert "They are 4," in published[1]
    assert tour.code[1].outputs[0]["text"] == "4\n"
    assert [subject.name for subject in tour.subjects] == ["6 cell 2"]
    assert not tour.snippets


@pytest.mark.parametrize("failing", ["1 / 0", "import os; os._exit(3)"])
def test_a_page_that_is_only_run_must_come_to_its_end(project: Adopting, failing: str) -> None:
    project.modes(**{"docs/log.md": "off", "docs/tours": "run"})
    project.page("tours/one.md", TOUR.replace("print(steps)", failing))
    found = [finding for finding in project.checked().findings if "tours" in finding.path]
    assert [finding.kind for finding in found] == ["stopped" if "exit" in failing else "cell"]


def test_the_last_pattern_wins_and_a_page_wins_over_all(project: Adopting) -> None:
    project.modes(**{"docs/*": "off", "docs/tours/": "check", "docs/tours/*.md": "run"})
    assert modes(project.checked()) == {"book.md": "off", "log.md": "off", "tours/one.md": "run"}
    project.page("book.md", f"---\ntitle: Book\nproofread: run # for now\n---\n{BOOK}")
    project.page("tours/two.py", '# ---\n# proofread: "off"\n# ---\n\n# %%\n1 / 0\n')
    project.page("tours/three.py", "# %% [markdown]\n# ---\r\n# proofread: off\r\n# ---\n#\n# # Three\n\n# %%\n1 / 0\n")
    scripts = {"tours/two.py": "off", "tours/three.py": "off"}
    assert modes(project.checked()) == {"book.md": "run", "log.md": "off", "tours/one.md": "run"} | scripts


def test_what_is_no_front_matter_says_nothing(project: Adopting) -> None:
    project.modes(**{"docs/*": "off"})
    project.page("book.md", f"{BOOK}\n---\nproofread: run\n---\n")
    project.page("code.py", '# %%\ntext = """\nproofread: run\n"""\n')
    assert set(modes(project.checked()).values()) == {"off"}


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("chekc", "'chekc', which is none of off, run and check"),
        ("off, run", "'off, run', which is none of off, run and check"),
        ("freeze", "'freeze', which is none of off, run and check"),
    ],
)
def test_a_wrong_mode_is_told_with_what_there_is(project: Adopting, said: str, message: str) -> None:
    project.modes(**{"docs/log.md": said})
    with pytest.raises(SettingsError) as error:
        project.checked()
    assert f"gives docs/log.md {message}" in str(error.value)
    project.modes()
    project.page("book.md", f"---\ntitle: Book\nproofread: {said}\n---\n{BOOK}")
    found = [finding for finding in project.checked().findings if finding.path == "docs/book.md"]
    assert [(finding.line, finding.kind) for finding in found] == [(3, "option")]
    assert found[0].message == f"the page calls itself {message}"


def test_a_page_that_calls_itself_twice_is_in_no_mode(project: Adopting) -> None:
    project.modes(**{"docs/log.md": "off", "docs/tours": "off"})
    project.page("book.md", f"---\nproofread: run\nproofread: check\n---\n{BOOK}")
    (finding,) = project.checked().findings
    assert "calls itself 'run, check', which is none" in finding.message


@pytest.mark.parametrize("pattern", ["docs/lgo.md", "log.md", "docs/tours/*.py", "docs/none", "docs/data.json"])
def test_a_pattern_that_matches_no_page_is_refused(project: Adopting, pattern: str) -> None:
    project.page("data.json", "{}")
    project.modes(**{pattern: "off"})
    with pytest.raises(
        SettingsError, match="matches no page; name pages or folders as they are seen from there"
    ) as error:
        project.check("docs/book.md")
    assert f"[tool.proofread] modes names {pattern}," in str(error.value)


@pytest.mark.parametrize("value", ['"off"', "1", '{"docs/log.md" = 1}'])
def test_modes_are_a_table(project: Adopting, value: str) -> None:
    (project.root / "pyproject.toml").write_text(f"[tool.proofread]\nmodes = {value}\n")
    with pytest.raises(SettingsError, match="must be a table of patterns and modes, such as"):
        project.checked()


def test_what_is_off_still_numbers_equations(project: Adopting) -> None:
    project.modes(**{"docs/log.md": "off", "docs/tours": "off"})
    project.page("log.md", f"{LOG}\n$$a = b \\tag{{7.1}}$$\n")
    project.page("book.md", "# Book\n\nSee equations (7.1) and (7.2).\n")
    (finding,) = project.checked(whole=True).findings
    assert "there is no equation (7.2)" in finding.message


def test_a_file_that_is_off_need_be_nothing_that_is_read(project: Adopting) -> None:
    project.modes(**{"docs/tours": "off", "docs/log.md": "off"})
    (project.root / "docs/log.md").write_bytes(b"\xff\xfe \\tag{1}")
    project.page("book.md", "# Book\n")
    assert project.checked(whole=True).findings == []


def test_the_tests_of_a_page_are_those_of_its_mode(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PYTEST_XDIST")]:
        monkeypatch.delenv(name)
    project = Adopting(pytester.path)
    project.page("log.md", LOG)
    project.page("tours/one.md", TOUR)
    project.modes(**{"docs/log.md": "off", "docs/tours": "run"})
    pytester.makeini("[pytest]\nproofread = docs\n")
    told = pytester.runpytest_inprocess("--collect-only", "-q", "docs").outlines
    assert not [line for line in told if "log.md" in line]
    assert [line.split("::")[1] for line in told if "one.md::" in line] == ["6 cell 2", "page"]


def test_a_setting_is_read_for_any_path() -> None:
    settings = Settings(modes={"docs/*": "run", "docs/a.md": "off"})
    assert [settings.mode(path) for path in ("docs/a.md", "docs/b/c.md", "README.md")] == ["off", "run", "check"]


def test_what_held_failed_was_waived_and_was_never_looked_at_is_counted(project: Adopting) -> None:
    project.modes(**{"docs/log.md": "off", "docs/tours": "off"})
    project.page(
        "book.md",
        """\
# Book

```python
def total(a, b):
    return a + b


rows = 3
```

They are 3<!--= rows -->, not 4<!--= rows -->, in 1999<!--~ a year -->, of 12.

$$t = a + b$$
<!-- where: a, b = 2.5, 1.5; t = total(a, b) -->

$$t = a - b$$
<!-- where: a, b = 2.5, 1.5; t = total(a, b) -->

$$O(n)$$
<!-- unchecked: an order -->

$$t = b + a$$

```python
1 / 0
```

It is 3<!--= rows -->, and $t = a$ <!-- where: a = total(1, 2); t = 3 -->.

```python
2
```
""",
    )
    assert str(project.checked()).splitlines()[0] == (
        "1 page checked, 2 off; 1 of them run now; cells: 1 ran, 1 failed, 1 not looked at; "
        "values: 1 held, 1 failed, 1 unproved, 1 waived, 1 not looked at; "
        "formulas: 1 held, 2 failed, 1 waived, 1 not looked at; 0 of 3 sentences with none of these; 5 findings"
    )
