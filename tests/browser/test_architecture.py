"""The Architecture page in a browser: designs drawn and compared, refusals, a tiny design opened in the playground."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.conftest import Open, Playground

SHOWN = "document.querySelector('#architecture')?.dataset.state === 'shown'"


def visit(playground: Playground) -> Any:
    playground.page.get_by_role("tab", name="Architecture").click()
    playground.until(SHOWN)
    return playground.page.get_by_role("region", name="Architecture", exact=True)


def choose(playground: Playground, label: str, value: str) -> None:
    playground.page.get_by_label(label, exact=True).select_option(value)
    playground.until(SHOWN)


def summary(playground: Playground, words: str) -> None:
    playground.until("words => document.querySelector('#architecture .summary').textContent.includes(words)", words)


def test_designs_are_drawn_counted_and_compared(playground: Playground) -> None:
    page = visit(playground)
    choose(playground, "Preset of design A", "LLaMA-2 7B")
    choose(playground, "Compare with design B", "LLaMA-2 70B")
    summary(playground, "LLaMA-2 7B: 6,738,415,616 parameters; LLaMA-2 70B: 68,976,648,192 parameters")
    boxes = page.get_by_role("img", name="Design A, LLaMA-2 7B").locator("text").all_text_contents()
    assert "≠ Multi-head attention" in boxes
    assert "RMSNorm" in boxes, "what is the same is not marked"
    assert "T × 4,096" in boxes
    sums = page.get_by_role("region", name="Sums, side by side").inner_text()
    assert "2.00 GiB" in sums
    assert page.locator(".arch-figures .main-svg").count() >= 3
    choose(playground, "Compare with design B", "")
    playground.until("!document.querySelector('[aria-label=\"Design B\"] svg')")


def test_a_switch_that_cannot_be_is_refused_in_words_and_taken_back(playground: Playground) -> None:
    page = visit(playground)
    choose(playground, "Preset of design A", "LLaMA-2 7B")
    design = page.get_by_role("article", name="Design A", exact=True)
    design.get_by_text("Switches").press("Enter")
    heads = design.get_by_label("Key-value heads")
    heads.fill("5")
    heads.press("Enter")
    design.get_by_role("alert").get_by_text("must be a multiple of num_key_value_heads (5)").wait_for()
    design.get_by_role("button", name="Back to the preset").click()
    playground.until("document.querySelector('#arch-A-num_key_value_heads').value === '32'")
    assert design.get_by_role("alert").inner_text() == ""


def test_claims_and_experiments_stand_below_with_their_commands(playground: Playground) -> None:
    page = visit(playground)
    assert "135" in page.get_by_role("region", name="Common claims, checked").first.inner_text()
    experiments = page.get_by_role("region", name="Experiments")
    assert experiments.get_by_role("article").count() == 7
    assert "python -m models.experiments positions" in experiments.inner_text()
    playground.until("document.querySelectorAll('.arch-experiment .main-svg').length >= 7")


def test_a_tiny_design_opens_in_the_playground(playground: Playground) -> None:
    page = visit(playground)
    choose(playground, "Preset of design A", "BLOOM 560M")
    page.get_by_role("article", name="Design A", exact=True).get_by_role("button", name="Open a tiny one").click()
    playground.until("document.querySelector('#live').dataset.state === 'done'")
    assert "BLOOM 560M, made small" in playground.page.locator("#masthead").inner_text()
    rope = playground.page.get_by_role("region", name="RoPE", exact=True).inner_text()
    assert "ALiBi" in rope
    assert playground.pixels("Attention")["painted"] > 1000
    playground.generate("The cat sat", tokens=4)
    assert "storyteller" in playground.page.locator("#masthead").inner_text()


@pytest.mark.parametrize(("width", "height", "theme"), [(390, 844, "light"), (1440, 900, "dark")])
def test_the_page_fits(tab: Open, width: int, height: int, theme: str) -> None:
    playground = tab(width, height, theme)
    visit(playground)
    assert playground.page.evaluate("document.documentElement.scrollWidth") <= width
