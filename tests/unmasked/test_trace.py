import re

import pytest
import torch
from torch import Tensor, nn

from unmasked.trace import Trace, trace

FUSED = {"batch": 3, "tokens": 5, "embed_dim": 8}


def fused(x: Tensor) -> Tensor:
    qkv = torch.nn.functional.linear(x, torch.ones(1536, 1024))
    q, k, v = qkv.reshape(30, 5, 8, 192).permute(0, 2, 1, 3).chunk(3, dim=-1)
    return (q @ k.transpose(-1, -2)).softmax(-1) @ v


def test_each_step_of_a_fused_layer_has_its_inputs_outputs_axes_and_source_line() -> None:
    axes = {"batch": 30, "tokens": 5, "heads": 8, "head_dim": 64}
    traced = trace(fused, torch.ones(30, 5, 1024), axes=axes)
    assert traced.shapes == [
        ("ones", (1536, 1024)),
        ("linear", (30, 5, 1536)),
        ("reshape", (30, 5, 8, 192)),
        ("permute", (30, 8, 5, 192)),
        ("chunk", (30, 8, 5, 64)),
        ("transpose", (30, 8, 64, 5)),
        ("matmul", (30, 8, 5, 5)),
        ("softmax", (30, 8, 5, 5)),
        ("matmul", (30, 8, 5, 64)),
    ]
    torch.testing.assert_close(traced.result, fused(torch.ones(30, 5, 1024)), rtol=0, atol=0)
    linear, chunk = traced.steps[1], traced.steps[4]
    assert linear.inputs == ((30, 5, 1024), (1536, 1024))
    assert linear.source == "qkv = torch.nn.functional.linear(x, torch.ones(1536, 1024))"
    assert (linear.file, linear.line) == (__file__, fused.__code__.co_firstlineno + 1)
    assert chunk.outputs == ((30, 8, 5, 64),) * 3
    assert traced.steps[1].axes == ("batch", "tokens", "3·heads·head_dim")
    assert traced.steps[2].axes == ("batch", "tokens", "heads", "3·head_dim")


def test_operators_attributes_and_in_place_steps_have_the_names_of_methods() -> None:
    def written(x: Tensor) -> Tensor:
        x = 1 - x
        x += 2
        x /= 2
        x[0] = 3
        x = -(x**2).T
        with torch.no_grad():
            x = torch.stack([x, x.clone()])
        return ~(x > x.sum()) & (x == float(x.max()))

    names = " ".join(name for name, _ in trace(written, torch.ones(2, 3)).shapes)
    assert names == "sub add_ div_ setitem pow T neg clone stack sum gt bitwise_not max eq bitwise_and"


def test_what_gives_no_tensor_is_no_step() -> None:
    assert trace(lambda x: (x.shape, x.dtype, x.size(0), x.sum, x.tolist(), len(x)), torch.ones(2)).steps == ()


def axes_of(*shape: int, **axes: int) -> tuple[str, ...]:
    return trace(torch.empty, shape, device="meta", axes=axes).steps[0].axes


def test_a_product_names_an_axis_only_where_it_is_the_only_one() -> None:
    axes = {"batch": 4, "tokens": 10, "heads": 5, "head_dim": 8}
    names = ("heads", "tokens", "40", "batch·head_dim", "tokens·head_dim", "160", "3·heads", "7")
    assert axes_of(5, 10, 40, 32, 80, 160, 15, 7, **axes) == names


def test_an_axis_of_size_two_or_three_is_not_mistaken_for_the_factor_of_a_fused_layer() -> None:
    fused = trace(lambda x: nn.functional.linear(x, torch.ones(24, 8)), torch.ones(3, 5, 8), axes=FUSED)
    assert fused.steps[-1].axes == ("batch", "tokens", "24")
    assert axes_of(14, 21, 42, 84, batch=2, embed_dim=7) == ("14", "3·embed_dim", "3·batch·embed_dim", "84")
    assert axes_of(14, 21, batch=3, embed_dim=7) == ("2·embed_dim", "21")


def test_a_generator_is_refused_because_it_has_not_run() -> None:
    text = "function returned a generator, which runs only when it is consumed: trace list(function(...))"
    with pytest.raises(TypeError, match=re.escape(text)):
        trace(lambda x: (row * 2 for row in x), torch.ones(2, 3))
    assert len(trace(lambda x: [row * 2 for row in x], torch.ones(2, 3)).steps) == 3


def test_axes_of_one_size_are_refused() -> None:
    text = "axes 'tokens' and 'heads' both have size 3: choose sizes that all differ"
    with pytest.raises(ValueError, match=re.escape(text)):
        trace(torch.ones, 3, axes={"tokens": 3, "heads": 3})


def test_a_trace_prints_aligned_and_renders_escaped() -> None:
    traced = trace(lambda x: (x < 1).mT, torch.ones(2, 3), axes={"batch": 2})
    header, first, second = str(traced).splitlines()
    assert header.split() == ["operation", "inputs", "output", "axes", "line", "source"]
    assert first.startswith("1  lt         (2, 3)  (2, 3)  batch, 3  test_trace.py:")
    assert second.startswith("2  mT         (2, 3)  (3, 2)  3, batch  test_trace.py:")
    assert "(x &lt; 1).mT" in traced._repr_html_()


def test_a_notebook_cell_is_named_the_same_in_every_run() -> None:
    for file in ("<ipython-input-3-0f>", "ipykernel_11/4242.py"):
        scope: dict[str, object] = {}
        exec(compile("\n\ndef double(x): return x + x", file, "exec"), scope)
        assert " cell:3" in str(trace(scope["double"], torch.ones(2)))


def test_an_exception_carries_the_steps_that_led_to_it() -> None:
    def mistaken(q: Tensor, k: Tensor) -> Tensor:
        return q.contiguous() @ k

    with pytest.raises(RuntimeError) as caught:
        trace(mistaken, torch.ones(2, 5, 4), torch.ones(2, 5, 4))
    title, _, first, second = "\n".join(caught.value.__notes__).splitlines()
    assert title == "The operations up to here:"
    assert first.startswith("1  contiguous  (2, 5, 4)            (2, 5, 4)  2, 5, 4  test_trace.py:")
    assert re.fullmatch(r"2  matmul      \(2, 5, 4\) \(2, 5, 4\)  failed .* return q.contiguous\(\) @ k", second)


def test_tracing_leaves_nothing_behind() -> None:
    with pytest.raises(ZeroDivisionError):
        trace(lambda: 1 / 0)
    traced = trace(torch.ones, 2)
    torch.ones(3)
    assert isinstance(traced, Trace)
    assert traced.shapes == [("ones", (2,))]
