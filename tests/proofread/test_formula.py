import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from proofread.formulas import Formula, Mutant, check, find, mutants, survivors
from proofread.formulas.inline import loose


def draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def double(x):
    return 2 * x


class Kinds(dict):
    """What a page has, as tensors; or as arrays, or of each some; numbers and lists are what they are."""

    def of(self, kind):
        def turned(place, value):
            is_array = isinstance(value, torch.Tensor) and (kind == "numpy" or (kind == "both" and place % 2))
            return value.numpy() if is_array else value

        own = {name: turned(place, value) for place, (name, value) in enumerate(self.items())}
        return own if kind != "numpy" else {name: value for name, value in own.items() if name != "torch"} | {"np": np}


PAGE = Kinds(
    **{"torch": torch, "double": double, "f": double, "g": double, "D": lambda x, y: x - y},
    **{"x": draw(3), "y": draw(3) + 1, "a": 2.5, "b": 3.5, "c": 1.7},
    **{"A": draw(3, 3), "B": draw(3, 3) + 1, "S": draw(4, 5), "single": draw(3).float(), "i": 2, "n": 9},
)


def test_formulas_are_found_with_what_their_authors_say_of_them():
    markdown = """
Text costs $5 and $6, `$a = b$` is code, \\$a = b\\$ is not; $d_k$ and $\\sum_{j=1}^n$ state nothing.

```
$$a = b$$
```

$$
E = m \\tag{7.2}
$$
<!-- where: E = f(m) --> <!-- where: m = 3 -->

> A quote: $a
> < b$ <!-- unchecked: it is an
> opinion -->, and $$x$$
"""
    assert find(markdown) == [
        Formula("E = m", 7, True, "E = f(m); m = 3", None, "7.2"),
        Formula("a\n < b", 12, False, None, "it is an\n> opinion", None),
        Formula("x", 14, True),
    ]


@pytest.mark.parametrize(
    "relation", ["=", "<", r"\le", r"\geq", r"\approx", r"\in", r"\neq", r"\propto", r"\sim", r"\equiv"]
)
def test_an_inline_relation_needs_a_displayed_formula_or_a_word_from_its_author(relation):
    ((place, message),) = loose(f"so $a {relation} b$, but $a_{{i {relation} j}}$", [])
    assert place == 3
    assert message == (
        f"`a {relation} b` is a part of no formula that this page displays, and nothing checks it: "
        "add `<!-- where: ... -->`, or say why not, `<!-- unchecked: reason -->`"
    )
    assert not list(loose(f"so $a {relation} b$ <!-- unchecked: it is an opinion -->", []))
    assert not list(loose(f"so $a {relation} b$", [f"a_i = 2 \\quad a {relation} b, \\quad c"]))
    assert find(f"so $a {relation} b$") == []


def test_finding_formulas_needs_neither_torch_nor_numpy():
    code = "import sys, proofread.formulas.inline as i; from proofread.formulas import find"
    code += "; print(sys.modules.keys() & {'torch', 'numpy'})"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


DISPLAYED = r"""
\begin{aligned} c_i &= \sum_{j \leq i} \tfrac{1}{\sqrt{d}} \left( a + b \right) A^\top x_{i} \\ d &= 64 \end{aligned}
y = f(x) + g, \quad u = v w, \quad a \ne b, \quad z = w f(x)
"""


@pytest.mark.parametrize(
    "inline",
    [
        *(r"d = 64", r"j \le i", r"d{=}64", r"u = v\, w", r"\mathbf{u} = vw", r"y = f(x) + g", r"a\neq b"),
        *(r"\sqrt{d}", r"\sqrt d", r"\frac{1}{\sqrt{d}}", r"a + b", r"\bigl(a + b\bigr)", r"A^{\top} x_i", r"f(x)"),
    ],
)
def test_inline_mathematics_may_be_a_part_of_a_displayed_formula(inline):
    assert not list(loose(f"so ${inline}$", DISPLAYED.split("\n")))


