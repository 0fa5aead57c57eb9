import os
import re
import warnings
from collections.abc import Callable, Iterator
from itertools import islice, product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import unmasked
from unmasked.kernels import Backend, FastPath, Kernel, _answer, _unsaid, kernels_of, sdpa_backends, takes_fast_path

from .helpers import Operations, fast_path

FUSED = {
    SDPBackend.FLASH_ATTENTION: "flash",
    SDPBackend.EFFICIENT_ATTENTION: "efficient",
    SDPBackend.CUDNN_ATTENTION: "cudnn",
}
LAYER, MODULE = "aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention"


def backend_that_ran(*args: Tensor, **options: Any) -> str | None:
    with Operations() as ran:
        try:
            scaled_dot_product_attention(*args, **options)
        except (RuntimeError, IndexError):
            return None
    return next((name for name in FUSED.values() if any(f"{name}_attention" in op for op in ran.names)), "math")


def layouts(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    q, k, v = (torch.ones(2, 3, n, 8, device=device, dtype=dtype) for n in (5, 6, 6))
    yield q, k, v
    yield q[0], k[0], v[0]
    yield q[None], k[None], v[None]
    yield q, k, v.mT.contiguous().mT
    yield q, k, v[..., :4]
    yield q, k[:, :1], v[:, :1]
    yield q, k[:1], v[:1]
    yield q, k[:, :, :0], v[:, :, :0]
    yield q[..., :1], k[..., :1], v[..., :1]
    yield q[..., :4], k, v
    yield q, k.double(), v
    yield q.requires_grad_(), k, v


def masks(keys: int, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[Tensor | None]:
    yield None
    yield torch.ones(5, keys, device=device, dtype=torch.bool)
    if keys:
        yield torch.ones(keys, device=device, dtype=torch.bool)
    yield torch.ones(5, keys + 1, device=device, dtype=torch.bool)
    yield torch.ones(5, keys, device=device, dtype=torch.int32)
    for shape in [(2, 1, 5, keys), (3, 5, keys)]:
        yield torch.zeros(shape, device=device, dtype=dtype)
    yield torch.zeros(5, keys, device=device, dtype=dtype, requires_grad=True)


def cases(device: str, dtype: torch.dtype) -> Iterator[tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any]]]:
    for q, k, v in layouts(device, dtype):
        for mask in masks(k.shape[-2], device, dtype):
            for dropout_p, is_causal, enable_gqa in product((0.0, 0.1), (False, True), (False, True)):
                options = {"dropout_p": dropout_p, "is_causal": is_causal, "enable_gqa": enable_gqa}
                yield (q, k, v), {"attn_mask": mask, **options}


def assert_predictions_come_true(device: str, dtype: torch.dtype, every: int = 1) -> None:
    fused = FUSED if device == "cuda" else {SDPBackend.FLASH_ATTENTION: "flash"}
    for inputs, options in islice(cases(device, dtype), 0, None, every):
        backends = sdpa_backends(*inputs, **options)
        case = f"{[(x.shape, x.stride()) for x in inputs]} {options}\n{backends}"
        with warnings.catch_warnings(action="ignore"):
            chosen = next((backend.name for backend in backends if backend.chosen), None)
            ran = backend_that_ran(*inputs, **options)
            assert chosen == ran or (ran is None and (chosen, backends[3].can_run) == ("math", False)), case
            for kernel, name in {**fused, SDPBackend.MATH: "math"}.items():
                with sdpa_kernel(kernel):
                    ran = backend_that_ran(*inputs, **options)
                assert next(b.can_run for b in backends if b.name == name) == (ran == name), f"{name}: {case}"
        assert all(bool(backend.why_not) != backend.can_run for backend in backends), case


@pytest.mark.parametrize("level", [None, "3"])
def test_the_profiler_is_quiet_and_the_environment_stays_as_it_was(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], level: str | None
) -> None:
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    if level:
        monkeypatch.setenv("KINETO_LOG_LEVEL", level)
    kernels_of(torch.softmax, torch.ones(3), 0)
    assert (os.environ.get("KINETO_LOG_LEVEL"), *capfd.readouterr()) == (level, "", "")


