import textwrap

import pytest

from proofread.pages.prose import Prose, read


def prose(text: str) -> Prose:
    return read(textwrap.dedent(text).lstrip("\n"))


def bare(text: str, code: str = "") -> list[tuple[int, str]]:
    found = prose(text)
    return [(found.line(start), found.text[start:end]) for start, end in found.bare(code)]


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("keeps 55%<!--= x -->", "55%"),
        ("keeps **55%**<!--= x -->", "55%"),
        ("keeps **55%<!--= x -->**", "55%"),
        ("shape `(11, 50)`<!--= x -->", "(11, 50)"),
        ("shape (11, 50)<!--= x -->", "(11, 50)"),
        ("rows [[1, 2], [3, 4]]<!--= x -->", "[[1, 2], [3, 4]]"),
        ("a 3 × 4<!--= x --> matrix", "3 × 4"),
        ("error 3 × 10⁻⁷<!--= x -->", "3 × 10⁻⁷"),
        ("from two to −0.5<!--= x -->", "−0.5"),
        ("the word *ship*<!--= x -->", "ship"),
        ("the word “ship”<!--= x -->", "ship"),
        ("is larger<!--= x -->", "larger"),
        ("$3 \\cdot 10^{-7}$<!--= x -->", "3 \\cdot 10^{-7}"),
        ("## All 13<!--= x --> words", "13"),
        ("| ship | 0.55<!--= x --> |", "0.55"),
        ("version 2.13.0<!--= x -->", "2.13.0"),
        ("takes 2 1/2<!--= x --> of them", "2 1/2"),
    ],
)
def test_a_claim_speaks_of_what_stands_before_it(text: str, typed: str) -> None:
    found = prose(text)
    (claim,) = found.claims
    assert (claim.typed, claim.expression) == (typed, "x")
    assert text[slice(*claim.span)] == typed
    assert not list(found.bare(""))
    assert "<!--" not in found.publish({})


@pytest.mark.parametrize(
    "text",
    [
        "keeps 55% of it",
        "## All 55% of it",
        "![55% of it](a.svg)",
        "[55%](a.svg)",
        "| a | 55% |",
        '!!! note "Only 55%"',
        "    indented 55%",
        "> quoted 55%",
        "- item 55%",
        "[^1]: note 55%",
        "[^1]: 55%",
        "*55%*",
        "<b>55%</b>",
        "about:55%",
        "__55%__",
        "_55%_",
        "~~55%~~",
        "==55%==",
        '<img src="a44.svg" width="44" alt="keeps 55%">',
        '<details open title="55% of it">',
        "<span class='a44' aria-label='55%'></span>",
        "*[MHA]: has 55%",
        '[text](page44.md "55% of it")',
        '[ref]: https://example.org/44 "55% of it"',
        '=== "Of 55%"',
        '??? note "55%"',
        "- [ ] 55%",
        "if i<n and 55% of j>n",
        "one ` tick, 55%\n\nand another `",
    ],
)
def test_a_bare_figure_is_found_wherever_it_stands(text: str) -> None:
    assert bare(f"First\n\n{text}\n") == [(2, "55%")]


def test_what_front_matter_tells_readers_is_prose_and_a_rule_begins_none() -> None:
    front = "---\ntitle: The 55%<!--= x -->\ndescription: Keeps 44%\ndate: 2024-01-01\n---\nText"
    found = read(front, opens=True)
    assert [claim.typed for claim in found.claims] == ["55%"]
    assert [found.text[start:end] for start, end in found.bare("")] == ["44%"]
    assert found.publish({}).startswith("---\ntitle: The 55%\ndescription")
    assert bare("---\ntitle 55%\n\n---\nText") == [(1, "55%")]


def test_fractions_of_one_sign_are_figures() -> None:
    assert bare("½ of it, 2¾ of them") == [(0, "½"), (0, "2¾")]


@pytest.mark.parametrize("text", ["`55`", "`(11, 50)`", "``x[3]``", "`dim=-1`"])
def test_a_bare_figure_in_a_code_span_is_found(text: str) -> None:
    assert bare(text) == [(0, text)]


