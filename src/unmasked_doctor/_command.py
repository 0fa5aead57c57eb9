"""The doctor as a command: ``python -m unmasked doctor file.py:Class --call ...``, or ``unmasked doctor ...``.

It exits with zero if nothing is wrong; with one if a promise is broken, if a difference from the textbook was not
accepted by --but, or if less is known than --at-least says; with two if it cannot do what it is asked, or if the target
does not run.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import importlib.util
import inspect
import itertools
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from unmasked_doctor import INPUTS, ModelReport, Report, diagnose, diagnose_model, reaches
from unmasked_doctor._call import parameters_of, takes_any_name
from unmasked_doctor._report import STEPS, known
from unmasked_doctor._subject import Subject, runs
from unmasked_doctor._target import Options

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
    known(options.but)
    if options.model:
        model = _made(_load(options.target), options)
        _refuse_unused(options, _OF_A_LAYER, "a whole model is examined with --model, which does not use it")
        inputs = _load(options.model)
        return diagnose_model(
            model,
            inputs() if inspect.isfunction(inputs) else inputs,
            causal=options.causal,
            batch_first=False if options.tokens_first else None,
            strict=options.strict,
        )
    if options.call is not None:
        _refuse_unused(options, ("inputs", "key_dim"), "--call tells it")
    target = _made(_load(options.target), options)
    call, sizes = (None, _found(target, options)) if options.call is None else (_call(options, target), {})
    return diagnose(
        target,
        call,
        num_heads=options.num_heads,
        causal=options.causal,
        batch_first=not options.tokens_first,
        weights=_roles(options.weights),
        positions=options.positions,
        strict=options.strict,
        tokens=options.tokens,
        **sizes,
        cache=options.cache,
        training=options.training,
    )


# What only `diagnose` uses: for each, whether it was given is told by its default.
_OF_A_LAYER = (
    "embed_dim", "num_heads", "inputs", "tokens", "key_dim", "cache", "training", "weights", "positions", "call",
)  # fmt: skip


def _refuse_unused(options: argparse.Namespace, names: Sequence[str], why: str) -> None:
    """Refuse an option that would change nothing; what made the target has used its own."""
    used = getattr(options, "used", ())
    for name in names:
        value = getattr(options, name)
        if name in used or value is None or value == [] or (value is False and name not in ("causal", "positions")):
            continue
        flag = f"--no-{name}" if value is False else f"--{name.replace('_', '-')}"
        words = " ".join(value) if isinstance(value, list) else "" if isinstance(value, bool) else str(value)
        raise ValueError(f"{f'{flag} {words}'.strip()} is not used: {why}; leave it out")


def _call(options: argparse.Namespace, target: Any) -> Any:
    """Evaluate what stands between the parentheses of a call, with the names of the file, and torch."""
    module = _module(options.target.rpartition(":")[0])
    scope = {"torch": torch} | vars(module) | {"_call": lambda *args, **kwargs: (args, kwargs)}
    try:
        args, kwargs = eval(f"_call({options.call})", scope)  # as the file itself, it is the user's own code
    except Exception as error:
        raise ValueError(
            f"--call is {options.call!r}, which raised {type(error).__name__}: {error}; write what stands between the "
            "parentheses of the call: --call 'torch.randn(2, 5, 12), mask=None'"
        ) from error
    if kwargs:
        return _by_name(args, kwargs, target, options.target)
    if len(args) == 1 and not kwargs and isinstance(args[0], tuple | dict):
        return args[0]
    return args


def _by_name(args: tuple[Any, ...], kwargs: dict[str, Any], target: Any, called: str) -> Any:
    """Return a call with arguments by name, all of them by name where the target has names for them."""
    known = parameters_of(target)
    for name in kwargs:
        if name not in known and not takes_any_name(target):
            raise ValueError(f"--call passes {name}=, and {called} takes {', '.join(known)}")
    plain = [name for name, each in known.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
    if len(args) > len(plain) or {*plain[: len(args)]} & {*kwargs}:
        return (*args, kwargs)
    return dict(zip(plain, args, strict=False)) | kwargs


def _found(target: Any, options: argparse.Namespace) -> dict[str, Any]:
    """The features and the kind of its inputs: as they were told, or the first with which it runs."""
    told = {"embed_dim": options.embed_dim, "inputs": options.inputs, "key_dim": options.key_dim}
    if options.embed_dim is not None and options.inputs is not None:
        return told
    names = [name for name, each in _parameters(_forward(target)).items() if each.default is each.empty]
    kinds = [options.inputs] if options.inputs else _kinds(names)
    held = [t.size(-1) for t in target.parameters() if t.dim() > 1] if isinstance(target, nn.Module) else []
    widths = [options.embed_dim] if options.embed_dim else list(dict.fromkeys([*held, 12]))
    for kind in kinds:
        others = [options.key_dim] if options.key_dim or kind.startswith("x_a") or kind == "x" else [None, *held]
        for width, other in itertools.product(widths, dict.fromkeys(others)):
            found = {"embed_dim": width, "inputs": kind, "key_dim": other}
            if _runs(target, options, found):
                return found
    if options.embed_dim is not None:
        return told | {"inputs": kinds[0]}
    needed = ", ".join(names) or "nothing"
    raise ValueError(
        f"{options.target} takes {needed}, and it runs on no tensor of the sizes that its weights have; write the "
        "call that you make, --call 'torch.randn(2, 5, 12)', or say the features of its input, --embed-dim"
    )


def _forward(target: Any) -> Callable[..., Any]:
    forward: Callable[..., Any] = target.forward if isinstance(target, nn.Module) else target
    return forward


def _kinds(names: Sequence[str]) -> list[str]:
    """The kinds of inputs that as many arguments may be; a mask is one by its name."""
    masked = bool(names) and re.search(r"(?i)mask|allowed|padding", names[-1]) is not None
    count = len(names) - masked
    kind = {0: "x", 1: "x", 2: "x_context"}.get(count, "qkv")
    return [kind + "_allowed" * masked]


def _runs(target: Any, options: argparse.Namespace, sizes: dict[str, Any]) -> bool:
    """Whether it runs on such inputs, of some number of tokens."""
    sizes = {"batch_first": not options.tokens_first, "num_heads": options.num_heads, "tokens": options.tokens} | sizes
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        subject = Subject(target, Options(**sizes))
        try:
            return runs(subject)[1]
        except ValueError:
            return False
        finally:
            subject.release()


def _code(report: Report | ModelReport, options: argparse.Namespace) -> int:
    if any(finding.check == "it runs" and finding.cause is None for finding in report.findings):
        return 2  # nothing was examined
    least = options.at_least
    well = least is None or reaches(report.verdict, least)
    return 0 if well and all(each.accepted(options.but) for each in report.named) else 1


def _width() -> int:
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() or "COLUMNS" in os.environ else 78
    return min(max(columns, 40), 120)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m unmasked", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser(
        "doctor",
        help="which promises an attention module breaks, and where it differs from the textbook",
        description="Say which promises an attention module breaks, and where it differs from the textbook. For a "
        "first report give it what you make the module with, and what you call it with: python -m unmasked doctor "
        "mine.py:MyAttention --with 'dim=64, heads=4' --call 'torch.randn(2, 10, 64)' --causal. FILE is run, as "
        "`python FILE` would run it, with all that it imports: name no file that you would not run.",
        epilog="In a report, x marks a promise that calls show to be broken, ~ a difference from the textbook that you "
        "may mean, ! what may surprise, ? what stays open, + what holds, and = what was taken as it is. Beside a file "
        "whose name is that of a module of Python, such as random.py, call it as unmasked doctor, without python -m.",
    )
    doctor.add_argument(
        "target",
        metavar="FILE:NAME",
        help="file.py:name or package.module:name: a module's class, an object, a function of tensors, or a function "
        "without arguments that makes one of these",
    )
    doctor.add_argument(
        "--call",
        metavar="EXPR",
        help="what you call it with, as it stands between the parentheses, with the file's names and torch: "
        "--call 'torch.randn(2, 5, 12), mask=torch.ones(5, 5).tril().bool()'; it tells which inputs are tokens, "
        "masks, contexts and tables. It is run, as the file is",
    )
    doctor.add_argument("--embed-dim", type=int, help="features of its input; found by trying where it is left out")
    doctor.add_argument("--num-heads", type=int, help="number of heads")
    doctor.add_argument("--causal", action=argparse.BooleanOptionalAction, help="whether no token may see a later one")
    doctor.add_argument(
        "--inputs",
        choices=INPUTS,
        help="what it takes, by the number of its arguments where it is left out: x, tokens (self-attention); "
        "x_context, tokens and those that they attend to (cross-attention); qkv, three tensors; with _allowed, a "
        "boolean mask follows, (batch, 1, queries, keys), (batch, queries, keys), (queries, keys) or (batch, keys), "
        "whose True means that a query may see a key. For masks where True hides, or that are added to the scores, "
        "use --call",
    )
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
    doctor.add_argument(
        "--positions", action=argparse.BooleanOptionalAction, help="whether it adds positions to its tokens"
    )
    doctor.add_argument(
        "--but",
        nargs="+",
        default=[],
        metavar="NAME",
        help=f"differences that are meant, by their step ({', '.join(STEPS)}), and mistakes that are known, by their "
        "name in the museum",
    )
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


def _module(place: str) -> ModuleType:
    if place.endswith(".py"):
        path = Path(place).resolve()
        if not path.is_file():
            raise ValueError(f"{place} is no file")
        return _run(path)
    sys.path.insert(0, os.getcwd())
    return importlib.import_module(place)


def _load(text: str) -> Any:
    place, colon, name = text.rpartition(":")
    if not colon:
        raise ValueError(f"target is {text!r}; write file.py:Class or package.module:Class")
    thing: Any = _module(place)
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
        needed = parameter.default is parameter.empty
        size = _size(name, options, tried=needed)
        role = next((role for role, names in _SIZES.items() if name.lower() in names), "")
        if name == "batch_first":
            size = not options.tokens_first
        if not needed and role and not _is_told(parameter.default, name, role):
            size = None
        if size is not None:
            args[name] = size
            options.used = (*getattr(options, "used", ()), role)
        elif parameter.default is parameter.empty:
            raise ValueError(
                f"{thing.__name__} needs {name!r}; say how it is made: --with {_example(thing, options)!r}, or write a "
                f"function without arguments that makes it, and name that: {options.target.rpartition(':')[0]}:make"
            )
    return thing(**args)


def _parameters(thing: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    star = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: p for name, p in inspect.signature(thing).parameters.items() if p.kind not in star}


def _is_told(default: Any, name: str, role: str) -> bool:
    """Whether an option is meant for an argument that has a default: short names and other sizes mean other things."""
    return role in ("embed_dim", "num_heads") and len(name) > 1 and name not in ("width", "features", "channels")


def _size(name: str, options: argparse.Namespace, *, tried: bool = False) -> int | None:
    """What is known of a size, by its name; of one that is needed and was not told, one to try."""
    if tried:
        more = {"embed_dim": options.embed_dim or 12, "num_heads": options.num_heads or 3}
        options = argparse.Namespace(**(vars(options) | more))
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
