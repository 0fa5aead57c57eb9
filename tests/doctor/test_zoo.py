"""The doctor on modules whose authors did not know it: no right one is accused, and nearly all bugs are found.

A run judges a third of them, and all with `ZOO=all`: see zoo/drawn.py.
"""

import inspect

import pytest

from unmasked_doctor import Report

from .zoo import caches, drawn, masks, order, plain, positions, runs, weights
from .zoo.cases import Case, Style

# Of several authors, and of the doctor's own, in families that it had missed. A wrong one has the cause that the museum
# has for it, or None, and a right twin.
FAMILIES = (plain, masks, caches, positions, weights, order, runs)
STRANGERS = [case for family in FAMILIES for case in family.CASES]
WRONG = {case.name: case for case in STRANGERS if case.twin is not None}
RIGHT = {case.name: case for case in STRANGERS if case.twin is None}
# The twins, each once, and without those that are among the right ones.
OF_TWINS = {case.twin.key: name for name, case in WRONG.items() if case.twin is not None}
TWINS = {
    name: WRONG[name].twin for key, name in OF_TWINS.items() if key not in {case.style.key for case in RIGHT.values()}
}
JUDGED = drawn.by_this_run(FAMILIES)
# What is not found, and why: the one before what it takes to find it.
UNSEEN = {
    "swin-table-transposed": "a learned table is right in either direction",
    "alibi-slopes-reversed": "the order of the slopes is a choice; only the checkpoint says which",
    "grouped-queries-viewed-the-other-way": "which heads share a key is a choice; only the checkpoint says which",
    "padding-broadcast-over-keys": "its mask is (batch, keys), which is seen as one of (queries, keys) too",
    "mla-absorbed-wrong-half": "each half of the up-projection is a projection: only the checkpoint says which",
    "half-for-the-kernel": "a cast to 16 bits inside may be meant, as for a kernel that takes nothing else",
    "strip-padding-visible": "its windows are padded inside, where no token is",
    "linear-epsilon-of-one": "attention that makes no table of weights is not looked into",
    "kernel-efficient": "attention that makes no table of weights is not looked into",
    "skew-from-the-start": "positions that are more than a turn or a bias are left open",
    "query-turned-into-key": "a turn that is no linear map is left open",
    "window-one-short-on-the-left": "whether a window should be longer on one side is left open",
    "decay-on-weights": "a table that the weights are multiplied by is left open",
    "relative-bias-on-weights": "a table that is added to the weights is left open",
    "window-by-zeros": "scores of zero, which a rectifier makes too, are left open",
    "largest-else-zero": "scores of zero, which a rectifier makes too, are left open",
    "qk-layernorm-large-epsilon": "norms are taken as given, their epsilons too",
}
# What is found under another name than the museum's for it.
OTHERWISE: dict[str, str | None] = {
    "float-future-added-as-ones": "boolean-mask-added",
    "seq-first-view-split": "batch-indexed-for-head",
    "tri-polarity": None,
    "window-without-a-future-bound": None,
    "channels-view": None,
    "channels-merge": None,
    "merge-through-features": None,
    "sums-not-rescaled": None,
    "merged-masks-replaced": None,
}


# What differs in right ones, as it does in none of the others.
_UNUSED = (  # they have a parameter that counts for nothing
    "graph-conv-attention", "own-linear-gate", "own-linear-convolved", "own-linear-convolved-gate", "sorted-chunks",
    "sorted-not-put-back", "image-tokenizer-bias",
)  # fmt: skip
MEANT: dict[str, set[str]] = {name: {"parameters"} for name in _UNUSED}


def examined(case: Case) -> Report:
    return case.style.examine()


def shown(report: Report, style: Style) -> str:
    """The report, the options and the source of a module, which are printed where a test fails."""
    return f"{report.text()}\n\n{style.options}\n\n{inspect.getsource(style.family)}"


@pytest.mark.filterwarnings("ignore")  # of FlexAttention, quantization and scripts, which are the modules' own
@pytest.mark.parametrize("name", [name for name in RIGHT if name in JUDGED])
def test_a_right_module_is_not_accused(name: str) -> None:
    report = examined(RIGHT[name])
    assert report.ok, shown(report, RIGHT[name].style)
    assert {each.step for each in report.differences} == MEANT.get(name, set()), shown(report, RIGHT[name].style)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in TWINS if name in JUDGED])
def test_the_right_twin_of_a_wrong_module_is_not_accused(name: str) -> None:
    report = TWINS[name].examine()
    assert report.ok, shown(report, TWINS[name])
    assert {each.step for each in report.differences} == MEANT.get(name, set()), shown(report, TWINS[name])


def test_no_stranger_stands_there_twice_or_has_a_slip_that_changes_nothing() -> None:
    assert len(RIGHT) + len(WRONG) == len(STRANGERS)
    assert len({case.style.key for case in STRANGERS}) == len(STRANGERS)
    assert not [case.name for case in WRONG.values() if case.twin is None or case.style.key == case.twin.key]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in WRONG if name in JUDGED])
def test_a_wrong_module_is_found_and_named(name: str) -> None:
    report = examined(WRONG[name])
    source = shown(report, WRONG[name].style)
    assert (not report.named) is (name in UNSEEN), source
    cause = OTHERWISE.get(name, WRONG[name].cause)
    assert not report.named or cause is None or report.causes == (cause,), source
    assert all(finding.evidence for finding in report.named), source


def test_few_are_not_found_or_named_otherwise() -> None:
    assert UNSEEN.keys() | OTHERWISE.keys() <= WRONG.keys()
    assert len(UNSEEN) <= 0.1 * len(WRONG)
    assert len(UNSEEN) + len(OTHERWISE) <= 0.25 * len(WRONG)


def test_the_strangers_that_are_judged_are_a_third_and_each_change_of_the_doctor_draws_others() -> None:
    draws = [drawn.judged(FAMILIES, str(digest), set()) for digest in range(30)]
    assert all(0.25 < len(draw) / len(STRANGERS) < 0.42 for draw in draws)
    assert set().union(*draws) == RIGHT.keys() | WRONG.keys()


@pytest.mark.parametrize("digest", "ab")
def test_all_strangers_of_a_file_that_changed_are_judged(digest: str) -> None:
    by_lot = drawn.judged(FAMILIES, digest, set())
    assert drawn.judged(FAMILIES, digest, {"runs"}) == by_lot | {case.name for case in runs.CASES}
    takes_from_positions = (caches, order, positions, runs)
    of_positions = {case.name for family in takes_from_positions for case in family.CASES}
    assert drawn.judged(FAMILIES, digest, {"positions"}) == by_lot | of_positions
    for all_of_them in ({"attention"}, {"cases"}, {"test_zoo"}, None):
        assert drawn.judged(FAMILIES, digest, all_of_them) == RIGHT.keys() | WRONG.keys()
