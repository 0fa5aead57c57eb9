"""Attention as functions: scores, weights, context, and the two implementations of their composition.

Queries, keys and values have (tokens, features) for their last two axes; axes before them are batch axes, the last of
which is the heads where there are heads. Masks are named by what True means: ``allowed``.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unmasked import masks
from unmasked._arguments import _check, _check_masks, _refuse_kinds
from unmasked._checks import broadcasts, checked, choice, flag, number, require_axes, tensor
from unmasked._fused import fused, fused_with_sinks, kernels_may_run
from unmasked._private import dispatch_modes, is_transformed, tracing_state
from unmasked._shapes import Bool, Float

__all__ = [
    "Attention",
    "attend",
    "attention_scores",
    "attention_weights",
    "cosine_attention",
    "cosine_weights",
    "self_attention",
]


class Attention(NamedTuple):
    r"""What attention returns: the context, and the weights that made it.

    Equation:
        $o_i = \sum_{j=1}^{n} a_{ij} \, x_j, \qquad a_{ij} = \frac{e^{s_{ij}}}{\sum_{l=1}^{n} e^{s_{il}}}$ (1.2)

    Attributes:
        context: (..., queries, value_dim), the weighted averages of the values.
        weights: (..., queries, keys), or None where they were not asked for.
    """

    context: Tensor
    weights: Tensor | None


@checked
def attention_scores(
    query: Float[Tensor, "*batch queries head_dim"],
    key: Float[Tensor, "*#batch keys head_dim"],
    *,
    scale: float | None = None,
    softcap: float | None = None,
) -> Float[Tensor, "*batch queries keys"]:
    r"""Compare every query with every key: scaled dot products, before the softmax.

    Equation:
        $s_{ij} = \frac{x_i \cdot x_j}{\sqrt{d}}$ (1.1)

    Equation:
        $z_{ij} = c \tanh(s_{ij} / c)$ (28.2)

    The scale is applied to the query, before the product, where it keeps large inputs finite.

    Args:
        query: (..., queries, head_dim).
        key: (..., keys, head_dim), with the query's leading axes.
        scale: the factor of the dot products; 1 / sqrt(head_dim) by default.
        softcap: c > 0 bounds the scores smoothly: c * tanh(scores / c).

    Returns:
        The scores, (..., queries, keys), in float32 or wider (under autocast, in its dtype).

    References:
        Vaswani et al. (2017), Attention Is All You Need, section 3.2.1, equation 1. Soft-cap: Gemma Team (2024),
        Gemma 2, section 2.

    Examples:
        >>> x = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 1.5, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0]])
        >>> attention_scores(x, x)
        tensor([[1.0000, 0.5000, 0.5000],
                [0.5000, 2.1250, 1.7500],
                [0.5000, 1.7500, 1.5000]])
    """
    if query.dtype != key.dtype or query.device != key.device:
        _refuse_kinds(query=query, key=key)
    if not broadcasts(key.shape[:-2], query.shape[:-2]):
        raise ValueError(f"key has shape {tuple(key.shape)} and query {tuple(query.shape)}; leading axes must agree")
    softcap = _softcap(softcap)
    dtype = torch.promote_types(query.dtype, torch.float32)
    scores = (query.to(dtype) * _scale(query, scale)) @ key.to(dtype).mT  # ... queries keys
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def attention_weights(
    scores: Float[Tensor, "*batch queries keys"],
    *,
    allowed: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    is_causal: bool = False,
    sinks: Float[Tensor, "*heads"] | None = None,
) -> Float[Tensor, "*batch queries keys"]:
    r"""Turn scores into weights: add the bias, shut out the keys that are not allowed, softmax over the keys.

    Equation:
        $\operatorname{softmax}(s)_j = \frac{e^{s_j}}{\sum_{l=1}^{n} e^{s_l}}$ (2.3)

    Equation:
        $a_{ij} = \frac{m_{ij} \, e^{s_{ij}}}{\sum_l m_{il} \, e^{s_{il}}}$ (5.1)

    Equation:
        $A = \operatorname{softmax}(S + B)$ (5.2)

    Equation:
        $a_{hij} = \frac{e^{s_{hij}}}{e^{b_h} + \sum_{l=1}^{n} e^{s_{hil}}}$ (28.1)

    Every row sums to 1, but for a row that may see nothing: its weights, and every gradient through it, are 0. With a
    sink, rows sum to less: one more score joins the softmax, and its share goes to no key.

    Args:
        scores: (..., queries, keys).
        allowed: bool, broadcastable to the scores; True where a query may see a key.
        bias: floating, broadcastable to the scores, added to them; -inf shuts a key out.
        is_causal: a query sees no later key; the last query is aligned with the last key.
        sinks: (heads,), or a number for all: the score of each head's sink, as it is, neither scaled nor masked.

    Returns:
        The weights, with the scores' shape and dtype; the sink's are left out.

    Raises:
        TypeError: sinks is not floating.
        ValueError: scores has fewer than two axes, or the number of sinks is another than that of the heads.

    References:
        Vaswani et al. (2017), section 3.2.3: masking sets scores to -inf before the softmax. A row that sees nothing:
        ONNX, operator Attention. A sink in the denominator: Xiao et al. (2024), section 3.3.

    Examples:
        >>> attention_weights(torch.zeros(2, 2), allowed=torch.tensor([[True, False], [False, False]]))
        tensor([[1., 0.],
                [0., 0.]])
        >>> attention_weights(torch.zeros(1, 3), sinks=torch.tensor(0.0))
        tensor([[0.2500, 0.2500, 0.2500]])
    """
    tensor("scores", scores, "Float")
    require_axes("scores", scores, "queries", "keys")
    flag("is_causal", is_causal)
    if allowed is not None or bias is not None or sinks is not None:
        _check_masks(allowed, bias, sinks, scores, tuple(scores.shape))
    mask, blind, _ = _mask(scores, scores.size(-1), allowed, bias, is_causal)
    return _weights(scores, mask, blind, sinks)


def attend(
    query: Float[Tensor, "*batch queries head_dim"],
    key: Float[Tensor, "*kv_batch keys head_dim"],
    value: Float[Tensor, "*kv_batch keys value_dim"],
    *,
    allowed: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "*heads"] | None = None,
    dropout_p: float = 0.0,
    need_weights: bool = False,
    implementation: Literal["fused", "eager"] | None = None,
) -> Attention:
    r"""Average the values by how well each query matches their keys.

    Equation:
        $\operatorname{Attention}(Q, K, V) = \operatorname{softmax}\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V$
        (1.3, 8.1)

    Two implementations keep one contract. ``"eager"`` is the readable one: it makes the (queries, keys) matrices, and
    so it can return the weights and soft-cap the scores. ``"fused"`` hands the work to
    `torch.nn.functional.scaled_dot_product_attention`, in the form that its fused kernels take: they hold a tile of
    those matrices at a time. A query that may see no key gets a context of zeros, and zero gradients, from both.

    PyTorch leaves the fused kernel without a word for one that holds the matrices of all heads: on a CPU where
    ``dropout_p`` is above 0, and where the bias requires grad, even in inference (pass ``bias.detach()``). A mask
    that differs from query to query is a matrix itself; ``is_causal=True`` alone needs none. A GPU's kernels have
    limits of their own: `unmasked.kernels` says which can run.

    What is hidden must be finite all the same, and so must its scores. Its weight is 0, and 0 times NaN or inf is NaN:
    one such number in a key or a value can reach every query, here as in PyTorch, whose kernels may also make zeros of
    a query that is NaN. A score that overflows is inf, and inf minus inf is NaN. `unmasked.masks.zero_hidden` clears
    the keys and values that no query may see, and says how to check.

    Args:
        query: (..., heads, queries, head_dim), floating; the heads axis may be left out.
        key: (..., kv_heads, keys, head_dim). kv_heads may be fewer than heads and must divide them: query head h then
            reads key head h // (heads / kv_heads). With three axes, (heads, keys, head_dim), the first is the heads.
        value: (..., kv_heads, keys, value_dim).
        allowed: bool, broadcastable to (..., heads, queries, keys); True where a query may see a key.
        bias: floating, broadcastable likewise, added to the scores after the soft-cap, in the query's dtype; -inf shuts
            a key out.
        is_causal: a query sees no later key. The last query is aligned with the last key, so that it is right with a
            key/value cache. Combines with ``allowed``: what either shuts out is shut out. On a CPU a mask that hides
            the future and nothing else is recognized, and runs as this option. To compare it costs a few passes over
            (queries, keys): little beside many heads, but more than the attention itself with one narrow head.
        scale: the factor of the dot products; 1 / sqrt(head_dim) by default.
        softcap: c > 0 bounds the scores to (-c, c), before any mask: c * tanh(scores / c). Eager only.
        sinks: (heads,), floating, or a number for all heads: one more score in each softmax, that no mask hides and
            that belongs to no key, so that weights may sum to less than 1. Fused, it is one more key in a copy of them,
            has no second derivative (for which pass implementation="eager"), and takes nothing where it is NaN.
        dropout_p: probability in [0, 1] with which a weight is dropped. It is always applied: pass 0 when evaluating.
        need_weights: return the weights too, as they are after dropout. Eager only.
        implementation: "eager", "fused", or None for "fused" unless ``need_weights`` or ``softcap`` ask for "eager", or
            there are sinks and PyTorch may take no fused kernel, as within ``sdpa_kernel(SDPBackend.MATH)``.

    Returns:
        Attention(context, weights): (..., heads, queries, value_dim) and (..., heads, queries, keys) or None, in the
        query's dtype.

    Raises:
        TypeError: a dtype does not fit.
        ValueError: a shape does not fit, an option is out of range, or "fused" is asked for an option that it lacks.

    References:
        Vaswani et al. (2017), section 3.2.1, equation 1. Grouped heads: Ainslie et al. (2023), GQA, section 2.2.
        Order of soft-cap and masks, rows that see nothing, and the alignment where a cache is declared: ONNX, operator
        Attention; without a cache that operator, like PyTorch, aligns the first query with the first key.

    Examples:
        >>> query, key, value = torch.randn(2, 6, 4, 5), torch.randn(2, 3, 7, 5), torch.randn(2, 3, 7, 5)
        >>> context, weights = attend(query, key, value, is_causal=True, need_weights=True)
        >>> context.shape, weights.shape
        (torch.Size([2, 6, 4, 5]), torch.Size([2, 6, 4, 7]))
        >>> fused = attend(query, key, value, is_causal=True, implementation="fused")
        >>> torch.allclose(fused.context, context, atol=1e-6)
        True
        >>> sinks = torch.full((6,), 50.0)  # which take nearly everything
        >>> sunk = attend(query, key, value, sinks=sinks)
        >>> bool(sunk.context.abs().max() < 1e-6)
        True
    """
    _check(query, key, value, allowed=allowed, bias=bias, sinks=sinks)
    flag("is_causal", is_causal)
    flag("need_weights", need_weights)
    if implementation is not None:
        choice("implementation", implementation, "fused", "eager", None)
    return _attend(
        query,
        key,
        value,
        allowed=allowed,
        bias=bias,
        is_causal=is_causal,
        scale=_scale(query, scale),
        softcap=_softcap(softcap),
        sinks=sinks,
        dropout_p=_probability(dropout_p),
        need_weights=need_weights,
        implementation=implementation,
    )


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    allowed: Tensor | None = None,
    bias: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout_p: float = 0.0,
    need_weights: bool = False,
    implementation: str | None = None,
) -> Attention:
    """Do what `attend` says, for tensors and options that are checked."""
    scale = _scale(query, None) if scale is None else scale
    bias = None if bias is None else bias.to(query.dtype)  # both implementations add the same numbers
    only_eager = need_weights or softcap is not None
    if implementation is None:
        is_fused = not only_eager and (sinks is None or kernels_may_run())
    else:
        is_fused = implementation == "fused"
    if is_fused and only_eager:
        asked = "need_weights=True" if need_weights else f"softcap={softcap}"
        raise ValueError(f'{asked} needs implementation="eager": no fused kernel does it')
    kernel_scale = scale if is_fused else None
    mask, blind, by_kernel = _mask(query, key.size(-2), allowed, bias, is_causal, kernel_scale=kernel_scale)
    if is_fused:
        if sinks is None:
            context = fused(query, key, value, mask, by_kernel, scale, dropout_p)
        else:
            context = fused_with_sinks(query, key, value, mask, by_kernel, scale, dropout_p, sinks)
        return Attention(context if blind is None else context.masked_fill(blind, 0.0), None)
    key, value = _shared(key, query), _shared(value, query)
    scores = attention_scores(query, key, scale=scale, softcap=softcap)
    # The scores are nobody else's, so that a mask is added in place, unless tanh keeps them for its derivative.
    weights = _weights(scores, mask, blind, sinks, in_place=softcap is None).to(query.dtype)
    if dropout_p > 0:
        weights = F.dropout(weights, dropout_p)
    return Attention(weights @ value, weights if need_weights else None)


def self_attention(
    x: Float[Tensor, "*batch tokens dim"],
    *,
    allowed: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "*heads"] | None = None,
    dropout_p: float = 0.0,
    need_weights: bool = True,
    implementation: Literal["fused", "eager"] | None = None,
) -> Attention:
    r"""Let the tokens of a sequence attend to one another: query, key and value at once, without weights to learn.

    Equation:
        $\operatorname{SelfAttention}(X) = \operatorname{softmax}\left(\frac{X X^\top}{\sqrt{d}}\right) X$ (3.1)

    The options are those of `attend`; the weights are returned unless ``need_weights=False``.

    Args:
        x: (tokens, dim) for one sequence, (..., tokens, dim) for batches.
        allowed: bool, broadcastable to (..., tokens, tokens); True where a token may see another.
        bias: floating, broadcastable likewise, added to the scores.
        is_causal: no token sees a later one.
        scale: the factor of the dot products; 1 / sqrt(dim) by default.
        softcap: c > 0 bounds the scores to (-c, c).
        sinks: (heads,), or a number: one more score in each softmax, that belongs to no token.
        dropout_p: probability with which a weight is dropped.
        need_weights: return the weights too.
        implementation: "eager", "fused" or None, as there.

    Returns:
        Attention(context, weights): (..., tokens, dim) and (..., tokens, tokens).

    References:
        Vaswani et al. (2017), section 3.2.1, equation 1, with Q = K = V = X.

    Examples:
        >>> x = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 1.5, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0]])
        >>> context, weights = self_attention(x)
        >>> context
        tensor([[0.4519, 0.6852, 0.5481, 1.0000],
                [0.1045, 1.1609, 0.8955, 1.0000],
                [0.1387, 1.1034, 0.8613, 1.0000]])
        >>> weights
        tensor([[0.4519, 0.2741, 0.2741],
                [0.1045, 0.5307, 0.3648],
                [0.1387, 0.4842, 0.3771]])
    """
    tensor("x", x, "Float")
    require_axes("x", x, "tokens", "dim")
    return attend(
        x,
        x,
        x,
        allowed=allowed,
        bias=bias,
        is_causal=is_causal,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        dropout_p=dropout_p,
        need_weights=need_weights,
        implementation=implementation,
    )


@checked
def cosine_weights(x: Float[Tensor, "*batch tokens dim"]) -> Float[Tensor, "*batch tokens tokens"]:
    r"""Measure how alike the tokens are, by the cosine of the angle between each two.

    Equation:
        $c_{ij} = \frac{x_i \cdot x_j}{\lVert x_i \rVert \, \lVert x_j \rVert}$ (2.7)

    Cosines lie in [-1, 1], however long or short a vector is, and their rows do not sum to 1. A token of zeros has
    cosine 0 with every token, and no gradient.

    Args:
        x: (..., tokens, dim).

    Returns:
        The cosines, (..., tokens, tokens).

    Examples:
        >>> cosine_weights(torch.tensor([[3.0, 4.0], [4.0, 3.0], [-3.0, -4.0], [0.0, 0.0]]))
        tensor([[ 1.0000,  0.9600, -1.0000,  0.0000],
                [ 0.9600,  1.0000, -0.9600,  0.0000],
                [-1.0000, -0.9600,  1.0000,  0.0000],
                [ 0.0000,  0.0000,  0.0000,  0.0000]])
    """
    unit = _unit(x)
    cosines = unit @ unit.mT
    return cosines + (cosines.clamp(-1, 1) - cosines).detach()  # rounding may exceed 1, and so acos would be NaN


@checked
def cosine_attention(x: Float[Tensor, "*batch tokens dim"]) -> Attention:
    r"""Sum the tokens weighted by their cosines: attention's forerunner, without a softmax.

    Equation:
        $y_i = \sum_{j=1}^{n} c_{ij} \, x_j$ (2.8)

    Arguments as for `cosine_weights`.

    Returns:
        Attention(context, weights): (..., tokens, dim) and the cosines, (..., tokens, tokens).

    Examples:
        >>> cosine_attention(torch.tensor([[3.0, 4.0], [4.0, 3.0]])).context
        tensor([[6.8400, 6.8800],
                [6.8800, 6.8400]])
    """
    weights = cosine_weights(x)
    return Attention(weights @ x, weights)


def _unit(x: Tensor) -> Tensor:
    """Vectors of length one, and zeros of zeros, whose squares may leave the range of numbers."""
    largest = F.pad(x.detach().abs(), (0, 1)).amax(-1, keepdim=True)  # detached: a length changes no direction
    return F.normalize(x / largest.masked_fill(largest == 0, math.inf), dim=-1, eps=0.5)


def _scale(query: Tensor, scale: float | None) -> float:
    # A dot product over no features is 0 whatever its scale: head_dim 0 must not divide by zero.
    return max(query.size(-1), 1) ** -0.5 if scale is None else number("scale", scale)


def _softcap(softcap: float | None) -> float | None:
    return None if softcap is None else number("softcap", softcap, "be positive (None for no cap)", above=0)


def _probability(dropout_p: float) -> float:
    return number("dropout_p", dropout_p, "be a probability in [0, 1]", least=0, most=1)


def _shared(x: Tensor, query: Tensor) -> Tensor:
    """Give every query head its key head, where several share one."""
    if x.dim() > 2 and x.size(-3) != query.size(-3):
        return x.repeat_interleave(query.size(-3) // x.size(-3), dim=-3)
    return x


def _weights(
    scores: Tensor, mask: Tensor | None, blind: Tensor | None, sinks: Tensor | None, *, in_place: bool = False
) -> Tensor:
    if mask is not None:
        # Under vmap over the mask alone, scores cannot be written in place. A compiler does so anyway.
        in_place = in_place and not torch.compiler.is_compiling()
        in_place = in_place and not is_transformed(mask)
        scores = scores.add_(mask) if in_place else scores + mask
    if sinks is None:
        weights = scores.softmax(-1)
    else:
        last = sinks.to(scores.dtype)[..., None, None].expand(*scores.shape[:-1], 1)  # ... queries 1
        weights = torch.cat([scores, last], -1).softmax(-1)[..., :-1]
    return weights if blind is None else weights.masked_fill(blind, 0.0)


class _Mask(NamedTuple):
    """All that shuts keys out, as it joins the scores; nothing does where all is left out."""

    added: Tensor | None = None  # to the scores
    blind: Tensor | None = None  # the rows that see nothing, (..., queries, 1); None where there is none
    by_kernel: bool = False  # the future is hidden, and nothing else: the kernel's own option


_NO_MASK, _BY_KERNEL = _Mask(), _Mask(by_kernel=True)


def _mask(
    x: Tensor,
    keys: int,
    allowed: Tensor | None,
    bias: Tensor | None,
    is_causal: bool,
    *,
    kernel_scale: float | None = None,
) -> _Mask:
    """Merge ``allowed``, ``bias`` and ``is_causal`` into one additive mask, or say that the kernel can hide the future.

    A softmax over -inf alone is NaN, forward and backward, or a number of the kernel's own. So rows that see nothing
    see everything in the mask, and are to be zeroed afterwards.

    The values of masks are looked at to save time, and change no result: a kernel hides the future for half of what a
    mask costs, and most masks have no row to be zeroed. `_can_be_read` says where Python may look: where no device is
    waited for, and where the decision is not lost to a trace, to vmap or to a derivative.
    """
    queries = x.size(-2)
    if allowed is None and bias is None and (not is_causal or queries == 1):  # one query is the newest token
        return _NO_MASK
    can_be_blind = allowed is not None or queries > keys  # causal alone leaves each query its own key
    if kernel_scale is not None and (allowed is None or bias is None):
        mask = allowed if bias is None else bias
        is_future = is_causal if mask is None else _can_be_read(mask) and _hides_the_future(mask, queries, keys)
        # In a branch: compiled for any size, sizes are symbols, and the kernel takes no symbolic truth. Unless the
        # scale is positive, the kernel's own future is NaN.
        if is_future and queries == keys and kernel_scale > 0:
            return _BY_KERNEL
    if is_causal and queries != 1:
        allowed = masks.combine(allowed, masks.causal(queries, keys, device=x.device))
    added, blind = bias, None
    if bias is not None:
        added = bias.to(x.dtype) if allowed is None else torch.where(allowed, bias.to(x.dtype), -math.inf)
        blind = (added == -math.inf).all(-1, keepdim=True)
    elif allowed is not None and can_be_blind:
        blind = ~allowed.any(-1, keepdim=True)
    if blind is not None and _can_be_read(blind) and not blind.any():
        blind = None
    if added is not None:
        added = added if blind is None else added.masked_fill(blind, 0.0)
    elif allowed is not None:
        added = masks.additive_from_allowed(allowed if blind is None else allowed | blind, x.dtype)
    return _Mask(added, blind)


def _hides_the_future(mask: Tensor, queries: int, keys: int) -> bool:
    """Whether a mask, of either kind, hides the future and nothing else."""
    if queries != keys or keys < 2 or mask.numel() != queries * keys or mask.shape[-2:] != (queries, keys):
        return False
    mask, is_bias = mask.reshape(queries, keys), mask.dtype != torch.bool
    if mask[0, -1].item() != (-math.inf if is_bias else False):  # of nearly every other mask
        return False
    causal = masks.causal(queries, device=mask.device)
    return torch.equal(mask, masks.additive_from_allowed(causal, mask.dtype) if is_bias else causal)


def _can_be_read(x: Tensor) -> bool:
    """Whether Python may look at values: not in a trace, under vmap, or where a device would have to be waited for.

    A tensor with a derivative is no constant: a decision on its values would be lost to its gradient or tangent.
    """
    return (
        not torch.compiler.is_compiling()
        and tracing_state() is None
        and type(x) in (Tensor, torch.nn.Parameter)
        and x.device.type == "cpu"
        and dispatch_modes() == 0
        and not x.requires_grad
        and not is_transformed(x)
        and torch.autograd.forward_ad.unpack_dual(x).tangent is None  # which vmap could not be asked
    )
