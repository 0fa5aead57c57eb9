import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from copy import deepcopy
from functools import cache, partial
from pathlib import Path

import jaxtyping
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked import CausalSelfAttention
from unmasked.parallel import (
    HeadParallel,
    count_bytes,
    head_bytes,
    launch,
    positions_of_rank,
    ring_attention,
    ring_bytes,
)
from unmasked.parallel import __main__ as command
from unmasked.parallel import ring as _ring
from unmasked.parallel.ranks import agree, process_group
from unmasked.positions import Rotary

from ..refusals import refused

LAYOUTS = ("zigzag", "striped", "contiguous")
BATCH, KV_HEADS, HEADS, TOKENS, DIM = 2, 3, 6, 24, 5


def tensors(dtype: torch.dtype = torch.float64, value_dim: int = DIM) -> list[Tensor]:
    """Query, key, value and the gradient of the output, of the whole sequence; the same in every process."""
    generator = torch.Generator().manual_seed(3)
    shapes = [(HEADS, DIM), (KV_HEADS, DIM), (KV_HEADS, value_dim), (HEADS, value_dim)]
    made = [torch.randn(BATCH, h, TOKENS, d, generator=generator, dtype=torch.float64) for h, d in shapes]
    return [x.to(dtype) for x in made]


def whole(q: Tensor, k: Tensor, v: Tensor, gradient: Tensor, **options: object) -> list[Tensor]:
    """PyTorch's output for the whole sequence, in float64, and the gradients of query, key and value."""
    q, k, v = (x.detach().double().requires_grad_() for x in (q, k, v))
    output = F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)
    return [output.detach(), *torch.autograd.grad(output, (q, k, v), gradient.double())]


def in_ring(q: Tensor, k: Tensor, v: Tensor, gradient: Tensor, **options: object) -> list[Tensor]:
    """The same of this rank's part, in a ring."""
    layout = options.get("layout", "contiguous")
    q, k, v, gradient = (
        x[:, :, positions_of_rank(x.size(2), rank=dist.get_rank(), ranks=dist.get_world_size(), layout=layout)]
        for x in (q, k, v, gradient)
    )
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    output = ring_attention(q, k, v, **options)
    return [output.detach(), *torch.autograd.grad(output, (q, k, v), gradient)]


def off(parts: list[Tensor], right: list[Tensor], layout: str = "contiguous") -> float:
    """Return the error of this rank's tensors against its parts of the whole ones, over the largest number of each."""
    far = []
    for mine, each in zip(parts, right, strict=True):
        at = positions_of_rank(each.size(2), rank=dist.get_rank(), ranks=dist.get_world_size(), layout=layout)
        far.append(((mine - each[:, :, at]).abs().max() / each.abs().max()).item())
    return max(far)


def transferred(work: Callable[[], object]) -> tuple[int, int]:
    """Count the bytes that PyTorch meanwhile sends to another rank, and sums over all."""
    sent, summed = [], []
    exchange, reduce = dist.batch_isend_irecv, dist.all_reduce

    def exchanged(operations: list[dist.P2POp]) -> object:
        sent.extend(each.tensor.nbytes for each in operations if each.op is dist.isend)
        return exchange(operations)

    def reduced(x: Tensor, **options: object) -> object:
        summed.append(x.nbytes)
        return reduce(x, **options)

    dist.batch_isend_irecv, dist.all_reduce = exchanged, reduced
    try:
        work()
    finally:
        dist.batch_isend_irecv, dist.all_reduce = exchange, reduce
    return sum(sent), sum(summed)


