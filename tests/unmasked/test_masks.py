import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked import attend, bypass_, masks, self_attention

from ..refusals import refused
from .of_transformers import VOCABULARY, tiny

INF = math.inf


def rows(mask: Tensor) -> list[str]:
    return ["".join("x" if seen else "." for seen in row) for row in mask.tolist()]


def test_a_causal_query_sees_the_keys_up_to_its_own_position_counted_from_the_end() -> None:
    assert rows(masks.causal(3)) == ["x..", "xx.", "xxx"]
    assert rows(masks.causal(2, 4)) == ["xxx.", "xxxx"]
    assert rows(masks.causal(4, 2)) == ["..", "..", "x.", "xx"]
    assert masks.causal(0, 3).shape == (0, 3)
    assert masks.causal(3, 0).shape == (3, 0)


def test_a_sliding_window_counts_the_query_itself() -> None:
    assert rows(masks.sliding_window(4, window=1)) == ["x...", ".x..", "..x.", "...x"]
    assert rows(masks.sliding_window(4, window=2)) == ["x...", "xx..", ".xx.", "..xx"]
    assert rows(masks.sliding_window(2, 5, window=3)) == [".xxx.", "..xxx"]
    assert rows(masks.sliding_window(3, 2, window=2)) == ["..", "x.", "xx"]
    assert torch.equal(masks.sliding_window(3, 5, window=9), masks.causal(3, 5))


def test_transformers_counts_the_keys_of_a_window_as_we_do_and_flash_attention_beside_the_query() -> None:
    from transformers.masking_utils import sliding_window_causal_mask_function

    i, j = torch.arange(9)[:, None], torch.arange(9)
    theirs = sliding_window_causal_mask_function(3)(0, 0, i, j)
    assert torch.equal(theirs, masks.sliding_window(9, window=3))
    left = 2  # window_size=(2, 0): keys from i - 2 to i
    assert torch.equal((j >= i - left) & (j <= i), masks.sliding_window(9, window=left + 1))


def test_padding_allows_the_first_keys_of_each_sequence() -> None:
    mask = masks.padding(torch.tensor([3, 0, 1]))
    assert mask.shape == (3, 1, 1, 3)
    assert rows(mask[:, 0, 0]) == ["xxx", "...", "x.."]
    assert rows(masks.padding(torch.tensor([2]), keys=4)[:, 0, 0]) == ["xx.."]
    assert masks.padding(torch.zeros(0, dtype=torch.int64)).shape == (0, 1, 1, 0)


def test_padding_on_the_left_allows_the_last_keys_and_the_real_tokens_are_numbered_from_zero() -> None:
    lengths = torch.tensor([3, 0, 1])
    mask = masks.padding(lengths, side="left")
    assert rows(mask[:, 0, 0]) == ["xxx", "...", "..x"]
    assert rows(masks.padding(torch.tensor([2]), keys=4, side="left")[:, 0, 0]) == ["..xx"]
    expected = [[0, 1, 2], [0, 0, 0], [0, 0, 0]]
    assert masks.positions_of(mask).tolist() == expected == masks.positions_of(mask[:, 0, 0]).tolist()
    causal = masks.combine(mask, masks.causal(3))
    assert causal is not None
    assert masks.positions_of(causal.expand(3, 2, 3, 3)).tolist() == expected
    assert masks.positions_of(masks.padding(torch.tensor([2]), keys=4)).tolist() == [[0, 1, 1, 1]]
    assert masks.positions_of(torch.tensor([[True, False, True, True]])).tolist() == [[0, 0, 1, 2]]


def test_combined_masks_allow_what_all_allow() -> None:
    both = masks.combine(masks.causal(3), None, masks.padding(torch.tensor([2, 3])))
    assert both is not None
    assert both.shape == (2, 1, 3, 3)
    assert rows(both[0, 0]) == ["x..", "xx.", "xx."]
    assert rows(both[1, 0]) == ["x..", "xx.", "xxx"]
    assert masks.combine(None, None) is None
    assert masks.combine() is None


