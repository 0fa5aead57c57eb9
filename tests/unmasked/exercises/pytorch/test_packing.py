import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from unmasked import masks
from unmasked.exercises import check


def by_hand(ids: Tensor) -> Tensor:
    runs, document = [], -1
    for place, each in enumerate(ids.tolist()):
        document += place == 0 or each != ids[place - 1].item()
        runs.append(document)
    return torch.tensor([[i >= j and runs[i] == runs[j] for j in range(len(ids))] for i in range(len(ids))])


def by_value(ids: Tensor) -> Tensor:
    return (ids[:, None] == ids).tril()


@pytest.mark.parametrize("answer", [by_hand, lambda ids: by_hand(ids)[None, None]])
def test_any_packed_causal_mask_is_right(answer: object) -> None:
    assert repr(check("packed-causal", answer)) == "packed-causal: right. A token sees its own document, up to itself."


@pytest.mark.parametrize(
    ("answer", "told", "cause"),
    [
        (masks.documents, "A token sees the later ones of its document.", "no-causal-mask"),
        (lambda ids: masks.causal(len(ids)), "A document sees those before it.", "packed-without-documents"),
        (by_value, "[1, 1, 0, 1]]; it should be", None),
        (by_value, "An id that comes back is another document.", None),
        (lambda ids: ~by_hand(ids), "True must say what a query may see, not what it may not.", "mask-polarity"),
        (lambda ids: by_hand(ids).float(), "for the ids [0, 0, 1] is torch.float32; it should be torch.bool.", None),
        (lambda ids: by_hand(ids)[0], "The shape for the ids [0, 0, 1] is (3,); it should be (3, 3).", None),
        (lambda ids: torch.zeros(len(ids), len(ids)).bool(), "it should be [[1, 0, 0], [1, 1, 0], [0, 0, 1]].", None),
        (lambda ids: [], "It returned list; return a tensor.", None),
    ],
)
def test_a_packed_mask_that_is_wrong_is_told(answer: object, told: str, cause: str | None) -> None:
    feedback = check("packed-causal", answer)
    assert not feedback
    assert told in feedback.message
    assert feedback.cause == cause


@pytest.mark.parametrize(
    "answer",
    [
        lambda lengths: F.pad(lengths.cumsum(0), (1, 0)).int(),
        lambda lengths: torch.tensor([0, *lengths.cumsum(0).tolist()], dtype=torch.int32),
    ],
)
def test_cumulative_lengths_are_right(answer: object) -> None:
    assert check("cumulative-lengths", answer)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            lambda lengths: lengths.cumsum(0),
            "For the lengths [3, 4, 2] it is [3, 7, 9]; it should be [0, 3, 7, 9]. The zero is missing: the first "
            "document begins there.",
        ),
        (
            lambda lengths: lengths.cumsum(0) - lengths,
            "For the lengths [3, 4, 2] it is [0, 3, 7]; it should be [0, 3, 7, 9]. The end is missing: the last "
            "document ends there.",
        ),
        (
            lambda lengths: F.pad(lengths.cumsum(0), (1, 0)),
            "The numbers are right, and their dtype is torch.int64; kernels take torch.int32.",
        ),
        (lambda lengths: lengths, "For the lengths [3, 4, 2] it is [3, 4, 2]; it should be [0, 3, 7, 9]."),
    ],
)
def test_cumulative_lengths_that_are_wrong_are_told(answer: object, message: str) -> None:
    assert check("cumulative-lengths", answer).message == message


def test_positions_begin_anew_in_each_document() -> None:
    assert check("restarted-positions", lambda ids: by_hand(ids).sum(-1) - 1).message == "Each document begins at zero."


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            lambda ids: by_hand(ids).sum(-1),
            "For the ids [0, 0, 1] it is [1, 2, 1]; it should be [0, 1, 0]. Positions are counted from zero.",
        ),
        (
            lambda ids: torch.arange(len(ids)),
            "For the ids [0, 0, 1] it is [0, 1, 2]; it should be [0, 1, 0]. They run on.",
        ),
        (
            lambda ids: by_value(ids).sum(-1) - 1,
            "For the ids [5, 5, 3, 5] it is [0, 1, 0, 2]; it should be [0, 1, 0, 0]. An id that comes back is another "
            "document.",
        ),
        (lambda ids: ids, "For the ids [0, 0, 1] it is [0, 0, 1]; it should be [0, 1, 0]."),
    ],
)
def test_positions_that_do_not_begin_anew_are_told(answer: object, message: str) -> None:
    assert check("restarted-positions", answer).message == message
