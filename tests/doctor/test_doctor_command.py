"""The doctor's command: how it makes what it examines, what it exits with, and how wide and colored it prints."""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from unmasked_doctor import INPUTS
from unmasked_doctor._command import _parser, main
from unmasked_doctor.testing import assert_attention

SOURCE = """
import torch
from torch import nn

class Config:
    dim, heads, scaled = 12, 3, True

class Wrong(Config):
    scaled = False

class Mine(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads, self.scaled = config.heads, config.scaled
        self.qkv, self.proj = nn.Linear(config.dim, 3 * config.dim), nn.Linear(config.dim, config.dim)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / (q.size(-1) ** 0.5 if self.scaled else 1)
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

class Sized(Mine):
    def __init__(self, hidden_size, nhead, dim_head, block_size=4, dropout=0.0):
        assert dim_head == hidden_size // nhead and block_size == 4
        super().__init__(Config)

class Long(Sized):
    def __init__(self, d_model, n_heads, block_size, secret):
        pass

def make():
    return Mine(Config)

def wrong(scaled=False):
    return Mine(Config)

def of(config):
    return Mine(Wrong if config == "wrong" else Config)

class Odd(nn.Module):
    def forward(self, x):
        return x.cumsum(1).tanh()

mine, config = Mine(Config), Config()
"""
SIZES = ["--embed-dim", "12", "--num-heads", "3"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize(
    ("target", "more", "code", "told"),
    [
        ("{}:make", [], 0, "Mine: no finding"),
        ("{}:mine", [], 0, "Mine: no finding"),
        ("{}:of", ["--with", "'right'"], 0, "Mine: no finding"),
        ("{}:of", ["--with", "config='wrong'"], 1, "~ missing-scale"),
        ("{}:of", ["--with", "'wrong'", "--color"], 1, "\033[33m~ missing-scale"),
        ("{}:of", ["--with", "'wrong'", "--but", "scale"], 0, "Mine: 1 difference from the textbook"),
        ("{}:of", ["--with", "'wrong'", "--but", "heads"], 1, "Mine: 1 difference from the textbook"),
        ("{}:Sized", [], 0, "Sized: no finding"),
        ("{}:Sized", ["--tokens", "5"], 0, "Sized: no finding"),  # which has a default, and is not asked for
        ("{}:Odd", [], 0, "Odd: no finding, but equality with attention was not settled"),
        ("{}:Odd", ["--at-least", "followed"], 1, "Odd: no finding, but equality with attention was not settled"),
        ("{}:mine", ["--at-least", "followed", "--training"], 0, "Mine: no finding"),
        ("{}:mine", ["--causal"], 1, "x no-causal-mask"),
        ("{}:mine", ["--embed-dim", "13"], 2, "it does not run on what it was given"),
        ("{}:mine", ["--weights", "qkv=qkv.weight", "qkv_bias=qkv.bias", "out=proj.weight", "out_bias=proj.bias"],
         0, "no finding"),
        ("torch.nn:MultiheadAttention", ["--inputs", "qkv"], 0, "no finding"),
    ],
)  # fmt: skip
def test_it_examines_what_a_file_or_a_package_has_or_makes(
    source: Path, capsys: pytest.CaptureFixture[str], target: str, more: list[str], code: int, told: str
) -> None:
    assert main(["doctor", target.format(source), *SIZES, *more]) == code
    assert told in re.sub(r"\s+", " ", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("target", "more", "told"),
    [
        ("{}", [], "write file.py:Class or package.module:Class"),
        ("{}:Yours", [], "has no 'Yours'"),
        ("{}:Mime", [], "has no 'Mime'; did you mean 'Mine'?"),
        ("nowhere.py:Mine", [], "nowhere.py is no file"),
        ("{}:Mine", [], "Mine needs 'config'; say how it is made: --with 'config=...', or write a function without"),
        ("{}:Long", [], "--with 'd_model=12, n_heads=3, block_size=..., secret=...'"),
        ("{}:Long", ["--tokens", "8"], "--with 'd_model=12, n_heads=3, block_size=8, secret=...'"),
        ("{}:mine", ["--with", "12"], "--with is for a class or a function, and "),
        ("{}:config", [], "mine.py:config is a Config; name a class, a module or a function"),
        (
            "{}:of",
            ["--with", "a=b"],
            "--with is 'a=b'; write plain values as they stand in a call, 12, num_heads=3,",
        ),
        ("{}:Long", ["--with", "d_modle=12"], "--with passes d_modle=, and"),
        ("{}:Long", ["--with", "d_modle=12"], "takes d_model, n_heads, block_size, secret; did you mean 'd_model'?"),
        ("{}:mine", ["--but", "layot"], "but names 'layot', which is no mistake of unmasked_doctor.museum.ENTRIES"),
        ("{}:mine", ["--but", "layot"], "did you mean 'layout'? Choose of scale, softmax,"),
        ("{}:of", ["--with", "12).x(3"], "--with is '12).x(3'; write plain values"),
        ("{}:mine", ["--weights", "foo"], "--weights has 'foo'; write a role and a name: query=a.weight"),
    ],
)
def test_it_says_what_it_lacks_or_cannot_read_and_exits_with_two(
    source: Path, capsys: pytest.CaptureFixture[str], target: str, more: list[str], told: str
) -> None:
    assert main(["doctor", target.format(source), *SIZES, *more]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1 / 0", "unmasked: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(0)", "unmasked: SystemExit: 0"),
        (
            "class Mine:\n    def __init__(self, dim):\n        assert dim % 5 == 0, 'five'",
            "Mine(dim=12), which raised AssertionError: five; say how it is made: --with 'dim=12'",
        ),
    ],
)
def test_whatever_a_file_does_it_says_so_and_exits_with_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    (tmp_path / "mine.py").write_text(text)
    assert main(["doctor", f"{tmp_path / 'mine.py'}:Mine", "--embed-dim", "12"]) == 2
    assert told in capsys.readouterr().err


