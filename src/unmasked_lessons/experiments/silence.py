"""Verses of a singer one of whose heads is silent: for the script `silence.js`."""

from typing import Any

from unmasked_lessons.teaching.song import NAMES, Singer, verse


def story(singer: Singer, hums: int = 3) -> dict[str, Any]:
    """Let a singer sing all verses, each behind so many *la*, whole and without each of its heads.

    Returned are the count of words of each text that are "given": some *la*, the number and *green*; the verses from
    ten down to one, word by word, as is "right" and as they are "sung": "with both heads", "without head 0" and
    "without head 1"; and the song and the verse that are shown at the "start".
    """
    right = [["la"] * hums + verse(number).split() for number in range(10, 0, -1)]
    given = hums + 2

    def sung(silent: int | None) -> list[list[str]]:
        starts = [(" ".join(words[:given]), len(words) - given) for words in right]
        return [singer.sing(*each, silent=silent).split() for each in starts]

    parts = {"with both heads": None} | {f"without head {head}": head for head in range(singer.HEADS)}
    return {
        "given": given,
        "right": right,
        "sung": {name: sung(silent) for name, silent in parts.items()},
        "start": ("without head 0", 1),
    }


def kept(record: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Count the verses of a `story` whose words are right but for numbers, and those whose second number is right."""

    def lines(words: list[str]) -> list[str]:
        return ["number" if word in NAMES else word for word in words]

    second = record["given"] + 1
    counts = {}
    for name, verses in record["sung"].items():
        pairs = list(zip(verses, record["right"], strict=True))
        kept_lines = sum(lines(words) == lines(right) for words, right in pairs)
        counts[name] = kept_lines, sum(words[second] == right[second] for words, right in pairs)
    return counts
