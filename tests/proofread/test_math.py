import re
import xml.etree.ElementTree as ElementTree

import markdown as python_markdown
import pytest

from proofread.publish import mathematics as math
from proofread.publish.mathematics import MathError, keep, prepare, render, to_mathml


def html(text):
    return python_markdown.markdown(
        render(text), extensions=["tables", "admonition", "smarty", "footnotes", "attr_list"]
    )


@pytest.mark.parametrize(
    "tex",
    [
        r"\operatorname{softmax}\left(\frac{QK^\top}{\sqrt{d_k}}\right)V",
        r"\begin{cases} 0 & \text{if } j \le i \\ -\infty & \text{otherwise} \end{cases}",
        r"\begin{aligned} a &= b \\ &= c \end{aligned}",
        r"\begin{pmatrix} \cos\theta & -\sin\theta \\ \sin\theta & \cos\theta \end{pmatrix}",
        r"\mathbf{x} \in \mathbb{R}^{n \times d}, \quad \underbrace{a + b}_{c}, \lVert x \rVert, \hat{y}",
    ],
)
def test_what_pages_need_becomes_mathml_with_its_source(tex):
    mathml = to_mathml(tex, display=True)
    root = ElementTree.fromstring(mathml)
    assert (root.tag, root.get("display")) == ("math", "block")
    assert root.get("alttext").split() == tex.split()
    assert "\n" not in mathml


@pytest.mark.parametrize(
    ("tex", "reason"),
    [
        (r"\frac{a}{", "unexpected eof"),
        (r"\foo{a}", r"unexpected control sequence \\foo"),
        ("a_{", "unexpected"),
        ("}", ""),
    ],
)
def test_tex_that_cannot_be_read_is_an_error_that_says_why(tex, reason):
    with pytest.raises(MathError, match=rf"(?s)^\${re.escape(tex)}\$ is not TeX: .*{reason}"):
        to_mathml(tex, display=False)


@pytest.fixture
def runs(monkeypatch):
    """How many formulas each run of pandoc converts, in a process that has converted none."""
    monkeypatch.setattr(math, "_memo", {})
    monkeypatch.setattr(math, "_kept", {})
    monkeypatch.setattr(math, "_file", None)
    counted, pandoc = [], math._pandoc
    monkeypatch.setattr(math, "_pandoc", lambda new: counted.append(len(new)) or pandoc(new))
    return counted


def test_many_formulas_take_one_run_of_pandoc_and_none_the_second_time(runs):
    formulas = [f"{'$$' if i % 2 else '$'}x_{{{i}}}{'$$' if i % 2 else '$'}\n" for i in range(40)]
    assert render("".join(formulas)) == "".join(map(render, formulas))
    assert runs == [40]


def test_a_site_takes_one_run_of_pandoc_and_its_errors_wait_for_their_page(runs):
    good, bad = "one $x$\n\n$$y$$", "one $x$\n\nand $\\foo$"
    prepare([good, bad])
    assert render(good).count("<math") == 2
    for _ in range(2):
        with pytest.raises(MathError, match=r"^line 3: \$\\foo\$ is not TeX"):
            render(bad)
    assert runs == [3]


def test_the_next_process_takes_what_is_kept_and_starts_no_pandoc(runs, tmp_path):
    keep(tmp_path / "cache")
    before = to_mathml(r"\frac{a}{b}", display=True)
    to_mathml("c", display=False)
    math._memo.clear()
    keep(tmp_path / "cache")
    assert to_mathml(r"\frac{a}{b}", display=True) == before
    assert math.converted() == [before]  # the font needs what this process has used, not all that is kept
    assert runs == [1, 1]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["mathematics.json"]


@pytest.mark.parametrize("kept", [b"", b"{}", b'{"by": "another pandoc", "formulas": [["a", true, "wrong"]]}'])
def test_what_another_version_kept_or_nobody_can_read_is_converted_again(runs, tmp_path, kept):
    (tmp_path / "mathematics.json").write_bytes(kept)
    keep(tmp_path)
    assert to_mathml("a", display=True).startswith("<math")
    assert runs == [1]


def test_formulas_are_converted_where_nothing_can_be_kept(runs, tmp_path):
    (tmp_path / "file").touch()
    keep(tmp_path / "file")
    assert to_mathml("a", display=True).startswith("<math")


