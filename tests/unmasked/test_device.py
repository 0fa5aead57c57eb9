import re

import pytest
import torch

from unmasked.device import best_device


def test_the_best_device_is_the_first_that_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert best_device() == torch.device("cpu")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert best_device() == torch.device("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert best_device() == torch.device("cuda")
    assert best_device("cuda:1") == torch.device("cuda", 1)
    assert best_device(torch.device("cpu")) == torch.device("cpu")
    for asked in ("cuda:2", "xpu", "meta"):
        text = f"device '{asked}' is not available: this machine has cuda:0, cuda:1, mps:0, cpu"
        with pytest.raises(ValueError, match=re.escape(text)):
            best_device(asked)


def test_what_is_no_device_is_refused() -> None:
    with pytest.raises(ValueError, match="name 'gpu' is no device: try one of cuda, mps, xpu, cpu"):
        best_device("gpu")
