"""The doctor where a target's parameters are: on a GPU, or where there is none on the device that stands for one."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked import CausalSelfAttention, KVCache, LatentAttention, MultiheadAttention, diagnose, diagnose_model
from unmasked_doctor import Report, probes
from unmasked_doctor.testing import assert_attention

from ..elsewhere import elsewhere
from . import examples
from .test_zoo import JUDGED, RIGHT, WRONG
from .zoo.attention import SDPA, Attention
from .zoo.cases import Style
from .zoo.plain import Conv1D, Projected

# Annotations are checked wherever else the doctor is tried. A check asks each tensor that stands for one on a GPU for
# its shape and its dtype, which takes as long as the rest.
pytestmark = pytest.mark.usefixtures("unhooked")
Go = Callable[[], AbstractContextManager[torch.device]]


@pytest.fixture(params=["elsewhere", pytest.param("cuda", marks=pytest.mark.cuda)])
def go(request: pytest.FixtureRequest) -> Go:
    return elsewhere if request.param == "elsewhere" else lambda: nullcontext(torch.device("cuda"))


@pytest.fixture
def there(go: Go) -> Iterator[torch.device]:
    with go() as device:
        yield device


def verdict(report: Report) -> tuple[Any, ...]:
    told = [(finding.check, finding.cause, finding.told) for finding in (*report.named, *report.cautions)]
    return report.ok, told, report.passed, [each.check for each in report.inconclusive]


class Writing(nn.Module):
    """A layer with a cache, as `diagnose` calls one: it fills a cache where it is given none."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = CausalSelfAttention(12, 12, 3)

    def forward(self, x: Tensor, cache: Any = None) -> tuple[Tensor, Any]:
        if cache is not None:
            return self.written(x, cache), cache
        cache = KVCache(x.size(0), 3, 32, 4, dtype=x.dtype, device=x.device)
        self.written(x, cache)
        return self.layer(x), cache

    @torch.no_grad()  # a cache keeps numbers without their history
    def written(self, x: Tensor, cache: Any) -> Tensor:
        return self.layer(x, cache=cache)


Target = tuple[Callable[[], nn.Module], Mapping[str, Any]]
LAYERS: dict[str, Target] = {
    "nn.MultiheadAttention": (
        lambda: nn.MultiheadAttention(12, 3, dropout=0.1, batch_first=True),
        {"embed_dim": 12, "inputs": "qkv", "training": True},
    ),
    "MultiheadAttention": (
        lambda: MultiheadAttention(12, 3, kdim=7, vdim=5, add_bias_kv=True, add_zero_attn=True, batch_first=True),
        {"embed_dim": 12, "inputs": "qkv", "key_dim": (7, 5)},
    ),
    "CausalSelfAttention": (
        lambda: CausalSelfAttention(12, 12, 3, num_kv_heads=1, qkv_bias=True),
        {"embed_dim": 12, "causal": True},
    ),
    "LatentAttention": (lambda: LatentAttention(12, 12, 3, latent_dim=5), {"embed_dim": 12, "causal": True}),
    "with KVCache": (Writing, {"embed_dim": 12, "causal": True, "cache": "kv"}),
}
# Each part of the doctor has an example that needs it: reading weights, listening, putting numbers, asking of masks.
EXAMPLES = (
    *("step by step, causal", "mask-polarity", "missing-scale", "gradient-cut", "view-without-transpose: and back"),
    *("dropout-in-eval", "weights-after-dropout", "input-overwritten", "float16-overflow"),
)
ZOO = (
    *("gate-per-head", "softmax-plus-one", "growing-cache", "masked-cross", "null-kv-multi-query"),
    *("kernel-efficient", "sums-not-rescaled", "relative-bias-on-weights", "cap-after-padding"),
    *("out-weight-not-transposed", "lecture-last-head-lost", "causal-scores-dropped"),
    *("llama-rotary", "concat-heads", "block-batch-first-forgotten", "cached-rotary", "decode-restart"),
)


def same_verdict(go: Go, target: Target) -> Report:
    make, options = target
    torch.manual_seed(0)
    module = make()
    here = diagnose(copy.deepcopy(module), **options)
    with go() as there:
        report = diagnose(module.to(there), **options)
        assert verdict(report) == verdict(here)
    return report


TARGETS = {name: (example.make, {"embed_dim": 12, **example.options})
           for name, example in (examples.RIGHT | examples.WRONG).items() if name in EXAMPLES}  # fmt: skip
