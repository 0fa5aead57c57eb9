"""The page about serving: the mask of a tree, the kernel that takes a table of pages, and what the page's functions do
with distributions and servers that it does not show."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from unmasked import CausalSelfAttention, attend, masks
from unmasked.positions import Rotary
from unmasked_lessons.experiments.serving import off, pages

from ..refusals import refused
from ..running import names_of

PARENTS = [-1, 0, 0, -1, 2, 2, 5]


@pytest.fixture
def page() -> dict[str, Any]:
    return vars(names_of("serving"))


def ancestors(token: int) -> list[int]:
    return [] if token < 0 else [*ancestors(PARENTS[token]), token]


@torch.no_grad()
def test_a_tree_behind_a_cache_gives_each_branch_what_it_gets_alone() -> None:
    torch.manual_seed(0)
    layer = CausalSelfAttention(12, 12, 3, rotary=Rotary(4))
    text, draft = torch.randn(2, 5, 12), torch.randn(2, 7, 12)
    allowed = masks.tree(torch.tensor(PARENTS), keys=12)
    cache = layer.cache(2, max_tokens=12)
    layer(text, cache=cache)
    found = layer(draft, cache=cache, allowed=allowed, positions=allowed.sum(-1) - 1)
    for token in range(7):
        branch = torch.cat([text, draft[:, ancestors(token)]], dim=1)
        torch.testing.assert_close(found[:, token], layer(branch)[:, -1], rtol=0, atol=1e-5)


def test_a_tree_without_branches_is_causal_and_a_tree_of_nothing_is_empty() -> None:
    assert torch.equal(masks.tree(torch.arange(5) - 1, keys=8), masks.causal(5, 8))
    assert masks.tree(torch.zeros(0, dtype=torch.int64), keys=3).shape == (0, 3)


test_what_is_no_tree_is_refused = refused(
    {
        TypeError: {
            "parents is torch.float32; pass integers, such as torch.tensor([0, 0, 1]) holds": (
                lambda: masks.tree(torch.zeros(1))
            ),
        },
        ValueError: {
            "parents has shape (1, 1); it must be (tokens,)": lambda: masks.tree(torch.tensor([[-1]])),
            "keys is 1; the 2 tokens of the tree are the last keys: pass at least 2": (
                lambda: masks.tree(torch.tensor([-1, 0]), keys=1)
            ),
            "parents[1] is 1; a token follows one that stands before it, 0 to 0, or the text, -1: sort the tokens by "
            "their depth": lambda: masks.tree(torch.tensor([-1, 1])),
            "parents[0] is -2; a token follows...": lambda: masks.tree(torch.tensor([-2])),
        },
    }
)


@pytest.mark.parametrize("zeros", [False, True])
def test_words_that_stay_and_their_replacements_are_distributed_as_the_target(
    zeros: bool, page: dict[str, Any]
) -> None:
    generator = torch.Generator().manual_seed(0)
    q, p = torch.rand(2, 50, 9, generator=generator, dtype=torch.double)
    if zeros:  # as top-k leaves them; both models at one place, and each alone at another
        q[:, [0, 1]] = p[:, [1, 2]] = 0
    q, p = q / q.sum(-1, keepdim=True), p / p.sum(-1, keepdim=True)
    p[0] = q[0]  # nothing is ever refused
    stays, rest = page["verify"](q, p)
    refused = 1 - (q * stays).sum(-1, keepdim=True)
    torch.testing.assert_close(q * stays + refused * rest, p)
    also, left = page["verify"](q, rest)  # of a second word for the same place
    second = q * also + (1 - (q * also).sum(-1, keepdim=True)) * left
    torch.testing.assert_close(q * stays + refused * second, p)
    assert stays.min() >= 0
    assert stays.max() <= 1


@torch.no_grad()
@pytest.mark.parametrize("by", ["the last page", "the first word"])
def test_the_check_notices_a_server_that_finds_pages_by_too_little(by: str, page: dict[str, Any]) -> None:
    kept: dict[Any, torch.Tensor] = {}

    def alone(words: torch.Tensor) -> torch.Tensor:
        return page["alone"](words[None])[0, -1]

    def serve(words: torch.Tensor) -> torch.Tensor:
        name = tuple(words[-4:].tolist()) if by == "the last page" else (int(words[0]), len(words))
        return kept.setdefault(name, alone(words))

    page["what_is_shared_changes_nothing"](alone, alone, 17, 4)
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        page["what_is_shared_changes_nothing"](serve, alone, 17, 4)


def test_a_picture_of_pages_shows_each_word_at_its_place() -> None:
    lies, taken = pages(torch.tensor([[2, 0], [1, 0]]), torch.tensor([4, 2]), 3)
    assert lies["text"].tolist() == [[0, 0, 0], [1, 1, 0], [0, 0, 0]]
    assert lies["word"].tolist() == [[3, 0, 0], [0, 1, 0], [0, 1, 2]]
    assert taken.int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert off(torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])) == 1.25


@pytest.mark.cuda
def test_the_kernel_for_varying_lengths_reads_pages_where_they_lie() -> None:
    from torch.nn.attention.varlen import varlen_attn

    torch.manual_seed(0)
    keys, values = torch.randn(2, 7, 256, 2, 16, device="cuda", dtype=torch.bfloat16)  # pages tokens heads head_dim
    query = torch.randn(3, 4, 16, device="cuda", dtype=torch.bfloat16)  # a token of each text
    tables = torch.tensor([[5, 0], [3, 6], [1, 1]], device="cuda")
    used = torch.tensor([300, 512, 17], device="cuda", dtype=torch.int32)
    ends = torch.arange(4, device="cuda", dtype=torch.int32), torch.nn.functional.pad(used.cumsum(0), (1, 0)).int()
    options = {"seqused_k": used, "block_table": tables.int(), "enable_gqa": True}
    found = varlen_attn(query, keys, values, *ends, 1, 512, **options)
    key, value = (each[tables].flatten(1, 2).transpose(1, 2).float() for each in (keys, values))
    expected = attend(query[:, :, None].float(), key, value, allowed=masks.padding(used.long(), 512)).context[:, :, 0]
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=2e-2)