def test_what_is_predicted_is_what_runs_on_the_cpu() -> None:
    # Every fifth, as 5 divides neither 8 options nor 8 masks: each option still meets each mask and each layout.
    assert_predictions_come_true("cpu", torch.float32, every=5)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_what_is_predicted_is_what_runs_on_a_gpu(dtype: torch.dtype) -> None:
    assert_predictions_come_true("cuda", dtype)


@pytest.mark.cuda
def test_flash_gives_pytorchs_reason_against_float32_on_a_gpu_or_none() -> None:
    q = torch.ones(2, 3, 5, 8, device="cuda")
    flash, _, cudnn, _ = sdpa_backends(q, q, q)
    for backend in (flash, cudnn):
        reason = (
            "Expected query, key and value to all be of dtype"  # PyTorch 2.11 logs it where Python does not hear it
        )
        assert reason in backend.why_not or backend.why_not == "(PyTorch does not say)"


@pytest.mark.cuda
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_odd_shapes_are_asked_about_on_a_gpu_too(axes: int) -> None:
    q = torch.ones((5,) * axes, device="cuda")
    backends = sdpa_backends(q, q, q)
    assert backends[3].can_run == (axes > 1)
    assert all(bool(backend.why_not) != backend.can_run for backend in backends)


def asks_for_an_axis_too_many() -> bool:
    raise IndexError("Dimension out of range (expected to be in range of [-1, 0], but got 1)")


@pytest.mark.parametrize("ask", [asks_for_an_axis_too_many, lambda: False])
def test_no_reason_is_made_up_where_pytorch_gives_none(ask: Callable[[], bool]) -> None:
    assert _answer(SDPBackend.CUDNN_ATTENTION, ask) == (False, "")
    assert _unsaid("cudnn", "cuda", None) == _unsaid("flash", "mps", torch.zeros(1, requires_grad=True))
    assert _unsaid("cudnn", "cuda", None) == "(PyTorch does not say)"


def test_each_reason_is_pytorchs_own_or_in_parentheses_and_the_table_shows_it() -> None:
    q = torch.ones(2, 3, 5, 4)
    backends = sdpa_backends(q, q, q[..., :2])
    assert str(backends).splitlines() == [
        "backend    can run  why not",
        "flash      no       Flash attention requires q,k,v to have the same last dimension. Got Query.size(-1): 4, "
        "Key.size(-1): 4, Value.size(-1): 2 instead.",
        "efficient  no       (a CPU has no such kernel)",
        "cudnn      no       (a CPU has no such kernel)",
        "math       chosen",
    ]
    assert '<tr><th scope="row">math</th><td>chosen</td><td></td></tr>' in backends._repr_html_()
    assert sdpa_backends(q, q, q, attn_mask=torch.zeros(5, 5, requires_grad=True))[0] == Backend(
        "flash", can_run=False, why_not="(attn_mask requires grad)", chosen=False
    )


def test_a_backend_that_is_switched_off_can_run_but_is_not_chosen() -> None:
    q = torch.ones(2, 3, 5, 4)
    assert sdpa_backends(q, q, q)[0] == Backend("flash", can_run=True, why_not="", chosen=True)
    with sdpa_kernel(SDPBackend.MATH):
        assert sdpa_backends(q, q, q)[0] == Backend("flash", can_run=True, why_not="", chosen=False)
        assert not torch.backends.cuda.flash_sdp_enabled()


