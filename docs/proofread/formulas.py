# %% [markdown]
# # Formulas: what is read
#
# **Every sign that proofread knows stands in one of these examples.** All of them are checked while this page is built,
# over numpy's arrays and torch's tensors, which read alike. [How a formula is bound](directives.py#formulas) to its
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
# formula lists the cases after a comma, as it lists the values of an index.
#
# ## Derivatives
#
# A derivative is autograd's. Under `where:`, bind the symbol below the line to a tensor with `.requires_grad_()`, and
# compute the one above from it: nothing tracks an array of numpy, and the finding says so.
#
# ## What is not read
#
# Whatever is not read is a finding that names it. Rewrite it, or say why it is left, `<!-- unchecked: reason -->`.
#
# {{ unread }}

# %% tags=["hide-input"]
import re

from proofread.formulas import Formula, check
from proofread.formulas.tokens import tokenize
from proofread.formulas.vocabulary import SIGNS


def own(x):
    return x


def scores(Q, K):
    return Q @ K.T


EXAMPLES = r"""
| What | Examples |
| --- | --- |
| Names, with accents and scripts | `\hat{y}_i = W^Q_i = x'_i`, `d_{\text{model}} = 512` |
| Numbers | `\tfrac12 \cdot 10{,}000 \approx 5000`, `\dfrac{1}{4} = 0.25`, `\pi \ne \frac{22}{7}` |
| Products and quotients | `S = Q K^\top`, `x \odot x + 0 = x \odot x`, `3 \times 2 = 12 / 2` |
| Powers and roots | `A^{-1} A = I`, `A^\intercal + 0 = A^{\top}`, `\sqrt{a} = a^{1/2}` |
| Functions | `(\sin a)^2 + (\cos a)^2 = 1`, `\tanh a = \sinh(a) / \cosh(a)`,
    `\tan(\arctan a) = \arcsin(\sin \arccos \cos a) \frac{\tan(a)}{\arcsin(\sin(a))} \cdot \frac{a}{\tan(a)}`,
    `\exp(\ln a) = e^{\log a}`, `\operatorname{sign}(a) = \max(1, 0) - \min(1, 0)`,
    `\operatorname{tr}(A) = \sum_i A_{ii}`, `\det(A) = \det(A^\top)`, `\operatorname{diag}(I)_i = 1`,
    `\sum_i \operatorname{softmax}(x)_i = 1`, `F(x_1, \dots, x_3) = \sum_i x_i` |
| Sums, products, extremes | `\sum_{i=1}^{3} x_i = x_1 + x_2 + x_3`, `\prod_{i \le 2} x_i = x_1 x_2`,
    `\max_i x_i \ge \min_i x_i` |
| Absolute values and norms | `|-a| = a`, `\lVert x \rVert^2 = x \cdot x`,
    `\Vert x \Vert \le \sum_i \lvert x_i \rvert`, `\| x \|^2 = \sum_i \vert x_i \vert^2` |
| Conditions | `[1 < 2] = 1`, `p(w) = \frac{a}{1 + z w}, \quad w = 0, \dots, 1` |
| Relations | `a \lt 9 \gt 1`, `a \leqslant 9 \geqslant 1`, `9 \geq a \neq 1`, `1 \leq a < \infty`,
    `a \equiv a + 0, \quad a \coloneqq a + 0, \quad a := a + 0`, `a \simeq 2.5`, `a > 1` |
| Derivatives | `\frac{\partial L}{\partial s_i} = 2 s_i` |
"""
WHERE = """a = own(2.5); k = own(3); d_model = own(512); I = own(np.eye(2));
x = own(np.array([0.5, -1.5, 2.0])); Q, K = random("u r", "v r"); S = scores(Q, K);
A = own(np.array([[2.0, 1.0], [0.5, 3.0]])); W_Q = own(x); y_hat = own(x); x_prime = own(x);
s = own(torch.tensor([0.5, -1.5, 2.0])).requires_grad_(); L = own(s @ s); z = own(0.3);
p = lambda w: own(a / (1 + z * w)); F = lambda *parts: own(sum(parts))"""


def said(latex):
    faults = check(Formula(latex, where=WHERE), globals())
    return faults[0] if faults else ""


table = re.sub(r"\n +", " ", EXAMPLES).strip()
examples = re.findall(r"`(.+?)`", table)
wrong = [said(latex) for latex in examples if said(latex)]
tokens = {token.text for latex in examples for token in tokenize(latex)}
missing = SIGNS - tokens - {token.removeprefix("\\") for token in tokens}

signs = r"\int \lim \binom ! \in \nabla \otimes \propto \sim \implies \pm \mapsto".split()
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
assert "bind x to a tensor with .requires_grad_()" in said(
    r"\frac{\partial L}{\partial x_1} = x_1"
), "nothing tracks an array of numpy"
assert refused == signs, "Whatever is not read is a finding that names it"
