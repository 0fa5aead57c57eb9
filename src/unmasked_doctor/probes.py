"""Questions to an attention function that need nothing but calls: does it leak, does it average, does it damage?

A probe returns None if all is well, and otherwise `Evidence`: what was done, what came out, and by how much. Most take
``f``, any function from (batch, tokens, features) to (batch, tokens, any), and ``x``, floating, (batch, tokens,
features): an input of it. None moves the global random generator. `unmasked.diagnose` asks all but four, and looks for
the cause: of masks and caches it asks in another way (`attends_to_what_is_hidden`, `misaligns_a_cache`), and it takes
no function of positions (`notices_a_shift`, `turns_otherwise`).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unmasked import _generators
from unmasked._checks import checked
from unmasked._private import storage_holders
from unmasked_doctor._target import slope

__all__ = [
    "Evidence",
    "attends_to_what_is_hidden",
    "breaks_equivariance",
    "changed",
    "changes_from_call_to_call",
    "cuts_gradients",
    "differs",
    "enlarged",
    "fails_in_half",
    "is_blinded",
    "is_no_average",
    "misaligns_a_cache",
    "misses_the_past",
    "mixes_items",
    "moved",
    "notices_a_shift",
    "overwrites_inputs",
    "sees_the_future",
    "shares_memory",
    "skips_hooks",
    "turns_otherwise",
    "weights_sum_to_one",
]

Function = Callable[[Tensor], Tensor]
Masked = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Evidence:
    """What a probe saw: it is true, and prints as a sentence.

    Attributes:
        text: What was done and what came out.
        difference: The largest absolute difference from what should have come out; infinite where it was not a number.
        shape: The shape of the input that showed it.
    """

    text: str
    difference: float
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return self.text


def differs(actual: Tensor, expected: Tensor) -> float:
    """Tell by how much two results differ, beyond what rounding can do.

    Args:
        actual: floating, any shape.
        expected: floating, the same shape; where it is NaN, anything is right.

    Returns:
        The largest absolute difference, 0.0 where rounding explains it, infinity where the shapes differ or ``actual``
        alone is not finite.

    Examples:
        >>> differs(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]))
        0.5
        >>> differs(torch.tensor(0.1 + 0.2), torch.tensor(0.3))
        0.0
    """
    if actual.shape != expected.shape:
        return float("inf")
    gap = (actual.detach() - expected.detach()).abs()[~expected.isnan()]
    if not gap.numel():
        return 0.0
    if not gap.isfinite().all():
        return float("inf")
    size = expected.detach().nan_to_num(0.0, 0.0, 0.0).abs().max().item()
    largest = gap.max().item()
    return largest if largest > _rounding(expected.dtype) * max(size, 1.0) else 0.0


def moved(actual: Tensor, expected: Tensor) -> Tensor:
    """Tell which tokens differ, as `differs` tells whether any does; arguments as for it, (..., features).

    Returns:
        bool, (...): whether a number of the token is another, beyond what rounding can do.

    Examples:
        >>> moved(torch.tensor([[1.0, 2.5], [1.0, 2.0]]), torch.tensor([1.0, 2.0]).expand(2, 2))
        tensor([ True, False])
    """
    known = ~expected.isnan()
    size = expected.detach().nan_to_num(0.0, 0.0, 0.0).abs().amax(-1).clamp(min=1.0)
    gap = (actual.detach() - expected.detach()).masked_fill(~known, 0.0).abs().nan_to_num(torch.inf).amax(-1)
    return gap > _rounding(expected.dtype) * size


def sees_the_future(f: Function, x: Tensor) -> Evidence | None:
    """Find an output that a later token reaches: by changing the token, by making it large, and by the gradient.

    A large token shows a mask that only lowers scores, by 14 say: that leaves a weight too small to be told from
    rounding, until the token's own score makes up for it. Two things stay unseen: a mask that lowers scores by more
    than inputs a hundred times as large make up for, and a leak within rounding behind a normalization, which undoes
    the size. Rounding is least in float64: there `differs` sees a billionth.

    Args:
        f: (batch, tokens, features) to (batch, tokens, any).
        x: floating, (batch, tokens, features).

    Returns:
        None if all is well, as for a causal function.

    Examples:
        >>> from unmasked import self_attention
        >>> x = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
        >>> print(sees_the_future(lambda x: self_attention(x).context, x))
        1 item of 2 tokens: changing token 1 moves the output of token 0 by 0.744
        >>> sees_the_future(lambda x: self_attention(x, is_causal=True).context, x)
        >>> lowered = torch.tensor([[0.0, -14.0], [0.0, 0.0]])
        >>> print(sees_the_future(lambda x: (x @ x.mT + lowered).softmax(-1) @ x, x))
        1 item of 2 tokens: making token 1 large moves the output of token 0 by ...
    """
    before = f(x)
    for late in range(x.size(1) - 1, 0, -1):
        after = f(changed(x, late))[:, :late]
        if gap := differs(after, before[:, :late]):
            reached = _first(after, before[:, :late])
            return _evidence(x, gap, f"changing token {late} moves the output of token {reached} by {gap:.3g}")
    for late in range(x.size(1) - 1, 0, -1):
        for large in enlarged(x, late):
            after = f(large)[:, :late]
            if gap := _finitely(after, before[:, :late]):
                reached = _first(after, before[:, :late])
                return _evidence(x, gap, f"making token {late} large moves the output of token {reached} by {gap:.3g}")
    for position in range(x.size(1) - 1):
        gradient = _gradient(f, x, position)
        later = None if gradient is None else gradient[:, position + 1 :]
        if later is not None and (gap := differs(later, torch.zeros_like(later))):
            return _evidence(x, gap, f"the gradient of output {position} reaches later tokens, by {gap:.3g}")
    return None


def misses_the_past(f: Function, x: Tensor) -> Evidence | None:
    """Find an earlier token, or its own, that an output does not notice; arguments as for `sees_the_future`.

    Examples:
        >>> print(misses_the_past(lambda x: 2 * x, torch.randn(1, 2, 3)))
        1 item of 2 tokens: changing token 0 leaves the output of token 1 as it was
    """
    before = f(x)
    for early in range(x.size(1)):
        after = f(changed(x, early))
        for position in range(x.size(1) - 1, early - 1, -1):
            if not differs(after[:, position], before[:, position]):
                return _evidence(x, 0.0, f"changing token {early} leaves the output of token {position} as it was")
    return None


def breaks_equivariance(f: Function, x: Tensor) -> Evidence | None:
    r"""Exchange tokens, and find outputs that are not exchanged with them: attention without positions has no order.

    Equation:
        $\operatorname{Attend}(P X) = P \operatorname{Attend}(X)$ (18.1)

    Arguments as for `sees_the_future`; f is neither causal nor told of positions.

    Examples:
        >>> print(breaks_equivariance(lambda x: x.cumsum(1), torch.tensor([[[1.0], [2.0]]])))
        1 item of 2 tokens: with the tokens in another order, the outputs are not the same in that order, but off by 2
    """
    places = torch.arange(x.size(1), device=x.device)
    before = f(x)
    for order in (places.flip(0), places.roll(1)):
        if gap := differs(f(x[:, order]), before[:, order]):
            text = "with the tokens in another order, the outputs are not the same in that order, but off by"
            return _evidence(x, gap, f"{text} {gap:.3g}")
    return None


def mixes_items(f: Function, x: Tensor) -> Evidence | None:
    """Find a batch item whose output another item reaches, or that does not notice itself.

    Arguments as for `sees_the_future`; x has two items or more.

    Examples:
        >>> print(mixes_items(lambda x: x[:1].expand_as(x), torch.eye(2)[:, None]))
        2 items of 1 token: changing item 0 moves the output of item 1 by 0...
    """
    before = f(x)
    for item in range(x.size(0)):
        changed = x.clone()
        changed[item] = _other(x)[item]
        after = f(changed)
        others = [i for i in range(x.size(0)) if i != item]
        if gap := differs(after[others], before[others]):
            reached = others[_first(after[others].transpose(0, 1), before[others].transpose(0, 1))]
            return _evidence(x, gap, f"changing item {item} moves the output of item {reached} by {gap:.3g}")
        if not differs(after[item], before[item]):
            return _evidence(x, 0.0, f"changing item {item} leaves its own output as it was")
    return None


def is_no_average(f: Function, x: Tensor) -> Evidence | None:
    r"""Repeat one token: whatever the weights are, the average of equal values is that value.

    Equation:
        $\sum_{j=1}^{n} a_{ij} \, x = x$ (18.2)

    Arguments as for `sees_the_future`; f is not told of positions, and of x the first token is used.

    Examples:
        >>> print(is_no_average(lambda x: x @ x.mT @ x, torch.ones(1, 2, 1)))
        1 item of 2 tokens: a token has another output among its copies than alone, off by 1: weights do not sum...
    """
    alone = f(x[:, :1])
    among = f(x[:, :1].expand(-1, x.size(1), -1).clone())
    gap = differs(among, alone.expand_as(among) if alone.size(-1) == among.size(-1) else alone)
    if not gap:
        return None
    text = f"a token has another output among its copies than alone, off by {gap:.3g}"
    return _evidence(x, gap, f"{text}: weights do not sum to one, or features are mixed between tokens")


def weights_sum_to_one(weights: Tensor) -> Evidence | None:
    """Sum the rows of weights.

    Args:
        weights: floating, (..., queries, keys).

    Returns:
        None if every row sums to one, or is blind: all zeros, or not a number.

    Examples:
        >>> print(weights_sum_to_one(torch.tensor([[0.5, 0.5], [0.25, 0.25]])))
        a row of the weights sums to 0.5
    """
    total = weights.detach().sum(-1)
    total = total[(weights.detach() != 0).any(-1) & ~total.isnan()]
    gap = differs(total, torch.ones_like(total))
    if not gap:
        return None
    worst = total[(total - 1).abs().argmax()].item()
    return Evidence(f"a row of the weights sums to {worst:.3g}", gap, tuple(weights.shape))


def changes_from_call_to_call(f: Function, x: Tensor) -> Evidence | None:
    """Call twice, with the random generator at two places: in evaluation nothing is random.

    Arguments as for `sees_the_future`.

    Examples:
        >>> print(changes_from_call_to_call(lambda x: x * torch.rand(()), torch.ones(1, 1, 1)))
        1 item of 1 token: two calls with the same input differ by 0...
    """
    with _generators.forked():
        torch.manual_seed(1)
        first = f(x)
        torch.manual_seed(2)
        gap = differs(f(x), first)
    return _evidence(x, gap, f"two calls with the same input differ by {gap:.3g}") if gap else None


@torch.inference_mode(False)
def overwrites_inputs(f: Callable[..., object], *inputs: Tensor) -> Evidence | None:
    """Compare the inputs after the call with what they were before it.

    Args:
        f: any function of these inputs.
        inputs: tensors, which are given to f as copies.

    Returns:
        None if f leaves them alone.

    Examples:
        >>> print(overwrites_inputs(lambda x: x.mul_(2), torch.ones(1, 2, 3)))
        input 0 of shape (1, 2, 3) is changed by the call, by 1
    """
    copies = [x.detach().clone() for x in inputs]
    versions = [x._version for x in copies]
    with torch.no_grad():
        f(*copies)
    for index, (x, was, version) in enumerate(zip(copies, inputs, versions, strict=True)):
        same = torch.equal(x, was)
        if x._version != version or not same:
            gap = 0.0 if same else (x.double() - was.detach().double()).abs().max().item()
            text = f"input {index} of shape {tuple(x.shape)} is changed by the call, by {gap:.3g}"
            return Evidence(text, gap, tuple(x.shape))
    return None


@torch.inference_mode(False)
def cuts_gradients(f: Function, x: Tensor, parameters: Iterable[tuple[str, Tensor]] = ()) -> Evidence | None:
    """Compare autograd's derivative with a measured one, along a line, for the input and for each parameter.

    Args:
        f: (batch, tokens, features) to any shape, the same at every call.
        x: float64, (batch, tokens, features), or float32, in which only what is cut by a part of its size shows.
        parameters: names and leaf tensors that f uses, and that require gradients; each is moved and put back.

    Returns:
        None if both agree, and the gradient reaches every parameter.

    Examples:
        >>> print(cuts_gradients(lambda x: x.detach() * x, torch.ones(1, 1, 1, dtype=torch.float64)))
        1 item of 1 token: along x the output moves by ..., and its gradient says ...
    """
    x = x.detach().clone().requires_grad_()
    named = [(name, p) for name, p in parameters if p.requires_grad and p.is_floating_point()]
    tensors = [*named, ("x", x)]
    with torch.enable_grad():
        output = f(x)
    cotangent = _noise(output, seed=3)
    if not output.requires_grad:
        return _evidence(x, float("inf"), "the output requires no gradient: it was detached, or computed without grad")
    gradients = torch.autograd.grad(output, [t for _, t in tensors], cotangent, allow_unused=True)
    for (name, tensor), gradient in zip(tensors, gradients, strict=True):
        gaps = []
        # A kink, as ReLU's, spoils a direction, a cut all of them. Float32 rounds away what a small step changes.
        exact = x.dtype == torch.float64
        for seed, step in ((4, 1e-5), (6, 1e-6), (8, 1e-6)) if exact else ((4, 1e-2), (6, 3e-3), (8, 1e-2)):
            direction = _noise(tensor, seed)
            measured = slope(f, x, cotangent, tensor, step * direction) / step
            text = 0.0 if gradient is None else (gradient * direction).sum().item()
            gap, least = abs(measured - text), (1e-5 if exact else 0.25) * max(1.0, abs(measured))
            if gap <= least:
                break
            nearer = slope(f, x, cotangent, tensor, step / 2 * direction) / (step / 2)
            rounded = (1e-5 if exact else 5e-3) * max(1.0, abs(measured))
            if abs(nearer - measured) <= max(rounded, gap / 50):  # or else it is no slope
                gaps.append((gap, f"along {name} the output moves by {measured:.3g}, and its gradient says {text:.3g}"))
        else:
            if gaps:
                return _evidence(x, *gaps[0])
        if gradient is None:
            return _evidence(x, 0.0, f"the gradient does not reach {name}, nor does the output depend on it")
    return None


def fails_in_half(f: Function, x: Tensor) -> Evidence | None:
    """Call in float16, whose largest number is 65504, with inputs of ordinary size.

    Where the machine lacks a half-precision kernel that f needs, nothing is found. Arguments as for `sees_the_future`;
    f computes in its input's dtype.

    Examples:
        >>> blocked = torch.ones(2, 2, dtype=torch.bool).triu(1)
        >>> f = lambda x: (x @ x.mT).masked_fill(blocked, -1e9).softmax(-1) @ x
        >>> print(fails_in_half(f, torch.ones(1, 2, 3)))
        1 item of 2 tokens: in float16 it raises RuntimeError: value cannot be converted to type ... without overflow
        >>> torch.finfo(torch.float16).max
        65504.0
    """
    try:
        output = f(x.half())
    except (RuntimeError, OverflowError) as error:
        message = str(error).split("\n")[0]
        if "overflow" not in message:
            return None
        return _evidence(x, float("inf"), f"in float16 it raises {type(error).__name__}: {message}")
    if output.isfinite().all():
        return None
    count = int((~output.isfinite()).sum())
    return _evidence(x, float("inf"), f"in float16 {count} numbers of its output are not finite")


def attends_to_what_is_hidden(f: Masked, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor) -> Evidence | None:
    """Change keys and values that no query may see: the outputs must not notice. Then those that it may: they must.

    What is hidden is also made large, as in `sees_the_future`, and for the same reason.

    Args:
        f: f(query, key, value, allowed), to (batch, queries, any).
        query: floating, (batch, queries, features).
        key: floating, (batch, keys, features).
        value: floating, (batch, keys, features).
        allowed: bool, True where a query may see a key; its last axis is the keys.

    Returns:
        None if the mask is obeyed.

    Examples:
        >>> from unmasked import attend as attention
        >>> x, allowed = torch.randn(1, 2, 3), torch.tensor([[True, False], [True, False]])
        >>> attends_to_what_is_hidden(lambda q, k, v, a: attention(q, k, v, allowed=a).context, x, x, x, allowed)
        >>> print(attends_to_what_is_hidden(lambda q, k, v, a: attention(q, k, v).context, x, x, x, allowed))
        1 item of 2 tokens: changing key 1, which no query may see, moves the output by ...
    """
    seen = allowed.reshape(-1, allowed.size(-1)).any(0)
    before = f(query, key, value, allowed)
    for index in range(key.size(1)):
        after = f(query, changed(key, index), changed(value, index), allowed)
        gap = differs(after, before)
        if gap and not seen[index]:
            return _evidence(key, gap, f"changing key {index}, which no query may see, moves the output by {gap:.3g}")
        if seen[index] and not gap:
            return _evidence(key, 0.0, f"changing key {index}, which queries may see, leaves the output as it was")
        for k, v in [] if seen[index] else zip(enlarged(key, index), enlarged(value, index), strict=True):
            if gap := _finitely(f(query, k, v, allowed), before):
                text = f"making key {index} large, which no query may see, moves the output by {gap:.3g}"
                return _evidence(key, gap, text)
    return None


def is_blinded(
    f: Masked, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, *, whole_item: bool = False
) -> Evidence | None:
    """Give one query, or the whole first item, nothing to see: its output, and every gradient, must not be NaN.

    Arguments as for `attends_to_what_is_hidden`; allowed is all True, (..., queries, keys).

    Examples:
        >>> def f(q, k, v, allowed):
        ...     return (q @ k.mT).masked_fill(~allowed, -torch.inf).softmax(-1) @ v
        >>> x = torch.randn(1, 2, 3)
        >>> print(is_blinded(f, x, x, x, torch.ones(2, 2, dtype=torch.bool)))
        1 item of 2 tokens: the query that may see no key gets NaN
    """
    allowed = allowed.expand(len(query), *allowed.shape[-2:]).clone() if whole_item else allowed.clone()
    allowed[0 if whole_item else (..., 0, slice(None))] = False
    key, value = (x.detach().clone().requires_grad_() for x in (key, value))
    output = f(query, key, value, allowed)
    if (output[1:] if whole_item else output[:, 1:]).isnan().any():
        return _evidence(query, float("inf"), "a query that may see no key makes the output of others NaN")
    if output.isnan().any():
        return _evidence(query, float("inf"), "the query that may see no key gets NaN")
    if output.requires_grad:
        gradients = torch.autograd.grad(output.sum(), [key, value], allow_unused=True)
        if any(g is not None and g.isnan().any() for g in gradients):
            return _evidence(query, float("inf"), "the query that may see no key makes gradients NaN")
    return None


def misaligns_a_cache(f: Callable[[Tensor, Tensor, Tensor], Tensor], x: Tensor) -> Evidence | None:
    """Ask for the newest tokens alone, as with a cache: they must see all keys before them, and get the same outputs.

    Args:
        f: causal, f(query, key, value), to (batch, queries, any).
        x: floating, (batch, tokens, features).

    Returns:
        None if the last query is aligned with the last key.

    Examples:
        >>> import torch.nn.functional as F
        >>> f = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)
        >>> print(misaligns_a_cache(f, torch.randn(1, 3, 2)))
        1 item of 3 tokens: the last 1 of the queries, asked alone, gets another output, off by ...
    """
    whole = f(x, x, x)
    for newest in range(1, x.size(1)):
        if gap := differs(f(x[:, -newest:], x, x), whole[:, -newest:]):
            text = f"the last {newest} of the queries, asked alone, gets another output, off by {gap:.3g}"
            return _evidence(x, gap, text)
    return None


def notices_a_shift(f: Callable[[Tensor, Tensor], Tensor], x: Tensor) -> Evidence | None:
    """Shift all positions alike: where scores depend on the offset of query and key alone, no output notices.

    Positions are then spread, so that every offset doubles: a function that does not notice that either has not been
    given them. Shifts go to a hundred, and in float64, which hardly rounds such angles, to ten thousand.

    Args:
        f: f(x, positions), to (batch, tokens, any): attention with rotary queries and keys, for example. The positions
            are integers, (tokens,).
        x: floating, (batch, tokens, features), of two tokens or more.

    Returns:
        None if outputs depend on the offsets, and on nothing else of the positions.

    Examples:
        >>> from unmasked import self_attention
        >>> from unmasked.positions import sinusoids
        >>> f = lambda x, positions: self_attention(x + sinusoids(positions, 4)).context
        >>> print(notices_a_shift(f, torch.eye(3, 4)[None]))
        1 item of 3 tokens: the output of token 0 moves by ... where all positions are 1 larger
    """
    places = torch.arange(x.size(1), device=x.device)
    before = f(x, places)
    for shift in (1, 100, 10_007) if x.dtype == torch.float64 else (1, 100):
        after = f(x, places + shift)
        if gap := differs(after, before):
            token = _first(after, before)
            text = f"the output of token {token} moves by {gap:.3g} where all positions are {shift} larger"
            return _evidence(x, gap, text)
    if not differs(f(x, 2 * places), before):
        return _evidence(x, 0.0, "no output notices that every offset doubles: the positions do not arrive")
    return None


def turns_otherwise(
    turn: Callable[[Tensor, Tensor], Tensor], right: Callable[[Tensor, Tensor], Tensor], x: Tensor
) -> Evidence | None:
    """Hold rotary embeddings to those that a checkpoint's config asks for: `notices_a_shift` is silent for any base.

    Each feature is turned by one position, and takes its scores with every feature where it was. These say which two
    are a pair, in which direction and how far it turns, and by what scores are multiplied. They do not say in which
    order features are given back, which changes no score.

    Args:
        turn: turn(x, positions), to x turned, for x of (tokens, features) and integers, (tokens,).
        right: the same of the config: a `Rotary.from_config`, for example.
        x: float32 or float64, (tokens, features), whatever it holds: the features have its width, dtype and device.

    Returns:
        None if all scores are those of ``right``, up to a thousandth.

    Examples:
        >>> from unmasked.positions import Rotary
        >>> config = {"rope_type": "default", "rope_theta": 10_000.0}
        >>> print(turns_otherwise(Rotary(4, base=500_000.0), Rotary.from_config(4, config), torch.ones(1, 4)))
        features 1 and 3 turn by 0.00141 from one position to the next, and should by 0.01: their base is 500,000
    """
    features = torch.eye(x.size(-1), dtype=x.dtype, device=x.device)

    def scores(turn: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        here = torch.zeros(len(features), dtype=torch.long, device=x.device)
        return (turn(features, here + 1) @ turn(features, here).mT).cpu().double()

    actual, wanted = scores(turn), scores(right)
    # The sine is as exact as its angle, however small that is; the cosine of a slow pair is 1, and says nothing.
    turned, asked = (
        torch.atan2(each - each.mT, 2 * each.diagonal()[:, None]) * (each != each.mT) for each in (actual, wanted)
    )
    gap = (turned - asked).abs()
    if (wrong := (gap > 1e-3 * asked.abs() + 1e-9).nonzero()).numel():
        one, other = wrong[0].tolist()
        text = f"features {one} and {other} turn by {turned[one, other]:.3g} from one position to the next, and should "
        text += f"by {asked[one, other]:.3g}"
        if (base := _base_of(turned)) not in ("", _base_of(asked)):
            text += f": their base is {base}"
        return Evidence(text, gap.max().item(), tuple(x.shape))
    ratios = actual.norm(dim=-1) / wanted.norm(dim=-1)
    grown = ratios[(ratios - 1).abs().argmax()].item()
    if abs(grown - 1) > 1e-3:
        return Evidence(f"scores are {grown:.3g} times those that they should be", abs(grown - 1), tuple(x.shape))
    return None


def _base_of(angles: Tensor) -> str:
    """The base that gives pairs their angles, (features, features), or "" if none does."""
    rates = angles[angles > 0].sort(descending=True).values  # one of each pair
    if len(rates) < 2:
        return ""
    base = rates[1].item() ** -len(rates)
    share = torch.arange(len(rates), dtype=rates.dtype, device=rates.device) / len(rates)
    same = torch.allclose(rates, base**-share, rtol=1e-3, atol=0)
    return f"{float(f'{base:.3g}'):,.0f}" if same else ""


def skips_hooks(module: nn.Module, call: Callable[[], object]) -> Evidence | None:
    """Find a submodule whose forward runs without its hooks: it was called as ``.forward(...)``.

    Args:
        module: the module to watch; its submodules' forward is watched during the call, and then as it was.
        call: a function that calls it.

    Returns:
        None if every forward that ran was called through the module.

    Examples:
        >>> class Direct(nn.Sequential):
        ...     def forward(self, x):
        ...         return self[0].forward(x)
        >>> module = Direct(nn.Linear(3, 3))
        >>> print(skips_hooks(module, lambda: module(torch.ones(1, 3))))
        '0' (Linear): its forward ran 1 time, its hooks 0 times
    """
    ran: dict[str, list[int]] = {}
    with ExitStack() as counting:
        for name, child in module.named_modules():
            if child is module or "forward" in vars(child):
                continue
            counts = ran[f"{name!r} ({type(child).__name__})"] = [0, 0]
            counting.enter_context(_counted(child, counts))
        call()
    for name, (forwards, hooks) in ran.items():
        if forwards > hooks:
            times = "time" if forwards == 1 else "times"
            return Evidence(f"{name}: its forward ran {forwards} {times}, its hooks {hooks} times", 0.0, ())
    return None


def shares_memory(module: nn.Module) -> Evidence | None:
    """Find a parameter that lies in the memory of another parameter: whoever trains one moves the other.

    One parameter under two names is tied on purpose, and no finding.

    Args:
        module: any module; parameters of other modules, wherever they live, are looked at too.

    Returns:
        None if no two parameters overlap.

    Examples:
        >>> original, copy = nn.Linear(3, 3), nn.Linear(3, 3)
        >>> copy.weight.data = original.weight
        >>> print(shares_memory(copy))
        'weight' lies in the memory of another parameter, of shape (3, 3)
    """
    lazy = nn.parameter.is_lazy
    mine = {id(p): (name, p) for name, p in module.named_parameters() if not lazy(p) and p.numel()}
    if not any(_is_shared(p) for _, p in mine.values()):
        return None
    storages = {p.untyped_storage().data_ptr() for _, p in mine.values()}
    others = [p for p in gc.get_objects() if type(p) is nn.Parameter]
    others = [p for p in others if p.numel() and p.untyped_storage().data_ptr() in storages]
    for name, p in mine.values():
        for other in others:
            if other is not p and _overlap(p, other):
                text = f"{name!r} lies in the memory of another parameter, of shape {tuple(other.shape)}"
                return Evidence(text, 0.0, tuple(p.shape))
    return None


def _is_shared(p: Tensor) -> bool:
    """Whether another tensor may hold the parameter's memory: to look for it among all objects takes its time."""
    return storage_holders(p) > 1