Q = torch.ones(2, 3, 5, 8)
ACROSS, STRIDED = Q.mT.contiguous().mT, torch.ones(2, 5, 3, 8).transpose(1, 2)  # heads split off, as models do it
LEAVES: dict[str, tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any], str]] = {
    "dropout": ((Q, Q, Q), {"dropout_p": 0.1}, "Both fused kernels do not support non-zero dropout."),
    "three axes": ((Q[0], Q[0], Q[0]), {}, "requires query, key and value to be 4 dimensional, but got Query dim: 3"),
    "five axes": ((Q[None],) * 3, {}, "requires query, key and value to be 4 dimensional, but got Query dim: 5"),
    "a bias that requires grad": (
        (Q, Q, Q),
        {"attn_mask": torch.zeros(5, 5, requires_grad=True)},
        "(attn_mask requires grad)",
    ),
    "values of another width": ((Q, Q, Q[..., :4]), {}, "requires q,k,v to have the same last dimension"),
    "a last axis that is not contiguous": (
        (Q, Q, ACROSS),
        {},
        "require the last dimension of the input to have stride 1",
    ),
    "a batch that is broadcast": ((Q, Q[:1], Q[:1]), {}, "to have the same batch_size"),
    "a mask of three axes": ((Q, Q, Q), {"attn_mask": torch.zeros(3, 5, 5)}, "use the following attn mask shapes"),
    "nothing: is_causal": ((Q, Q, Q), {"is_causal": True}, ""),
    "nothing: enable_gqa": ((Q, Q[:, :1], Q[:, :1]), {"enable_gqa": True}, ""),
    "nothing: strides": ((STRIDED, STRIDED, STRIDED), {}, ""),
    "nothing: a boolean mask": ((Q, Q, Q), {"attn_mask": torch.ones(5, 5, dtype=torch.bool)}, ""),
    "nothing: a bias of four axes": ((Q, Q, Q), {"attn_mask": torch.zeros(2, 1, 5, 5)}, ""),
}


THREE_AXES = "of three axes PyTorch makes four from 2.14 on; 2.13 leaves its fused kernel"
until_2_14 = pytest.mark.skipif(torch.__version__ >= (2, 14), reason=THREE_AXES)
from_2_14_on = pytest.mark.skipif(torch.__version__ < (2, 14), reason=THREE_AXES)


@pytest.mark.parametrize(
    "name", [pytest.param("three axes", marks=until_2_14), *sorted(LEAVES.keys() - {"three axes"})]
)
def test_each_of_these_makes_the_call_leave_the_fused_kernel(name: str) -> None:
    inputs, options, reason = LEAVES[name]
    assert reason in (why_not := sdpa_backends(*inputs, **options)[0].why_not)
    assert bool(reason) is bool(why_not)
    for with_gradients in (True, False):
        with torch.set_grad_enabled(with_gradients):
            ran = kernels_of(scaled_dot_product_attention, *inputs, **options).names
        assert ran == (("math",) if reason else ("flash",))


@from_2_14_on
def test_from_pytorch_2_14_on_neither_three_axes_nor_one_key_head_that_is_broadcast_make_it_leave() -> None:
    for inputs in [(Q[0], Q[0], Q[0]), (Q, Q[:, :1], Q[:, :1])]:
        assert sdpa_backends(*inputs)[0] == Backend("flash", can_run=True, why_not="", chosen=True)
        assert kernels_of(scaled_dot_product_attention, *inputs).names == ("flash",)
        query = inputs[0].clone().requires_grad_()
        (first,) = torch.autograd.grad(scaled_dot_product_attention(query, *inputs[1:]).sum(), query, create_graph=True)
        with pytest.raises(RuntimeError, match="is not implemented"):
            torch.autograd.grad(first.sum(), query)


def test_a_mask_beside_is_causal_is_refused_by_math_in_2_13_and_by_all_from_2_14_on() -> None:
    backends = sdpa_backends(Q, Q, Q, attn_mask=torch.zeros(5, 5), is_causal=True)
    refused = [backend.name for backend in backends if "Explicit attn_mask should not be set" in backend.why_not]
    assert refused == (["flash", "efficient", "cudnn", "math"] if torch.__version__ >= (2, 14) else ["math"])


