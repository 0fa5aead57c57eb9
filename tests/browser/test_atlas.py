"""The atlas in a browser: without a script the whole table and its choices; with one, it is sorted and searched."""

from .conftest import Open

PAGE = "pytorch/atlas/"
ROWS = "[...document.querySelectorAll('.atlas tbody tr')]"
SHOWN = f"() => {ROWS}.filter((row) => row.checkVisibility()).map((row) => row.id)"


def test_without_javascript_the_table_is_whole_and_a_trait_can_be_chosen(without_scripts: Open) -> None:
    page = without_scripts(PAGE)
    rows = page.locator(".atlas tbody tr")
    every = rows.count()
    assert rows.filter(visible=True).count() == every > 100
    page.get_by_label("Trait or trap").select_option(value="t-sink")
    assert 0 < rows.filter(visible=True).count() < every / 4
    assert page.locator("#gpt_oss").is_visible()
    assert not page.locator("#llama").is_visible()


def test_the_table_is_searched_and_sorted(opened: Open) -> None:
    page = opened(PAGE)
    every = page.evaluate(SHOWN)
    page.get_by_label("Name").fill("gemma")
    found = page.evaluate(SHOWN)
    assert found == [name for name in every if "gemma" in name]
    assert page.locator(".atlas output").text_content() == f"{len(found)} of {len(every)} models"
    page.get_by_label("Name").fill("")
    year = page.get_by_role("button", name="Year")
    year.click()
    years = page.locator(".atlas tbody td:nth-child(3)").all_text_contents()
    assert years == sorted(years)
    year.click()
    assert page.locator(".atlas tbody td:nth-child(3)").all_text_contents() == sorted(years, reverse=True)


def test_on_a_phone_a_model_is_a_card_whose_lines_say_what_they_are(on_phone: Open) -> None:
    page = on_phone(PAGE)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    label = page.locator("#gpt_oss td:nth-child(4)").evaluate("(cell) => getComputedStyle(cell, '::before').content")
    assert "Heads" in label
