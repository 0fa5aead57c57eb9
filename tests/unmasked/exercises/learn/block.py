"""The exercises about the block accept what is right in any style, and say what is wrong with what is not."""

from collections.abc import Callable

import torch


def moves(part, x):
    for place in range(len(x)):
        changed = x.clone()
        changed[place] += 1
        differs = (part(changed) - part(x)).abs().amax(dim=-1) > 1e-6
        differs[place] = False
        if differs.any():
            return True
    return False


def moves_by_gradient(part, x):
    slopes = torch.autograd.functional.jacobian(part, x).abs().sum(dim=(1, 3))  # outputs inputs
    return bool((slopes - slopes.diag().diag()).max() > 1e-6)


def moves_first_only(part, x):
    changed = x.clone()
    changed[0] += 1
    return bool(((part(changed) - part(x)).abs().amax(dim=-1) > 1e-6)[1:].any())


def moves_itself(part, x):
    changed = x.clone()
    changed[-1] += 1
    return not torch.allclose(part(changed), part(x))


def moves_in_place(part, x):
    x[0] += 1
    return True


def moves_or_knows_its_place(part, x):
    return not torch.allclose(part(x.flip(0)).flip(0), part(x)) or moves(part, x)


def post(x, attention, norm_1, mlp, norm_2):
    x = norm_1(x + attention(x))
    return norm_2(x + mlp(x))


def pre(x, attention, norm_1, mlp, norm_2):
    x = x + attention(norm_1(x))
    return x + mlp(norm_2(x))


def from_x(x, attention, norm_1, mlp, norm_2):
    return norm_2(x + mlp(norm_1(x + attention(x))))


def without_residual(x, attention, norm_1, mlp, norm_2):
    return norm_2(mlp(norm_1(attention(x))))


def norms_inside(x, attention, norm_1, mlp, norm_2):
    x = x + norm_1(attention(x))
    return x + norm_2(mlp(x))


RIGHT: list[tuple[str, Callable]] = [
    ("moves-information", moves),
    ("moves-information", moves_by_gradient),
    ("post-norm", post),
    ("same-cost", lambda width: 2 * width),
    ("same-cost", lambda width: (8 * width**2 - 4 * width**2) / (2 * width)),
]
WRONG: dict[tuple[str, str], tuple[Callable, str | None, str]] = {
    ("moves-information", "always"): (lambda part, x: True, None, "It says True of every part; of 'an MLP' it should"),
    ("moves-information", "first word"): (moves_first_only, None, "It says False of 'a running sum from the end'"),
    ("moves-information", "itself"): (moves_itself, None, "It says True of 'doubling every number', where each output"),
    ("moves-information", "place"): (
        moves_or_knows_its_place,
        None,
        "It says True of 'adding its place to each word', where each output depends on its own word alone.",
    ),
    ("moves-information", "in place"): (moves_in_place, "input-overwritten", "The words that you were given were"),
    ("post-norm", "pre-norm"): (pre, None, "The norms stand in front of the parts; they should come after the sums."),
    ("post-norm", "from x"): (from_x, None, "The residual connection around the MLP starts from x"),
    ("post-norm", "exchanged"): (
        lambda x, a, n1, m, n2: post(x, a, n2, m, n1),
        None,
        "norm_1 and norm_2 are exchanged.",
    ),
    ("post-norm", "inside"): (norms_inside, None, "What the parts found is normed alone; the sum should be."),
    ("post-norm", "no residual"): (without_residual, None, "The residual connections are missing."),
    ("post-norm", "no norm_1"): (lambda x, a, n1, m, n2: post(x, a, lambda x: x, m, n2), None, "norm_1 is missing."),
    ("post-norm", "no norm_2"): (lambda x, a, n1, m, n2: post(x, a, n1, m, lambda x: x), None, "norm_2 is missing."),
    ("post-norm", "twice"): (lambda x, a, n1, m, n2: 2 * post(x, a, n1, m, n2), None, "(3, 4) it is off by up to "),
    ("post-norm", "a list"): (lambda *given: post(*given).tolist(), None, "It returned list; return a tensor."),
    ("post-norm", "a row"): (lambda *given: post(*given)[0], None, "the shape is (4,); it should be that of x."),
    ("same-cost", "the matrices left out"): (
        lambda width: 4 * width,
        None,
        "For width 6 it says 24 words. Attention then takes 432 multiplications for each word, and the MLP 288. "
        "Attention has four matrices of its own, too.",
    ),
    ("same-cost", "half of the block"): (lambda width: 6 * width, None, "take half of the whole block."),
    ("same-cost", "the width"): (lambda width: width, None, "if the MLP were three times as wide inside."),
    ("same-cost", "a number"): (lambda width: 1536, None, "For width 6 it says 1536 words."),
    ("same-cost", "a text"): (lambda width: "many", None, "it returned str; return a number."),
}
