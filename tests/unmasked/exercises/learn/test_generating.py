"""The exercises about writing accept what is right in any style, and say what is wrong with what is not."""

import pytest

from unmasked.exercises import check


def write_on(step, text, count):
    written, new, kept = [], text, None
    for _ in range(count):
        scores, kept = step(new, kept)
        new = [int(scores.argmax())]
        written += new
    return written


def one_by_one(step, text, count):
    """The text in single words, too; and the last word is handed over, though nobody reads what follows."""
    kept, words = None, []
    for word in text:
        scores, kept = step([word], kept)
    for _ in range(count):
        words.append(scores.argmax().item())
        scores, kept = step([words[-1]], kept)
    return words


def without_a_cache(step, text, count):
    words = list(text)
    for _ in range(count):
        words.append(int(step(words, None)[0].argmax()))
    return words[len(text) :]


def all_again(step, text, count):
    words, kept = list(text), None
    for _ in range(count):
        scores, kept = step(words, kept)
        words.append(int(scores.argmax()))
    return words[len(text) :]


def forgetful(step, text, count):
    words = list(text)
    for _ in range(count):
        words.append(int(step(words[-1:], None)[0].argmax()))
    return words[len(text) :]


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("write-on", write_on),
        ("write-on", one_by_one),
        ("cache-size", lambda layers, heads, head_dim, tokens: 2 * layers * heads * head_dim * tokens),
        ("cache-size", lambda *sizes: float(2 * sizes[0] * sizes[1] * sizes[2] * sizes[3])),
    ],
)
def test_right_answers_are_accepted(name, answer):
    assert check(name, answer), check(name, answer)


@pytest.mark.parametrize(
    ("name", "answer", "told"),
    [
        (
            "write-on",
            without_a_cache,
            "For the text [3, 1, 4] and 4 new words the words are right, but the model was handed 18 of them. With "
            "what was kept, 6 are enough: the text once, and then each new word alone.",
        ),
        ("write-on", all_again, "the likeliest words are"),
        ("write-on", forgetful, "the likeliest words are"),
        ("write-on", lambda *given: [*given[1], *write_on(*given)], "returned the text as well"),
        ("write-on", lambda *given: None, "it returned None; return a list of 4 whole numbers"),
        ("write-on", lambda step, text, count: step(text[-1], None), "The model was handed 4; it takes a list"),
        ("write-on", lambda step, text, count: step(text, [0]), "The model was handed [0] as what was kept"),
        (
            "cache-size",
            lambda layers, heads, head_dim, tokens: layers * heads * head_dim * tokens,
            "For 3 layers, 5 heads, 7 features and 11 tokens it returned 1155; it should be 2310. Keys are kept, and "
            "values too.",
        ),
        ("cache-size", lambda *sizes: "many", "it returned 'many'; it should be 2310."),
    ],
)
def test_wrong_answers_are_named(name, answer, told):
    feedback = check(name, answer)
    assert told in feedback.message
    assert not feedback
