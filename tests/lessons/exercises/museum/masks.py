"""Right and wrong answers to the exercises of museum/masks."""

import torch

from unmasked import masks


def first_only(f, x):
    changed = x.clone()
    changed[:, -1] += 1
    return not torch.allclose(f(changed)[:, 0], f(x)[:, 0])


def changing(f, x):
    before = f(x)[:, :-1].clone()
    x[:, -1] += 1
    return not torch.allclose(f(x)[:, :-1], before)


def by_prefix(f, x):  # what stands before does not depend on what follows
    return any(not torch.allclose(f(x[:, :n]), f(x)[:, :n]) for n in range(1, x.size(1)))


def by_gradient(f, x):
    x = x.detach().clone().requires_grad_()
    output = f(x)
    for position in range(x.size(1) - 1):
        (gradient,) = torch.autograd.grad(output[:, position].sum(), x, retain_graph=True)
        if gradient[:, position + 1 :].abs().max() > 1e-9:
            return True
    return False


def by_change(f, x):
    for position in range(1, x.size(1)):
        changed = x.clone()
        changed[:, position] += 1 + torch.arange(x.size(-1))
        if not torch.allclose(f(changed)[:, :position], f(x)[:, :position]):
            return torch.tensor(True)
    return torch.tensor(False)


def expanded(allowed, num_heads):
    return masks.blocked_from_allowed(allowed[:, None], num_heads=num_heads)


def additive(allowed, num_heads):
    return masks.additive_from_allowed(allowed, torch.float64).repeat_interleave(num_heads, 0)


RIGHT = {
    "leak-test": [by_prefix, by_gradient, by_change],
    "module-mask": [expanded, additive],
}
WRONG = {
    "leak-test": [
        ("it should say True. It says so of everything. [no-causal-mask]", lambda f, x: False),
        ("It says True of causal attention; it should say False. It says so of everything.", lambda f, x: True),
        ("It says False of attention that sees one token ahead; it should say True. Change each late", first_only),
        (
            "It says False of 'No causal mask at all'; it should say True. Change each [no-causal-mask]",
            lambda f, x: not torch.allclose(f(torch.ones_like(x)), torch.ones_like(x)),
        ),
        ("The x that you were given was changed: clone before you write. [input-overwritten]", changing),
    ],
    "module-mask": [
        ("True means: may not attend [mask-polarity]", lambda a, h: a.repeat_interleave(h, 0)),
        ("side by side [batch-indexed-for-head]", lambda a, h: (~a).repeat(h, 1, 1)),
        ("other numbers than 0 and -inf [float-mask-of-ones]", lambda a, h: (~a).float().repeat_interleave(h, 0)),
        ("(8, 3, 3): batch times heads, queries, keys", lambda a, h: ~a),
        ("torch.int32", lambda a, h: (~a).int().repeat_interleave(h, 0)),
        ("1, 1]]; it should be [[0, 1, 1], [0, 0, 1], [0, 0, 1]].", lambda a, h: (~a).repeat_interleave(h, 0).mT),
    ],
}
