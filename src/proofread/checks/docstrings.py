r"""Holds what docstrings say against the source that they stand in, which is read and never imported.

- A parameter is documented if the signature has it, and in its order; the default that is told is the signature's. An
  attribute is one of the class, and what is said to be raised is raised there or in what is called.
- The shapes of Args and Returns have the axes that annotations name, as jaxtyping's do, and their kind of numbers.
- A name in a code span exists, in the package or in the library that it begins with.
- A figure is printed or used by a doctest of the same docstring, or is part of a shape or of a reference; else it is
  waived as on pages, ``512<!--~ reason -->``.

Docstrings are in Google's style or in numpydoc's, whose sections are read as Google's are. What reStructuredText sets
apart (literal blocks, mathematics, roles), addresses and sets of choices in braces are nobody's names and figures.
"""

import ast
import builtins
import json
import keyword
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ..keep.files import digest, relative
from ..keep.shelf import Shelf
from ..pages import prose
from ..pages.equations import SECTION
from ..pages.numbers import FIGURE, Number
from ..pages.package import Documented, Function, Package, Parameters, axes, documented, parameters, sources
from .findings import Finding

_PART = re.compile(
    r"^(?P<indent>[ \t]*)(?P<title>Args|Attributes|Raises|References|Returns|Yields):[ \t]*\n"
    r"(?P<body>(?:(?P=indent)[ \t]+\S.*(?:\n|\Z)|[ \t]*\n)*)",
    re.MULTILINE,
)
_ENTRY = re.compile(
    r"^(?P<indent>[ \t]+)(?P<name>\*{0,2}[\w.]+(?:,[ ]?\*{0,2}[\w.]+)*)(?:[ ]\([^)\n]*\))?:"
    r"(?P<told>.*(?:\n(?:(?P=indent)[ \t]+\S.*|[ \t]*$))*)",
    re.MULTILINE,
)
_UNDERLINED = re.compile(
    r"^(?P<indent>[ \t]*)(?P<title>(?:Other )?[Pp]arameters|Attributes|Raises|References|Returns|Yields)[ \t]*\n"
    r"(?P=indent)-{3,}[ \t]*\n(?P<body>(?:(?![ \t]*\S.*\n[ \t]*-{3,}[ \t]*$).*(?:\n|\Z))*)",
    re.MULTILINE,
)
_ITEM = re.compile(r"[ \t]*(?P<names>\*{0,2}[\w.]+(?:,[ ]?\*{0,2}[\w.]+)*)[ \t]*(?::(?P<type>.*))?")
_SAID_DEFAULT = re.compile(r"\b([Dd]efault)[ ]*(?:=[ ]*|[ ])(?=-?[\d.]|True\b|False\b|None\b|\")")
_APART = re.compile(
    r"(?<=\n)(?P<indent>[ \t]*)(?:(?P<said>(?!\.\.[ ])\S.*::[ \t]*\n(?=[ \t]*\n))"
    r"|\.\.[ ](?:math|code|code-block|plot|versionadded|versionchanged|deprecated)[ ]?::.*(?:\n|\Z))"
    r"(?:(?P=indent)[ \t]+\S.*(?:\n|\Z)|[ \t]*\n)*"
    r"|:[a-z]+(?::[a-z]+)?:`[^`]*`|https?://[^\s>)]+|\[\w+\]_|(?<![\w^}\\])\{[^{}]*\}"
    r"|'[\w ]+'[ ]\([^()\s]*\)"  # a choice, and the number that stands for it
)
_DOCTEST = re.compile(r"^[ \t]*>>>.*(?:\n[ \t]*\S.*)*", re.MULTILINE)
_SPAN = re.compile(r"(?<!`)(`{1,2})(?!`)(?P<code>[^`]+)\1(?!`)")
_DOTTED = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
# What can be nothing but a name, though it stands in no code span.
_SPOKEN = re.compile(rf"""(?<![\w`./*"'\\-])(?:(?:torch|nn|F)\.{_DOTTED}|[a-z]\w*_\w+)(?![\w`/*"'-])""")
_PYTHON = {*dir(builtins), *keyword.kwlist}
_TYPES = {"array_like", "scalar", "ndarray", "dtype", "optional", "sequence", "iterable", "file_like", "path_like"}
_COMMAND = re.compile(r"^python |::")  # a line for a shell, a symbol of C++
_WORD = re.compile(r"""(?<![\w"'/.:-])[A-Za-z_]\w*(?![\w"'/-])""")
_VALUE = r"""(?:``?[^`]+``?|"[^"]*"|[-\w./]+(?<!\.))"""
_DEFAULT = re.compile(
    rf"\b(?:[Bb]y[ ]default|[Dd]efault:|[Dd]efaults?[ ](?:to|is)|\(default)[ ]+(?P<after>{_VALUE})"
    rf"|(?P<before>{_VALUE})(?:,?[ ]by[ ]default|,[ ]the[ ]default)\b"
)
# Before "defaults to": something else than the parameter has this default.
_OF_ANOTHER = re.compile(
    r"(?<!\bthe)(?<!\bthis)(?<!\bits)(?<!\bit)(?<!\bwhich)(?<!\bthat)(?<!\band)(?<=[\w`])\s+\Z", re.IGNORECASE
)
_SENTENCE = re.compile(r"(?:[^.;]|\.(?=\w))+")
_LITERAL = re.compile(r"""(?<![\w.-])(?:True|False|None|-?\d+(?:\.\d+)?|"[^"\n]*")(?!\w)""")
_SHAPE = re.compile(r"\((?P<axes>[^()=]*,[^()=]*)\)")
_NUMBERS = {"Bool": r"\s*(?:bool|boolean)\b", "Float": r"\s*float(?:ing)?\b", "Int": r"\s*int(?:eger)?s?\b"}
# A year, a version, a place in a paper, and how something is stored.
_REFERENCE = re.compile(
    r"\((?:19|20)\d\d\)|\b(?:[Ss]ections?|[Ee]quation|[Tt]able|[Ff]igure|[Aa]ppendix|[Vv]ersion|Python|PyTorch)\s+"
    r"\d[\d.]*(?:(?:,|\s+and)\s+\d[\d.]*)*|\b\d+-bit\b"
)
_EXISTS = """
import json, pkgutil, sys, warnings
warnings.simplefilter("ignore")
def there(name):
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True
print(json.dumps([name for name in json.load(sys.stdin) if not there(name)]))
"""

