"""What PyTorch's interfaces make of masks: the questions behind the tables of the museum's page on masks."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked._generators import forked
from unmasked.functional import self_attention
from unmasked.masks import additive_from_allowed
from unmasked.multihead import MultiheadAttention
from unmasked_doctor import probes

Answer = TypeVar("Answer")

MODES = {"train": (True, True), "eval": (False, True), "eval, no_grad": (False, False)}
"""The modes in which PyTorch's modules may run different code: whether they train, and whether gradients are kept."""


def by_mode(parts: nn.Module, ask: Callable[[], Answer]) -> list[Answer]:
    """What a question gets in each of `MODES`, and at last without gradients and without PyTorch's fast path.

    The modules that are asked train afterwards.
    """
    answers = []
    try:
        for training, gradients, fast_path in [*((*mode, True) for mode in MODES.values()), (False, False, False)]:
            parts.train(training)
            torch.backends.mha.set_fastpath_enabled(fast_path)
            with torch.set_grad_enabled(gradients):
                answers.append(ask())
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
        parts.train()
    return answers


def meanings(
    x: Tensor, module: nn.MultiheadAttention, layer: nn.TransformerEncoderLayer, ours: MultiheadAttention
) -> dict[str, Callable[[], str]]:
    """What `True` means to each interface, as a question without arguments: "may attend" or "may not attend".

    One key is marked with it for every query, and then changed.
    """
    batch, tokens, _ = x.shape
    marked = torch.zeros(tokens, tokens, dtype=torch.bool)
    marked[:, 0] = True
    keys = marked[:1].expand(batch, tokens)
    calls: dict[str, Callable[[Tensor], Tensor]] = {
        "F.scaled_dot_product_attention, attn_mask": lambda x: F.scaled_dot_product_attention(x, x, x, marked),
        "nn.MultiheadAttention, attn_mask": lambda x: module(x, x, x, attn_mask=marked)[0],
        "nn.MultiheadAttention, key_padding_mask": lambda x: module(x, x, x, key_padding_mask=keys)[0],
        "nn.TransformerEncoderLayer, src_mask": lambda x: layer(x, marked),
        "unmasked.MultiheadAttention, attn_mask": lambda x: ours(x, x, x, attn_mask=marked)[0],
        "unmasked.self_attention, allowed": lambda x: self_attention(x, allowed=marked).context,
    }

    def ask(call: Callable[[Tensor], Tensor]) -> str:
        changed = x.clone()
        changed[:, 0] += 1
        moved = probes.differs(call(changed)[:, 1:], call(x)[:, 1:])
        return "may attend" if moved else "may not attend"

    return {name: lambda call=call: ask(call) for name, call in calls.items()}  # type: ignore[misc]


def after_attention(layer: nn.TransformerEncoderLayer, x: Tensor, attended: Tensor) -> Tensor:
    """What a layer that normalizes last, without dropout, makes of what its attention gives."""
    hidden: Tensor = layer.norm1(x + attended)
    output: Tensor = layer.norm2(hidden + layer.linear2(layer.linear1(hidden).relu()))
    return output


def adding(layer: nn.TransformerEncoderLayer, x: Tensor, bias: Tensor) -> Tensor:
    """What such a layer gives if it adds a floating mask, (tokens, tokens), to the scores, whatever its mode."""
    attention = layer.self_attn
    with forked():  # its own weights are not used
        twin = MultiheadAttention(attention.embed_dim, attention.num_heads, batch_first=True)
    twin.load_state_dict(attention.state_dict())
    return after_attention(layer, x, twin(x, x, x, attn_mask=bias)[0])


def causality(part: nn.Module, x: Tensor, **options: object) -> str:
    """Whether attention that is told `is_causal=True` lets no token see a later one.

    "causal", "not causal", or "raises" where it asks for a mask.
    """
    try:
        seen = probes.sees_the_future(lambda x: part(x, x, x, is_causal=True, **options)[0], x)
    except RuntimeError as error:
        if "Need attn_mask if specifying the is_causal hint" not in str(error):
            raise
        return "raises"
    return "not causal" if seen else "causal"


