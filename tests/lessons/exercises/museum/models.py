"""Right and wrong answers to the exercises of museum/models."""

import torch
import torch.nn.functional as F

from unmasked import masks


def by_search(ids):
    return torch.arange(ids.size(1)) - torch.searchsorted(ids, ids)


def grouped(repeat=lambda x, n: x.repeat_interleave(n, 1), mask=masks.causal):
    def attend(q, k, v):
        n = q.size(1) // k.size(1)
        allowed = mask(q.size(2), k.size(2)) if mask else None
        return F.scaled_dot_product_attention(q, repeat(k, n), repeat(v, n), attn_mask=allowed)

    return attend


def in_turn(x, n):
    return x.repeat(1, n, 1, 1)


def top_left(queries, keys):
    return torch.ones(queries, keys, dtype=torch.bool).tril()


RIGHT = {
    "positions-of-a-pack": [by_search],
    "grouped-heads": [
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, masks.causal(q.size(2), k.size(2)), enable_gqa=True),
    ],
}
WRONG = {
    "positions-of-a-pack": [
        ("They run on. [positions-not-reset]", lambda ids: torch.arange(ids.size(1)).expand_as(ids)),
        ("it should be [[0, 1, 2, 0, 1, 0]]", lambda ids: by_search(ids) + 1),
        ("0, 0, 1, 1, 2]] the shape of the positions is (6,); it should be (1, 6).", lambda ids: by_search(ids)[0]),
    ],
    "grouped-heads": [
        ("dealt out in turn [repeat-for-repeat-interleave]", grouped(in_turn)),
        ("sees every key [no-causal-mask]", grouped(mask=None)),
        ("The last query is not the newest. [top-left-causal]", grouped(mask=top_left)),
        ("For 5 queries in 6 heads and 5 keys in 2 it is off by up to 0.91.", lambda q, k, v: grouped()(2 * q, k, v)),
    ],
}
