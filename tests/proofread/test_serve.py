"""The plugin under `mkdocs serve`: edits, pages that come and go, errors that are mended."""

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from mkdocs.livereload import LiveReloadServer

from proofread.publish.serving import Serving

CONFIG = """
site_name: Site
theme: {name: mkdocs}
strict: true
watch: [package]
plugins:
  - mkdocs-jupyter:
      cache: false
  - proofread
"""
PAGE = """\
# %% [markdown]
# # Title
#
# It gives 3<!--= package.number -->.

# %%
import package

package.number
"""
_PATIENCE = 120.0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


class Server:
    """`mkdocs serve`, whose next line is waited for, and no clock."""

    def __init__(self, root: Path):
        self.root = root
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-m", "mkdocs", "serve", "--dev-addr", f"127.0.0.1:{_free_port()}"],
            cwd=root,
            env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._guard = threading.Timer(_PATIENCE, self._process.kill)  # its pipe then ends, and with it every wait
        self._guard.start()
        self.address = self.until(r"Serving on (http://\S+)")[1]

    def until(self, said: str) -> re.Match[str]:
        """Wait until it says something."""
        assert self._process.stdout is not None
        heard = []
        for line in self._process.stdout:
            heard.append(line)
            if found := re.search(said, line):
                self.heard = "".join(heard)
                return found
        pytest.fail(f"it never said {said}, but:\n{''.join(heard)}")

    def edit(self, name: str, text: str | None, said: str = "Reloading browsers") -> None:
        """Write a file, or remove it, and wait for what comes of it."""
        path = self.root / name
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
        self.until(said)

    def get(self, page: str) -> str:
        with urlopen(self.address + page) as answer:
            return re.sub("</?p-f>", "", answer.read().decode())

    def close(self) -> None:
        self._guard.cancel()
        self._process.terminate()
        self._process.communicate()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "docs").mkdir()
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text("number = 3\n")
    (tmp_path / "mkdocs.yml").write_text(CONFIG)
    (tmp_path / "docs/index.md").write_text("# Home\n")
    (tmp_path / "docs/page.py").write_text(PAGE)
    server = Server(tmp_path)
    yield server
    server.close()


def test_edits_show_errors_are_told_and_mended_and_pages_come_and_go(server: Server) -> None:
    assert "It gives 3." in server.get("page/")

    server.edit("docs/page.py", PAGE.replace("Title", "Another title"))
    assert "Another title" in server.get("page/")
    assert "2 pages checked; 0 of them run" in server.heard

    server.edit("docs/page.py", PAGE.replace("gives 3", "gives 4"))
    told = "docs/page.py:4: it says 4, but package.number gives 3"
    assert told in server.heard
    assert f"<pre>{told}</pre>" in server.get("page/")

    server.edit("docs/page.py", PAGE)
    assert "Not to be published" not in server.get("page/")

    server.edit("package/__init__.py", "number = 5\n")
    assert "docs/page.py:4: it says 3, but package.number gives 5" in server.get("page/")
    server.edit("docs/page.py", PAGE.replace("gives 3", "gives 5"))
    assert "<pre>5</pre>" in server.get("page/")

    server.edit("docs/page.py", "# %%\n1 / 0\n")
    assert "cell 1 failed with ZeroDivisionError" in server.get("page/")
    server.edit("docs/page.py", PAGE.replace("gives 3", "gives 5"))

    server.edit("docs/new.py", "# %% [markdown]\n# # New\n\n# %%\n6 * 7\n")
    assert "<pre>42</pre>" in server.get("new/")
    assert "42" not in server.get("new/cell-2.py")
    server.edit("docs/new.py", None)
    with pytest.raises(HTTPError, match="404") as missing:
        server.get("new/")
    missing.value.close()
    assert "<pre>5</pre>" in server.get("page/")


