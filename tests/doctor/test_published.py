"""A drawn few of the models of transformers, of which none is accused; `published.py` examines all, each week."""

import random

import pytest

from .published import Case, cases, examined, quiet, running

DRAWN = random.Random(0).sample(cases([0, 1], [1, 2, 3], "^(bert|gpt2|llama|qwen3|gemma3_text|vit|distilbert|opt)$"), 6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", DRAWN, ids=str)
def test_a_published_model_is_not_accused(case: Case) -> None:
    with quiet():
        model, inputs = running(case)
    report = examined(model, inputs)
    assert not report.named, report.text()
    assert report.layers
