"""One target on the table: what it is asked with, and what is noted of its answers."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from unmasked import masks
from unmasked.doctor._mistakes import Case
from unmasked.doctor._report import Finding, Inconclusive, Notes
from unmasked.doctor._target import Options, Target
from unmasked.doctor._weights import Weights
from unmasked.probes import Evidence


class Patient:
    """One target, on the table."""

    def __init__(self, original: Callable[..., Any], options: Options):
        self.original, self.options, self.notes = original, options, Notes()
        self.embed_dim, self.num_heads, self.causal = options.embed_dim, options.num_heads, options.causal
        if options.cache is not None:  # or it could not be kept
            self.causal = True
        self.inputs, self.batch_first = options.inputs, options.batch_first
        self.given, self.positions = options.weights or None, options.positions
        self.equal = False
        self.fixed = options.tokens
        self.admitted: list[Target] = []
        self.target = self.admit()
        self.items, self.tokens = self._sizes()

    def admit(self, dtype: torch.dtype = torch.float64) -> Target:
        admitted = Target(self.original, self.options, dtype=dtype)
        _spy(admitted)
        self.admitted.append(admitted)
        return admitted

    def release(self) -> None:
        """Leave everything as it was found."""
        for target in reversed(self.admitted):
            target.release()

    def dismiss(self, target: Target) -> None:
        """Let one go that was admitted last, and is not needed any more."""
        self.admitted.remove(target)
        target.release()

    def _sizes(self) -> tuple[int, int]:
        """Take a batch and a number of tokens that no size of the target equals, and more items than heads."""
        heads = min(self.num_heads or 4, 8)
        taken = {self.embed_dim, heads, self.embed_dim // heads, self.fixed}
        items = next(n for n in itertools.count(heads + 1) if n not in taken)
        return items, self.fixed or next(n for n in itertools.count(5) if n not in taken | {items})

    def sizes(self, *smaller: tuple[int, int]) -> list[tuple[int, int]]:
        """Batches and numbers of tokens to ask at, the smallest first: of so many tokens as it takes."""
        few = [(items, self.fixed or tokens) for items, tokens in smaller]
        return list(dict.fromkeys([*few, (self.items, self.tokens)]))

    def find(self, check: str, cause: str | None, told: str, evidence: object, **more: Any) -> None:
        self.notes.findings.append(Finding(check, cause, told, str(evidence), **more))

    def caution(self, check: str, cause: str | None, told: str, evidence: object, **more: Any) -> None:
        self.notes.cautions.append(Finding(check, cause, told, str(evidence), **more))

    def open(self, check: str, needs: str) -> None:
        self.notes.inconclusive.append(Inconclusive(check, needs))

    def ask(self, check: str, question: Callable[[int, int], Evidence | None]) -> Evidence | None:
        """Ask at the smallest sizes that show something; note that the check holds if none does."""
        for items, tokens in self.sizes((1, 2), (2, 2), (2, 3)):
            try:
                evidence = question(items, tokens)
            except Exception as error:
                if (items, tokens) != (self.items, self.tokens):
                    continue
                self.open(check, f"the target raised {said(error)}")
                return None
            if evidence is not None:
                return evidence
        self.notes.passed.append(check)
        return None

    def noise(self, items: int, tokens: int, seed: int = 0, place: int = 0) -> Tensor:
        """Draw tokens with the features of queries, keys or values, by their place in this order."""
        generator, shape = torch.Generator().manual_seed(seed), (items, tokens, self.options.widths[place])
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(self.target.dtype)

    def f(self, x: Tensor) -> Tensor:
        """Let it attend to its own tokens, also where it takes others."""
        return self.target(x)

    def three(self, items: int, queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values as different as the target takes them."""
        query = self.noise(items, queries)
        if self.options.own:
            if keys != queries:
                raise ValueError("tokens that attend to themselves have as many keys as queries")
            return query, query, query
        key = self.noise(items, keys, 1, place=1)
        return query, key, key if self.inputs.startswith("x_context") else self.noise(items, keys, 2, place=2)

    def case(self, items: int, queries: int, keys: int, weights: Weights, *, causal: bool) -> Case:
        """Make inputs and a mask as the target takes them."""
        query, key, value = self.three(items, queries, keys)
        allowed = masks.causal(queries, keys) if causal else None
        if self.options.masked:
            allowed = masks.combine(allowed, self.drawn(items, queries, keys))
        return Case(query, key, value, allowed, weights)

    def drawn(self, items: int, queries: int, keys: int) -> Tensor:
        """Draw who may see whom, another mask for each item where the target takes that."""
        generator = torch.Generator().manual_seed(3)
        if self.target.mask_axes == 1:
            drawn = torch.rand(items, 1, keys, generator=generator, device="cpu") < 0.6
            drawn[..., 0] = True
            return drawn.expand(-1, queries, -1)
        drawn = torch.rand(items, queries, keys, generator=generator, device="cpu") < 0.6
        drawn |= torch.eye(queries, keys, dtype=torch.bool).roll(keys - queries, 1)
        return drawn[0] if self.target.mask_axes == 2 else drawn

    def answer(self, items: int, queries: int, keys: int) -> Tensor:
        """Let the target answer; what it masks by itself it is not told."""
        case = self.case(items, queries, keys, Weights({}, {}, 1, 1), causal=False)
        return self.target(case.query, case.key, case.value, allowed=case.allowed)

    def sized(self, said: str) -> str:
        return f"{self.items} items of {self.tokens} tokens of {self.embed_dim} features: {said}"

    def failure(self, items: int, tokens: int) -> Exception | None:
        axes = (4, 3, 2, 1) if self.options.masked else (4,)
        first: Exception | None = None
        for count in axes:
            self.target.mask_axes = count
            try:
                self.target(self.noise(items, tokens))
            except Exception as error:
                first = first or error
                continue
            return None
        return first

    def masked(self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor) -> Tensor:
        """Call with a mask."""
        return self.target(query, key, value, allowed=allowed)


def said(error: Exception) -> str:
    text = (str(error).strip() or "no text").split("\n")[0]
    return f"{type(error).__name__}: {text[:160]}"


def _spy(target: Target) -> None:
    """Watch what is passed to every nn.MultiheadAttention."""
    signature = inspect.signature(nn.MultiheadAttention.forward)

    def hook(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        bound = signature.bind(module, *args, **options)
        bound.apply_defaults()
        target.spied.append(bound.arguments)

    for name, module in target.modules.items():
        for child in module.modules():
            if isinstance(child, nn.MultiheadAttention) and not (child is module and not name):
                target.handles.append(child.register_forward_pre_hook(hook, with_kwargs=True))


def forgets_batch_first(target: Target) -> bool:
    return any(getattr(m, "batch_first", None) is False for module in target.modules.values() for m in module.modules())
