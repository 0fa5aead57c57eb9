"""Explains why a condition does not hold: by the part of it that fails, and the values that this part compares."""

import ast
from types import GeneratorType, ModuleType
from typing import Any

from ..syntax import expression as parse

_LONGEST = 60  # characters of a value that are shown
_FEW = 4  # values that are shown


def describe_operands(expression: str, namespace: dict[str, Any]) -> str:
    """Return the operands that a false condition compares, as ``a is 1, b is 2``, or "" if it has none."""
    texts = {}
    for each in _compared(parse(expression), namespace):
        text = " ".join(repr(_value(each, namespace)).split())
        texts[ast.unparse(each)] = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
    return ", ".join([f"{side} is {text}" for side, text in texts.items()][:_FEW])


def _compared(node: ast.expr, namespace: dict[str, Any]) -> list[ast.expr]:
    """Return the operands of the part of a condition that decides; that part itself where it compares nothing."""
    sides: list[ast.expr] = []
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "bool"
        and len(node.args) == 1
    ):
        return _compared(node.args[0], namespace)
    if isinstance(node, ast.BoolOp):
        decide = [each for each in node.values if not _value(each, namespace)]
        parts = decide[:1] if isinstance(node.op, ast.And) else node.values
        return [side for part in parts for side in _compared(part, namespace) or [part]]
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
    if isinstance(node, ast.UnaryOp):
        return _compared(node.operand, namespace) or [node.operand]
    if isinstance(node, ast.Call):
        sides = [*([node.func.value] if isinstance(node.func, ast.Attribute) else []), *node.args]
    return [each for each in sides if _can_be_shown(_value(each, namespace)) and not isinstance(each, ast.Constant)]


def _can_be_shown(value: object) -> bool:
    return value is not ... and not isinstance(value, (ModuleType, GeneratorType))


def _value(node: ast.expr, namespace: dict[str, Any]) -> Any:
    try:
        return eval(ast.unparse(node), namespace)
    except Exception:  # what an "and" would have kept from being asked
        return ...