def blind(
    x: Tensor,
    allowed: Tensor,
    modules: Mapping[str, nn.MultiheadAttention | MultiheadAttention],
    layers: Mapping[str, nn.TransformerEncoderLayer],
) -> dict[tuple[str, str], Callable[[], str]]:
    """What a query that may see nothing gets from each interface, by a boolean mask and by a floating one.

    The first token is allowed to see none; layers have no dropout. By interface and kind of mask, "bool" or "float", a
    question without arguments: "NaN", "zeros" for a context of zeros, of which the bias of the last layer is left, or
    "numbers".
    """

    def function(mask: Tensor) -> str:
        return _left(F.scaled_dot_product_attention(x, x, x, mask)[0, 0], torch.zeros(x.size(-1)))

    def module(part: nn.MultiheadAttention | MultiheadAttention, mask: Tensor, need_weights: bool) -> str:
        return _left(part(x, x, x, attn_mask=mask, need_weights=need_weights)[0][0, 0], part.out_proj.bias)

    def layer(part: nn.TransformerEncoderLayer, mask: Tensor) -> str:
        return _left(part(x, src_mask=mask)[0, 0], after_attention(part, x[0, 0], part.self_attn.out_proj.bias))

    added = additive_from_allowed(allowed)
    questions: dict[tuple[str, str], Callable[[], str]] = {}
    for kind, theirs, mask in (("bool", allowed, ~allowed), ("float", added, added)):
        questions["F.scaled_dot_product_attention", kind] = partial(function, theirs)
        for name, part in modules.items():
            for need in (True, False):
                questions[f"{name}, need_weights={need}", kind] = partial(module, part, mask, need)
        for name, one in layers.items():
            questions[name, kind] = partial(layer, one, mask)
    return questions


def _left(row: Tensor, zero: Tensor) -> str:
    if row.isnan().all():
        return "NaN"
    return "numbers" if probes.differs(row, zero) else "zeros"


def by_kind(answers: Mapping[tuple[str, str], Sequence[str]]) -> list[tuple[str, ...]]:
    """The rows of a table of what interfaces answer to a boolean mask and to a floating one.

    Examples:
        >>> by_kind({("f", "bool"): ["NaN", "NaN"], ("f", "float"): ["NaN", "zeros"]})
        [('f', 'NaN', 'bool NaN, float zeros')]
    """
    rows = []
    for name in dict.fromkeys(name for name, _ in answers):
        both = zip(answers[name, "bool"], answers[name, "float"], strict=True)
        rows.append((name, *(a if a == b else f"bool {a}, float {b}" for a, b in both)))
    return rows


WAYS_TO_HIDE: dict[str, Callable[[Tensor], Tensor]] = {
    "filled in": lambda scores: scores.masked_fill(torch.ones_like(scores, dtype=torch.bool), -1e9),
    "added": lambda scores: scores + torch.tensor(-1e9).to(scores),
    "a mask made by torch.full": lambda scores: scores + torch.full(scores.shape, -1e9, dtype=scores.dtype),
}
"""How minus one billion hides every key of a row of scores."""


def hiding_everything(scores: Tensor) -> list[str]:
    """What the weights are where each of `WAYS_TO_HIDE` hides every key of scores, (queries, keys).

    "NaN", "equal weights", "as if nothing were masked", or "raises" where the dtype cannot hold it.
    """
    return [_weights_told(hide, scores) for hide in WAYS_TO_HIDE.values()]


def _weights_told(hide: Callable[[Tensor], Tensor], scores: Tensor) -> str:
    try:
        weights = hide(scores).softmax(-1)
    except RuntimeError as error:
        if "overflow" not in str(error):
            raise
        return "raises"
    known = {
        "NaN": torch.full_like(weights, torch.nan),
        "equal weights": torch.full_like(weights, 1 / weights.size(-1)),
        "as if nothing were masked": scores.softmax(-1),
    }
    (name,) = (name for name, w in known.items() if torch.allclose(w, weights, atol=1e-3, equal_nan=True))
    return name
