"""The package as a command: ``python -m unmasked doctor file.py:Class --embed-dim ...``.

It exits with zero if nothing is wrong, with one if there is a finding, and with two if it cannot do what it is asked.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unmasked.doctor import diagnose

__all__ = ["main"]

_SIZES = {
    "embed_dim": ("embed_dim", "d_model", "dim", "d_in", "d_out", "n_embd", "hidden_size", "width", "features"),
    "num_heads": ("num_heads", "n_heads", "n_head", "heads", "nhead", "h"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: What stands after ``python -m unmasked``; the process's own by default.

    Returns:
        The exit code.
    """
    options = _parser().parse_args(arguments)
    try:
        # What the file prints is not the report.
        with contextlib.redirect_stdout(sys.stderr):
            report = diagnose(
                _made(_load(options.target), options),
                embed_dim=options.embed_dim,
                num_heads=options.num_heads,
                causal=options.causal,
                inputs=options.inputs,
                batch_first=not options.tokens_first,
                weights=_roles(options.weights),
                positions=options.positions,
                strict=options.strict,
            )
    except (Exception, SystemExit) as error:  # whatever a stranger's file may do
        expected = isinstance(error, ImportError | OSError | SyntaxError | TypeError | ValueError)
        named = "" if expected else f"{type(error).__name__}: "
        print(f"unmasked: {named}{error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(report.to_dict(), indent=2))
    else:
        print(report.text(color=options.color or (sys.stdout.isatty() and "NO_COLOR" not in os.environ)))
    return 0 if report.ok else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m unmasked", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="what is wrong with an attention module, and why")
    doctor.add_argument("target", help="file.py:name or package.module:name, a module's class, an object or a function")
    doctor.add_argument("--embed-dim", type=int, required=True, help="features of its input")
    doctor.add_argument("--num-heads", type=int, help="number of heads")
    doctor.add_argument("--causal", action=argparse.BooleanOptionalAction, help="whether no token may see a later one")
    doctor.add_argument("--inputs", choices=["x", "qkv", "qkv_allowed"], default="x", help="what it takes")
    doctor.add_argument("--tokens-first", action="store_true", help="its tensors are (tokens, batch, features)")
    doctor.add_argument("--with", dest="arguments", metavar="ARGS", help='how a class is made: "12, num_heads=3"')
    doctor.add_argument("--weights", nargs="*", default=[], metavar="ROLE=NAME", help="query=a.weight key=b.weight ...")
    doctor.add_argument("--positions", action="store_true", help="it adds positions to its tokens")
    doctor.add_argument("--strict", action="store_true", help="cautions are findings")
    doctor.add_argument("--json", action="store_true", help="the report as JSON")
    doctor.add_argument("--color", action="store_true", help="color also where the output is no terminal")
    return parser


def _roles(pairs: Sequence[str]) -> dict[str, str] | None:
    for pair in pairs:
        if "=" not in pair:
            raise ValueError(f"--weights has {pair!r}; write a role and a name: query=a.weight")
    return dict(pair.split("=", 1) for pair in pairs) or None


def _load(text: str) -> Any:
    place, colon, name = text.rpartition(":")
    if not colon:
        raise ValueError(f"target is {text!r}; write file.py:Class or package.module:Class")
    if place.endswith(".py"):
        path = Path(place).resolve()
        if not path.is_file():
            raise ValueError(f"{place} is no file")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        sys.path.insert(0, str(path.parent))  # what lies beside it, it may import
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, os.getcwd())
        module = importlib.import_module(place)
    thing: Any = module
    for part in name.split("."):
        if not hasattr(thing, part):
            raise ValueError(f"{place} has no {part!r}")
        thing = getattr(thing, part)
    return thing


def _made(thing: Any, options: argparse.Namespace) -> Any:
    """Make an object of a class: with what was asked for, or with sizes by their usual names."""
    if not inspect.isclass(thing):
        if options.arguments is not None:
            raise ValueError(f"--with is for a class, and {options.target} is a {type(thing).__name__}")
        return thing
    if options.arguments is not None:
        args, named = _arguments(options.arguments)
        return thing(*args, **named)
    known = {name: size for size, names in _SIZES.items() for name in names}
    given: dict[str, Any] = {}
    for name, parameter in inspect.signature(thing).parameters.items():
        size = getattr(options, known[name]) if name in known else None
        if name == "batch_first" and parameter.kind is not parameter.VAR_KEYWORD:
            size = not options.tokens_first
        if size is not None:
            given[name] = size
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise ValueError(
                f"{thing.__name__} needs {name!r}; say how it is made: --with '{_example(thing, options)}'"
            )
    return thing(**given)


def _arguments(text: str) -> tuple[list[Any], dict[str, Any]]:
    remedy = f"--with is {text!r}; write plain values as they stand in a call: 12, num_heads=3"
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            raise ValueError(remedy)
        args = [ast.literal_eval(arg) for arg in call.args]
        return args, {each.arg or "**": ast.literal_eval(each.value) for each in call.keywords}
    except (SyntaxError, ValueError):
        raise ValueError(remedy) from None


def _example(thing: type, options: argparse.Namespace) -> str:
    names = [n for n, p in inspect.signature(thing).parameters.items() if p.default is p.empty]
    return ", ".join(f"{name}={options.embed_dim if i == 0 else '...'}" for i, name in enumerate(names))


if __name__ == "__main__":
    sys.exit(main())
