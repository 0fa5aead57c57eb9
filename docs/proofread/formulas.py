# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # Formulas: what is read
#
# **Every sign that proofread knows stands in one of these examples.** All of them are checked while this page is built,
# over numpy's arrays; with torch's tensors they read alike. [How a formula is bound](directives.py#formulas) to its
# page is told with the other directives.
#
# <div class="formulas" markdown>
#
# {{ table }}
#
# </div>
#
# ## Indices, and symbols with few values
#
# Indices count from one. They count from zero where the formula says so: in a sum, a list or a subscript that starts
# there. A symbol that has a value for each of a few cases is a function, as `p = lambda w: ...` under `where:`, and the
# formula says of which: `\text{for } w \in \{0, 1\}`.
#
# ## Slopes
#
# A derivative without autograd is found from differences, and a formula with one of them is compared to a millionth of
# the largest number in it.
#
# ## What is not read
#
# Whatever is not read is a finding that names it. Rewrite it, or say why it is left, `<!-- unchecked: reason -->`.
#
# {{ unread }}

# %% tags=["hide-input", "no-snippet"]
import math

from proofread.formulas import Formula, check
from proofread.formulas.numerics import TOLERANCE
from proofread.formulas.tokens import tokenize
from proofread.formulas.vocabulary import SIGNS


def own(x):
    return x


def cube(x):
    return x**3


def scores(Q, K):
    return Q @ K.T


READ = {
    "Names, with accents and scripts": [
        r"\hat{y}_i = W^Q_i",
        r"d_{\text{model}} = 512",
    ],
    "Numbers": [
        r"\tfrac12 \cdot 10{,}000 \approx 5000",
        r"\dfrac{1}{4} = 25\%",
        r"\pi \ne \frac{22}{7}",
    ],
    "Products and quotients": [
        r"S = Q K^\top",
        r"x \odot x \oslash x = x",
        r"3 \times 2 = 12 / 2",
        r"A \otimes I = B",
        r"7 \bmod 4 = 3",
    ],
    "Powers and roots": [
        r"A^{-1} A = I",
        r"A^\intercal + 0 = A^{\top}",
        r"\sqrt[3]{a} = a^{1/3}",
    ],
    "Functions": [
        r"\sin^2 a + \cos^2 a = 1",
        r"\tanh a = \sinh(a) / \cosh(a)",
        r"\tan(\arctan a) = \arcsin(\sin \arccos \cos a) \frac{\tan(a)}{\arcsin(\sin(a))} \cdot \frac{a}{\tan(a)}",
        r"\exp(\ln a) = \log_2(2^a)",
        r"\operatorname{sign}(a) = \max(1, 0) - \min(1, 0)",
        r"\operatorname{tr}(A) = \sum_i A_{ii}",
        r"\det(A) = \det(A^\top)",
        r"\operatorname{diag}(I)_i = 1",
        r"\sum_i \operatorname{softmax}(x)_i = 1",
        r"\operatorname{concat}(x, x)_{1,2} = \operatorname{Concat}(x, x)_{1,1}",
    ],
    "Counting": [
        r"\binom{n}{k} = \frac{n!}{k! (n - k)!}",
        r"\dbinom{n}{1} = \tbinom{n}{n - 1}",
    ],
    "Rounding, absolute values": [
        r"\lfloor a \rfloor = \lceil a \rceil - 1",
        r"|-a| = a",
    ],
    "Sums, products, extremes": [
        r"\sum_{i=1}^{3} x_i = x_1 + \dots + x_3",
        r"\prod_{i \le 2} x_i = x_1 x_2",
        r"\max_i x_i \ge \min_i x_i",
        r"x_{\arg\max_i x_i} = \max_i x_i",
        r"x_{\arg\min_i x_i} = \min_i x_i",
    ],
    "Means": [r"\mathbb{E}_i[x_i] = \frac{1}{3} \sum_i x_i"],
    "Norms and inner products": [
        r"\lVert x \rVert_2^2 = \langle x, x \rangle",
        r"\Vert x \Vert_3^3 = \sum_i \lvert x_i \rvert^3",
        r"\| A \|_F^2 = \sum_{i,j} \vert A_{ij} \vert^2",
        r"\lVert x \rVert_\infty \gg 0.01",
    ],
    "Lists and matrices": [
        r"[x; x]_4 = x_1",
        r"\begin{pmatrix} a & 0 \\ 0 & a \end{pmatrix}_{2,2} = a",
        r"\underbrace{Q K^\top}_{u \times v} = \overbrace{S}^{\text{scores}}",
    ],
    "Conditions": [
        r"\begin{cases} k - a & \text{if } k > a \\ a - k & \text{otherwise} \end{cases} = |a - k|",
        r"p_w = \frac{a}{1 + z w} \quad \text{for } w \in \{0, 1\}",
        r"\mathbb{1}[1 < 2] = 1",
        r"x_i < 9 \quad \text{if } i \leq 3",
        r"\lvert \{ j : 1 < j \le 3 \} \rvert = 2",
    ],
    "Relations": [
        r"0.01 \ll a \gg 0.001",
        r"a \lt 9 \gt 1",
        r"a \leqslant 9 \geqslant 1",
        r"9 \geq a \neq 1",
        r"a \equiv a + 0, \quad a \coloneqq a + 0, \quad a := a + 0",
        r"a \simeq 2.5",
        r"x \in \mathbb{R}^3, \quad a \notin \{1, 2\}",
        r"a > 1",
    ],
    "Derivatives": [
        r"f'(a) = 3 a^2",
        r"\frac{d}{da} f(a) = 3 a^2",
        r"\frac{\partial^2}{\partial a^2} f(a) = 6 a",
        r"\nabla_x \left(\frac{1}{2} x^\top x\right) = x",
    ],
}
WHERE = """f = cube; a = own(2.5); n = own(7); k = own(3); d_model = own(512); I = own(np.eye(2));
x = own(np.array([0.5, -1.5, 2.0])); Q, K = random("u r", "v r"); S = scores(Q, K);
A = own(np.array([[2.0, 1.0], [0.5, 3.0]])); B = np.kron(A, I); W_Q = own(x); y_hat = own(x);
z = own(0.3); p = lambda w: own(a / (1 + z * w))"""


