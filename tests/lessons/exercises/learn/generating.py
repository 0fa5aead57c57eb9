"""Right and wrong answers to the exercises of learn/generating."""

import math
from functools import partial


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


def all_again(step, text, count, *, forget=False):
    words, kept = list(text), None
    for _ in range(count):
        scores, kept = step(words, None if forget else kept)
        words.append(int(scores.argmax()))
    return words[len(text) :]


RIGHT = {
    "write-on": [write_on, one_by_one],
    "cache-size": [
        lambda layers, heads, head_dim, tokens: 2 * layers * heads * head_dim * tokens,
        lambda *sizes: float(2 * sizes[0] * sizes[1] * sizes[2] * sizes[3]),
    ],
}
WRONG = {
    "write-on": [
        ("1, 4] and 4 new words the words are right, but the model was handed 18", partial(all_again, forget=True)),
        ("the likeliest words are", all_again),
        ("returned the text as well", lambda *given: [*given[1], *write_on(*given)]),
        ("it returned None; return a list of 4 whole numbers", lambda *given: None),
        ("The model was handed 4; it takes a list", lambda step, text, count: step(text[-1], None)),
        ("The model was handed [0] as what was kept", lambda step, text, count: step(text, [0])),
    ],
    "cache-size": [
        ("For 3 layers, 5 heads, 7 features and 11 tokens it is 7; it should be 2,310.", lambda *sizes: 7),
        ("Keys are kept, and values too.", lambda *sizes: math.prod(sizes)),
    ],
}
