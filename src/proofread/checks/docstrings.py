"""Holds what docstrings say against the source that they stand in, which is read and never imported.

A parameter is documented if the signature has it, and in its order. The default that is told is the signature's. What
is said to be raised is raised there, or in what is called. Docstrings are in Google's style or in numpydoc's, whose
sections are read as Google's are.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ..keep.files import digest, relative
from ..keep.shelf import Shelf
from ..pages.package import Documented, Function, Package, Parameters, constants, documented, parameters, sources
from .findings import Finding

_PART = re.compile(
    r"^(?P<indent>[ \t]*)(?P<title>Args|Parameters|Raises):[ \t]*\n"
    r"(?P<body>(?:(?P=indent)[ \t]+\S.*(?:\n|\Z)|[ \t]*\n)*)",
    re.MULTILINE,
)
_ENTRY = re.compile(
    r"^(?P<indent>[ \t]+)(?P<name>\*{0,2}[\w.]+(?:,[ ]?\*{0,2}[\w.]+)*)(?:[ ]\([^)\n]*\))?:"
    r"(?P<told>.*(?:\n(?:(?P=indent)[ \t]+\S.*|[ \t]*$))*)",
    re.MULTILINE,
)
_UNDERLINED = re.compile(
    r"^(?P<indent>[ \t]*)(?P<title>(?:Other )?[Pp]arameters|Raises)[ \t]*\n"
    r"(?P=indent)-{3,}[ \t]*\n(?P<body>(?:(?![ \t]*\S.*\n[ \t]*-{3,}[ \t]*$).*(?:\n|\Z))*)",
    re.MULTILINE,
)
_ITEM = re.compile(r"[ \t]*(?P<names>\*{0,2}[\w.]+(?:,[ ]?\*{0,2}[\w.]+)*)[ \t]*(?::(?P<type>.*))?")
_SAID_DEFAULT = re.compile(r"\b([Dd]efault)[ ]*(?:=[ ]*|[ ])(?=-?[\d.]|True\b|False\b|None\b|\")")
_DIRECTIVE = re.compile(
    r"^(?P<indent>[ \t]*)\.\.[ ][\w-]+[ ]?::.*(?:\n|\Z)(?:(?P=indent)[ \t]+\S.*(?:\n|\Z)|[ \t]*\n)*", re.MULTILINE
)
_DOCTEST = re.compile(r"^[ \t]*>>>.*(?:\n[ \t]*\S.*)*", re.MULTILINE)
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
_Fault = tuple[int, str]  # what is wrong: where in the docstring, and what


def faults(packages: Iterable[str], root: Path, shelf: Shelf | None) -> Iterator[Finding]:
    """Yield the findings on the docstrings of a project's own packages; they are kept until a source changes."""
    for package in packages:
        paths = [path for path in sources(package, root) if path.resolve().is_relative_to(root)]
        of = {relative(path, root): digest(path) for path in paths}

        def said(package: str = package, paths: Sequence[Path] = paths) -> list[tuple[str, int, str]]:
            return list(_said(Package.read(paths), root))

        for path, line, message in shelf.made(f"{package} docstrings", of, said) if shelf else said():
            yield Finding(path, line, message, kind="docstring")


def _said(package: Package, root: Path) -> Iterator[tuple[str, int, str]]:
    for path, error in package.broken.items():
        yield relative(path, root), error.lineno or 1, f"its docstrings cannot be read: {error.msg}"
    for path, tree in package.modules.items():
        known = constants(tree)
        for node, text in documented(tree):
            called = path.stem if isinstance(node, ast.Module) else node.name
            plain = _UNDERLINED.sub(_google, _DIRECTIVE.sub(_blank, _DOCTEST.sub(_blank, text)))
            for place, message in _parts(package, known, node, plain):
                line = node.body[0].lineno + plain.count("\n", 0, place)
                yield relative(path, root), line, f"{called}: {' '.join(message.split())}"


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def _google(part: re.Match[str]) -> str:
    """A section of numpydoc as Google's style has it, line for line, without the types."""
    indent, title = part["indent"], re.sub(".*[Pp]arameters", "Parameters", part["title"])
    lines = []
    for line in part["body"].split("\n"):
        item = _ITEM.fullmatch(line.replace("\\*", "*"))
        if item and not line[len(indent) :][:1].isspace():
            default = re.search(r"\bdefault.*", item["type"] or "", re.IGNORECASE)
            line = f"{indent}{item['names']}: {default[0] if default else ''}"
        lines.append(f"    {line}" if line.strip() else "")
    return f"{indent}{title}:\n\n" + _SAID_DEFAULT.sub(r"\1: ", "\n".join(lines))


