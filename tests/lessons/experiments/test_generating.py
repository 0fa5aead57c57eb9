"""The story of a cache counts what each step computes, and what is kept."""

from typing import Any

import pytest
import torch

from unmasked_lessons.experiments import generating
from unmasked_lessons.teaching import Singer


@pytest.fixture(scope="module")
def singer() -> Singer:
    return Singer.trained()


@pytest.fixture(scope="module")
def story(singer: Singer) -> dict[str, Any]:
    return generating.story(singer, singer.numbers_of("seven green bottles"), 4)


def test_a_step_computes_all_words_without_a_cache_and_the_newest_with_one(story: dict[str, Any]):
    assert story["words"] == ["seven", "green", "bottles", "seven", "green", "bottles", "and"]
    assert story["prompt"] == 3
    assert story["computed"] == {"without": [3, 4, 5, 6], "with": [3, 1, 1, 1]}
    numbers = 2 * 2 * 32  # a key and a value in each of two blocks, all heads together
    assert story["kept"] == [words * numbers * 4 for words in (3, 4, 5, 6)]


def test_the_likeliest_words_are_those_that_are_written(story: dict[str, Any], singer: Singer):
    for place, chances in enumerate(story["likely"]):
        assert chances[0][0] == story["words"][3 + place]
        assert [chance for _, chance in chances] == sorted((chance for _, chance in chances), reverse=True)
        text = singer.numbers_of(" ".join(story["words"][: 3 + place]))
        likeliest = singer(text)[0, -1].softmax(dim=-1).max().item()
        assert chances[0][1] == pytest.approx(likeliest, abs=1e-4)


def test_telling_a_story_leaves_no_hook_behind(story: dict[str, Any], singer: Singer):
    assert not any(module._forward_hooks for module in singer.modules())


def test_the_picture_has_a_one_for_each_word_that_a_step_computes():
    told: dict[str, Any] = {
        "words": [*"abcde"],
        "prompt": 2,
        "kept": [0, 0],
        "likely": [],
        "computed": {"without": [2, 3]},
    }
    assert generating.computed(told, 2)["without a cache"].equal(torch.tensor([[1.0, 1, 0], [1, 1, 1]]))
    assert generating.computed(told, 1)["without a cache"].equal(torch.tensor([[1.0, 1]]))
    told["computed"] = {"with": [2, 1]}
    assert generating.computed(told, 2)["with a cache"].equal(torch.tensor([[1.0, 1, 0], [0, 0, 1]]))


def test_each_text_comes_with_the_scores_of_the_word_after_it():
    singer = Singer(1)
    told = generating.next_scores(singer, ["la la", "seven green"])
    assert told["words"] == singer.vocabulary
    assert [each["text"] for each in told["texts"]] == ["la la …", "seven green …"]
    for each, text in zip(told["texts"], ("la la", "seven green"), strict=True):
        assert each["scores"].equal(singer(singer.numbers_of(text))[0, -1])
