"""Derivatives in formulas, and what they count."""

import math

import numpy as np
import pytest
import torch

from proofread.formulas import Formula, check, mutants, survivors


def cube(x):
    return x**3


def weigh(x, y):
    return x * x * y


def energy(v):
    return (v**4).sum()


def squares(v):
    return v**2


def constant(x):
    return x


def tensors(x):
    return torch.sin(torch.as_tensor(x))


PAGE = {name: value for name, value in globals().items() if getattr(value, "__module__", "") == __name__}
WHERE = """f = cube; g = weigh; E_0 = energy; q = squares; w = constant(2.5); a = constant(0.7); b = constant(1.9);
n = constant(7); k = constant(3); x = constant(np.array([0.4, -1.2, 2.0])); sigma = tensors; p = constant(3)"""

HOLDS = r"""
\binom{n}{k} = \frac{n!}{k! (n - k)!} = 35
\binom{a}{2} = \frac{a (a - 1)}{2}
\sum_{j=0}^{n} \binom{n}{j} = 2^n
(n - 4)! = 6, \quad n! + 1 = 5041
\lVert x \rVert_p^p = \sum_i |x_i|^p
\lVert x \rVert_{1.5} = \left(\sum_i |x_i|^{1.5}\right)^{1/1.5}
\lVert x x^\top \rVert_* = \lVert x \rVert_2^2
\mathbb{E}_i[x_i] = \frac{1}{3} \sum_i x_i = 0.4
\mathbb{E}_{i}[(x_i - a)^2] = \frac{1}{3} \sum_i (x_i - a)^2
\mathbb{E}_{i \le 2}[x_i] = -0.4
f'(a) = 3 a^2
f''(a) = 6a
\sigma'(a) = \cos a
\frac{d}{dw} f(w) = 3 w^2
\frac{\mathrm{d}}{\mathrm{d}w} w^2 = 2w
\frac{d^2}{dw^2} f(w) = 6w
\frac{\partial}{\partial a} g(a, b) = 2 a b
\frac{\partial^2}{\partial a \partial b} g(a, b) = 2a
\frac{\partial g(a, b)}{\partial b} = a^2
\nabla_x E_0(x) = 4 (x \odot x \odot x)
\frac{\partial}{\partial x_i} E_0(x) = 4 x_i \cdot x_i \cdot x_i
\frac{\partial}{\partial x_j} q(x)_i = [i = j] \cdot 2 x_i
""".strip().splitlines()


@pytest.mark.parametrize("latex", HOLDS)
def test_what_holds_is_accepted(latex):
    assert check(Formula(latex, where=WHERE), PAGE) == []


@pytest.mark.parametrize(
    ("latex", "error"),
    [
        (r"\binom{n}{2} = 35", r"\binom{n}{2} is 21, 35 is 35"),
        (r"n! = 5041", "n! is 5040, 5041 is 5041"),
        (r"a! = 1", "a limit, an index or a size is an integer, not 0.7"),
        (r"(1 - n)! = 1", "a factorial is of 0, 1, 2 and so on"),
        (r"n!! = 105", "a double factorial is not read"),
        (r"a^n! = 1", "what ! is of can be read in two ways: use parentheses"),
        (r"\lVert a \rVert_3 = a", "a p-norm is of a vector, and p is positive: this is of 0.7"),
        (r"\lVert x \rVert_{op} = a", "o is not bound"),
        (r"\mathbb{E}[x] = a", r"of a mean, say over which index, as in \mathbb{E}_i[x_i], or bind E to a function"),
        (r"f'(a) = 2 a^2", "does not hold: f'(a) is 1.47, 2 a^2 is 0.98"),
        (r"f'(a) = 3.0001 a^2", "does not hold"),
        (r"f'''(a) = 6", "the third derivative by differences would be noise: write it otherwise"),
        (r"f'(x) = a", "`x`: is no number: index it"),
        (
            r"\frac{d}{dw} f(w) g(w, a) = 1",
            "where ends what is differentiated can be read in two ways: use parentheses",
        ),
        (r"\frac{\partial a}{\partial b} = 1", "nothing says how a depends on b: write it out"),
        (r"\frac{\partial}{\partial x} q(q(x) x^\top) = 1", "only a number is differentiated: index it"),
        (r"\int_0^1 f(t) \, dt = 1", r"\int is not in the grammar"),
        (r"\lim_{t \to 0} f(t) = 0", r"\lim is not in the grammar"),
        (r"\sum_{m=1}^\infty \frac{1}{m^2} = 1.6", "`\\infty`: a limit, an index or a size is an integer, not inf"),
    ],
)
def test_what_does_not_hold_or_has_no_value_says_why(latex, error):
    (message, *_) = check(Formula(latex, where=WHERE), PAGE)
    assert error in message


def test_a_bound_d_could_be_a_factor():
    (message,) = check(Formula(r"\frac{d}{dw} f(w) = 3 w^2", where=WHERE + "; d = constant(4)"), PAGE)
    assert r"d is bound, so this could be a quotient: write \mathrm{d} or \partial" in message


def test_single_precision_has_rougher_derivatives():
    page = {"page": lambda x: np.float32(math.sin(x))}
    assert check(Formula(r"s'(0.5) = \cos 0.5", where="s = page"), page) == []
    assert check(Formula(r"s'(0.5) = \cos 0.6", where="s = page"), page) != []


@pytest.mark.parametrize(
    ("latex", "noticed"),
    [
        (r"f'(a) = 3 a^2", "derivative dropped"),
        (r"\binom{n}{k} = 35", "arguments swapped"),
        (r"n! = 5040", "factorial dropped"),
    ],
)
def test_mistakes_in_them_are_noticed(latex, noticed):
    formula = Formula(latex, where=WHERE)
    assert noticed in {mutant.what for mutant in mutants(formula, PAGE)}
    assert survivors(formula, PAGE) == []