@pytest.mark.usefixtures("unhooked")
def test_a_layer_that_is_compiled_or_exported_runs_the_same_kernel() -> None:
    layer, x = unmasked.CausalSelfAttention(16, 16, 4).eval(), torch.randn(2, 9, 16)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    exported = torch.export.export(layer, (x,)).module()
    for way in (compiled, exported):
        torch.testing.assert_close(way(x), layer(x))
        assert kernels_of(way, x).names == kernels_of(layer, x).names == ("flash",)


def test_kernels_are_named_in_their_order_with_their_backward_pass() -> None:
    q = torch.randn(1, 2, 5, 8, requires_grad=True)

    def both(q: Tensor) -> None:
        first = scaled_dot_product_attention(q, q, q)
        second = scaled_dot_product_attention(first, q, q, dropout_p=0.1)
        scaled_dot_product_attention(second, q, q).sum().backward()

    ran = kernels_of(both, q)
    assert ran[:2] == (
        Kernel("flash", 2, "aten::_scaled_dot_product_flash_attention_for_cpu"),
        Kernel("math", 1, "aten::_scaled_dot_product_attention_math"),
    )
    assert ran.names == ("flash", "math", "flash backward")
    assert ran[2].calls == 2
    assert str(ran).splitlines()[:2] == [
        "kernel          calls  operator",
        "flash           2      aten::_scaled_dot_product_flash_attention_for_cpu",
    ]
    assert re.fullmatch(r"peak memory: 0\.\d MiB", str(ran).splitlines()[-1])
    assert '<th scope="row">flash backward</th><td>2</td>' in ran._repr_html_()
    assert ran._repr_html_().endswith(" MiB</p>")


def test_attention_by_hand_is_a_softmax_and_no_kernel() -> None:
    x = torch.randn(2, 5, 8)
    assert kernels_of(lambda: (x @ x.mT).softmax(-1) @ x).names == ("softmax",)
    module = nn.MultiheadAttention(8, 2, batch_first=True)
    assert kernels_of(module, x, x, x, need_weights=True).names == ("softmax",)
    assert kernels_of(module, x, x, x, need_weights=False).names == ("flash",)
    assert kernels_of(lambda: x + 1).names == ()
    assert str(kernels_of(lambda: None)) == "kernel  calls  operator\npeak memory: 0.0 MiB"


def test_memory_is_the_peak_of_what_is_allocated() -> None:
    def grows_and_shrinks() -> Tensor:
        half = torch.ones(2**18)  # 1 MiB
        both = torch.cat([half, half])  # 2 MiB more
        del half
        return both + 1  # 2 MiB more, after 1 was given back

    assert 4 * 2**20 <= kernels_of(grows_and_shrinks).peak_bytes < 4.01 * 2**20
    q = torch.ones(1, 2, 1024, 8)
    fused = kernels_of(scaled_dot_product_attention, q, q, q, is_causal=True)
    math = kernels_of(scaled_dot_product_attention, q, q, q, is_causal=True, dropout_p=0.1)
    assert q.nbytes <= fused.peak_bytes
    assert math.peak_bytes > 2 * 2 * 1024**2 * 4  # at least twice the scores of both heads


def test_what_the_function_raises_is_raised() -> None:
    with pytest.raises(RuntimeError, match="Expected size for first two dimensions"):
        kernels_of(scaled_dot_product_attention, Q, Q[..., :4], Q)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_on_a_gpu_a_fused_kernel_runs_with_dropout_too_and_memory_is_the_gpus(dtype: torch.dtype) -> None:
    q = torch.randn(1, 8, 1024, 64, device="cuda", dtype=dtype)
    for dropout_p in (0.0, 0.1):
        ran = kernels_of(scaled_dot_product_attention, q, q, q, is_causal=True, dropout_p=dropout_p)
        assert set(ran.names) <= {"flash", "efficient", "cudnn"}
        assert q.nbytes <= ran.peak_bytes < 8 * 1024**2 * q.itemsize  # less than the scores
    with sdpa_kernel(SDPBackend.MATH):
        assert kernels_of(scaled_dot_product_attention, q, q, q).peak_bytes > 8 * 1024**2 * q.itemsize


