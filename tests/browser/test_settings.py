"""The settings column: sliders that re-cut at once, examples, keys, and sentences for what cannot be done."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

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


def open_group(playground: Playground, name: str) -> None:
    playground.page.locator("button.label-wrap", has_text=name).click()


def test_a_preset_sets_folded_settings_too_and_shows_that_it_holds(playground: Playground) -> None:
    playground.press("Creative")
    playground.until("document.querySelector('#preset-creative').getAttribute('aria-pressed') === 'true'")
    playground.until("document.querySelector('#group-penalties > .label-wrap').dataset.on === '1 on'")
    playground.generate(PROMPT, tokens=5)
    decoding = playground.state("store.begin.decoding")
    names = ("temperature", "min_p", "xtc_probability", "dry_multiplier")
    assert [decoding[name] for name in names] == [1.2, 0.05, 0.5, 0.8]
    playground.press("Neutral")
    playground.until("document.querySelector('#live').live.drawn.nextToken.whatIf")
    assert [stage["name"] for stage in playground.state("drawn.nextToken.stages")] == ["softmax"]
    expect(playground.page.get_by_role("spinbutton", name="Temperature")).to_have_value("1")


def test_the_order_is_changed_with_buttons_and_arrow_keys(playground: Playground) -> None:
    playground.generate(PROMPT, tokens=6, Top_k=20, Top_p=0.9)
    open_group(playground, "Order of stages")
    button = playground.page.get_by_role("button", name="Move Top-p earlier", exact=True)
    button.click()
    expect(button).to_be_focused()
    playground.page.keyboard.press("ArrowUp")
    expect(playground.page.locator(".order-said")).to_have_text("Top-p is stage 13 of 21.")
    playground.until("document.querySelector('#live').live.drawn.nextToken.whatIf")
    stages = [stage["name"] for stage in playground.state("drawn.nextToken.stages")]
    assert stages == ["softmax", "temperature", "top_p", "top_k"]
    playground.press("transformers")
    playground.until("!document.querySelector('#live').live.drawn.nextToken.whatIf")


def test_the_order_is_changed_by_dragging_and_reaches_the_run(playground: Playground) -> None:
    open_group(playground, "Order of stages")
    rows = playground.page.locator(".order-list li")
    expect(rows).to_have_count(21)
    rows.last.scroll_into_view_if_needed()
    temperature = playground.page.locator('[data-stage="temperature"]').bounding_box()
    last = rows.last.bounding_box()
    assert temperature
    assert last
    mouse = playground.page.mouse
    mouse.move(temperature["x"] + 60, temperature["y"] + 10)
    mouse.down()
    mouse.move(last["x"] + 60, last["y"] + 8, steps=6)
    mouse.move(last["x"] + 60, last["y"] + 24, steps=3)
    mouse.up()
    expect(rows.last).to_have_attribute("data-stage", "temperature")
    playground.generate(PROMPT, tokens=4)
    assert playground.state("store.begin.decoding")["order"][-1] == "temperature"
    playground.press("llama.cpp")
    expect(rows.nth(-2)).to_have_attribute("data-stage", "dynatemp_range")


def test_stages_that_are_off_are_dim_in_the_list(playground: Playground) -> None:
    open_group(playground, "Order of stages")
    expect(playground.page.locator(".order-list li:not(.order-off)")).to_have_count(1)
    playground.set("Min-p", 0.1)
    expect(playground.page.locator(".order-list li:not(.order-off)")).to_have_count(2)


def test_typed_words_are_read_recut_and_reach_the_run(playground: Playground) -> None:
    playground.generate(PROMPT, tokens=6)
    open_group(playground, "Words & stopping")
    playground.page.get_by_label("Banned words").fill("who\ndragonfly")
    playground.page.get_by_label("Banned words").blur()
    expect(playground.page.locator(".words-note li")).to_have_count(2)
    expect(playground.page.locator(".words-note li").nth(1)).to_contain_text("tokens")
    playground.until("document.querySelector('#live').live.drawn.nextToken.whatIf")
    assert "bad_words_ids" in [stage["name"] for stage in playground.state("drawn.nextToken.stages")]
    playground.generate(PROMPT, tokens=6)
    assert len(playground.state("store.begin.decoding")["bad_words_ids"]) >= 3
    assert not playground.state("drawn.nextToken.whatIf")


def test_a_word_that_is_both_forced_and_banned_gets_a_sentence_and_keeps_the_run(playground: Playground) -> None:
    playground.generate(PROMPT, tokens=5)
    run = playground.live("run")
    open_group(playground, "Words & stopping")
    playground.page.get_by_label("Banned words").fill("moon")
    playground.page.get_by_label("Forced words").fill("moon")
    playground.press("Generate")
    playground.until(f"{ALERT}.includes('take it out of one of the lists')")
    expect(playground.page.locator(".words-note.refused")).to_contain_text("moon")
    assert playground.live("run") == run


def test_a_stop_string_ends_the_run_and_the_page_says_which(playground: Playground) -> None:
    open_group(playground, "Words & stopping")
    playground.page.get_by_label("Stop strings").fill(".")
    playground.generate(PROMPT, tokens=60)
    assert playground.state("store.reason") == 'The text reached the stop string ".".'


def test_sliders_recut_the_stages_of_a_past_step(playground: Playground) -> None:
    playground.generate(PROMPT, tokens=12)
    playground.page.get_by_role("button", name="Stages", exact=True).click()
    playground.page.keyboard.press("ArrowLeft")
    playground.until("!!document.querySelector('#live').live.drawn.nextToken.pastFall")
    playground.until("document.querySelector('#live').live.drawn.nextToken.step === 10")
    playground.set("Top-k", 7)
    playground.until("document.querySelector('#live').live.drawn.nextToken.fall?.stages.length === 3")
    expect(playground.page.locator("button.lv-fall-row").last).to_contain_text("top-k 7")
    expect(playground.page.locator(".lv-draw")).to_have_count(2)
