"""Right and wrong answers to the exercises of learn/block."""

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


RIGHT = {
    "moves-information": [moves, moves_by_gradient],
    "post-norm": [post],
    "same-cost": [lambda width: 2 * width, lambda width: (8 * width**2 - 4 * width**2) / (2 * width)],
}
WRONG = {
    "moves-information": [
        ("it should say False. It says so of everything. Each output", lambda part, x: True),
        ("It says False of 'a running sum from the end'", moves_first_only),
        ("It says True of 'an MLP'; it should say False. Each output depends on its own word.", moves_itself),
        ("says True of 'adding its place to each word'; it should say False. Each output", moves_or_knows_its_place),
        ("The words that you were given were [input-overwritten]", lambda part, x: bool(x.add_(1).any())),
    ],
    "post-norm": [
        ("The norms stand in front of the parts; they should come after the sums.", pre),
        ("The residual connection around the MLP starts from x", from_x),
        ("norm_1 and norm_2 are exchanged.", lambda x, a, n1, m, n2: post(x, a, n2, m, n1)),
        ("What the parts found is normed alone; the sum should be.", norms_inside),
        ("The residual connections are missing.", without_residual),
        ("norm_1 is missing.", lambda x, a, n1, m, n2: post(x, a, lambda x: x, m, n2)),
        ("norm_2 is missing.", lambda x, a, n1, m, n2: post(x, a, n1, m, lambda x: x)),
        ("For x of (3, 4) it is off by up to 2.43.", lambda x, a, n1, m, n2: 2 * post(x, a, n1, m, n2)),
    ],
    "same-cost": [
        ("Attention has four matrices of its own, too.", lambda width: 4 * width),
        ("take half of the whole block.", lambda width: 6 * width),
        ("if the MLP were three times as wide inside.", lambda width: width),
        ("For width 6 it returned str; return a number.", lambda width: "many"),
        ("it should be 12, where attention takes 288 and", lambda width: 1536),
    ],
}