# What is wrong: where in the docstring, what, and the name that another library must lack for it to be wrong, or "".
_Fault = tuple[int, str, str]


def faults(packages: Iterable[str], root: Path, shelf: Shelf | None) -> Iterator[Finding]:
    """What the docstrings of a project's own packages say and their source does not, until a source changes."""
    for package in packages:
        paths = [path for path in sources(package, root) if path.resolve().is_relative_to(root)]
        of = {relative(path, root): digest(path) for path in paths}

        def said(package: str = package, paths: Sequence[Path] = paths) -> list[tuple[str, int, str, str]]:
            return list(_said(Package.read(package, paths), package, root))

        told = shelf.made(f"{package} docstrings", of, said) if shelf else said()
        lacking = _lacking(sorted({name for *_, name in told if name}), shelf)
        for path, line, message, name in told:
            if not name or name in lacking:
                yield Finding(path, line, message, kind="docstring")


def _lacking(names: Sequence[str], shelf: Shelf | None) -> list[str]:
    """Which of these names no library has: another process imports them."""

    def ask() -> list[str]:
        run = [sys.executable, "-c", _EXISTS]
        told = subprocess.run(run, input=json.dumps(names), capture_output=True, text=True, check=True)
        return list(json.loads(told.stdout.splitlines()[-1]))

    if not names:
        return []
    return list(shelf.made("names of libraries", names, ask)) if shelf else ask()


def _said(package: Package, name: str, root: Path) -> Iterator[tuple[str, int, str, str]]:
    for path, tree in package.modules.items():
        for node, text in documented(tree):
            called = path.stem if isinstance(node, ast.Module) else node.name
            plain = _UNDERLINED.sub(_google, _APART.sub(_blank, _DOCTEST.sub(_blank, text)))
            for found in (_parts(package, node, plain), _names(package, name, plain), _figures(package, text, plain)):
                for place, message, foreign in found:
                    line = node.body[0].lineno + plain.count("\n", 0, place)
                    yield relative(path, root), line, f"{called}: {' '.join(message.split())}", foreign


def _blank(found: re.Match[str]) -> str:
    said = found.groupdict().get("said") or ""  # the line that announces a literal block
    before = (found.groupdict()["indent"] + said) if said else ""
    return before + re.sub(r"[^\n]", " ", found[0][len(before) :])


def _google(part: re.Match[str]) -> str:
    """A section of numpydoc as Google's style has it, line for line, without the types."""
    indent, title = part["indent"], re.sub(".*[Pp]arameters", "Args", part["title"])
    if title == "References":
        return re.sub(r"[^\n]", " ", part[0])
    lines = []
    for line in part["body"].split("\n"):
        item = _ITEM.fullmatch(line.replace("\\*", "*"))
        if item and not line[len(indent) :][:1].isspace():
            default = re.search(r"\bdefault.*", item["type"] or "", re.IGNORECASE)
            # What is returned may have any name.
            name = "it" if title in ("Returns", "Yields") else item["names"]
            line = f"{indent}{name}: {default[0] if default else ''}"
        lines.append(f"    {line}" if line.strip() else "")
    return f"{indent}{title}:\n\n" + _SAID_DEFAULT.sub(r"\1: ", "\n".join(lines))


