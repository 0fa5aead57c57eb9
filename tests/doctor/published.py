"""The doctor on every model of transformers that can be made small: ``python tests/doctor/published.py``.

Each model is built with random weights, at two sizes, and examined with one, two and three items. None may be accused.
The sweep goes on after a failure; at its end it lists what was accused, and what could not be examined and why.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import io
import random
import re
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

MOST = (8_000_000, 8_000_000, 16_000_000, 32_000_000, 16_000_000)  # parameters by size: what has more is not small
# The atlas makes these: layers enough for each kind of a model that mixes kinds, and heads wide enough for turns that a
# config deals out by numbers of features.
_ATLAS = {
    "heads": 4, "kv": 2, "layers": 4, "inner": 28, "tokens": 24, "image": 32, "patch": 8, "chosen": 5, "chunk": 8,
    "frames": 96,
}  # fmt: skip
SIZES: tuple[dict[str, int], ...] = (
    {"heads": 6, "kv": 2, "head": 4, "layers": 4, "inner": 20, "tokens": 7, "image": 32, "patch": 8},
    {"heads": 4, "kv": 2, "head": 8, "layers": 3, "inner": 28, "tokens": 10, "image": 48, "patch": 8},
    *(_ATLAS | each for each in ({"heads": 6, "head": 24, "layers": 6, "inner": 20}, {"head": 128}, {"head": 64})),
)
EXAMINED = (0, 1)  # of the sizes, those at which the doctor examines
ITEMS = (1, 2, 3)
# What a number of a config is called, and which size it takes; the first that fits.
RULES: tuple[tuple[str, str | int], ...] = (
    (r"(num|n)_(key_value|kv)_heads|num_kv_heads|.*_key_value_heads", "kv"),
    (r".*linear_num_(key|value)_heads", 2),
    (r"mamba_(n|num)_heads", "double"),
    (r"(mamba_)?n_groups", 1),
    (r"mamba_(d_head|head_dim)", "head"),
    (r".*linear_(key|value)_head_dim", "head"),
    (r"(.*_)?(num_attention_heads|num_heads|n_heads?|attention_heads|nhead)", "heads"),
    (r"(.*_)?(head_dim|d_kv|attention_head_size|d_head|kv_channels)", "head"),
    (r"(.*_)?(num_hidden_layers|num_layers|n_layers?|encoder_layers|decoder_layers)", "layers"),
    (r"depth", "layers"),
    (r"(.*_)?(intermediate_size|ffn_dim|d_ff|n_inner|ffn_hidden_size|d_inner|mlp_dim|encoder_ffn_dim)", "inner"),
    (r"(hidden_size|d_model|n_embd|embed_dim|embedding_size|decoder_hidden_size|emb_dim|dim|hidden_dim)", "width"),
    (r"(vision_hidden_size|text_hidden_size|projection_dim|out_hidden_size|d_embed|output_dim)", "width"),
    (r"qk_(rope|nope)_head_dim|v_head_dim", "head"),
    (r"(q|kv)_lora_rank", 8),
    (r"(n_routed|num_local|num)_experts", 4),
    (r"num_experts_per_tok|moe_topk|top_k", 2),
    (r"n_group|topk_group|n_shared_experts", 1),
    (r"first_k_dense_replace", 1),
    (r"(.*_)?vocab_size(_per_layer_input)?", 64),
    (r"hidden_size_per_layer_input", 8),
    (r"(.*_)?(max_position_embeddings|n_positions|max_source_positions|max_target_positions)", 128),
    (r"sliding_window|attention_chunk_size|local_attention", 4),
    (r"index_topk", "chosen"),
    (r"max_length", "frames"),
    (r"(mamba_)?chunk_size", "chunk"),
    (r"image_size", "image"),
    (r"patch_size", "patch"),
    (r"(.*_)?(pad|bos|eos|decoder_start|sep|cls|unk|mask)_token_id", 1),
)
# What no rule says: which layers are of which kind.
MORE: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": 4},
}
KEPT = ("RULES", "all but the heads' sizes", "layers and words alone", "also what a config leaves open")


@dataclass(frozen=True)
class Case:
    """One model at one size."""

    kind: str
    size: int
    items: int

    def __str__(self) -> str:
        return f"{self.kind}, size {self.size}, {self.items} item{'s' if self.items > 1 else ''}"


def kinds() -> list[str]:
    """The types of models that have a class of their own."""
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    return sorted(auto.MODEL_MAPPING_NAMES)


def small(config: Any, size: dict[str, int], how: int, depth: int = 0) -> dict[str, Any]:
    """The arguments of a config that make its model small."""
    sizes = size | {"width": size["heads"] * size["head"], "double": 2 * size["heads"]}
    names = inspect.signature(type(config).__init__).parameters
    made: dict[str, Any] = {}
    for name in [*names, *getattr(type(config), "attribute_map", {})]:
        try:
            value = getattr(config, name, None)
        except Exception:  # of a config whose layers differ in it
            continue
        if hasattr(value, "to_dict") and depth < 3:
            made[name] = small(value, size, how, depth + 1)
            if getattr(value, "model_type", ""):
                made[name]["model_type"] = value.model_type
            continue
        if isinstance(value, bool) or not (isinstance(value, int) or value is None):
            continue
        for rule, to in RULES:
            if re.fullmatch(rule, name):
                skip = (how == 1 and to in ("head", "kv")) or (how == 2 and to not in ("layers", 64, 128, 1))
                if name == "num_heads" and hasattr(config, "expand"):  # of a state, not of attention
                    to = "double"
                if to == "kv" and hasattr(config, "kv_lora_rank"):
                    to = "heads"  # a latent makes keys for every head
                if not skip and (value is not None or to == 1 or how == 3) and (to in sizes or isinstance(to, int)):
                    made[name] = sizes[to] if isinstance(to, str) else to
                break
    return made


def built(kind: str, size: int, how: int) -> Any:
    """A small model with random weights."""
    transformers = importlib.import_module("transformers")
    config_class = transformers.AutoConfig.for_model(kind).__class__
    config = config_class(**small(config_class(), SIZES[size], how) | MORE.get(kind, {}))
    types = getattr(config, "layer_types", None)
    if types is not None and len(types) != config.num_hidden_layers:
        config.layer_types = (list(types) * config.num_hidden_layers)[: config.num_hidden_layers]
    mapping = importlib.import_module("transformers.models.auto.modeling_auto").MODEL_MAPPING
    model_class = mapping[config_class]
    model_class = model_class[0] if isinstance(model_class, tuple | list) else model_class
    with torch.device("meta"):
        count = sum(x.numel() for x in model_class(config).parameters())
    if count > MOST[size]:
        raise ValueError(f"it has {count:,} parameters")
    torch.manual_seed(0)
    return model_class(config).eval()


def inputs_of(model: Any, size: int, items: int) -> Iterator[dict[str, Any]]:
    """What the model may take, the likeliest first."""
    names, config = inspect.signature(model.forward).parameters, model.config
    tokens, image = SIZES[size]["tokens"], SIZES[size]["image"]
    draw = torch.Generator().manual_seed(items)
    ids = torch.randint(4, 60, (items, tokens), generator=draw)
    if "input_ids" in names:
        yield {"input_ids": ids} | ({"decoder_input_ids": ids[:, :-1]} if "decoder_input_ids" in names else {})
        yield {"input_ids": ids}
    own = getattr(config, "image_size", None)
    for edge in (own, image, 64, 224):
        if not isinstance(edge, int) or edge > 256:
            continue
        pixels = torch.randn(items, getattr(config, "num_channels", 3) or 3, edge, edge, generator=draw)
        if "pixel_values" in names:
            yield {"pixel_values": pixels} | ({"input_ids": ids} if "input_ids" in names else {})
        if "pixel_values_videos" in names or "pixel_values" in names:
            name = "pixel_values_videos" if "pixel_values_videos" in names else "pixel_values"
            frames = getattr(config, "num_frames", 4)
            yield {name: pixels[:, None].expand(-1, frames, -1, -1, -1).clone()}
    if "input_values" in names:
        yield {"input_values": torch.randn(items, 4000, generator=draw)}
        length = getattr(config, "max_length", 64)
        yield {"input_values": torch.randn(items, length, getattr(config, "num_mel_bins", 16), generator=draw)}
        yield {"input_values": torch.randn(items, 1, 4000, generator=draw)}
    if "input_features" in names:
        bins = getattr(config, "num_mel_bins", None) or getattr(config, "feature_size", None) or 80
        more = {"decoder_input_ids": ids} if "decoder_input_ids" in names else {}
        for shape in ((items, bins, 256), (items, 64, bins), (items, 64, 160)):
            yield {"input_features": torch.randn(*shape, generator=draw)} | more
    if "inputs_embeds" in names:
        width = getattr(config, "hidden_size", None) or getattr(config, "d_model", 24)
        yield {"inputs_embeds": torch.randn(items, tokens, width, generator=draw)}
    if "past_values" in names:
        length = getattr(config, "context_length", 32)
        yield {"past_values": torch.randn(items, length, getattr(config, "num_input_channels", 1), generator=draw)}


def running(case: Case) -> tuple[Any, dict[str, Any]]:
    """A model, and inputs that it runs on."""
    problem: Exception | None = None
    for how in range(len(KEPT)):
        try:
            model = built(case.kind, case.size, how)
        except Exception as error:
            problem = problem or error
            continue
        for inputs in inputs_of(model, case.size, case.items):
            try:
                with torch.no_grad():
                    model(**inputs)
            except Exception as error:
                problem = problem or error
                continue
            return model, inputs
    raise problem or ValueError("it takes no inputs that are known here")


def quiet() -> contextlib.ExitStack:
    """Without what models print and warn of."""
    stack = contextlib.ExitStack()
    stack.enter_context(warnings.catch_warnings())
    warnings.simplefilter("ignore")
    stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
    importlib.import_module("transformers").logging.set_verbosity_error()
    return stack


def cases(sizes: list[int], items: list[int], only: str = "") -> list[Case]:
    """Every model at every size that is asked for."""
    return [Case(kind, size, n) for kind in kinds() if re.search(only, kind) for size in sizes for n in items]


def examined(model: Any, inputs: dict[str, Any]) -> Any:
    """The report on one model."""
    from unmasked_doctor import diagnose_model

    with quiet():
        return diagnose_model(model, inputs)


def too_long(*_: Any) -> None:
    """Stop a case."""
    raise TimeoutError("it took too long")


def main() -> int:
    """Examine, and list what was accused and what could not be examined."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="a pattern that the types of models match")
    parser.add_argument("--sizes", type=int, nargs="*", default=list(EXAMINED))
    parser.add_argument("--items", type=int, nargs="*", default=list(ITEMS))
    parser.add_argument("--sample", type=int, help="draw so many cases; all if it is left out")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--most", type=int, default=240, help="seconds that one case may take")
    parser.add_argument("--verbose", action="store_true", help="print each report that accuses")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = cases(options.sizes, options.items, options.only)
    if options.sample is not None:
        chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))
    accused, failed, skipped, made = [], [], {}, set()
    signal.signal(signal.SIGALRM, too_long)
    for case in chosen:
        if case.kind in skipped:
            continue
        begun = time.perf_counter()
        signal.alarm(options.most)
        try:
            with quiet():
                model, inputs = running(case)
        except Exception as error:
            skipped[case.kind] = f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}"
            continue
        try:
            report = examined(model, inputs)
        except Exception:
            failed.append(case)
            print(f"FAILED {case}\n{traceback.format_exc()}", flush=True)
            continue
        finally:
            signal.alarm(0)
        taken = time.perf_counter() - begun
        told = f"{case}: {report.verdict}, {len(report.layers)} calls, {taken:.1f} s"
        print(f"{'ok' if report.ok else 'ACCUSED':8} {told}", flush=True)
        made.add(case.kind)
        if not report.ok:
            accused.append(case)
        if options.verbose and (not report.ok or report.cautions):
            for finding in (*report.named, *report.cautions):
                print(f"    {finding.where}: {finding.cause}: {finding.told} | {finding.evidence}", flush=True)
    print(f"\n{len(made)} models examined, {len(accused)} cases accused, {len(failed)} failed, {len(skipped)} not made")
    for case in (*accused, *failed):
        print(f"  {case}")
    for kind, reason in skipped.items():
        print(f"  not made: {kind}: {reason}")
    return 1 if accused or failed else 0


if __name__ == "__main__":
    sys.exit(main())