@pytest.mark.parametrize(
    "inline",
    [
        *("d = 6", "d = 640", "d_k = 64", "y = f", "y = f(x)", "x) + g = y", "u = v", "w = u", "j < i", "a = b"),
        *("f(x) + g = y", r"\sqrt{d} = 8", "b = a"),
    ],
)
def test_an_inline_relation_that_only_looks_like_a_part_is_found(inline):
    assert len(list(loose(f"so ${inline}$", DISPLAYED.split("\n")))) == 1


@pytest.mark.parametrize("inline", ["a", r"W^Q_i, W^K", r"x_{i = 1}", r"\sqrt{d_k}", r"1 / d", "b + a", "64", "g(x)"])
def test_symbols_and_expressions_say_nothing(inline):
    assert not list(loose(f"so ${inline}$", []))


HOLDS = r"""
a b = b \cdot a
x^\top y = x \cdot y
-a^2 = -(a \cdot a)
(AB)^\top = B^\top A^\top
A^2 = AA
A x = (x^\top A^\top)^\top
A A^{-1} A = A
A^{-1\top} = (A^\top)^{-1}, \quad a a^{-1} = 1
(A^T)_{ij} = A_{ji}
e^{a+b} = e^a e^b
|a| |b| = |{a} b|
\prod_{i=0}^{2} x_i = x_0 x_1 x_2
\max_i x_i \ge x_j
\max(a, b) = b
\sum_{j \ne i} x_j = \sum_j x_j - x_i
f(x) = 2x
a(b + c) = ab + ac
a < b \le 4
x^{(2)} = 0 + x_2
a \approx 2.5, \quad b \approx 3.5.
10{,}000 = 10^4
\begin{aligned} a + b &= 2.5 \\ &\quad + 3.5 \\ c &= 1.7 \end{aligned}
\hat{x} = x / 2
\lambda_1 = 2x_1
\mathbf{W}^Q_{ij} = 2\mathbf{A}_{ij}
x' = 2x
\frac12 = a^{-1} \cdot 1.25
e^{\hat{x}_1} = e^{x_1/2}
A^{\mathsf T} = A^{\mathrm{T}} + 0
x_{\pi_i} = x_{4-i}
A_{ij} + 0 = A_{ij}, \quad \sum_j A_{ij} = \sum_k A_{ik}
\mathit{PE} = 2A
A x + x = x + A x
x A (y B + x)^\top = x^\top A (y^\top B + x^\top)^\top
\max(0, x)_i = \max(0, x_i)
A^{(i)\top} x = x \cdot A_i
"""


@pytest.mark.parametrize("kind", ["torch", "numpy", "both"])
@pytest.mark.parametrize("latex", HOLDS.strip().splitlines())
def test_what_holds_is_accepted(latex, kind):
    where = (
        "x_hat = double(x) / 4; x_prime = lambda_ = double(x); W_Q = PE = double(A); pi = [3, 2, 1]; u = [2.5, 4, 1.5]"
    )
    assert check(Formula(latex, where=where), PAGE.of(kind)) == []


