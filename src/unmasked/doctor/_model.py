"""Every attention of a whole model: what each computed in a run, and which layer is unlike the others."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unmasked.doctor._diagnose import diagnose
from unmasked.doctor._heard import Run, hear
from unmasked.doctor._report import Finding, Inconclusive, Layer, ModelReport, Report
from unmasked.doctor._subject import said
from unmasked.doctor._unlike import BY_DESIGN, EXPLAIN, FACTS, FOLLOWS, Seen, odd_ones, tiled
from unmasked.doctor._wires import wires_of

__all__ = ["diagnose_model"]

_PADDING = "attention_mask"


def diagnose_model(model: nn.Module, inputs: Any) -> ModelReport:
    """Examine every attention of a whole model: what each layer computes, and which layer has a mistake.

    The model runs a few times, in evaluation mode and with its own parameters; it is left as it was. Each call of
    attention is heard, fused or written out, with its queries, keys, values, weights and masks, and with the layers
    that it reads and that read it. What is wrong in itself is found in any layer; what only its likes do otherwise, in
    one layer of four or more that have the same place in the model.

    Args:
        model: The model: of transformers, of PyTorch's layers, or your own.
        inputs: What it takes in a forward pass: a tensor, a tuple, or a dict of keyword arguments. With three tokens
            or more, and several items.

    Returns:
        The report: ``report.ok``, ``report.decided``, ``report.layers``, and what could not be watched.

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
        raise TypeError(f"model is a {type(model).__name__}; pass a torch.nn.Module")
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(inputs, Tensor):
        args = (inputs,)
    elif isinstance(inputs, Mapping):
        kwargs = dict(inputs)
    elif isinstance(inputs, tuple):
        args = inputs
    else:
        raise TypeError(f"inputs is a {type(inputs).__name__}; pass a tensor, a tuple, or a dict of keyword arguments")
    try:
        run = hear(model, args, kwargs)
    except Exception as error:
        raise ValueError(f"{type(model).__name__} does not run with these inputs: {said(error)}") from error
    return _Examination(model, args, kwargs, run).report()


