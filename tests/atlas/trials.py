"""What a model does that surprises, by trials: packed texts that meet, padding that shows, a cache that differs."""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked._private import flex_scores

EQUAL = 1e-4  # share of the largest number up to which two results are the same
IDS = torch.randperm(56, generator=torch.Generator().manual_seed(0)).add(4)[:48].view(2, 24)
CACHES = ("cache", "past_key_values", "cache_params")  # as versions and models call it
Model = Any


def flash(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
          causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
          s_aux: Tensor | None = None, deterministic: bool = False) -> Tensor:  # fmt: skip
    """What FlashAttention computes for (batch, tokens, heads, features), in PyTorch's own operations."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.size(1) // x.size(1), 1) for x in (k, v))
    scores = q @ k.mT * (q.size(-1) ** -0.5 if softmax_scale is None else softmax_scale)
    scores = scores if not softcap else softcap * torch.tanh(scores / softcap)
    ahead = torch.arange(k.size(2))[None] - torch.arange(q.size(2))[:, None] - (k.size(2) - q.size(2))
    left, right = window_size[0], 0 if causal else window_size[1]
    hidden = ((ahead > right) if right >= 0 else ahead.new_zeros(ahead.shape).bool()) | (
        (ahead < -left) if left >= 0 else False
    )
    scores = scores.masked_fill(hidden, -torch.inf)
    if s_aux is not None:
        sink = s_aux.view(1, -1, 1, 1).expand(*scores.shape[:3], 1).to(scores)
        return (torch.cat([scores, sink], -1).softmax(-1)[..., :-1] @ v).transpose(1, 2)
    return (scores.softmax(-1) @ v).transpose(1, 2)


def flash_varlen(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int = 0,
                 max_seqlen_k: int = 0, dropout_p: float = 0.0, softmax_scale: float | None = None,
                 causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                 s_aux: Tensor | None = None, deterministic: bool = False) -> Tensor:  # fmt: skip
    """The same for texts in one row."""
    told: dict[str, Any] = {"softmax_scale": softmax_scale, "causal": causal, "window_size": window_size}
    texts = [pairwise(ends.tolist()) for ends in (cu_seqlens_q, cu_seqlens_k)]
    each = [
        flash(q[a:b][None], k[c:d][None], v[c:d][None], softcap=softcap, s_aux=s_aux, **told)[0]
        for (a, b), (c, d) in zip(*texts, strict=True)
    ]
    return torch.cat(each)


def flexible(query: Tensor, key: Tensor, value: Tensor, *, score_mod: Any = None, block_mask: Any = None,
             scale: float | None = None, return_aux: Any = None, **_: Any) -> Any:  # fmt: skip
    """What FlexAttention computes, by its own reference for scores: uncompiled it traces each call for seconds."""
    from torch.nn.attention.flex_attention import AuxOutput, _create_empty_block_mask, _identity

    key, value = (x.repeat_interleave(query.size(1) // x.size(1), 1) for x in (key, value))
    blocks = _create_empty_block_mask(query, key) if block_mask is None else block_mask
    scale = query.size(-1) ** -0.5 if scale is None else scale
    scores = flex_scores(query, key, value, score_mod or _identity, blocks.as_tuple(), scale, {}, (), ())
    context = scores.softmax(-1).nan_to_num() @ value
    return context if return_aux is None else (context, AuxOutput(lse=scores.logsumexp(-1)))


@contextmanager
def kernels() -> Iterator[None]:
    """The kernels of FlashAttention and FlexAttention replaced: what is tried is how models call them."""
    from transformers import modeling_flash_attention_utils as theirs
    from transformers.integrations import flex_attention as flex

    kept = theirs._lazy_imports, flex.WrappedFlexAttention.__call__, flex.WrappedFlexAttention.__init__
    theirs._lazy_imports = lambda *_, **__: (flash, flash_varlen, None, theirs._pad_input, theirs._unpad_input)  # type: ignore[assignment]
    flex.WrappedFlexAttention.__init__ = lambda self, training: None  # type: ignore[method-assign]
    flex.WrappedFlexAttention.__call__ = lambda self: flexible  # type: ignore[method-assign, assignment]
    try:
        with torch.compiler.set_stance("force_eager"):  # block masks would be compiled anew for each model
            yield
    finally:
        theirs._lazy_imports = kept[0]
        flex.WrappedFlexAttention.__call__, flex.WrappedFlexAttention.__init__ = kept[1:]  # type: ignore[method-assign]


def choose(model: Model, name: str) -> None:
    """Take an implementation of attention; that of FlashAttention without asking whether its kernel is there."""
    if name == "flash_attention_2" and not model._supports_flash_attn:
        raise ValueError("the model says that it does not support FlashAttention")
    for module in model.modules():
        if hasattr(getattr(module, "config", None), "_attn_implementation_internal"):
            module.config._attn_implementation_internal = "eager" if name != "flash_attention_2" else name
    if name not in ("eager", "flash_attention_2"):
        model.set_attn_implementation(name)
        if model.config._attn_implementation != name:
            raise ValueError(f"set_attn_implementation changes nothing: it keeps {model.config._attn_implementation}")


def gap(one: Tensor, other: Tensor) -> float:
    """How far results are apart, of the largest number: one digit is enough."""
    apart = float((one - other).abs().max() / other.abs().max())
    if not math.isfinite(apart):
        raise ValueError("what it gives is not a number")
    return float(f"{apart:.0e}")


class Trials:
    """The trials of a model that reads tokens; in each its answer, or why there is none."""

    def __init__(self, model: Model, inputs: dict[str, Any]) -> None:
        self.model, self.names = model, inspect.signature(model.forward).parameters
        self.text = "input_ids" in inputs
        self.decodes = "decoder_input_ids" in inputs
        self.inputs = inputs

    def run(self, ids: Tensor, **options: Any) -> Any:
        """The model's output for a decoder's tokens; an encoder reads the same all the time."""
        with torch.no_grad():
            if self.decodes:
                return self.model(input_ids=IDS[: len(ids)], decoder_input_ids=ids, **options)
            return self.model(input_ids=ids, **options)

    def out(self, ids: Tensor, **options: Any) -> Tensor:
        """The numbers of each token."""
        made = self.run(ids, **options)
        x = made.last_hidden_state if hasattr(made, "last_hidden_state") else made[0]
        assert isinstance(x, Tensor)
        return x

    def reaches(self, ids: Tensor, place: int, **options: Any) -> Tensor:
        """Which places of the first row change with the token at a place: share of the largest number."""
        other = ids.clone()
        other[:, place] = 61
        one, two = self.out(ids, **options), self.out(other, **options)
        return (one - two).abs().amax(-1)[0] / one.abs().max()

    def all(self) -> dict[str, Any]:
        """Each trial's answer."""
        found: dict[str, Any] = {}
        found["implementations"] = {
            n: self._try(lambda n=n: self.like_eager(n)) for n in ("sdpa", "flex_attention", "flash_attention_2")
        }
        choose(self.model, "eager")
        if not self.text:
            return found
        found["causal"] = self._try(lambda: not bool((self.reaches(IDS, 20)[:20] > EQUAL).any()))
        found["packed"] = {n: self._try(lambda n=n: self.packed(n)) for n in ("eager", "sdpa", "flash_attention_2")}
        found["mask_of_four_axes"] = {
            n: self._try(lambda n=n: self.four_axes(n, found["causal"])) for n in ("eager", "sdpa")
        }
        found["output_attentions"] = {n: self._try(lambda n=n: self.gives_weights(n)) for n in ("eager", "sdpa")}
        choose(self.model, "eager")
        found["left_padding"] = self._try(self.padded)
        found["left_padding_with_positions"] = self._try(lambda: self.padded(positions=True))
        found["positions_from_zero"] = self._try(self.places)
        found["cache"] = self._try(self.cache_bytes)
        for name in ("steps", "steps_with_positions", "pieces", "crop", "reorder"):
            found[name] = self._try(getattr(self, name))
        return found

    def _try(self, trial: Callable[[], Any]) -> Any:
        try:
            return trial()
        except TimeoutError:
            raise
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            return f"not measured: {type(error).__name__}: {lines[0][:110]}"

    def like_eager(self, name: str) -> float:
        """How far an implementation is from eager."""
        found = []
        for each in ("eager", name):
            choose(self.model, each)
            torch.manual_seed(0)  # some draw what they hide
            with torch.no_grad():
                made = self.out(IDS) if self.text else self.model(**self.inputs)
            found.append(
                made
                if isinstance(made, Tensor)
                else next(x for x in made.values() if isinstance(x, Tensor) and x.is_floating_point())
            )
        return gap(found[1], found[0])

    def packed(self, name: str) -> dict[str, Any]:
        """Two texts in a row, positions that begin anew: does the first reach the second?"""
        if "position_ids" not in self.names or self.decodes:
            raise ValueError("it takes no position_ids")
        choose(self.model, name)
        places = torch.cat([torch.arange(10), torch.arange(14)])[None]
        cases: dict[str, tuple[int, dict[str, Any]]] = {
            "plain": (1, {"use_cache": False}),
            "with a cache": (1, {}),
            "with a mask of ones": (1, {"use_cache": False, "attention_mask": torch.ones(1, 24, dtype=torch.long)}),
            "two rows": (2, {"use_cache": False}),
        }
        found: dict[str, Any] = {}
        for case, (rows, options) in cases.items():
            options = {
                key: x for key, x in options.items() if key in self.names or key != "use_cache" or self._caches()
            }

            def leak(rows: int = rows, options: dict[str, Any] = options) -> str:
                moved = self.reaches(IDS[:rows], 7, position_ids=places.expand(rows, -1), **options)[10:].max()
                return "leaks" if float(moved) > EQUAL / 10 else "isolated"

            found[case] = self._try(leak)
        return found

    def _caches(self) -> bool:
        return hasattr(self.model.config, "use_cache") or hasattr(self.model.config.get_text_config(), "use_cache")

    def four_axes(self, name: str, causal: Any) -> bool:
        """Whether a token that a mask of four axes hides from all others stays hidden."""
        choose(self.model, name)
        count = IDS.size(1)
        allowed = torch.ones(count, count, dtype=torch.bool)
        allowed = allowed.tril() if causal is True else allowed
        allowed[:, 1] = torch.arange(count) == 1
        mask = (
            allowed
            if name == "sdpa"
            else torch.zeros(count, count).masked_fill(~allowed, torch.finfo(torch.float32).min)
        )
        key = "decoder_attention_mask" if self.decodes else "attention_mask"
        moved = self.reaches(IDS[:1], 1, **{key: mask[None, None]})
        moved[1] = 0
        return not bool((moved > EQUAL / 10).any())

    def gives_weights(self, name: str) -> str:
        """What output_attentions gives: weights, and whether they sum to one."""
        choose(self.model, name)
        made = self.run(IDS, output_attentions=True)
        given = made.get("decoder_attentions" if self.decodes else "attentions")
        there = [x for x in given or () if isinstance(x, Tensor)]
        if not there:
            return "none"
        sums = torch.cat([x.sum(-1).flatten() for x in there])
        return f"{len(there)} tables" + (
            "" if float((sums - 1).abs().max()) < 1e-3 else ", whose rows do not sum to one"
        )

    def padded(self, positions: bool = False) -> float:
        """A text with padding before it, against the text alone."""
        key = "decoder_attention_mask" if self.decodes else "attention_mask"
        ids, options = F.pad(IDS[:1], (5, 0), value=1), {key: F.pad(torch.ones(1, 24, dtype=torch.long), (5, 0))}
        if positions:
            if "position_ids" not in self.names or self.decodes:
                raise ValueError("it takes no position_ids")
            options["position_ids"] = (options[key].cumsum(-1) - 1).clamp_min(0)
            return gap(self.out(ids, **options)[:, 5:], self.out(IDS[:1], position_ids=torch.arange(24)[None]))
        return gap(self.out(ids, **options)[:, 5:], self.out(IDS[:1]))

    def places(self) -> float:
        """Positions from zero, against none given."""
        if "position_ids" not in self.names or self.decodes:
            raise ValueError("it takes no position_ids")
        return gap(self.out(IDS[:1], position_ids=torch.arange(24)[None]), self.out(IDS[:1]))

    def _read(self, ids: Tensor, cache: Any = None, **options: Any) -> tuple[Tensor, Any]:
        name = next((name for name in CACHES if name in self.names), CACHES[0])
        made = self.run(ids, use_cache=True, **options, **({} if cache is None else {name: cache}))
        cache = next((made[name] for name in CACHES if made.get(name) is not None), None)
        if cache is None:
            raise ValueError("it keeps no cache")
        return made.last_hidden_state, cache

    def steps(self, sizes: tuple[int, ...] = (20, 1, 1, 1, 1), positions: bool = False) -> float:
        """The text in steps, against the text at once."""
        cache, made = None, []
        places = torch.arange(24).expand(2, -1)
        for part, at in zip(IDS.split(sizes, 1), places.split(sizes, 1), strict=True):
            x, cache = self._read(part, cache, **({"position_ids": at} if positions else {}))
            made.append(x)
        return gap(torch.cat(made, 1), self.out(IDS))

    def steps_with_positions(self) -> float:
        """The text in steps, with its positions."""
        if "position_ids" not in self.names or self.decodes:
            raise ValueError("it takes no position_ids")
        return self.steps(positions=True)

    def pieces(self) -> float:
        """The text in two pieces, against the text at once."""
        return self.steps((13, 11))

    def crop(self) -> dict[str, Any]:
        """Three tokens read and taken back, and others read in their place; and whether the cache says that it can."""
        _, cache = self._read(IDS[:, :17])
        said = getattr(cache, "is_croppable", None)
        other = torch.full((2, 3), 62)
        if hasattr(cache, "activate_past_recording"):
            cache.activate_past_recording()
        _, cache = self._read(other, cache)
        cache.crop(-3)
        x, _ = self._read(IDS[:, 17:20], cache)
        return {"gap": gap(x, self.out(IDS[:, :20])[:, 17:]), "is_croppable": said}

    def reorder(self) -> float:
        """The rows of the cache exchanged, and then the tokens' too."""
        _, cache = self._read(IDS[:, :20])
        cache.reorder_cache(torch.tensor([1, 0]))
        if self.decodes:
            raise ValueError("rows of an encoder's output would have to be exchanged too")
        x, _ = self._read(IDS.flip(0)[:, 20:], cache)
        return gap(x, self.out(IDS.flip(0))[:, 20:])

    def cache_bytes(self) -> dict[str, Any]:
        """Bytes of the cache for each further token, early and late, and what is there however short the text."""
        sizes = []
        for count in (4, 8, 64, 72):
            _, cache = self._read(torch.arange(count)[None] % 56 + 4)
            sizes.append(_bytes(cache))
        early, late = (sizes[1] - sizes[0]) / 4, (sizes[3] - sizes[2]) / 8
        return {"early": early, "late": late, "fixed": sizes[0] - 4 * early, "after_72": sizes[3]}


