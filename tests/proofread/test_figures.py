import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofread.pages.numbers import WORDS, Number, Typed, Value, correction


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("55%", 0.5512),
        ("12.345 %", 0.12345),
        ("5.74", 5.7351),
        (".94", 0.943),
        ("-0.3", -0.31),
        ("−0.31", -0.3149),
        ("+2", 2),
        ("25,123", 25123),
        ("25\u202f123", 25123),
        ("6e-8", 6.2e-8),
        ("1.0e-7", 9.96e-8),
        ("3·10⁻⁷", 3.4e-7),
        ("3 × 10⁻⁷", 3.4e-7),
        ("10⁻⁷", 1.2e-7),
        (r"3 \cdot 10^{-7}", 3.4e-7),
        ("three", 3),
        ("Twelve", 12),
        ("(11, 50)", [11, 50]),
        ("(3,)", [3]),
        ("torch.Size([2, 3])", [2, 3]),
        ("3 × 4", [3, 4]),
        ("[0.1, −0.22]", [0.1, -0.224]),
        ("[[1, 2], [3, 4]]", [[1, 2], [3, 4]]),
        ("(ship, crew)", ["ship", "crew"]),
        ("larger", True),
        ("False", False),
        ("Ship", "ship"),
        ("“ship”", "ship"),
        ("torch.float32", "torch.float32"),
        ("2.13.0", "2.13.0"),
        ("None", None),
        ("nan", math.nan),
        ("−∞", -math.inf),
        ("0.00", 0.001),
        ("0", 0.0),
        ("1", 1.02),
        ("3", 3.14),
        ("14", 14.4),
        ("6%", 0.0641),
        ("one", 1.0000001),
        ("twenty", 20),
        ("half", 0.502),
        ("A third", 0.3333),
        ("third", 3),
        ("two thirds", 2 / 3),
        ("4/9", 4 / 9),
        ("4⁄9", 4 / 9),
        ("½", 0.5),
        ("2½", 2.5),
        ("2 1/2", 2.5),
        ("1\u00a0234", 1234),
        ("Three-quarters", 0.75),
        ("twice", 2.01),
        ("a dozen", 12),
        ("dozens", 36),
        ("half a dozen", 6),
        ("three dozen", 36),
        ("4 kilobytes", 4000),
        ("hundreds", 640.0),
        ("tenth", 10),
        ("a tenth", 0.1),
        ("4 MiB", 4 * 2**20),
        ("4 kB", 4000),
        ("1.5 ms", 0.00152),
        ("2 hours", 7200),
        ("90 degrees", math.pi / 2),
        ("5 percentage points", 0.05),
        ("2 million", 2_000_000),
        ("Four times", 4.0),
        ("2-fold", 2),
        ("4 MiB", "4 MiB"),
        ("at most 3", 2),
        ("up to 0.36", 0.3551),
        ("up to 25%", 0.25),
        ("over 4 MiB", 5 * 2**20),
        ("about 3", 3.1),
        ("nearly 3", 2.96),
        ("about 2400", 2441),
        ("about 2400", 2350),
        ("About 2,400", 2441.5),
        ("~ 2400", 2441),
        ("≈ 40%", 0.415),
        ("nearly 40 %", 0.387),
        ("almost half", 0.48),
        ("about three", 3.1),
        ("roughly 3.1 million", 3_120_000),
        ("about 0.5", 0.549),
        ("about 3e5", 310_000.0),
        ("about 0", 0),
        ("array([0.5, 0.25])", [0.5, 0.25]),
        ("array([[0.5 , 0.25],\n       [1.  , 2.  ]])", [[0.5, 0.25], [1.0, 2.0]]),
        ("[[0.5  0.25]\n [1.   2.  ]]", [[0.5, 0.25], [1.0, 2.0]]),
        ("[0.5 0.25]", [0.5, 0.25]),
        ("[1. 2.]", [1.0, 2.0]),
        ("[1.e-05 nan inf]", [1e-5, math.nan, math.inf]),
        ("[ True False]", [True, False]),
        ("np.float64(0.5)", 0.5),
        ("np.True_", True),
        ("tensor(0.5000, grad_fn=<SumBackward0>)", 0.5),
        ("array(['a', 'b'], dtype='<U1')", ["a", "b"]),
        ("array([], dtype=float64)", []),
        ("[the ship]", ["the ship"]),
    ],
)
def test_a_figure_that_says_its_value_needs_no_correction(typed: str, value: Value) -> None:
    assert correction(typed, value) is None


