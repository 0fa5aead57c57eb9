"""Questions to PyTorch's interfaces about masks: the tables and the painter of the pages on masks show the answers."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked._generators import forked
from unmasked.bypass import bypass_
from unmasked.functional import self_attention
from unmasked.heads import split_heads
from unmasked.masks import additive_from_allowed
from unmasked.multihead import MultiheadAttention
from unmasked_doctor import probes

Answer = TypeVar("Answer")

MODES = {"train": (True, True), "eval": (False, True), "eval, no_grad": (False, False)}
"""The modes in which PyTorch's modules may run different code: whether they train, and whether gradients are kept."""


def by_mode(parts: nn.Module, ask: Callable[[], Answer]) -> list[Answer]:
    """Ask a question in each of `MODES`, and at last without gradients and without PyTorch's fast path.

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
    """Ask each interface for the meaning of `True`, by a question without arguments: "may attend" or "may not attend".

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
    """Return the output of a layer that normalizes last, without dropout, for this output of its attention."""
    hidden: Tensor = layer.norm1(x + attended)
    output: Tensor = layer.norm2(hidden + layer.linear2(layer.linear1(hidden).relu()))
    return output


def adding(layer: nn.TransformerEncoderLayer, x: Tensor, bias: Tensor) -> Tensor:
    """Return the output of such a layer if it adds a bias, (tokens, tokens), to the scores, whatever its mode."""
    attention = layer.self_attn
    with forked():  # its own weights are not used
        twin = MultiheadAttention(attention.embed_dim, attention.num_heads, batch_first=True)
    twin.load_state_dict(attention.state_dict())
    return after_attention(layer, x, twin(x, x, x, attn_mask=bias)[0])


def causality(part: nn.Module, x: Tensor, **options: object) -> str:
    """Call attention with `is_causal=True`, and say whether a token sees a later one.

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
    layers: Mapping[str, nn.TransformerEncoderLayer] | None = None,
) -> dict[tuple[str, str], Callable[[], str]]:
    """Ask each interface for the context of a blind row, under a boolean mask and under a floating one.

    The first token is allowed to see none; layers have no dropout. By interface and kind of mask, "bool" or "float", a
    question without arguments, whose answer is that of `answer`: a context of zeros leaves the bias of the last layer.
    """

    def function(mask: Tensor) -> str:
        return answer(F.scaled_dot_product_attention(x, x, x, mask)[0, 0])

    def module(part: nn.MultiheadAttention | MultiheadAttention, mask: Tensor, need_weights: bool) -> str:
        return answer(part(x, x, x, attn_mask=mask, need_weights=need_weights)[0][0, 0], part.out_proj.bias)

    def layer(part: nn.TransformerEncoderLayer, mask: Tensor) -> str:
        return answer(part(x, src_mask=mask)[0, 0], after_attention(part, x[0, 0], part.self_attn.out_proj.bias))

    added = additive_from_allowed(allowed)
    questions: dict[tuple[str, str], Callable[[], str]] = {}
    for kind, functions_mask, mask in (("bool", allowed, ~allowed), ("float", added, added)):
        questions["F.scaled_dot_product_attention", kind] = partial(function, functions_mask)
        for name, part in modules.items():
            for need in (True, False):
                questions[f"{name}, need_weights={need}", kind] = partial(module, part, mask, need)
        for name, one in (layers or {}).items():
            questions[name, kind] = partial(layer, one, mask)
    return questions


def answer(row: Tensor, zeros: Tensor | None = None) -> str:
    """Return "NaN", "zeros" or "numbers" for what a blind query got, a context or weights.

    `zeros` is the output that a context of zeros leads to, zeros by default.
    """
    if row.isnan().all():
        return "NaN"
    return "numbers" if probes.differs(row, torch.zeros_like(row) if zeros is None else zeros) else "zeros"


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
"""Ways to hide every key of a row of scores by minus one billion."""


def hiding_everything(scores: Tensor) -> list[str]:
    """Name the weights where each of `WAYS_TO_HIDE` hides every key of scores, (queries, keys).

    "NaN", "equal weights", "as if nothing were masked", or "raises" where the dtype cannot hold it.
    """
    return [_name_of_weights(hide, scores) for hide in WAYS_TO_HIDE.values()]


def _name_of_weights(hide: Callable[[Tensor], Tensor], scores: Tensor) -> str:
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


def paintable(module: nn.MultiheadAttention, y: Tensor, allows: Mapping[str, bool]) -> list[dict[str, Any]]:
    """Describe the interfaces that take a painted mask, for the script `painter.js`.

    The module has `batch_first=True`, and trains. `allows` says whether True means that a query may attend: to the
    "function", to the "module" as `attn_mask`, and to it as "padding". Each interface has its kind, its name, whether
    True (or a zero, in a floating mask) allows, and the weights of a blind query, "NaN" or "zeros".
    """
    batch, tokens, _ = y.shape
    q = split_heads(y, module.num_heads)
    boolean = F.scaled_dot_product_attention(q, q, q, torch.full((tokens, tokens), not allows["function"]))
    floating = F.scaled_dot_product_attention(q, q, q, torch.full((tokens, tokens), -torch.inf))
    _, weights = module(y, y, y, attn_mask=torch.full((tokens, tokens), not allows["module"]))
    _, padded = module(y, y, y, key_padding_mask=torch.full((batch, tokens), not allows["padding"]))
    calls = (
        ("boolean", "the function", allows["function"], boolean),
        ("additive", "the function, floating", True, floating),
        ("module", "the module, attn_mask", allows["module"], weights),
        ("padding", "the module, key_padding_mask", allows["padding"], padded),
    )
    return [
        {"kind": kind, "name": name, "allows": allowed, "blind": answer(result)}
        for kind, name, allowed, result in calls
    ]


def readings(x: Tensor, allowed: Tensor) -> dict[str, Tensor]:
    """Return the weights of PyTorch's function and of its module for a sentence, (words, features), and one mask."""
    one = x[None]  # a batch of one sentence
    unit = torch.eye(len(x), dtype=x.dtype)[None]  # as values, it shows the weights
    by_function = F.scaled_dot_product_attention(one, one, unit, attn_mask=allowed)
    module = bypass_(nn.MultiheadAttention(x.size(-1), 1, batch_first=True, dtype=x.dtype))
    _, by_module = module(one, one, one, attn_mask=allowed)
    return {"the function": by_function[0], "the module": by_module[0].detach()}