@pytest.mark.parametrize(
    ("latex", "error"),
    [
        (r"a = b", "`a = b` does not hold: a is 2.5, b is 3.5"),
        (r"x_i = x_{i-1}", "`x_i = x_{i-1}` does not hold for i = 2: x_i is "),
        (r"A^T = A", "A^T is an array of shape (3, 3) ("),
        (r"a = 2.5 = b", "`2.5 = b` does not hold"),
        (r"c \approx 1.8", "c is 1.7, 1.8 is 1.8"),
        (r"a = b \quad c = 1.7", "`a = b` does not hold"),
        (r"x = 2a", "x is an array of shape (3,)"),
        (r"a/bc = a", "character 2 (/bc = a): `a / b c` can be read in two ways: write \\frac or parentheses"),
        (r"10\,000 = a", "a number after a factor can be read in two ways: write \\cdot between them"),
        (r"{a+b}c = a", "expected } as readers do not see braces: use parentheses"),
        (r"\sin a (b) = a", "where the argument of sin ends can be read in two ways: use parentheses"),
        (r"A_{ij}^\top = A_{ji}", "transposes a number; for an entry of a transposed matrix write (A^\\top)_{ij}"),
        (r"A_{11} = a", "11 could be one index or several: separate them with commas"),
        (r"A_{i+1j} = a", "these indices can be read in two ways: separate them with a comma"),
        (r"A_{i j+1} = a", "these indices can be read in two ways: separate them with a comma"),
        (r"a^10 = a", "TeX takes only 1 into the script: use braces"),
        (r"\sqrt12 = a", "TeX takes only 1 as the operand: use braces"),
        (r"a^b^c = a", "a second ^ can be read in two ways: use parentheses"),
        (r"\mathbf{x} = 2x - x", "x is written in two ways here: one symbol, one spelling"),
        (r"a = b \\ + c = a", "Begin a line that goes on with &"),
        (r"x_j = \sum_j x_j", "j is the index of a sum and free as well: rename one of them"),
        (r"a? = b", "character 2 (? = b): expected a relation"),
        (r"\sin^{-1} a = a", "sin takes nothing below or above it: write it around what it is of, as in (sin x)^2"),
        (r"f a = 2a", "f is a function: call it, as in f(x)"),
        (r"f = a", "f is a function: call it, as in f(x)"),
        (r"\sum_{2 \le 3} a = b", "under a sum stands an index, as in `j`, `j = 1` or `j \\le i`"),
        (r"\sum^3 a = b", "expected the index under \\sum"),
        (r"\sum_{j=1} x_j = a", "\\sum needs both limits, or an index alone"),
        (r"\tanh_2 a = b", "tanh takes nothing below or above it"),
        (r"x \ne a", "`x \\ne a` does not hold: x is an array of shape (3,)"),
        (r"x \le S", "`x \\le S` does not hold: x is an array of shape (3,)"),
        (r"q = 3", "q is not bound: bind it in `where`, or use it as a subscript"),
        (r"W_Q = A", "neither W_Q nor W is bound: bind it in `where`"),
        (r"\foo a = a", "\\foo is not in the grammar: rewrite it, or add `<!-- unchecked: reason -->`"),
        (r"a b", "`a b` states nothing: add a relation, or `<!-- unchecked: reason -->`"),
        (r"a = ", "character 5 (the end): expected an expression"),
        (r"(a = b", "expected )"),
        (r"(a, b) c = c", "a list has no value here"),
        (r"\begin{aligned} a = b", "\\begin and \\end do not match"),
        (r"xy = a", "a product of two columns: write x^\\top y, x \\cdot y or x \\odot y"),
        (r"x A (x B) = a", "a product of two rows: transpose the second"),
        (r"S S = S", "shapes (4, 5) and (4, 5) do not multiply"),
        (r"S + A = S", "shapes (4, 5) and (3, 3) do not fit"),
        (r"A \times B = A", "\\times multiplies numbers: write \\cdot or \\odot"),
        (r"A / B = A", "divides by an array of shape (3, 3): divide entry by entry, with subscripts"),
        (r"e^A = A", "an array of shape (3, 3) as a power: functions of entries are written \\exp(x) or x \\odot x"),
        (r"|x| = a", "|x| is for numbers, this is an array of shape (3,): write \\lVert x \\rVert"),
        (
            r"\lVert A \rVert = a",
            "the norm is of an array with one axis, |x| of a number, and this is an array of shape",
        ),
        (r"\sum_{i=1}^4 x_i = a", "`x_i`: subscript 1 is outside 1..3 where i = 4"),
        (r"x_{ij} = a", "has no subscript 2: x is an array of shape (3,)"),
        (r"\sum_j S_{ij} x_j = a", "j runs over 5 values in `S_{ij}`, but over 3 in `x_j`"),
        (r"\sum_j a = b", "nothing says which values j takes: write limits"),
        (
            r"\frac{\partial a}{\partial x_1} = a",
            "nothing tracks how a depends on x: in `where`, bind x to a tensor with .requires_grad_(), and compute a",
        ),
        (
            r"\frac{\partial}{\partial x} f(x) = a",
            r"first derivatives of one symbol by another alone, as in \frac{\partial a_i}{\partial b_j}",
        ),
        (r"\frac{\partial^2 a}{\partial b^2} = a", r"\partial stands in first derivatives of one symbol"),
        (r"\frac{d}{da} f(a) = 2", r"d over d can be read as a derivative: write \partial, or cancel the d"),
        (r"\frac{\mathrm{d}}{\mathrm{d}a} f(a) = 2", "d over d can be read as a derivative"),
        (r"\frac{d^2}{da^2} f(a) = 2", "d over d can be read as a derivative"),
        ("f'(a) = 2", "f_prime is not bound: bind it in `where`"),
        ("n! = 362880", "! is not in the grammar: rewrite it, or add `<!-- unchecked: reason -->`"),
        (r"\frac{n!}{2} = a", "! is not in the grammar"),
        (r"a \propto b^2", r"\propto is not in the grammar"),
        (r"x_1 = x_2 = \dots = x_3", r"\dots is not in the grammar"),
        (r"\mathcal{O}(a^2)", r"`\mathcal{O}(a^2)` states nothing: add a relation, or `<!-- unchecked: reason -->`"),
        (r"a = \frac{dL}{ds}", r"d over d can be read as a derivative: write \partial, or cancel the d"),
        (r"A_{ij,k} = a", "these indices can be read in two ways: separate them with a comma"),
        (r"A_{(ij, k)} = a", "these indices can be read in two ways: separate them with a comma"),
        (r"f(x_1, x_3, \dots, x_5) = a", "the items before the dots must count up by one"),
        (r"\sum_{m=1}^\infty \frac{1}{m^2} = 1.6", "`\\infty`: a limit or an index is an integer, not inf"),
        (r"A^{-\top} = A", "expected an expression"),
        (r"a = a", "has the same on both sides: it proves nothing"),
        (r"\frac{a}{b} = a / b", "has the same on both sides: it proves nothing"),
    ],
)
def test_what_does_not_hold_or_can_be_misread_says_where_and_what_to_do(latex, error):
    for kind in ("torch", "numpy"):
        (message,) = check(Formula(latex, where="k = 2"), PAGE.of(kind))[:1]
        assert error in message


