"""The doctor as a command: ``python -m unmasked doctor file.py:Class --embed-dim ...``.

It exits with zero if nothing is wrong; with one if there is a finding, or if less is known than --at-least says; with
two if it cannot do what it is asked, or if the target does not run.
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
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from unmasked_doctor import INPUTS, ModelReport, Report, diagnose, diagnose_model, reaches

__all__ = ["main"]

# What arguments of public classes are called, for each size that the command knows.
_SIZES: dict[str, tuple[str, ...]] = {
    "embed_dim": (
        "embed_dim", "d_model", "dim", "d_in", "d_out", "n_embd", "hidden_size", "width", "features",
        "hidden_dim", "embed_size", "emb_dim", "model_dim", "in_dim", "out_dim", "in_features", "out_features",
        "query_dim", "channels", "n_state", "d_embed", "embedding_dim",
    ),
    "num_heads": (
        "num_heads", "n_heads", "n_head", "heads", "nhead", "h", "num_attention_heads", "nheads",
        "num_query_heads",
    ),
    "head_dim": ("head_dim", "dim_head", "head_size", "d_head", "d_k", "d_v"),
    "tokens": (
        "tokens", "seq_len", "max_len", "block_size", "context_length", "max_seq_len", "num_tokens", "n_ctx",
        "context_size",
    ),
}  # fmt: skip


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
        with contextlib.redirect_stdout(sys.stderr), _imports_restored():
            report = _examined(options)
    except (Exception, SystemExit) as error:  # whatever a stranger's file may do
        expected = isinstance(error, ImportError | OSError | SyntaxError | TypeError | ValueError)
        named = "" if expected else f"{type(error).__name__}: "
        print(f"unmasked: {named}{error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(report.to_dict(), indent=2))
    else:
        color = options.color or (sys.stdout.isatty() and "NO_COLOR" not in os.environ)
        print(report.text(color=color, width=_width()))
    return _code(report, options)


def _examined(options: argparse.Namespace) -> Report | ModelReport:
    if options.model:
        model = _made(_load(options.target), options)
        inputs = _load(options.model)
        return diagnose_model(model, inputs() if inspect.isfunction(inputs) else inputs)
    if options.embed_dim is None:
        raise ValueError("--embed-dim is missing; say the features of its input, or name a model's inputs by --model")
    return diagnose(
        _made(_load(options.target), options),
        embed_dim=options.embed_dim,
        num_heads=options.num_heads,
        causal=options.causal,
        inputs=options.inputs,
        batch_first=not options.tokens_first,
        weights=_roles(options.weights),
        positions=options.positions,
        strict=options.strict,
        tokens=options.tokens,
        key_dim=options.key_dim,
        cache=options.cache,
        training=options.training,
    )


def _code(report: Report | ModelReport, options: argparse.Namespace) -> int:
    if any(finding.check == "it runs" and finding.cause is None for finding in report.findings):
        return 2  # nothing was examined
    least = options.at_least
    return 0 if report.ok and (least is None or reaches(report.verdict, least)) else 1


def _width() -> int:
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() or "COLUMNS" in os.environ else 78
    return min(max(columns, 40), 120)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m unmasked", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser(
        "doctor",
        help="what is wrong with an attention module, and why",
        description="Say what is wrong with an attention module, and why. FILE is run, as `python FILE` would run it, "
        "with all that it imports: name no file that you would not run.",
    )
    doctor.add_argument(
        "target",
        metavar="FILE:NAME",
        help="file.py:name or package.module:name: a module's class, an object, a function of tensors, or a function "
        "without arguments that makes one of these",
    )
    doctor.add_argument("--embed-dim", type=int, help="features of its input")
    doctor.add_argument("--num-heads", type=int, help="number of heads")
    doctor.add_argument("--causal", action=argparse.BooleanOptionalAction, help="whether no token may see a later one")
    doctor.add_argument("--inputs", choices=INPUTS, default="x", help="what it takes")
    doctor.add_argument("--tokens", type=int, help="the number of tokens that it was built for, if it takes no other")
    doctor.add_argument(
        "--key-dim", type=_widths, metavar="N[,N]", help="features of keys and values, or of the context, if others"
    )
    doctor.add_argument(
        "--model", metavar="INPUTS", help="examine a whole model: file.py:name of its inputs, or of what makes them"
    )
    doctor.add_argument("--cache", metavar="NAME", help="the argument for its cache: kv, past_key_value ...")
    doctor.add_argument("--training", action="store_true", help="examine what it computes in training too")
    doctor.add_argument("--tokens-first", action="store_true", help="its tensors are (tokens, batch, features)")
    doctor.add_argument("--with", dest="arguments", metavar="ARGS", help='how it is made: "12, num_heads=3"')
    doctor.add_argument("--weights", nargs="*", default=[], metavar="ROLE=NAME", help="query=a.weight key=b.weight ...")
    doctor.add_argument("--positions", action="store_true", help="it adds positions to its tokens")
    doctor.add_argument("--strict", action="store_true", help="cautions are findings")
    doctor.add_argument("--at-least", choices=("followed", "equal"), help="exit with 1 where less is known")
    doctor.add_argument("--json", action="store_true", help="the report as JSON")
    doctor.add_argument("--color", action="store_true", help="color also where the output is no terminal")
    return parser


def _widths(text: str) -> int | tuple[int, int]:
    """Features of keys and values: one number, or a pair."""
    sizes = [int(part) for part in text.split(",")]
    return sizes[0] if len(sizes) == 1 else (sizes[0], sizes[1])


def _roles(pairs: Sequence[str]) -> dict[str, str] | None:
    for pair in pairs:
        if "=" not in pair:
            raise ValueError(f"--weights has {pair!r}; write a role and a name: query=a.weight")
    return dict(pair.split("=", 1) for pair in pairs) or None


@contextlib.contextmanager
def _imports_restored() -> Iterator[None]:
    """Leave the path and the files that were run behind, for who calls `main` from a program."""
    path = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in [name for name in sys.modules if name.endswith(".py")]:
            del sys.modules[name]


def _run(path: Path) -> ModuleType:
    """Run a file, once for all that is named of it, as a module that no import finds: its name has the suffix."""
    known = sys.modules.get(path.name)
    if known is not None and known.__file__ == str(path):
        return known
    spec = importlib.util.spec_from_file_location(path.name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.name] = module
    sys.path.insert(0, str(path.parent))  # what lies beside it, it may import
    spec.loader.exec_module(module)
    return module


def _load(text: str) -> Any:
    place, colon, name = text.rpartition(":")
    if not colon:
        raise ValueError(f"target is {text!r}; write file.py:Class or package.module:Class")
    if place.endswith(".py"):
        path = Path(place).resolve()
        if not path.is_file():
            raise ValueError(f"{place} is no file")
        module = _run(path)
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
    """Make what is to be examined: of a class, or by a function that makes it; else it is the thing itself."""
    is_class = inspect.isclass(thing)
    if options.arguments is not None:
        if not (is_class or inspect.isroutine(thing)):
            raise ValueError(f"--with is for a class or a function, and {options.target} is a {type(thing).__name__}")
        args, named = _arguments(options.arguments)
        return thing(*args, **named)
    if inspect.isfunction(thing) and not _parameters(thing):
        return thing()
    if not callable(thing):
        raise ValueError(f"{options.target} is a {type(thing).__name__}; name a class, a module or a function")
    return _of_class(thing, options) if is_class else thing


def _of_class(thing: Callable[..., Any], options: argparse.Namespace) -> Any:
    """Make an object of a class with the sizes that are known, by their usual names."""
    args: dict[str, Any] = {}
    for name, parameter in _parameters(thing).items():
        size = _size(name, options)
        if name == "batch_first":
            size = not options.tokens_first
        if size is not None and not (parameter.default is not parameter.empty and name in _SIZES["tokens"]):
            args[name] = size
        elif parameter.default is parameter.empty:
            raise ValueError(
                f"{thing.__name__} needs {name!r}; say how it is made: --with {_example(thing, options)!r}, or write a "
                f"function without arguments that makes it, and name that: {options.target.rpartition(':')[0]}:make"
            )
    return thing(**args)


def _parameters(thing: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    star = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: p for name, p in inspect.signature(thing).parameters.items() if p.kind not in star}


def _size(name: str, options: argparse.Namespace) -> int | None:
    """What is known of a size, by its name."""
    role = next((role for role, names in _SIZES.items() if name.lower() in names), None)
    if role == "head_dim":
        heads: int | None = options.num_heads
        return options.embed_dim // heads if heads else None
    size: int | None = getattr(options, role) if role else None
    return size


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


def _example(thing: Callable[..., Any], options: argparse.Namespace) -> str:
    """A call with the sizes that are known, and a place for each of the others."""
    needed = [name for name, p in _parameters(thing).items() if p.default is p.empty]
    sizes = {name: _size(name, options) for name in needed}
    return ", ".join(f"{name}={'...' if size is None else size}" for name, size in sizes.items())