TARGETS |= {name: (case.make, case.call) for name, case in (RIGHT | WRONG).items() if name in ZOO}
DRAWN = (*EXAMPLES, *(name for name in ZOO if name in JUDGED))  # of strangers, those that this run judges anyway


@pytest.mark.parametrize("name", LAYERS)
def test_layers_get_the_verdict_that_they_get_on_the_cpu(name: str, go: Go) -> None:
    report = same_verdict(go, LAYERS[name])
    assert not report.named, report


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", DRAWN)
def test_examples_get_the_verdict_that_they_get_on_the_cpu(name: str, go: Go) -> None:
    same_verdict(go, TARGETS[name])


def test_a_test_suite_may_assert_it_there(there: torch.device) -> None:
    layer = CausalSelfAttention(12, 12, 3, device=there)
    assert assert_attention(layer, embed_dim=12, causal=True, at_least="followed").ok
    with pytest.raises(AssertionError, match="mask-polarity"):
        assert_attention(examples.WRONG["mask-polarity"].make().to(there), embed_dim=12, causal=True)


def test_functions_and_their_weights_are_examined_there(there: torch.device) -> None:
    qkv, out = (nn.Linear(12, width, device=there) for width in (36, 12))

    def attend(x: Tensor) -> Tensor:
        q, k, v = qkv(x).unflatten(-1, (9, 4)).transpose(1, 2).chunk(3, 1)
        return out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    report = diagnose(attend, embed_dim=12, weights={"qkv": qkv, "out": out.weight, "out_bias": out.bias}, num_heads=3)
    assert not report.named, report
    assert "equality with the reference" in report.passed


def test_matrices_are_known_by_where_they_lie_there(go: Go) -> None:
    for style, told in (
        (Style(Projected, heads=4, linear=Conv1D, slip="chained"), "k_proj.weight is applied to what q_proj.weight"),
        (WRONG["one-layer-in-the-list"].style, "query and key are made by one layer"),
    ):
        report = same_verdict(go, (style.make, style.call))
        assert any(told in finding.told for finding in report.named), report


def test_a_mask_on_another_device_is_told(there: torch.device) -> None:
    def here(at: Tensor, keys: Tensor) -> Tensor:
        return torch.ones(len(at), len(keys), dtype=torch.bool).tril()

    module = Attention(12, 3, sees=here, **SDPA)
    assert not diagnose(module, embed_dim=12, causal=True).named
    (finding,) = diagnose(module.to(there), embed_dim=12, causal=True).named
    assert "it does not run where its parameters are: a tensor of its own, such as a mask, is on anoth" in finding.told
    assert "same device" in finding.evidence


def test_a_call_is_asked_there_also_where_new_tensors_come_there_by_default(there: torch.device) -> None:
    module, x = Attention(12, 3, causal=True, **SDPA).to(there), torch.randn(2, 5, 12)
    assert not diagnose(module, x.to(there), causal=True).named
    with there:
        assert not diagnose(module, x.to(there), causal=True).named


def test_a_model_is_examined_there(there: torch.device) -> None:
    layers = (nn.TransformerEncoderLayer(12, 3, batch_first=True, device=there) for _ in range(2))
    report = diagnose_model(nn.Sequential(*layers), torch.randn(2, 5, 12, device=there))
    assert not report.named, report


def test_probes_take_what_is_there(there: torch.device) -> None:
    x = torch.randn(2, 4, 6, dtype=torch.float64, device=there)
    layer = CausalSelfAttention(6, 6, 2, device=there, dtype=torch.float64)
    for probe in (probes.sees_the_future, probes.misses_the_past, probes.mixes_items, probes.changes_from_call_to_call):
        assert probe(layer, x) is None
    assert probes.cuts_gradients(layer, x, layer.named_parameters()) is None
    cut = probes.cuts_gradients(lambda x: layer(x.detach() + 0 * x), x, layer.named_parameters())
    assert "along x the output moves" in str(cut)


@pytest.mark.cuda
def test_the_gpus_generator_is_left_as_it_was() -> None:
    layer = nn.MultiheadAttention(12, 3, dropout=0.3, batch_first=True, device="cuda")
    before = torch.cuda.get_rng_state()
    assert not diagnose(layer, embed_dim=12, inputs="qkv", training=True).named
    assert probes.changes_from_call_to_call(nn.Dropout(), torch.ones(2, 3, 4, device="cuda")) is not None
    assert torch.equal(torch.cuda.get_rng_state(), before)