SEPARATED = "write name = value, with a semicolon and no comma between two"
TRACKED = "s = double(x).requires_grad_(); L = (s**3).sum(); u = s**2"


@pytest.mark.parametrize(
    ("latex", "wrong"),
    [
        (r"\frac{\partial L}{\partial s_i} = 3 s_i^2", "-3 s_i^2"),
        (r"\frac{\partial L}{\partial s} = 3 s \odot s", r"-3 s \odot s"),
        (r"\frac{\partial u_i}{\partial s_j} = 2 s_j [i = j]", "-2 s_j [i = j]"),
    ],
)
def test_derivatives_are_autograds(latex, wrong):
    assert check(Formula(latex, where=TRACKED), PAGE) == []
    (message,) = check(Formula(f"{latex.partition('=')[0]}= {wrong}", where=TRACKED), PAGE)
    assert "does not hold" in message
    (message,) = check(Formula(latex, where=TRACKED.replace(".requires_grad_()", "")), PAGE)
    assert "bind s to a tensor with .requires_grad_()" in message


def test_a_quotient_of_sizes_is_no_derivative():
    where = "d, d_k, m = 4, 3, 5; q = double(8 / 15); r = double(4 / 6)"
    assert check(Formula(r"\frac{d^2}{d^2 - 1} = q, \quad \frac{d}{d_k} = r", where=where), PAGE) == []
    (message,) = check(Formula(r"\frac{d}{d m} = q", where=where), PAGE)
    assert "d over d can be read as a derivative" in message