def test_an_address_that_is_taken_is_told_before_anything_is_built(server: Server) -> None:
    port = int(server.address.split(":")[-1].strip("/"))
    command = [sys.executable, "-m", "mkdocs", "serve", "--dev-addr", f"127.0.0.1:{port}"]
    ended = subprocess.run(command, cwd=server.root, capture_output=True, text=True, timeout=_PATIENCE)
    assert ended.returncode == 1
    told = ended.stderr.splitlines()
    (said,) = (line for line in told if line.startswith("ERROR"))
    assert f"the site cannot be served at 127.0.0.1:{port}: Address already in use; end what serves there, or" in said
    assert said.endswith(f" take another address, as in mkdocs serve --dev-addr 127.0.0.1:{port + 1}")
    assert not [line for line in told if "checked" in line or "Traceback" in line]


def test_the_page_that_is_looked_at_is_shown_before_the_others_have_run(server: Server) -> None:
    server.edit("docs/other.py", PAGE)
    assert "It gives 3." in server.get("other/")
    assert "It gives 3." in server.get("page/")  # which is looked at last

    server.edit("package/__init__.py", "number = 5\n")
    assert "docs/page.py: ran in" in server.heard
    assert "docs/page.py is shown; behind it the site is built" in server.heard
    assert "3 pages checked; 0 of them run" in server.heard
    assert "docs/page.py:4: it says 3, but package.number gives 5" in server.get("page/")
    server.until("Reloading browsers")
    assert "3 pages checked; 0 of them run" in server.heard
    assert "docs/other.py:4: it says 3, but package.number gives 5" in server.get("other/")


def test_a_page_that_waits_says_why_and_one_that_fails_is_told_of(server: Server) -> None:
    wait = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
    (server.root / "go").touch()
    server.edit("docs/other.py", f"{PAGE}\n# %%\n{wait}")
    server.get("page/")

    (server.root / "go").unlink()
    server.edit("package/__init__.py", "number = 4\n")
    other = server.get("other/")
    assert "It gives 3." in other
    assert "This page runs again, for package/__init__.py changed." in other
    (server.root / "go").touch()
    server.until("Reloading browsers")
    assert "docs/other.py:4: it says 3, but package.number gives 4" in server.get("other/")

    server.get("page/")
    server.edit("package/__init__.py", "number = 1 / 0\n")
    server.until("Reloading browsers")
    assert "cell 2 failed with ZeroDivisionError" in server.get("other/")


def test_the_page_that_is_looked_at_is_shown_while_the_site_is_still_being_built(server: Server) -> None:
    hook = "from pathlib import Path\ndef on_page_markdown(markdown, page, config, files):\n"
    hook += "    if page.is_homepage and Path('held').exists():\n        Path('held').read_text()\n"
    (server.root / "hook.py").write_text(hook)
    server.edit("mkdocs.yml", CONFIG + "hooks: [hook.py]\n")
    assert "It gives 3." in server.get("page/")
    os.mkfifo(server.root / "held")  # reading it waits for somebody who writes

    server.edit(
        "docs/page.py", PAGE.replace("number\n", "number + 1\n"), "page.py is shown; behind it the site is built"
    )
    shown = server.get("page/")
    assert "<pre>4</pre>" in shown
    assert "<pre>" not in server.get("")  # the site as it was
    (server.root / "held").write_text("")
    server.until("Reloading browsers")
    assert _without_script(server.get("page/")) == _without_script(shown), "the browser would load it once more"

    (server.root / "held").unlink()
    server.edit("docs/index.md", "# Another home\n")
    assert "Another home" in server.get("")
    assert "<pre>4</pre>" in server.get("page/")


def _without_script(html: str) -> str:
    return html.rpartition("<script>")[0]  # it holds the time


def test_a_build_is_overtaken_only_behind_a_page_that_shows_the_change(tmp_path: Path) -> None:
    """A page that cannot be built alone would never be shown while somebody goes on typing."""
    (tmp_path / "page.html").write_text("")
    serving, shown, built = Serving(), ["page.html", None], []

    def build() -> None:
        server._want_rebuild = True
        serving.into(str(tmp_path))
        serving.go_on()
        built.append("whole")

    server = LiveReloadServer(build, "localhost", 0, str(tmp_path))
    serving.watch(server, tmp_path, lambda: shown.pop(0))
    for _ in range(2):
        server.builder()
    assert built == ["whole"]
    server.server_close()