def rings() -> dict[object, object]:
    results: dict[object, object] = {}
    for layout in LAYOUTS:
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            inputs = tensors(dtype)
            ring = in_ring(*inputs, is_causal=True, layout=layout)
            results[layout, dtype] = off(ring, whole(*inputs, is_causal=True), layout)
            results[layout, dtype, "types"] = [x.dtype for x in ring]
        wide = tensors(value_dim=7)  # which the fused kernel does not take
        results[layout, "wide"] = off(
            in_ring(*wide, is_causal=True, layout=layout), whole(*wide, is_causal=True), layout
        )
    q, k, v, gradient = tensors()
    more = (q, torch.cat([k, v], dim=2), torch.cat([v, k], dim=2), gradient)  # twice as many keys as queries
    results["all see all"] = off(in_ring(*more, scale=0.3), whole(*more, scale=0.3))
    far = (30 * q, k, v, gradient)  # scores of hundreds: exp of one that is not taken off overflows
    results["large scores"] = off(in_ring(*far, is_causal=True, layout="zigzag"), whole(*far, is_causal=True), "zigzag")

    for dtype in (torch.float32, torch.bfloat16):
        inputs = tensors(dtype)
        results["bytes", dtype] = transferred(lambda inputs=inputs: in_ring(*inputs))[0]
        with count_bytes() as both, count_bytes() as again:
            in_ring(*inputs)
        with torch.no_grad(), count_bytes() as forward:
            ring_attention(*(x.chunk(dist.get_world_size(), dim=2)[dist.get_rank()] for x in inputs[:3]))
        results["counted", dtype] = (both.to_next, again.to_next, forward.to_next, both.reduced)
    return results


