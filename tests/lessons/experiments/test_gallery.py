import pytest
import torch

from unmasked.functional import self_attention
from unmasked_doctor.museum import ENTRIES
from unmasked_lessons.exercises.museum.index import WRONG
from unmasked_lessons.experiments.gallery import context_of, pairs

X = torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(3))


def test_the_right_versions_see_no_later_token_where_they_are_causal():
    maps = pairs(X, 2)
    assert WRONG.keys() < maps.keys()
    for slug in ("no-causal-mask", "alibi-sign", "softcap-after-mask", "packed-without-documents"):
        assert torch.tensor(maps[slug]["right"]).triu(1).max() < 1e-6, slug
    for slug in ("no-causal-mask", "softcap-after-mask", "is-causal-is-a-hint"):
        assert torch.tensor(maps[slug]["wrong"]).triu(1).max() > 1e-6, slug
    assert torch.tensor(maps["fully-masked-row"]["wrong"])[:2].isnan().all()


def test_a_line_is_run_as_it_stands():
    entry = ENTRIES["padding-ignored"]
    assert torch.allclose(context_of("padding-ignored", entry.wrong, 2)(X), self_attention(X).context)
    allowed = torch.tensor([True, True, False, False])
    expected = self_attention(X, allowed=allowed).context
    assert torch.allclose(context_of("padding-ignored", entry.right, 2)(X), expected)


def by_hand(slug: str) -> torch.Tensor:
    """What the wrong version gives, from scores and a mask of its own."""
    scores, causal = X @ X.mT / 8**0.5, torch.ones(4, 4).tril().bool()
    if slug == "softcap-after-mask":
        capped = 5 * (scores.masked_fill(~causal, -torch.inf) / 5).tanh()
        return capped.softmax(-1) @ X
    if slug == "global-d-k":
        return (X @ X.mT / 50**0.5).softmax(-1) @ X
    if slug == "packed-without-documents":
        return scores.masked_fill(~causal, -torch.inf).softmax(-1) @ X
    last = torch.tensor([[True, False, False, False], [True, True, False, False]])
    return scores[:, -2:].masked_fill(~last, -torch.inf).softmax(-1) @ X


@pytest.mark.parametrize("slug", ["softcap-after-mask", "global-d-k", "packed-without-documents", "top-left-causal"])
def test_a_wrong_line_gives_what_it_gives_by_hand(slug: str):
    torch.testing.assert_close(context_of(slug, ENTRIES[slug].wrong, 2)(X), by_hand(slug))


def test_packed_documents_are_apart_where_the_line_is_right():
    assert torch.tensor(pairs(X, 2)["packed-without-documents"]["right"])[3, :3].max() < 1e-6


@pytest.mark.parametrize("slug", ["batch-first-forgotten", "is-causal-is-a-hint"])
def test_a_line_that_makes_a_module_moves_no_random_generator(slug: str):
    before = torch.get_rng_state()
    context_of(slug, ENTRIES[slug].wrong, 2)(X)
    assert torch.equal(torch.get_rng_state(), before)
