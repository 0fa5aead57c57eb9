"""Right and wrong answers to the exercises of museum/heads."""

from unmasked.heads import split_heads


def by_view(merged, num_heads):
    b, n, e = merged.shape
    return merged.view(b, num_heads, n, e // num_heads).transpose(1, 2).reshape(b, n, e)


RIGHT = {
    "sizes-that-tell": [(2, 5, 3, 4), [3, 4, 2, 5], {"batch": 2, "tokens": 3, "heads": 4, "head_dim": 5}, (2, 2, 2, 3)],
    "undo-a-bare-merge": [by_view],
}
WRONG = {
    "sizes-that-tell": [
        ("tokens, heads, head_dim) = (1, 5, 3, 4), 2 of 14 mistakes hide, such as [only-first-item]", (1, 5, 3, 4)),
        ("heads, head_dim) = (2, 1, 3, 4), 12 of 14 mistakes hide, such as [merge-without-transpose]", (2, 1, 3, 4)),
        ("heads, head_dim) = (2, 5, 1, 4), 3 of 14 mistakes hide, such as [merge-without-transpose]", (2, 5, 1, 4)),
        ("tokens, heads, head_dim) = (2, 5, 3, 1), 1 of 14 mistakes hide, such as [missing-scale]", (2, 5, 3, 1)),
        ("tokens, heads, head_dim) = (2, 5, 3, 3), 1 of 14 mistakes hide, such as [swapped-view]", (2, 5, 3, 3)),
        ("1000, 32, 64), 20,480,000 numbers; a test that is run often should be small.", (10, 1000, 32, 64)),
        ("You gave (2, 5, 3); give four whole numbers above zero: batch, tokens, heads, head_dim.", (2, 5, 3)),
        ("You gave (2, 5, 0, 1); give four whole numbers above zero: batch, tokens, heads, head_dim.", (2, 5, 0, 1)),
    ],
    "undo-a-bare-merge": [
        ("The input came back as it was. [merge-without-transpose]", lambda merged, num_heads: merged),
        (
            "That is split as if it were merged rightly, and merged barely again. [view-without-transpose]",
            lambda merged, n: split_heads(merged, n).reshape(merged.shape),
        ),
        ("1.0, 2.0, 3.0]]]; it should be [[[0.0, 1.0, 6.0, 7.0], [2.0, 3.0,", lambda merged, n: merged.flip(1)),
        ("right; with 3 it is off by up to 4.62.", lambda merged, n: by_view(merged, 2) if n == 2 else merged.neg()),
        ("1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0], [8.0, 9.0, 10.0, 11.0]]] it", lambda merged, n: None),
        (", 10.0, 11.0]]] the shape is (1, 4, 3); it should be (1, 3, 4).", lambda merged, n: merged.mT),
    ],
}