class _Examination:
    def __init__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], run: Run):
        self.model, self.args, self.kwargs, self.run = model, args, kwargs, run
        self.modules = dict(getattr(model, "_orig_mod", model).named_modules())
        self.findings: list[Finding] = []
        self.cautions: list[Finding] = []
        self.passed: list[str] = []
        self.open: list[Inconclusive] = []
        self.unwatched = [f"{what}, {_times(count)}" for what, count in run.missed.items()]
        counted: Counter[str] = Counter()
        self.seen = []
        for heard in run.calls:
            place = f"{re.sub(r'[0-9]+', '*', heard.module)} {counted[heard.module]}"
            counted[heard.module] += 1
            self.seen.append(Seen(heard.module, place, heard))
        self.groups: dict[str, list[Seen]] = {}
        for seen in self.seen:
            self.groups.setdefault(seen.place, []).append(seen)

    def report(self) -> ModelReport:
        if self.seen:
            self.wire()
            for seen in self.seen:
                seen.causal, seen.window = _reach(seen.heard.weights)
                self.alone(seen)
            self.among_others()
            self.padding()
            self.information()
            self.by_themselves()
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

    def find(self, seen: Seen | None, check: str, cause: str | None, told: str, evidence: str, **more: Any) -> None:
        where = "" if seen is None else seen.name
        known = [found for found in self.findings if found.where == where]
        if not any(found.told == told or (cause and found.cause == cause) for found in known):
            self.findings.append(Finding(check, cause, told, evidence, where=where, **more))

    def wire(self) -> None:
        """Run once more, with the graph between the calls and their layers."""
        try:
            wired = hear(self.model, self.args, self.kwargs, wired=True)
        except Exception as error:
            self.open.append(Inconclusive("what each head reads", f"the model to run with gradients: {said(error)}"))
            return
        if [call.module for call in wired.calls] != [seen.name for seen in self.seen]:
            self.open.append(Inconclusive("what each head reads", "the same calls in every run; gradients change them"))
            return
        for seen, call in zip(self.seen, wired.calls, strict=True):
            seen.wires = wires_of(call)

    # One layer

    def alone(self, seen: Seen) -> None:
        """Find what is wrong wherever it stands."""
        heard, wires = seen.heard, seen.wires
        if heard.axis == "queries" and not _sums(heard.weights, -1):
            told = "the softmax runs over the queries: the weights of a query do not sum to one, those of a key do"
            evidence = f"the weights of a query sum to {float(heard.weights[0, 0, -1].sum()):.3g}"
            self.find(seen, "weights", "softmax-over-queries", told, evidence, how="followed")
        if heard.dropout:
            told = f"weights are dropped with probability {heard.dropout:g} though the model is in evaluation mode"
            evidence = f"its call has dropout_p {heard.dropout:g}"
            self.find(seen, "dropout", "dropout-in-eval", told, evidence, how="followed")
        for role in wires.viewed:
            told = f"the heads of its {role} are split by a view alone: a head reads the features of other tokens"
            evidence = "each head reads just what view(batch, heads, tokens, head_dim) gives it"
            self.find(seen, "heads", "view-without-transpose", told, evidence, how="followed")
        if wires.merge == "viewed":
            told = "its heads are merged without transposing back: an output mixes the features of other tokens"
            evidence = "each row that the next layer reads is just what reshape without transpose gives"
            self.find(seen, "heads", "merge-without-transpose", told, evidence, how="followed")
        if heard.ones:
            told = "what is added to the scores has only zeros and ones: a mask that hides nothing"
            self.find(seen, "masks", "boolean-mask-added", told, "the scores differ from the products by 0 or 1",
                      also=("float-mask-of-ones",))  # fmt: skip
        turns = wires.turns
        if len(turns) == 2 and {turns["query"].kind, turns["key"].kind} == {"plain", "turned"}:
            which, other = ("query", "key") if turns["query"].kind == "turned" else ("key", "query")
            told = f"positions turn its {which} and not its {other}: scores depend on more than the distance"
            self.find(seen, "positions", None, told, f"the {other} is what its layer gave")
        elif len(turns) == 2 and None not in (a := [turn.angle for turn in turns.values()]):
            same = heard.query.size(-2) == heard.key.size(-2) and turns["query"].pair == turns["key"].pair
            if same and a[0] != a[1] and (a[0][0], -a[0][1]) == a[1]:  # type: ignore[index]
                told = "positions turn its query one way and its key the other: scores depend on the sum of positions"
                self.find(seen, "positions", None, told, "the last token's first pair is turned by opposite angles")

    # One layer among those of its place

    def among_others(self) -> None:
        """Find the layer that is unlike its likes, where no design makes layers differ in this."""
        for group in self.groups.values():
            for what, of in FACTS.items():
                by_design = what in BY_DESIGN
                odd = list(odd_ones(group, of, 12 if by_design else 4))
                if by_design and (len(odd) > 1 or len({seen.window for seen in group}) > 1):
                    continue
                for seen, value, usual, count in odd:
                    if what in FOLLOWS and any(found.where == seen.name for found in self.findings):
                        continue
                    cause, told, evidence = EXPLAIN[what](seen, value, usual)
                    self.find(seen, what, cause, told, f"{evidence}; {count} of {len(group)} layers do otherwise")
        if any(len(group) >= 4 for group in self.groups.values()):
            self.passed.append("each layer compared with its likes")
        other = [seen for seen in self.seen if tiled(seen.wires.reads.get("key"))]
        if other and len(other) > len(self.seen) / 2:
            told = "its key heads are repeated in the order 0 1 0 1; those of published models are in the order 0 0 1 1"
            evidence = f"so in {len(other)} of {len(self.seen)} calls; right, if the checkpoint was trained so"
            self.cautions.append(Finding("heads", "repeat-for-repeat-interleave", told, evidence))

    # Padding

    def padding(self) -> None:
        """Hide the first tokens of an item by the model's own argument, and see who looks at them."""
        made = self._padded()
        if made is None:
            return
        kwargs, mask = made
        tokens = mask.size(1)
        try:
            run = hear(self.model, self.args, kwargs)
        except Exception as error:
            self.open.append(Inconclusive("padding", f"the model to run with {_PADDING}: {said(error)}"))
            return
        if [call.module for call in run.calls] != [seen.name for seen in self.seen]:
            return
        for seen, call in zip(self.seen, run.calls, strict=True):
            if call.weights.size(-1) != tokens or call.weights.size(0) != mask.size(0):
                continue
            rows = call.weights.size(-2)
            real = mask if rows == tokens else torch.ones(mask.size(0), rows, dtype=torch.bool, device=mask.device)
            leak = (call.weights.amax(1) > 0) & ~mask[:, None, :] & real[..., None]
            if not leak.any() and seen.causal and not mask[:, -1].all():
                continue  # what is causal does not see what comes last anyway
            seen.hides_padding = not leak.any()
        known = [seen for seen in self.seen if seen.hides_padding is not None]
        for group in self.groups.values():
            told = "it attends to padding, which attention_mask hides in the other layers"
            for seen, *_ in odd_ones(group, lambda each: each.hides_padding, 3):
                if seen.hides_padding is False:
                    evidence = f"{mask.size(0)} items of {tokens} tokens, some padding: its weights are not zero"
                    self.find(seen, "padding", "padding-ignored", told, evidence)
        if known and not any(seen.hides_padding for seen in known):
            told = "no layer hides what attention_mask says is padding"
            self.find(None, "padding", "padding-ignored", told, "the weights of padded tokens are not zero")
        elif known and all(seen.hides_padding for seen in known):
            self.passed.append("padding is hidden")

    def _padded(self) -> tuple[dict[str, Any], Tensor] | None:
        """Its inputs with an attention_mask that hides something, or as they were if they have one."""
        name = _PADDING
        given = self.kwargs.get(name)
        if isinstance(given, Tensor) and given.dim() == 2 and not (given == 1).all():
            return self.kwargs, given.bool()
        parameters = inspect.signature(self.model.forward).parameters
        ids = self.kwargs.get("input_ids", self.args[0] if self.args else None)
        if name not in parameters or len(self.args) > 1 or not isinstance(ids, Tensor):
            return None
        if ids.dim() != 2 or ids.is_floating_point() or ids.size(1) < 3:
            return None
        mask = torch.ones_like(ids)
        mask[-1, : ids.size(1) // 3] = 0
        return self.kwargs | {name: mask}, mask.bool()

    # Information

    def information(self) -> None:
        """Change the later tokens, and see whether earlier outputs move though every call is causal."""
        calls = [seen for seen in self.seen if seen.heard.query.size(-2) > 2]
        if not calls or not all(seen.causal for seen in calls):
            return
        tokens = calls[0].heard.query.size(-2)
        changed = self._changed(tokens)
        if changed is None or {seen.heard.query.size(-2) for seen in calls} != {tokens}:
            return
        try:
            run = hear(self.model, *changed)
        except Exception as error:
            self.open.append(
                Inconclusive("no output sees later tokens", f"the model to run on other tokens: {said(error)}")
            )
            return
        before = tokens // 2

        def moved(which: str, name: str) -> bool | None:
            a, b = (getattr(each, which).get(name) for each in (self.run, run))
            if a is None or b is None or a.shape != b.shape or a.dim() < 2 or a.size(1) != tokens:
                return None
            if not a.is_floating_point():
                return not torch.equal(a[:, :before], b[:, :before])
            gap = (a[:, :before] - b[:, :before]).abs().max()
            return bool(gap > 1e-3 * a.abs().mean())

        for seen in calls:
            if moved("inputs", seen.name) is False and moved("outputs", seen.name):
                told = "its earlier outputs move when later tokens change, though its weights on them are zero"
                evidence = f"tokens from {before} on were changed, of {tokens}; the module's earlier inputs stayed"
                if not any(f.where == seen.name for f in self.findings):
                    self.find(seen, "no output sees later tokens", None, told, evidence)
                return
        last = [moved("outputs", name) for name in self.run.outputs]
        if any(last):
            name = next(n for n in self.run.outputs if moved("outputs", n))
            if not self.findings:
                told = "earlier outputs move when later tokens change, though every call of attention is causal"
                self.find(None, "no output sees later tokens", None, told, f"first in {name!r}")
        elif False in last:
            self.passed.append("no output sees later tokens")

    def _changed(self, tokens: int) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The inputs with other tokens in their second half, taken from their own."""

        def change(x: Any) -> Any:
            if not isinstance(x, Tensor) or x.dim() < 2 or x.size(1) != tokens or x.dtype == torch.bool:
                return x
            if x.is_floating_point() and x.dim() < 3:
                return x
            y = x.clone()
            half = tokens // 2
            y[:, half:] = x[:, half:].roll(1, 1) if not torch.equal(x[:, half:], x[:, half:].roll(1, 1)) else x[:, :1]
            return y

        keep = {name: x for name, x in self.kwargs.items() if "mask" in name or "position" in name or "type" in name}
        args, kwargs = tuple(change(x) for x in self.args), {n: change(x) for n, x in self.kwargs.items()} | keep
        same = all(x is y for x, y in zip((*args, *kwargs.values()), (*self.args, *self.kwargs.values()), strict=False))
        return None if same else (args, kwargs)

    # Each module by itself

    def by_themselves(self) -> None:
        """Let `diagnose` examine what is not settled and takes one tensor; only what it proves counts."""
        done: dict[Any, Report | None] = {}
        for seen in self.seen:
            module, x = self.modules[seen.name], self.run.inputs.get(seen.name)
            if seen.decided or any(found.where == seen.name for found in self.findings):
                continue  # followed from layer to layer, or already known to be wrong: nothing is left to ask
            if seen.heard.trusted or x is None or x.dim() != 3 or not x.is_floating_point() or not _takes_one(module):
                continue
            key = _likeness(module)
            if key not in done:
                try:
                    done[key] = diagnose(module, embed_dim=x.size(-1), num_heads=seen.heard.query.size(1))
                except Exception:  # it is not attention of one tensor alone
                    done[key] = None
            report = seen.report = done[key]
            for found in report.findings if report else ():
                if found.how != "open":
                    self.find(
                        seen, found.check, found.cause, found.told, found.evidence, how="followed", also=found.also
                    )

    def silent(self) -> None:
        """Name the modules that are called attention and made no call that was heard."""
        called = {seen.name for seen in self.seen}
        for name, module in self.modules.items():
            if not re.search(r"(?i)(attention|attn)$", type(module).__name__) or name not in self.run.inputs:
                continue
            if not any(call == name or call.startswith(f"{name}.") or name.startswith(f"{call}.") for call in called):
                self.unwatched.append(f"{name} ({type(module).__name__}): no call of attention was heard in it")

    def layer(self, seen: Seen) -> Layer:
        heard = seen.heard
        queries, keys = heard.weights.shape[-2:]
        kind = "causal" if seen.causal else "keys of another length" if queries != keys else "every token sees every"
        dense = bool((heard.weights > 0).all())
        kind = kind if seen.causal or dense or queries != keys else "masked"
        scale = seen.scale
        return Layer(
            name=seen.name,
            kind=kind,
            kernel=heard.kernel,
            heads=heard.query.size(1),
            kv_heads=seen.kv_heads,
            head_dim=heard.query.size(-1),
            causal=seen.causal,
            window=seen.window,
            scale=scale,
            bias=heard.bias,
            turned=seen.wires.turns["query"].kind == "turned" if "query" in seen.wires.turns else None,
            findings=tuple(found for found in self.findings if found.where == seen.name),
            report=seen.report,
            verdict="followed" if seen.decided else "open",
        )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _sums(weights: Tensor, dim: int) -> bool:
    return bool(((weights.sum(dim) - 1).abs() < 1e-3).all())


def _reach(weights: Tensor) -> tuple[bool, int | None]:
    """Whether no query sees a later key, and how many keys at most one sees, itself the last."""
    queries, keys = weights.shape[-2:]
    seen = (weights > 0).flatten(0, 1).any(0)
    far = torch.arange(keys - queries, keys, device=weights.device)[:, None] - torch.arange(keys, device=weights.device)
    if queries < 2 or keys < queries or bool(seen[far < 0].any()):
        return False, None
    reach = int(far[seen].max()) + 1 if seen.any() else 0
    return True, reach if 0 < reach < keys else None


def _takes_one(module: nn.Module) -> bool:
    parameters = list(inspect.signature(module.forward).parameters.values())
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    keywords = [p for p in parameters if p.default is p.empty and p.kind is p.KEYWORD_ONLY]
    return bool(parameters) and len(needed) == 1 and not keywords and not isinstance(module, nn.MultiheadAttention)


def _likeness(module: nn.Module) -> Any:
    """What of a module may make it compute otherwise than another, but for its parameters, which are drawn anew."""
    told: list[Any] = []
    for name, child in module.named_modules():
        plain = {k: v for k, v in vars(child).items() if isinstance(v, int | float | str | bool | type(None))}
        own = {k: id(v) for k, v in vars(child).items() if callable(v) and not isinstance(v, nn.Module)}
        plain.pop("layer_idx", None)
        shapes = [(n, tuple(p.shape)) for n, p in child.named_parameters(recurse=False)]
        told.append((name, type(child), *(tuple(sorted(of.items(), key=str)) for of in (plain, own)), tuple(shapes)))
    return tuple(told)
