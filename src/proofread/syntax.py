"""Reads Python that others wrote: what is none, or is longer or deeper than what looks through it can take, is told."""

import ast
import io
import tokenize
from pathlib import Path

LONGEST = 2_000  # characters of an expression in prose
DEEPEST = 150  # nodes, one in the other: what walks a tree calls itself as often, and some times more
_DEEP = f"it is nested more than {DEEPEST} deep; let statements compute its parts, one after another"


def source(path: Path) -> str:
    """The text of a module in the encoding that it names; a SyntaxError says which byte is none of it."""
    data = path.read_bytes()
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line, byte = data.count(b"\n", 0, error.start) + 1, data[error.start]
        message = f"byte {byte:#04x} is not {encoding}; save the file as UTF-8"
        raise SyntaxError(message, (str(path), line, None, None)) from None


def module(text: str, file: str = "<unknown>") -> ast.Module:
    """The tree of a module; a SyntaxError says what is wrong with its text."""
    try:
        tree = ast.parse(text, file)
    except (RecursionError, MemoryError):
        raise SyntaxError(_DEEP, (file, 1, None, None)) from None
    except ValueError as error:  # a character that no source holds
        raise SyntaxError(str(error), (file, 1, None, None)) from None
    level: list[ast.AST] = [tree]
    for _ in range(DEEPEST):
        level = [each for node in level for each in ast.iter_child_nodes(node)]
        if not level:
            return tree
    raise SyntaxError(_DEEP, (file, 1, None, None))


def expression(text: str) -> ast.expr:
    """The tree of an expression, which may be broken and may end with a comment; a SyntaxError says what is wrong."""
    if len(text) > LONGEST:
        many = f"it has {len(text):,} characters, and {LONGEST:,} are the most"
        raise SyntaxError(f"{many}; let a cell compute it, and give its name")
    body = module(f"({text.strip()}\n)").body
    if len(body) == 1 and isinstance(body[0], ast.Expr):
        return body[0].value
    raise SyntaxError("invalid syntax")
