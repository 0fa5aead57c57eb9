"""Wrong calls beside those of the sweep: what arguments have to be together, and what is no tensor or number."""

from typing import Any

import pytest
import torch
from torch import nn

from unmasked import CausalSelfAttention, LatentAttention, gradients, masks, rollout, show, tiles
from unmasked.layouts import convert, layout_of, load
from unmasked.parallel import launch
from unmasked.plot import grid, heatmap
from unmasked.positions import Rotary
from unmasked.watching import ablate, watch
from unmasked_doctor import probes
from unmasked_lessons import measure
from unmasked_lessons.embeddings import Embeddings, ship_vectors

from ..refusals import refused

X: Any = torch.randn(2, 3, 8)
THERE, ODD = torch.arange(3, device="meta"), torch.zeros(2, 2, 3).long()
FLAT: Any = torch.eye(3)
MODULE, CONTEXTS = nn.MultiheadAttention(8, 2), tiles.tiled_attention(X, X, X)
STATE: Any = MODULE.state_dict()
NAMED = "pass tensors by name, as module.state_dict() does"
TEXTS = "is of the type int; pass a text for each, as sentence.split() makes"


def converted(state: Any) -> object:
    return convert(state, source="packed", target="qkv", num_heads=2)


def loaded(state: Any) -> object:
    return load(state, "llama", num_heads=2)


def turned(frequencies: Any) -> object:
    return Rotary(4, frequencies=frequencies)


def layer(cls: Any = CausalSelfAttention, **options: Any) -> Any:
    return cls(8, 8, 2, rotary=Rotary(4), **options)


def measured(**options: Any) -> object:
    return measure.measure("cpu", **{"lengths": [8], "heads": 1, "repeats": 1} | options)


@pytest.mark.usefixtures("unhooked")
def test_numbers_of_documents_may_be_of_eight_bits() -> None:
    assert masks.ids_from_cu_seqlens(torch.tensor([0, 200, 203], dtype=torch.uint8)).bincount().tolist() == [200, 3]


def of_two_batches() -> Any:
    attention = CausalSelfAttention(8, 8, 2)
    with watch(attention) as seen:
        attention(X[:1])
        attention(X)
    return seen


test_what_does_not_go_together_or_is_of_another_kind_is_refused_by_name = refused(
    {
        ValueError: {
            "positions is on meta and x on cpu; move one to the other": (
                lambda: Rotary(8)(X, THERE),
                lambda: layer()(X, positions=THERE),
                lambda: layer(LatentAttention, latent_dim=4, rotary_dim=4)(X, positions=THERE),
            ),
            "parts[1][0] is on meta and parts[0][0] on cpu; move one to the other": lambda: tiles.merge(
                [CONTEXTS, tiles.Part(*(each.to("meta") for each in CONTEXTS))]
            ),
            "state['in_proj_bias'] is on meta and state['in_proj_weight'] on cpu; move one to the other": (
                lambda: converted(
                    {name: x.to("meta" if "in_proj_bias" in name else "cpu") for name, x in STATE.items()}
                )
            ),
            "saved[0] is on meta and query on cpu; move one to the other": lambda: gradients.attention_backward(
                X, X, X, X, saved=(CONTEXTS[0].to("meta"), CONTEXTS[1])
            ),
            "frequencies are [1.0, nan]; each must be a finite number": (
                lambda: turned(torch.tensor([1.0, torch.nan])),
                lambda: turned(lambda plain: plain * 0 + torch.tensor([1.0, torch.nan])),
            ),
            "ids has shape (2, 2, 3); it must be (tokens,) or (batch, tokens)": (
                lambda: masks.documents(ODD),
                lambda: masks.cu_seqlens(ODD),
            ),
            **{
                f"timeout is {seconds}; it must be a positive number of seconds": (
                    lambda seconds=seconds: launch(int, timeout=seconds)
                )
                for seconds in (torch.nan, -1, 0)
            },
            "weights is on the meta device and has no values; call .to_empty(device=...) and fill it": (
                lambda: show(FLAT.to("meta")),
                lambda: heatmap(FLAT.to("meta")),
            ),
            'name is \'h200\'; choose "h100", "flex" or "atlas"': lambda: measure.recorded("h200"),  # type: ignore[arg-type]
            "record lacks device, kernels, choices; pass what measure or recorded gives": lambda: measure.limits({}),
            "calls have 1 sequences in '' and 2 in ''; pass the calls of one forward pass": lambda: rollout(
                of_two_batches()
            ),
            "heads is -1; it must be 1 or more": lambda: measured(heads=-1),
            "repeats is 0; it must be 1 or more": lambda: measured(repeats=0),
        },
        TypeError: {
            "grad_context is torch.float64 but query is torch.float32; cast one to the other": (
                lambda: gradients.attention_backward(X.double(), X, X, X)
            ),
            "what frequencies makes is None; pass a tensor": lambda: turned(lambda plain: None),
            f"state is of the type str; {NAMED}": (
                lambda: converted("no"),
                lambda: loaded("no"),
                lambda: layout_of("no"),  # type: ignore[arg-type]
            ),
            f"state holds 1 in the place of a name; {NAMED}": (
                lambda: converted({1: X}),
                lambda: loaded({1: X}),
                lambda: layout_of({1: X}),  # type: ignore[dict-item]
            ),
            "state['in_proj_weight'] is None; pass a tensor": lambda: converted(STATE | {"in_proj_weight": None}),
            "work is of the type str; pass a function": lambda: launch("work"),  # type: ignore[arg-type]
            "weights is sparse, torch.sparse_coo; call weights.to_dense()": (
                lambda: show(FLAT.to_sparse()),
                lambda: heatmap(FLAT.to_sparse()),
            ),
            "values is sparse, torch.sparse_coo; call values.to_dense()": lambda: grid(FLAT.to_sparse()),
            f"queries {TEXTS}": (lambda: show(FLAT, queries=5), lambda: heatmap(FLAT, queries=5)),  # type: ignore[arg-type]
            f"keys {TEXTS}": lambda: show(FLAT, keys=5),  # type: ignore[arg-type]
            "words is of the type int; pass strings, or a sentence": lambda: ship_vectors().lookup(5),  # type: ignore[arg-type]
            "vectors is torch.int64; it must be floating: call vectors.float()": lambda: Embeddings(("a",), ODD[0, :1]),
            "words is 'a', a str; pass a tuple of strings": lambda: Embeddings("a", FLAT[:1]),  # type: ignore[arg-type]
            "heads names 0; pass the qualified names of modules, as watch tells them": lambda: ablate(
                MODULE,
                {0: [0]},  # type: ignore[dict-item]
            ).__enter__(),
            "calls holds what is of the type int; pass what watch(model) saw": lambda: rollout([1]),  # type: ignore[list-item]
            "lengths is of the type int; pass numbers of tokens, as [512] holds": lambda: measured(lengths=512),
            "lengths is 2.5, a float; it must be an integer": lambda: measured(lengths=[2.5]),
            "x is of the type list; it must be a tensor": lambda: probes.sees_the_future(lambda x: x, [1.0]),  # type: ignore[arg-type]
            "f is a tensor of float32, (2, 3, 8); it must be a function": lambda: probes.misses_the_past(X, X),
        },
    }
)
