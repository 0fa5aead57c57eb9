"""The singer in the browser: it computes what PyTorch does, whole and without each of its parts."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from unmasked.heads import split_heads
from unmasked_lessons.experiments.block import PARTS, without
from unmasked_lessons.figures import strip
from unmasked_lessons.teaching import Singer, verse

from .conftest import LIVE, Open

if TYPE_CHECKING:
    from playwright.sync_api import Page

VERSES = [verse(number).split() for number in range(10, 0, -1)]
TEXTS = [*VERSES, ["la"] * 3 + VERSES[3], ["la"] * 8 + VERSES[9], ["green"]]
CASES: dict[str, dict[str, Any]] = {
    "whole": {},
    **{f"without {part}": {"without": part} for part in (*PARTS, "positions")},
    **{f"head {name} silent": {"silent": [name]} for name in ("0 0", "0 1", "1 0", "1 1")},
    "two heads silent": {"silent": ["0 1", "1 0"]},
    "no mask": {"causal": False},
    "no mask and no norms": {"causal": False, "without": "norms"},
}
READ = """
async ([given, texts, options]) => {
  const { singer } = await import("/singer.js")
  const { read } = singer(given)
  return texts.map((text) => {
    const { blocks, scores, scoresOf } = read(text, options)
    const weights = blocks.map(({ heads }) => heads.map(({ weights }) => weights))
    return { scores, weights, between: blocks.map(({ between }) => scoresOf(between)) }
  })
}
"""


@pytest.fixture(scope="module")
def built() -> Path:
    return LIVE


@pytest.fixture(scope="module")
def singer() -> Singer:
    return Singer.trained().rounded()


@pytest.fixture(scope="module")
def exact(singer: Singer) -> Singer:
    """The same singer, as precise as the script: in single precision PyTorch's own sums are off by as much as this."""
    return copy.deepcopy(singer).double()


@pytest.fixture
def page(opened: Open) -> Page:
    return opened("singer.js")


@contextmanager
def changed(singer: Singer, options: dict[str, Any]) -> Iterator[None]:
    """A singer as PyTorch has it, with what the script is asked to change."""
    with ExitStack() as stack:
        if part := options.get("without"):
            stack.enter_context(without(singer, part))
        for name in options.get("silent", ()):
            block, head = map(int, name.split())

            def silence(_: torch.nn.Module, args: tuple[Tensor], head: int = head) -> Tensor:
                context = args[0].clone()
                context[..., 16 * head : 16 * (head + 1)] = 0
                return context

            stack.callback(singer.out[block].register_forward_pre_hook(silence).remove)
        if not options.get("causal", True):
            singer.lacks = "mask"
            stack.callback(setattr, singer, "lacks", "")
        yield


def by_pytorch(singer: Singer, words: list[str]) -> dict[str, Tensor]:
    """The scores of the next words, those that would be read in the middle of each block, and the weights.

    The weights are the softmax of the scores of what went into the layer of queries and keys.
    """
    given: list[Tensor] = []
    between: list[Tensor] = []
    hooks = [each.register_forward_hook(lambda _, args, out: given.append(out)) for each in singer.qkv]
    hooks += [
        singer.norm[2 * k + 1].register_forward_hook(lambda _, args, out: between.append(args[0])) for k in (0, 1)
    ]
    scores = singer(singer.numbers_of(" ".join(words)))[0]
    for hook in hooks:
        hook.remove()
    hidden = torch.ones(len(words), len(words)).triu(1).bool() & (singer.lacks != "mask")
    weights = []
    for each in given:
        query, key, _ = split_heads(each, 6)[0].view(3, 2, len(words), 16)
        weights.append((query @ key.mT / 4).masked_fill(hidden, -torch.inf).softmax(-1))
    read = torch.stack([singer.read(singer.norm[-1](each))[0] for each in between])
    return {"scores": scores, "weights": torch.stack(weights), "between": read}


@pytest.mark.parametrize("case", CASES)
def test_the_singer_of_the_browser_computes_what_pytorch_does(page: Page, singer: Singer, exact: Singer, case: str):
    options = CASES[case]
    found = page.evaluate(READ, [strip.packed(singer), TEXTS, options])
    with changed(exact, options):
        for words, ours in zip(TEXTS, found, strict=True):
            theirs = by_pytorch(exact, words)
            for name, tolerance in (("scores", 1e-4), ("between", 1e-4), ("weights", 1e-5)):
                got = torch.tensor(ours[name], dtype=torch.float64)
                torch.testing.assert_close(
                    got, theirs[name], rtol=0, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
                )


def test_each_change_changes_the_scores(page: Page, singer: Singer):
    given = strip.packed(singer)
    scores = [torch.tensor(page.evaluate(READ, [given, TEXTS[:1], options])[0]["scores"]) for options in CASES.values()]
    for place, each in enumerate(scores):
        assert all((each - other).abs().max() > 0.1 for other in scores[:place])


def test_the_numbers_of_the_singer_are_few_bytes(singer: Singer):
    assert len(json.dumps(strip.packed(singer), separators=(",", ":"))) < 35_000


SING = """
async ([given, text, count]) => {
  const { singer } = await import("/singer.js")
  const { words, read, seen } = singer(given)
  for (let k = 0; k < count; k++) {
    const scores = read(seen(text)).scores.at(-1)
    text.push(words[scores.indexOf(Math.max(...scores))])
  }
  return text
}
"""


def test_it_sings_all_verses_though_they_are_longer_than_what_it_can_see(page: Page, singer: Singer):
    song = [word for words in VERSES for word in words]
    assert page.evaluate(SING, [strip.packed(singer), song[:2], len(song) + 3]) == [*song, "la", "la", "la", "la", "la"]