def test_what_a_file_prints_does_not_spoil_the_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loud.py").write_text("print('hello')\n\ndef same(x):\n    print('again')\n    return x")
    main(["doctor", f"{tmp_path / 'loud.py'}:same", "--embed-dim", "12", "--json"])
    printed = capsys.readouterr()
    assert json.loads(printed.out)
    assert "hello" in printed.err


def test_it_prints_json_from_another_process(source: Path) -> None:
    command = [sys.executable, "-m", "unmasked", "doctor", f"{source}:mine", *SIZES, "--json"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["ok"] is True


def test_an_examination_imports_no_compiler(source: Path) -> None:
    """Its import takes longer than all of an examination."""
    program = f"""
import sys
sys.path.insert(0, {str(source.parent)!r})
from {source.stem} import mine
from unmasked import diagnose
assert not diagnose(mine, embed_dim=12, num_heads=3).named
sys.exit("torch._dynamo" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_reports_lines_are_as_wide_as_the_terminal_and_links_have_the_sites_address(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["doctor", f"{source}:of", *SIZES, "--with", "'wrong'"]
    printed = {}
    for columns in ("50", "100", "9"):
        monkeypatch.setenv("COLUMNS", columns)
        main(command)
        printed[columns] = capsys.readouterr().out
    widest = {columns: max(map(len, out.splitlines())) for columns, out in printed.items()}
    assert 40 < widest["50"] <= 50 < widest["100"] <= 100
    assert widest["9"] <= 40
    assert "\n    museum/computation/#missing-scale\n" in printed["50"]
    monkeypatch.setenv("SITE_URL", "https://example.org/site/")
    main(command)
    assert "\n    https://example.org/site/museum/computation/#missing-scale\n" in capsys.readouterr().out


def test_the_json_has_a_version_and_the_keys_that_its_page_documents(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["doctor", f"{source}:of", *SIZES, "--with", "'wrong'", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["version"] == 3
    assert list(told) == [
        "version", "target", "ok", "verdict", "given", "findings", "differences", "cautions", "passed",
        "inconclusive", "never_passed",
    ]  # fmt: skip
    assert list(told["differences"][0]) == [
        "check", "cause", "told", "evidence", "how", "also", "where", "caution", "step", "link", "pair", "show",
    ]  # fmt: skip
    main(["doctor", f"{source}:Odd", *SIZES, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert [list(each) for each in told["inconclusive"]] == [["check", "needs"]] * len(told["inconclusive"])
    assert (told["ok"], told["verdict"], bool(told["inconclusive"])) == (True, "open", True)


def test_it_offers_every_kind_of_inputs() -> None:
    for inputs in INPUTS:
        assert _parser().parse_args(["doctor", "a.py:b", *SIZES, "--inputs", inputs]).inputs == inputs


def test_misuse_exits_with_two(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["doctor"], ["doctor", f"{source}:mine", *SIZES, "--inputs", "y"], []):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
        assert "usage: python -m unmasked" in capsys.readouterr().err


def test_an_assertion_may_ask_for_a_decision(source: Path) -> None:
    spaces: dict[str, object] = {}
    exec(compile(SOURCE, str(source), "exec"), spaces)
    make, odd = spaces["make"], spaces["Odd"]
    assert callable(make)
    assert callable(odd)
    given = {"embed_dim": 12, "num_heads": 3}
    assert assert_attention(make(), at_least="equal", **given).verdict == "equal"
    assert assert_attention(odd(), embed_dim=12).verdict == "open"
    with pytest.raises(AssertionError, match="Odd: no finding, but equality with attention was not settled"):
        assert_attention(odd(), at_least="followed", embed_dim=12)
    with pytest.raises(ValueError, match='at_least is \'sure\'; choose "followed" or "equal"'):
        assert_attention(make(), at_least="sure", **given)


def test_a_whole_model_is_examined_with_inputs_that_a_file_has(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source.write_text(f"{SOURCE}\nmodel = nn.Sequential(make(), make())\ninputs = torch.randn(2, 5, 12)\n")
    assert main(["doctor", f"{source}:model", "--model", f"{source}:inputs", "--at-least", "followed"]) == 0
    found = "Sequential, 2 calls of attention: no finding, each followed"
    assert found in re.sub(r"\s+", " ", capsys.readouterr().out)
    assert main(["doctor", f"{source}:model", "--call", "torch.randn(2, 5, 12)", "--model"]) == 0
    assert found in re.sub(r"\s+", " ", capsys.readouterr().out)
    assert main(["doctor", f"{source}:model", "--model", f"{source}:inputs", "--causal"]) == 1
    assert "later token" in capsys.readouterr().out
    assert main(["doctor", f"{source}:model", "--model", f"{source}:inputs", "--no-causal", "--strict"]) == 0
    capsys.readouterr()
    assert main(["doctor", f"{source}:mine"]) == 0  # sizes are found by trying
    assert "Mine: no finding, equal" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--model", "{}:mine", "--positions"], "--positions is not used: a whole model"),
        (["--model", "{}:mine", "--embed-dim", "8"], "--embed-dim 8 is not used: a whole model"),
        (["--model", "{}:mine", "--num-heads", "2"], "--num-heads 2 is not used: a whole model"),
        (["--call", "torch.randn(2, 5, 12)", "--key-dim", "8"], "--key-dim 8 is not used: --call tells it"),
        (["--call", "nothing"], "--call is 'nothing', which raised NameError"),
        (["--call", "torch.randn(2"], "--call is 'torch.randn(2', which is no Python: '(' was never closed"),
        (["--call", "1), (2"], "it closes a parenthesis that it did not open; write what stands between"),
        (["--call", "y=1"], "--call passes y=, and"),
        (["--model", "--positions", "--call", "torch.randn(2, 5, 12)"], "--positions is not used: a whole model"),
        (["--model"], "--model examines a whole model, and needs what it is called with"),
        (["--model", "{}:mine", "--call", "1"], "mine.py:mine names inputs, and --call writes out others; leave one"),
        (["--show", "--json"], "--show is not used: the JSON has each program under show; leave it out"),
    ],
)
def test_an_option_that_is_not_used_is_an_error(
    words: list[str], told: str, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", f"{source}:mine", *(word.format(source) for word in words)]) == 2
    assert told in capsys.readouterr().err


def test_a_call_is_written_as_it_is_made_and_defaults_stay(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source.write_text(
        f"{SOURCE}\nclass Own(Mine):\n    def __init__(self, H=4, W=3, width=7):\n"
        "        assert (H, W, width) == (4, 3, 7)\n        super().__init__(Config)\n\nx = torch.randn(2, 6, 12)\n"
    )
    assert main(["doctor", f"{source}:Own", "--call", "x"]) == 0
    assert main(["doctor", f"{source}:Own", *SIZES]) == 0
    assert capsys.readouterr().out.count("Own: no finding, equal") == 2


def test_help_says_that_the_file_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "FILE is run, as `python FILE` would run it, with all that it imports" in said


def test_a_file_is_run_once_and_named_as_no_module_that_is_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file json.py beside its caller neither replaces json nor stays behind."""
    (tmp_path / "beside.py").write_text("KNOWN = 12")
    (tmp_path / "json.py").write_text(
        "import torch\nfrom beside import KNOWN\nfrom torch import nn\n\nprint('it runs')\n\n"
        "inputs = torch.randn(1, 4, KNOWN)\n\n\nclass Mine(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.to = nn.Linear(KNOWN, KNOWN)\n\n"
        "    def forward(self, x):\n        return self.to(x)\n"
    )
    file, path, names = tmp_path / "json.py", list(sys.path), set(sys.modules)
    main(["doctor", f"{file}:Mine", "--model", f"{file}:inputs", "--json"])
    printed = capsys.readouterr()
    assert json.loads(printed.out)["target"]
    assert printed.err.count("it runs") == 1
    assert sys.path == path
    assert {name for name in set(sys.modules) - names if name.endswith(".py")} == set()
    file.write_text("def Mine(x):\n    return x[..., :1]\n")  # it is read anew
    main(["doctor", f"{file}:Mine", "--embed-dim", "12"])
    assert "it runs" not in capsys.readouterr().err


def test_as_a_script_it_runs_beside_files_that_are_called_as_modules_of_python(source: Path) -> None:
    script = shutil.which("unmasked", path=sysconfig.get_path("scripts"))
    assert script is not None, "set the project up again: pip install -e .[test]"
    (source.parent / "random.py").write_text("raise SystemExit('imported in the place of random')\n")
    command = [script, "doctor", "mine.py:mine", *SIZES]
    done = subprocess.run(command, cwd=source.parent, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.partition(",")[0]) == (0, "Mine: no finding"), done.stderr


def test_what_lies_in_the_working_directory_is_not_imported_with_a_file(source: Path, tmp_path: Path) -> None:
    """As of `python FILE`, whose path begins with the file's own folder."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "planted.py").write_text("raise SystemExit('imported')")
    (source.parent / "asks.py").write_text("import planted\n\ndef same(x):\n    return x\n")
    command = [sys.executable, "-m", "unmasked", "doctor", f"{source.parent / 'asks.py'}:same", "--embed-dim", "12"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=elsewhere)
    assert run.returncode == 2
    assert run.stderr == "unmasked: No module named 'planted'\n"


LEAKY = """
import torch


class Leaky(torch.nn.Module):
    def __init__(self, dim=4):
        super().__init__()
        self.linear = torch.nn.Linear(dim, dim)

    def forward(self, x, shift=0.0):
        return self.linear(x + x.mean((0, 1), keepdim=True)) + shift


class Ids(Leaky):
    def forward(self, ids):
        return super().forward(torch.nn.functional.one_hot(ids, 4) * 1.0)


package = 4
shapes = ((2, 5, package),)
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Leaky", ["--call", "torch.randn(2, 5, package)", "--with", "package"]),
        ("Leaky", ["--call", "torch.randn(2, 5, 4), shift=2.0", "--with", "dim=4"]),
        ("Leaky", ["--call", "torch.randn(*shapes[0]), 1.0"]),
        ("Leaky", ["--embed-dim", "4"]),
        ("Ids", ["--call", "torch.randint(4, (2, 6))"]),
    ],
)
def test_it_prints_programs_that_show_what_is_broken(
    name: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaky.py").write_text(LEAKY)
    monkeypatch.chdir(tmp_path)
    words = [
        word.replace("package", "4") if at and words[at - 1] == "--with" else word for at, word in enumerate(words)
    ]
    assert main(["doctor", f"leaky.py:{name}", *words, "--causal", "--show"]) == 1
    report, *programs = capsys.readouterr().out.split("from runpy")
    assert 0 < len(programs) <= report.count("\nx ")
    for program in programs:
        ran = subprocess.run(
            [sys.executable, "-c", f"from runpy{program}"], capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        assert float(ran.stdout) > 1e-3


def test_an_exit_code_of_one_says_what_for(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["doctor", f"{source}:of", *SIZES, "--with", "'wrong'"]
    assert main([*wrong, "--but", "mask"]) == 1
    assert "exit code 1: --but mask does not accept missing-scale" in capsys.readouterr().err
    assert main([*wrong, "--but", "scale"]) == 0
    assert main(["doctor", f"{source}:Odd", *SIZES[:2], "--at-least", "followed"]) == 1
    assert "exit code 1: what is known is 'open', and --at-least asks for 'followed'" in capsys.readouterr().err


def test_sizes_that_were_tried_and_lines_that_raise_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "import torch\n\nclass Mine(torch.nn.Module):\n    def __init__(self, dim):\n        super().__init__()\n"
    lines += "        self.q = torch.nn.Linear(dim, dim)\n\n    def forward(self, x):\n        return self.q(x)\n"
    (tmp_path / "mine.py").write_text(lines)
    assert main(["doctor", f"{tmp_path / 'mine.py'}:Mine", "--call", "torch.randn(2, 5, 64)"]) == 2
    said = capsys.readouterr().err
    assert "at line 9 of mine.py; pass what it runs on; it was made with sizes to try, Mine(dim=12): say how" in said


def test_a_run_is_like_the_one_before(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for _ in range(2):
        main(["doctor", f"{source}:make", "--call", "torch.randn(2, 5, 12)", "--causal", "--json"])
        told.append(json.loads(capsys.readouterr().out))
    assert told[0] == told[1]


def test_remedies_are_options_of_the_command(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", f"{source}:of", *SIZES, "--with", "'wrong'"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "accept it by --but scale" in said
    assert "a later one: pass --causal or --no-causal" in said
    assert "=True" not in said
