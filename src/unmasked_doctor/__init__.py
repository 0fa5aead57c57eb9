"""Is my attention right? `diagnose` tries any module or function: which promises it breaks, and how it differs.

A broken promise is shown by calls, and `_ask` asks for it. What a step does otherwise than the textbook is seen by
`_judge`: it names the cause of a broken promise, or stays a difference that a design may mean. An examination goes
through these modules:

- `_target` copies the target, `_subject` finds sizes that all differ and the precision in which it computes.
- `_listen` records the products and softmaxes of a forward pass, and brings those of a call into one layout.
- `_judge` judges each step of that call, and compares the outputs with those of an independent attention.
- `_ask` has the questions that need only calls of the target, `_why` those that a broken promise leads to.
- `_diagnose` asks in order, and makes the report; `_report` has its parts: `Finding`, `Open`, `Passed` and `Given`.
- `_model` examines whole models by the same listener. `_asker` calls them with inputs that differ in one thing, by
  which `_apart`, `_padded`, `_later` and `_pieces` ask for promises; `_unlike` finds the layer that is unlike the rest.
"""

from unmasked_doctor._ask.promises import prepared
from unmasked_doctor._call import called
from unmasked_doctor._diagnose import INPUTS as INPUTS
from unmasked_doctor._diagnose import diagnose
from unmasked_doctor._judge.equal import attend as attend  # which its page shows
from unmasked_doctor._model import diagnose_model
from unmasked_doctor._report import (
    STEPS,
    Finding,
    Given,
    Layer,
    ModelReport,
    Open,
    Pair,
    Passed,
    Report,
    Standing,
    reaches,
)

__all__ = [
    "STEPS",
    "Finding",
    "Given",
    "Layer",
    "ModelReport",
    "Open",
    "Pair",
    "Passed",
    "Report",
    "Standing",
    "called",
    "diagnose",
    "diagnose_model",
    "prepared",
    "reaches",
]
