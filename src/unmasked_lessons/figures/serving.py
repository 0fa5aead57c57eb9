"""What lies in pages of keys and values, and how far a mistake leads from what is right."""

import torch
from torch import Tensor


def pages(tables: Tensor, lengths: Tensor, page: int) -> tuple[dict[str, Tensor], Tensor]:
    """Say what lies in each place of the pages that the texts, of these lengths, name: (texts, pages).

    The number of the text and that of the word in it, (pages, places) each, up to the last page that is named; and
    where these mean something, since other places are free.
    """
    of_text, of_word = torch.zeros(2, int(tables.max()) + 1, page, dtype=torch.long)
    taken = torch.zeros_like(of_text, dtype=torch.bool)
    for number, (table, length) in enumerate(zip(tables, lengths.tolist(), strict=True)):
        word = torch.arange(length)
        at = table[word // page], word % page
        of_text[at], of_word[at], taken[at] = number, word, True
    return {"text": of_text, "word": of_word}, taken


def off(found: Tensor, right: Tensor) -> float:
    """The difference as a share of the size of what is right."""
    return float((found - right).norm() / right.norm())
