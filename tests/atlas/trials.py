"""What a model does that surprises, by trials: packed texts that meet, padding that shows, a cache that differs."""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from unmasked._private import flex_scores
from unmasked_doctor._tensors import tensors_in

EQUAL = 1e-4  # share of the largest number up to which two results are the same
IDS = torch.randperm(56, generator=torch.Generator().manual_seed(0)).add(4)[:48].view(2, 24)
CACHES = ("cache", "past_key_values", "cache_params")  # as versions and models call it
FLASH = "flash_attention_2"
STEPS = (20, 1, 1, 1, 1)
Model = Any


def flash(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor | None = None, cu_seqlens_k: Tensor | None = None,
          max_seqlen_q: int = 0, max_seqlen_k: int = 0, dropout_p: float = 0.0, softmax_scale: float | None = None,
          causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
          s_aux: Tensor | None = None, deterministic: bool = False) -> Tensor:  # fmt: skip
    """What FlashAttention computes: of (batch, tokens, heads, features), or of texts in one row, without the first."""
    if cu_seqlens_q is not None and cu_seqlens_k is not None:
        told: dict[str, Any] = {"softmax_scale": softmax_scale, "causal": causal, "window_size": window_size}
        ends = cu_seqlens_q, cu_seqlens_k, cu_seqlens_k
        texts = zip(*(x.split(end.diff().tolist()) for x, end in zip((q, k, v), ends, strict=True)), strict=True)
        return torch.cat([flash(*(x[None] for x in text), softcap=softcap, s_aux=s_aux, **told)[0] for text in texts])
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.size(1) // x.size(1), 1) for x in (k, v))
    scores = q @ k.mT * (q.size(-1) ** -0.5 if softmax_scale is None else softmax_scale)
    scores = scores if not softcap else softcap * torch.tanh(scores / softcap)
    count = k.size(2)
    ahead = torch.arange(count) - torch.arange(q.size(2))[:, None] - (count - q.size(2))
    left, right = (count if side < 0 else side for side in (window_size[0], 0 if causal else window_size[1]))
    scores = scores.masked_fill((ahead > right) | (ahead < -left), -torch.inf)
    if s_aux is not None:
        scores = torch.cat([scores, s_aux.view(1, -1, 1, 1).expand(*scores.shape[:3], 1).to(scores)], -1)
    return (scores.softmax(-1)[..., :count] @ v).transpose(1, 2)


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

    functions = flash, flash, None, theirs._pad_input, theirs._unpad_input
    with (
        patch.object(theirs, "_lazy_imports", lambda *_, **__: functions),
        patch.object(flex, "WrappedFlexAttention", lambda _: lambda: flexible),
        torch.compiler.set_stance("force_eager"),  # block masks would be compiled anew for each model
    ):
        yield


def choose(model: Model, name: str) -> None:
    """Take an implementation of attention; that of FlashAttention without asking whether its kernel is there."""
    if name == FLASH and not model._supports_flash_attn:
        raise ValueError("the model says that it does not support FlashAttention")
    for module in model.modules():
        if hasattr(getattr(module, "config", None), "_attn_implementation_internal"):
            module.config._attn_implementation_internal = name if name == FLASH else "eager"
    if name not in ("eager", FLASH):
        model.set_attn_implementation(name)
        if model.config._attn_implementation != name:
            raise ValueError(f"set_attn_implementation changes nothing: it keeps {model.config._attn_implementation}")


def tried(measure: Callable[..., Any], *args: Any) -> Any:
    """What is measured, or why it is not."""
    try:
        return measure(*args)
    except TimeoutError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return f"not measured: {type(error).__name__}: {lines[0][:110]}"


def gap(one: Tensor, other: Tensor) -> float:
    """How far results are apart, of the largest number: one digit is enough."""
    apart = float((one - other).abs().max() / other.abs().max())
    if not math.isfinite(apart):
        raise ValueError("what it gives is not a number")
    return float(f"{apart:.0e}")