@pytest.mark.parametrize(
    ("typed", "value", "expected"),
    [
        ("55%", 0.541, "54%"),
        ("5.74", 5.746, "5.75"),
        (".94", 0.953, ".95"),
        ("−0.31", -0.42, "−0.42"),
        ("-0.31", 0.31, "0.31"),
        ("25,000", 25123, "25,123"),
        ("3·10⁻⁷", 3.6e-6, "4·10⁻⁶"),
        ("10⁻⁷", 2.2e-8, "2 × 10⁻⁸"),
        (r"3 \cdot 10^{-7}", 4.2e-7, r"4 \cdot 10^{-7}"),
        ("Three", 4, "Four"),
        ("three", 3.5, "3.5"),
        ("(11, 50)", [50, 11], "(50, 11)"),
        ("(11, 50)", [11, 50, 1], "(11, 50, 1)"),
        ("3 × 4", [4, 3], "4 × 3"),
        ("larger", False, "False"),
        ("0.55", -0.001, "0.00"),
        ("1_000", 25123, "25_123"),
        ("three", 12345678, "12345678"),
        ("True", False, "False"),
        ("ship", "crew", "crew"),
        ("55", math.nan, "nan"),
        ("nan", 1.0, "1"),
        ("SHIP", "ship", "ship"),
        ("1", 0.55, "0.55"),
        ("3", 3.2, "3.2"),
        ("one", 1.001, "1.001"),
        ("half", 0.55, "0.55"),
        ("two thirds", 0.5, "0.5"),
        ("twice", 3, "3"),
        ("4/9", 0.5, "0.5"),
        ("4/0", 0.5, "0.5"),
        ("1½", 0.5, "0.5"),
        ("1 1/2", 0.5, "0.5"),
        ("dozens", 12, "12"),
        ("hundreds", 20, "20"),
        ("a dozen", 11, "11"),
        ("third", 2, "2"),
        ("third", 0.25, "0.25"),
        ("4 GiB", 4 * 2**20, "0.00390625 GiB"),
        ("4.0 MiB", 5 * 2**20, "5.0 MiB"),
        ("4 mib", 4, "4"),
        ("1.5 ms", 1.5, "1500.0 ms"),
        ("4 times", 3, "3 times"),
        ("4 MiB", "4 GiB", "4 GiB"),
        ("at most 3", 4, "4"),
        ("up to 0.63", 0.3551, "up to 0.36"),
        ("up to 0.36", 0.3651, "up to 0.37"),
        ("over 3", 2, "2"),
        ("nearly 3", 3.04, "over 3"),
        ("about 3", 4, "about 4"),
        ("about 2400", 2451, "about 2500"),
        ("about 2400", 2349, "about 2300"),
        ("about 2400", 71234, "about 71000"),
        ("about 2400", 13, "about 13"),
        ("about 2.50", 2.512, "about 2.51"),
        ("about 40 %", 0.4412, "about 44 %"),
        ("nearly 40%", 0.405, "over 40%"),
        ("almost half", 0.45, "almost 0.45"),
        ("about 0", 0.1, "about 0.1"),
        ("array([0.5 , 0.26])", [0.5, 0.25], "array([0.5 , 0.25])"),
        ("[[0.5 0.25]\n [1.  3. ]]", [[0.5, 0.25], [1.0, 2.0]], "[[0.5 0.25]\n [1.  2.0 ]]"),
        ("np.float64(0.51)", 0.5, "np.float64(0.50)"),
        ("np.False_", True, "True"),
        ("array([0.5])", [0.5, 0.25], "array([0.5, 0.25])"),
        ("333,724", [333725.2], "333,725"),
        ("[1,000, 333,724]", [1000.2, 333725.2], "[1,000, 333,725]"),
        ("(12,128)", [12, 129], "(12,129)"),
        ("[0.5 0.25]", [[0.5, 0.25], [1.0, 2.0]], "[[0.5, 0.25] [1, 2]]"),
        ("share", [0.5, 0.25], "[0.5, 0.25]"),
    ],
)
def test_a_wrong_figure_is_corrected_in_the_form_it_was_typed(typed: str, value: Value, expected: str) -> None:
    assert correction(typed, value) == expected


def test_a_bare_zero_claims_exactly_nothing() -> None:
    assert correction("0", 3e-7) == "3e-07"
    assert correction("0%", 0.004) == "0.004"


