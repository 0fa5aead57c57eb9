import re

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

from unmasked import CausalSelfAttention, MultiheadAttention, bypass_, bypassed, is_bypassed, self_attention

from .helpers import shaken

MODULES = [nn.MultiheadAttention, MultiheadAttention]


def attend(module: nn.Module, x: Tensor) -> Tensor:
    return module(x) if isinstance(module, CausalSelfAttention) else module(x, x, x)[0]


@pytest.mark.parametrize(("batch_first", "bias"), [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("cls", MODULES)
def test_every_head_attends_over_its_own_slice(cls: type, heads: int, batch_first: bool, bias: bool) -> None:
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    module = bypass_(shaken(cls(12, heads, bias=bias, batch_first=batch_first, dtype=torch.float64)))
    given = x if batch_first else x.transpose(0, 1)
    context, weights = module(given, given, given, average_attn_weights=False)
    slices = [self_attention(part) for part in x.chunk(heads, dim=-1)]
    torch.testing.assert_close(
        context if batch_first else context.transpose(0, 1), torch.cat([s[0] for s in slices], -1)
    )
    torch.testing.assert_close(weights, torch.stack([s[1] for s in slices], 1))


@pytest.mark.parametrize("heads", [1, 3])
def test_a_causal_layer_computes_causal_self_attention(heads: int) -> None:
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    module = bypass_(shaken(CausalSelfAttention(12, 12, heads, qkv_bias=True, dtype=torch.float64)))
    slices = [self_attention(part, is_causal=True).context for part in x.chunk(heads, dim=-1)]
    torch.testing.assert_close(module(x), torch.cat(slices, -1))


def test_a_shared_orthogonal_query_and_key_matrix_serves_too() -> None:
    module = bypass_(MultiheadAttention(4, 1, dtype=torch.float64))
    rotation, _ = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64))
    with torch.no_grad():
        module.in_proj_weight[:8] = torch.cat([rotation, rotation])
    x = torch.randn(5, 4, dtype=torch.float64)
    torch.testing.assert_close(module(x, x, x)[0], self_attention(x).context)
    assert not is_bypassed(module)


def candidates() -> list[nn.Module]:
    return [
        nn.MultiheadAttention(12, 3),
        MultiheadAttention(12, 3, bias=False, dtype=torch.float64),
        CausalSelfAttention(12, 12, 3, qkv_bias=True),
    ]


