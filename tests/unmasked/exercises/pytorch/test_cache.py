"""The exercises about caches accept what is right in any style, and say what is wrong with what is not."""

import pytest
import torch

from unmasked import KVCache, masks
from unmasked.exercises import check


def from_a_cache(length, window):
    cache, key = KVCache(1, 1, length, 1, window=window), torch.zeros(1, 1, length, 1)
    cache.append(key, key)
    return cache.positions


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("chunk-mask", lambda past, new: masks.causal(new, past + new)),
        ("chunk-mask", lambda past, new: torch.ones(new, past + new).tril(past).bool()),
        ("chunk-mask", lambda past, new: torch.ones(past + new, past + new).tril()[past:] == 1),
        ("padded-positions", masks.positions_of),
        ("padded-positions", lambda real: (real.long().cumsum(-1) - 1).masked_fill(~real, 1)),
        ("padded-positions", lambda real: ((real.cumsum(-1) - 1) * real).int()),
        ("ring-slots", from_a_cache),
        ("ring-slots", lambda n, w: torch.tensor([max(p for p in range(n) if p % w == slot) for slot in range(w)])),
    ],
)
def test_right_answers_are_accepted(name, answer):
    assert check(name, answer), check(name, answer)


@pytest.mark.parametrize(
    ("name", "answer", "cause", "told"),
    [
        (
            "chunk-mask",
            lambda past, new: torch.ones(new, past + new).tril().bool(),
            "top-left-causal",
            "The mask for 2 in the cache and 3 new is [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]]; it should "
            "be [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]. The new tokens are the last ones, not the first.",
        ),
        ("chunk-mask", lambda past, new: ~masks.causal(new, past + new), "mask-polarity", "True must say what a query"),
        ("chunk-mask", lambda past, new: torch.ones(new, past + new).bool(), "no-causal-mask", "sees the later ones"),
        ("chunk-mask", lambda past, new: masks.causal(new, past + new).tril(past - 1), None, "it should be [[1, 1, 1"),
        ("chunk-mask", lambda past, new: masks.causal(new), None, "The shape for 2 in the cache and 3 new is (3, 3)"),
        ("chunk-mask", lambda past, new: masks.causal(new, past + new).int(), None, "it should be boolean"),
        ("chunk-mask", lambda past, new: [[True]], None, "It returned list for 2 in the cache and 3 new"),
        (
            "padded-positions",
            lambda real: torch.arange(real.size(1)).expand(real.shape),
            None,
            "The padding is counted.",
        ),
        ("padded-positions", lambda real: real.cumsum(-1) - 1, None, "There is a negative one, which no table has."),
        ("padded-positions", lambda real: real.cumsum(-1), None, "they could be [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]]."),
        ("padded-positions", lambda real: masks.positions_of(real).float(), None, "a table is read at whole numbers"),
        (
            "padded-positions",
            lambda real: masks.positions_of(real).masked_fill(~real, 99),
            None,
            "A table as long as the text has no position 99.",
        ),
        ("padded-positions", lambda real: masks.positions_of(real)[0], None, "is (5,); it should be (2, 5)."),
        (
            "ring-slots",
            lambda n, w: torch.arange(n - w, n),
            None,
            "The positions for 5 tokens and a window of 3 are [2, 3, 4]; they should be [3, 4, 2]. These are the "
            "tokens that are there, in other slots.",
        ),
        ("ring-slots", lambda n, w: torch.arange(w), None, "are [0, 1, 2]; they should be [3, 4, 2]."),
    ],
)
def test_wrong_answers_are_named(name, answer, cause, told):
    feedback = check(name, answer)
    assert told in feedback.message
    assert (bool(feedback), feedback.cause) == (False, cause)
