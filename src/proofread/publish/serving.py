"""Under `mkdocs serve`, what is looked at is shown first. Other pages run behind it, and the site is built again."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.livereload import LiveReloadServer
from mkdocs.structure.files import Files

from ..runs.cache import Cache
from ..runs.server import run
from ..runs.steps import Task
from ..settings import Settings

_log = logging.getLogger("mkdocs.plugins.proofread")


class Serving:
    """What a server is asked for, and what runs behind it."""

    def __init__(self) -> None:
        # The address of the page that was asked for last; None before all is served.
        self._looked_at: str | None = None
        self._waiting: list[Task] = []
        self._change, self._runs = threading.Lock(), False

    def watch(self, server: LiveReloadServer, cache: Path) -> None:
        """Take note of what the server is asked for, and let it build again once all has run."""
        self._looked_at = ""
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

    def wanted(self, sources: Mapping[str, Path], files: Files, config: MkDocsConfig) -> set[Path] | None:
        """The page that is looked at; None where all are to be built, as at first."""
        if self._looked_at is None:
            return None
        at = {uri: files.get_file_from_path(uri) for uri in sources}
        mounted = urlsplit(config.site_url or "/").path
        return {sources[uri] for uri, file in at.items() if file and urljoin(mounted, file.url) == self._looked_at}

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
        """What waits now; once nothing does, the next call of `catch_up` has to begin anew."""
        with self._change:
            tasks, self._waiting = self._waiting, []
            self._runs = bool(tasks)
            return tasks