def test_every_conversion_has_its_inverse() -> None:
    allowed = torch.rand(2, 3, 5) < 0.5
    assert torch.equal(masks.allowed_from_blocked(masks.blocked_from_allowed(allowed)), allowed)
    by_head = torch.rand(2, 4, 3, 5) < 0.5
    there = masks.blocked_from_allowed(by_head, num_heads=4)
    assert torch.equal(masks.allowed_from_blocked(there, num_heads=4), by_head)
    assert masks.allowed_from_blocked(there[:0], num_heads=4).shape == (0, 4, 3, 5)
    for dtype in (torch.float32, torch.float16):
        additive = masks.additive_from_allowed(allowed, dtype)
        assert additive.dtype == dtype
        assert torch.equal(masks.allowed_from_additive(additive), allowed)
    assert masks.additive_from_allowed(torch.tensor([True, False])).tolist() == [0.0, -INF]
    assert masks.blocked_from_allowed(torch.tensor([True, False])).tolist() == [False, True]


def test_each_convention_shuts_out_the_same_keys_where_it_is_used() -> None:
    """One mask in the two polarities and as a number: whoever is handed the right one ignores the same keys."""
    batch, heads, queries, keys, head_dim = 2, 3, 4, 5, 6
    allowed = torch.rand(batch, heads, queries, keys) < 0.5
    allowed[..., 0] = True
    query = torch.randn(batch, queries, heads * head_dim)
    key = torch.randn(batch, keys, heads * head_dim)
    mha = nn.MultiheadAttention(heads * head_dim, heads, batch_first=True)
    blocked = masks.blocked_from_allowed(allowed, num_heads=heads)
    assert blocked.shape == (batch * heads, queries, keys)
    for mask in (blocked, masks.additive_from_allowed(~blocked)):
        weights = mha(query, key, key, attn_mask=mask, average_attn_weights=False)[1]
        assert torch.equal(weights != 0, allowed)
    q, k = (x.unflatten(-1, (heads, head_dim)).transpose(1, 2) for x in (query, key))
    one_hot = torch.eye(keys).expand(batch, heads, keys, keys)  # the context of such values is the weights
    for mask in (allowed, masks.additive_from_allowed(allowed)):
        assert torch.equal(F.scaled_dot_product_attention(q, k, one_hot, mask) != 0, allowed)


def test_padding_becomes_a_key_padding_mask_and_one_mask_serves_all_heads() -> None:
    allowed = masks.padding(torch.tensor([2, 5]))
    x = torch.randn(2, 5, 12)
    mha = nn.MultiheadAttention(12, 3, batch_first=True)
    by_key = mha(x, x, x, key_padding_mask=masks.blocked_from_allowed(allowed))
    by_pair = mha(x, x, x, attn_mask=masks.blocked_from_allowed(allowed.expand(2, 1, 5, 5), num_heads=3))
    torch.testing.assert_close(by_key, by_pair)
    torch.testing.assert_close(mha(x, x, x, key_padding_mask=masks.blocked_from_allowed(allowed[:, 0, 0])), by_key)
    assert not by_key[1][0, :, 2:].any()


