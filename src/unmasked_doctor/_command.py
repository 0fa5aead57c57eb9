"""The doctor as a command: ``python -m unmasked doctor file.py:Class --call ...``, or ``unmasked doctor ...``.

It exits with zero if nothing is wrong; with one if a promise is broken, if a difference from the textbook was not
accepted by --but, or if less is known than --at-least says; with two if it cannot do what it is asked, or if the target
does not run.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import importlib
import importlib.util
import inspect
import itertools
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from unmasked_doctor import INPUTS, ModelReport, Report, diagnose, diagnose_model, reaches
from unmasked_doctor._call import parameters_of, takes_any_name
from unmasked_doctor._report import STEPS, Finding, known
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
    options.guessed = ""
    try:
        # What the file prints is not the report.
        with contextlib.redirect_stdout(sys.stderr), _imports_restored():
            report = _examined(options)
    except (Exception, SystemExit) as error:  # whatever a stranger's file may do
        expected = isinstance(error, ImportError | OSError | SyntaxError | TypeError | ValueError)
        named = "" if expected else f"{type(error).__name__}: "
        print(f"unmasked: {named}{error}{options.guessed}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(_with_programs(report, options), indent=2))
    else:
        color = options.color or (sys.stdout.isatty() and "NO_COLOR" not in os.environ)
        print(report.text(color=color, width=_width(), shell=True))
        if options.show:
            print(_programs(report, options))
    code = _code(report, options)
    for reason in _reasons(report, options) if code == 1 else ():
        print(f"unmasked: exit code 1: {reason}", file=sys.stderr)
    return code


def _reasons(report: Report | ModelReport, options: argparse.Namespace) -> Iterator[str]:
    """Say what an exit code of 1 stands for, where the report does not show it by itself."""
    left = [each for each in report.named if not each.accepted(options.but)]
    if not left:
        yield f"what is known is {report.verdict!r}, and --at-least asks for {options.at_least!r}"
    elif options.but:
        names = dict.fromkeys(each.cause or each.step or each.check for each in left)
        yield f"--but {' '.join(options.but)} does not accept {', '.join(names)}"


def _examined(options: argparse.Namespace) -> Report | ModelReport:
    known(options.but)
    if options.json:
        _refuse_unused(options, ("show",), "the JSON has each program under show")
    thing = _load(options.target)
    torch.manual_seed(0)  # what is drawn for it and for its call is the same at each run
    if options.model:
        model = _made(thing, options)
        _refuse_unused(options, _OF_A_LAYER, "a whole model is examined with --model, which does not use it")
        return diagnose_model(
            model,
            _inputs_of_model(options, model),
            causal=options.causal,
            batch_first=False if options.tokens_first else None,
            strict=options.strict,
        )
    if options.call is not None:
        _refuse_unused(options, ("inputs", "key_dim"), "--call tells it")
    target = _made(thing, options)
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
    "embed_dim", "num_heads", "inputs", "tokens", "key_dim", "cache", "training", "weights", "positions",
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


def _inputs_of_model(options: argparse.Namespace, model: Any) -> Any:
    """Return what a model is called with: the call that is written out, or what a file has under a name."""
    if options.model is True:
        if options.call is None:
            raise ValueError(
                "--model examines a whole model, and needs what it is called with: write the call beside it, --call "
                "'torch.randint(100, (2, 10))', or name inputs of a file, --model file.py:name"
            )
        return _call(options, model)
    if options.call is not None:
        raise ValueError(f"--model {options.model} names inputs, and --call writes out others; leave one out")
    inputs = _load(options.model)
    return inputs() if inspect.isfunction(inputs) else inputs


def _call(options: argparse.Namespace, target: Any) -> Any:
    """Evaluate what stands between the parentheses of a call, with the names of the file, and torch."""
    scope = {"torch": torch} | vars(_module(options.target.rpartition(":")[0]))
    remedy = "write what stands between the parentheses of the call: --call 'torch.randn(2, 5, 12), mask=None'"
    try:
        written = _parsed_call(options.call)
    except SyntaxError as error:
        raise ValueError(f"--call is {options.call!r}, which is no Python: {error}; {remedy}") from None
    options.called = _call_expression(written, target, options.target)
    try:
        call = eval(options.called, scope)  # as the file itself, it is the user's own code
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
        raise ValueError(f"--call is {options.call!r}, which raised {raised}; {remedy}") from error
    if isinstance(call, tuple) and len(call) == 1 and isinstance(call[0], tuple | dict):
        options.called, call = ast.unparse(written.args[0]), call[0]  # a call that the file has under a name
    return call


def _parsed_call(arguments: str) -> ast.Call:
    """Parse what stands between the parentheses of one call, or raise SyntaxError."""
    call = ast.parse(f"_({arguments})", mode="eval").body
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
        return call
    raise SyntaxError("it closes a parenthesis that it did not open")


def _call_expression(written: ast.Call, target: Any, called: str) -> str:
    """Return a call as `diagnose` takes it: a tuple, or all by name where some are, and the target has the names."""
    args, named = [ast.unparse(arg) for arg in written.args], [each.arg for each in written.keywords]
    if not named:
        return f"({''.join(f'{arg}, ' for arg in args)})"
    known = parameters_of(target)
    for name in named:
        if name is not None and name not in known and not takes_any_name(target):
            raise ValueError(f"--call passes {name}=, and {called} takes {', '.join(known)}{_meant(name, known)}")
    values = [ast.unparse(each.value) for each in written.keywords]
    by_name = [f"{name!r}: {value}" if name else f"**{value}" for name, value in zip(named, values, strict=True)]
    plain = [name for name, each in known.items() if each.kind is each.POSITIONAL_OR_KEYWORD][: len(args)]
    if len(args) > len(plain) or {*plain} & {*named} or any(isinstance(arg, ast.Starred) for arg in written.args):
        return f"({', '.join(args)}, {{{', '.join(by_name)}}})"
    by_name = [*(f"{name!r}: {arg}" for name, arg in zip(plain, args, strict=True)), *by_name]
    return f"{{{', '.join(by_name)}}}"


def _found(target: Any, options: argparse.Namespace) -> dict[str, Any]:
    """The features and the kind of its inputs: as they were told, or the first with which it runs."""
    told = {"embed_dim": options.embed_dim, "inputs": options.inputs, "key_dim": options.key_dim}
    if options.embed_dim is not None and options.inputs is not None:
        return told
    names = [name for name, each in parameters_of(target).items() if each.default is each.empty]
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


def _program(finding: Finding, options: argparse.Namespace) -> str:
    """Write a program that makes the target, calls it, and prints what moves; a comment where no two calls show it."""
    if finding.pair is None:
        return f"# {finding.check}: {finding.evidence}"
    place = options.target.rpartition(":")[0]
    from_file = f"from runpy import run_path\n\nimport torch\n\nglobals().update(run_path({place!r}))"
    start = [
        from_file if place.endswith(".py") else f"import torch\n\nfrom {place} import *",
        f"torch.manual_seed(0)\ntarget = {options.made}",
        *([f"call = {options.called}"] if options.call is not None else []),
    ]
    return "\n".join([*start, f"# {finding.pair.told}", finding.pair.code])


def _programs(report: Report | ModelReport, options: argparse.Namespace) -> str:
    """Write a program for each broken promise."""
    return "\n\n".join(f"\n{_program(each, options)}" for each in report.findings)


def _with_programs(report: Report | ModelReport, options: argparse.Namespace) -> dict[str, Any]:
    """The report as dictionaries, in which each broken promise has its whole program."""
    told = report.to_dict()
    told["findings"] = [
        plain | {"show": _program(each, options)} for plain, each in zip(told["findings"], report.findings, strict=True)
    ]
    return told


def _width() -> int:
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() or "COLUMNS" in os.environ else 78
    return min(max(columns, 40), 120)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m unmasked", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser(
        "doctor",
        help="which promises an attention module breaks, and where it differs from the textbook",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="python -m unmasked doctor FILE:NAME --with ARGS --call EXPR [--causal] [options]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    doctor.add_argument(
        "target",
        metavar="FILE:NAME",
        help="file.py:name or package.module:name: a module's class, an object, a function of tensors, or a function "
        "without arguments that makes one of these",
    )
    add = doctor.add_argument_group("how it is made and called").add_argument
    add(
        "--with", dest="arguments", metavar="ARGS", help="what a class, or a function, makes it with: 'dim=64, heads=4'"
    )
    add(
        "--call",
        metavar="EXPR",
        help="what you call it with, as it stands between the parentheses, with the file's names and torch: "
        "'torch.randn(2, 5, 12), mask=torch.ones(5, 5).tril().bool()'; it tells which inputs are tokens, masks, "
        "contexts and tables. It is run, as the file is",
    )
    add(
        "--model",
        metavar="INPUTS",
        nargs="?",
        const=True,
        help="examine a whole model, layer by layer, with the inputs of --call, or with those that stand in a file: "
        "--model file.py:name, or the name of a function that makes them",
    )
    add = doctor.add_argument_group("what it promises").add_argument
    add("--causal", action=argparse.BooleanOptionalAction, help="whether no token may see a later one")
    add("--positions", action=argparse.BooleanOptionalAction, help="whether it adds positions to its tokens")
    add("--num-heads", type=int, help="number of heads; seen in its calls where it is left out")
    add("--tokens-first", action="store_true", help="its tensors are (tokens, batch, features)")
    add("--training", action="store_true", help="examine what it computes in training too")
    add("--cache", metavar="NAME", help="the argument for its cache: kv, past_key_value ...")
    add("--weights", nargs="*", default=[], metavar="ROLE=NAME", help="query=a.weight key=b.weight ...")
    add = doctor.add_argument_group("without --call: inputs of its own sizes").add_argument
    add("--embed-dim", type=int, help="features of its input; found by trying where it is left out")
    add("--key-dim", type=_widths, metavar="N[,N]", help="features of keys and values, or of the context, if others")
    add("--tokens", type=int, help="the number of tokens that it was built for, if it takes no other")
    add(
        "--inputs",
        choices=INPUTS,
        help="what it takes, by the number of its arguments where it is left out: x, tokens (self-attention); "
        "x_context, tokens and those that they attend to (cross-attention); qkv, three tensors; with _allowed, a "
        "boolean mask follows, (batch, 1, queries, keys), (batch, queries, keys), (queries, keys) or (batch, keys), "
        "whose True means that a query may see a key. For masks where True hides, or that are added to the scores, "
        "use --call",
    )
    add = doctor.add_argument_group("what counts, and how it is told").add_argument
    add(
        "--but",
        nargs="+",
        default=[],
        metavar="NAME",
        help=f"differences that are meant, by their step ({', '.join(STEPS)}), mistakes that are known, by their "
        "name in the museum, and items, where items of a batch are meant to reach each other",
    )
    add("--strict", action="store_true", help="what may surprise counts as a finding")
    add("--at-least", choices=("followed", "equal"), help="exit with 1 where less is known; see below")
    add("--show", action="store_true", help="print for each promise that two calls break the program that makes them")
    add("--json", action="store_true", help="the report as JSON")
    add("--color", action="store_true", help="color also where the output is no terminal")
    return parser


_DESCRIPTION = """\
Say which promises an attention module breaks, and where it differs from the
textbook. For a first report say how the module is made and called:

  python -m unmasked doctor mine.py:MyAttention --causal \\
      --with 'dim=64, heads=4' --call 'torch.randn(2, 10, 64)'

