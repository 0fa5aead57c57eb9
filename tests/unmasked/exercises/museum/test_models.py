"""Answers to the exercises of the museum's room of models: right ones are accepted, wrong ones told why."""

import pytest
import torch
import torch.nn.functional as F

from unmasked import masks
from unmasked.exercises import check


def by_search(ids):
    return torch.arange(ids.size(1)) - torch.searchsorted(ids, ids)


def by_comparing(ids):
    return (ids[:, :, None] == ids[:, None]).tril(-1).sum(-1)


@pytest.mark.parametrize("answer", [by_search, by_comparing])
def test_positions_of_a_pack_are_accepted(answer):
    assert check("positions-of-a-pack", answer).ok


@pytest.mark.parametrize(
    ("answer", "told", "cause"),
    [
        (lambda ids: torch.arange(ids.size(1)).expand_as(ids), "the positions run on", "positions-not-reset"),
        (lambda ids: by_search(ids) + 1, "it should be [[0, 1, 2, 0, 1, 0]]", None),
        (lambda ids: by_search(ids)[0], "the shape (6,); it should be (1, 6)", None),
    ],
)
def test_other_positions_are_told_why(answer, told, cause):
    result = check("positions-of-a-pack", answer)
    assert not result.ok
    assert result.cause == cause
    assert told in result.message


def grouped(repeat=lambda x, n: x.repeat_interleave(n, 1), mask=masks.causal):
    def attend(q, k, v):
        n = q.size(1) // k.size(1)
        allowed = mask(q.size(2), k.size(2)) if mask else None
        return F.scaled_dot_product_attention(q, repeat(k, n), repeat(v, n), attn_mask=allowed)

    return attend


def by_pytorch(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, masks.causal(q.size(2), k.size(2)), enable_gqa=True)


@pytest.mark.parametrize("answer", [grouped(), by_pytorch])
def test_grouped_heads_are_accepted(answer):
    assert check("grouped-heads", answer).ok


def in_turn(x, n):
    return x.repeat(1, n, 1, 1)


def top_left(queries, keys):
    return torch.ones(queries, keys, dtype=torch.bool).tril()


@pytest.mark.parametrize(
    ("answer", "told", "cause"),
    [
        (grouped(in_turn), "dealt out in turn", "repeat-for-repeat-interleave"),
        (grouped(mask=None), "sees every key", "no-causal-mask"),
        (grouped(mask=top_left), "2 queries and 5 keys", "top-left-causal"),
        (lambda q, k, v: grouped()(2 * q, k, v), "another average", None),
        (lambda q, k, v: grouped()(q, k, v)[:, :1], "the queries'", None),
    ],
)
def test_other_grouped_heads_are_told_why(answer, told, cause):
    result = check("grouped-heads", answer)
    assert not result.ok
    assert result.cause == cause
    assert told in result.message
