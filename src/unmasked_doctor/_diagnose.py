"""The examination: every check, in order, and what its failure means."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from unmasked import _generators, _modes
from unmasked._checks import flag
from unmasked_doctor._alone import alone, unlike_textbook
from unmasked_doctor._ask.call_promises import promises
from unmasked_doctor._ask.kept import caches, keeps_nothing
from unmasked_doctor._ask.numbers import TRAINING, numbers
from unmasked_doctor._ask.promises import CACHE, settled, with_pairs
from unmasked_doctor._ask.questions import behaviour, leaves_inputs
from unmasked_doctor._ask.structure import structure
from unmasked_doctor._ask.used import GRADIENTS
from unmasked_doctor._ask.user_call import UserCall
from unmasked_doctor._call import Form, as_given, bound, never_passed, reordered, runs_as_given, understood
from unmasked_doctor._judge.equal import compared, named
from unmasked_doctor._judge.inside import look
from unmasked_doctor._listen.view import EQUALITY
from unmasked_doctor._model_run import hear_model
from unmasked_doctor._report import Finding, Given, Open, Outcome, Passed, Report, Standing, standing_of
from unmasked_doctor._rounded import FAR, rounded_places
from unmasked_doctor._subject import Subject, brief, precise, runs, still
from unmasked_doctor._target import INPUTS, Inputs, Options, known_or_none, with_article
from unmasked_doctor._why.reasons import explained

__all__ = ["INPUTS", "diagnose"]


def diagnose(
    target: Callable[..., Any],
    call: Any = None,
    *,
    embed_dim: int | None = None,
    num_heads: int | None = None,
    causal: bool | None = None,
    inputs: Inputs | None = None,
    batch_first: bool = True,
    weights: Mapping[str, Any] | None = None,
    positions: bool | None = None,
    strict: bool = False,
    tokens: int | None = None,
    key_dim: int | tuple[int, int] | None = None,
    cache: str | None = None,
    training: bool = False,
) -> Report:
    """Examine an attention module or function: which promises it breaks, and where it differs from the textbook.

    A promise is broken where calls show it: a later token is seen though causal=True, an item reaches another one, what
    a mask hides is seen, a cache changes the output. Only that makes ``report.ok`` false. Where a step is another than
    the textbook's, and no promise is broken, the report names a difference, which a design may mean.

    The target is copied, and the copy examined where its parameters are, in evaluation mode, in float64, with
    parameters drawn anew, since those of a fresh module (biases of zero) hide mistakes. Neither the target nor a global
    random generator is moved, and inference mode, autocast and default devices change nothing in what is found.

    Args:
        target: A module, or any function. It returns a tensor, or a tuple or a dict that begins with it.
        call: What you call it with: a tensor, a tuple of arguments, a dict by name, or a tuple that ends with such a
            dict. By calls with other sizes the doctor finds which are tokens, contexts, masks and tables, and in which
            order; the rest is passed as it is.
        embed_dim: Features of its input, where call is None.
        num_heads: Number of heads; None to take it from the module's attributes, or to try.
        causal: Whether no token may see a later one, of itself; None if that is not known.
        inputs: What it takes, where call is None: None or "x", one tensor; "x_context", its tokens and those that they
            attend to; "qkv", three tensors; and each with "_allowed", such as "x_allowed", if a boolean mask follows,
            whose True means that a query may see a key: (batch, 1, queries, keys), or with fewer axes: (batch, queries,
            keys), (queries, keys) or (batch, keys).
        batch_first: Whether its tensors are (batch, tokens, features), and not (tokens, batch, features).
        weights: Where each weight is, if names do not tell: by "query", "key", "value", "out" or "qkv", and the same
            with "_bias", a parameter's name, a parameter or a view of one, (out, in), or an nn.Linear. Their order
            then counts: another is a mistake.
        positions: Whether it adds positions to its tokens, or turns queries and keys by them, so that order matters;
            False if the order of its tokens must not count; None if that is not known.
        strict: Count as findings what PyTorch's own functions do too: NaN for a query that may see nothing, weights
            that are returned after dropout.
        tokens: The number of tokens that it was built for, if it takes no other.
        key_dim: Features of keys and values, or of the context, if not embed_dim; a pair if those of values differ.
        cache: "kv" if it is called as ``target(x, cache=None)`` and returns its output and a cache, to be passed with
            the tokens that follow; or the name that this argument has, such as "past_key_value".
        training: Whether to examine what it computes in training too, whose mean over dropout is what it computes in
            evaluation.

    Returns:
        The report: ``report.ok``, findings and differences with their causes, and ``report.verdict``: how well it is
        known.

    Raises:
        TypeError: target cannot be called, or a flag is neither True nor False.
        ValueError: an option is out of range, the target does not take these inputs, or its calls do not tell which
            tensors of ``call`` are tokens.

    Examples:
        >>> module = torch.nn.MultiheadAttention(12, 3, batch_first=True)
        >>> diagnose(module, embed_dim=12, inputs="qkv").ok
        True
        >>> x, hidden = torch.randn(2, 5, 12), torch.ones(5, 5).triu(1).bool()
        >>> diagnose(module, dict(query=x, key=x, value=x, attn_mask=hidden)).given
        ('True hides in attn_mask',)
        >>> class Merged(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.qkv, self.proj = torch.nn.Linear(12, 36), torch.nn.Linear(12, 12)
        ...     def forward(self, x):
        ...         q, k, v = self.qkv(x).unflatten(-1, (9, 4)).transpose(1, 2).chunk(3, 1)
        ...         context = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        ...         return self.proj(context.reshape(x.shape))
        >>> diagnose(Merged(), embed_dim=12, num_heads=3).causes
        ('merge-without-transpose',)
    """
    if not callable(target):
        raise TypeError(f"target is {with_article(target)}; pass a module or a function")
    if inspect.isclass(target):
        raise TypeError(f"target is the class {target.__name__}; pass an object of it: {target.__name__}(...)")
    flag("strict", strict)
    told: dict[str, Any] = {"embed_dim": embed_dim, "inputs": inputs, "key_dim": key_dim}
    if call is None and embed_dim is None:
        raise ValueError(
            "embed_dim is None and call is None; pass the call that you make, call=(x,) or call=dict(query=q, ...), or "
            "the features of its input, embed_dim=..."
        )
    for name, value in told.items():
        if call is not None and value is not None:
            raise ValueError(f"{name} is {value!r} and call is given, which tells it: leave {name} out")
    told |= {"inputs": inputs or "x", "num_heads": num_heads, "tokens": tokens, "positions": positions}
    flag("batch_first", batch_first)
    known_or_none("causal", causal)
    known_or_none("positions", positions)
    caches = set() if cache is None else {"cache" if cache == "kv" else cache}  # the arguments that were asked about
    with _generators.forked(), _modes.left(), _modes.elsewhere() as default:
        shown: list[Outcome] | None = None
        if call is not None:
            form = bound(target, call)
            with torch.no_grad(), _modes.uncompiled():
                rounded = rounded_places(lambda: runs_as_given(target, form, default))
                asked = UserCall(target, call, batch_first=batch_first, default=default)
                shown = explained(asked, list(promises(asked, causal=causal, positions=positions)))
                if rounded is not None:
                    shown.append(Finding("positions", None, FAR, rounded, step="positions"))
                if any(not isinstance(each, Given) and each.check == CACHE for each in shown):
                    caches |= {*asked.keeps}
                try:
                    found = understood(target, form, batch_first=batch_first, default=default)
                except Exception as error:  # whatever a stranger's tensors may lead to
                    found = f"a call whose tensors can be told apart: trying them raised {brief(error)}"
            if isinstance(found, str) and asked.words:
                found = "tokens that are no ids; diagnose_model tells more of what takes ids"
            if isinstance(found, str):
                unasked = {"weights": weights, "cache": cache, "training": training or None, "tokens": tokens}
                unread = [Open(f"{name}={value!r}", found) for name, value in unasked.items() if value is not None]
                outcomes = [*settled([*_layers(target, form, default)], shown), Open(EQUALITY, found), *unread]
                report = _report(_name(target), outcomes, strict=strict)
                return replace(report, never_passed=never_passed(target, form, 0, caches))
            form, read = found
            told |= {"form": form} | {name: value for name, value in read.items() if told.get(name) is None}
            told["inputs"] = read["inputs"]
            if causal and form.masks_future:  # then the module need not hide it of itself
                causal = None
                shown.append(Given("its mask hides the future"))
        elif told["inputs"] in INPUTS:
            told["form"] = reordered(target, told["inputs"], batch_first=batch_first)
        options = Options(
            causal=causal, batch_first=batch_first, weights=weights, cache=cache, training=training, **told
        )
        subject = Subject(target, options, default)
        try:
            outcomes = _examine(subject, shown)
        finally:
            subject.release()
    outcomes += [Given(choice) for choice in (options.form.told if options.form else ())]
    passed = {"x": 1, "x_context": 2, "qkv": 3}[options.inputs.removesuffix("_allowed")] + options.masked
    left = never_passed(target, options.form, passed, caches)
    return replace(_report(_name(target), outcomes, strict=strict), never_passed=left)


def _report(name: str, outcomes: list[Outcome], *, strict: bool) -> Report:
    every = [each for each in outcomes if isinstance(each, Finding)]
    cautions = [each for each in every if each.caution and not strict]
    named = sorted((each for each in every if each not in cautions), key=lambda each: each.how == "open")
    passed = [each.check for each in outcomes if isinstance(each, Passed)]
    unclear = {each.check for each in outcomes if isinstance(each, Open)}
    unused = GRADIENTS in unclear or any(each.check == GRADIENTS and each.step for each in every)
    followed: Standing = "open"
    if EQUALITY in passed:
        followed = "equal"
    elif f"{EQUALITY}, step by step" in passed and not unused:  # else what is the rest for?
        followed = "followed"
    if TRAINING in unclear:  # what was asked for could not be told
        followed = "open"
    return Report(
        name,
        tuple(each for each in named if not each.step),
        tuple(each for each in named if each.step),
        tuple(cautions),
        tuple(dict.fromkeys(passed)),
        tuple(each for each in outcomes if isinstance(each, Open)),
        standing_of(named, followed),
        tuple(dict.fromkeys(each.choice for each in outcomes if isinstance(each, Given))),
    )


def _named(outcomes: Iterable[Outcome]) -> list[Finding]:
    return [each for each in outcomes if isinstance(each, Finding) and not each.caution]


def _layers(target: Callable[..., Any], form: Form, default: torch.device | None) -> list[Finding]:
    """What each of its softmaxes does otherwise, as those of a whole model are judged."""
    steps: list[Finding] = []
    if isinstance(target, nn.Module):
        args, kwargs = as_given(form)
        with contextlib.suppress(Exception):  # whatever a stranger's module raises
            heard = hear_model(target, args, kwargs, default).calls
            every = (each for seen in heard for each in (*alone(seen), *unlike_textbook(seen)))
            steps += [replace(each, where="") for each in every if each.step]
    return steps


def _has_norms(target: Callable[..., Any]) -> bool:
    return isinstance(target, nn.Module) and any("norm" in type(each).__name__.lower() for each in target.modules())


def _name(target: Callable[..., Any]) -> str:
    name: str = getattr(target, "__name__", type(target).__name__)
    return name


def _examine(subject: Subject, shown: list[Outcome] | None) -> list[Outcome]:
    """Ask everything that can be asked, in an order in which no answer is told twice.

    Args:
        subject: What is asked.
        shown: What calls as the user makes them showed, which then are the only proof; None to ask by calls here.
    """
    if subject.options.weights:
        named(subject.target, subject.options.weights)
    with _modes.uncompiled(), torch.no_grad():
        outcomes, running = runs(subject)
        if not running and shown is not None:  # in a call of its user's it does
            opened = [Open(each.check, each.evidence) if isinstance(each, Finding) else each for each in outcomes]
            return [*opened, *shown]
        if not running:
            return outcomes
        outcomes += [still(subject)] if shown is None else []
        if _named(outcomes):
            outcomes.append(Open("every other check of its outputs", "outputs that do not change from call to call"))
        elif narrow := precise(subject):
            outcomes += [*narrow, *(shown or [])]
        else:
            outcomes += _outputs(subject, shown)
    outcomes += structure(subject)
    return outcomes


def _outputs(subject: Subject, shown: list[Outcome] | None) -> list[Outcome]:
    """Follow its steps, ask for each promise by calls, and let the steps name what breaks one."""
    outcomes: list[Outcome] = [leaves_inputs(subject)]
    inside = look(subject)
    whole = list(compared(subject, inside))
    text = {each.told for each in _named(whole)}
    seen = [each for each in inside.outcomes if not (isinstance(each, Finding) and each.told in text)]
    equal = Passed(EQUALITY) in whole and not inside.findings
    if subject.causal is None and inside.right:
        subject = subject.knowing(inside.causal)
    if subject.positions is None and inside.placeless:
        subject = subject.knowing(subject.causal, positions=False)
    asked = list(behaviour(subject, equal=equal)) if shown is None else shown
    form, steps = subject.options.form, list[Finding]()
    image = form is not None and any("x" in leaf.axes for leaf in form.leaves)  # whose axes the call alone tells apart
    whole_steps = image or not inside.seen
    if shown is not None and form is not None and (whole_steps or _has_norms(subject.original)):
        steps = _layers(subject.original, form, subject.default)
        steps = steps if whole_steps else [each for each in steps if each.step == "norms"]
    outcomes += settled([*seen, *whole, *steps], asked)
    if shown is None and not _named(outcomes):
        outcomes += keeps_nothing(subject)
    outcomes += caches(subject)
    outcomes += numbers(subject, _named(outcomes), equal=equal)
    outcomes = with_pairs(subject, outcomes) if shown is None else outcomes
    return [_hinted(each) if subject.target.called_with("is_causal") else each for each in outcomes]


def _hinted(outcome: Outcome) -> Outcome:
    """A causal mask that is missing was not passed: a hint was."""
    if isinstance(outcome, Finding) and outcome.cause == "no-causal-mask":
        return replace(outcome, cause="is-causal-is-a-hint", also=("no-causal-mask", *outcome.also))
    return outcome
