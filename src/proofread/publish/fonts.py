"""The font of the mathematics: STIX Two Math, cut down to what the site's formulas need when it is built.

Without a font that knows mathematics a browser neither stretches brackets nor sets limits, and many systems have none.
"""

import html
import io
import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from ..keep.files import sha, write

# A browser sets a letter of its own by the slanted one of these blocks: Latin, Planck's h, Greek.
_SLANTED = {*range(0x1D434, 0x1D468), 0x210E, *range(0x1D6E2, 0x1D71C)}
# The root sign stands for an element, not in the text.
_ALWAYS = {*range(0x20, 0x7F), 0x221A}


def mathematics(formulas: Iterable[str], cache: Path) -> bytes:
    """The font as WOFF2, with the characters of some MathML; the cache keeps it for the next build."""
    text = html.unescape(re.sub(r"<[^>]*>", "", "".join(formulas)))
    characters = sorted({*map(ord, text), *_ALWAYS, *_SLANTED})
    key = sha(f"{metadata.version('ziamath')} {characters}")[:16]
    file = cache / f"mathematics-{key}.woff2"
    if not file.exists():
        write(file, _subset(characters))
    return file.read_bytes()


def _subset(characters: Iterable[int]) -> bytes:
    from fontTools import subset  # takes half a second, and most builds need it not at all

    options = subset.Options(flavor="woff2", layout_features=["ssty", "dtls", "flac"], name_IDs=["*"])
    whole = metadata.distribution("ziamath").locate_file("ziamath/fonts/STIXTwoMath-Regular.ttf")
    font = subset.load_font(io.BytesIO(Path(str(whole)).read_bytes()), options)
    subsetter = subset.Subsetter(options)
    subsetter.populate(unicodes=characters)
    subsetter.subset(font)
    buffer = io.BytesIO()
    font.flavor = "woff2"
    font.save(buffer)
    return buffer.getvalue()