ADDED = (
    "it is added to the scores, so only 0 (may see) and -inf (may not) make a mask. Pass zeros and ones as .bool(), any"
)
NO_BOOL = "is torch.float32; it must be bool (an additive mask: allowed_from_additive)"
NO_LENGTHS = "pass integers, such as torch.tensor([0, 0, 1]) holds"
ONES = torch.ones(2, 3)
test_what_is_no_such_mask_is_refused = refused(
    {
        ValueError: {
            "window is 0; a query sees at least itself: window must be 1 or more": lambda: masks.sliding_window(
                3, window=0
            ),
            "lengths are [2, 5]; each must lie between 0 and keys (4)": lambda: masks.padding(
                torch.tensor([2, 5]), keys=4
            ),
            "lengths are [2, -1]; each must lie between 0 and keys (2)": lambda: masks.padding(torch.tensor([2, -1])),
            'side is \'both\'; choose "left" or "right"': lambda: masks.padding(torch.tensor([2]), side="both"),
            "allowed has shape (2, 3, 4); it must be (batch, keys), True for what is real, or (batch, heads or 1, "
            "queries or 1, keys)": lambda: masks.positions_of(torch.ones(2, 3, 4).bool()),
            f"additive holds 1; {ADDED} other value as a bias": lambda: masks.allowed_from_additive(
                torch.tensor([0.0, 1.0])
            ),
            f"additive holds -1e+09; {ADDED} other value as a bias": lambda: masks.allowed_from_additive(
                torch.tensor([-1e9])
            ),
            "allowed has shape (3, 5); with num_heads=2 it must be (batch, 1 or 2, queries, keys)": lambda: (
                masks.blocked_from_allowed(torch.ones(3, 5).bool(), num_heads=2)
            ),
            "allowed has shape (2, 3, 4, 5); with num_heads=2 it must be (batch, 1 or 2, queries, keys)": lambda: (
                masks.blocked_from_allowed(torch.ones(2, 3, 4, 5).bool(), num_heads=2)
            ),
            "allowed has shape (2, 1, 4, 5); nn.MultiheadAttention takes four axes as three: pass num_heads": lambda: (
                masks.blocked_from_allowed(torch.ones(2, 1, 4, 5).bool())
            ),
            "blocked has shape (5, 3, 4); with num_heads=2 it must be (batch * 2, queries, keys)": lambda: (
                masks.allowed_from_blocked(torch.ones(5, 3, 4).bool(), num_heads=2)
            ),
            "blocked has shape (4, 3); with num_heads=2 it must be (batch * 2, queries, keys)": lambda: (
                masks.allowed_from_blocked(torch.ones(4, 3).bool(), num_heads=2)
            ),
            "lengths has shape (); it must be (batch,)": lambda: masks.padding(torch.tensor(3)),
            "num_heads is 0; it must be 1 or more": (
                lambda: masks.blocked_from_allowed(torch.ones(2, 1, 4, 5).bool(), num_heads=0),
                lambda: masks.allowed_from_blocked(torch.ones(2, 4, 5).bool(), num_heads=0),
            ),
        },
        TypeError: {
            f"lengths is {problem}": lambda lengths=lengths: masks.padding(lengths)
            for problem, lengths in {
                "of the type list; pass torch.tensor(lengths)": [3, 1],
                f"torch.float32; {NO_LENGTHS}": torch.tensor([3.0, 1.0]),
                f"torch.bool; {NO_LENGTHS}": torch.tensor([True]),
            }.items()
        }
        | {
            f"blocked {NO_BOOL}": lambda: masks.allowed_from_blocked(ONES),
            f"allowed[1] {NO_BOOL}": lambda: masks.combine(None, ONES),
            f"allowed {NO_BOOL}": (
                lambda: masks.blocked_from_allowed(ONES),
                lambda: masks.additive_from_allowed(ONES),
                lambda: masks.positions_of(ONES),
                lambda: masks.mask_mod(ONES),
            ),
        },
    }
)