def _parts(package: Package, known: Mapping[str, str], node: Documented, plain: str) -> Iterator[_Fault]:
    """Yield the faults of the sections of a docstring."""
    taken = parameters(node)
    parts = [*_PART.finditer(plain)]
    documents = [part for part in parts if part["title"] != "Raises"]
    listed = {name for part in documents for name in _entries(part)}  # numpydoc has two lists
    for part in parts:
        body, entries, title = part.start("body"), _entries(part), part["title"]
        if title == "Raises":
            raised = package.raised(node)
            for name in entries.keys() - raised - {known.get(each) for each in raised}:
                there = f"raised there: {', '.join(sorted(raised)) or 'nothing'}"
                yield body + entries[name].start(), f"neither it nor what it calls raises {name}; {there}"
        elif taken:
            keywords = isinstance(node, Function) and node.args.kwarg  # whose names the signature does not tell
            for name in entries.keys() - taken if not keywords else ():
                yield body + entries[name].start(), f"it documents the parameter {name}, and takes {', '.join(taken)}"
            if entries.keys() == taken.keys() and [*entries] != [*taken]:
                yield part.start(), f"{title} are in another order than the parameters {', '.join(taken)}"
            yield from _defaults(known, node, taken, body, entries)
    for name in taken.keys() - listed if documents else ():
        yield documents[0].start(), f"it takes {name}, which {documents[0]['title']} does not document"
    for sentence in _SENTENCE.finditer(_PART.sub(_blank, plain)):
        if "efault" not in sentence[0]:
            continue
        names = [name for name in taken if re.search(rf"(?<!\w){name}(?!\w)", sentence[0])]
        values = _LITERAL.findall(sentence[0])
        if len(names) == len(values) == 1:
            yield from _default(values[0], sentence.end(), names[0], taken, known, node)


def _entries(part: re.Match[str]) -> dict[str, re.Match[str]]:
    """Return the entries of a section, by name."""
    entries = [*_ENTRY.finditer(part["body"])]
    top = [each for each in entries if each["indent"] == entries[0]["indent"]]
    return {name.strip(" *"): each for each in top for name in each["name"].split(",")}


def _defaults(
    known: Mapping[str, str], node: Documented, taken: Parameters, body: int, entries: Mapping[str, re.Match[str]]
) -> Iterator[_Fault]:
    """The defaults that a list of parameters tells, and that the signature does not."""
    for name, entry in entries.items():
        text, place = re.sub(r"\s", " ", entry["told"]), body + entry.start("told")
        for match in _DEFAULT.finditer(text) if name in taken else ():
            before = text[: match.start()]
            if (
                match[0].lower().startswith("defaults ")
                and _OF_ANOTHER.search(before)
                and name not in before.split()[-1]
            ):
                continue
            stated = (match["after"] or match["before"]).strip("`")
            yield from _default(stated, place + match.start(), name, taken, known, node)


def _default(
    stated: str, place: int, name: str, taken: Parameters, known: Mapping[str, str], node: Documented
) -> Iterator[_Fault]:
    """Yield the fault of a stated default, if the parameter has another one."""
    default = taken[name][0]
    actual = ast.unparse(default) if default else "required"
    # What stands for None is chosen in the body, as in `keys = queries if keys is None else keys`.
    chosen = [
        ast.unparse(each.body if isinstance(each.test.ops[0], ast.Is) else each.orelse)
        for each in ast.walk(node)
        if isinstance(each, ast.IfExp) and isinstance(each.test, ast.Compare)
        if ast.unparse(each.test) in (f"{name} is None", f"{name} is not None")
    ]
    branches = [
        each for each in ast.walk(node) if isinstance(each, ast.If) and ast.unparse(each.test) == f"{name} is None"
    ]
    chosen += [ast.unparse(inner) for each in branches for inner in each.body]
    try:
        value = ast.unparse(ast.parse(repr(ast.literal_eval(stated)), mode="eval"))
        right = value in (actual, known.get(actual)) or (
            actual == "None" and any(re.search(rf"(?<![\w.]){re.escape(stated)}(?![\w.])", c) for c in chosen)
        )
    except (ValueError, SyntaxError):  # told in words
        other = chosen and stated in taken and not any(re.search(rf"\b{stated}\b", each) for each in chosen)
        right = stated in (actual, actual.strip("'")) or (actual == "None" and not other)
    if not right:
        yield place, f"{name} is {stated} by default there, and {actual} in the signature"