def test_only_a_number_is_differentiated_by_a_matrix():
    where = "S = double(S).requires_grad_(); T = 3 * S"
    (message,) = check(Formula(r"\frac{\partial T}{\partial S} = S", where=where), PAGE)
    assert "only a number is differentiated: index it" in message


@pytest.mark.parametrize(
    ("latex", "where", "error"),
    [
        ("t = AB", "t = A @ B", "proves nothing: its `where` computes t itself, and nothing calls what the page"),
        ("t = AB", "t = torch.matmul(A, B)", "proves nothing"),
        ("g(x) = 2x", "g = lambda x: 2 * x", "where` computes g itself"),
        ("t = 2u", "u = x; t = 2 * u", "computes t itself"),
        ("t = A", "t = A + 0", "computes t itself"),
        (
            r"\alpha = 2",
            "alpha = 2",
            "proves nothing: its `where` types alpha itself: bind it to what the page computes",
        ),
        (r"\alpha \approx 2.5", "alpha = float(5) / 2", "types alpha itself"),
        (r"a = 2.5 = \alpha", "k = 5; alpha = k / 2", "types alpha itself"),
        (r"u < v", "u, v = 2, 3", "types u, v itself"),
        (r"\alpha = 2", "alpha = np.float64(2)", "types alpha itself"),
        (r"2 = \alpha", "alpha = np.array(2.0).item()", "types alpha itself"),
        (r"\alpha = 2n", "n = 3; alpha = 6", "types alpha, n itself"),
        (r"m = 3", "u = random('m')", "types m itself"),
        (r"\alpha = ab", "alpha = a * b", "its `where` computes alpha itself"),
        ("Q = K", 'Q = K = random("n d")', "has the same on both sides"),
        (r"\theta a = 2.5", "theta = 1", "theta = 1 hides factors and powers: bind it to what tells mistakes apart"),
        (r"a u = a u + 0", "u = torch.zeros(4)", "u with all entries 0 hides mistakes"),
        (r"a u = a u + 0", "u = torch.randn(1, 4)", "u of shape (1, 4) hides what its sizes do"),
        ("a = b", "import os", f"`import os` in its `where` is not an assignment: {SEPARATED}"),
        ("a = b", "k = 1 / 0", "its `where: k = 1 / 0` fails: ZeroDivisionError: division by zero"),
        ("a = b", "k = (", f"its `where: k = (` is no Python, '(' was never closed: {SEPARATED}"),
        ("a = b", "k = 3, m = 4", f"'==' or ':=' instead of '='?: {SEPARATED}"),
        ("a = b", "u = A, t = double(A)", f"`u = A, t = double(A)` in its `where` is not an assignment: {SEPARATED}"),
        (
            "g(x) = a",
            "g = lambda x: 'text' * len(double(x))",
            "returns a str: bind a function that returns a number or an array in `where`",
        ),
        ("A^T = A", "T = 3", "T is bound, so ^T could be a power: write ^\\top, or rename T"),
        (r"\sum_{j=1}^3 x_j = a", "j = 2", "j has a value already: sum over another letter"),
    ],
)
def test_a_where_that_proves_nothing_or_hides_mistakes_is_refused(latex, where, error):
    assert any(error in message for message in check(Formula(latex, where=where), PAGE))


