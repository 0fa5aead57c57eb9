"""The way through two heads names what each step is."""

from matplotlib.text import Annotation

from unmasked_lessons.figures.slices import two_heads


def test_each_head_has_a_column_of_its_own_and_one_matrix_reads_both():
    (axes,) = two_heads(32).axes
    told = {text.get_text(): text.get_position() for text in axes.texts if text.get_text()}
    assert next(iter(told)) == "query, key and value, 32 numbers each"
    assert [*told][-2:] == ["output projection", "32 numbers, mixed"]
    for head in (0, 1):
        column = [told[f"slice {head} of q, k, v"], told[f"head {head}"], told[f"average {head}"]]
        assert len({round(x, 6) for x, _ in column}) == 1
        heights = [height for _, height in column]
        assert heights == sorted(heights, reverse=True)
    assert told["head 0"][0] < told["output projection"][0] < told["head 1"][0]


def test_arrows_lead_down():
    (axes,) = two_heads(32).axes
    arrows = [text for text in axes.texts if isinstance(text, Annotation)]
    assert len(arrows) == 7
    assert all(text.xy[0] == text.xyann[0] and text.xy[1] < text.xyann[1] for text in arrows)