def _bytes(cache: Any) -> int:
    """The bytes of all tensors that a cache holds, shared ones once."""
    seen: dict[tuple[int, ...], int] = {}
    queue, known = [cache], set()
    while queue:
        each = queue.pop()
        if id(each) in known:
            continue
        known.add(id(each))
        if isinstance(each, Tensor):
            if each.is_floating_point():
                seen[(each.data_ptr(), *each.shape)] = each.numel() * each.element_size()
        elif isinstance(each, list | tuple | set):
            queue.extend(each)
        elif isinstance(each, dict):
            queue.extend(each.values())
        elif hasattr(each, "__dict__") and not isinstance(each, nn.Module | type):
            queue.extend(vars(each).values())
    return sum(seen.values())


def watched(model: Model, inputs: dict[str, Any]) -> dict[str, int]:
    """How many calls `watch` hears of the model as it is loaded, and how many it says that it missed."""
    from unmasked import watch

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        with watch(model) as seen:
            model(**inputs)
    return {"heard": len(seen), "missed": sum(seen.missed.values())}


def examined(model: Model, inputs: dict[str, Any]) -> dict[str, Any]:
    """The doctor's verdict."""
    from unmasked_doctor import diagnose_model

    report = diagnose_model(copy.deepcopy(model), inputs)
    return {
        "verdict": report.verdict,
        "named": sorted(set(map(str, report.causes))),
        "unwatched": len(report.unwatched),
    }
