import re
import xml.etree.ElementTree as ElementTree

import markdown as python_markdown
import pytest

from proofread import math
from proofread.math import MathError, render, to_mathml, to_mathml_many


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


def test_many_formulas_take_one_run_of_pandoc_and_none_the_second_time(monkeypatch):
    runs = []
    pandoc = math._pandoc
    monkeypatch.setattr(math, "_pandoc", lambda new: runs.append(len(new)) or pandoc(new))
    formulas = [(f"x_{{{i}}}", bool(i % 2)) for i in range(701, 741)]
    assert to_mathml_many(formulas) == to_mathml_many(formulas[:20]) + to_mathml_many(formulas[20:])
    assert runs == [40]


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