def said(latex):
    faults = check(Formula(latex, where=WHERE), globals())
    return faults[0] if faults else ""


known = {
    text
    for formulas in READ.values()
    for latex in formulas
    for token in tokenize(latex)
    for text in (token.text, token.text.removeprefix("\\"))
}
missing = sorted(SIGNS - known)
wrong = [
    said(latex)
    for formulas in READ.values()
    for latex in formulas
    if said(latex)
]
table = "\n".join(
    [
        "| What | Examples |",
        "| --- | --- |",
        *(
            f"| {what} | {', '.join(f'`{latex}`' for latex in formulas)} |"
            for what, formulas in READ.items()
        ),
    ]
)

signs = r"\int \lim \propto \sim \implies \pm \mapsto \cup \cong".split()
refused = [
    sign
    for sign in signs
    if f"{sign} is not in the grammar" in said(f"a {sign} a = a")
]
unread = f"Among these signs are {', '.join(f'`{sign}`' for sign in signs)}."

# %% tags=["claims"]
assert not missing, (
    "Every sign that proofread knows stands in one of these examples"
)
assert not wrong, "All of them are checked"
assert said("x_1 - x_2 = 2") == "", "Indices count from one"
assert said("x_0 - x_1 = 2") == "" != said("x_0 - x_1 = 3"), (
    "They count from zero where the formula says so"
)
assert math.isclose(TOLERANCE, 1e-6), (
    "compared to a millionth of the largest number in it"
)
assert refused == signs, "Whatever is not read is a finding that names it"
