"""Numbers that only some inputs show: large and small inputs, training, half precision."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from unmasked_doctor import probes
from unmasked_doctor._ask.used import trainable
from unmasked_doctor._listen.hear import heard
from unmasked_doctor._report import Finding, Open, Outcome, Passed
from unmasked_doctor._subject import Subject, brief

__all__ = ["TRAINING", "numbers"]

TRAINING = "in training, on average the same as in evaluation"


def numbers(subject: Subject, findings: list[Finding], *, equal: bool) -> Iterator[Outcome]:
    """Ask for gradients, for what large and small inputs do, and for half precision."""
    if not findings:
        for outcome in itertools.chain(trainable(subject), large(subject) if equal else ()):
            yield outcome
            if isinstance(outcome, Finding) and not outcome.caution:
                break
    yield from _half(subject)
    if subject.options.masked and not {"mask-polarity", "padding-ignored"} & {each.cause for each in findings}:
        yield from _blind(subject)
    yield from _returned_weights(subject)
    if subject.options.training:
        yield from trained(subject, equal=equal)


def large(subject: Subject) -> Iterator[Outcome]:
    """Make the inputs a hundred times as large: exponentials overflow where no maximum is subtracted.

    What is not a softmax may have its reasons: so this is asked of what is equal to attention.
    """
    check, x = "large inputs", subject.noise(subject.items, subject.tokens)
    before = subject.f(x)
    after = subject.f(100 * x)
    if before.isfinite().all() and not after.isfinite().all():
        text = "it overflows with large inputs, as a softmax that does not subtract the maximum of the scores first"
        count = int((~after.isfinite()).sum())
        evidence = subject.sized(f"a hundred times as large, they make {count} numbers of the output infinite or NaN")
        yield Finding(check, None, text, evidence)
    else:
        yield Passed(check)


def trained(subject: Subject, *, equal: bool = False) -> Iterator[Outcome]:
    """Compare the mean of what it gives in training with what it gives in evaluation.

    A norm or a ReLU behind dropout leaves a gap too: so a gap alone is open, and dropout of scores is heard. What is
    equal to attention has neither: all its outputs shrink alike where what dropout keeps is not scaled.
    """
    check = TRAINING
    x = subject.noise(1, subject.tokens)
    many, draws = x.repeat(64, 1, 1), []
    with torch.no_grad():
        expected = subject.f(x)
        with subject.target.training():
            try:
                for seed in range(16):
                    torch.manual_seed(seed)
                    draws.append(subject.f(many))
                events, _ = heard(lambda: subject.f(x))
            except Exception as error:  # whatever it raises in training alone
                yield Open(check, f"a target that runs in training mode: it raised {brief(error)}")
                return
    drawn = torch.cat(draws)
    if not drawn.isfinite().all():
        text = "in training its output is not finite: dropout of a score of -inf is not a number"
        yield Finding(check, None, text, subject.sized(f"{int((~drawn.isfinite()).sum())} numbers are not finite"))
        return
    gap, chance = (drawn.mean(0) - expected[0]).abs(), drawn.std(0) / len(drawn) ** 0.5
    sure = gap > 6 * chance + 1e-6
    if not (bool(sure.any()) and gap[sure].max() > 0.01 * expected.abs().max()):
        yield Passed(check)
        return
    evidence = f"{len(drawn)} draws: their mean is off by {gap[sure].max().item():.2g}, more than chance allows"
    if any(facts.dropout for event in events if event.kind == "softmax" for facts in event.facts):
        text = "its mean over dropout is not what it computes in evaluation: dropout stands before the softmax"
        yield Finding(check, None, text, evidence, how="followed", step="dropout")
        return
    tokens = expected[0] - expected[0].mean(0)  # without what the last bias adds to all of them
    less = drawn.mean(0) - drawn.mean(0).mean(0)
    share = float((less * tokens).sum() / tokens.square().sum())
    if equal and bool(((less - share * tokens).abs() < 6 * chance).all()):
        text = (
            f"its output in training is on average {share:.2f} times what it is in evaluation: what dropout keeps is "
        )
        text += "not divided by the share that it keeps"
        yield Finding(check, None, text, evidence, how="followed", step="dropout")
    else:
        yield Open(check, f"whether a norm or a nonlinearity behind dropout may move the mean: {evidence}")


def _half(subject: Subject) -> Iterator[Outcome]:
    check, half = "float16 range", subject.like()
    if not half.copied:
        yield Open(check, "a target that copy.deepcopy can copy: its own numbers are left as they are")
        return
    for module in half.modules.values():
        module.half()
    tokens = subject.tokens
    allowed = torch.ones(tokens, tokens, dtype=torch.bool).tril() if subject.options.masked else None
    x = subject.noise(subject.items, tokens)
    if not subject.f(x).isfinite().all():
        return
    evidence = None
    try:
        evidence = probes.fails_in_half(lambda x: half(x, allowed=allowed), x)
        half(x.half(), allowed=allowed)
    except Exception as error:  # whatever it raises in half precision alone
        if evidence is None or "overflow" not in str(error):
            yield Open(check, f"a target that runs in float16: it raised {brief(error)}")
            return
    if evidence is None:
        yield Passed(check)
    else:
        text = "it does not survive float16: a number of its own, such as -1e9, is beyond 65504"
        yield Finding(check, "float16-overflow", text, str(evidence), caution=True)


def _blind(subject: Subject) -> Iterator[Outcome]:
    check = "no NaN where a query may see nothing"
    q, k, v = (subject.noise(subject.items, subject.tokens, place, place) for place in range(3))
    allowed = torch.ones(subject.tokens, subject.tokens, dtype=torch.bool)
    try:
        whole = subject.target.mask_axes == 1
        evidence = probes.is_blinded(subject.target, q, k, v, allowed, whole_item=whole)
        if evidence is not None and not subject.rough:  # the lowest number of float64 overflows in what is float32
            single = subject.admit(torch.float32).with_axes(subject.target.mask_axes)
            narrow = q.float(), k.float(), v.float()
            evidence = evidence if probes.is_blinded(single, *narrow, allowed, whole_item=whole) else None
    except Exception as error:  # whatever it raises where nothing may be seen
        yield Open("rows that may see nothing", f"the target raised {brief(error)}")
        return
    if evidence is None:
        yield Passed(check)
        return
    text = "a query that may see nothing gives NaN: a softmax over -inf alone"
    yield Finding(check, "fully-masked-row", text, str(evidence), caution="others" not in evidence.text)


def _returned_weights(subject: Subject) -> Iterator[Outcome]:
    x = subject.noise(subject.items, subject.tokens)
    with torch.no_grad():
        subject.f(x)
        returned = subject.target.weights
        if returned is None or probes.weights_sum_to_one(returned) is not None:
            return  # scores, a bias, or weights of which a sink took a part
        with subject.target.training():
            try:
                subject.f(x)
            except Exception:  # training is asked about elsewhere
                return
            trained_ = subject.target.weights
            evidence = None if trained_ is None else probes.weights_sum_to_one(trained_)
    if evidence is not None:
        text = "the weights that it returns in training are taken after dropout"
        yield Finding("weights sum to one, in training", "weights-after-dropout", text, str(evidence), caution=True)