def test_a_formula_without_a_word_from_its_author_is_a_finding():
    assert check(Formula("a = b"), PAGE) == [
        "`a = b` is not checked: add `<!-- where: -->`, or `<!-- unchecked: reason -->`"
    ]
    (message,) = check(Formula(r"Z = h(Q) K^\top / \sqrt{d_k} + \sin A_i"), PAGE)
    assert "add `<!-- where: Q, K, d = random(...); Z = ...; h = ... -->`" in message
    (message,) = check(Formula(r"\bar{Z}' = h'(\hat Q) + \mathbf{u}'' + \bar\alpha"), PAGE)
    drawn = "Q_hat, u_prime_prime, alpha_bar = random(...)"
    assert f"add `<!-- where: {drawn}; Z_bar_prime = ...; h_prime = ... -->`" in message
    assert check(Formula("a = b", unchecked=""), PAGE) == [
        "`a = b` is unchecked: say why, `<!-- unchecked: reason -->`"
    ]
    assert check(Formula("a = b", unchecked="opinion"), PAGE) == []
    assert check(Formula("a = b", unchecked="opinion", where=""), PAGE) == [
        "`a = b` has both `where` and `unchecked`: keep one"
    ]


def test_what_the_page_computed_itself_needs_no_call():
    assert check(Formula("t = 2A", where=""), PAGE | {"t": 2 * PAGE["A"]}) == []


@pytest.mark.parametrize(
    "where", ["t = double(A)", "u = double(A); t = u + 0", "t = layer(A)", "t = (lambda M: double(M))(A)"]
)
def test_a_call_of_what_the_page_defines_proves_something(where):
    layer = torch.nn.Linear(3, 3, bias=False, dtype=torch.float64)
    layer.weight.data = 2 * torch.eye(3, dtype=torch.float64)
    assert check(Formula("t = 2A", where=where), PAGE | {"layer": layer}) == []


def test_what_a_page_defines_is_called_with_tensors_of_the_precision_that_they_had():
    layer = torch.nn.Linear(3, 3)
    page = PAGE | {"layer": layer, "u": PAGE["single"], "t": layer(PAGE["single"])}
    assert check(Formula(r"t = \operatorname{layer}(u)", where=""), page) == []
    assert "does not hold" in check(Formula(r"t = \operatorname{layer}(2u)", where=""), page)[0]


def test_single_precision_is_compared_to_its_own_rounding():
    page = PAGE | {"u": PAGE["single"] * 3.1, "v": PAGE["single"]}
    assert check(Formula("u = 3.1v", where=""), page) == []
    assert check(Formula("u = 3.11v", where=""), page) != []


def test_random_gives_each_axis_its_own_size_and_leaves_the_pages_random_state_alone():
    state = torch.get_rng_state()
    where = 'u, v = random("p q", "q r*s"); k = torch.randn(3); t = double(u) @ v'
    assert check(Formula("t = 2uv", where=where), PAGE) == []
    assert check(Formula("t = 2u", where="u = random('p q');\n    t = double(u);"), PAGE) == []
    assert check(Formula(r"pqrs = 3 \cdot 5 \cdot 4 \cdot 7", where='u = double(random("p q r s"))'), PAGE) == []
    assert torch.equal(torch.get_rng_state(), state)


def test_a_mutant_that_survives_is_named():
    assert survivors(Formula("t = QK", where='Q = K = random("5 5"); t = double(Q) @ Q / 2'), PAGE) == [
        Mutant("t = K Q", "factors swapped"),
        Mutant("t = {K}K", "symbol replaced"),
        Mutant("t = Q{Q}", "symbol replaced"),
    ]


def test_every_kind_of_mistake_is_made():
    latex = r"t = \frac{\sqrt{a} \, \sum_{j=1}^{n} S_{ij} u_j}{2} - A^\top B + \operatorname{g}(a, b), \quad a < b"
    where = 'u = random("5"); n = 5; t = double(A); g = lambda a, b: double(a)'
    assert {mutant.what for mutant in mutants(Formula(latex, where=where), PAGE)} == {
        *("sign flipped", "term dropped", "root dropped", "divisor dropped", "factor dropped", "factors swapped"),
        *("transposition dropped", "transposition added", "indices swapped", "index replaced", "operation replaced"),
        *("limit off by one", "arguments swapped", "number changed", "symbol replaced", "relation turned round"),
        "numerator and denominator swapped",
    }


