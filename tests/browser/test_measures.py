"""The Measures page: a text scored and read token by token, settings compared, stopped, and refused."""

from __future__ import annotations

from tests.browser.conftest import Open

DONE = "document.querySelector('#measures').measures.{part}.section.stop.disabled"


def test_a_pasted_text_is_scored_and_saved(tab: Open) -> None:
    opened = tab()
    page = opened.page
    page.get_by_role("tab", name="Measures").click()
    page.get_by_label("Text to score").fill("Once upon a time there was a purple xylophone.\nThe end.")
    page.get_by_role("button", name="Score", exact=True).click()
    page.locator("#measures .ms-plot .main-svg").first.wait_for()
    tokens = page.get_by_role("group", name="Scored tokens").get_by_role("button")
    assert tokens.count() > 8
    tokens.nth(3).click()
    about = page.locator("#measures .ms-about")
    assert "nats" in about.inner_text()
    page.get_by_label("Unit of surprisal").select_option("bits")
    tokens.nth(3).click()
    assert "bits" in about.inner_text()
    assert "bits a token" in page.locator("#measures .ms-totals").inner_text()
    with page.expect_download() as saving:
        page.get_by_role("button", name="CSV").click()
    assert saving.value.suggested_filename == "text-surprisal.csv"
    page.get_by_label("Text to score").fill("")
    page.get_by_role("button", name="Score", exact=True).click()
    page.get_by_text("The text is empty").first.wait_for()


def test_settings_are_compared_and_can_be_stopped(tab: Open) -> None:
    opened = tab(width=390, height=844)
    page = opened.page
    page.get_by_role("tab", name="Measures").click()
    page.get_by_label("Samples of each").fill("2")
    page.get_by_label("Tokens of each").fill("12")
    page.get_by_label("Use Setting D").uncheck()
    page.get_by_role("button", name="Draw samples").click()
    table = page.get_by_role("group", name="Measures of the settings")
    table.get_by_role("row", name="samples 2 2 2").wait_for()
    opened.until(DONE.format(part="comparison"))
    assert table.get_by_role("columnheader").all_inner_texts() == ["Measure", "Setting A", "Setting B", "Setting C"]
    row = table.get_by_role("row", name="self-BLEU").inner_text().split()
    assert row[1] == "1.000"  # greedy
    page.get_by_label("Samples of each").fill("16")
    page.get_by_label("Tokens of each").fill("80")
    page.get_by_role("button", name="Draw samples").click()
    opened.until("!" + DONE.format(part="comparison"))
    page.get_by_role("region", name="Compare settings").get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped after").wait_for()
    page.get_by_label("Temperature, Setting A").fill("")
    page.get_by_role("button", name="Draw samples").click()
    page.get_by_text("temperature must be a number").wait_for()