def test_a_code_span_that_quotes_the_pages_code_is_proven_by_it() -> None:
    assert bare("`x[3, 4]` and `x[3, 5]` and `3`", code="y = x[3,4] + 3") == [(0, "`x[3, 5]`"), (0, "`3`")]
    assert bare("`dim=-1`, `1 + x`, `x = 1`", code="f(dim=-10) + 0.1 + x; x = 1.5") == [
        (0, "`dim=-1`"),
        (0, "`1 + x`"),
        (0, "`x = 1`"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "GPT-2, float32, H100, Llama-3.1, x1, W_2 and a 2-D mask",
        "```\n55%<!--= x -->\n```",
        "~~~ python\n55\n~~~",
        "$x_1 + 2$ and\n\n$$\n3 + 4\n$$",
        "[text](page2.md#part-3)\n\n[ref]: https://example.org/55",
        "https://example.org/55 and <https://example.org/55>",
        '<img src="a55.svg" width="55">',
        "1. first\n2. second\n   10. tenth",
        "a note[^1]",
        "# Title {#part-1 .c3}",
        "&#8211;",
        "::: unmasked.masks\n    options:\n      heading_level: 3\n\nText.",
        "text <!-- a comment with 55 -->",
        '--8<-- "CONTRIBUTING.md"',
    ],
)
def test_digits_that_state_nothing_need_no_claim(text: str) -> None:
    assert bare(text) == []


def test_directives_in_code_are_code() -> None:
    found = prose("`55%<!--= x -->` and `{{ x }}`")
    assert (found.claims, found.computed) == ([], [])
    assert found.publish({}) == found.text


def test_a_waiver_covers_the_figure_before_it_and_no_other() -> None:
    text = "in 2017<!--~ year --> and 2018, (Vaswani 2017, 3.2)<!--~ cited -->, [page 3](x.md)<!--~ number -->"
    assert prose(text).waivers == [(0, "year"), (0, "cited"), (0, "number")]
    assert bare(text) == [(0, "2018")]


@pytest.mark.parametrize("waived", ["2017-06-12", "3–5", "12:30", "v1.2/3", "½", "10.48550/arXiv.1706.03762", "§4.2.1"])
def test_a_waiver_covers_all_of_what_has_no_space(waived: str) -> None:
    text = f"14 since {waived}<!--~ reason -->, 15"
    assert prose(text).waivers == [(0, "reason")]
    assert bare(text) == [(0, "14"), (0, "15")]


def test_a_waiver_on_its_own_line_covers_what_it_names_of_the_next_block() -> None:
    text = """
        <!--~ 2017, 3, 1,000, 50%: references -->
        - 2017, section 3, `of 1,000 or 50%`, (2017, 3)
        - 2018, 1,0001, `half of 3 or 4`

        In 2019, section 3
        """
    assert prose(text).waivers == [(0, "2017, 3, 1,000, 50%: references")]
    assert prose(text).problems == []
    assert bare(text) == [(2, "2018"), (2, "1"), (2, "0001"), (2, "`half of 3 or 4`"), (4, "2019"), (4, "3")]


def test_a_table_is_waived_by_what_stands_above_it_or_in_a_cell() -> None:
    text = "<!--~ 1, 2: rows -->\n| 1 | 3 |\n| --- | --- |\n| 2 | 4<!--~ a size --> |"
    assert prose(text).waivers == [(3, "a size"), (0, "1, 2: rows")]
    assert bare(text) == [(1, "3")]


def test_a_comment_line_leaves_no_blank_line_behind() -> None:
    assert prose("one\n<!-- said -->\ntwo <!-- more -->\nthree").publish({}) == "one\ntwo \nthree"