class Trials:
    """The trials of a model that reads tokens; in each its answer, or why there is none."""

    def __init__(self, model: Model, inputs: dict[str, Any]) -> None:
        self.model, self.inputs, self.names = model, inputs, inspect.signature(model.forward).parameters
        self.decodes = "decoder_input_ids" in inputs
        self.mask = "decoder_attention_mask" if self.decodes else "attention_mask"

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

    def at(self, places: Tensor) -> dict[str, Tensor]:
        """The option that says where tokens stand."""
        if "position_ids" not in self.names or self.decodes:
            raise ValueError("it takes no position_ids")
        return {"position_ids": places}

    def reaches(self, ids: Tensor, place: int, **options: Any) -> Tensor:
        """Which places of the first row change with the token at a place: share of the largest number."""
        other = ids.clone()
        other[:, place] = 61
        one, two = self.out(ids, **options), self.out(other, **options)
        return (one - two).abs().amax(-1)[0] / one.abs().max()

    def all(self) -> dict[str, Any]:
        """Each trial's answer."""
        found: dict[str, Any] = {}
        found["implementations"] = {n: tried(self.like_eager, n) for n in ("sdpa", "flex_attention", FLASH)}
        choose(self.model, "eager")
        if "input_ids" not in self.inputs:
            return found
        found["causal"] = tried(self.causal)
        found["packed"] = {n: tried(self.packed, n) for n in ("eager", "sdpa", FLASH)}
        found["mask_of_four_axes"] = {n: tried(self.four_axes, n, found["causal"]) for n in ("eager", "sdpa")}
        found["output_attentions"] = {n: tried(self.gives_weights, n) for n in ("eager", "sdpa")}
        choose(self.model, "eager")
        found["left_padding"] = tried(self.padded)
        found["left_padding_with_positions"] = tried(self.padded, True)
        found["positions_from_zero"] = tried(self.places)
        found["cache"] = tried(self.cache_bytes)
        found["steps"] = tried(self.steps, STEPS)
        found["steps_with_positions"] = tried(self.steps, STEPS, True)
        found["pieces"] = tried(self.steps, (13, 11))
        return found | {"crop": tried(self.crop), "reorder": tried(self.reorder)}

    def like_eager(self, name: str) -> float:
        """How far an implementation is from eager."""
        found = []
        for each in ("eager", name):
            choose(self.model, each)
            torch.manual_seed(0)  # some draw what they hide
            with torch.no_grad():
                made = self.out(IDS) if "input_ids" in self.inputs else self.model(**self.inputs)
            parts = [made] if isinstance(made, Tensor) else made.values()
            found.append(next(x for x in parts if isinstance(x, Tensor) and x.is_floating_point()))
        return gap(found[1], found[0])

    def causal(self) -> bool:
        """Whether no token hears of a later one."""
        return not bool((self.reaches(IDS, 20)[:20] > EQUAL).any())

    def packed(self, name: str) -> dict[str, Any]:
        """Two texts in a row, positions that begin anew: does the first reach the second?"""
        places = self.at(torch.cat([torch.arange(10), torch.arange(14)])[None])["position_ids"]
        choose(self.model, name)

        def leak(rows: int, **options: Any) -> str:
            moved = self.reaches(IDS[:rows], 7, position_ids=places.expand(rows, -1), **options)[10:].max()
            return "leaks" if float(moved) > EQUAL / 10 else "isolated"

        configs = self.model.config, self.model.config.get_text_config()
        caches = "use_cache" in self.names or any(hasattr(each, "use_cache") for each in configs)
        no_cache: dict[str, Any] = {"use_cache": False} if caches else {}
        ones = torch.ones(1, 24, dtype=torch.long)
        return {
            "plain": tried(lambda: leak(1, **no_cache)),
            "with a cache": tried(leak, 1),
            "with a mask of ones": tried(lambda: leak(1, **no_cache, attention_mask=ones)),
            "two rows": tried(lambda: leak(2, **no_cache)),
        }

    def four_axes(self, name: str, causal: Any) -> bool:
        """Whether a token that a mask of four axes hides from all others stays hidden."""
        choose(self.model, name)
        allowed = torch.ones(24, 24, dtype=torch.bool)
        allowed = allowed.tril() if causal is True else allowed
        allowed[:, 1] = torch.arange(24) == 1
        mask = torch.zeros(24, 24).masked_fill(~allowed, torch.finfo(torch.float32).min)
        moved = self.reaches(IDS[:1], 1, **{self.mask: (allowed if name == "sdpa" else mask)[None, None]})
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
        whole = float((sums - 1).abs().max()) < 1e-3
        return f"{len(there)} tables" + ("" if whole else ", whose rows do not sum to one")

    def padded(self, positions: bool = False) -> float:
        """A text with padding before it, against the text alone."""
        mask = F.pad(torch.ones(1, 24, dtype=torch.long), (5, 0))
        options = self.at((mask.cumsum(-1) - 1).clamp_min(0)) if positions else {}
        alone = self.at(torch.arange(24)[None]) if positions else {}
        ids = F.pad(IDS[:1], (5, 0), value=1)
        return gap(self.out(ids, **{self.mask: mask}, **options)[:, 5:], self.out(IDS[:1], **alone))

    def places(self) -> float:
        """Positions from zero, against none given."""
        return gap(self.out(IDS[:1], **self.at(torch.arange(24)[None])), self.out(IDS[:1]))

    def _read(self, ids: Tensor, cache: Any = None, **options: Any) -> tuple[Tensor, Any]:
        name = next((name for name in CACHES if name in self.names), CACHES[0])
        made = self.run(ids, use_cache=True, **options, **({} if cache is None else {name: cache}))
        cache = next((made[name] for name in CACHES if made.get(name) is not None), None)
        if cache is None:
            raise ValueError("it keeps no cache")
        return made.last_hidden_state, cache

    def steps(self, sizes: tuple[int, ...], positions: bool = False) -> float:
        """The text in pieces of these sizes, against the text at once."""
        cache, made = None, []
        places = torch.arange(24).expand(2, -1)
        for part, at in zip(IDS.split(sizes, 1), places.split(sizes, 1), strict=True):
            x, cache = self._read(part, cache, **(self.at(at) if positions else {}))
            made.append(x)
        return gap(torch.cat(made, 1), self.out(IDS))

    def crop(self) -> dict[str, Any]:
        """Three tokens read and taken back, and others read in their place; and whether the cache says that it can."""
        _, cache = self._read(IDS[:, :17])
        said = getattr(cache, "is_croppable", None)
        if hasattr(cache, "activate_past_recording"):
            cache.activate_past_recording()
        _, cache = self._read(torch.full((2, 3), 62), cache)
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
            held = [x for x in tensors_in(cache, objects=True) if x.is_floating_point()]
            sizes.append(sum({(x.data_ptr(), *x.shape): x.nbytes for x in held}.values()))  # what is shared counts once
        early, late = (sizes[1] - sizes[0]) / 4, (sizes[3] - sizes[2]) / 8
        return {"early": early, "late": late, "fixed": sizes[0] - 4 * early, "after_72": sizes[3]}


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
    named = sorted(set(map(str, report.causes)))
    return {"verdict": report.verdict, "named": named, "unwatched": len(report.unwatched)}