PIECES = r"""
! {} ^ _ & ( ) [ ] | , . : ; = < + - / ' 2 12 a b x A f i j * \\ {a} x_i (x)
\binom \mathbb{E} \infty \frac{d}{da} \sqrt \frac \sum_ \max \in \dots \top \langle \rangle \hat
\mathbf{x} \cdot \quad \partial \exp \text{for} \text{if} \mathbb{1}[ \{ \} \operatorname{softmax} \%
\begin{cases} \end{cases} \begin{aligned} \end{aligned} \frac{\partial
"""


@given(st.lists(st.sampled_from(PIECES.split()), max_size=14).map(" ".join))
def test_no_text_raises(latex):
    assert isinstance(check(Formula(latex, where=""), PAGE), list)


def test_what_is_nested_without_end_is_an_error():
    (message,) = check(Formula("(" * 5000 + "a" + ")" * 5000 + " = b", where=""), PAGE)
    assert message.endswith("is nested too deeply to be read")


class Tree:
    """An expression with its value; in a format, the number says from which level on it needs no parentheses."""

    def __init__(self, tex, value, level):
        self.tex, self.value, self.level = tex, torch.as_tensor(value, dtype=torch.float64), level

    def __format__(self, needed):
        return self.tex if self.level >= int(needed or 0) else rf"\left({self.tex}\right)"


SUM, PRODUCT, POWER, ATOM = 1, 2, 3, 4
LEAVES = {
    "number": [Tree(name, PAGE[name], ATOM) for name in "abc"]
    + [Tree("2", 2, ATOM), Tree("x_1", PAGE["x"][0], ATOM), Tree("A_{1,2}", PAGE["A"][0, 1], ATOM)],
    "column": [Tree(name, PAGE[name], ATOM) for name in "xy"],
    "matrix": [Tree(name, PAGE[name], ATOM) for name in "AB"],
}
# What it gives, from what, its level, how it is written, what it means.
OPERATIONS = [
    ("same", ("same", "same"), SUM, "{0:1} + {1:2}", torch.add),
    ("same", ("same", "same"), SUM, "{0:1} - {1:2}", torch.sub),
    ("same", ("same",), SUM, "-{0:2}", torch.neg),
    ("same", ("number", "same"), PRODUCT, "{0:4} {1:4}", torch.mul),
    ("same", ("number", "same"), PRODUCT, r"{0:3} \cdot {1:4}", torch.mul),
    ("same", ("same", "number"), PRODUCT, r"\frac{{{0}}}{{{1:1}}}", torch.div),
    ("same", ("same", "number"), PRODUCT, "{0:4} / {1:4}", torch.div),
    ("same", ("same",), POWER, r"\tanh({0})", torch.tanh),
    ("number", ("number",), POWER, "{0:4}^2", torch.square),
    ("number", ("number",), POWER, "e^{{-{0:4}^2}}", lambda p: (-p * p).exp()),
    ("number", ("number",), POWER, r"\cos {0:4}", torch.cos),
    ("number", ("number",), ATOM, r"\lvert {0} \rvert", torch.abs),
    ("number", ("number", "number"), ATOM, r"\max({0}, {1})", torch.maximum),
    ("number", ("number", "number"), ATOM, r"[{0} < {1}]", lambda p, q: (p < q).double()),
    ("number", ("column", "column"), PRODUCT, r"{0:4}^\top {1:4}", torch.dot),
    ("number", ("column", "column"), PRODUCT, r"{0:4} \cdot {1:4}", torch.dot),
    ("number", ("column",), ATOM, r"\lVert {0} \rVert", torch.norm),
    ("number", ("matrix",), ATOM, r"\operatorname{{tr}}({0})", torch.trace),
    ("number", ("column", "column"), ATOM, r"(\sum_{{i=1}}^3 ({0})_i ({1})_i)", torch.dot),
    ("number", ("matrix",), ATOM, r"(\sum_{{i}} \sum_{{j \le i}} ({0})_{{ij}})", lambda m: m.tril().sum()),
    ("column", ("matrix", "column"), PRODUCT, "{0:4} {1:4}", torch.mv),
    ("column", ("matrix", "column"), PRODUCT, r"({1:4}^\top {0:4})^\top", lambda m, v: v @ m),
    ("column", ("column", "column"), PRODUCT, r"{0:4} \odot {1:4}", torch.mul),
    ("column", ("column",), ATOM, r"\operatorname{{softmax}}({0})", lambda v: v.softmax(-1)),
    ("matrix", ("matrix", "matrix"), PRODUCT, "{0:4} {1:4}", torch.mm),
    ("matrix", ("column", "column"), PRODUCT, r"{0:4} {1:4}^\top", torch.outer),
    ("matrix", ("matrix", "matrix"), PRODUCT, r"{0:4} \odot {1:4}", torch.mul),
    ("matrix", ("matrix",), POWER, r"{0:4}^\top", lambda m: m.mT),
    ("matrix", ("matrix",), POWER, "{0:4}^2", lambda m: m @ m),
]