@pytest.mark.parametrize(
    ("tex", "lost"),
    [
        (r"\begin{array}{c|c} a & b \end{array}", r"\begin{array}{c|c}"),
        (r"\begin{matrix} a \\ \hline b \end{matrix}", r"\hline"),
        (r"\begin{aligned} a &= b \tag{1.1} \\ c &= d \tag{1.2} \end{aligned}", r"\tag"),
        (r"\boxed{a}", r"\boxed"),
        (r"\color{red} a", r"\color"),
    ],
)
def test_what_pandoc_would_drop_without_a_word_is_an_error(tex, lost):
    with pytest.raises(MathError, match=rf"^line 1: .* would lose {re.escape(lost)} on the way to MathML"):
        render(f"$${tex}$$")


def test_the_comma_between_thousands_takes_no_space():
    assert "<mn>10</mn><mtext" in to_mathml("10{,}000", display=False)
    assert 'alttext="10&#123;&#44;&#125;000"' in to_mathml("10{,}000", display=False)


@pytest.mark.parametrize(
    ("tex", "spaces"),
    [
        (r"\log n", 1),
        (r"c \tanh x", 2),
        (r"\max_j s_j", 1),
        (r"\sin^2 a", 1),
        (r"\tanh(x)", 0),
        (r"\operatorname{softmax}\left(x\right)", 0),
        (r"\frac{1}{\log}", 0),
        (r"a + \log(b)", 0),
    ],
)
def test_a_thin_space_parts_functions_from_letters_beside_them(tex, spaces):
    root = ElementTree.fromstring(to_mathml(tex, display=True))
    assert sum(element.get("width") == "0.167em" for element in root.iter("mspace")) == spaces
    assert all(len(element) == 2 for element in (*root.iter("msup"), *root.iter("munder")))


def test_the_bars_of_a_norm_grow_with_what_is_tall_alone():
    assert to_mathml(r"\lVert y_1 \rVert", display=True).count('stretchy="false"') == 2
    assert to_mathml(r"\left\lVert \frac{a}{b} \right\rVert", display=True).count('stretchy="true"') == 2


TRICKY = r"a_{*}^{*} * |b| \_ [c](d) < e & 'f' -- \{g\}"


@pytest.mark.parametrize(
    "text",
    [
        "a sentence with $%s$ in it",
        "| a | b |\n|---|---|\n| $%s$ | c |",
        "- item\n\n    - $%s$ nested",
        "!!! note\n\n    Text $%s$ text.",
        "## Heading $%s$",
        "> quoted $%s$",
        "**bold $%s$ bold**",
        "text\n\n$$\n%s\n$$\n\ntext",
        "- item\n\n    $$\n    %s\n    $$",
        "!!! note\n\n    $$%s$$",
    ],
)
def test_markdown_leaves_mathematics_alone_wherever_it_stands(text):
    tex = TRICKY.replace("& ", "")
    display = "$$" in text
    (found,) = re.findall("<math.*?</math>", html(text % tex), re.S)
    expected = ElementTree.fromstring(to_mathml(tex, display=display))
    assert ElementTree.tostring(ElementTree.fromstring(found)) == ElementTree.tostring(expected)


def test_code_and_prices_are_left_as_they_are():
    text = "`$a$` costs $5 or \\$6, so $7\n\n```\n$$a$$\n```\n"
    assert render(text) == text


def test_a_number_stands_beside_its_formula_and_can_be_linked_to():
    rendered = html("$$a = b \\tag{7.2}$$")
    assert '<span class="math-display" id="eq-7.2"><math display="block" alttext="a &#61; b">' in rendered
    assert rendered.endswith('</math><span class="math-tag">(7.2)</span></span></p>')
    assert "tag{" not in rendered


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("one\n\n$a$ and $\\foo$", 2, r"^line 3: \$\\foo\$ is not TeX: "),
        ("one\n$$\na\n$$\n\n$$ b", 5, r"^line 6: this \$\$ is never closed$"),
    ],
)
def test_an_error_names_its_line(text, line, message):
    with pytest.raises(MathError, match=message) as raised:
        render(text)
    assert raised.value.line == line