def _parts(package: Package, node: Documented, plain: str) -> Iterator[_Fault]:
    """What the sections of a docstring list otherwise than the source."""
    taken = parameters(node)
    parts = [*_PART.finditer(plain)]
    listed = {name for part in parts if part["title"] == "Args" for name in _entries(part)}  # numpydoc has two lists
    for part in parts:
        body, entries = part.start("body"), _entries(part)
        if part["title"] == "Args" and taken:
            yield from _arguments(package, node, taken, part.start(), body, entries)
            for name in taken.keys() - listed:
                yield part.start(), f"it takes {name}, which Args does not document", ""
            listed |= {*taken}
        elif part["title"] == "Returns" and isinstance(node, Function):
            yield from _shape(package, part["body"], body, node.returns, "what it returns")
        elif part["title"] == "Attributes" and isinstance(node, ast.ClassDef):
            members = package.members(node)
            for name in entries.keys() - members if members else ():
                yield body + entries[name].start(), f"it lists the attribute {name}, which the class has not", ""
        elif part["title"] == "Raises":
            raised = package.raised(node)
            for name in entries.keys() - raised:
                there = f"raised there: {', '.join(sorted(raised)) or 'nothing'}"
                yield body + entries[name].start(), f"neither it nor what it calls raises {name}; {there}", ""
    for sentence in _SENTENCE.finditer(_PART.sub(_blank, plain)):
        if "efault" not in sentence[0]:
            continue
        names = [name for name in taken if re.search(rf"(?<!\w){name}(?!\w)", sentence[0])]
        values = _LITERAL.findall(sentence[0])
        if len(names) == len(values) == 1:
            yield from _default(values[0], sentence.end(), names[0], taken, node)


def _entries(part: re.Match[str]) -> dict[str, re.Match[str]]:
    """What a section lists, by name."""
    found = [*_ENTRY.finditer(part["body"])]
    top = [each for each in found if each["indent"] == found[0]["indent"]]
    return {name.strip(" *"): each for each in top for name in each["name"].split(",")}


def _arguments(
    package: Package, node: Documented, taken: Parameters, start: int, body: int, entries: dict[str, re.Match[str]]
) -> Iterator[_Fault]:
    """What the section Args says and the signature does not."""
    keywords = isinstance(node, Function) and node.args.kwarg  # whose names the signature does not tell
    for name in entries.keys() - taken if not keywords else ():
        yield body + entries[name].start(), f"it documents the parameter {name}, and takes {', '.join(taken)}", ""
    if entries.keys() == taken.keys() and [*entries] != [*taken]:
        yield start, f"Args are in another order than the parameters {', '.join(taken)}", ""
    for name, entry in entries.items():
        told, place = re.sub(r"\s", " ", entry["told"]), body + entry.start("told")
        yield from _shape(package, told, place, taken.get(name, (None, None))[1], name)
        for found in _DEFAULT.finditer(told) if name in taken else ():
            before = told[: found.start()]
            if (
                found[0].lower().startswith("defaults ")
                and _OF_ANOTHER.search(before)
                and name not in before.split()[-1]
            ):
                continue
            said = (found["after"] or found["before"]).strip("`")
            yield from _default(said, place + found.start(), name, taken, node)


def _default(said: str, place: int, name: str, taken: Parameters, node: Documented) -> Iterator[_Fault]:
    """Whether a parameter has this default."""
    default = taken[name][0]
    actual = ast.unparse(default) if default else "required"
    # What stands for None is chosen in the body, as in `keys = queries if keys is None else keys`.
    chosen = [
        ast.unparse(each.body if isinstance(each.test.ops[0], ast.Is) else each.orelse)
        for each in ast.walk(node)
        if isinstance(each, ast.IfExp) and isinstance(each.test, ast.Compare)
        if ast.unparse(each.test) in (f"{name} is None", f"{name} is not None")
    ]
    given = [
        each for each in ast.walk(node) if isinstance(each, ast.If) and ast.unparse(each.test) == f"{name} is None"
    ]
    chosen += [ast.unparse(inner) for each in given for inner in each.body]
    try:
        value = ast.unparse(ast.parse(repr(ast.literal_eval(said)), mode="eval"))
        right = value == actual or (
            actual == "None" and any(re.search(rf"(?<![\w.]){re.escape(said)}(?![\w.])", c) for c in chosen)
        )
    except (ValueError, SyntaxError):  # told in words
        other = chosen and said in taken and not any(re.search(rf"\b{said}\b", each) for each in chosen)
        right = said in (actual, actual.strip("'")) or (actual == "None" and not other)
    if not right:
        yield place, f"{name} is {said} by default there, and {actual} in the signature", ""


