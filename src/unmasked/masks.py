"""Who may see whom. Every mask here is ``allowed``: True where a query may see a key.

PyTorch has three conventions, and a mask of the wrong one is silently inverted or added:

| convention | a True, or a value | used by |
| --- | --- | --- |
| allowed | True = may see | this package; attn_mask of scaled_dot_product_attention |
| blocked | True = may not see | attn_mask and key_padding_mask of nn.MultiheadAttention and nn.Transformer* |
| additive | 0 = may see, -inf = may not | floating masks of both |

Any other value of a floating mask is added to the score. One interface does otherwise: on its fast path (in evaluation,
without gradients, with batch_first=True, biases, relu or gelu, and an even number of heads) nn.TransformerEncoderLayer
takes every value that is not 0 for -inf.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from unmasked._checks import broadcasts, checked, floats, require_positive, require_values
from unmasked._shapes import Bool, Float, Int

__all__ = [
    "additive_from_allowed",
    "allowed_from_additive",
    "allowed_from_blocked",
    "blocked_from_allowed",
    "causal",
    "combine",
    "cu_seqlens",
    "documents",
    "ids_from_cu_seqlens",
    "mask_mod",
    "padding",
    "positions_of",
    "sliding_window",
    "tree",
    "zero_hidden",
]


@checked
def causal(
    queries: int, keys: int | None = None, *, device: torch.device | str | None = None
) -> Bool[Tensor, "queries keys"]:
    """Allow each query the keys up to its own position; the last query is aligned with the last key.

    With fewer queries than keys the queries are the newest tokens, as when decoding with a cache. With more, the
    earliest queries see nothing.

    Args:
        queries: number of queries.
        keys: number of keys; as many as queries by default.
        device: where the mask is made.

    Returns:
        bool, (queries, keys).

    References:
        Vaswani et al. (2017), section 3.2.3. Alignment at the end: ONNX, operator Attention, where a cache is declared.
        Without one it aligns the first query with the first key, and so does PyTorch's is_causal.

    Examples:
        >>> causal(2, 4).int()
        tensor([[1, 1, 1, 0],
                [1, 1, 1, 1]], dtype=torch.int32)
    """
    keys = queries if keys is None else keys
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


@checked
def sliding_window(
    queries: int, keys: int | None = None, *, window: int, device: torch.device | str | None = None
) -> Bool[Tensor, "queries keys"]:
    """Allow each query its own position and as many before it as make up the window.

    Arguments as for `causal`, and ``window``, the number of keys that a query may see, itself included.

    Raises:
        ValueError: window is less than 1.

    References:
        Beltagy et al. (2020), Longformer, section 3.1. Jiang et al. (2023), Mistral 7B, section 2: their figure counts
        as this function does; in their text W is the number of keys before the query's own, and its window W + 1 here.

    Examples:
        >>> sliding_window(4, window=2).int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [0, 1, 1, 0],
                [0, 0, 1, 1]], dtype=torch.int32)
    """
    if window < 1:
        raise ValueError(f"window is {window}; a query sees at least itself: window must be 1 or more")
    visible = causal(queries, keys, device=device)
    return visible & visible.triu(visible.size(1) - queries - window + 1)


@checked
def padding(
    lengths: Int[Tensor, "batch"], keys: int | None = None, *, side: Literal["left", "right"] = "right"
) -> Bool[Tensor, "batch 1 1 keys"]:
    """Allow the ``lengths[b]`` real keys of sequence b, and none of the padding after them, or before them.

    Args:
        lengths: integers, (batch,): how many tokens of each sequence are real.
        keys: the padded length; the longest sequence's by default.
        side: where the padding is. On the left, the last token of each sequence is real, and a model can write on from
            there; positions are then those of `positions_of`.

    Returns:
        bool, (batch, 1, 1, keys), which broadcasts over heads and queries.

    Raises:
        TypeError: lengths is no tensor of integers with one axis.
        ValueError: a length is negative or larger than keys, or side is neither "left" nor "right".

    Examples:
        >>> padding(torch.tensor([3, 1]))[:, 0, 0].int()
        tensor([[1, 1, 1],
                [1, 0, 0]], dtype=torch.int32)
        >>> padding(torch.tensor([3, 1]), side="left")[:, 0, 0].int()
        tensor([[1, 1, 1],
                [0, 0, 1]], dtype=torch.int32)
    """
    require_values(lengths=lengths)
    longest = int(lengths.max()) if lengths.numel() else 0
    keys = longest if keys is None else keys
    if longest > keys or (lengths < 0).any():
        raise ValueError(f"lengths are {lengths.tolist()}; each must lie between 0 and keys ({keys})")
    place = torch.arange(keys, device=lengths.device)
    real = (place if side == "right" else keys - 1 - place) < lengths[:, None]
    return real[:, None, None]  # batch 1 1 keys


@checked
def positions_of(allowed: Bool[Tensor, "batch *heads_queries keys"]) -> Int[Tensor, "batch keys"]:
    """Number the real tokens of each sequence from 0, wherever its padding is.

    Counted from the start of the row, tokens behind a padding would stand elsewhere than in training, and the padding
    would change the answer. Positions that are relative, as rotary ones, bear it.

    Args:
        allowed: bool, (batch, 1, 1, keys), as `padding` makes it, or (batch, heads or 1, queries, keys): a key is real
            if any query may see it. Or (batch, keys), True for what is real, as tokenizers make it.

    Returns:
        int64, (batch, keys). Padding gets the number of the real token before it, or 0: some position that exists.

    Raises:
        ValueError: ``allowed`` has neither two nor four axes.

    Examples:
        >>> positions_of(padding(torch.tensor([4, 2]), side="left"))
        tensor([[0, 1, 2, 3],
                [0, 0, 0, 1]])
    """
    if allowed.dim() not in (2, 4):
        raise ValueError(
            f"allowed has shape {tuple(allowed.shape)}; it must be (batch, keys), True for what is real, or (batch, "
            "heads or 1, queries or 1, keys)"
        )
    real = allowed if allowed.dim() == 2 else allowed.any(1).any(1)  # batch keys
    return (real.cumsum(-1) - 1).clamp(min=0)


@checked
def combine(*allowed: Bool[Tensor, "..."] | None) -> Bool[Tensor, "..."] | None:
    """Allow the keys that every mask allows; None allows everything.

    Args:
        allowed: bool masks that broadcast to one another, or None.

    Returns:
        Their conjunction, or None where all are None.

    Examples:
        >>> combine(causal(3), None, padding(torch.tensor([2]), keys=3))[0, 0].int()
        tensor([[1, 0, 0],
                [1, 1, 0],
                [1, 1, 0]], dtype=torch.int32)
    """
    result: Tensor | None = None
    for mask in allowed:
        if mask is not None:
            try:
                result = mask if result is None else result & mask
            except RuntimeError as error:
                shapes = ", ".join(f"{tuple(each.shape)} on {each.device}" for each in allowed if each is not None)
                raise ValueError(f"allowed have shapes {shapes}; they must broadcast to one another") from error
    return result


@checked
def documents(ids: Int[Tensor, "*batch tokens"]) -> Bool[Tensor, "..."]:
    """Allow each token the tokens of its own document, where several documents are packed into one sequence.

    A document is a run of equal ids: one that comes back behind another document begins a new document. So padding
    with an id of its own is a document like any other. The future is hidden by `causal` alone:
    ``combine(documents(ids), causal(tokens))``. To number positions anew in each document isolates nothing
    by itself.

    Args:
        ids: integers, (tokens,) or (batch, tokens): the document of each token.

    Returns:
        bool, (tokens, tokens), or (batch, 1, tokens, tokens), which broadcasts over heads.

    Raises:
        TypeError: ids holds no integers.
        ValueError: ids has more than two axes.

    Examples:
        >>> documents(torch.tensor([7, 7, 9, 7])).int()
        tensor([[1, 1, 0, 0],
                [1, 1, 0, 0],
                [0, 0, 1, 0],
                [0, 0, 0, 1]], dtype=torch.int32)
    """
    runs = _starts(ids).cumsum(-1)
    allowed = runs[..., :, None] == runs[..., None, :]
    return allowed.unsqueeze(-3) if ids.dim() > 1 else allowed


@checked
def cu_seqlens(ids: Int[Tensor, "*batch tokens"]) -> Int[Tensor, "documents_and_one"]:
    """Turn the ids of packed documents into the cumulative lengths that kernels for varying lengths take.

    These kernels, `torch.nn.attention.varlen.varlen_attn` and FlashAttention's, take all tokens in one axis, without
    a batch: ``x.flatten(0, 1)``. Document i begins at the i-th number and ends before the next one. The longest, which
    they want too, has ``int(cu_seqlens(ids).diff().max())`` tokens.

    Args:
        ids: integers, (tokens,) or (batch, tokens): the document of each token, as for `documents`. Each row of a batch
            begins a new document.

    Returns:
        int32, (documents + 1,): 0, then where each document ends.

    Raises:
        TypeError: ids holds no integers.
        ValueError: ids has more than two axes.

    Examples:
        >>> cu_seqlens(torch.tensor([7, 7, 9, 7]))
        tensor([0, 2, 3, 4], dtype=torch.int32)
        >>> cu_seqlens(torch.tensor([[0, 0, 1], [1, 1, 1]]))
        tensor([0, 2, 3, 6], dtype=torch.int32)
    """
    require_values(ids=ids)
    begins = _starts(ids).flatten().nonzero().squeeze(1)
    return torch.cat([begins, begins.new_tensor([ids.numel()])]).to(torch.int32)


@checked
def ids_from_cu_seqlens(cu_seqlens: Int[Tensor, "documents_and_one"]) -> Int[Tensor, "tokens"]:
    """Number the documents of cumulative lengths: the way back from `cu_seqlens`.

    Args:
        cu_seqlens: integers, (documents + 1,): 0, then where each document ends.

    Returns:
        int64, (tokens,): the document of each token, counted from 0. An empty one has none.

    Raises:
        TypeError: cu_seqlens is no tensor of integers with one axis.
        ValueError: cu_seqlens does not begin with 0, or falls.

    Examples:
        >>> ids = ids_from_cu_seqlens(torch.tensor([0, 2, 3], dtype=torch.int32))
        >>> ids
        tensor([0, 0, 1])
        >>> begins = torch.tensor([0, 2, 3])
        >>> torch.arange(3) - begins[ids]  # positions that begin anew in each document
        tensor([0, 1, 0])
    """
    require_values(cu_seqlens=cu_seqlens)
    lengths = cu_seqlens.long().diff()
    if not len(cu_seqlens) or cu_seqlens[0] != 0 or (lengths < 0).any():
        raise ValueError(
            f"cu_seqlens are {cu_seqlens.tolist()}; cumulative lengths begin with 0 and never fall: of lengths, make "
            "them by torch.nn.functional.pad(lengths.cumsum(0), (1, 0))"
        )
    return torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)


@checked
def tree(parents: Int[Tensor, "tokens"], keys: int | None = None) -> Bool[Tensor, "tokens keys"]:
    """Allow each token of a tree its ancestors and itself, and all that was written before the tree.

    Several continuations of one text lie in one row, and share their beginning: one pass over the row gives each branch
    the result that it gets alone. A token stands behind the tokens that it sees, so its position is ``tree(parents,
    keys).sum(-1) - 1``, wherever it lies in the row.

    Args:
        parents: integers, (tokens,): for each token of the tree the place of the one that it follows, counted from the
            first of the tree, or -1 if it follows the text.
        keys: number of keys, of which the tokens of the tree are the last; these alone by default.

    Returns:
        bool, (tokens, keys), where ``parents`` lives.

    Raises:
        TypeError: parents is no tensor of integers with one axis.
        ValueError: a parent does not stand before its token, or there are fewer keys than tokens.

    References:
        Miao et al. (2024), section 4.2.

    Examples:
        >>> tree(torch.tensor([-1, 0, 0, 1]), keys=5).int()
        tensor([[1, 1, 0, 0, 0],
                [1, 1, 1, 0, 0],
                [1, 1, 0, 1, 0],
                [1, 1, 1, 0, 1]], dtype=torch.int32)
    """
    require_values(parents=parents)
    tokens = len(parents)
    keys = tokens if keys is None else keys
    if keys < tokens:
        raise ValueError(f"keys is {keys}; the {tokens} tokens of the tree are the last keys: pass at least {tokens}")
    allowed = torch.eye(tokens, keys, dtype=torch.bool, device="cpu").roll(keys - tokens, -1)
    allowed[:, : keys - tokens] = True
    for token, parent in enumerate(parents.tolist()):
        if not -1 <= parent < token:
            raise ValueError(
                f"parents[{token}] is {parent}; a token follows one that stands before it, 0 to {token - 1}, or the "
                "text, -1: sort the tokens by their depth"
            )
        if parent >= 0:
            allowed[token] |= allowed[parent]
    return allowed.to(parents.device)


@checked
def zero_hidden(
    x: Float[Tensor, "*batch keys features"], allowed: Bool[Tensor, "..."]
) -> Float[Tensor, "*batch keys features"]:
    """Set keys or values that no query may see to zero, so that a NaN or an inf among them reaches nobody.

    Their weight is 0, but 0 times NaN, and 0 times inf, is NaN. Where some queries see a key and others do not, nothing
    can be cleared: whoever must be sure there asks ``x.isfinite().all()``.

    Args:
        x: keys or values, (..., keys, features); with heads (..., heads, keys, features).
        allowed: bool, broadcastable to (..., queries, keys), or to (..., heads, queries, keys) where x has heads; True
            where a query may see a key. With more heads than x has, heads that share a key are asked together.

    Returns:
        A copy of x, in which keys that no query may see are zero; no gradient reaches it.

    Raises:
        ValueError: the axes of ``allowed`` do not fit those of x.

    Examples:
        >>> key = torch.tensor([[1.0, 2.0], [torch.nan, torch.inf]])
        >>> zero_hidden(key, torch.tensor([[True, False], [True, False]]))
        tensor([[1., 2.],
                [0., 0.]])
    """
    seen = allowed[(None,) * (2 - allowed.dim())].any(-2)  # ... keys
    if x.dim() > 2 and seen.dim() > 1 and 1 <= x.size(-3) < seen.size(-2) and seen.size(-2) % x.size(-3) == 0:
        seen = seen.unflatten(-2, (x.size(-3), -1)).any(-2)  # ... kv_heads keys
    if not broadcasts(seen.shape, x.shape[:-1]):
        raise ValueError(
            f"allowed has shape {tuple(allowed.shape)} and x {tuple(x.shape)}; allowed must broadcast to "
            f"{(*x.shape[:-2], 'queries', x.size(-2))}"
        )
    return x.masked_fill(~seen.unsqueeze(-1), 0.0)


@checked
def blocked_from_allowed(allowed: Bool[Tensor, "..."], *, num_heads: int | None = None) -> Bool[Tensor, "..."]:
    """Turn a mask into one of nn.MultiheadAttention's, in which True means *may not attend*.

    Args:
        allowed: bool, True = may see. (queries, keys) becomes an attn_mask. (batch, keys), or (batch, 1, 1, keys) as
            `padding` makes it, becomes a key_padding_mask, (batch, keys).
        num_heads: where given, ``allowed`` is (batch, heads or 1, queries, keys) and becomes an attn_mask for each
            head: (batch * num_heads, queries, keys). A mask for all queries must be expanded to them before:
            ``allowed.expand(-1, -1, queries, -1)``; padding alone is smaller as a key_padding_mask.

    Returns:
        bool, True = may not see.

    Raises:
        ValueError: ``allowed`` has four axes and differs by head or query, but num_heads is not given; or num_heads
            is given and ``allowed`` is not (batch, num_heads or 1, queries, keys).

    Examples:
        >>> blocked_from_allowed(causal(2))
        tensor([[False,  True],
                [False, False]])
        >>> blocked_from_allowed(padding(torch.tensor([3, 1])))
        tensor([[False, False, False],
                [False,  True,  True]])
    """
    shape = tuple(allowed.shape)
    if num_heads is None:
        if allowed.dim() != 4:
            return ~allowed
        if shape[1:3] != (1, 1):
            raise ValueError(
                f"allowed has shape {shape}; nn.MultiheadAttention takes four axes as three: pass num_heads"
            )
        return ~allowed[:, 0, 0]
    require_positive(num_heads=num_heads)
    if allowed.dim() != 4 or shape[1] not in (1, num_heads):
        raise ValueError(
            f"allowed has shape {shape}; with num_heads={num_heads} it must be (batch, 1 or {num_heads}, queries, keys)"
        )
    return ~allowed.expand(-1, num_heads, -1, -1).flatten(0, 1)


@checked
def allowed_from_blocked(blocked: Bool[Tensor, "..."], *, num_heads: int | None = None) -> Bool[Tensor, "..."]:
    """Turn a boolean mask of nn.MultiheadAttention, in which True means *may not attend*, into ``allowed``.

    Args:
        blocked: bool, any shape, True = may not see.
        num_heads: where given, ``blocked`` is an attn_mask for each head, (batch * num_heads, queries, keys), and
            becomes (batch, num_heads, queries, keys).

    Returns:
        bool, True = may see.

    Raises:
        ValueError: num_heads is given and ``blocked`` is not (batch * num_heads, queries, keys).

    Examples:
        >>> allowed_from_blocked(torch.tensor([False, True]))
        tensor([ True, False])
    """
    if num_heads is None:
        return ~blocked
    require_positive(num_heads=num_heads)
    if blocked.dim() != 3 or blocked.size(0) % num_heads:
        raise ValueError(
            f"blocked has shape {tuple(blocked.shape)}; with num_heads={num_heads} it must be "
            f"(batch * {num_heads}, queries, keys)"
        )
    per_head: Tensor = blocked.unflatten(0, (blocked.size(0) // num_heads, num_heads))  # batch heads queries keys
    return ~per_head


@checked
def additive_from_allowed(
    allowed: Bool[Tensor, "*shape"], dtype: torch.dtype = torch.float32
) -> Float[Tensor, "*shape"]:
    """Turn a mask into one that is added to the scores: 0 where a query may see a key, -inf where not.

    Args:
        allowed: bool, any shape, True = may see.
        dtype: floating type of the result: the scores'.

    Returns:
        The additive mask, the same shape.

    Raises:
        TypeError: dtype is not floating.

    Examples:
        >>> additive_from_allowed(causal(2))
        tensor([[0., -inf],
                [0., 0.]])
    """
    if dtype not in floats:
        raise TypeError(f"dtype is {dtype}; -inf needs a floating one: pass that of the scores")
    return torch.where(allowed, torch.zeros((), dtype=dtype, device=allowed.device), -math.inf)


@checked
def allowed_from_additive(additive: Float[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """Turn an additive mask of zeros and -inf into ``allowed``.

    Args:
        additive: floating, any shape, 0 = may see, -inf = may not.

    Returns:
        bool, the same shape, True = may see.

    Raises:
        ValueError: a value is neither 0 nor -inf. A mask of zeros and ones would only add 1 to the scores that it
            means to shut out, and -1e9 overflows float16.

    Examples:
        >>> allowed_from_additive(torch.tensor([0.0, -torch.inf]))
        tensor([ True, False])
    """
    require_values(additive=additive)
    odd = (additive != 0) & (additive != -math.inf)
    if odd.any():
        raise ValueError(
            f"additive holds {additive[odd][0].item():g}; it is added to the scores, so only 0 (may see) and -inf "
            "(may not) make a mask. Pass zeros and ones as .bool(), any other value as a bias"
        )
    return additive == 0


@checked
def mask_mod(allowed: Bool[Tensor, "..."]) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Turn a mask into the form of FlexAttention: a function of batch, head, query and key that says who may see whom.

    `torch.nn.attention.flex_attention.create_block_mask` takes it first. The way back is
    `torch.nn.attention.flex_attention.create_mask`, with the same arguments. It keeps the matrix and looks it up: where
    sequences are long, write a rule that can be computed (both have the same id) as a function, which needs no matrix.

    Args:
        allowed: bool, (queries, keys) with up to two axes before them, for batch and heads; any axis but the keys' may
            have length one, and then serves all.

    Returns:
        A function of four integer tensors, which gives a bool tensor.

    Raises:
        ValueError: allowed has fewer than two axes or more than four.

    Examples:
        >>> from torch.nn.attention.flex_attention import create_mask
        >>> create_mask(mask_mod(causal(2, 3)), 1, 1, 2, 3, device="cpu").int()
        tensor([[[[1, 1, 0],
                  [1, 1, 1]]]], dtype=torch.int32)
    """
    if not 2 <= allowed.dim() <= 4:
        raise ValueError(
            f"allowed has shape {tuple(allowed.shape)}; FlexAttention asks by batch, head, query and key: it must be "
            "(queries, keys), (heads, queries, keys) or (batch, heads, queries, keys)"
        )
    whole = allowed[(None,) * (4 - allowed.dim())]
    serves_all = [size == 1 for size in whole.shape]
    # FlexAttention counts the parameters of a function, which a wrapper, such as a checker of types, would hide.
    return lambda batch, head, query, key: whole[
        tuple(0 if all_ else at for all_, at in zip(serves_all, (batch, head, query, key), strict=True))
    ]


def _starts(ids: Tensor) -> Tensor:
    """Say which tokens begin a document; the first of each row does."""
    if ids.dim() > 2:
        raise ValueError(f"ids has shape {tuple(ids.shape)}; it must be (tokens,) or (batch, tokens)")
    return torch.cat([torch.ones_like(ids[..., :1], dtype=torch.bool), ids[..., 1:] != ids[..., :-1]], -1)
