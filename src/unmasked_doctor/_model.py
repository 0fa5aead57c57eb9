"""Every attention of a whole model: what each computed in a run, and which layer is unlike the others."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from unmasked import _generators, _modes
from unmasked._private import uncompiled_module
from unmasked_doctor._listen.calls import Call, Match, laid, matches_in
from unmasked_doctor._listen.hear import Event, heard
from unmasked_doctor._listen.wires import wires_of
from unmasked_doctor._report import Finding, Layer, ModelReport, Open, Standing
from unmasked_doctor._subject import brief
from unmasked_doctor._target import with_article
from unmasked_doctor._unlike import FACTS, Seen, odd_ones, tiled

__all__ = ["diagnose_model"]

_PADDING = "attention_mask"
Inputs = tuple[tuple[Any, ...], dict[str, Any]]
_CROSS = re.compile(r"(?i)cross|enc_?dec|encoder_attn|src_attn|encdec")


@dataclass
class _Run:
    """A run of a model.

    Attributes:
        events: What was heard.
        calls: Its calls of attention, in their order.
        missed: What looked like attention and could not be laid out.
        outputs: Of each module that ran, the first tensor that came out last; None where none did.
    """

    events: list[Event] = field(default_factory=list)
    calls: list[Seen] = field(default_factory=list)
    missed: Counter[str] = field(default_factory=Counter)
    outputs: dict[str, Tensor | None] = field(default_factory=dict)


def _hear(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], default: torch.device | None) -> _Run:
    """Run a model in evaluation mode, and hear its attention."""

    def forward() -> object:
        with contextlib.nullcontext() if default is None else default:
            return model(*args, **kwargs)

    run, modes, stack = _Run(), [(module, module.training) for module in model.modules()], [""]
    modules = dict(uncompiled_module(model).named_modules())
    items = next((x.size(0) for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.dim()), 1)
    try:
        model.eval()
        with _generators.forked(), torch.no_grad(), _followed(modules, run, stack):
            run.events, _ = heard(forward, where=lambda: stack[-1])
    finally:
        for module, mode in modes:
            module.training = mode
    counted: Counter[str] = Counter()
    used: set[int] = set()
    for match in matches_in(run.events):
        soft = run.events[match.at]
        if match.at == match.place:
            continue
        used.add(match.at)
        call, heads_at = _laid(run.events, match, items), soft.module
        if call is None:
            run.missed[f"a softmax over {tuple(soft.result.shape)} in {heads_at!r}, in no known layout"] += 1
            continue
        own = modules[heads_at].named_parameters(remove_duplicate=False) if heads_at in modules else ()
        shapes = sorted(tuple(x.shape) for _, x in own)
        place = f"{re.sub(r'[0-9]+', '*', heads_at)} {counted[heads_at]} {shapes}"
        counted[heads_at] += 1
        native = type(modules.get(heads_at)) is nn.MultiheadAttention
        kernel = "eager" if native and soft.kernel == "written out" else soft.kernel
        run.calls.append(
            Seen(heads_at, place, call, soft.facts[0], kernel, native, wires_of(run.events, call, heads_at))
        )
    for number, event in enumerate(run.events):
        if event.kind == "softmax" and number not in used and event.result.dim() > 2:
            cause = "of what is no product of two tensors" if event.ids[0] is None else "which averages no values"
            run.missed[f"a softmax over {tuple(event.result.shape)} in {event.module!r}, {cause}"] += 1
    return run


@contextlib.contextmanager
def _followed(modules: Mapping[str, nn.Module], run: _Run, stack: list[str]) -> Iterator[None]:
    """Note which module runs, and what comes out of each."""
    handles = []
    for name, module in modules.items():

        def enter(_: nn.Module, args: Any, name: str = name) -> None:
            stack.append(name)

        def leave(_: nn.Module, args: Any, output: Any, name: str = name) -> None:
            if stack[-1] == name:
                stack.pop()
            first = output[0] if isinstance(output, tuple) and output else output
            run.outputs[name] = first if isinstance(first, Tensor) else None

        handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _laid(events: list[Event], match: Match, items: int) -> Call | None:
    """Lay a call out by the axes of its softmax: the last but that of the keys is the queries'."""
    soft = events[match.at]
    ids = soft.ids[0]
    assert ids is not None
    columns = events[match.start].result.size(-1)
    along = (ids - events[match.start].first) % columns if not match.swapped else (ids - ids.min()) // columns
    axes = [n for n in range(ids.dim()) if ids.size(n) > 1 and bool((along.select(n, 1) != along.select(n, 0)).any())]
    keys = axes[-1] if axes else ids.dim() - 1
    rest = [size for n, size in enumerate(ids.shape) if n != keys]
    queries = rest[-1] if rest else 1
    for batch in (items, 1, *rest[:1]):
        if match.query.size(0) % batch == 0:
            call = laid(events, match, (batch, queries, match.key.size(1)))
            if call is not None:
                return call
    return None


