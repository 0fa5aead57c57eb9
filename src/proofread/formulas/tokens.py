"""LaTeX cut into tokens: its numbers, names, words, relations and commands."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from decimal import Decimal

RELATIONS = {
    **{"=": "=", ":=": "=", r"\coloneqq": "=", r"\equiv": "=", r"\approx": "≈", r"\simeq": "≈", r"\in": "∈"},
    **{r"\notin": "∉", r"\ll": "≪", r"\gg": "≫"},
    **{r"\ne": "≠", r"\neq": "≠", "<": "<", r"\lt": "<", ">": ">", r"\gt": ">"},
    **{r"\le": "≤", r"\leq": "≤", r"\leqslant": "≤", r"\ge": "≥", r"\geq": "≥", r"\geqslant": "≥"},
}
FUNCTIONS = {
    *("exp", "log", "ln", "sin", "cos", "tan", "sinh", "cosh", "tanh", "arcsin", "arccos", "arctan"),
    *("softmax", "max", "min", "det", "tr", "diag", "sign", "concat", "Concat"),
}
FRACTIONS = {r"\frac", r"\dfrac", r"\tfrac"}
_WORDS = "if|for|for all|whenever|and|or|where|with|otherwise|else|(?:is )?even|(?:is )?odd"
_FONTS = r"text|textbf|textit|mathrm|mathbf|mathit|mathsf|mathtt|mathcal|mathbb|boldsymbol|bm|operatorname\*?"
_GREEK = (
    r"(?:var)?(?:epsilon|theta|rho|phi)|alpha|beta|[gG]amma|[dD]elta|zeta|eta|Theta|iota|kappa|[lL]ambda|mu|nu|[xX]i|Pi"
    r"|[sS]igma|tau|[uU]psilon|Phi|chi|[pP]si|[oO]mega|ell|hbar"
)
# Libraries (pylatexenc, TexSoup, latex2mathml) part characters, macros and braces only, four times slower: all that is
# named here, and read below, would still have to be made of their tokens.
_TOKEN = re.compile(
    rf"(?P<quad>\\q?quad(?![a-zA-Z]))|(?P<space>\s+|\\[,;:!> ]|~|%[^\n]*"
    rf"|\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|nolimits|nonumber)(?![a-zA-Z]))"
    rf"|(?P<word>\\text(?:rm)?\{{\s*(?:{_WORDS})[\s:]*\}}|\\land|\\lor)"
    r"|(?P<argument>\\(?:operatorname\*?\{arg(?:\s|\\[,;: ])*(?:max|min)\}|arg\s*\\(?:max|min)))"
    rf"|(?P<font>\\(?:{_FONTS})\s*\{{\s*(?:\\[a-zA-Z]+|[\w\s.\-]+?)\s*\}}"
    rf"|\\math(?:bb|bf|cal|it|rm|sf|tt)\s+[A-Za-z]|\\(?:{_GREEK})(?![a-zA-Z]))"
    rf"|(?P<environment>\\(?:begin|end)\s*\{{[a-z]+\*?\}})"
    rf"|(?P<number>\d+(?:\{{,\}}\d{{3}})*(?:\.\d+)?|\.\d+)"
    rf"|(?P<break>\\\\(?:\[[^\]]*\])?)"
    rf"|(?P<command>\\[a-zA-Z]+|\\.)"
    rf"|(?P<letter>[a-zA-Z])"
    rf"|(?P<symbol>:=|.)",
    re.S,
)
_DIGITS = {"0": "zero", "1": "one"}


@dataclass(frozen=True)
class Token:
    """A piece of LaTeX; `text` is what it says, ``latex[start:end]`` how it is written."""

    kind: str
    text: str
    start: int
    end: int

    @property
    def span(self) -> tuple[int, int]:
        """Where it stands."""
        return self.start, self.end

    @property
    def is_name(self) -> bool:
        """Whether a name begins with it."""
        return self.kind in ("letter", "font")

    def says(self, texts: Collection[str]) -> bool:
        """Tell whether it is one of some signs or commands, and not a name that is spelled so."""
        return self.kind != "font" and self.text in texts


def tokenize(latex: str) -> list[Token]:
    """Cut LaTeX into tokens, of which the last is the end; spaces and what only changes sizes are dropped."""
    tokens: list[Token] = []
    inside = 0  # matrices and cases
    for match in _TOKEN.finditer(latex):
        kind, text = str(match.lastgroup), match[0]
        if kind == "quad":
            # Between statements it separates; after a sign that asks for more, and in a cell, it is only a space.
            asks = not tokens or tokens[-1].kind == "break" or tokens[-1].text in {*RELATIONS, ",", "&", "+", "-"}
            kind, text = "space" if asks or inside else "word", "{}"
        if kind == "space":
            continue
        if kind == "font":
            text = re.sub(r"\\math[a-z]+(?!\{)\s*(?=\w$)|[^{]*\{(.*)\}", r"\1", text, flags=re.S)
            text = re.sub(r"[\s.\-]+", "_", text.strip().removeprefix("\\"))
            text = _DIGITS.get(text, text)
        elif kind == "word" and text != "{}":
            text = {"\\land": "and", "\\lor": "or"}.get(text) or text[text.index("{") + 1 : -1].strip(" :")
        elif kind == "argument":
            kind, text = "command", "\\argmax" if "max" in text else "\\argmin"
        elif kind == "environment":
            text = re.sub(r"\s|\*", "", text)
            inside += (("begin" in text) - ("end" in text)) * text.endswith(("matrix}", "cases}"))
        elif kind == "number":
            text = text.replace("{,}", "")
            if tokens and tokens[-1].text in FRACTIONS:  # \frac12 is a half
                tokens += [Token(kind, digit, match.start() + i, match.start() + i + 1) for i, digit in enumerate(text)]
                continue
        elif text == "\\%" and tokens and tokens[-1].kind == "number":
            number = tokens.pop()
            tokens.append(Token("number", str(Decimal(number.text).scaleb(-2)), number.start, match.end()))
            continue
        tokens.append(Token(kind, text, match.start(), match.end()))
    return [*tokens, Token("end", "", len(latex), len(latex))]
