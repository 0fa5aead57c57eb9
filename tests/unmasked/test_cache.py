"""The cache gives what the whole sequence gives, at every step, however it is cut, and the models of others agree."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from unmasked import CausalSelfAttention, KVCache, masks
from unmasked.layouts import load
from unmasked.positions import Rotary

from ..refusals import refused
from .helpers import calls_of_the_kernel, goes_on_in_every_mode, shaken
from .of_transformers import HEADS, LAYERS, VOCABULARY, WIDTH, tiny, with_cache


def layer(*, dtype: torch.dtype = torch.float64, **options: Any) -> CausalSelfAttention:
    """A layer of three groups of two heads, whose biases are not zero."""
    made = CausalSelfAttention(7, 24, 6, **{"num_kv_heads": 3, "qkv_bias": True} | options, dtype=dtype)
    return shaken(made, 0.7).requires_grad_(False)


def test_a_layer_makes_its_cache_with_its_own_heads_and_dtype() -> None:
    made = layer(dtype=torch.float16).cache(2, 30, window=5)
    assert repr(made) == "KVCache(batch=2, num_kv_heads=3, head_dim=4, float16, window=5: 0 of 30 tokens)"


@st.composite
def splits(draw: st.DrawFn) -> list[int]:
    """Lengths of the parts of a sequence: a prefill, chunks, and single steps."""
    return draw(st.lists(st.sampled_from([1, 1, 1, 2, 3, 5]), min_size=1, max_size=6))


@settings(max_examples=max(30, settings().max_examples // 2))
@given(
    parts=splits(),
    window=st.sampled_from([None, None, 1, 2, 3, 4, 7, 50]),
    num_kv_heads=st.sampled_from([6, 3, 1]),
    rotary=st.sampled_from([None, Rotary(4)]),
    masked=st.sampled_from([None, "left", "right", "anywhere"]),
)
def test_however_a_sequence_is_cut_each_part_gets_what_the_whole_gives(
    parts: list[int],
    window: int | None,
    num_kv_heads: int,
    rotary: Rotary | None,
    masked: Any,
) -> None:
    torch.manual_seed(sum(parts))
    made, tokens = layer(num_kv_heads=num_kv_heads, rotary=rotary), sum(parts)
    x, cache = torch.randn(2, tokens, 7, dtype=torch.float64), made.cache(2, 30, window=window)
    lengths = torch.tensor([tokens, max(0, tokens - 2)])
    if masked in ("left", "right"):
        given_mask = masks.padding(lengths, tokens, side=masked).expand(-1, -1, tokens, -1)
    else:
        given_mask = None if masked is None else torch.rand(2, 6, tokens, tokens) < 0.5
    narrow = None if window is None else masks.sliding_window(tokens, window=window)
    allowed = masks.combine(given_mask, narrow)
    output, weights = made(x, allowed=allowed), made.weights(x, allowed=allowed)
    done = 0
    for part in x.split(parts, dim=1):
        after = done + part.size(1)
        so_far = None if given_mask is None else given_mask[..., done:after, :after]
        seen = made.weights(part, allowed=so_far, cache=cache)
        assert cache.length == done, "to look stores nothing"
        torch.testing.assert_close(seen, weights[..., done:after, after - seen.size(-1) : after])
        assert not weights[..., done:after, : after - seen.size(-1)].any(), "what is left out has no weight"
        torch.testing.assert_close(made(part, allowed=so_far, cache=cache), output[:, done:after])
        done = after
        assert cache.length == done


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("window", [None, 3])
def test_in_fewer_bits_the_parts_are_within_rounding_of_the_whole(dtype: torch.dtype, window: int | None) -> None:
    made = layer(dtype=dtype, rotary=Rotary(4))
    x, cache = torch.randn(2, 9, 7, dtype=dtype), made.cache(2, 30, window=window)
    allowed = None if window is None else masks.sliding_window(9, window=window)
    parts = torch.cat([made(part, cache=cache) for part in x.split([4, 1, 3, 1], dim=1)], dim=1)
    assert parts.dtype == dtype
    error = (parts - made(x, allowed=allowed)).abs().max()
    assert error <= 8 * torch.finfo(dtype).eps * parts.abs().max()


def test_positions_count_from_the_first_token_of_the_cache_unless_they_are_given() -> None:
    made, x = layer(rotary=Rotary(4)), torch.randn(2, 6, 7, dtype=torch.float64)
    seen: list[Tensor] = []

    def noted(x: Tensor, positions: Tensor) -> Tensor:
        seen.append(positions)
        return Rotary(4)(x, positions)

    made.rotary, cache = noted, made.cache(2, 30)
    for part in x.split([4, 1, 1], dim=1):
        made(part, cache=cache)
    assert [each.tolist() for each in seen] == [[0, 1, 2, 3], [0, 1, 2, 3], [4], [4], [5], [5]]
    # A rotary score knows distances alone, so that any start gives the same; a stretched count does not.
    expected, counted = made(x), torch.arange(6)
    torch.testing.assert_close(made(x, positions=counted + 1000), expected)
    torch.testing.assert_close(made(x, positions=torch.stack([counted, counted + 7])), expected)
    stretched = made(x, positions=2 * counted)
    assert (stretched - expected).abs().max() > 1e-3
    cache.crop(0)
    steps = [made(x[:, [i]], cache=cache, positions=torch.tensor([2 * i])) for i in range(6)]
    torch.testing.assert_close(torch.cat(steps, dim=1), stretched)


# --- sequences of different lengths


@settings(max_examples=max(30, settings().max_examples // 2))
@given(
    lengths=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    parts=splits(),
    rotary=st.sampled_from([None, Rotary(4)]),
    masked=st.booleans(),
    order=st.sampled_from([None, [2, 0, 2], [1, 1, 1]]),
)
def test_each_of_several_lengths_goes_on_as_it_would_alone(
    lengths: list[int], parts: list[int], rotary: Rotary | None, masked: bool, order: list[int] | None
) -> None:
    torch.manual_seed(sum(parts))
    made, new = layer(rotary=rotary), sum(parts)
    prompts, x = torch.randn(3, 5, 7, dtype=torch.float64), torch.randn(3, new, 7, dtype=torch.float64)
    cache = made.cache(3, 40)
    made(prompts, cache=cache)  # padded on the right
    cache.crop(torch.tensor(lengths))
    if order is not None:
        cache.reorder(torch.tensor(order))
        prompts, lengths = prompts[order], [lengths[each] for each in order]
    assert cache.cache_seqlens.tolist() == lengths
    alone = [torch.cat([prompts[b, : lengths[b]], x[b]]) for b in range(3)]
    longest, done = max(lengths), 0
    shut = torch.rand(3, 6, new, longest + new) < 0.6 if masked else None
    for part in x.split(parts, dim=1):
        after = done + part.size(1)
        allowed = None if shut is None else shut[:, :, done:after, : longest + after]
        seen = made.weights(part, cache=cache, allowed=allowed)
        assert cache.cache_seqlens.tolist() == [length + done for length in lengths], "to look stores nothing"
        output = made(part, cache=cache, allowed=allowed)
        for b, length in enumerate(lengths):
            mask = None
            if shut is not None:
                mask = torch.ones(6, length + after, length + after).bool()
                mask[:, length:] = shut[b, :, :after, : length + after]
            one = {} if mask is None else {"allowed": mask}
            torch.testing.assert_close(output[b], made(alone[b][: length + after], **one)[length + done :])
            weights = made.weights(alone[b][: length + after], **one)[:, length + done :]
            torch.testing.assert_close(seen[b, :, :, : length + after], weights)
            assert not seen[b, :, :, length + after :].any(), "nobody sees what lies behind"
        done = after
    assert cache.length == longest + new
    assert cache.cache_seqlens.tolist() == [length + new for length in lengths]


def test_drafts_are_refused_at_another_place_in_each_sequence() -> None:
    made, x = layer(rotary=Rotary(4)), torch.randn(2, 6, 7, dtype=torch.float64)
    cache, drafts = made.cache(2, 30), torch.randn(2, 4, 7, dtype=torch.float64)
    made(x[:, :5], cache=cache)
    made(drafts, cache=cache)
    cache.crop(torch.tensor([7, 6]))  # two of the first one's, one of the second one's
    step = made(x[:, 5:], cache=cache)
    for b, kept in enumerate((2, 1)):
        whole = torch.cat([x[b, :5], drafts[b, :kept], x[b, 5:]])
        torch.testing.assert_close(step[b], made(whole)[-1:])
    cache.crop(torch.tensor([3, 3]))
    torch.testing.assert_close(made(x[:, 3:], cache=cache), made(x)[:, 3:])


def test_what_was_forgotten_reaches_nobody_even_if_it_was_not_finite() -> None:
    made, x = layer(), torch.randn(2, 6, 7, dtype=torch.float64)
    cache, padded = made.cache(2, 30), x.clone()
    padded[1, 3:] = torch.nan
    made(padded[:, :5], cache=cache)
    cache.crop(torch.tensor([5, 3]))
    step = made(x[:, 5:], cache=cache)
    torch.testing.assert_close(step[1], made(torch.cat([x[1, :3], x[1, 5:]]))[-1:])


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize("lengths", [None, [4, 2]])
def test_a_compiled_step_is_compiled_for_all_lengths_wherever_layer_and_cache_stand(
    lengths: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = layer(rotary=Rotary(4)).eval()
    cache, x = made.cache(2, 30), torch.randn(2, 16, 7, dtype=torch.float64)
    monkeypatch.setitem(globals(), "LAYER", made)
    monkeypatch.setitem(globals(), "CACHE", cache)
    counter = CompileCounter()
    steps = {
        "global": torch.compile(lambda x: LAYER(x, cache=CACHE), backend=counter, fullgraph=True),
        "given": torch.compile(lambda x, cache: made(x, cache=cache), backend=counter, fullgraph=True),
    }
    for name, step in steps.items():
        counter.clear()
        cache.crop(0)
        made(x[:, :4], cache=cache)
        if lengths is not None:
            cache.crop(torch.tensor(lengths))
        got = [step(x[:, [n]]) if name == "global" else step(x[:, [n]], cache) for n in range(4, 16)]
        for b, length in enumerate(lengths or [4, 4]):
            whole = made(torch.cat([x[b, :length], x[b, 4:]]))[length:]
            torch.testing.assert_close(torch.cat(got, dim=1)[b], whole)
        assert counter.frame_count <= 3, name


# --- what is stored


def drawn(batch: int = 2, heads: int = 3, tokens: int = 1, head_dim: int = 4) -> tuple[Tensor, Tensor]:
    key, value = torch.randn(2, batch, heads, tokens, head_dim).unbind()
    return key, value


def test_append_returns_all_keys_and_all_values_as_views_of_memory_that_is_taken_once() -> None:
    cache = KVCache(2, 3, 10, 4)
    memory = cache._memory.untyped_storage().data_ptr()
    key, value = drawn(tokens=8)
    for start, end in [(0, 3), (3, 7), (7, 8)]:
        keys, values = cache.append(key[:, :, start:end], value[:, :, start:end])
        assert torch.equal(keys, key[:, :, :end])
        assert torch.equal(values, value[:, :, :end])
        assert {each.untyped_storage().data_ptr() for each in (keys, values)} == {memory}, "nothing was copied"
        assert keys.stride(-1) == 1, "the kernel takes it as it is"
    assert cache.bytes == 2 * 2 * 3 * 10 * 4 * 4
    assert cache.length == 8


def test_unused_memory_is_zero() -> None:
    cache = KVCache(2, 3, 10, 4, dtype=torch.float16)
    cache.append(*(each.half() for each in drawn(tokens=2)))
    assert not cache._memory[:, :, 2:].any()
    assert cache._memory.dtype == torch.float16


def test_a_ring_keeps_the_last_tokens_in_the_memory_of_its_window() -> None:
    cache, (key, value) = KVCache(2, 3, 1000, 4, window=4), drawn(tokens=12)
    small = KVCache(2, 3, 4, 4)
    assert cache.bytes == small.bytes
    memory = cache._memory.data_ptr()
    for n in range(12):
        keys, values = cache.append(key[:, :, [n]], value[:, :, [n]])
        assert keys.data_ptr() == memory
        assert sorted(cache.positions.tolist()) == list(range(max(0, n - 3), n + 1))
        assert torch.equal(keys, key[:, :, cache.positions])
        assert torch.equal(values, value[:, :, cache.positions])
        ahead = cache.peek(key[:, :, n:n], value[:, :, n:n])
        assert torch.equal(ahead[1], value[:, :, max(0, n - 2) : n + 1])
    assert KVCache(2, 3, 5, 4, window=100).bytes == KVCache(2, 3, 5, 4).bytes


def test_a_step_copies_nothing_that_is_stored_and_makes_no_mask_for_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, made = calls_of_the_kernel(monkeypatch), layer()
    for window, parts, lengths in ((None, [5, 1, 1], None), (3, [2, 1, 1, 1], None), (None, [5, 1], [5, 3])):
        cache, x = made.cache(2, 30, window=window), torch.randn(2, sum(parts), 7, dtype=torch.float64)
        for part in x.split(parts, dim=1):
            made(part, cache=cache)
            assert calls[-1]["key"].untyped_storage().data_ptr() == cache._memory.untyped_storage().data_ptr()
            if lengths is None:
                assert calls[-1]["attn_mask"] is None
                assert calls[-1]["is_causal"] is (part.size(1) > 1), "a prefill is masked by the kernel"
            elif part.size(1) > 1:
                cache.crop(torch.tensor(lengths))


def test_crop_forgets_and_the_next_tokens_take_the_place() -> None:
    made, x = layer(rotary=Rotary(4)), torch.randn(2, 9, 7, dtype=torch.float64)
    draft = torch.randn(2, 4, 7, dtype=torch.float64)
    for window in (None, 20):
        cache = made.cache(2, 30, window=window)
        made(x[:, :5], cache=cache)
        made(draft, cache=cache)
        cache.crop(5)
        assert cache.length == 5
        torch.testing.assert_close(made(x[:, 5:], cache=cache), made(x)[:, 5:])
        cache.crop(0)
        torch.testing.assert_close(made(x, cache=cache), made(x))


def test_a_full_ring_takes_back_one_token_and_no_more() -> None:
    made, x = layer(), torch.randn(2, 9, 7, dtype=torch.float64)
    cache = made.cache(2, 30, window=4)
    made(x[:, :7], cache=cache)
    made(torch.randn(2, 1, 7, dtype=torch.float64), cache=cache)
    cache.crop(7)
    text = (
        "length is 6; the ring holds the last 3 of 7 tokens, and the next query would look for 3 before it: crop to 0, "
        "or make the cache without a window"
    )
    with pytest.raises(ValueError, match=re.escape(text) + "$"):
        cache.crop(6)
    assert cache.length == 7
    expected = made(x, allowed=masks.sliding_window(9, window=4))
    torch.testing.assert_close(made(x[:, 7:], cache=cache), expected[:, 7:])
    cache.crop(0)
    torch.testing.assert_close(made(x, cache=cache), expected)


@pytest.mark.parametrize("window", [None, 3])
def test_reordered_sequences_go_on_from_the_keys_and_values_of_others(window: int | None) -> None:
    made, x = layer(), torch.randn(3, 7, 7, dtype=torch.float64)
    cache, order = made.cache(3, 30, window=window), torch.tensor([2, 0, 2])
    made(x[:, :5], cache=cache)
    cache.reorder(order)
    whole = torch.cat([x[order, :5], x[:, 5:]], dim=1)
    allowed = None if window is None else masks.sliding_window(7, window=window)
    for n in (5, 6):
        torch.testing.assert_close(made(x[:, [n]], cache=cache), made(whole, allowed=allowed)[:, [n]])


def test_bytes_are_a_key_and_a_value_for_each_head_of_each_layer() -> None:
    assert KVCache.bytes_per_token(8, 128, num_layers=32, dtype=torch.bfloat16) == 131_072
    assert KVCache.bytes_per_token(5, 3) == 2 * 5 * 3 * 4
    cache = KVCache(7, 5, 11, 3, dtype=torch.float64)
    assert cache.bytes == 7 * 11 * KVCache.bytes_per_token(5, 3, dtype=torch.float64)


def test_it_works_in_inference_mode_and_without_gradients() -> None:
    goes_on_in_every_mode(layer().requires_grad_(True), torch.randn(2, 3, 7, dtype=torch.float64))


SIZES = {"batch": 2, "num_kv_heads": 3, "max_tokens": 10, "head_dim": 4}
test_impossible_sizes_are_refused = refused(
    {
        ValueError: {
            f"{name} is 0; it must be 1 or more": partial(KVCache, **SIZES | {name: 0}) for name in (*SIZES, "window")
        }
    }
)


def filled(window: int | None = None) -> KVCache:
    cache = KVCache(2, 3, 10, 4, window=window)
    cache.append(*drawn(tokens=7))
    return cache


ONE = torch.ones(2, 3, 1, 4)
TAKES = "this cache takes (batch, kv_heads, tokens, head_dim) = (2, 3, tokens, 4)"
DOES_NOT_FIT: dict[str, tuple[type[Exception], Tensor, Tensor]] = {
    f"key has shape (2, 2, 3, 4); {TAKES}": (ValueError, torch.ones(2, 2, 3, 4), ONE),
    f"value has shape (3, 1, 4); {TAKES}": (ValueError, ONE, ONE[0]),
    "key has 1 tokens and value 2; every key needs one value": (ValueError, ONE, torch.ones(2, 3, 2, 4)),
    "value is torch.float16 and the cache torch.float32; make the cache with dtype=torch.float16": (
        TypeError,
        ONE,
        ONE.half(),
    ),
    'key is on meta and the cache on cpu; make the cache with device="meta"': (ValueError, ONE.to("meta"), ONE),
    "value requires grad, and a cache keeps numbers without their history; call the model under torch.no_grad(), or "
    "pass value.detach()": (ValueError, ONE, ONE.clone().requires_grad_()),
    "the cache holds 7 of at most 10 tokens, and 4 more do not fit; make it with a larger max_tokens, or crop it": (
        ValueError,
        torch.ones(2, 3, 4, 4),
        torch.ones(2, 3, 4, 4),
    ),
}


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize("text", DOES_NOT_FIT)
@pytest.mark.parametrize("window", [None, 2])
def test_what_does_not_fit_is_refused_and_nothing_is_stored(text: str, window: int | None) -> None:
    (error, key, value), cache = DOES_NOT_FIT[text], filled(window)
    before = cache._memory.clone()
    for call in (cache.append, cache.peek):
        with pytest.raises(error, match=re.escape(text) + "$"):
            call(key, value)
    assert cache.length == 7
    assert torch.equal(cache._memory, before)


def ragged(*lengths: int) -> KVCache:
    cache = filled()
    cache.crop(torch.tensor(lengths or (7, 4)))
    return cache


def cropped(length: Any) -> Callable[[], None]:
    return lambda: filled().crop(length)


def reordered(order: Tensor) -> Callable[[], None]:
    return lambda: filled().reorder(order)


test_a_crop_or_an_order_that_cannot_be_is_refused = refused(
    {
        ValueError: {
            "length is 8; the cache holds 7 tokens: crop to 0 to 7": cropped(8),
            "length is -1; it must be 0 or more": cropped(-1),
            "length is -1; the cache holds 7 tokens: crop to 0 to 7": cropped(torch.tensor([7, -1])),
            "length is 5; sequence 1 of the cache has 4 tokens: crop to 0 to 4": lambda: ragged().crop(5),
            "length is 3; sequence 0 of the cache has 2 tokens: crop to 0 to 2": lambda: ragged(2, 4).crop(
                torch.tensor([3, 1])
            ),
            "length has shape (3,); it must be a number, or one for each of the 2 sequences of the cache": cropped(
                torch.tensor([1, 2, 3])
            ),
            "length has shape (); it must be a number, or one for each of the 2 sequences of the cache": cropped(
                torch.tensor(1)
            ),
            "length is [7, 6]; the sequences of a ring have all one length: make the cache without a window": (
                lambda: filled(4).crop(torch.tensor([7, 6]))
            ),
        }
        | {
            f"order is {order}; it must name 2 sequences, each by a number from 0 to 1": reordered(torch.tensor(order))
            for order in ([0, 2], [-1, 0], [0], [0, 1, 1])
        },
        TypeError: {
            f"order is {order.dtype}; it names sequences by their number: call order.long()": reordered(order)
            for order in (torch.tensor([0.0, 1.0]), torch.tensor([True, False]))
        }
        | {
            "length is 2.5, a float; it must be an integer": cropped(2.5),
            "length is True; it must be an integer": cropped(True),
            "length is torch.float32; ...": cropped(torch.tensor([1.0, 2.0])),
        },
    }
)


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize("name", ["forward", "weights"])
def test_the_layer_refuses_what_does_not_fit_its_cache(name: str) -> None:
    made, x = layer(context_length=6), torch.randn(2, 4, 7, dtype=torch.float64)
    cache, attend = made.cache(2, 30), getattr(made, name)
    made(x, cache=cache)
    mask = torch.ones(2, 1, 1, 4).bool()
    calls: dict[str, tuple[Tensor, dict[str, Tensor]]] = {
        "x has 3 tokens after 4 in the cache, more than context_length (6); shorten it, or make the layer with a "
        "larger context_length": (x[:, :3], {}),
        "allowed has shape (2, 1, 1, 4); its last axis must be the 5 tokens so far, those of the cache and those "
        "of x": (
            x[:, :1],
            {"allowed": mask},
        ),
        "positions are given, and this layer has no rotary to turn anything by them; make it with rotary=..., or add "
        "positions to x": (x[:, :1], {"positions": torch.tensor([4])}),
        f"key has shape (3, 1, 4); {TAKES}": (x[0, :1], {}),
    }
    for text, (part, options) in calls.items():
        with pytest.raises(ValueError, match=re.escape(text) + "$"):
            attend(part, cache=cache, **options)
    made.requires_grad_(True)
    with pytest.raises(ValueError, match=r"^key requires grad, and a cache keeps numbers without their history; "):
        attend(x[:, :1], cache=cache)
    assert cache.length == 4


@pytest.mark.cuda
@pytest.mark.parametrize("window", [None, 3])
def test_on_a_gpu_the_parts_are_the_whole(window: int | None) -> None:
    made = CausalSelfAttention(7, 24, 6, num_kv_heads=3, device="cuda").requires_grad_(False)
    x = torch.randn(2, 9, 7, device="cuda")
    cache = KVCache(2, 3, 9, 4, device="cuda", window=window)
    real = masks.padding(torch.tensor([9, 6], device="cuda"), side="left")
    narrow = None if window is None else masks.sliding_window(9, window=window, device="cuda")
    done, parts = 0, []
    for part in x.split([4, 1, 3, 1], dim=1):
        done += part.size(1)
        parts.append(made(part, cache=cache, allowed=real[..., :done]))
    torch.testing.assert_close(torch.cat(parts, dim=1), made(x, allowed=masks.combine(real, narrow)))
    cache.crop(0)
    made(x[:, :4], cache=cache)
    cache.reorder(torch.tensor([1, 0]))
    whole = torch.cat([x.flip(0)[:, :4], x[:, 4:5]], dim=1)
    allowed = None if window is None else masks.sliding_window(5, window=window, device="cuda")
    torch.testing.assert_close(made(x[:, 4:5], cache=cache), made(whole, allowed=allowed)[:, 4:])


# --- the models of others


KV_HEADS = {"gpt2": HEADS, "llama": 2}


def model_of(family: str) -> tuple[Any, Callable[..., Tensor]]:
    """A model of transformers, and its logits by our attention."""
    if family == "gpt2":
        theirs = tiny("GPT2LMHeadModel", initializer_range=0.3).requires_grad_(False)
        inner, options = theirs.transformer, {"qkv_bias": True}
        blocks, norms, last = inner.h, ("ln_1", "ln_2"), inner.ln_f
    else:
        kv_heads = KV_HEADS[family]
        theirs = tiny("LlamaForCausalLM", initializer_range=0.3, num_key_value_heads=kv_heads).requires_grad_(False)
        inner, options = theirs.model, {"num_kv_heads": kv_heads, "out_bias": False, "rotary": Rotary(4)}
        blocks, norms, last = inner.layers, ("input_layernorm", "post_attention_layernorm"), inner.norm
    attentions = [CausalSelfAttention(WIDTH, WIDTH, HEADS, **options).requires_grad_(False) for _ in blocks]
    for n, made in enumerate(attentions):
        shared = options.get("num_kv_heads")
        weights = load(theirs.state_dict(), family, num_heads=HEADS, num_kv_heads=shared, layer=n, config=theirs.config)
        made.load_state_dict(weights)

    def logits(ids: Tensor, caches: list[KVCache | None], positions: Tensor, allowed: Tensor | None = None) -> Tensor:
        if family == "gpt2":
            x, turned = inner.wte(ids) + inner.wpe(positions), {}
        else:
            x, turned = inner.embed_tokens(ids), {"positions": positions}
        for block, attention, cache in zip(blocks, attentions, caches, strict=True):
            first, second = (getattr(block, norm) for norm in norms)
            x = x + attention(first(x), cache=cache, allowed=allowed, **turned)
            x = x + block.mlp(second(x))
        answered: Tensor = theirs.lm_head(last(x))
        return answered

    return theirs, logits


@pytest.mark.parametrize("family", KV_HEADS)
def test_a_model_of_transformers_gives_the_same_logits_with_its_own_cache(family: str) -> None:
    theirs, logits = model_of(family)
    ids, kept = torch.randint(VOCABULARY, (3, 11)), with_cache(theirs)
    caches = [KVCache(3, KV_HEADS[family], 11, WIDTH // HEADS) for _ in range(LAYERS)]
    whole = theirs(ids).logits
    torch.testing.assert_close(logits(ids, [None] * LAYERS, torch.arange(11)), whole, rtol=1e-4, atol=1e-5)
    done = 0
    for part in ids.split([5, 3, 1, 1, 1], dim=1):
        after = done + part.size(1)
        expected = theirs(part, **kept).logits
        mine = logits(part, caches, torch.arange(done, after))
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(mine, whole[:, done:after], rtol=1e-4, atol=1e-5)
        done = after
    (known,) = kept.values()
    for mine, layer in zip(caches, known.layers, strict=True):
        torch.testing.assert_close(mine._memory.chunk(2, dim=1), (layer.keys, layer.values), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", KV_HEADS)
def test_left_padding_changes_nothing_with_positions_of_and_gpt2s_answer_without(family: str) -> None:
    theirs, logits = model_of(family)
    short, tokens, padding = torch.randint(VOCABULARY, (1, 6)), 9, 3
    ids = torch.cat([torch.zeros(1, padding, dtype=torch.long), short], dim=1)
    ids = torch.cat([torch.randint(VOCABULARY, (1, tokens)), ids])
    allowed = masks.padding(torch.tensor([tokens, tokens - padding]), side="left")
    positions = masks.positions_of(allowed)
    alone = theirs(short).logits[0]
    attention_mask = allowed[:, 0, 0].long()
    expected = theirs(ids, attention_mask=attention_mask, position_ids=positions).logits
    caches = [KVCache(2, KV_HEADS[family], tokens, WIDTH // HEADS) for _ in range(LAYERS)]
    parts, done = [], 0
    for part in ids.split([5, 3, 1], dim=1):
        after = done + part.size(1)
        parts.append(logits(part, caches, positions[:, done:after], allowed=allowed[..., :after]))
        done = after
    mine = torch.cat(parts, dim=1)
    torch.testing.assert_close(mine[1, padding:], alone, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mine[0], expected[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mine[1, padding:], expected[1, padding:], rtol=1e-4, atol=1e-5)
    counted = logits(ids, [None] * LAYERS, torch.arange(tokens), allowed=allowed)[1, padding:]
    off = (counted - alone).abs().max()
    assert bool(off > 0.1) is (family == "gpt2"), "rotary positions are relative"


def test_a_cropped_ring_says_which_places_are_free() -> None:
    cache = KVCache(1, 1, max_tokens=9, head_dim=2, window=5)
    numbers = torch.arange(7.0).view(1, 1, 7, 1).expand(-1, -1, -1, 2)
    for token in range(6):
        cache.append(*[numbers[:, :, token : token + 1]] * 2)
    assert cache.positions.tolist() == [5, 1, 2, 3, 4]
    cache.crop(5)
    assert cache.positions.tolist() == [-1, 1, 2, 3, 4]
    keys, _ = cache.append(*[numbers[:, :, 6:]] * 2)
    assert keys[0, 0, :, 0].tolist() == [6, 1, 2, 3, 4]
    assert cache.positions.tolist() == [5, 1, 2, 3, 4]
