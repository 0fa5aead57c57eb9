"""Every probe stays silent on attention, and speaks where there is something to say."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from unmasked import attend, self_attention
from unmasked_doctor import probes

PROBES = (probes.breaks_equivariance, probes.mixes_items, probes.is_no_average, probes.changes_from_call_to_call)
OTHERS = (probes.sees_the_future, probes.misses_the_past, probes.cuts_gradients, probes.overwrites_inputs)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(3, 5, 4, dtype=torch.float64)


def mean(x, **options):
    return self_attention(x, **options).context


def causal(x):
    return mean(x, is_causal=True)


@pytest.mark.parametrize("probe", [*PROBES, probes.cuts_gradients, probes.fails_in_half, probes.overwrites_inputs])
def test_attention_is_found_without_fault(probe, x) -> None:
    evidence = probe(mean, x)
    assert evidence is None


@pytest.mark.parametrize(
    "probe", [probes.sees_the_future, probes.misses_the_past, probes.mixes_items, probes.is_no_average]
)
def test_causal_attention_is_found_without_fault(probe, x) -> None:
    assert probe(causal, x) is None


@pytest.mark.parametrize(
    ("probe", "f", "told"),
    [
        (probes.sees_the_future, mean, "changing token 4 moves the output of token 0 by"),
        (probes.misses_the_past, lambda x: x, "changing token 0 leaves the output of token 4 as it was"),
        (probes.breaks_equivariance, causal, "with the tokens in another order"),
        (
            probes.mixes_items,
            lambda x: mean(x.transpose(0, 1)).transpose(0, 1),
            "changing item 0 moves the output of",
        ),
        (probes.mixes_items, lambda x: x.new_ones(x.shape), "changing item 0 leaves its own output as it was"),
        (probes.is_no_average, lambda x: 2 * x.cumsum(1), "weights do not sum to one"),
        (probes.changes_from_call_to_call, F.dropout, "two calls with the same input differ by"),
        (probes.overwrites_inputs, lambda x: x.add_(1), "input 0 of shape (3, 5, 4) is changed by the call, by 1"),
        (probes.overwrites_inputs, lambda x: x.mul_(1), "is changed by the call, by 0"),
        (probes.cuts_gradients, lambda x: mean(x).detach(), "the output requires no gradient"),
        (probes.cuts_gradients, lambda x: mean(x) * x.detach(), "along x the output moves by"),
        (probes.fails_in_half, lambda x: x * 1e6, "numbers of its output are not finite"),
    ],
)
def test_what_is_wrong_is_told(probe, f, told: str, x) -> None:
    evidence = probe(f, x)
    assert evidence
    assert told in str(evidence)
    assert evidence.difference >= 0


def test_a_parameter_is_put_back_also_where_moving_it_raises(x) -> None:
    weight = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    before = weight.detach().clone()

    def f(x):
        if not torch.equal(weight, before):
            raise ArithmeticError("it is moved")
        return x @ weight

    with pytest.raises(ArithmeticError, match="it is moved"):
        probes.cuts_gradients(f, x, [("weight", weight)])
    assert torch.equal(weight, before)


def test_a_leak_that_no_change_of_value_shows_is_found_by_the_gradient(x) -> None:
    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient.flip(1)

    evidence = probes.sees_the_future(lambda x: causal(Straight.apply(x)), x)
    assert "the gradient of output 0 reaches later tokens" in str(evidence)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("lowered_by", "shape"), [(10, (1, 2, 3)), (14, (1, 2, 3)), (14, (3, 5, 4)), (50, (3, 5, 4))])
def test_a_mask_that_only_lowers_scores_leaks(lowered_by: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype)
    tokens = shape[1]
    future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)

    def lowered(q, k, v, allowed):
        return ((q @ k.mT / 2) - lowered_by * (~allowed).to(q.dtype)).softmax(-1) @ v

    def hidden(q, k, v, allowed):
        return attend(q, k, v, allowed=allowed).context

    first = (torch.arange(tokens) < tokens - 1).expand(tokens, tokens)
    assert probes.sees_the_future(lambda x: lowered(x, x, x, ~future), x)
    assert probes.attends_to_what_is_hidden(lowered, x, x, x, first)
    assert probes.sees_the_future(lambda x: hidden(x, x, x, ~future), x) is None
    assert probes.attends_to_what_is_hidden(hidden, x, x, x, first) is None


@pytest.mark.parametrize("lowest", [-1e4, -1e9, torch.finfo(torch.float32).min, -torch.inf])
@pytest.mark.parametrize("implementation", ["eager", "fused"])
def test_a_mask_that_shuts_out_what_can_be_met_is_no_finding(lowest: float, implementation: str) -> None:
    x = torch.randn(3, 5, 12)
    added = torch.zeros(5, 5).masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), lowest)

    def eager(x):
        return (x @ x.mT / 12**0.5 + added).softmax(-1) @ x

    def fused(x):
        return F.scaled_dot_product_attention(x, x, x, attn_mask=added)

    assert probes.sees_the_future({"eager": eager, "fused": fused}[implementation], x) is None


def test_what_overflows_with_large_inputs_alone_is_no_finding(x) -> None:
    def exponentials(x):  # without the row's largest subtracted, as softmax does
        e = (x @ x.mT).exp() * torch.ones(5, 5, dtype=x.dtype).tril()
        return e @ x / e.sum(-1, keepdim=True)

    assert exponentials(100 * x).isnan().any()
    assert probes.sees_the_future(exponentials, x) is None
    half = torch.randn(2, 4, 8, dtype=torch.float16)
    assert probes.sees_the_future(lambda x: self_attention(x, is_causal=True).context, half) is None


def test_a_mask_is_held_to_hiding_and_to_showing(x) -> None:
    allowed = torch.ones(5, 5, dtype=torch.bool)
    allowed[:, 2] = False

    def masked(q, k, v, allowed):
        return attend(q, k, v, allowed=allowed).context

    assert probes.attends_to_what_is_hidden(masked, x, x, x, allowed) is None
    inverted = probes.attends_to_what_is_hidden(lambda q, k, v, a: masked(q, k, v, ~a), x, x, x, allowed)
    assert "changing key 0, which queries may see, leaves the output as it was" in str(inverted)
    assert probes.is_blinded(masked, x, x, x, torch.ones(5, 5, dtype=torch.bool)) is None


def test_the_newest_queries_alone_must_see_every_key(x) -> None:
    assert probes.misaligns_a_cache(lambda q, k, v: attend(q, k, v, is_causal=True).context, x) is None
    top_left = probes.misaligns_a_cache(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), x)
    assert "the last 1 of the queries, asked alone, gets another output" in str(top_left)


def test_rows_of_weights_sum_to_one_unless_they_are_blind() -> None:
    assert probes.weights_sum_to_one(torch.tensor([[0.25, 0.75], [0.0, 0.0], [torch.nan, torch.nan]])) is None
    assert "a row of the weights sums to 1.5" in str(probes.weights_sum_to_one(torch.tensor([[0.75, 0.75]])))


def test_hooks_that_are_skipped_are_seen_and_nothing_is_left_behind() -> None:
    layer = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    assert probes.skips_hooks(layer, lambda: layer(torch.ones(1, 3))) is None
    evidence = probes.skips_hooks(layer, lambda: layer[0].forward(torch.ones(1, 3)))
    assert "'0' (Linear): its forward ran 1 time, its hooks 0 times" in str(evidence)
    assert not layer[0]._forward_hooks
    assert "forward" not in vars(layer[0])


def test_parameters_that_share_a_storage_without_overlapping_are_no_finding() -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Parameter(part) for part in torch.randn(4, 12).chunk(3, dim=1))

    assert probes.shares_memory(Parts()) is None


def test_no_probe_moves_the_global_generator(x) -> None:
    before = torch.get_rng_state()
    for probe in (*PROBES, probes.sees_the_future, probes.cuts_gradients):
        probe(mean, x)
    assert torch.equal(torch.get_rng_state(), before)


MODES = {"inference mode": torch.inference_mode, "a default device": lambda: torch.device("meta")}


@pytest.mark.parametrize("mode", MODES)
def test_the_mode_that_a_caller_is_in_changes_nothing_in_what_is_found(mode: str, x) -> None:
    def found() -> list[object]:
        every = [probe(f, x) for f in (mean, causal, detached) for probe in (*PROBES, *OTHERS)]
        return [*map(str, every), str(probes.is_blinded(masked, x, x, x, allowed)), probes.shares_memory(tied)]

    def detached(x):
        return mean(x.detach()) + x

    def masked(q, k, v, allowed):
        return attend(q, k, v, allowed=allowed).context

    allowed, tied = torch.ones(5, 5, dtype=torch.bool), nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    tied[1].weight = nn.Parameter(tied[0].weight.detach())
    here = found()
    assert {"None"} < {*map(str, here)}
    with MODES[mode]():
        assert found() == here
