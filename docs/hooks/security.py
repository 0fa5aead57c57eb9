"""A hook of the site: pages run no script and take no style but their own, and ask no other origin for anything.

A policy in the head of each page says so. It names the scripts and styles that stand in the page by their hashes.
"""

import base64
import hashlib
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError

from proofread.publish.serving import is_looked_at

_INLINE = re.compile(
    r"<(?P<kind>script|style)\b(?P<attributes>[^>]*)>(?P<text>.*?)</(?P=kind)>",
    re.DOTALL,
)
_DATA = re.compile(r'\btype="(?!module|text/javascript)[^"]*"')
_AHEAD = re.compile(r'<link rel="(?:prev|next)"[^>]*>\s*')
_PLACE = re.compile(r"<meta charset=[^>]*>", re.IGNORECASE)


def policy(html: str) -> str:
    """What a page may load and run."""
    hashes: dict[str, dict[str, None]] = {"script": {}, "style": {}}
    for found in _INLINE.finditer(html):
        if found["kind"] == "style" or not ("src=" in found["attributes"] or _DATA.search(found["attributes"])):
            digest = base64.b64encode(hashlib.sha256(found["text"].encode()).digest()).decode()
            hashes[found["kind"]][f" 'sha256-{digest}'"] = None
    rules = {
        "default-src": "'none'",
        "script-src": "'self'" + "".join(hashes["script"]),
        "style-src": "'self'" + "".join(hashes["style"]),
        "style-src-attr": "'unsafe-inline'",  # Markdown aligns the columns of tables by them, and figures color cells
        "img-src": "'self' data:",
        "font-src": "'self'",
        "connect-src": "'self'",
        "worker-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'self'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def guarded(html: str, name: str) -> str:
    """The page with its policy, before anything that is loaded.

    It names no next page in its head: Firefox would load that ahead, which the policy forbids. The footer has it.
    """
    html = _AHEAD.sub("", html)
    place = _PLACE.search(html)
    if not place:
        raise PluginError(f"{name} has no <meta charset>, after which its Content-Security-Policy could stand")
    meta = f'\n<meta http-equiv="Content-Security-Policy" content="{policy(html)}">'
    return html[: place.end()] + meta + html[place.end() :]


def on_post_build(*, config: MkDocsConfig) -> None:
    """Give each page its policy, once nothing more is changed in it; a server puts a script of its own into pages."""
    for file in [] if is_looked_at(config) else Path(config.site_dir).rglob("*.html"):
        file.write_text(
            guarded(file.read_text(encoding="utf-8"), file.name),
            encoding="utf-8",
        )
