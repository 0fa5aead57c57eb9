"""Is my attention right? `diagnose` tries any module or function, and names what is wrong as the museum does.

One look at a target goes through these modules, and the first that is sure names the mistake:

- `_target` copies it, `_subject` finds sizes that all differ and the precision that it computes in.
- `_hear` notes every product and softmax of a forward pass, with where each number came from; `_call` brings those of
  one call of attention into one layout; `_view` runs it again with other inputs, or other numbers in the place of some.
- `_steps` is the table of rows from query times key to the average of values: softmax, scores, who is hidden, weights.
- `_made` finds of which rows of parameters queries, keys and values are made, `_names` what the parameters' names say;
  `_rows` judges these rows, their order and the scale, `_turns` how positions turn queries and keys.
- `_inside` asks where they come from and where the heads' results go, and calls all of these in their order.
- `_equal` compares its outputs with an independent attention, by matrices that were read off one pass.
- `_questions` has those that need only calls, each with its rows of evidence and cause; `_numbers` those about large
  inputs, training and half precision, `_used` whether each parameter counts, `_kept` what is kept from call to
  call, `_structure` what only modules have.
- `_diagnose` asks in order; `_report` has what is found: `Finding`, `Open`, `Passed` and `Given`.
- `_model` examines whole models by the same listener: `_wires` follows each head, `_unlike` finds the odd layer.
"""

from unmasked_doctor._diagnose import INPUTS as INPUTS
from unmasked_doctor._diagnose import diagnose
from unmasked_doctor._judge.equal import attend as attend  # which its page shows
from unmasked_doctor._model import diagnose_model
from unmasked_doctor._report import (
    Finding,
    Given,
    Layer,
    ModelReport,
    Open,
    Passed,
    Report,
    Standing,
    reaches,
)

__all__ = [
    "Finding",
    "Given",
    "Layer",
    "ModelReport",
    "Open",
    "Passed",
    "Report",
    "Standing",
    "diagnose",
    "diagnose_model",
    "reaches",
]