def diagnose_model(model: nn.Module, inputs: Any) -> ModelReport:
    """Examine every attention of a whole model: what each layer computes, and which layer has a mistake.

    The model runs a few times, in evaluation mode and with its own parameters; it is left as it was. Each call of
    attention is heard, fused or written out, with its queries, keys, values, weights and masks, and with the layers
    that it reads and that read it. What is wrong in itself is found in any layer; what only its likes do otherwise, in
    one layer of three or more that have the same place in the model, and parameters of the same shapes.

    Args:
        model: The model: of transformers, of PyTorch's layers, or your own.
        inputs: What it takes in a forward pass: a tensor, a tuple, or a dict of keyword arguments. With three tokens
            or more, and several items.

    Returns:
        The report: ``report.ok``, ``report.verdict``, ``report.layers``, and what could not be watched.

    Raises:
        TypeError: model is no module, or inputs are none of these.
        ValueError: the model does not run with these inputs.

    Examples:
        >>> layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
        >>> model = nn.TransformerEncoder(layer, 4)
        >>> report = diagnose_model(model, torch.randn(2, 5, 6))
        >>> report.ok
        True
        >>> report.layers[3].name, report.layers[3].heads
        ('layers.3.self_attn', 2)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is {with_article(model)}; pass a torch.nn.Module")
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(inputs, Tensor):
        args = (inputs,)
    elif isinstance(inputs, Mapping):
        kwargs = dict(inputs)
    elif isinstance(inputs, tuple):
        args = inputs
    else:
        raise TypeError(f"inputs is {with_article(inputs)}; pass a tensor, a tuple, or a dict of keyword arguments")
    with _modes.elsewhere() as default:
        try:
            run = _hear(model, args, kwargs, default)
        except Exception as error:  # whatever a model may raise
            raise ValueError(f"{type(model).__name__} does not run with these inputs: {brief(error)}") from error
        return _Examination(model, args, kwargs, run, default).report()


class _Examination:
    def __init__(
        self,
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: _Run,
        default: torch.device | None,
    ):
        self.model, self.args, self.kwargs, self.run, self.default = model, args, kwargs, run, default
        self.modules = dict(uncompiled_module(model).named_modules())
        self.findings: list[Finding] = []
        self.cautions: list[Finding] = []
        self.passed: list[str] = []
        self.open: list[Open] = []
        missed = run.missed.items()
        self.unwatched = [f"{text}, {'once' if count == 1 else f'{count} times'}" for text, count in missed]
        self.seen = run.calls
        self.groups: dict[str, list[Seen]] = {}
        for seen in self.seen:
            self.groups.setdefault(seen.place, []).append(seen)

    def report(self) -> ModelReport:
        if self.seen:
            self.padding()
            self.places()
            for seen in self.seen:
                self.alone(seen)
            self.among_others()
            self.information()
        self.silent()
        layers = tuple(self.layer(seen) for seen in self.seen)
        self.findings.sort(key=lambda finding: finding.how == "open")
        return ModelReport(
            type(self.model).__name__,
            layers,
            tuple(self.findings),
            tuple(self.cautions),
            tuple(self.passed),
            tuple(self.open),
            tuple(dict.fromkeys(seen.name for seen in self.seen)),
            tuple(self.unwatched),
        )

    def find(self, seen: Seen | None, check: str, cause: str | None, text: str, evidence: str, **more: Any) -> None:
        where = "" if seen is None else seen.name
        known = [finding for finding in self.findings if finding.where == where]
        if not any(finding.told == text or (cause and finding.cause == cause) for finding in known):
            self.findings.append(Finding(check, cause, text, evidence, where=where, **more))

    # One layer

    def alone(self, seen: Seen) -> None:
        """Find what is wrong wherever it stands."""
        call, wires, turns = seen.call, seen.wires, seen.wires.turns
        row = f"the weights of a query sum to {float(call.weights[0, 0, -1].sum()):.3g}"
        blind = call.weights.isnan().all(-1)
        sides = {name: turn.kind for name, turn in turns.items()}
        which, other = ("query", "key") if sides.get("query") == "turned" else ("key", "query")
        strays = [
            role for role, tokens in wires.tokens.items() if tokens == "other tokens" and role not in wires.viewed
        ]
        firsts = [role for role, tokens in wires.tokens.items() if tokens == "the first item"]
        view = "each head reads just what view(batch, heads, tokens, head_dim) gives it"
        rows: list[tuple[object, str, str | None, str, str, Standing]] = [
            (call.weights.isnan().any() and not (blind | ~call.weights.isnan().any(-1)).all(), "weights", None,
             "some of its weights are not numbers", "in a row, some are NaN and others are not", "followed"),
            (call.over == "queries" and not seen.sums, "weights", "softmax-over-queries",
             "the softmax runs over the queries: the weights of a query do not sum to one, those of a key do", row,
             "followed"),
            (call.dropout, "dropout", "dropout-in-eval",
             f"weights are dropped with probability {call.dropout:g} though the model is in evaluation mode",
             f"its call has dropout_p {call.dropout:g}", "followed"),
            (wires.viewed, "heads", "view-without-transpose",
             f"the heads of its {' and '.join(wires.viewed)} are split by a view alone: a head reads the features of "
             "other tokens", view, "followed"),
            (firsts, "tokens", "only-first-item", f"every item has the {' and '.join(firsts)} of the first one",
             "each head reads rows of the first item", "followed"),
            (strays and not wires.viewed and len(strays) < len(wires.tokens), "tokens", None,
             f"its {' and '.join(strays)} is read of other tokens than its own", "by the rows of the layer before it",
             "followed"),
            (wires.merge == "viewed", "heads", "merge-without-transpose",
             "its heads are merged without transposing back: an output mixes the features of other tokens",
             "each row that the next layer reads is just what reshape without transpose gives", "followed"),
            (seen.ones, "masks", "boolean-mask-added",
             "what is added to the scores has only zeros and ones: a mask that hides nothing",
             "the scores differ from the products by 0 or 1", "open"),
            (sorted(sides.values()) == ["plain", "turned"], "positions", None,
             f"positions turn its {which} and not its {other}: scores depend on more than the distance",
             f"the {other} is what its layer gave", "open"),
            (wires.own and _CROSS.search(seen.name), "sources", None,
             "its name says that it attends to another sequence, and its keys are made of its own",
             "keys and queries are made of one tensor", "open"),
        ]  # fmt: skip
        for holds, check, cause, text, evidence, how in rows if seen.finite else ():
            if holds:
                self.find(seen, check, cause, text, evidence, how=how)

    # One layer among those of its place

    def among_others(self) -> None:
        """Find the layer that is unlike its likes, in what no design varies: how positions turn it may."""
        for group in self.groups.values():
            group = [seen for seen in group if seen.finite]
            for name, fact in FACTS.items():
                for seen, value, usual, count in odd_ones(group, fact.of):
                    follows = fact.follows and any(finding.where == seen.name for finding in self.findings)
                    if follows or (fact.good and value):
                        continue
                    cause, text, evidence = fact.explain(seen, value, usual)
                    self.find(seen, name, cause, text, f"{evidence}; {count} of {len(group)} layers do otherwise")
        if any(len(group) >= 3 for group in self.groups.values()):
            self.passed.append("each layer compared with its likes")
        other = [seen for seen in self.seen if tiled(seen.wires.reads.get("key"))]
        if other and len(other) > len(self.seen) / 2:
            text = "its key heads are repeated in the order 0 1 0 1; those of published models are in the order 0 0 1 1"
            evidence = f"so in {len(other)} of {len(self.seen)} calls; right, if the checkpoint was trained so"
            self.cautions.append(Finding("heads", "repeat-for-repeat-interleave", text, evidence))

    # With other inputs

    def again(self, check: str, how: str, inputs: Inputs | None) -> _Run | None:
        """Hear the model again; None where there are no such inputs, or other calls, or where it does not run."""
        if inputs is None:
            return None
        try:
            run = _hear(self.model, *inputs, self.default)
        except Exception as error:
            self.open.append(Open(check, f"the model to run {how}: {brief(error)}"))
            return None
        return run if [call.name for call in run.calls] == [seen.name for seen in self.seen] else None

    def padding(self) -> None:
        """Hide the first tokens of an item by the model's own argument, and see who looks at them."""
        made = self._padded()
        run = self.again("padding", f"with {_PADDING}", made)
        if made is None or run is None:
            return
        mask = made[1][_PADDING].to("cpu", torch.bool)
        items, tokens = mask.shape
        for seen, now in zip(self.seen, run.calls, strict=True):
            weights = now.call.weights.amax(1)
            if weights.size(-1) != tokens or weights.size(0) != items:
                continue
            real = mask if weights.size(1) == tokens else torch.ones(weights.shape[:2], dtype=torch.bool)
            leak = (weights > 0) & ~mask[:, None, :] & real[..., None]
            if not leak.any() and seen.causal and not mask[:, -1].all():
                continue  # what is causal does not see what comes last anyway
            seen.hides_padding = not leak.any()
        known = [seen.hides_padding for seen in self.seen if seen.hides_padding is not None]
        if known and not any(known):
            text = "no layer hides what attention_mask says is padding"
            self.find(None, "padding", "padding-ignored", text, "the weights of padded tokens are not zero")
        elif known and all(known):
            self.passed.append("padding is hidden")

    def _padded(self) -> Inputs | None:
        """Its inputs with an attention_mask that hides something, or as they were if they have one."""
        given = self.kwargs.get(_PADDING)
        if isinstance(given, Tensor) and given.dim() == 2 and not (given == 1).all():
            return self.args, self.kwargs
        parameters = inspect.signature(self.model.forward).parameters
        ids = self.kwargs.get("input_ids", self.args[0] if self.args else None)
        if _PADDING not in parameters or len(self.args) > 1 or not isinstance(ids, Tensor):
            return None
        if ids.dim() != 2 or ids.is_floating_point() or ids.size(1) < 3:
            return None
        mask = torch.ones_like(ids)
        mask[-1, : ids.size(1) // 3] = 0
        return self.args, self.kwargs | {_PADDING: mask}

    def places(self) -> None:
        """Give every place the same token: what turns queries and keys by their places makes scores of the distance.

        Every value is the same then, and so is what each layer gives, whatever its weights are: or it is not asked.
        """
        square = [seen for seen in self.seen if seen.call.query.size(-2) == seen.call.key.size(-2) > 2]
        alike = self._inputs(lambda x: x[:, :1].expand_as(x).clone(), {seen.call.key.size(-2) for seen in square})
        run = self.again("positions", "on a token that is repeated", alike)
        for seen, now in zip(self.seen, run.calls, strict=True) if run else ():
            product, value = now.call.product, now.call.value
            if seen in square and (value - value[:, :, :1]).abs().max() < 1e-3 * value.abs().max():
                apart = (product[..., 1:, 1:] - product[..., :-1, :-1]).abs().max()
                seen.by_distance = bool(apart < 1e-3 * product.abs().max())

    def information(self) -> None:
        """Change the later tokens, and see whether earlier outputs move though every call is causal."""
        calls = [seen for seen in self.seen if seen.call.query.size(-2) > 2]
        lengths = {seen.call.query.size(-2) for seen in calls}
        if len(lengths) != 1 or not all(seen.causal for seen in calls):
            return
        tokens, check = min(lengths), "no output sees later tokens"
        half = tokens // 2

        def change(x: Tensor) -> Tensor:
            """Other tokens in its second half, taken from its own."""
            later = x[:, half:].roll(1, 1)
            if torch.equal(later, x[:, half:]):
                later = x[:, :1].expand_as(later)
            return torch.cat([x[:, :half], later], 1)

        run = self.again(check, "on other tokens", self._inputs(change, lengths))
        after, known = run.outputs if run else {}, False
        for name, x in self.run.outputs.items():
            y = after.get(name)
            if x is None or y is None or x.shape != y.shape or x.shape[1:2] != (tokens,) or not x.is_floating_point():
                continue
            known = True
            if bool((x - y)[:, :half].abs().max() > 1e-3 * x.abs().mean()):
                text = "earlier outputs move when later tokens change, though every call of attention is causal"
                if not self.findings:  # one of which may be the reason
                    self.find(None, check, None, text, f"first in {name!r}")
                return
        if known:
            self.passed.append(check)

    def _inputs(self, change: Callable[[Tensor], Tensor], lengths: set[int]) -> Inputs | None:
        """The inputs with other tokens; None where none of them has as many."""

        def changed(x: Any) -> Any:
            known = isinstance(x, Tensor) and x.dim() >= 2 and x.size(1) in lengths and x.dtype != torch.bool
            return change(x) if known and not (x.is_floating_point() and x.dim() < 3) else x

        keep = {name: x for name, x in self.kwargs.items() if "mask" in name or "position" in name or "type" in name}
        args, kwargs = tuple(changed(x) for x in self.args), {n: changed(x) for n, x in self.kwargs.items()} | keep
        same = all(x is y for x, y in zip((*args, *kwargs.values()), (*self.args, *self.kwargs.values()), strict=False))
        return None if same else (args, kwargs)

    # What was not heard

    def silent(self) -> None:
        """Name the modules that are called attention and made no call that was heard."""
        called = {seen.name for seen in self.seen}
        for name, module in self.modules.items():
            if not re.search(r"(?i)(attention|attn)$", type(module).__name__) or name not in self.run.outputs:
                continue
            if not any(call == name or call.startswith(f"{name}.") or name.startswith(f"{call}.") for call in called):
                self.unwatched.append(f"{name} ({type(module).__name__}): no call of attention was heard in it")

    def layer(self, seen: Seen) -> Layer:
        call, turns = seen.call, seen.wires.turns
        queries, keys = call.weights.shape[-2:]
        kind = "causal" if seen.causal else "keys of another length" if queries != keys else "every token sees every"
        if not seen.causal and queries == keys and not bool((call.weights > 0).all()):
            kind = "masked"
        choices = {
            "positions": any(turn.kind == "turned" for turn in turns.values()),
            "norms of queries and keys": any(turn.kind == "other" for turn in turns.values()),
            "what is added to its scores": seen.bias,
            f"a window of {seen.window}": seen.window is not None,
            "its mask": kind == "masked",
        }
        return Layer(
            name=seen.name,
            kind=kind,
            kernel=seen.kernel,
            heads=call.query.size(1),
            kv_heads=seen.kv_heads,
            head_dim=call.query.size(-1),
            causal=seen.causal,
            window=seen.window,
            scale=seen.scale,
            bias=seen.bias,
            turned=turns["query"].kind == "turned" if "query" in turns else None,
            findings=tuple(finding for finding in self.findings if finding.where == seen.name),
            verdict=seen.verdict,
            given=tuple(name for name, holds in choices.items() if holds and seen.verdict != "open"),
        )
