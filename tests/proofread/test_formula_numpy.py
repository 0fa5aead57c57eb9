"""Formulas over arrays of numpy, with torch there and without it."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from proofread.formulas import Formula, check
from proofread.formulas.scope import Scope


def double(x):
    return 2 * x


BLOCKED = r"""
import sys
sys.modules["torch"] = None  # whoever imports it gets an ImportError
import numpy as np
from proofread.formulas import check, find, survivors

(formula,) = find(r'''$$S = \frac{Q K^\top}{\sqrt{d}}$$
<!-- where: Q, K = random("n d", "m d"); S = scores(Q, K) -->''')
page = {"scores": lambda Q, K: Q @ K.T / np.sqrt(Q.shape[1])}
print(check(formula, page), [mutant.latex for mutant in survivors(formula, page)])
(wrong,) = find(f"$${formula.latex.replace('d', 'n')}$$ <!-- where: {formula.where} -->")
print(check(wrong, page))
(torchs,) = find("$x = 2$ <!-- where: x = torch.ones(2) -->")
print(check(torchs, page))
"""


def test_formulas_over_numpy_need_no_torch():
    holds, wrong, torchs = subprocess.check_output([sys.executable, "-c", BLOCKED], text=True).splitlines()
    assert holds == "[] []"
    assert "does not hold: S is an array of shape (3, 4) (" in wrong
    assert "fails: ModuleNotFoundError: import of torch halted; None in sys.modules" in torchs


@pytest.mark.parametrize(
    ("page", "where", "kind"),
    [
        ({"np": np}, "", np.ndarray),
        ({"y": np.ones(2)}, "", np.ndarray),
        ({"np": np, "torch": torch}, "", torch.Tensor),
        ({"np": np}, "y = torch.ones(2);", torch.Tensor),
        ({}, "", np.ndarray),
        ({"check": check}, "", np.ndarray),  # whose package imports numpy
        ({"y": torch.ones(2)}, "", torch.Tensor),
    ],
)
def test_random_draws_what_the_page_uses(page, where, kind):
    scope = Scope(f'{where}x, a = random("n d", "")', page)
    assert isinstance(scope.value("x"), kind)
    assert str(scope.value("x").dtype).endswith("float64")
    assert isinstance(scope.value("a"), float)


def test_a_where_leaves_numpys_random_state_alone():
    state = np.random.get_state()[1].tolist()
    assert check(Formula("t = 2u", where="u = np.random.randn(3); t = double(u)"), {"np": np, "double": double}) == []
    assert np.random.get_state()[1].tolist() == state


@pytest.mark.parametrize(
    ("latex", "value"),
    [
        ("2 v_2 = 6", [1, 3, 2]),
        (r"\sum_i v_i = 6", [1, 3, 2]),
        ("(M w)_2 = 11", [[1, 2], [3, 4]]),
        ("M_{2,1} = 3", [[1, 2], [3, 4]]),
        ("M_{2,1} = 3", [torch.tensor([1, 2]), torch.tensor([3, 4])]),
        ("v_2 = 3", np.array([1, 3, 2], dtype=np.int8)),
        ("v + 0 = 2.5", np.float32(2.5)),
        ("v + 0 = 3", np.int64(3)),
        ("M M = M^2", np.array([[1.0, 2.0], [3.0, 4.0]]).view(np.matrix)),
        (r"M \odot M = (M^\top \odot M^\top)^\top", np.array([[1.0, 2.0], [3.0, 4.0]]).view(np.matrix)),
        ("v_1 + v_2 = 1", np.array([True, False])),
        ("v_2 = 3", torch.tensor([1.0, 3.0], dtype=torch.bfloat16)),
    ],
)
def test_lists_and_numpys_scalars_count_like_arrays(latex, value):
    assert check(Formula(latex, where=""), {"v": value, "M": value, "w": [1, 2]}) == []


@pytest.mark.parametrize(
    ("latex", "value", "error"),
    [
        (
            "2 v = u",
            [np.ones(2), np.ones(3)],
            "`v`: is a list of what is no number or has several shapes, not a number",
        ),
        ("v = u", [1, 2], "v is an array of shape (2,) (1, 2), u is an array of shape (2,) (2, 1)"),
        ("v_{12} = 2", [[1, 2], [3, 4]], "12 could be one index or several: separate them with commas"),
        ("v + 0 = v", np.array([1j, 2]), "formulas are read over real numbers, and `where` or the page gives an array"),
        ("v + 0 = v", np.array(["a", "b"]), "of shape (2,) of <U1"),
        ("v + 0 = v", np.ma.masked_array([1.0, 2.0], [True, False]), "of shape (2,) of masked entries"),
        ("v + 0 = v", torch.tensor([1j, 2]), "an array of shape (2,) of complex64"),
    ],
)
def test_lists_and_arrays_that_no_formula_can_take_are_refused(latex, value, error):
    (message,) = check(Formula(latex, where=""), {"v": value, "u": [2, 1]})
    assert error in message


def test_single_precision_of_numpy_is_compared_to_its_own_rounding():
    single = np.array([0.1, 0.7, 1.3], dtype=np.float32)
    page = {"u": single * np.float32(3.1), "v": single}
    assert check(Formula("u = 3.1v", where=""), page) == []
    assert check(Formula("u = 3.11v", where=""), page) != []