@st.composite
def trees(draw, kind=None, depth=4):
    kind = kind or draw(st.sampled_from(sorted(LEAVES)))
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from(LEAVES[kind]))
    _, kinds, level, written, means = draw(st.sampled_from([o for o in OPERATIONS if o[0] in (kind, "same")]))
    kids = [draw(trees(kind if each == "same" else each, depth - 1)) for each in kinds]
    return Tree(written.format(*kids), means(*(kid.value for kid in kids)), level)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much])
@given(trees())
def test_an_expression_has_the_value_that_torch_gives_it(tree):
    size = tree.value.abs().max()
    assume(tree.value.isfinite().all() and size < 1e6)
    page = PAGE | {"t": tree.value}
    assert check(Formula(f"{tree} = t", where=""), page) == []
    assert check(Formula(f"{tree} = t", where=""), page | {"t": tree.value + 0.001 * size + 0.1}) != []


@pytest.mark.parametrize(
    ("latex", "said"),
    [
        ("x = q'", "q_prime is not bound: bind it in `where`"),
        (r"x = \bar{q}", "q_bar is not bound: bind it in `where`"),
        ("x = q^{-1}", r"and what inverts x is x_{\text{inv}}"),
    ],
)
def test_what_has_a_name_of_its_own_is_told_by_that_name(latex, said):
    page = {"x": torch.ones(4), "q": torch.arange(4.0), "f": double}
    assert said in check(Formula(latex, where=""), page)[0]
    given = page | {name: torch.ones(4) for name in ("q_prime", "q_bar", "q_inv")}
    said_so = latex.replace("q^{-1}", r"q_{\text{inv}}")
    given["q"] = torch.full((4,), 2.0)
    assert check(Formula(said_so, where=""), given) == []


@pytest.mark.parametrize(
    ("cells", "where", "holds"),
    [
        (["t = double(A)"], "r = t / 2 + 0", True),
        (["t = double(A)\nhalf = t / 2"], "r = half + 0", True),
        (["t = A + A"], "r = t / 2 + 0", False),
        (["t = double(A)", "t = A + A"], "r = t / 2 + 0", False),
        (["def own():\n    t = double(A)", "%magic"], "r = t / 2 + 0", False),
        (["t = double(A)"], "t = A + A; r = t / 2 + 0", False),
        ([], "r = t / 2 + 0", False),
    ],
)
def test_what_a_cell_computed_by_a_function_of_the_page_counts_as_the_pages(cells, where, holds):
    page = {**PAGE, "t": double(PAGE["A"]), "half": PAGE["A"], "In": ["", *cells]}
    faults = check(Formula(r"r = \frac{2 A}{2}", where=where), page)
    assert faults == [] if holds else "proves nothing" in faults[0]
