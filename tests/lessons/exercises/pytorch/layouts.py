"""Right and wrong answers to the exercises of pytorch/layouts."""


def loaded(state, num_heads, *, first="T", second="T", bias=True):
    given = {"in_proj_weight": state["c_attn.weight"], "out_proj.weight": state["c_proj.weight"]}
    made = {
        name: x.T if turn == "T" else x.reshape(turn)
        for (name, x), turn in zip(given.items(), (first, second), strict=True)
    }
    return made | ({"in_proj_bias": state["c_attn.bias"], "out_proj.bias": state["c_proj.bias"]} if bias else {})


RIGHT = {
    "one-head-of-packed": [
        lambda w, h, i: tuple(w.unflatten(0, (3, h, -1))[:, i]),
        lambda w, h, i: [part.chunk(h)[i] for part in w.chunk(3)],
    ],
    "conv1d-to-packed": [
        loaded,
    ],
    "interleaved-to-packed": [lambda w, h: w.view(h, 3, -1, w.size(1)).transpose(0, 1).reshape(w.shape)],
}
WRONG = {
    "one-head-of-packed": [
        ("are not packed head by head. [interleaved-qkv]", lambda w, h, i: w.unflatten(0, (h, 3, -1))[i].unbind(0)),
        ("5]; it should be [0, 1].", lambda w, h, i: tuple(w.unflatten(0, (3, h, -1))[:, -1])),
        ("For 3 heads the shape is (6, 6); it should be (2, 6).", lambda w, h, i: w.chunk(3)),
    ],
    "interleaved-to-packed": [
        ("They still stand head by head. [interleaved-qkv]", lambda w, h: w.clone()),
        ("it should be [0, 1, 6, 7", lambda w, h: w.flip(0)),
    ],
    "conv1d-to-packed": [
        ("3.86. A view is no transpose. [weight-not-transposed]", lambda state, h: loaded(state, h, first=(18, 6))),
        (
            "18); it should be (18, 6). It is not transposed. [weight-not-transposed]",
            lambda state, h: loaded(state, h, first=(6, 18)),
        ),
        ("It is not transposed. [weight-not-transposed]", lambda state, h: loaded(state, h, second=(6, 6))),
        ("is off by up to 3.93.", lambda state, h: {name: x.flip(0) for name, x in loaded(state, h).items()}),
        ("'out_proj.weight']; it should give", lambda state, h: loaded(state, h, bias=False)),
    ],
}
