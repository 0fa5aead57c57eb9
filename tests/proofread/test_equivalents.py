"""Mutants that are as true as their formula: what accepts them as a class, and what to write about the others."""

import re

import numpy as np
import pytest

from proofread.formulas import Formula, check, complaints, survivors


def double(x):
    return 2 * x


def covariance(x):
    return (x - x.mean(0)).T @ (x - x.mean(0))


def mixed(C, x):
    return C @ x


def orthogonal(n):
    return np.linalg.qr(np.random.default_rng(0).standard_normal((n, n)))[0]


def gauss(f, a, b, n):
    x, w = np.polynomial.legendre.leggauss(n)
    return (b - a) / 2 * np.sum(w * f((b - a) / 2 * x + (a + b) / 2))


PAGE = {each.__name__: each for each in (double, covariance, mixed, orthogonal, gauss)} | {"np": np, "f": np.exp}
SYMMETRIC = 'x = random("n"); C = covariance(random("m n")); y = mixed(C, x)'
QUADRATURE = (
    'n = 4; x, w = gauss.__globals__["np"].polynomial.legendre.leggauss(n); a, b = random("", ""); '
    "x = double(x) / 2; w = double(w) / 2; G = gauss(f, a, b, n)"
)
LARGER = "a = double(1.5); b = double(0.4); y = double(max(a, b))"
RULE = r"G = \frac{b - a}{2} \sum_{i=1}^{n} w_i f(\frac{b - a}{2} x_i + \frac{a + b}{2})"


def told(latex, where, *equivalent):
    formula = Formula(latex, where=where, equivalent=equivalent)
    assert check(formula, PAGE) == []
    return complaints(formula, PAGE)


@pytest.mark.parametrize(
    ("latex", "where", "identity"),
    [
        (r"y_i = \sum_{j=1}^{n} C_{ij} x_j", SYMMETRIC, "C_{ij} = C_{ji}"),
        ("y = C x", SYMMETRIC, r"C = C^\top"),
        (RULE, QUADRATURE, r"x_i = -x_{n + 1 - i}, \quad w_i = w_{n + 1 - i}"),
        (r"W^\top W = I", "W = orthogonal(4); I = np.eye(4)", r"W^\top W = W W^\top"),
        (r"y = 2 \max(a, b)", LARGER, "a > b"),
        (r"y = 2 \max(a, b)", LARGER, r"b \le a"),
        (r"y = a K Q", "a = 0.3; Q = double(0.7); K = Q; y = double(a * K * Q / 2)", "K = Q"),
    ],
)
def test_an_identity_accepts_a_class_of_mutants(latex, where, identity):
    assert told(latex, where)
    assert told(latex, where, identity) == []


@pytest.mark.parametrize(
    ("latex", "where", "said"),
    [
        (
            r"S = Q K^\top",
            'Q = random("n d"); K = Q; S = double(Q @ K.T) / 2',
            'and 2 more mutants like it: tell them apart in its `where`, by `K = random("n d")`',
        ),
        ("y = n a", "a = double(1.5); n = 3; y = double(a * n) / 2", "tell them apart in its `where`, by `n = 4`"),
        ("y = C x", SYMMETRIC, "or if it is meant, say `<!-- equivalent: C_{ij} = C_{ji} -->`"),
        (RULE, QUADRATURE, r"say `<!-- equivalent: w_i = w_{n + 1 - i}, \quad x_i = -x_{n + 1 - i} -->`"),
        ("y = A a", "A = double(2.5); a = A; y = double(A * a) / 2", "(symbol replaced: `{a}` for `A`), and 1 more"),
        ("y = A a", "A = double(2.5); a = A; y = double(A * a) / 2", "say `<!-- equivalent: A = a -->`"),
    ],
)
def test_a_mutant_that_survives_is_told_with_what_to_write(latex, where, said):
    assert said in " ".join(told(latex, where))


@pytest.mark.parametrize(
    ("latex", "where"),
    [("y = C x", SYMMETRIC), (RULE, QUADRATURE), ("y = A a", "A = double(2.5); a = A; y = double(A * a) / 2")],
)
def test_what_is_told_to_write_does(latex, where):
    said = told(latex, where)
    assert said
    assert told(latex, where, *re.findall("<!-- equivalent: (.*?) -->", " ".join(said))) == []


def test_what_is_told_to_bind_does():
    where = 'Q = random("n d"); K = Q; S = double(Q @ K.T) / 2'
    (said,) = told(r"S = Q K^\top", where)
    (binding,) = re.findall(r"by `(.*?)`", said)
    assert told(r"S = Q K^\top", where.replace("K = Q", binding)) == []


@pytest.mark.parametrize(
    ("equivalent", "said"),
    [
        (
            r"C = 2 C^\top",
            "is no mutant that survives, and as an identity it does not hold for what `where` binds; remove",
        ),
        (r"\frac{", "as an identity it cannot be read: cannot read"),
        (r"C_{ii} > 0", "accepts no mutant that survives; remove it"),
        (r"y = 2 C x", "is no mutant that survives, and as an identity it does not hold"),
        (r"C \ne 2 C", "`C \\ne 2 C` is no identity: write out the mutants"),
    ],
)
def test_what_accepts_nothing_is_told(equivalent, said):
    found = told("y = C x", SYMMETRIC, r"C = C^\top", equivalent)
    assert said in " ".join(found)
    assert equivalent in " ".join(found)


def test_of_two_identities_that_do_the_same_one_is_too_many():
    assert told("y = C x", SYMMETRIC, r"C = C^\top", "C_{ij} = C_{ji}") == [
        r"`equivalent: C = C^\top` accepts no mutant that survives; remove it"
    ]


def test_an_identity_accepts_nothing_that_does_not_follow_from_it():
    where = 'C = covariance(random("m n")); Q = random("n k"); K = Q; S = double(C @ K + Q) / 2'
    every, left = (
        {mutant.latex for mutant in survivors(Formula("S = C K + Q", where=where, equivalent=said), PAGE)}
        for said in ((), (r"C = C^\top",))
    )
    assert every - left == {r"S = {C^\top} K + Q"}
    assert left == {"S = C {Q} + Q", "S = C K + {K}"}


def test_a_mutant_is_known_however_it_is_braced():
    where = "A = double(2.5); a = A; y = double(A * a) / 2"
    assert told("y = A a", where, "y = a a", "y = A   A") == []


def test_arrays_that_are_too_large_are_told():
    where = 'x = random("30"); C = covariance(random("m 30")); y = mixed(C, x)'
    (said, *_) = told("y = C x", where, r"C = C^\top")
    assert said == r"`C = C^\top`: C have 900 entries, more than 400: bind less"
