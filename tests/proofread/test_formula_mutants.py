r"""Mutants that survive: which of them say the same as their formula, and what to write about the others."""

import re

import numpy as np
import pytest

from proofread.formulas import Formula, check, complaints


def double(x):
    return 2 * x


def covariance(x):
    return (x - x.mean(0)).T @ (x - x.mean(0))


def mixed(C, x):
    return C @ x


def largest(s):
    return np.maximum.accumulate(s)


def projection(x):
    return x @ np.linalg.pinv(x)


PAGE = {each.__name__: each for each in (double, covariance, mixed, largest, projection)} | {"np": np}
ALIKE = "A = double(2.5); a = A; y = double(A * a) / 2"


def told(latex, where):
    formula = Formula(latex, where=where)
    assert check(formula, PAGE) == []
    return complaints(formula, PAGE)


def test_some_rows_of_a_symmetric_matrix_tell_it_from_its_transpose():
    where = 'x = random("n"); C = covariance(random("m n")){0}; y = mixed(C, x)'
    (said,) = told(r"y_i = \sum_{j=1}^{n} C_{ij} x_j", where.format(""))
    assert "(indices swapped: `j i` for `ij`)" in said
    assert told(r"y_i = \sum_{j=1}^{n} C_{ij} x_j", where.format("[:2]")) == []


def test_no_mutant_explains_a_symbol_by_itself():
    assert told(r"m_t = \max(m_{t-1}, s_t)", 's = random("5"); m = largest(s)') == []
    (turned, *_) = told("P = P P", 'P = projection(random("4 2"))')  # which says itself what P is by P
    assert "(transposition added: `{P^\\top}` for `P`)" in turned


@pytest.mark.parametrize(
    ("latex", "where", "said"),
    [
        (
            r"S = Q K^\top",
            'Q = random("n d"); K = Q; S = double(Q @ K.T) / 2',
            'nor from 2 more wrong versions; write `K = random("n d")` there',
        ),
        ("y = n a", "a = double(1.5); n = 3; y = double(a * n) / 2", "write `n = 4` there"),
        ("y = A a", ALIKE, "(symbol replaced: `{a}` for `A`); bind its symbols to other values there, or, if the"),
    ],
)
def test_a_mutant_that_survives_is_told_with_what_to_write(latex, where, said):
    assert said in " ".join(told(latex, where))


def test_what_is_told_to_bind_does():
    where = 'Q = random("n d"); K = Q; S = double(Q @ K.T) / 2'
    (said,) = told(r"S = Q K^\top", where)
    (binding,) = re.findall(r"write `(.*?)` there", said)
    assert told(r"S = Q K^\top", where.replace("K = Q", binding)) == []
