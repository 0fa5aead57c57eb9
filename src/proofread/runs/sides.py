"""Says why a condition does not hold: the part of it that fails, and the values that this part compares."""

import ast
from typing import Any

from ..pages.conditions import parse

_LONGEST = 60  # characters of a value that are told
_FEW = 4  # values that are told


def told(expression: str, namespace: dict[str, Any]) -> str:
    """What a condition that is false compares: ``a is 1, b is 2``; "" where nothing of that can be told."""
    node = parse(expression)
    while True:
        if isinstance(node, ast.Call) and _name(node) == "bool" and len(node.args) == 1:
            node = node.args[0]
        elif isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            node = next((each for each in node.values if not _value(each, namespace)), node.values[-1])
        else:
            break
    compared: list[ast.expr] = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
    if isinstance(node, ast.Call):
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        compared = [*([owner] if owner is not None else []), *node.args]
    elif isinstance(node, ast.UnaryOp):
        compared = [node.operand]
    said = []
    for each in compared:
        value = None if isinstance(each, (ast.Constant, ast.GeneratorExp)) else _value(each, namespace)
        if value is not None and type(value).__name__ != "module":
            text = " ".join(repr(value).split())
            text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
            said.append(f"{ast.unparse(each)} is {text}")
    return ", ".join(said[:_FEW])


def _name(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _value(node: ast.expr, namespace: dict[str, Any]) -> Any:
    try:
        return eval(ast.unparse(node), namespace)
    except Exception:  # what an "and" would have kept from being asked
        return None
