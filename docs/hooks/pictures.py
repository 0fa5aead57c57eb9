"""A hook of the site: the pictures by which others show it.

A phone that keeps a page shows the logo. Where the environment names the address of the site, each page has a picture
for those who share it: its title and what it says first, and for the site itself what attention does with a sentence.
"""

import re
from collections.abc import Callable
from html import unescape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from proofread.publish.serving import is_looked_at

if TYPE_CHECKING:
    from PIL import Image

PICTURE, ICON = "social.png", "assets/touch.png"
SIZE = WIDTH, HEIGHT = 1200, 630
# The colors of the site.
PAPER, INK, QUIET, TEAL, AMBER = "#fffdf8", "#1d2b2e", "#50605f", "#0b6169", "#a2470a"
LOGO, LOGO_CELL, ARC, ARC_CHOSEN = "#0f5c63", "#f0a45d", "#0b8089", "#d9652b"
SENTENCE = "i must go back to my ship and to my crew"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Serve the picture by which a phone shows a page that it keeps."""
    files.append(File.generated(config, ICON, content=icon()))
    return files


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Draw the page's picture beside it, where the address of the site is known: it must be named in full."""
    if config.site_url and not is_looked_at(config):
        file = Path(page.file.abs_dest_path).with_name(PICTURE)
        file.parent.mkdir(parents=True, exist_ok=True)
        title, told = (unescape(re.sub(r"<[^>]*>", "", said or "")) for said in (page.title, page.meta["description"]))
        file.write_bytes(arcs(config.site_name) if page.is_homepage else card(title, told, config.site_name))
    return output


def logo() -> "Image.Image":
    """A causal mask of three words."""
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (20, 20), LOGO)
    canvas = ImageDraw.Draw(picture)
    for query in range(3):
        for key in range(query + 1):
            canvas.rectangle((2 + 6 * key, 2 + 6 * query, 5 + 6 * key, 5 + 6 * query), fill=LOGO_CELL)
    return picture


def png(picture: "Image.Image") -> bytes:
    file = BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def icon() -> bytes:
    """The logo as a PNG: phones take no SVG."""
    return png(logo().resize((180, 180), resample=0))


def card(title: str, told: str, name: str) -> bytes:
    """What is seen of a page that is shared: its title and what it says first, and where it stands."""
    from matplotlib import get_data_path
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.new("RGB", SIZE, PAPER)
    picture.paste(logo().resize((80, 80), resample=0), (64, 56))
    canvas, y = ImageDraw.Draw(picture), 176
    bold, plain = (f"{get_data_path()}/fonts/ttf/DejaVuSerif{style}.ttf" for style in ("-Bold", ""))
    canvas.text((172, 96), name, QUIET, ImageFont.truetype(plain, 32), "lm")
    for text, file, size, color in ((title, bold, 62, INK), (told.removeprefix(title).strip(), plain, 36, QUIET)):
        font = ImageFont.truetype(file, size)
        for line in broken(text, lambda said, font=font: canvas.textlength(said, font) <= WIDTH - 128):
            canvas.text((64, y), line, color, font)
            y += round(1.4 * size)
        y += 26
    return png(picture)


def broken(text: str, fits: Callable[[str], bool]) -> list[str]:
    """A text in lines that fit."""
    lines: list[str] = []
    for word in text.split():
        if lines and fits(f"{lines[-1]} {word}"):
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def arcs(name: str) -> bytes:
    """What is seen of the site itself: its name, and what the word ship takes from the others of a sentence."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Curve

    from unmasked import self_attention
    from unmasked_lessons.embeddings import ship_vectors

    words = SENTENCE.split()
    ship, crew = words.index("ship"), words.index("crew")
    weights = self_attention(ship_vectors().lookup(words)).weights[ship].tolist()
    widths = [len(word) + 2.2 for word in words]
    centers = [sum(widths[:place]) + width / 2 for place, width in enumerate(widths)]
    with plt.rc_context({"font.family": "serif", "font.serif": ["DejaVu Serif"]}):
        figure = plt.figure(figsize=(WIDTH / 100, HEIGHT / 100), dpi=100, facecolor=PAPER)
        axes = figure.add_axes((0.04, 0.04, 0.92, 0.62))
        axes.set(xlim=(0, sum(widths)), ylim=(-3, 13))
        axes.axis("off")
        for place, (word, weight) in enumerate(zip(words, weights, strict=True)):
            color = TEAL if place == ship else AMBER if place == crew else INK
            axes.text(centers[place], 0, word, ha="center", size=24, color=color)
            axes.text(centers[place], -2, f"{weight:.0%}", ha="center", size=16, color=QUIET)
            if place != ship:
                top = 5 + 0.42 * abs(centers[place] - centers[ship])
                points = [(centers[ship], 2), (centers[ship], top), (centers[place], top), (centers[place], 2)]
                curve = Curve(points, [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4])
                line = ARC_CHOSEN if place == crew else ARC
                axes.add_patch(PathPatch(curve, fill=False, edgecolor=line, linewidth=90 * weight, alpha=0.75))
        figure.text(0.05, 0.83, name, size=52, weight="bold", color=INK)
        figure.text(
            0.052, 0.74, "Attention in PyTorch, on pages that are checked by running them", size=23, color=QUIET
        )
        file = BytesIO()
        figure.savefig(file, metadata={"Software": None})
        plt.close(figure)
    return file.getvalue()
