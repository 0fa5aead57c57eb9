r"""Formulas whose LaTeX, the very text that the reader sees, is what is checked.

>>> import numpy as np
>>> from proofread.formulas import check, find
>>> (formula,) = find(r'''
... $$\operatorname{softmax}(s + c)_i = \frac{e^{s_i}}{\sum_{j=1}^{n} e^{s_j}} \tag{1.2}$$
... <!-- where: s, c = random("n", ""); softmax = page_softmax -->
... ''')
>>> check(formula, {"page_softmax": lambda s: np.exp(s) / np.exp(s).sum()})
[]

The API: `find` the formulas of a Markdown text, `check` one in its page's namespace, and see with `survivors` which
of its `mutants` (a sign flipped, a transposition dropped, ...) its check would not notice.

What an author writes
---------------------
A displayed formula is followed by an HTML comment (a line break between), and so is an inline relation, unless it is a
part of a formula that the page displays:

``<!-- where: Q, K = random("n d", "m d"); S = attention_scores(Q, K) -->``
    Python assignments, separated by ``;``, run in the page's namespace; they bind symbols. It may be empty: then all
    symbols are the page's.
``<!-- unchecked: reason -->``
    It is not checked, and counted.

``\tag{7.2}`` numbers an equation: readers see (7.2), docstrings cite it.

In ``where``, ``torch`` and ``np`` are there, and ``random("n d", "m d")`` draws one array for each string, normal,
seeded and in double precision: a tensor, or an array of numpy if the page uses numpy and not torch. It gives each axis
a size of its own, never 0 or 1, and binds it as a symbol of the formula, unless ``where`` has given it a value already;
an axis may also be a product (``"n h*d"``), or a number: ``random("4")`` has four entries. ``random("")`` is a number.

How LaTeX is read
-----------------
The grammar is what pages state: what is equal, or larger, with sums, fractions, indices and functions. Sets, cases,
matrices and words of conditions are not in it; a formula that needs one says why it is unchecked.

* **Names.** ``d_k``, ``d_{\text{model}}``, ``\alpha``, ``\mathbf{x}``, ``\hat{y}``, ``m'``, ``s^*``, ``W^Q`` are, in
  Python, ``d_k``, ``d_model``, ``alpha``, ``x``, ``y_hat``, ``m_prime``, ``s_star``, ``W_Q``; ``\lambda`` is
  ``lambda_``, ``\mathbf{1}`` is ``one``. The longest name that is bound is taken. One symbol has one spelling in a
  formula. ``f(x)`` is a call if ``f`` is callable, a product otherwise; ``f(x_1, \dots, x_n)`` has n arguments.
* **Indices.** A subscript letter that ``where`` does not bind is an index. An index that no sum binds is free: the
  formula must hold for each of its values, all those that are within range, or those of ``i = 1, \dots, n`` after a
  comma. Indices count from 1, and from 0 if the formula says so: a sum, a list or a subscript that starts at 0.
  ``x^{(t)}`` is an index too. ``a_{ij}`` has two indices, ``x_{2i}`` and ``x_{h d_k + j}`` have one.
* **Values** are numbers, arrays of numpy, tensors of torch, and lists of numbers or of what has one shape, which count
  as arrays; one formula may have all of them. What the page defines is called with tensors, if the page uses torch.
* **Products.** Juxtaposition and ``\cdot`` multiply as types demand, ``\odot`` entry by entry. A 1-D array is a
  column: ``x^\top y`` is a number, ``x y^\top`` a matrix. ``x W`` reads it as a row, whose transpose is a column. A sum
  takes in what is multiplied after it.
* **Functions** act entry by entry, ``\operatorname{softmax}`` along the last axis. Without parentheses, as in
  ``\cos m \theta_i``, they take in the names and numbers that follow. ``+`` adds a vector to each row.
* **Sums** run from a limit to another, or over all values that are within range, ``\sum_j``, under a condition,
  ``\sum_{j \le i}``; so do products, maxima and minima. ``[j \le i]`` is one where it holds, and else zero.
* **Derivatives**, ``\frac{\partial L}{\partial s_{ij}}``, are autograd's: ``where`` makes ``s`` a tensor with
  ``.requires_grad_()`` and computes ``L`` from it.
* **Relations** hold in chains (``a = b \le c``), over lines of ``aligned``, after commas. ``=`` compares to the square
  root of the dtype's precision, ``\approx`` to the digits written, or to 5 % if none are.
* What the grammar does not know, or could be read in two ways, is an error that says at which character.

What proves nothing is refused: two sides that are the same, a symbol that ``where`` types as the formula does
(``d = 64``), and one that it computes itself (``S = Q @ K.mT``) in a formula where nothing calls what the page or its
packages define, nor takes what a cell computed so. So are values that hide mistakes: 0, 1, constant arrays, sizes of 0
or 1.
"""

from typing import TYPE_CHECKING, Any

from .finding import Formula, find, spans

if TYPE_CHECKING:
    from .agreement import check
    from .mutation import Mutant, complaints, mutants, survivors

__all__ = ["Formula", "Mutant", "check", "complaints", "find", "mutants", "spans", "survivors"]


def __getattr__(name: str) -> Any:
    # numpy takes a while to load: who only finds formulas does without.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import agreement, mutation

    return getattr(next(module for module in (agreement, mutation) if hasattr(module, name)), name)