and of a whole model:

  python -m unmasked doctor mine.py:MyModel --causal --model \\
      --call 'torch.randint(100, (2, 10))'

FILE is run, as `python FILE` would run it, with all that it imports: name no
file that you would not run."""

_EPILOG = """\
lines of a report:
  x  a promise that calls show to be broken (--show prints them)
  ~  a difference from the textbook that you may mean, and then accept by --but
  !  what may surprise, though PyTorch or published models do it too
  ?  what stays open, and what would settle it
  +  what holds
  =  what was taken as it is, or never passed

how much is known of what it computes, from most to least:
  equal     its outputs are those of an independent attention, or of one with
            the mistake that is named
  followed  each of its steps was recognized, and all its parameters are used
  open      what holds was asked, but it may compute something else; a cause
            that is named is then the likeliest one, and "(likely)" says so

exit codes:
  0  no promise is broken, and each difference is accepted
  1  one is broken or not accepted, or less is known than --at-least asks
  2  it could not be examined

Beside a file whose name is that of a module of Python, such as random.py,
call it as `unmasked doctor`, without `python -m`."""


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
            raise ValueError(f"{place} has no {part!r}{_meant(part, vars(thing))}")
        thing = getattr(thing, part)
    return thing


def _meant(name: str, names: Iterable[str]) -> str:
    """Return a question after the name that is most like one which does not exist, if one is like it."""
    near = difflib.get_close_matches(name, [each for each in names if not each.startswith("_")], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _made(thing: Any, options: argparse.Namespace) -> Any:
    """Make what is to be examined: of a class, or by a function that makes it; else it is the thing itself."""
    is_class = inspect.isclass(thing)
    options.made = options.target.rpartition(":")[2]
    if options.arguments is not None:
        if not (is_class or inspect.isroutine(thing)):
            raise ValueError(f"--with is for a class or a function, and {options.target} is a {type(thing).__name__}")
        args, named = _arguments(options.arguments)
        known = parameters_of(thing)
        for name in named:
            if name not in known and not takes_any_name(thing):
                raise ValueError(
                    f"--with passes {name}=, and {options.target} takes {', '.join(known)}{_meant(name, known)}"
                )
        options.made += f"({options.arguments})"
        return thing(*args, **named)
    if inspect.isfunction(thing) and not parameters_of(thing):
        options.made += "()"
        return thing()
    if not callable(thing):
        raise ValueError(f"{options.target} is a {type(thing).__name__}; name a class, a module or a function")
    return _of_class(thing, options) if is_class else thing


def _of_class(thing: Callable[..., Any], options: argparse.Namespace) -> Any:
    """Make an object of a class with the sizes that are known, by their usual names."""
    args: dict[str, Any] = {}
    for name, parameter in parameters_of(thing).items():
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
    sizes = ", ".join(f"{name}={value!r}" for name, value in args.items())
    options.made += f"({sizes})"
    if options.call is not None and any(_size(name, options) != value for name, value in args.items()):
        options.guessed = f"; it was made with sizes to try, {options.made}: say how it is made by --with"
    try:
        return thing(**args)
    except Exception as error:
        options.guessed = ""
        raise ValueError(
            f"{options.target} was made with sizes to try, {thing.__name__}({sizes}), which raised "
            f"{type(error).__name__}: {error}; say how it is made: --with {_example(thing, options)!r}"
        ) from error


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
    remedy = (
        f"--with is {text!r}; write plain values as they stand in a call, 12, num_heads=3, or, for others, a function "
        "of the file that makes it, and name that"
    )
    try:
        call = _parsed_call(text)
        args = [ast.literal_eval(arg) for arg in call.args]
        return args, {each.arg or "**": ast.literal_eval(each.value) for each in call.keywords}
    except (SyntaxError, ValueError):
        raise ValueError(remedy) from None


def _example(thing: Callable[..., Any], options: argparse.Namespace) -> str:
    """A call with the sizes that are known, and a place for each of the others."""
    needed = [name for name, p in parameters_of(thing).items() if p.default is p.empty]
    sizes = {name: _size(name, options) for name in needed}
    return ", ".join(f"{name}={'...' if size is None else size}" for name, size in sizes.items())