def layers() -> dict[str, Callable[[], nn.Module]]:
    heads, dim = 2 * dist.get_world_size(), 4
    d_out = heads * dim
    return {
        "all biases": lambda: CausalSelfAttention(7, d_out, heads, qkv_bias=True),
        "grouped": lambda: CausalSelfAttention(7, d_out, heads, num_kv_heads=heads // 2, out_bias=False),
        "rotary": lambda: CausalSelfAttention(7, d_out, heads, rotary=Rotary(dim)),
        "capped": lambda: CausalSelfAttention(7, d_out, heads, scale=0.3, softcap=2.0, sinks=True),
    }


def heads() -> dict[object, object]:
    results: dict[object, object] = {}
    for name, make in layers().items():
        torch.manual_seed(100 + dist.get_rank())  # other weights on every rank, as without a common seed
        layer = make().double()
        for parameter in layer.parameters():
            nn.init.uniform_(parameter)
        shared = HeadParallel(layer)  # which gives all ranks the weights of the first
        width = shared.qkv_weight.size(1)
        x = torch.randn(2, 5, width, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
        gradient = torch.randn(2, 5, shared.out_weight.size(0), generator=torch.Generator().manual_seed(8)).double()
        x.requires_grad_()
        right = layer(x)
        of_x, *expected = torch.autograd.grad(right, [x, *layer.parameters()], gradient)
        gradients = deepcopy(layer)
        for parameter, each in zip(gradients.parameters(), expected, strict=True):
            parameter.data = each
        mine = [*HeadParallel(gradients).parameters()]  # gradients are shared out as weights are
        output = shared(x)
        grads = torch.autograd.grad(output, [x, *shared.parameters()], gradient)
        pairs = [(output, right), *zip(grads, [of_x, *mine], strict=True)]
        results[name] = max((a - b).abs().max().item() / b.abs().max().item() for a, b in pairs)
        results[name, "numbers"] = sum(p.numel() for p in shared.parameters())

        def both(shared: HeadParallel = shared, x: Tensor = x, gradient: Tensor = gradient) -> None:
            torch.autograd.grad(shared(x), x, gradient)

        with count_bytes() as sent:
            both()
        formula = head_bytes(2, 5, width, gradient.size(-1), dtype=torch.float64, backward=True)
        results[name, "bytes"] = (transferred(both)[1], sent.reduced, sent.to_next, formula)
    return results


def messages_where_ranks_differ() -> dict[str, str]:
    """Return each rank's message where the ranks differ, for a user whose annotations nothing checks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    rank = dist.get_rank()
    q = torch.randn(2, 4, 8, 5)
    leaf = q.clone().requires_grad_()
    output = ring_attention(leaf, leaf, leaf)
    calls: dict[str, Callable[[], object]] = {
        "shape": lambda: ring_attention(q, q[:, :, rank:], q[:, :, rank:]),
        "axes": lambda: ring_attention(q[0] if rank else q, q, q),
        "dtype": lambda: ring_attention(*3 * [q.double() if rank else q]),
        "option": lambda: ring_attention(q, q, q, is_causal=True, layout=LAYOUTS[min(rank, 2)]),
        "gradients": lambda: ring_attention(leaf if rank else q, q, q),
        "call": lambda: ring_attention(q, q, q) if rank else output.sum().backward(),
        "layer": lambda: HeadParallel(CausalSelfAttention(6 + rank, 4, 2)),
        "input": lambda: HeadParallel(CausalSelfAttention(6, 4, 2))(torch.randn(1, 3 + rank, 6)),
        "heads": lambda: HeadParallel(CausalSelfAttention(6, 6, 3)),
        "kv heads": lambda: HeadParallel(CausalSelfAttention(6, 8, 4, num_kv_heads=1)),
        "odd": lambda: ring_attention(*3 * [q[:, :, 1:]], is_causal=True),
    }
    messages = {}
    for name, call in calls.items():
        try:
            call()
        except ValueError as error:
            messages[name] = str(error)
    return messages


def everything() -> dict[object, object]:
    torch.manual_seed(0)
    return rings() | heads() | {("refused", name): text for name, text in messages_where_ranks_differ().items()}


@cache  # the processes are started once for all tests
def of_all(ranks: int) -> list[dict[object, object]]:
    return launch(everything, ranks=ranks)


both = pytest.mark.parametrize("ranks", [2, 4])


@both
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_causal_ring_equals_the_whole_with_its_gradients(ranks: int, layout: str) -> None:
    for each in of_all(ranks):
        assert each[layout, torch.float64] < 1e-13
        assert each[layout, torch.float32] < 1e-6
        assert each[layout, torch.bfloat16] < 2e-2
        assert each[layout, "wide"] < 1e-13
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            assert each[layout, dtype, "types"] == [dtype] * 4


@both
def test_a_ring_without_a_mask_takes_more_keys_than_queries_another_scale_and_large_scores(ranks: int) -> None:
    for each in of_all(ranks):
        assert each["all see all"] < 1e-13
        assert each["large scores"] < 1e-12


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_ring_sends_the_bytes_of_its_formula(ranks: int, dtype: torch.dtype) -> None:
    sizes = (BATCH, KV_HEADS, TOKENS, DIM)
    forward = ring_bytes(*sizes, ranks=ranks, dtype=dtype)
    whole = ring_bytes(*sizes, ranks=ranks, dtype=dtype, backward=True)
    numbers = 2 * BATCH * KV_HEADS * TOKENS // ranks * DIM  # of the keys and values of a rank
    assert forward == (ranks - 1) * numbers * dtype.itemsize
    assert whole == forward + (ranks - 1) * numbers * (dtype.itemsize + 4)
    for each in of_all(ranks):
        assert each["bytes", dtype] == whole
        assert each["counted", dtype] == (whole, whole, forward, 0)


@both
@pytest.mark.parametrize("name", ["all biases", "grouped", "rotary", "capped"])
def test_heads_in_parallel_equal_the_whole_with_all_gradients(ranks: int, name: str) -> None:
    for each in of_all(ranks):
        assert each[name] < 1e-12
        assert len(set(each[name, "bytes"][:2] + each[name, "bytes"][3:])) == 1
        assert each[name, "bytes"][2] == 0
    numbers = {each[name, "numbers"] for each in of_all(ranks)}
    assert len(numbers) == 1, "each rank has as many parameters"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("shape", "ring_attention: the ranks differ in key: (2, 4, 8, 5) float32 on rank 0; (2, 4, 7, 5) float32 on"),
        ("axes", "ring_attention: the ranks differ in query: (2, 4, 8, 5) float32 on rank 0; (4, 8, 5) float32 on"),
        ("dtype", "ring_attention: the ranks differ in query: (2, 4, 8, 5) float32 on rank 0; (2, 4, 8, 5) float64 on"),
        ("option", "ring_attention: the ranks differ in layout: zigzag on rank 0; striped on"),
        ("gradients", "ring_attention: the ranks differ in gradients: False on rank 0; True on"),
        ("call", "the ranks differ in call: ring_attention's backward pass on rank 0; ring_attention on"),
        ("layer", "HeadParallel: the ranks differ in qkv.weight: (12, 6) float32 on rank 0; (12, 7) float32 on"),
        ("input", "HeadParallel: the ranks differ in x: (1, 3, 6) float32 on rank 0; (1, 4, 6) float32 on"),
        ("heads", "num_heads (3) must be divisible by the number of ranks (2); try 1 or 3"),
        ("kv heads", "num_kv_heads (1) must be divisible by the number of ranks (2); try 1"),
        ("odd", "query has 7 tokens; zigzag gives each rank two parts of one size: pad by 1"),
    ],
)
def test_what_differs_between_ranks_is_refused_on_all_in_the_same_words(name: str, text: str) -> None:
    messages = {each["refused", name] for each in of_all(2)}
    assert len(messages) == 1
    assert text in messages.pop()


def test_ranks_that_agree_are_named_together() -> None:
    text = "(2, 4, 7, 5) float32 on rank 1; (2, 4, 6, 5) float32 on rank 2; (2, 4, 5, 5) float32 on rank 3"
    assert text in of_all(4)[0]["refused", "shape"]
    assert "(2, 4, 8, 5) float32 on rank 0; (4, 8, 5) float32 on rank 1, 2, 3. All" in of_all(4)[0]["refused", "axes"]


# --- what is refused, and what is empty ---

EMPTY = [(0, 2, 2, 4, 4, 6), (2, 0, 0, 4, 4, 6), (2, 2, 2, 0, 4, 6), (2, 2, 2, 4, 0, 6), (2, 2, 2, 0, 0, 6)]
EMPTY += [(2, 2, 2, 4, 4, 0)]  # sequences, heads, heads of keys, queries, keys, features


def goes_on() -> dict[object, object]:
    """Return how far a group is off after each call that was refused, and its contexts where there is nothing."""
    jaxtyping.config.update("jaxtyping_disable", True)
    first, results, inputs = dist.get_rank() == 0, {}, tensors()
    right, q = whole(*inputs), inputs[0]
    wrong: dict[str, dict[str, object]] = {
        "scale is '1'": {"scale": "1"},
        "scale is nan": {"scale": torch.nan},
        "scale is a tensor with a derivative": {"scale": torch.ones((), requires_grad=True)},
        "is_causal is 'no'": {"is_causal": "no"},
        "layout is 'zebra'": {"layout": "zebra"},
        "key is sparse": {"key": q.to_sparse()},
        "key is of the type list": {"key": q.tolist()},
        "value has shape (12, 24, 5)": {"value": q.flatten(0, 1)},
        "key has 0 heads": {"key": q[:, :0], "value": q[:, :0]},
        "query is on the meta device": {name: q.to("meta") for name in ("query", "key", "value")},
    }
    for text, each in wrong.items():
        for everywhere in (True, False):  # or on the first rank alone
            with pytest.raises((TypeError, ValueError)) as caught:
                ring_attention(**dict.fromkeys(("query", "key", "value"), q) | (each if everywhere or first else {}))
            results[text, everywhere] = str(caught.value), off(in_ring(*inputs), right)
    shared = HeadParallel(CausalSelfAttention(6, 8, 2))
    with pytest.raises((TypeError, ValueError)) as caught:
        shared(torch.ones(1, 3, 6, device="meta" if first else "cpu"))
    results["x", False] = str(caught.value), off(in_ring(*inputs), right)
    with pytest.raises(ValueError, match="the ranks differ in option") as caught:
        agree("a call", None, option=5000 * "a" + "bc"[first])  # which differs far behind a thousand bytes
    results["option", False] = str(caught.value), off(in_ring(*inputs), right)
    for sizes in EMPTY:
        batch, heads, kv_heads, queries, keys, width = sizes
        for is_causal in {False, queries == keys}:
            for value_dim in {width, 3}:
                shapes = [(batch, heads, queries, width), *((batch, kv_heads, keys, n) for n in (width, value_dim))]
                leaves = [torch.ones(shape, requires_grad=True) for shape in shapes]
                context = ring_attention(*leaves, is_causal=is_causal)
                gradients = torch.autograd.grad(context, leaves, torch.ones_like(context))
                results[sizes, is_causal, value_dim] = context.detach(), gradients
    return results


def test_a_ring_goes_on_after_a_refused_call_and_gives_nothing_where_there_is_nothing() -> None:
    ranks = launch(goes_on, ranks=2)
    for key in ranks[0]:
        (message, there), (answer, here) = (results[key] for results in ranks)
        if len(key) == 2:
            text, everywhere = key
            assert max(there, here) < 1e-13, key
            if everywhere:
                assert message == answer
                assert message.startswith(text)
            else:
                assert re.search(rf"(differ in|so do all:) {text.split()[0]}\b", answer), answer
            continue
        whole = torch.cat([message, answer])
        torch.testing.assert_close(whole, torch.full_like(whole, float(key[0][4] > 0)))  # a mean of ones, or of nothing
        assert all(x.isfinite().all() for x in (*there, *here))
        torch.testing.assert_close(there[2].sum() + here[2].sum(), whole.sum())


# --- what fails ---


def dies_in_the_ring() -> None:
    attend, calls = _ring._attend, []

    def attend_once(*inputs: object) -> tuple[Tensor, Tensor]:
        calls.append(inputs)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return attend(*inputs)

    _ring._attend = attend_once if dist.get_rank() == 2 else attend
    ring_attention(*[torch.randn(1, 1, 4, 8)] * 3)


def is_left() -> None:
    for _ in range(2 - dist.get_rank()):
        ring_attention(*[torch.randn(1, 1, 4, 8)] * 3)


def waits_forever() -> None:
    ring_attention(*[torch.randn(1, 1, 4, 8)] * 3)
    if dist.get_rank() == 1:
        signal.pause()
    ring_attention(*[torch.randn(1, 1, 4, 8)] * 3)


def on_the_last(fails: Callable[[], object]) -> Callable[[], object]:
    return lambda: fails() if dist.get_rank() == dist.get_world_size() - 1 else None


def raises() -> None:
    raise LookupError("no such token")


@pytest.mark.parametrize(
    ("work", "ranks", "text"),
    [
        (dies_in_the_ring, 4, r"rank 2 of 4: died of SIGKILL; all ranks are ended$"),
        (is_left, 2, r"rank 0 of 2: RuntimeError: ring_attention: rank 0 has lost another rank, which died, ended, or"),
        (waits_forever, 2, r"rank 0 of 2: .* has lost another rank, .* takes longer than the group's timeout"),
        (on_the_last(lambda: os._exit(3)), 3, "rank 2 of 3: ended with the exit code 3"),
        (on_the_last(threading.Lock), 3, "rank 2 of 3: .*what work returned cannot be copied to another process"),
        (on_the_last(raises), 3, "rank 2 of 3: LookupError: no such token"),
    ],
    ids=["killed", "left", "hangs", "exits", "returns a lock", "raises"],
)
def test_a_rank_that_fails_ends_all_and_is_named_with_the_cause(
    work: Callable[[], object], ranks: int, text: str
) -> None:
    with pytest.raises(RuntimeError, match=f"^{text}") as caught:
        launch(work, ranks=ranks, timeout=3.0 if work is waits_forever else 60.0)
    if "LookupError" in text:
        assert 'raise LookupError("no such token")' in caught.value.__notes__[0]


def test_a_rank_that_never_comes_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match=r"^while the group was formed: .* has lost another rank, .* longer than 1 s"),
        process_group(1.0, backend="gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=2),
    ):
        pass


# --- one rank is enough ---


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_without_the_fused_kernel_it_is_the_same(
    is_causal: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = tensors(dtype)
    monkeypatch.setattr(_ring, "_runs_fused", lambda *_: False)
    options: dict[str, object] = {"is_causal": is_causal, "layout": "contiguous"}
    right = whole(*inputs, is_causal=is_causal)
    assert off(in_ring(*inputs, **options), right) < (1e-13 if dtype == torch.float64 else 2e-3)


@pytest.mark.usefixtures("alone")
def test_tensors_and_gradients_of_any_strides_give_the_same() -> None:
    inputs = tensors()
    q, k, v, gradient = (x.mT.contiguous().mT.requires_grad_() for x in inputs)
    output = ring_attention(q, k, v, is_causal=True)
    for cotangent in (gradient, torch.ones(()).double().expand(output.shape)):
        gradients = torch.autograd.grad(output, (q, k, v), cotangent, retain_graph=True)
        right = whole(*inputs[:3], cotangent, is_causal=True)
        for a, b in zip([output, *gradients], right, strict=True):
            torch.testing.assert_close(a, b)


def ring_of(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], **options: object) -> object:
    return partial(ring_attention, *map(torch.ones, (query, key, value)), **options)


Q = (2, 4, 8, 5)
test_tensors_and_layers_that_do_not_fit_are_refused = pytest.mark.usefixtures("alone")(
    refused(
        {
            ValueError: {
                "query has shape (2, 4, 8); it must be (batch, heads, tokens, head_dim)": ring_of(*[(2, 4, 8)] * 3),
                "key has 3 heads and query 4; key's heads must divide query's": ring_of(Q, *[(2, 3, 8, 5)] * 2),
                "query has 5 features and key 6; a dot product needs as many of both": ring_of(Q, *[(2, 4, 8, 6)] * 2),
                "query has 2 sequences and key 1; a ring needs as many of both": ring_of(Q, *[(1, 4, 8, 5)] * 2),
                "key has shape (2, 4, 8, 5) and value (2, 4, 7, 5); every key needs one value: all axes but the last "
                "must agree": ring_of(Q, Q, (2, 4, 7, 5)),
                "query has 8 tokens and key 6; a causal ring needs as many of both": ring_of(
                    Q, *[(2, 4, 6, 5)] * 2, is_causal=True
                ),
                'layout is \'zebra\'; choose "zigzag", "striped" or "contiguous"': (
                    ring_of(Q, Q, Q, layout="zebra"),
                    partial(positions_of_rank, 8, rank=0, ranks=2, layout="zebra"),
                ),
                "dropout is 0.1; each rank would drop other weights: set layer.dropout to 0": lambda: HeadParallel(
                    CausalSelfAttention(6, 6, 2, dropout=0.1)
                ),
                "x has shape (2, 3, 5); this layer takes (..., tokens, 6)": lambda: HeadParallel(
                    CausalSelfAttention(6, 6, 2)
                )(torch.ones(2, 3, 5)),
                "tokens is 6; zigzag on 2 ranks takes a multiple of 4: pad by 2": partial(
                    positions_of_rank, 6, rank=0, ranks=2
                ),
                "tokens is 5; striped on 2 ranks takes a multiple of 2: pad by 1": partial(
                    positions_of_rank, 5, rank=0, ranks=2, layout="striped"
                ),
                "rank is 2; of 2 ranks it is 0 to 1": partial(positions_of_rank, 8, rank=2, ranks=2),
                "ranks is 0; it must be 1 or more": (
                    partial(positions_of_rank, 8, rank=0, ranks=0),
                    partial(launch, dist.get_rank, ranks=0),
                ),
            },
            TypeError: {
                "value is torch.float64 but query is torch.float32; cast one to the other": partial(
                    ring_attention, torch.ones(Q), torch.ones(Q), torch.ones(Q).double()
                ),
                "layer is a Linear, which cannot be shared out; give a CausalSelfAttention": lambda: HeadParallel(
                    nn.Linear(3, 4)
                ),
                "layer is a str, which cannot be shared out; give a CausalSelfAttention": lambda: HeadParallel("layer"),
            },
        }
    )
)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_token_is_dealt_out_once_and_in_order(ranks: int, layout: str) -> None:
    parts = [positions_of_rank(12, rank=rank, ranks=ranks, layout=layout) for rank in range(ranks)]
    assert sorted(torch.cat(parts).tolist()) == list(range(12))
    assert all((part.diff() > 0).all() and len(part) == 12 // ranks for part in parts)
    pairs = [(part + 1).sum().item() for part in parts]  # how many keys its queries see
    if layout == "zigzag":
        assert len(set(pairs)) == 1
    if layout == "striped":
        assert max(pairs) - min(pairs) == 12 / ranks * (ranks - 1)


# --- as its users start it ---


def demonstration(*started: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *started]
    variables = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=variables)


def test_torchrun_runs_the_demonstration() -> None:
    run = demonstration("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "unmasked.parallel")
    assert run.returncode == 0, run.stderr
    header, *rows = run.stdout.splitlines()
    assert header.split("  ")[-1].strip() == "by the formula"
    assert len(rows) == 4
    for row in rows:
        *_, off_by, gradient_off_by, sent, formula = row.split()
        assert max(float(off_by), float(gradient_off_by)) < 1e-6
        assert sent == formula
        assert int(sent.replace(",", "")) > 0


def test_what_is_wrong_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["parallel", "--tokens", "47"])
    monkeypatch.delenv("RANK", raising=False)
    assert command.main() == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert re.fullmatch(r"unmasked.parallel: rank 0 of 2: ValueError: tokens is 47; zigzag on 2 .*\n", output.err)


@pytest.mark.cuda
def test_nccl_gives_the_same() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two NVIDIA GPUs: this machine has one")
    run = demonstration("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "unmasked.parallel")
    assert run.returncode == 0, run.stdout + run.stderr
