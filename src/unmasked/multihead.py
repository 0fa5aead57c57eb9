"""A drop-in for torch.nn.MultiheadAttention that obeys its options in every mode."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from unmasked import masks
from unmasked._checks import flag, size, tensor
from unmasked._layers import refuse_script, require_floating, require_options
from unmasked._shapes import Float, Shaped
from unmasked.functional import Attention, attend
from unmasked.heads import merge_heads, split_heads

__all__ = ["MultiheadAttention"]


class MultiheadAttention(nn.MultiheadAttention):
    """Multi-head attention: several attentions side by side, each on its own projections of the tokens.

    Equation: (3.2, 8.2)

    Constructor, parameters, initialisation and state_dict are those of `torch.nn.MultiheadAttention`, by
    inheritance; the forward pass is this package's own. It gives PyTorch's results, with these deliberate differences:

    - A query that may see no key gets a context of zeros, so that the output is ``out_proj``'s bias. PyTorch gives
      that, or NaN, by need_weights, mode and mask, and on a GPU any number that its kernel makes of such a row.
    - ``is_causal=True`` masks the future, with or without attn_mask, aligned at the end of the keys. To PyTorch it is a
      hint, obeyed over the mask, ignored, or refused, by need_weights and mode.
    - ``key_padding_mask`` and ``attn_mask`` may be of different types.
    - With batch_first the output is contiguous in every mode, where PyTorch's is a transposed view while gradients are
      on: from one seed, a dropout that follows drops other entries.
    - Training and evaluation run the same code: there is no separate fast path in evaluation. A forward pre-hook that
      does nothing stops the fast path of an nn.TransformerEncoderLayer, which would bypass this module: PyTorch takes
      it for no module with a hook.
    - Nested tensors, strided and jagged, are taken in self- and cross-attention, in training too, with batch_first and
      without masks. Their weights are padded with zeros to the longest query and the longest key.
    - It is compiled and exported, but not scripted: torch.jit.script, which PyTorch no longer develops, is refused.

    ``need_weights=False`` runs the fused kernel, whose memory is linear in the number of tokens where there is no mask:
    ``is_causal=True`` costs nothing, a mask (queries, keys) a few times, and nested tensors are padded and always
    masked. What that kernel does not take, dropout in training above all, `attend` lists. On a CPU the fused kernel,
    like PyTorch's, has no second derivative.

    Args:
        embed_dim: features of the query and of the output.
        num_heads: must divide embed_dim; each head has embed_dim / num_heads features.
        dropout: probability with which a weight is dropped in training.
        bias: give the four projections a bias.
        add_bias_kv: append one learned key and value to the keys and values, equation (6.6).
        add_zero_attn: append a key and value of zeros, equation (6.7).
        kdim: features of the keys; embed_dim by default.
        vdim: features of the values; embed_dim by default.
        batch_first: tensors are (batch, tokens, features), not (tokens, batch, features).
        device: where the parameters live.
        dtype: their floating type.

    Raises:
        AssertionError: num_heads does not divide embed_dim.
        TypeError: an option is of another kind than said here: PyTorch takes a word for True, and a fraction for a
            number of heads.
        ValueError: a size is not positive, or dropout is no probability.

    References:
        Vaswani et al. (2017), Attention Is All You Need, section 3.2.2.

    Examples:
        >>> mha = MultiheadAttention(embed_dim=6, num_heads=3, batch_first=True)
        >>> x = torch.randn(2, 5, 6)
        >>> output, weights = mha(x, x, x, is_causal=True)
        >>> output.shape, weights.shape
        (torch.Size([2, 5, 6]), torch.Size([2, 5, 5]))
    """

    # PyTorch's constructor, written out so that its signature can be read here.
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        for name, each in (("embed_dim", embed_dim), ("num_heads", num_heads), ("kdim", kdim), ("vdim", vdim)):
            size(name, 1 if each is None and name in ("kdim", "vdim") else each)  # type: ignore[arg-type]
        flags = {"bias": bias, "add_bias_kv": add_bias_kv, "add_zero_attn": add_zero_attn, "batch_first": batch_first}
        for name, each in flags.items():
            _truth(name, each)
        require_options(scale=None, dropout=dropout)
        require_floating(dtype, device)
        super().__init__(
            embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        )
        self.register_forward_pre_hook(_decline_fast_path)

    def forward(
        self,
        query: Float[Tensor, "... embed_dim"],
        key: Float[Tensor, "... kdim"],
        value: Float[Tensor, "... vdim"],
        key_padding_mask: Shaped[Tensor, "... keys"] | None = None,
        need_weights: bool = True,
        attn_mask: Shaped[Tensor, "... queries keys"] | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from the queries to the keys and average their values.

        Args:
            query: (queries, embed_dim), or with a batch axis first (batch_first) or second; or, with batch_first, a
                nested tensor of a batch of sequences, and key and value two more.
            key: (keys, kdim), with a batch axis as the query.
            value: (keys, vdim), likewise.
            key_padding_mask: (keys,) or (batch, keys). Bool: True = may *not* be seen. Floating: added to the scores.
            need_weights: return the weights, by the eager implementation; False runs the fused one.
            attn_mask: (queries, keys) or (batch * num_heads, queries, keys), of the same two kinds.
            average_attn_weights: return the mean over the heads, not every head's weights.
            is_causal: no query sees a later key; combines with the masks.

        Returns:
            The output, with the query's axes and embed_dim features, and the weights or None: ([batch,] queries,
            keys), or ([batch,] num_heads, queries, keys) where they are not averaged. As in PyTorch they are the
            weights after dropout, and have a column for every appended key. For nested tensors the output is nested
            like the query, and the weights are padded with zeros.

        Raises:
            AssertionError: query, key or value has a wrong shape (PyTorch's types and first words), or nested tensors
                come with a mask.
            RuntimeError: a mask has a wrong shape.
            TypeError: an option is no bool, or a tensor is none, or of another type than the layer, but under autocast.
            ValueError: a tensor is on another device than the layer.
        """
        need_weights, is_causal = _truth("need_weights", need_weights), _truth("is_causal", is_causal)
        average_attn_weights = _truth("average_attn_weights", average_attn_weights)
        self._check_kinds(query=query, key=key, value=value, key_padding_mask=key_padding_mask, attn_mask=attn_mask)
        if query.is_nested or key.is_nested or value.is_nested:
            self._check_nested(query, key, value, key_padding_mask, attn_mask)
            return self._attend_nested(query, key, value, is_causal, need_weights, average_attn_weights)
        self._check(query, key, value, key_padding_mask, attn_mask)
        batched = query.dim() == 3
        q, k, v = (self._batch_first(x, batched) for x in self._project(query, key, value))
        batch, queries, keys = q.size(0), q.size(1), k.size(1)

        allowed, bias = None, None
        if attn_mask is not None and attn_mask.dim() == 3:
            attn_mask = attn_mask.view(batch, self.num_heads, queries, keys)
        if key_padding_mask is not None:
            key_padding_mask = key_padding_mask.view(batch, 1, 1, keys)
        for mask in (attn_mask, key_padding_mask):
            if mask is not None and mask.dtype == torch.bool:
                allowed = masks.combine(allowed, masks.allowed_from_blocked(mask))
            elif mask is not None:
                bias = mask if bias is None else bias + mask

        context, weights = self._attend(q, k, v, allowed, bias, is_causal, need_weights)
        context = self._batch_first(context, batched) if batched else context.squeeze(0)
        output = F.linear(context, self.out_proj.weight, self.out_proj.bias)
        if weights is not None:
            weights = weights.mean(dim=1) if average_attn_weights else weights
            weights = weights if batched else weights.squeeze(0)
        return output, weights

    __prepare_scriptable__ = refuse_script

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        allowed: Tensor | None,
        bias: Tensor | None,
        is_causal: bool,
        need_weights: bool,
    ) -> Attention:
        """Attend from projected queries to projected keys, (batch, tokens, embed_dim), and to the appended keys."""
        q, k, v = (split_heads(x, self.num_heads) for x in (q, k, v))  # batch heads tokens head_dim
        batch, queries, keys = q.size(0), q.size(2), k.size(2)
        learned = [] if self.bias_k is None or self.bias_v is None else [(self.bias_k, self.bias_v)]
        zeros = [(q.new_zeros(1, 1, self.embed_dim),) * 2] if self.add_zero_attn else []
        for extra_k, extra_v in learned + zeros:
            k = torch.cat([k, split_heads(extra_k.to(k.dtype), self.num_heads).expand(batch, -1, -1, -1)], dim=2)
            v = torch.cat([v, split_heads(extra_v.to(v.dtype), self.num_heads).expand(batch, -1, -1, -1)], dim=2)
        appended = k.size(2) - keys
        if appended:  # every query may see an appended key, whatever the masks say of the others
            if is_causal:
                allowed, is_causal = masks.combine(allowed, masks.causal(queries, keys, device=q.device)), False
            allowed = None if allowed is None else F.pad(allowed, (0, appended), value=True)
            bias = None if bias is None else F.pad(bias, (0, appended))
        context, weights = attend(
            q,
            k,
            v,
            allowed=allowed,
            bias=bias,
            is_causal=is_causal,
            dropout_p=self.dropout if self.training else 0.0,
            need_weights=need_weights,
        )
        return Attention(merge_heads(context), weights)

    def _attend_nested(
        self, query: Tensor, key: Tensor, value: Tensor, is_causal: bool, need_weights: bool, average: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Attend within each sequence of a batch of nested ones: padded, masked, and cut again."""
        padded: dict[int, Tensor] = {}
        for x in (query, key, value):  # by identity: self-attention projects once
            padded.setdefault(id(x), pad_sequence(list(x.unbind()), batch_first=True))
        q, k, v = self._project(*(padded[id(x)] for x in (query, key, value)))
        lengths, key_lengths = (
            torch.tensor([part.size(0) for part in x.unbind()], device=q.device) for x in (query, key)
        )
        position, key_position = (torch.arange(x.size(1), device=q.device) for x in (q, k))
        real, allowed = position < lengths[:, None], key_position < key_lengths[:, None]  # batch tokens
        allowed = allowed[:, None, None]  # batch 1 1 keys
        if is_causal:  # aligned at the end of each sequence, not of the padding
            from_end, key_from_end = position - lengths[:, None], key_position - key_lengths[:, None]
            allowed = allowed & (key_from_end[:, None, None] <= from_end[:, None, :, None])
        context, weights = self._attend(q, k, v, allowed, None, False, need_weights)
        output = F.linear(context[real], self.out_proj.weight, self.out_proj.bias)  # all tokens of all sequences
        if query.layout == torch.jagged:
            jagged: Any = query
            # The query's own offsets, where it has no gaps: tensors with the same offsets can be added.
            offsets = jagged.offsets() if jagged.lengths() is None else F.pad(lengths.cumsum(0), (1, 0))
            output = torch.nested.nested_tensor_from_jagged(output, offsets)
        else:
            output = torch.nested.as_nested_tensor(list(output.split(lengths.tolist())))
        if weights is not None:
            weights = weights.masked_fill(~real[:, None, :, None], 0.0)
            weights = weights.mean(dim=1) if average else weights
        return output, weights

    def _batch_first(self, x: Tensor, batched: bool) -> Tensor:
        """Bring (tokens, batch, features) to (batch, tokens, features), which is also the way back."""
        if not batched:
            return x.unsqueeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        bias = None if self.in_proj_bias is None else self.in_proj_bias.to(query.dtype)  # PyTorch takes a mixture too
        packed = self.in_proj_weight is not None
        if packed and query is key and key is value:
            q, k, v = F.linear(query, self.in_proj_weight, bias).chunk(3, dim=-1)
            return q, k, v
        if packed:
            w_q, w_k, w_v = self.in_proj_weight.chunk(3)
        else:
            w_q, w_k, w_v = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        b_q, b_k, b_v = (None,) * 3 if bias is None else bias.chunk(3)
        return F.linear(query, w_q, b_q), F.linear(key, w_k, b_k), F.linear(value, w_v, b_v)

    def _check_kinds(self, **tensors: Tensor | None) -> None:
        """Refuse what is no tensor, or has another device or type than the layer, but under autocast."""
        weight = self.q_proj_weight if self.in_proj_weight is None else self.in_proj_weight
        device, dtype = weight.device, weight.dtype
        seen: Tensor | None = weight  # which is checked already
        for name, x in tensors.items():
            is_mask = name.endswith("_mask")
            if x is seen or (is_mask and x is None):
                continue
            seen = x
            if not isinstance(x, Tensor) or x.layout not in (torch.strided, torch.jagged):
                tensor(name, x)  # type: ignore[arg-type]
                continue
            if x.device != device:
                raise ValueError(f'{name} is on {x.device} and the layer on {device}; call {name}.to("{device}")')
            if not is_mask and x.dtype != dtype and not torch.is_autocast_enabled(x.device.type):
                raise TypeError(f"{name} is {x.dtype} and the layer {dtype}; call {name}.to({dtype})")

    def _check(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None, attn_mask: Tensor | None
    ) -> None:
        """Refuse wrong shapes with PyTorch's exceptions and first words, and say which would be right."""
        dims = query.dim()
        if dims not in (2, 3):
            raise AssertionError(
                f"query should be unbatched 2D or batched 3D tensor but received {dims}-D query tensor"
            )
        kind = "batched (3-D)" if dims == 3 else "unbatched (2-D)"
        if key.dim() != dims or value.dim() != dims:
            raise AssertionError(
                f"For {kind} `query`, expected `key` and `value` to be {dims}-D"
                f" but found {key.dim()}-D and {value.dim()}-D tensors respectively"
            )
        self._check_features(query, key, value)
        if key.shape[:-1] != value.shape[:-1]:
            raise AssertionError(f"key shape {tuple(key.shape)} does not match value shape {tuple(value.shape)}")
        batch_axis, token_axis = (0, 1) if self.batch_first else (1, 0)
        if dims == 2:
            batch, queries, keys = 1, query.size(0), key.size(0)
        else:
            batch, queries, keys = query.size(batch_axis), query.size(token_axis), key.size(token_axis)
            if key.size(batch_axis) != batch:
                raise AssertionError(
                    f"query has batch size {batch} but key {key.size(batch_axis)}; with batch_first={self.batch_first} "
                    f"the batch is axis {batch_axis}"
                )
        padding = {2: (batch, keys)} if dims == 3 else {1: (keys,)}
        pairs = {2: (queries, keys), 3: (batch * self.num_heads, queries, keys)}
        for name, mask, shapes in (("key_padding_mask", key_padding_mask, padding), ("attn_mask", attn_mask, pairs)):
            if mask is None:
                continue
            if mask.dtype != torch.bool and not mask.is_floating_point():
                raise AssertionError(
                    f"only bool and floating types of {name} are supported, not {mask.dtype}; use .bool()"
                )
            if mask.dim() not in shapes:
                known = ", ".join(["`None`", *(f"{axes}-D" for axes in shapes)][:-1])
                raise AssertionError(
                    f"For {kind} `query`, expected `{name}` to be {known} or {max(shapes)}-D"
                    f" but found {mask.dim()}-D tensor instead"
                )
            expected = shapes[mask.dim()]
            if mask.shape != expected and mask is attn_mask and (dims == 3 or mask.dim() == 2):
                raise RuntimeError(
                    f"The shape of the {mask.dim()}D attn_mask is {mask.shape}, but should be {expected}."
                )
            if mask.shape != expected:
                raise AssertionError(f"Expected `{name}` shape to be {expected} but got {tuple(mask.shape)}")

    def _check_nested(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None, attn_mask: Tensor | None
    ) -> None:
        """Refuse nested tensors that cannot be attended to, and say which would be right."""
        if query.dim() != 3:
            raise AssertionError(
                f"query should be unbatched 2D or batched 3D tensor but received {query.dim()}-D query tensor"
            )
        all_nested = query.is_nested and key.is_nested and value.is_nested and key.dim() == value.dim() == 3
        for fits, how in (
            (self.batch_first, "with batch_first=False: its batch is the first axis"),
            (key_padding_mask is None, "with key_padding_mask"),
            (attn_mask is None, "with attn_mask"),
            (all_nested, "beside tensors that are not: nest query, key and value, each of three axes"),
        ):
            if not fits:
                raise AssertionError(
                    f"MultiheadAttention does not support NestedTensor {how}. Else pad it with "
                    "torch.nested.to_padded_tensor and pass a key_padding_mask"
                )
        self._check_features(query, key, value)
        if not query.size(0) == key.size(0) == value.size(0):
            raise AssertionError(
                f"query has {query.size(0)} sequences, key {key.size(0)} and value {value.size(0)}; each sequence of "
                "queries needs one of keys and one of values"
            )
        key_lengths, value_lengths = ([part.size(0) for part in x.unbind()] for x in (key, value))
        if key_lengths != value_lengths:
            raise AssertionError(
                f"key has sequences of {key_lengths} tokens and value of {value_lengths}; every key needs one value"
            )

    def _check_features(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        for name, x, features in (
            ("query", query, self.embed_dim),
            ("key", key, self.kdim),
            ("value", value, self.vdim),
        ):
            if x.size(-1) != features:
                raise AssertionError(
                    f"was expecting embedding dimension of {features}, but got {x.size(-1)} in `{name}`"
                )


def _truth(name: str, value: bool) -> bool:
    """A flag, for which PyTorch's users may pass 0 or 1 too."""
    return bool(value) if type(value) is int and value in (0, 1) else flag(name, value)


def _decline_fast_path(module: nn.Module, args: tuple[object, ...]) -> None:
    """Do nothing: a hook keeps nn.TransformerEncoderLayer from its fast path, past the forward of its attention.

    That path reads every nonzero entry of a floating mask as -inf, gives NaN where a query sees nothing, and forgets
    is_causal.
    """
