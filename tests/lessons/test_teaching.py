"""The models that pages train learn what the pages say, the same each time, and leave the caller's chance alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from unmasked_lessons import teaching
from unmasked_lessons.teaching import riddles, translator
from unmasked_lessons.teaching._training import seeded

from ..refusals import refused


def test_a_riddle_asks_for_the_number_in_the_box_with_its_letter_or_for_nine_minus_it():
    torch.manual_seed(0)
    (letters, numbers, asked, kind), right = teaching.draw_riddles(50, kinds=2)
    assert kind.unique().tolist() == [0, 1]
    for riddle in range(50):
        assert len({*letters[riddle].tolist()}) == riddles.BOXES
        box = letters[riddle].tolist().index(asked[riddle].item())
        number = numbers[riddle, box].item()
        assert right[riddle] == (9 - number if kind[riddle] else number)


def test_a_pair_asks_for_two_numbers_in_its_own_order():
    torch.manual_seed(0)
    (letters, numbers, first, second), right = teaching.draw_pairs(50)
    for riddle in range(50):
        boxes = [letters[riddle].tolist().index(each[riddle].item()) for each in (first, second)]
        assert right[riddle].tolist() == numbers[riddle, boxes].tolist()
        assert boxes[0] != boxes[1]


@pytest.mark.parametrize(
    "run",
    [
        lambda: teaching.riddles_solved(1, steps=1),
        lambda: teaching.likeness(1),
        lambda: teaching.largest_weights([1]),
        lambda: teaching.translate(teaching.translations(8)),
        lambda: teaching.Singer.trained(steps=1),
        lambda: teaching.PairSolver.trained(1, seed=0, steps=1),
    ],
)
def test_training_leaves_the_callers_random_numbers_and_threads_as_they_were(run: Any):
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    run()
    assert torch.get_num_threads() == threads
    assert torch.random.get_rng_state().equal(before)


def by_hand(block: teaching.Block, x: Tensor) -> dict[str, Tensor]:
    """What a block makes of words, whole and without a part."""

    def attend(x: Tensor) -> Tensor:
        return block.attention(x, x, x)[0]

    within = x + attend(block.norm_1(x))
    bare = x + attend(x)
    return {
        "": within + block.mlp(block.norm_2(within)),
        "MLP": within,
        "residual": block.mlp(block.norm_2(attend(block.norm_1(x)))),
        "norms": bare + block.mlp(bare),
    }


@pytest.mark.parametrize("without", ["", "MLP", "residual", "norms"])
def test_a_block_lacks_what_it_is_said_to_lack_and_nothing_else(without: Any):
    torch.manual_seed(0)
    block, x = teaching.Block(8, without), torch.randn(2, 3, 8)
    whole = teaching.Block(8)
    whole.load_state_dict(block.state_dict(), strict=False)
    close = [name for name, made in by_hand(whole, x).items() if torch.allclose(made, block(x), atol=1e-5)]
    assert close == [without]


def test_two_heads_find_both_numbers_of_a_pair():
    assert teaching.PairSolver.trained(2, seed=1).right().all(dim=-1).double().mean() > 0.97


def test_what_a_solver_tells_is_whether_each_of_its_answers_to_new_riddles_is_right():
    solver = teaching.PairSolver(2)
    with torch.no_grad():
        solver.read.weight.zero_()
        solver.read.bias.copy_(torch.arange(20.0))  # it says nine, whatever it is asked
    with seeded(1):
        _, numbers = teaching.draw_pairs(1000)
    assert solver.right().equal(numbers == 9)


def test_adjectives_stand_after_the_noun_in_french():
    for english, french in teaching.translations(20):
        verb = translator.VERBS[" ".join(english[3:5])]
        a, b, c, d = english[1], english[2], english[6], english[7]
        nouns, adjectives = translator.NOUNS, translator.ADJECTIVES
        assert french == ["le", nouns[b], adjectives[a], verb, "le", nouns[d], adjectives[c]]


@pytest.fixture(scope="module")
def singer() -> teaching.Singer:
    return teaching.Singer.trained()


def test_the_singer_counts_down_and_writes_the_same_with_a_cache(singer: teaching.Singer):
    text = singer.numbers_of("la la seven green bottles")
    new, kept, caches = text, text, singer.new_caches()
    for _ in range(13):
        text = torch.cat([text, singer(text)[:, -1:].argmax(dim=-1)], dim=1)
        new = singer(new, caches)[:, -1:].argmax(dim=-1)
        kept = torch.cat([kept, new], dim=1)
    assert singer.words_of(text).endswith("there will be six")
    assert kept.equal(text)
    assert not any(each.requires_grad for each in singer.parameters())


def test_a_rounded_singer_has_few_different_numbers_near_its_own_and_still_sings(singer: teaching.Singer):
    rounded = copy.deepcopy(singer).rounded()
    for name, numbers in rounded.state_dict().items():
        own = singer.state_dict()[name]
        top = own.abs().max().item()
        assert (numbers - own).abs().max() <= 1.01 * top / 46 / 2, name
        assert numbers.unique().numel() <= 2 * 46 + 1
        assert numbers.abs().max().item() == pytest.approx(top, rel=1e-3)
    assert rounded.verses_right() == 1
    again = copy.deepcopy(rounded).rounded()
    assert all(each.equal(other) for each, other in zip(again.parameters(), rounded.parameters(), strict=True))


def test_a_singer_that_lacks_something_sees_what_it_is_said_to_see():
    text = teaching.Singer().numbers_of("seven green bottles and")
    earlier = torch.ones(4, 4).tril().bool()
    for lacks, seen in {"": earlier, "attention": torch.eye(4).bool(), "mask": earlier | True}.items():
        assert (teaching.Singer(1, lacks).weights(text) > 0).equal(seen.expand(1, 2, 4, 4))
    deaf = teaching.Singer(1, "positions")
    same = deaf.numbers_of("la green seven and"), deaf.numbers_of("seven la green and")
    torch.testing.assert_close(deaf(same[0])[0, -1], deaf(same[1])[0, -1])  # the earlier words are a bag


test_what_a_block_or_a_singer_cannot_be_is_refused = refused(
    {
        ValueError: {
            'without=\'mlp\': pass "MLP", "residual" or "norms", or "" for a whole block': lambda: teaching.Block(
                8, "mlp"
            ),
            "blocks is 0; a singer needs at least one": lambda: teaching.Singer(0),
            'lacks=\'head\': pass "attention", "mask" or "positions", or "" for a whole singer': lambda: (
                teaching.Singer(1, "head")
            ),
            "lacks is 'mask'; keys and values can be kept under the causal mask alone": lambda: teaching.Singer(
                1, "mask"
            ).new_caches(),
            "words has 27 words with what came before; at most 26": lambda: teaching.Singer(1).sing("la " * 25, 3),
            "words has ['wine']: the song has only la, and, be, bottle,...": lambda: teaching.Singer(1).numbers_of(
                "green wine"
            ),
            "number is 11; the song has verses from 10 down to 1": lambda: teaching.verse(11),
        }
    }
)


def test_the_singers_weights_are_those_of_its_own_keys_and_queries(singer: teaching.Singer):
    text = singer.numbers_of("seven green bottles and")
    weights = singer.weights(text)
    assert weights.shape == (2, 2, 4, 4)
    query, key, _ = singer.projected(text)
    scores = (query @ key.mT / key.size(-1) ** 0.5).masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf)
    torch.testing.assert_close(weights[1], scores.softmax(dim=-1)[0])


def test_later_words_change_earlier_keys_only_without_the_mask(singer: teaching.Singer):
    text = singer.numbers_of("seven green bottles and")
    by_hand = singer.projected(text, is_causal=False)[1][:, :, :3] - singer.projected(text[:, :3], is_causal=False)[1]
    changes = singer.changed_keys(text, 3, is_causal=False)
    assert changes.tolist() == pytest.approx([by_hand[:, :, word].abs().max().item() for word in range(3)])
    assert changes.min() > 0.01 > 1e-4 > singer.changed_keys(text, 3).max()
