"""Under `mkdocs serve`, shows the page first that is looked at; behind it the site is built, and other pages run."""

import logging
import shutil
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.livereload import LiveReloadServer
from mkdocs.structure.files import Files

from .. import _private
from ..runs.cache import Cache
from ..runs.server import run
from ..runs.steps import Task
from ..settings import Settings

_log = logging.getLogger("mkdocs.plugins.proofread")


class Overtaken(BaseException):
    """A file has changed again during a build. MkDocs would report an Exception as an error."""


def demand(host: str, port: int) -> None:
    """Take the address for a moment, before all is built: MkDocs asks for it afterwards.

    Raises:
        PluginError: It cannot be had.
    """
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        message = f"the site cannot be served at {host}:{port}: {str(error.strerror).partition(' (while')[0]}"
        remedy = f"end what serves there, or take another address, as in mkdocs serve --dev-addr 127.0.0.1:{port + 1}"
        raise PluginError(f"{message}; {remedy}") from None


def is_looked_at(config: MkDocsConfig) -> bool:
    """Return whether the site is only looked at, on this machine: its address is that of MkDocs' server."""
    host, port = config.dev_addr
    return urlsplit(config.site_url or "").netloc == f"{host}:{port}"


class Serving:
    """The page that a server was asked for last, and the builds and runs behind it."""

    def __init__(self) -> None:
        # The address of the page that was asked for last; None before all is served.
        self._looked_at: str | None = None
        self._server: LiveReloadServer | None = None
        self._into = ""  # where the last build has written the site
        self._is_behind = False  # whether what is being built now is behind a page that shows the change already
        self._waiting: list[Task] = []
        self._change, self._runs = threading.Lock(), False

    def watch(self, server: LiveReloadServer, cache: Path, show: Callable[[], str | None]) -> None:
        """Take note of what the server is asked for, and let it build again once all has run.

        Args:
            server: MkDocs' server, before it has begun.
            cache: The folder of what is kept.
            show: Builds the page that is looked at, alone, in the site that is served; its file there, or None where
                it has not changed.
        """
        self._looked_at, self._server = "", server
        self._done = cache / "served" / "done"
        self._done.parent.mkdir(parents=True, exist_ok=True)
        server.watch(str(self._done.parent))
        answer = server.get_app()
        assert answer is not None

        def noting(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            if environ["PATH_INFO"].endswith("/"):
                self._looked_at = environ["PATH_INFO"]
            return answer(environ, start_response)

        server.set_app(noting)
        build = server.builder

        def page_first() -> None:
            shown = show()
            before = b""
            if shown:
                before = Path(server.root, shown).read_bytes()
                _private.reload_browsers(server)
            self._is_behind = bool(shown)
            try:
                build()
            except Overtaken:
                return
            finally:
                self._is_behind = False
            server.root = self._into
            if shown and not _holds(Path(server.root, shown), before):
                _private.reload_after_build(server)

        server.builder = page_first

    def into(self, site: str) -> str:
        """The folder to build the site into: not the one that is served, which the build would empty first."""
        self._into = f"{site}-next" if self._server and Path(self._server.root) == Path(site) else site
        return self._into

    def go_on(self) -> None:
        """Stop a build behind a page if there is another change.

        Raises:
            Overtaken: There is.
        """
        if self._is_behind and self._server and _private.wants_rebuild(self._server):
            raise Overtaken

    def close(self, site: str) -> None:
        """Remove the folder that MkDocs knows nothing of."""
        shutil.rmtree(f"{site}-next", ignore_errors=True)

    def page(self, uris: Collection[str], files: Files, config: MkDocsConfig) -> str | None:
        """Which of the pages is looked at."""
        mounted = urlsplit(config.site_url or "/").path
        at = ((uri, files.get_file_from_path(uri)) for uri in uris)
        return next((uri for uri, file in at if file and urljoin(mounted, file.url) == self._looked_at), None)

    def wanted(self, sources: Mapping[str, Path], files: Files, config: MkDocsConfig) -> set[Path] | None:
        """The page that is looked at; None where all are to be built, as at first."""
        if self._looked_at is None:
            return None
        uri = self.page(sources, files, config)
        return {sources[uri]} if uri else set()

    def catch_up(self, behind: Sequence[Task], root: Path, settings: Settings) -> None:
        """Run pages while the server answers; those of the last call, if another comes meanwhile."""
        with self._change:
            self._waiting = [*behind]
            if self._waiting and not self._runs:
                self._runs = True
                threading.Thread(target=self._run, args=(root, settings), daemon=True).start()

    def _run(self, root: Path, settings: Settings) -> None:
        try:
            while tasks := self._taken():
                for _ in run(tasks, root=root, settings=settings, cache=Cache(root / settings.cache)):
                    pass  # what they give is kept
            self._done.touch()
        except OSError as error:  # such as a CacheError: the next build tries again
            _log.info(str(error))  # a warning would end a strict build
            self._runs = False

    def _taken(self) -> list[Task]:
        """Return the tasks that wait; once there are none, the next call of `catch_up` has to begin anew."""
        with self._change:
            tasks, self._waiting = self._waiting, []
            self._runs = bool(tasks)
            return tasks


def _holds(file: Path, content: bytes) -> bool:
    """Whether a file of the site, which a change may have removed meanwhile, holds this."""
    return file.is_file() and file.read_bytes() == content