def _overlap(a: Tensor, b: Tensor) -> bool:
    if a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    taken = torch.zeros(a.untyped_storage().nbytes() // a.element_size(), dtype=torch.bool, device="cpu")
    taken.as_strided(a.shape, a.stride(), a.storage_offset()).fill_(True)
    return a.dtype == b.dtype and bool(taken.as_strided(b.shape, b.stride(), b.storage_offset()).any())


@contextmanager
def _counted(child: nn.Module, counts: list[int]) -> Iterator[None]:
    """Count how often a module's forward runs, and how often its hooks do."""
    forward = child.forward

    def counted(*args: object, **options: object) -> object:
        counts[0] += 1
        return forward(*args, **options)

    def hook(*_: object) -> None:
        counts[1] += 1

    handle = child.register_forward_hook(hook)
    child.forward = counted
    try:
        yield
    finally:
        handle.remove()
        del child.forward


def _rounding(dtype: torch.dtype) -> float:
    return {torch.float64: 1e-9, torch.float32: 1e-4}.get(dtype, 2e-2)


def _noise(like: Tensor, seed: int) -> Tensor:
    """Draw the same numbers on every device."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(like.shape, generator=generator, dtype=torch.float64, device="cpu").to(like)


def _other(x: Tensor) -> Tensor:
    return x.detach() + 1 + _noise(x, seed=5)


def changed(x: Tensor, token: int) -> Tensor:
    """Change one token.

    Args:
        x: floating, (batch, tokens, features).
        token: which.

    Returns:
        Another tensor, the same but for that token.

    Examples:
        >>> x = torch.zeros(1, 2, 1)
        >>> (changed(x, 1) != x).flatten().tolist()
        [False, True]
    """
    return _with_token(x, token, _other(x))


def enlarged(x: Tensor, token: int) -> list[Tensor]:
    """Make a token a hundred times as large, in two opposite directions: one of them raises a query's score for it.

    Arguments as for `changed`.

    Returns:
        Two tensors, the same but for that token.

    Examples:
        >>> [float(large[0, 1].abs()) > 10 for large in enlarged(torch.ones(1, 2, 1), 1)]
        [True, True]
    """
    return [_with_token(x, token, size * _noise(x, seed=7)) for size in (100, -100)]


def _with_token(x: Tensor, token: int, other: Tensor) -> Tensor:
    """Take one token of another tensor of the same shape."""
    copy = x.detach().clone()
    copy[:, token] = other[:, token]
    return copy


def _finitely(actual: Tensor, expected: Tensor) -> float:
    """As `differs`, but what overflows is no evidence: with inputs of this size it may in a function without fault."""
    return differs(actual, expected) if actual[~expected.isnan()].isfinite().all() else 0.0


def _first(actual: Tensor, expected: Tensor) -> int:
    """Find the first token where two results differ."""
    return next(t for t in range(actual.size(1)) if differs(actual[:, t], expected[:, t]))


def _gradient(f: Function, x: Tensor, position: int) -> Tensor | None:
    with torch.inference_mode(False), torch.enable_grad():
        x = x.detach().clone().requires_grad_()
        try:
            of = f(x)[:, position]
            return torch.autograd.grad(of.sum(), x, allow_unused=True)[0] if of.requires_grad else None
        except NotImplementedError:  # as for FlexAttention on a CPU
            return None


def _evidence(x: Tensor, gap: float, text: str) -> Evidence:
    items, tokens = x.shape[:2]
    counted = f"{items} {'item' if items == 1 else 'items'} of {tokens} {'token' if tokens == 1 else 'tokens'}"
    return Evidence(f"{counted}: {text}", gap, tuple(x.shape))


for _name in {*__all__} - {"Evidence"}:
    globals()[_name] = checked(globals()[_name])
