"""What the package asks of every argument: the checks that its functions and modules share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from unmasked._checks import checked, choice, flag, number, size, tensor
from unmasked._shapes import Bool, Float, Int

from ..refusals import refused

x = torch.zeros(5, 3)
learned = torch.tensor(0.5, requires_grad=True)


@checked
def everything(
    x: Float[Tensor, "*batch tokens dim"],
    weight: Float[Tensor, "rows dim"] | None = None,
    *rest: Bool[Tensor, "..."] | None,
    ids: Int[Tensor, "batch *axes tokens"] | None = None,
    count: int = 1,
    factor: float | None = None,
    causal: bool = False,
    side: Literal["left", "right"] = "left",
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
    name: int | str = "",
    module: nn.Module | None = None,
    f: Callable[[Tensor], Tensor] | None = None,
    sizes: Sequence[int] = (),
    named: Mapping[str, int] | None = None,
    anything: Any = None,
) -> int:
    return 1


test_what_is_no_number_of_its_range_is_refused_by_name = refused(
    {
        ValueError: {
            "scale is nan; it must be a finite number": lambda: number("scale", torch.nan),
            "scale is -inf; it must be a finite number": lambda: number("scale", -torch.inf),
            "softcap is 0; it must be positive": lambda: number("softcap", 0, "be positive", above=0),
            "dropout_p is 1.5; it must be a probability": lambda: number(
                "dropout_p", 1.5, "be a probability", least=0, most=1
            ),
            "window is 0; it must be 1 or more": lambda: size("window", 0),
            "keys is -1; it must be 0 or more": lambda: size("keys", -1, least=0),
            'side is \'up\'; choose "left" or "right"': lambda: choice("side", "up", "left", "right"),
            'side is None; choose "left"': lambda: choice("side", None, "left"),
        },
        TypeError: {
            "scale is '1', a str; it must be a finite number": lambda: number("scale", "1"),  # type: ignore[arg-type]
            "scale is None; it must be a finite number": lambda: number("scale", None),  # type: ignore[arg-type]
            "scale is True; it must be a finite number": lambda: number("scale", True),
            "scale is a tensor of float32, (5, 3); it must be a finite number": lambda: number("scale", x),  # type: ignore[arg-type]
            "scale is a tensor with a derivative, which an option would lose; ...": (
                lambda: number("scale", learned),  # type: ignore[arg-type]
                lambda: torch.func.grad(lambda it: it * number("scale", it))(torch.tensor(0.5)),
                lambda: torch.func.vmap(lambda it: it * number("scale", it))(torch.ones(2)),
            ),
            "heads is 2.0, a float; it must be an integer": lambda: size("heads", 2.0),  # type: ignore[arg-type]
            "heads is True; it must be an integer": lambda: size("heads", True),
            "is_causal is 'no', a str; it must be True or False": lambda: flag("is_causal", "no"),  # type: ignore[arg-type]
            "is_causal is 1, a int; it must be True or False": lambda: flag("is_causal", 1),  # type: ignore[arg-type]
            "is_causal is a tensor of bool, (); it must be True or False": lambda: flag("is_causal", x.any()),  # type: ignore[arg-type]
        },
    }
)


def test_numbers_of_other_libraries_count_as_numbers() -> None:
    assert number("scale", np.float32(0.5)) == number("scale", torch.tensor(0.5)) == 0.5  # type: ignore[arg-type]
    assert type(number("scale", np.float32(0.5))) is float  # type: ignore[arg-type]
    assert size("heads", np.int64(2)) == size("heads", torch.tensor(2)) == 2  # type: ignore[arg-type]


test_what_is_no_tensor_of_its_kind_is_refused_by_name = refused(
    {
        TypeError: {
            "x is None; pass a tensor": lambda: tensor("x", None),  # type: ignore[arg-type]
            "x is of the type list; pass torch.tensor(x)": lambda: tensor("x", [1.0]),  # type: ignore[arg-type]
            "x is 1.0, a float; pass torch.tensor(x)": lambda: tensor("x", 1.0),  # type: ignore[arg-type]
            "x is of the type ndarray; pass torch.from_numpy(x)": lambda: tensor("x", np.zeros(2)),  # type: ignore[arg-type]
            "x is torch.int64; it must be floating: call x.float()": lambda: tensor("x", x.long(), "Float"),
            "x is torch.complex64; it must be floating: call torch.view_as_real(x).flatten(-2)": (
                lambda: tensor("x", x + 0j, "Float")
            ),
            "x is torch.float8_e5m2; it must be floating: call x.float()": (
                lambda: tensor("x", x.to(torch.float8_e5m2), "Float")
            ),
            "x is torch.float32; it must be bool (an additive mask: allowed_from_additive)": (
                lambda: tensor("x", x, "Bool")
            ),
            "x is torch.bool; pass integers, such as torch.tensor([0, 0, 1]) holds": lambda: tensor("x", x > 0, "Int"),
            "x is sparse, torch.sparse_coo; call x.to_dense()": lambda: tensor("x", x.to_sparse()),
            "x is a nested tensor; call x.to_padded_tensor(0.0), and hide the padding with a mask": (
                lambda: tensor("x", torch.nested.nested_tensor([x[0], x[0, :2]], layout=torch.jagged)),
            ),
        }
    }
)

test_a_function_is_held_to_its_annotations = refused(
    {
        TypeError: {
            "x is 'x', a str; pass a tensor": lambda: everything("x"),  # type: ignore[arg-type]
            "x is torch.bool; it must be floating...": (lambda: everything(x > 0), lambda: everything(x=x > 0)),
            "rest[1] is torch.float32; it must be bool ...": lambda: everything(x, None, None, x),
            "count is '1', a str; it must be an integer": lambda: everything(x, count="1"),  # type: ignore[arg-type]
            "factor is '1', a str; it must be a finite number": lambda: everything(x, factor="1"),  # type: ignore[arg-type]
            "causal is None; it must be True or False": lambda: everything(x, causal=None),  # type: ignore[arg-type]
            "dtype is 'half', a str; it must be a dtype, such as torch.float32": (
                lambda: everything(x, dtype="half")  # type: ignore[arg-type]
            ),
            "name is None; it must be an integer or a string": lambda: everything(x, name=None),  # type: ignore[arg-type]
            "name is True; it must be an integer or a string": lambda: everything(x, name=True),
            "module is of the type Linear; it must be of the type Module": (
                lambda: everything(x, module=type("Linear", (), {})())
            ),
            "f is 'relu', a str; it must be a function": lambda: everything(x, f="relu"),  # type: ignore[arg-type]
            "sizes is '12', a str; it must be a sequence, such as a list": (
                lambda: everything(x, sizes="12")  # type: ignore[arg-type]
            ),
            "named is of the type list; it must be a mapping, such as a dict": (
                lambda: everything(x, named=[])  # type: ignore[arg-type]
            ),
            "device is of the type list; it must be a device or a string or None": lambda: everything(x, device=[]),  # type: ignore[arg-type]
        },
        ValueError: {
            "x has shape (5,); it must be (..., tokens, dim)": lambda: everything(x[:, 0]),
            "weight has shape (1, 5, 3); it must be (rows, dim)": lambda: everything(x, x[None]),
            "weight has shape (5, 4) and x (5, 3); they must have as many dim": lambda: everything(
                x, torch.zeros(5, 4)
            ),
            "ids has shape (2, 4) and x (5, 3); they must have as many tokens": (
                lambda: everything(x, ids=torch.ones(2, 4).long())
            ),
            "factor is nan; it must be a finite number": lambda: everything(x, factor=torch.nan),
            "count is -1; it must be 0 or more": lambda: everything(x, count=-1),
            'side is \'up\'; choose "left" or "right"': lambda: everything(x, side="up"),  # type: ignore[arg-type]
            "device is 'gpu', a str; it must be a device, such as \"cpu\"": lambda: everything(x, device="gpu"),
        },
    }
)


def test_what_a_function_promises_to_take_it_takes() -> None:
    right: dict[str, Any] = {"ids": x.long()[:, :, None].expand(5, 3, 5), "count": np.int64(3), "factor": 2}
    right |= {"causal": True, "side": "right", "device": torch.device("cpu"), "name": 3, "module": nn.Linear(1, 1)}
    right |= {"f": torch.relu, "sizes": [1], "named": {}, "anything": object()}
    assert everything(x, x[:2], None, x > 0, **right) == 1
    assert everything(nn.Parameter(x[None]), device="cpu", factor=None) == 1
