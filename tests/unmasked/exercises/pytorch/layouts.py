"""The exercises about layouts accept what is right in any style, and say what is wrong with what is not."""

from collections.abc import Callable

from unmasked import layouts


def converted(weight, num_heads):
    embed_dim = weight.size(1)
    state = {"qkv_layer.weight": weight, "linear_layer.weight": weight[:embed_dim]}
    made = layouts.convert(state, source="interleaved", target="packed", num_heads=num_heads)
    return made["in_proj_weight"]


def loaded(state, num_heads, *, first="T", second="T", bias=True):
    given = {"in_proj_weight": state["c_attn.weight"], "out_proj.weight": state["c_proj.weight"]}
    made = {
        name: x.T if turn == "T" else x.reshape(turn)
        for (name, x), turn in zip(given.items(), (first, second), strict=True)
    }
    return made | ({"in_proj_bias": state["c_attn.bias"], "out_proj.bias": state["c_proj.bias"]} if bias else {})


_RIGHT: dict[str, list[Callable]] = {
    "one-head-of-packed": [
        lambda w, h, i: tuple(w.unflatten(0, (3, h, -1))[:, i]),
        lambda w, h, i: [part.chunk(h)[i] for part in w.chunk(3)],
    ],
    "conv1d-to-packed": [
        loaded,
        lambda state, h: layouts.convert(state, source="conv1d", target="packed", num_heads=h),
    ],
    "interleaved-to-packed": [converted, lambda w, h: w.view(h, 3, -1, w.size(1)).transpose(0, 1).reshape(w.shape)],
}
RIGHT = [(name, answer) for name, answers in _RIGHT.items() for answer in answers]
WRONG: dict[tuple[str, str], tuple[Callable, str | None, str]] = {
    ("one-head-of-packed", "interleaved"): (
        lambda w, h, i: w.unflatten(0, (h, 3, -1))[i].unbind(0),
        "interleaved-qkv",
        "The key's matrix of head 0 begins with row 2; it should begin with row 6.",
    ),
    ("one-head-of-packed", "the last head"): (
        lambda w, h, i: tuple(w.unflatten(0, (3, h, -1))[:, -1]),
        None,
        "The query's matrix of head 0 begins with row 4; it should begin with row 0.",
    ),
    ("one-head-of-packed", "all heads"): (lambda w, h, i: w.chunk(3), None, "each of three should be (2, 6)"),
    ("interleaved-to-packed", "as it is"): (
        lambda w, h: w.clone(),
        "interleaved-qkv",
        "The rows come in the order [0, 1, 2",
    ),
    ("interleaved-to-packed", "upside down"): (
        lambda w, h: w.flip(0),
        None,
        "it should be [0, 1, 6, 7",
    ),
    ("conv1d-to-packed", "a view"): (
        lambda state, h: loaded(state, h, first=(18, 6)),
        "weight-not-transposed",
        "in_proj_weight has the right shape and other numbers: a view is no transpose.",
    ),
    ("conv1d-to-packed", "as it is"): (
        lambda state, h: loaded(state, h, first=(6, 18)),
        None,
        "in_proj_weight has the shape (6, 18); it should have (18, 6).",
    ),
    ("conv1d-to-packed", "the square one as it is"): (
        lambda state, h: loaded(state, h, second=(6, 6)),
        "weight-not-transposed",
        "out_proj.weight fits, but is not transposed.",
    ),
    ("conv1d-to-packed", "upside down"): (
        lambda state, h: {name: x.flip(0) for name, x in loaded(state, h).items()},
        None,
        "in_proj_weight has the right shape and other numbers.",
    ),
    ("conv1d-to-packed", "no biases"): (
        lambda state, h: loaded(state, h, bias=False),
        None,
        "It gives ['in_proj_weight', 'out_proj.weight']; it should give ['in_proj_bias', ",
    ),
    ("interleaved-to-packed", "another shape"): (lambda w, h: w.view(h, -1), None, "it should stay (18, 6)"),
}