def _shape(package: Package, told: str, place: int, annotation: ast.expr | None, name: str) -> Iterator[_Fault]:
    """Whether a text's first shape has the axes that the annotation names, as far from the last as both name them."""
    inner = [each for each in ast.walk(annotation) if axes(each)] if annotation else []
    kinds = {ast.unparse(each.value) for each in inner if isinstance(each, ast.Subscript)} - {"Shaped"}
    for kind, spoken in _NUMBERS.items():
        if re.match(spoken, told, re.IGNORECASE) and kinds and kind not in kinds:
            yield place, f"{name} is {told.split()[0]} there, and {', '.join(kinds)} in the annotation", ""
    shape = _SHAPE.search(told)
    if shape is None or not package.axes or re.search(r"\blikewise\b", told[: shape.start()]):
        return
    mine = [axis.strip(" []") for axis in re.sub(r"\s+", " ", shape["axes"]).split(",") if axis.strip(" []")]
    words = [word for axis in mine for word in re.findall(r"[A-Za-z_]\w*", axis)]
    if lost := [word for word in words if word not in package.axes and word not in package.words]:
        yield place + shape.start(), f"{name} is {shape[0]} there, and nothing in the package is called {lost[0]}", ""
    for named in () if "broadcast" in told[: shape.start()] else map(axes, inner):
        for own, axis in zip(reversed(mine), reversed(named.split()), strict=False):
            if own == "..." or axis.startswith(("*", "...", "_")):
                break
            if own.isidentifier() and own != axis:
                yield place + shape.start(), f'{name} is {shape[0]} there, and "{named}" in the annotation', ""
                return


def _names(package: Package, called: str, plain: str) -> Iterator[_Fault]:
    """Names that nothing has: in code spans, and those in prose that can be nothing else."""
    spoken = _SPAN.sub(_blank, SECTION.sub(_blank, plain))
    spans = [(each.start("code"), each["code"]) for each in _SPAN.finditer(plain) if not _COMMAND.search(each["code"])]
    for place, code in spans + [(each.start(), each[0]) for each in _SPOKEN.finditer(spoken)]:
        whole = re.fullmatch(rf"({_DOTTED})(?:\(.*\))?", code)
        head, _, rest = whole[1].partition(".") if whole else ("", "", "")
        if whole and (head == called or (rest and head in package.classes)):
            members = package.members(package.classes[head][0]) if head in package.classes else set()
            if not package.has(whole[1]) if head == called else members and rest.split(".")[0] not in members:
                yield place, f"there is no {whole[1]}", ""
        elif rest and (head == "torch" or head in package.aliases):
            dotted = f"{package.aliases.get(head, head)}.{rest}"
            yield place, f"there is no {dotted}", dotted
        else:
            for word in _WORD.findall(re.sub(r"(['\"]).*?\1", "", code)):
                if not (word in package.words or word in package.axes or word in _PYTHON | _TYPES):
                    yield place, f"{word} is no name of {called}, nor of Python", ""


def _figures(package: Package, text: str, plain: str) -> Iterator[_Fault]:
    """Figures that nothing in the docstring proves, but code spans that quote the package."""
    said = plain
    tests = re.sub(r"(?m)(>>>.*?)[ ]#[ ].*$", r"\1", "\n".join(_DOCTEST.findall(text)))
    printed = [float(abs(number.value)) for number in map(Number.parse, re.findall(FIGURE, tests)) if number]
    for part in _PART.finditer(plain):
        if part["title"] in ("Args", "References"):  # where defaults are held to the signature, and titles have digits
            told = _DEFAULT.sub(_blank, part[0]) if part["title"] == "Args" else _blank(part)
            plain = plain[: part.start()] + told + plain[part.end() :]
    read = prose.read(_SHAPE.sub(_blank, _REFERENCE.sub(_blank, SECTION.sub(_blank, plain))))
    for claim in read.claims:
        yield claim.span[0], f"{claim.expression} is evaluated on pages alone; print it in a doctest", ""
    for start, end in read.bare(tests):
        typed = said[start:end].strip("`")
        number = Number.parse(typed.lstrip("-−"))
        if typed not in package.code if number is None else not any(map(number.says, printed)):
            remedy = f"print it in a doctest there, or waive it, {typed}<!--~ reason -->"
            yield start, f"nothing proves the figure {typed}: {remedy}", ""