def encoder_layer(**options: Any) -> nn.TransformerEncoderLayer:
    sizes = {"d_model": 16, "nhead": 4, "dim_feedforward": 8, "batch_first": True, **options}
    return nn.TransformerEncoderLayer(**sizes).eval()


def encoder(**options: Any) -> nn.TransformerEncoder:
    with warnings.catch_warnings(action="ignore"):  # PyTorch tells why it will not nest
        return nn.TransformerEncoder(encoder_layer(**options), 3).eval()


def hooked(layer: Any, *parts: str) -> Any:
    """A layer with a hook at these parts, or at itself."""
    for part in parts or ("",):
        layer.get_submodule(part).register_forward_hook(lambda *_: None)
    return layer


def trained(layer: Any, part: str) -> Any:
    """A layer of which this part alone is trained."""
    layer.requires_grad_(False).get_submodule(part).requires_grad_()
    return layer


def with_eps(layer: Any) -> Any:
    layer.norm2.eps = 1e-6
    return layer


def ours(layer: Any) -> Any:
    layer.self_attn = unmasked.layouts.from_torch(layer.self_attn)
    return layer


class OwnLayer(nn.TransformerEncoderLayer):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)


class NoLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, src: Tensor, **_: Any) -> Tensor:
        return src


def mixed() -> nn.TransformerEncoder:
    made = hooked(encoder(), "layers.2")
    made.layers[1] = NoLayer().eval()
    return made


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "plain": encoder_layer,
    "gelu, norm first": lambda: encoder_layer(activation="gelu", norm_first=True),
    "tanh": lambda: encoder_layer(activation=torch.tanh),
    "five heads": lambda: encoder_layer(d_model=15, nhead=5),
    "no bias": lambda: encoder_layer(bias=False),
    "time first": lambda: encoder_layer(batch_first=False),
    "hooked": lambda: hooked(encoder_layer()),
    "hooked within": lambda: hooked(encoder_layer(), "linear1"),
    "eps": lambda: with_eps(encoder_layer()),
    "eps, norm first": lambda: with_eps(encoder_layer(norm_first=True)),
    "training": lambda: encoder_layer().train(),
    "frozen": lambda: encoder_layer().requires_grad_(False),
    "frozen but for a norm": lambda: trained(encoder_layer(), "norm1"),
    "frozen, hooked, but for a norm": lambda: trained(hooked(encoder_layer(norm_first=True)), "norm1"),
    "ours": lambda: ours(encoder_layer()),
    "encoder": encoder,
    "encoder, tanh": lambda: encoder(activation=torch.tanh),
    "encoder, frozen": lambda: encoder().requires_grad_(False),
    "encoder, frozen but for its second layer": lambda: trained(encoder(), "layers.1"),
    "encoder, time first": lambda: encoder(batch_first=False),
    "encoder, all hooked": lambda: hooked(encoder(), "layers.0", "layers.1", "layers.2"),
    "encoder, mixed": mixed,
    "encoder, training": lambda: encoder().train(),
}