def test_one_unit_is_allowed_only_next_to_a_rounding_edge() -> None:
    assert correction("0.1235", 0.1234497) is None  # within 5e-7 of the edge at 0.12345
    assert correction("0.1235", 0.1234491) == "0.1234"
    # The allowance shrinks with the unit, or it would swallow small figures whole.
    assert correction("6e-8", 5.4e-8) == "5e-8"


@given(st.floats(-1e6, 1e6), st.integers(0, 6))
def test_a_rounded_value_is_its_own_figure_and_the_next_one_is_not(value: float, places: int) -> None:
    typed = f"{value:.{places}f}"
    if places or abs(Decimal(typed)) >= 10:  # a digit alone may not stand for what is far from it
        assert correction(typed, value) is None
    unit = Decimal(1).scaleb(-places)
    for wrong in (Decimal(typed) + 2 * unit, Decimal(typed) - 2 * unit):
        assert correction(f"{wrong:f}", value) is not None


@given(st.floats(1e-12, 1e12), st.integers(0, 5))
def test_a_value_written_in_the_form_of_a_number_is_said_by_it(value: float, places: int) -> None:
    form = Number.parse(f"{1.5:.{places}e}")
    assert form is not None
    written = Number.parse(form.write(Decimal(value)))
    assert written is not None
    assert written.says(value)


FORMS = st.one_of(
    st.integers(0, 10**7).map(str),
    st.integers(0, 10**7).map("{:,}".format),
    st.integers(0, 10**7).map("{:_}".format),
    st.integers(0, 10**7).map(lambda n: f"{n:,}".replace(",", "\u202f")),
    st.decimals(-999, 999, places=2).map(str),
    st.integers(0, 100).map("{}%".format),
    st.decimals(0, 100, places=1).map("{} %".format),
    st.floats(0.001, 10).map("{:.3e}".format),
    st.sampled_from([*WORDS, "Seven", "3 × 10⁻⁷", "10^3", "1.5 × 10^{-3}", "2·10⁵", "−3", "+0.5", ".25", "−0.0", "0"]),
)


@given(FORMS | st.just("2 × 3"), st.floats(-(10**6), 10**6) | st.integers(-(10**6), 10**6))
def test_a_correction_says_what_the_value_is(typed: str, value: float) -> None:
    corrected = correction(typed, value)
    assert corrected is None or correction(corrected, value) is None


def test_an_array_that_leaves_numbers_out_is_refused() -> None:
    assert (
        Typed.parse("array([0., 0.1, ..., 9.9])")
        .refused([0.0, 0.1, 9.9])
        .startswith("leaves numbers out: type all of them")
    )
    assert Typed.parse("[0. 0.1]").refused([0.0, 0.1]) == ""
    assert Typed.parse("and so on ...").refused("and so on ...") == ""
    assert Typed.parse("(A|B)").refused(0.25) == "holds no number: let the comment directly follow what says the number"


@pytest.mark.parametrize(
    ("typed", "value", "new"),
    [
        ("60°", math.radians(61), "61°"),
        ("4 MiB", 5 * 2**20, "5 MiB"),
        ("10-fold", 12, "12-fold"),
        ("2.13", "2.15", "2.15"),
        ("2.13", "a word", None),
        ("4/9", 0.5, None),
        ("about 2400", 2613, "about 2600"),
        ("About 2400", 2613, "About 2600"),
        ("about 2400", 2441, None),
        ("nearly 40%", 0.405, None),  # another word is for the author to choose
        ("nearly 40%", 0.37, "nearly 37%"),
        ("[0.5 0.26]", [0.5, 0.25], "[0.5 0.25]"),
        ("np.float64(0.51)", 0.5, "np.float64(0.50)"),
        (
            "[[0.5 0.25]\n [1.0 3.0]]",
            [[0.5, 0.25], [1.0, 2.0]],
            "[[0.5 0.25] [1.0 2.0]]",
        ),  # on one line, as the page has marks before others
    ],
)
def test_a_figure_is_mended_in_its_form_and_its_words_stay(typed: str, value: Value, new: str | None) -> None:
    assert Typed.parse(typed).mended(value) == new


@given(st.floats(1, 1e9), st.integers(1, 3))
def test_what_is_told_of_a_figure_that_is_about_something_holds(value: float, digits: int) -> None:
    typed = f"about {float(f'{value:.{digits - 1}e}') * 3:.0f}"
    told = correction(typed, value)
    assert told is not None
    assert correction(told, value) is None
