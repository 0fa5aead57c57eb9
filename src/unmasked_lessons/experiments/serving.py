"""The content of pages of keys and values, and the error that a mistake leads to."""

import torch
from torch import Tensor


def pages(tables: Tensor, lengths: Tensor, page: int) -> tuple[dict[str, Tensor], Tensor]:
    """Find the word in each place of the pages that the texts, of these lengths, name: (texts, pages).

    Returned are the index of the "text" and of the "word" in it, (pages, places) each, up to the last page that is
    named; and a mask of the places that are taken.
    """
    of_text, of_word = torch.zeros(2, int(tables.max()) + 1, page, dtype=torch.long)
    taken = torch.zeros_like(of_text, dtype=torch.bool)
    for text, (table, length) in enumerate(zip(tables, lengths.tolist(), strict=True)):
        word = torch.arange(length)
        at = table[word // page], word % page
        of_text[at], of_word[at], taken[at] = text, word, True
    return {"text": of_text, "word": of_word}, taken


def off(result: Tensor, right: Tensor) -> float:
    """Return the difference as a share of the size of the right tensor."""
    return float((result - right).norm() / right.norm())