def calls(width: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    x = torch.randn(2, 3, width)
    causal, padding = torch.ones(3, 3, dtype=torch.bool).triu(1), torch.tensor([[False] * 3, [False, False, True]])
    yield (x,), {}
    yield (x[0],), {}
    yield (x.clone().requires_grad_(),), {}
    yield (x, causal), {}
    yield (x, 0.5 * causal), {}
    yield (x,), {"src_key_padding_mask": padding}
    yield (x,), {"src_key_padding_mask": padding.flip(1)}
    yield (x,), {"src_key_padding_mask": padding.float().masked_fill(padding, -torch.inf)}
    yield (x, causal, padding), {}


def assert_it_comes_true(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FastPath:
    with warnings.catch_warnings(action="ignore"), Operations() as ran:
        layer(*args, **kwargs)
    path = takes_fast_path(layer, *args, **kwargs)
    seen = tuple(name for name in map("aten::{}".format, ran.names) if name in (LAYER, MODULE))
    assert path.operators == seen, f"{layer} {args} {kwargs} grad {torch.is_grad_enabled()}: {path}"
    assert bool(path) == bool(seen)
    return path


@pytest.mark.parametrize("name", LAYERS)
def test_what_is_said_of_an_encoder_is_what_runs(name: str) -> None:
    layer = LAYERS[name]()
    width = 15 if name == "five heads" else 16
    for with_gradients, enabled in ((False, True), (True, True), (False, False)):
        for args, kwargs in calls(width):
            if "time first" in name and args[0].dim() == 3:
                args = (args[0].transpose(0, 1), *args[1:])
            if "second" in name and with_gradients and "src_key_padding_mask" in kwargs:
                continue  # the encoder nests for its first layer, and its second one then raises
            with fast_path(enabled), torch.set_grad_enabled(with_gradients):
                path = assert_it_comes_true(layer, args, kwargs)
            assert not path or enabled
            assert (LAYER in path.operators) or path.why_not
            if name == "plain" and not with_gradients:
                assert bool(path) == (enabled and args[0].dim() == 3)


ATTENTIONS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: nn.MultiheadAttention(16, 4, batch_first=True),
    "five heads": lambda: nn.MultiheadAttention(15, 5, batch_first=True),
    "no bias": lambda: nn.MultiheadAttention(16, 4, batch_first=True, bias=False),
    "time first": lambda: nn.MultiheadAttention(16, 4),
    "bias_kv": lambda: nn.MultiheadAttention(16, 4, batch_first=True, add_bias_kv=True),
    "zero": lambda: nn.MultiheadAttention(16, 4, batch_first=True, add_zero_attn=True),
    "hooked": lambda: hooked(nn.MultiheadAttention(16, 4, batch_first=True)),
    "frozen": lambda: nn.MultiheadAttention(16, 4, batch_first=True).requires_grad_(False),
    "ours": lambda: unmasked.MultiheadAttention(16, 4, batch_first=True),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_what_is_said_of_the_module_is_what_runs(name: str) -> None:
    module = ATTENTIONS[name]()
    x = torch.randn(3, 3, 15 if name == "five heads" else 16)
    causal, padding = torch.ones(3, 3, dtype=torch.bool).triu(1), torch.zeros(3, 3, dtype=torch.bool)
    options: list[dict[str, Any]] = [
        {},
        {"need_weights": False},
        {"attn_mask": causal},
        {"attn_mask": causal.float()},
        {"key_padding_mask": padding},
        {"key_padding_mask": padding.float(), "need_weights": False},
    ]
    inputs = [(x, x, x), (x, x.clone(), x), (x.clone().requires_grad_(),) * 3, (x[0],) * 3]
    for training, with_gradients, qkv, each in product((False, True), (False, True), inputs, options):
        if qkv[0].dim() == 2 and "key_padding_mask" in each:
            continue
        with torch.set_grad_enabled(with_gradients):
            path = assert_it_comes_true(module.train(training), qkv, each)
        assert bool(path) is not bool(path.why_not)


def test_the_module_with_other_widths_and_autocast() -> None:
    module = nn.MultiheadAttention(16, 4, kdim=16, vdim=8, batch_first=True).eval()
    x, v = torch.randn(2, 3, 16), torch.randn(2, 3, 8)
    with torch.no_grad():
        path = assert_it_comes_true(module, (x, x, v), {})
    assert path == FastPath((), "non-self attention was used (query, key, and value are not the same Tensor)")
    layer = encoder_layer()
    with torch.no_grad(), torch.autocast("cpu"):
        assert_it_comes_true(layer, (x,), {})


REASONS = {
    "training": "training is enabled",
    "five heads": "num_head is odd",
    "no bias": "self_attn was passed bias=False",
    "time first": "self_attn.batch_first was not True",
    "tanh": "activation_relu_or_gelu was not True",
    "eps": "norm1.eps is not equal to norm2.eps",
    "hooked within": "forward pre-/hooks are attached to the module",
    "ours": "forward pre-/hooks are attached to the module",
    "encoder, mixed": "layers.1: NoLayer has a forward pass of its own: kernels_of tells what runs in it; layers.2: "
    "forward pre-/hooks are attached to the module",
}


@pytest.mark.parametrize("name", REASONS)
def test_the_reason_is_said(name: str) -> None:
    x = torch.randn(2, 3, 15 if name == "five heads" else 16)
    with torch.no_grad():
        assert takes_fast_path(LAYERS[name](), x).why_not == REASONS[name]


@pytest.mark.parametrize("name", ["plain", "eps", "ours", "encoder", "encoder, mixed"])
def test_the_profiler_sees_the_same(name: str) -> None:
    layer, x = LAYERS[name](), torch.randn(2, 3, 16)
    with torch.no_grad():
        path = takes_fast_path(layer, x)
        seen = {kernel.operator: kernel.calls for kernel in kernels_of(layer, x) if kernel.name == "fast path"}
    assert {operator: path.operators.count(operator) for operator in path.operators} == seen


def test_reasons_that_lie_in_the_call_are_said_in_pytorchs_words() -> None:
    x, layer, module = torch.randn(2, 3, 16), encoder_layer(), ATTENTIONS["plain"]().eval()
    for call in (layer, x), (module, x, x, x):
        assert takes_fast_path(*call).why_not.startswith("grad is enabled and at least one of query")
    with torch.no_grad():
        assert takes_fast_path(layer, x) == FastPath((LAYER,), "")
        assert takes_fast_path(module, x, x, x) == FastPath((MODULE,), "")
        assert takes_fast_path(layer, x[0]).why_not == "input not batched; expected src.dim() of 3 but got 2"
        assert "device is neither one of" in takes_fast_path(layer.to("meta"), x.to("meta")).why_not
        with fast_path(False):
            assert takes_fast_path(module, x, x, x).why_not == "torch.backends.mha.get_fastpath_enabled() was not True"
        assert takes_fast_path(ATTENTIONS["no bias"]().eval(), x, x, x).why_not == "(PyTorch does not say)"
        assert takes_fast_path(ATTENTIONS["ours"]().eval(), x, x, x).why_not == (
            "MultiheadAttention has a forward pass of its own: kernels_of tells what runs in it"
        )


def test_to_ask_moves_no_random_generator() -> None:
    layer, before = encoder_layer().train(), torch.get_rng_state()
    takes_fast_path(layer, torch.zeros(2, 3, 16))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_fast_path_reads_every_entry_that_is_not_zero_as_minus_infinity() -> None:
    layer, x = encoder_layer(dropout=0.0), torch.randn(2, 3, 16)
    bias = -0.5 * (torch.arange(3)[:, None] - torch.arange(3)).abs()
    slow = layer(x, src_mask=bias)
    with torch.no_grad():
        assert takes_fast_path(layer, x, src_mask=bias)
        fast = layer(x, src_mask=bias)
        torch.testing.assert_close(fast, layer(x, src_mask=bias != 0))
        with fast_path(False):
            assert not takes_fast_path(layer, x, src_mask=bias)
            torch.testing.assert_close(layer(x, src_mask=bias), slow)
    assert (fast - slow).abs().max() > 0.1


def test_a_forward_pass_of_its_own_is_seen_through_where_it_calls_pytorchs() -> None:
    own, x = OwnLayer(16, 4, 8, batch_first=True).eval(), torch.randn(2, 3, 16)
    with torch.no_grad():
        assert takes_fast_path(own, x) == FastPath((LAYER,), "")
    assert "requires_grad" in takes_fast_path(own, x).why_not


def test_what_has_no_fast_path_to_ask_for_is_refused() -> None:
    text = "layer is Linear; give one of nn.TransformerEncoderLayer, nn.TransformerEncoder, nn.MultiheadAttention"
    with pytest.raises(TypeError, match=re.escape(text)):
        takes_fast_path(nn.Linear(2, 2), torch.ones(2))
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'src'"):
        takes_fast_path(encoder_layer())