def test_the_table_of_conventions_says_what_each_interface_does() -> None:
    """Row by row: the first query may see the first key alone, said in the convention's own way."""
    table = re.findall(r"^\| (\w+) \| (.+?) \| (.+?) \|$", masks.__doc__ or "", re.MULTILINE)[1:]
    assert [name for name, *_ in table] == ["allowed", "blocked", "additive"]
    torch.manual_seed(0)
    x = torch.randn(1, 3, 4)
    module = bypass_(nn.MultiheadAttention(4, 1, batch_first=True))
    first = torch.tensor([[True, False, False]]).expand(3, 3)

    def function(mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    def layer(mask: Tensor, **options: Tensor) -> Tensor:
        return module(x, x, x, attn_mask=mask, **options)[0]

    conventions = {
        "True = may see": (first, {"attn_mask of scaled_dot_product_attention": function}),
        "True = may not see": (~first, {"attn_mask and key_padding_mask of nn.MultiheadAttention": layer}),
        "0 = may see, -inf = may not": (torch.zeros(3, 3).masked_fill(~first, -torch.inf), {"both": function}),
    }
    for _, convention, used_by in table:
        mask, users = conventions[convention]
        for user, way in users.items():
            assert user in used_by
            torch.testing.assert_close(way(mask), x[:, :1].expand_as(x))
    torch.testing.assert_close(layer(conventions["0 = may see, -inf = may not"][0]), x[:, :1].expand_as(x))
    padded = module(x, x, x, key_padding_mask=~first[:1])[0]
    torch.testing.assert_close(padded, x[:, :1].expand_as(x))
    torch.testing.assert_close(self_attention(x, allowed=first).context, x[:, :1].expand_as(x))


@pytest.mark.parametrize("rubbish", [math.nan, INF, -INF])
def test_what_no_query_may_see_reaches_every_query_unless_it_is_zeroed(rubbish: float) -> None:
    x, allowed = torch.randn(2, 3, 5, 4), masks.padding(torch.tensor([3, 5]))
    x[0, :, 3:] = rubbish
    for implementation in ("eager", "fused"):
        assert (
            self_attention(x, allowed=allowed, implementation=implementation, need_weights=False)
            .context[0]
            .isnan()
            .any()
        )
        clean = masks.zero_hidden(x, allowed)
        context = self_attention(clean, allowed=allowed, implementation=implementation, need_weights=False).context
        torch.testing.assert_close(context[0, :, :3], self_attention(x[0, :, :3]).context)
        torch.testing.assert_close(context[1], self_attention(x[1]).context)
    assert F.scaled_dot_product_attention(x, x, x, attn_mask=allowed)[0].isnan().any()  # PyTorch's too


def test_zeroing_what_is_hidden_spares_what_one_query_or_head_sees_and_stops_gradients() -> None:
    x = torch.randn(2, 3, 4, requires_grad=True)
    by_head = torch.tensor([[[1, 0, 0], [0, 0, 1]], [[0, 1, 0], [0, 1, 0]]]).bool()
    kept = masks.zero_hidden(x, by_head)
    expected = torch.tensor([[[1], [0], [1]], [[0], [1], [0]]])
    torch.testing.assert_close(kept, x * expected)
    torch.testing.assert_close(torch.autograd.grad(kept.sum(), x)[0], expected.expand(2, 3, 4).float())
    torch.testing.assert_close(
        masks.zero_hidden(x, torch.tensor([True, False, True])), x * torch.tensor([[1], [0], [1]])
    )
    assert masks.zero_hidden(x, torch.ones(0, 3).bool()).count_nonzero() == 0  # no query at all


def test_zeroing_asks_all_heads_that_share_a_key() -> None:
    query, x = torch.randn(2, 6, 3, 4), torch.randn(2, 3, 5, 4)
    allowed = torch.rand(2, 6, 3, 5) < 0.4
    allowed[:, 2:4, :, 1] = False  # both heads that read key head 1
    allowed[:, 2, :, 2], allowed[:, 3, 0, 2] = False, True
    kept = masks.zero_hidden(x, allowed)
    assert not kept[:, 1, 1].any()
    torch.testing.assert_close(kept[:, 1, 2], x[:, 1, 2])
    for key in (x, kept):
        context = attend(query, key, x, allowed=allowed).context
        torch.testing.assert_close(context, attend(query, x, x, allowed=allowed).context)


def test_zeroing_refuses_a_mask_for_other_keys_or_heads() -> None:
    for shape in [(2, 4), (3, 2, 3), (7, 2, 2, 3)]:
        text = f"allowed has shape {shape} and x (2, 3, 4); allowed must broadcast to (2, 'queries', 3)"
        with pytest.raises(ValueError, match=re.escape(text)):
            masks.zero_hidden(torch.randn(2, 3, 4), torch.ones(shape).bool())


IDS = torch.tensor([[4, 4, 4, 2, 2, 4, 4, 9], [0, 1, 1, 1, 1, 1, 1, 1]])
LENGTHS = [[3, 2, 2, 1], [1, 7]]


def test_tokens_see_their_own_document_and_an_id_that_comes_back_is_another_one() -> None:
    allowed = masks.documents(IDS)
    assert allowed.shape == (2, 1, 8, 8)
    for item, lengths in enumerate(LENGTHS):
        blocks = torch.block_diag(*[torch.ones(n, n) for n in lengths]).bool()
        assert torch.equal(allowed[item, 0], blocks)
        assert torch.equal(masks.documents(IDS[item]), blocks)
    assert masks.documents(torch.zeros(0, dtype=torch.int64)).shape == (0, 0)
    assert masks.documents(torch.zeros(2, 0, dtype=torch.int64)).shape == (2, 1, 0, 0)


@pytest.mark.parametrize("implementation", ["eager", "fused"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_packed_documents_get_what_each_gets_alone(is_causal: bool, implementation: str) -> None:
    x = torch.randn(2, 3, 8, 4, dtype=torch.float64)  # batch heads tokens head_dim
    packed = self_attention(
        x, allowed=masks.documents(IDS), is_causal=is_causal, need_weights=False, implementation=implementation
    ).context
    for item, lengths in enumerate(LENGTHS):
        for one, both in zip(x[item].split(lengths, 1), packed[item].split(lengths, 1), strict=True):
            torch.testing.assert_close(both, self_attention(one, is_causal=is_causal).context)


def test_transformers_keeps_packed_documents_apart_only_without_a_cache_and_without_a_mask() -> None:
    model = tiny("LlamaForCausalLM", num_key_value_heads=2)
    lengths, ids = [3, 4, 2], torch.randint(VOCABULARY, (1, 9))
    anew = torch.cat([torch.arange(length) for length in lengths])[None]
    ones = torch.ones_like(ids)
    with torch.no_grad():
        alone = torch.cat([model(part).logits for part in ids.split(lengths, dim=1)], dim=1)
        off = [
            (model(ids, position_ids=anew, **options).logits - alone).abs().max().item()
            for options in (
                {"use_cache": False},
                {},
                {"attention_mask": ones},
                {"attention_mask": ones, "use_cache": False},
            )
        ]
    assert off[0] < 1e-5
    assert min(off[1:]) > 0.1


def test_cumulative_lengths_are_those_of_flash_attention_and_of_jagged_tensors() -> None:
    from transformers.modeling_flash_attention_utils import prepare_fa_kwargs_from_position_ids

    ends = masks.cu_seqlens(IDS)
    assert ends.dtype == torch.int32
    assert ends.tolist() == [0, 3, 5, 7, 8, 9, 16]
    assert masks.cu_seqlens(IDS[0]).tolist() == [0, 3, 5, 7, 8]
    ids = masks.ids_from_cu_seqlens(ends)
    positions = torch.arange(16) - ends[ids]
    assert positions.tolist() == [0, 1, 2, 0, 1, 0, 1, 0, 0, 0, 1, 2, 3, 4, 5, 6]
    (theirs, _), (longest, _) = prepare_fa_kwargs_from_position_ids(positions[None])
    assert torch.equal(ends, theirs)
    assert theirs.dtype == ends.dtype
    assert int(ends.diff().max()) == longest == 7
    jagged = torch.nested.nested_tensor_from_jagged(torch.arange(16.0), ends)
    assert [len(each) for each in jagged.unbind()] == LENGTHS[0] + LENGTHS[1]
    assert masks.cu_seqlens(torch.zeros(0, dtype=torch.int64)).tolist() == [0]


def test_cumulative_lengths_and_ids_lead_to_one_another() -> None:
    ends = masks.cu_seqlens(IDS)
    ids = masks.ids_from_cu_seqlens(ends)
    assert ids.tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 4, 5, 5, 5, 5, 5, 5, 5]
    assert torch.equal(masks.cu_seqlens(ids), ends)
    one_row = torch.block_diag(*masks.documents(IDS)[:, 0].int()).bool()
    assert torch.equal(masks.documents(ids), one_row)
    with_an_empty_one = masks.ids_from_cu_seqlens(torch.tensor([0, 2, 2, 3], dtype=torch.int32))
    assert with_an_empty_one.tolist() == [0, 0, 2]
    assert masks.ids_from_cu_seqlens(torch.tensor([0])).tolist() == []


@pytest.mark.cuda
def test_the_kernel_for_varying_lengths_takes_the_cumulative_lengths() -> None:
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = torch.randn(3, 2, 8, 4, 16, device="cuda", dtype=torch.bfloat16)  # batch tokens heads head_dim
    ends, ids = masks.cu_seqlens(IDS.cuda()), IDS.cuda()
    longest = int(ends.diff().max())
    q, k, v = (x.flatten(0, 1) for x in (query, key, value))  # tokens heads head_dim
    windows: dict[tuple[int, int], Tensor | None] = {
        (-1, -1): None,
        (-1, 0): masks.causal(8),
        (2, 0): masks.sliding_window(8, window=3),
    }
    for window, mask in windows.items():
        actual = varlen_attn(q, k, v, ends, ends, longest, longest, window_size=window)
        allowed = masks.combine(masks.documents(ids), None if mask is None else mask.cuda())
        expected = attend(
            query.transpose(1, 2).float(), key.transpose(1, 2).float(), value.transpose(1, 2).float(), allowed=allowed
        ).context
        torch.testing.assert_close(actual.float().view_as(query), expected.transpose(1, 2), atol=2e-2, rtol=0)
        if window == (-1, 0):  # nested tensors are made of the same numbers, and their kernel is causal
            nested = [torch.nested.nested_tensor_from_jagged(each, ends).transpose(1, 2) for each in (q, k, v)]
            by_nested = torch.nn.functional.scaled_dot_product_attention(*nested, is_causal=True)
            torch.testing.assert_close(by_nested.transpose(1, 2).values().view_as(actual), actual, atol=2e-2, rtol=0)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    "allowed",
    [
        masks.causal(3, 5),
        masks.sliding_window(5, window=2),
        masks.padding(torch.tensor([3, 5])),
        masks.documents(IDS),
        torch.rand(4, 3, 5, generator=torch.Generator().manual_seed(0)) < 0.5,
    ],
)
def test_flex_attention_makes_the_mask_again_and_attends_by_it(allowed: Tensor) -> None:
    from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention

    queries = 8 if allowed.size(-2) == 1 else allowed.size(-2)
    sizes = (2, 4, queries, allowed.size(-1))
    by_flex = create_mask(masks.mask_mod(allowed), *sizes, device="cpu")
    assert torch.equal(by_flex, allowed.expand(sizes))
    query, key, value = (torch.randn(2, 4, n, 16) for n in (sizes[2], sizes[3], sizes[3]))
    blocks = create_block_mask(masks.mask_mod(allowed), *sizes, device="cpu")
    torch.testing.assert_close(
        flex_attention(query, key, value, block_mask=blocks),
        attend(query, key, value, allowed=allowed).context,
    )


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_refuses_a_block_mask_of_another_length_by_an_error_that_depends_on_the_version() -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    x = torch.randn(1, 1, 9, 4)
    blocks = create_block_mask(masks.mask_mod(masks.causal(9)), None, None, 9, 9, device="cpu")
    error = RuntimeError if torch.__version__ >= (2, 14) else ValueError
    with pytest.raises(error, match=r"^block_mask was created for"):
        flex_attention(x[:, :, -1:], x, x, block_mask=blocks)


NO_CUMULATIVE = "cumulative lengths begin with 0 and never fall: of lengths, make them by torch.nn.functional.pad("
FLEX_AXES = "it must be (queries, keys), (heads, queries, keys) or (batch, heads, queries, keys)"
test_what_names_no_documents_or_is_no_mask_for_flex_attention_is_refused = refused(
    {
        TypeError: {
            f"ids is {ids.dtype}; pass integers, such as torch.tensor([0, 0, 1]) holds": (
                lambda ids=ids: masks.documents(ids),
                lambda ids=ids: masks.cu_seqlens(ids),
            )
            for ids in (torch.tensor([0.0, 1.0]), torch.tensor([True]))
        }
        | {
            "cu_seqlens is torch.float32; pass integers, such as torch.tensor([0, 0, 1]) holds": lambda: (
                masks.ids_from_cu_seqlens(torch.tensor([0.0, 1.0]))
            )
        },
        ValueError: {
            "ids has shape (); it must be (..., tokens)": (
                lambda: masks.documents(torch.tensor(3)),
                lambda: masks.cu_seqlens(torch.tensor(3)),
            )
        }
        | {
            f"cu_seqlens are {ends}; {NO_CUMULATIVE}lengths.cumsum(0), (1, 0))": lambda ends=ends: (
                masks.ids_from_cu_seqlens(torch.tensor(ends))
            )
            for ends in ([3, 2, 2], [0, 3, 2])
        }
        | {
            f"allowed has shape {shape}; FlexAttention asks by batch, head, query and key: {FLEX_AXES}": (
                lambda shape=shape: masks.mask_mod(torch.ones(shape).bool())
            )
            for shape in ((3,), (1, 1, 1, 2, 3))
        },
    }
)
