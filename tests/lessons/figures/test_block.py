"""The drawing of a block leads lines where information moves, and the curves of its costs are those that are given."""

import torch
from matplotlib.colors import to_hex

from unmasked_lessons.figures import block
from unmasked_lessons.figures._drawing import AMBER, TEAL, VIOLET

WORDS = ["my", "ship", "left"]


def test_a_line_leads_from_each_word_to_those_that_learn_from_it():
    first, second = torch.ones(3, 3).tril().bool(), torch.eye(3).bool()
    (axes,) = block.block({"attention": first, "MLP": second}, WORDS).axes
    lines = {color: [line for line in axes.lines if line.get_color() == color] for color in (TEAL, AMBER)}
    for moved, color, bottom in ((first, TEAL, 0.0), (second, AMBER, block.END)):
        ways = {tuple(line.get_xdata()) for line in lines[color]}
        assert ways == {(origin, to) for to, origin in moved.nonzero().tolist()}
        assert all(bottom < height < bottom + block.END for line in lines[color] for height in line.get_ydata())
    texts = [text.get_text() for text in axes.texts]
    assert sorted(texts) == sorted(["attention", "norm", "MLP", "norm", *WORDS, *(f"{word}′" for word in WORDS)])
    assert len(axes.patches) == 2 * len(WORDS)  # a norm before each part, for each word
    assert len([line for line in axes.lines if line.get_marker() == "+"]) == 2 * len(WORDS)
    assert {to_hex(patch.get_facecolor()) for patch in axes.patches} == {VIOLET}
