"""The settings column: sliders that re-cut at once, examples, keys, and sentences for what cannot be done."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.conftest import Playground

PROMPT = "Once upon a time there was a little dragon"
ALERT = "document.querySelector('#notice [role=alert]').textContent"


def test_a_slider_recuts_the_shown_distribution_without_a_new_run(playground: Playground) -> None:
    playground.generate(PROMPT, tokens=8)
    playground.settled()
    run, before = playground.live("run"), playground.pixels("Next token")["sum"]
    assert playground.state("drawn.nextToken.whatIf") is False
    playground.set("Top-k", 1)
    playground.until("document.querySelector('#live').live.drawn.nextToken.whatIf")
    rows = playground.state("drawn.nextToken.rows")
    assert [row["final"] for row in rows if row["final"] > 0] == [pytest.approx(1)]
    assert playground.pixels("Next token")["sum"] != before
    assert playground.live("run") == run
    playground.set("Top-k", 0)
    playground.until("!document.querySelector('#live').live.drawn.nextToken.whatIf")


def test_temperature_zero_leaves_one_candidate(playground: Playground) -> None:
    playground.generate(PROMPT, tokens=8)
    playground.settled()
    playground.set("Temperature", 0)
    playground.until("document.querySelector('#live').live.drawn.nextToken.whatIf")
    rows = playground.state("drawn.nextToken.rows")
    assert max(rows, key=lambda row: row["raw"])["final"] == pytest.approx(1)


def test_settings_reach_the_run(playground: Playground) -> None:
    playground.set("Seed", 11)
    playground.generate(PROMPT, tokens=6, Temperature=0.5, Top_k=7)
    decoding = playground.state("store.begin.decoding")
    assert [decoding[name] for name in ("seed", "temperature", "top_k", "max_new_tokens")] == [11, 0.5, 7, 6]


def test_the_same_seed_gives_the_same_text_and_another_one_another(playground: Playground) -> None:
    def text() -> str:
        return "".join(token["text"] for token in playground.state("store.tokens"))

    playground.generate(PROMPT, tokens=16)
    first = text()
    playground.generate(PROMPT, tokens=16)
    assert text() == first
    playground.press("New seed")
    playground.until("document.querySelector('#seed input').value !== '0'")
    playground.generate(PROMPT, tokens=16)
    assert text() != first


def test_an_example_is_one_click(playground: Playground) -> None:
    example = playground.page.get_by_role("group", name="Examples").get_by_role("button").nth(1)
    prompt = example.get_attribute("data-prompt") or ""
    example.click()
    playground.until("document.querySelector('#live').dataset.state === 'done'")
    assert playground.page.get_by_label("Prompt").input_value() == prompt
    given = playground.state("store.tokens")[: playground.state("store.promptLength")]
    assert "".join(token["text"] for token in given) == prompt


def test_control_enter_generates(playground: Playground) -> None:
    playground.type(PROMPT)
    playground.set("Max new tokens", 5)
    playground.page.get_by_label("Prompt").press("Control+Enter")
    playground.until("document.querySelector('#live').dataset.state === 'done'")
    assert playground.page.get_by_label("Prompt").input_value() == PROMPT


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        ("", "empty"),
        ("word " * 20_000, "100,000 characters"),
        ("word " * 900, "tokens"),
    ],
)
def test_a_bad_prompt_gets_a_sentence_and_stays_in_the_box(playground: Playground, prompt: str, sentence: str) -> None:
    playground.generate(PROMPT, tokens=5)
    run = playground.live("run")
    playground.type(prompt)
    playground.press("Generate")
    playground.until(f"words => {ALERT}.includes(words)", sentence)
    assert playground.page.get_by_role("alert").first.is_visible()
    assert playground.page.get_by_label("Prompt").input_value() == prompt
    assert playground.live("run") == run
    assert "Traceback" not in playground.page.content()
    playground.generate(PROMPT, tokens=5)
    playground.until(f"{ALERT} === ''")


def test_the_same_mistake_twice_is_told_twice(playground: Playground) -> None:
    for _ in range(2):
        playground.type("")
        playground.press("Generate")
        playground.until(f"{ALERT}.includes('empty')")
        playground.generate(PROMPT, tokens=2)
        playground.until(f"{ALERT} === ''")


@pytest.mark.parametrize(
    "prompt",
    [
        "🐉 said: 👋🏽",
        "שלום עולם, היה היה דרקון",
        "bell \x07 escape \x1b[31m",
        "<img src=x onerror=alert(1)>${1+1}{{x}}",
    ],
)
def test_unusual_text_is_text(playground: Playground, prompt: str) -> None:
    dialogs: list[Any] = []
    playground.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    playground.generate(prompt, tokens=5)
    assert playground.live("state") == "done"
    assert not dialogs
    assert playground.page.locator("#live img").count() == 0


def test_sliders_are_heard_by_their_names(playground: Playground) -> None:
    for name in ("Temperature", "Top-k", "Top-p", "Min-p", "Repetition penalty", "Max new tokens"):
        assert playground.page.get_by_role("slider", name=name, exact=True).count() == 1
