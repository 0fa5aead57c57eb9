"""What PyTorch has once for all threads is set while anybody needs it, and set back by the last one."""

from typing import Any

import pytest
import torch
import torch._dynamo

from unmasked import _modes


def settings() -> dict[str, Any]:
    """What PyTorch has once for all threads, and examinations change."""
    return {
        "uncompiled": torch._dynamo.eval_frame._stance.stance,
        "written_out": (
            torch.backends.mha.get_fastpath_enabled(),
            torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed(),
            torch.backends.cuda.flash_sdp_enabled(),
        ),
    }


@pytest.mark.parametrize("mode", settings())
def test_who_ends_first_leaves_the_setting_to_who_is_still_inside_and_the_last_one_sets_it_back(mode: str) -> None:
    before = settings()
    first, second = getattr(_modes, mode)(), getattr(_modes, mode)()
    first.__enter__()
    during = settings()
    assert during[mode] != before[mode]
    second.__enter__()
    first.__exit__(None, None, None)
    assert settings() == during
    second.__exit__(None, None, None)
    assert settings() == before
