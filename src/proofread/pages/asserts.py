"""The asserts of a cell of claims: each proves a sentence of the page, of which it quotes a fragment.

``assert weights[1] > weights[0], "ship takes more from crew than from i"`` is a claim: its condition must hold, and its
message must stand on the page. Nothing but asserts is there, so that a reader finds each proof in one place.
"""

import ast
import tokenize
from contextlib import suppress

from ..programs.source import Source
from ..syntax import module
from .plain import plain
from .prose import EXACTLY, Claim, Prose, check


def read(source: str) -> Prose:
    """Read the code of a cell of claims."""
    prose = Prose(source)
    try:
        body = module(source).body
    except SyntaxError as error:
        prose.problems.append(((error.lineno or 1) - 1, f"the claims cannot be read: {error.msg}"))
        return prose
    text = Source(source)
    reasons = _reasons(source) if EXACTLY.search(source) else {}
    for statement in body:
        line = statement.lineno - 1
        if not isinstance(statement, ast.Assert):
            code = ast.unparse(statement).split("\n")[0]
            remedy = f"{code} is none: let a cell above do that, tagged remove-cell"
            prose.problems.append((line, f"a cell of claims holds asserts alone, and {remedy}"))
            continue
        fragment = statement.msg
        if not (isinstance(fragment, ast.Constant) and isinstance(fragment.value, str) and plain(fragment.value)):
            condition = ast.unparse(_condition(statement.test))
            remedy = f'quote a fragment of what it proves, assert {condition}, "a few words of the page"'
            prose.problems.append((line, f"{ast.unparse(statement)} names no sentence of the page: {remedy}"))
            continue
        expression = text.of(statement.test)
        ends = range(statement.lineno, (statement.end_lineno or 0) + 1)
        reason = next((reasons[end] for end in ends if end in reasons), "")
        if check(prose, expression, line):
            span = text.span(fragment)
            words = " ".join(fragment.value.split())
            prose.claims.append(Claim(words, f"{expression}  {reason}".rstrip(), span, prose.line(span[0])))
    return prose


def _condition(test: ast.expr) -> ast.expr:
    """Return the condition of an assert, also where brackets enclose its message, too."""
    return test.elts[0] if isinstance(test, ast.Tuple) and test.elts else test


def _reasons(source: str) -> dict[int, str]:
    """The comments that say why no bit can differ, by their line."""
    lines = iter(source.splitlines(keepends=True))
    with suppress(tokenize.TokenError):
        tokens = tokenize.generate_tokens(lambda: next(lines, ""))
        return {token.start[0]: token.string for token in tokens if EXACTLY.match(token.string)}
    return {}