@pytest.mark.parametrize("module", candidates(), ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("fails", [False, True])
def test_leaving_the_block_restores_everything_in_the_same_parameters(module: nn.Module, fails: bool) -> None:
    shaken(module).get_parameter("out_proj.weight").requires_grad_(False)
    values = {name: p.detach().clone() for name, p in module.named_parameters()}
    before = {name: (p, p.requires_grad) for name, p in module.named_parameters()}
    try:
        with bypassed(module) as inside:
            assert inside is module
            assert is_bypassed(module)
            assert not any(p.requires_grad for p in module.parameters())
            if fails:
                raise KeyError
    except KeyError:
        pass
    after = dict(module.named_parameters())
    assert {name: (p, p.requires_grad) for name, p in after.items()} == before  # == of parameters: the same objects
    assert all(torch.equal(p, values[name]) for name, p in after.items())
    assert not is_bypassed(module)


FROZEN = "is trainable, and one step undoes the bypass"


@pytest.mark.parametrize(
    ("undo", "reasons"),
    [
        (lambda m: None, ()),
        (lambda m: m.in_proj_weight.fill_(0.5), ("in_proj_weight is not the identity",)),
        (lambda m: m.out_proj.weight.mul_(-1), ("out_proj.weight is not the identity",)),
        (lambda m: m.in_proj_bias.fill_(0.5), ("in_proj_bias is not zero",)),
        (lambda m: m.out_proj.bias.fill_(0.5), ("out_proj.bias is not zero",)),
        (lambda m: m.in_proj_weight.requires_grad_(), (f"in_proj_weight {FROZEN}",)),
        (lambda m: m.out_proj.bias.requires_grad_(), (f"out_proj.bias {FROZEN}",)),
        (lambda m: setattr(m, "dropout", 0.1), ("dropout=0.1 drops weights in training; call .eval()",)),
    ],
)
@torch.no_grad()
def test_the_check_says_what_undid_the_bypass(undo, reasons: tuple[str, ...]) -> None:
    module = bypass_(nn.MultiheadAttention(4, 2))
    undo(module)
    check = is_bypassed(module)
    assert check.reasons == reasons
    assert bool(check) == (not reasons)
    assert str(check) == ("not bypassed: " + "; ".join(reasons) if reasons else f"bypassed: computes {check.computes}")
    assert check.computes == "self-attention of each of 2 slices of 2 features"


def test_dropout_does_not_matter_in_evaluation() -> None:
    assert is_bypassed(bypass_(nn.MultiheadAttention(4, 1, dropout=0.5)).eval())


def test_the_check_says_what_a_bypassed_module_computes() -> None:
    assert is_bypassed(MultiheadAttention(4, 1)).computes == "self-attention"
    assert is_bypassed(CausalSelfAttention(6, 6, 1)).computes == "causal self-attention"
    assert (
        is_bypassed(CausalSelfAttention(6, 6, 2)).computes == "causal self-attention of each of 2 slices of 3 features"
    )


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def parametrized() -> nn.Module:
    module = nn.MultiheadAttention(4, 1)
    parametrize.register_parametrization(module, "in_proj_weight", Doubled())
    return module


def pruned() -> nn.Module:
    module = nn.MultiheadAttention(4, 1)
    prune.l1_unstructured(module.out_proj, "weight", 0.5)
    return module


COMPUTED = "is computed from other tensors, by a parametrization or pruning; remove that first"


@pytest.mark.parametrize(
    ("module", "obstacle"),
    [
        (nn.MultiheadAttention(4, 2, kdim=5), "its weights are not packed: kdim is 5 and vdim 4, embed_dim 4"),
        (MultiheadAttention(4, 2, vdim=5), "its weights are not packed: kdim is 4 and vdim 5, embed_dim 4"),
        (nn.MultiheadAttention(4, 2, add_bias_kv=True), "add_bias_kv appends a learned key and value"),
        (MultiheadAttention(4, 2, add_zero_attn=True), "add_zero_attn appends a key and value of zeros"),
        (CausalSelfAttention(5, 4, 2), "its projections are not square: d_in is 5 and d_out is 4"),
        (
            CausalSelfAttention(4, 4, 2, num_kv_heads=1),
            "its projections are not square: num_kv_heads is 1 and num_heads is 2",
        ),
        (parametrized(), f"in_proj_weight {COMPUTED}"),
        (pruned(), f"out_proj.weight {COMPUTED}"),
        (
            CausalSelfAttention(4, 4, 1, device="meta"),
            "qkv.weight is on the meta device and has no values; call .to_empty(device=...) first",
        ),
    ],
)
def test_what_identity_weights_cannot_mend_is_refused_named_by_the_check_and_left_as_it_was(
    module: nn.Module, obstacle: str
) -> None:
    before = [parameter.clone() for parameter in module.parameters()]
    for refuse in (bypass_, lambda module: bypassed(module).__enter__()):
        with pytest.raises(ValueError, match=f"^module cannot be bypassed: {re.escape(obstacle)}(; |$)"):
            refuse(module)
    assert is_bypassed(module).reasons[0] == obstacle
    for parameter, value in zip(module.parameters(), before, strict=True):
        assert parameter.requires_grad
        assert parameter.is_meta or torch.equal(parameter, value)


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize("refuse", [bypass_, is_bypassed, lambda module: bypassed(module).__enter__()])
def test_other_modules_are_refused_by_their_kind(refuse) -> None:
    text = "module is a Linear; the bypass knows nn.MultiheadAttention, MultiheadAttention and CausalSelfAttention"
    with pytest.raises(TypeError, match=re.escape(text) + "$"):
        refuse(nn.Linear(4, 4))


def test_a_backward_pass_stays_within_the_block() -> None:
    module, x = nn.MultiheadAttention(4, 1), torch.randn(3, 4, requires_grad=True)
    with bypassed(module):
        module(x, x, x)[0].sum().backward()
        output = module(x, x, x)[0]
    assert x.grad is not None
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.parametrize("make", [lambda: MultiheadAttention(4, 1), lambda: CausalSelfAttention(4, 4, 1)])
def test_an_optimizer_with_gradients_from_before_does_not_move_a_bypassed_module(make: type) -> None:
    module, x = shaken(make()), torch.randn(5, 2, 4)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    attend(module, x).square().sum().backward()
    expected = attend(bypass_(module), x)
    optimizer.step()
    assert is_bypassed(module)
    torch.testing.assert_close(attend(module, x), expected)


def test_parameters_made_for_inference_are_refused_before_one_is_changed() -> None:
    with torch.inference_mode():
        module = shaken(MultiheadAttention(4, 1))
        before = [parameter.clone() for parameter in module.parameters()]
    text = r"in_proj_weight was made under torch\.inference_mode\(\) and cannot be changed outside it"
    with pytest.raises(ValueError, match=text):
        bypass_(module)
    torch.testing.assert_close(list(module.parameters()), before, rtol=0, atol=0)
    with torch.inference_mode():
        assert is_bypassed(bypass_(module))


def test_bypassed_puts_gradients_back() -> None:
    module, x = shaken(MultiheadAttention(4, 1)), torch.randn(5, 2, 4)
    module(x, x, x)[0].square().sum().backward()
    before = {name: parameter.grad for name, parameter in module.named_parameters()}
    with bypassed(module):
        assert all(parameter.grad is None for parameter in module.parameters())
    for name, parameter in module.named_parameters():
        assert parameter.grad is before[name], name
        assert parameter.grad.any(), name


def test_is_bypassed_names_a_gradient_that_an_optimizer_would_still_apply() -> None:
    module = bypass_(MultiheadAttention(4, 1))
    module.in_proj_weight.grad = torch.ones(12, 4)
    assert str(is_bypassed(module)) == (
        "not bypassed: in_proj_weight is frozen but keeps a gradient, and an optimizer that holds it moves it still"
    )
    torch.optim.SGD(module.parameters(), lr=1.0).step()
    assert not torch.allclose(module.in_proj_weight, torch.eye(4).repeat(3, 1))  # frozen, and moved