def test_computed_figures_have_a_format_after_the_last_colon() -> None:
    found = prose("{{ x[1:2] }} {{ x :.0%}} {{ d['a:b'] : >4}} {{ x[1:2] :.1f }}")
    said = [("x[1:2]", ""), ("x", ".0%"), ("d['a:b']", ">4"), ("x[1:2]", ".1f")]
    assert [(computed.expression, computed.spec) for computed in found.computed] == said
    assert found.publish(dict(zip(found.computed, ["a", "55%", "c", "d"], strict=True))) == "a 55% c d"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("55%<!--= -->", "<!--= --> needs an expression"),
        ("55%<!--~ -->", "<!--~ --> needs a reason"),
        ("55%<!--= x y -->", "x y is not an expression: invalid syntax. Perhaps you forgot a comma?"),
        ("55%<!--= 0.55 -->", "0.55 takes nothing from the page, so it proves nothing"),
        ("{{ 3 + 4 }}", "3 + 4 takes nothing from the page, so it proves nothing"),
        ("four<!--= len('abcd') -->", "len('abcd') takes nothing from the page, so it proves nothing"),
        ("55% <!--= x -->", "<!--= x --> must directly follow what it speaks of"),
        ("3rd<!--= x -->", "<!--= x --> must directly follow what it speaks of"),
        ("8x<!--= x -->", "<!--= x --> must directly follow what it speaks of"),
        ("1/2/3<!--= x -->", "<!--= x --> must directly follow what it speaks of"),
        *(
            (
                f"1{gap}234<!--= x -->",
                f"1{gap}234 reads as one number or as two: for one write 1,234, for two give 1 a comment, too",
            )
            for gap in (" ", "'", "&nbsp;", "&thinsp;")
        ),
        ("1.234,5<!--= x -->", "<!--= x --> must directly follow what it speaks of"),
        (
            'larger<!--= "larger" if a > b else "smaller" -->',
            'larger is no number: let a cell tagged claims prove it, assert a > b, "...", with the words around larger',
        ),
        ("much<!--~ reason -->", "the waiver (reason) covers no value; remove it"),
        ("<!--~ reason -->\nText.", "the waiver (reason) covers no value; remove it"),
        (
            "<!--~ 3: reason -->\nText.",
            "the waiver (3: reason) covers no value 3 of the block that follows; remove it",
        ),
        (
            "<!--~ 3, 4: reason -->\nIn 3, 4<!--= x --> and (3.1).",
            "the waiver (3, 4: reason) covers no value 4 of the block that follows; remove it",
        ),
        (
            "<!--~ reason -->\n- 3 and `4 of 5`, 3 and 4.",
            "the waiver (reason) must name the values of its block that it covers, as in <!--~ 3, 4, 5: reason -->, "
            "or waive a whole table, <!--~ table: reason -->",
        ),
    ],
)
def test_a_directive_that_cannot_work_says_why(text: str, problem: str) -> None:
    assert prose(f"First.\n\n{text}").problems == [(2, problem)]


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("takes 4 MiB<!--= x -->", "4 MiB"),
        ("takes 1,024\u00a0bytes<!--= x -->", "1,024\u00a0bytes"),
        ("is four times<!--= x --> as wide", "four times"),
        ("is 2-fold<!--= x -->", "2-fold"),
        ("is 3×<!--= x --> as wide", "3×"),
        ("turns by 90°<!--= x -->", "90°"),
        ("rose by 5 percentage points<!--= x -->", "5 percentage points"),
        ("takes two thirds<!--= x -->", "two thirds"),
        ("is three-quarters<!--= x -->", "three-quarters"),
        ("has half a dozen<!--= x -->", "half a dozen"),
        ("has three dozen<!--= x -->", "three dozen"),
        ("takes **at most 4 MiB**<!--= x -->", "at most 4 MiB"),
        ("has 4 heads<!--= x -->", "heads"),
        ("has 4 MiBs<!--= x -->", "MiBs"),
    ],
)
def test_a_unit_that_follows_a_figure_is_part_of_the_claim(text: str, typed: str) -> None:
    (claim,) = prose(text).claims
    assert claim.typed == typed
    assert text[slice(*claim.span)] == typed


def test_a_directive_may_be_broken_anywhere_within_a_string_too() -> None:
    text = 'It is 3<!--= sizes["the\nlongest"]\n+ one --> and {{ sizes["the\n  longest"] :.1f}}.'
    found = read(text)
    assert not found.problems
    assert [claim.expression for claim in found.claims] == ['sizes["the longest"] + one']
    assert [computed.expression for computed in found.computed] == ['sizes["the longest"]']
