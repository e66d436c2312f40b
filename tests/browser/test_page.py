"""How the page fits the screen, wears its themes, and keeps visitors apart."""

from __future__ import annotations

import httpx
import pytest

from tests.browser.conftest import PIXELS, Open, Playground

PROMPT = "Once upon a time there was a little dragon"
PANELS = ("Attention", "RoPE", "Next token", "KV cache")
FITS = "[document.documentElement.scrollWidth <= innerWidth, document.documentElement.scrollHeight <= innerHeight]"


def inside(playground: Playground, name: str) -> bool:
    box = playground.page.get_by_role("region", name=name, exact=True).bounding_box()
    view = playground.page.viewport_size
    assert box is not None
    right, bottom = box["x"] + box["width"], box["y"] + box["height"]
    return min(box["x"], box["y"]) >= 0 and right <= view["width"] and bottom <= view["height"]


@pytest.mark.parametrize("size", [(1440, 900), (1920, 1080), (1280, 800)])
def test_four_panels_are_on_one_screen_without_scrolling(tab: Open, size: tuple[int, int]) -> None:
    playground = tab(*size)
    playground.generate(PROMPT, tokens=100)
    assert playground.page.evaluate(FITS) == [True, True]
    assert all(inside(playground, name) for name in PANELS)
    assert playground.page.get_by_role("button", name="Generate").is_visible()


def test_on_a_phone_prompt_and_generate_come_first(tab: Open) -> None:
    playground = tab(390, 844)
    assert playground.page.evaluate(FITS)[0]
    generate = playground.page.get_by_role("button", name="Generate").bounding_box()
    assert generate is not None
    assert generate["y"] + generate["height"] < 844 / 2
    assert not playground.page.get_by_label("Temperature", exact=True).is_visible()
    playground.page.get_by_role("button", name="Sampling").click()
    playground.page.get_by_label("Temperature", exact=True).wait_for()
    playground.generate(PROMPT, tokens=12)
    assert playground.page.evaluate(FITS)[0]
    playground.settled()
    assert all(playground.pixels(name)["painted"] > 1000 for name in PANELS)


def test_panels_follow_a_resized_window(playground: Playground) -> None:
    playground.generate(PROMPT, tokens=12)
    playground.settled()
    wide = playground.pixels("Attention")["painted"]
    playground.page.set_viewport_size({"width": 390, "height": 844})
    playground.until("document.documentElement.scrollWidth <= innerWidth")
    playground.settled()
    playground.page.set_viewport_size({"width": 1440, "height": 900})
    playground.until("document.documentElement.scrollHeight <= innerHeight")
    playground.until(
        """painted => { const canvas = document.querySelector('[role=region][aria-label=Attention] canvas');
          return canvas.getBoundingClientRect().width > 300; }""",
        wide,
    )
    assert all(inside(playground, name) for name in PANELS)


def test_dark_is_switched_on_drawn_and_remembered(playground: Playground) -> None:
    playground.generate(PROMPT, tokens=12)
    playground.settled()
    light = {name: playground.pixels(name)["sum"] for name in PANELS}
    playground.page.locator("#theme").click()
    playground.until("document.body.classList.contains('dark')")
    for name in PANELS:
        playground.until(
            "([name, before, measure]) => eval('(' + measure + ')')"
            "(document.querySelector(`[role=region][aria-label='${name}']`)).sum !== before",
            [name, light[name], PIXELS],
        )
    ground = playground.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(int(part) for part in ground.removeprefix("rgb(").rstrip(")").split(",")) < 64
    playground.visit(playground.url)
    assert playground.page.evaluate("document.body.classList.contains('dark')")


def test_a_reload_starts_afresh_and_works(playground: Playground) -> None:
    playground.generate(PROMPT, tokens=12)
    first = playground.live("run")
    playground.visit(playground.page.url)
    assert playground.live("state") == "idle"
    playground.generate(PROMPT, tokens=6)
    assert playground.live("run") != first
    assert playground.live("steps") == "6"


def test_a_reload_in_the_middle_of_a_run_ends_it(playground: Playground) -> None:
    playground.type(PROMPT)
    playground.set("Max new tokens", 480)
    playground.press("Generate")
    playground.until("Number(document.querySelector('#live').dataset.steps) >= 3")
    playground.visit(playground.page.url)
    playground.generate(PROMPT, tokens=6)
    assert playground.live("state") == "done"


def test_two_visitors_do_not_see_each_other(tab: Open) -> None:
    first, second = tab(), tab()
    first.generate("The cat sat", tokens=8)
    second.generate("A dog ran", tokens=8)
    assert first.live("run") != second.live("run")
    texts = ["".join(token["text"] for token in each.state("store.tokens")) for each in (first, second)]
    assert texts[0].startswith("The cat sat")
    assert texts[1].startswith("A dog ran")


def test_the_model_has_a_page_of_its_own(playground: Playground) -> None:
    playground.page.get_by_role("tab", name="Model").click()
    facts = playground.page.locator("#facts")
    facts.wait_for()
    assert "Parameters" in facts.inner_text()
    assert "Device" in facts.inner_text()
    playground.page.locator("#loss-curve .main-svg").first.wait_for()


def test_the_header_names_model_and_device(playground: Playground) -> None:
    header = playground.page.locator("#masthead").inner_text()
    assert "storyteller" in header
    assert "parameters" in header
    assert "float32" in header or "bfloat16" in header


def test_nothing_is_fetched_from_elsewhere(tab: Open) -> None:
    playground = tab()
    asked: list[str] = []
    playground.page.on("request", lambda request: asked.append(request.url))
    playground.open()
    playground.generate(PROMPT, tokens=6)
    assert asked
    assert not [url for url in asked if not url.startswith((playground.url, "data:", "blob:"))]


def test_the_primary_button_can_be_read(tab: Open) -> None:
    for theme in ("light", "dark"):
        playground = tab(theme=theme)
        style = playground.page.get_by_role("button", name="Generate").evaluate(
            "node => [getComputedStyle(node).color, getComputedStyle(node).backgroundColor]"
        )
        assert contrast(*style) >= 4.5


def contrast(first: str, second: str) -> float:
    """WCAG 2.1 contrast ratio of two rgb() colours."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in colour.removeprefix("rgb(").rstrip(")").split(",")]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_the_app_stays_alive(app_url: str) -> None:
    assert httpx.get(f"{app_url}/livez").json() == {"status": "alive"}
