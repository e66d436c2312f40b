"""A prompt goes in and four panels come out; any token can be looked at again."""

from __future__ import annotations

import pytest

from tests.browser.conftest import Playground, inspect

PROMPT = "Once upon a time there was a little dragon"
PANELS = ("Attention", "RoPE", "Next token", "KV cache")


def test_generating_fills_all_panels_with_that_run(playground: Playground) -> None:
    assert playground.live("state") == "idle"
    playground.generate(PROMPT, tokens=24)
    assert playground.live("state") == "done"
    assert playground.live("steps") == "24"
    playground.settled()
    run = playground.live("run")
    for part in ("attention", "rope", "nextToken", "kvCache"):
        assert playground.state(f"drawn.{part}.run") == run
    for name in PANELS:
        drawn = playground.pixels(name)
        assert drawn["painted"] > 2000, name
        assert drawn["colours"] > 8, name
        assert len(playground.page.get_by_role("region", name=name, exact=True).locator(".summary").inner_text()) > 20


def test_words_appear_while_they_are_made(playground: Playground) -> None:
    playground.type(PROMPT)
    playground.set("Max new tokens", 200)
    playground.press("Generate")
    playground.until("document.querySelector('#live').dataset.state === 'running'")
    playground.until("Number(document.querySelector('#live').dataset.steps) >= 3")
    playground.until("document.querySelector('#live').dataset.state === 'done'")
    assert playground.state("drawn.frames") >= 3
    chips = playground.page.get_by_role("group", name="Tokens").get_by_role("button")
    assert chips.count() == playground.state("store.tokens.length")


def test_the_text_is_that_of_the_prompt_and_what_was_drawn(playground: Playground) -> None:
    playground.generate(PROMPT, tokens=16)
    texts = playground.page.evaluate("document.querySelector('#live').live.store.tokens.map(token => token.text)")
    assert "".join(texts).startswith(PROMPT)
    assert len(texts) == playground.state("store.promptLength") + 16


# Pressed by the page itself: on a busy machine a click from outside may come when the run has ended.
STOP_AFTER_FOUR = """() => {
  if (Number(document.querySelector('#live').dataset.steps) < 4) return false;
  [...document.querySelectorAll('button')].find((each) => each.textContent.trim() === 'Stop').click();
  return true;
}"""


def test_stop_ends_the_run_and_keeps_what_was_made(playground: Playground) -> None:
    playground.type(PROMPT)
    playground.set("Max new tokens", 480)
    playground.set("Temperature", 2)
    playground.press("Generate")
    playground.until(STOP_AFTER_FOUR)
    playground.until("document.querySelector('#live').dataset.state === 'stopped'")
    steps = int(playground.live("steps"))
    assert 4 <= steps < 480
    playground.settled()
    rows = len(inspect(playground.url, playground.live("run"), 0, 0))
    assert rows == playground.state("store.promptLength") + steps - 1


def test_a_second_generate_replaces_the_first(playground: Playground) -> None:
    playground.type(PROMPT)
    playground.set("Max new tokens", 400)
    playground.press("Generate")
    playground.until("Number(document.querySelector('#live').dataset.steps) >= 3")
    first = playground.live("run")
    playground.generate("The cat and the dog", tokens=10)
    assert playground.live("run") != first
    assert playground.live("state") == "done"
    assert playground.live("steps") == "10"


@pytest.mark.parametrize("step", [0, 7, 15])
def test_clicking_a_token_takes_all_panels_to_its_step(playground: Playground, step: int) -> None:
    playground.generate(PROMPT, tokens=16)
    playground.settled()
    before = {name: playground.pixels(name)["sum"] for name in PANELS}
    position = playground.state("store.promptLength") + step
    chip = playground.page.get_by_role("group", name="Tokens").get_by_role("button").nth(position)
    chip.click()
    playground.settled()
    assert chip.get_attribute("aria-pressed") == "true"
    assert playground.live("step") == str(step)
    assert playground.state("drawn.attention.row") == position - 1
    assert playground.state("drawn.rope.query") == position - 1
    assert playground.state("drawn.nextToken.step") == step
    assert playground.state("drawn.kvCache.positions") == position
    if step < 15:
        after = {name: playground.pixels(name)["sum"] for name in PANELS}
        assert all(before[name] != after[name] for name in PANELS)


def test_a_token_of_the_prompt_was_not_drawn_and_says_so(playground: Playground) -> None:
    playground.generate(PROMPT, tokens=8)
    playground.page.get_by_role("group", name="Tokens").get_by_role("button").nth(2).click()
    playground.settled()
    assert playground.state("drawn.nextToken.given") is True
    assert "prompt" in playground.page.get_by_role("region", name="Next token").inner_text()
    assert int(playground.live("step")) == 2 - playground.state("store.promptLength")


def test_arrow_keys_move_step_layer_and_head(playground: Playground) -> None:
    playground.generate(PROMPT, tokens=12)
    playground.settled()
    live = playground.page.locator("#live")
    live.focus()
    for key, attribute, value in (
        ("ArrowLeft", "step", 10),
        ("ArrowLeft", "step", 9),
        ("ArrowRight", "step", 10),
        ("ArrowDown", "layer", 1),
        ("ArrowDown", "layer", 2),
        ("ArrowUp", "layer", 1),
        ("]", "head", 1),
        ("Shift+ArrowDown", "head", 2),
        ("[", "head", 1),
        ("Home", "position", 0),
    ):
        live.press(key)
        assert playground.state(f"selection.{attribute}") == value, key
    playground.settled()


def test_choosing_layer_and_head_shows_that_heads_own_numbers(playground: Playground) -> None:
    playground.generate(PROMPT, tokens=12)
    playground.settled()
    panel = playground.page.get_by_role("region", name="Attention")
    before = playground.pixels("Attention")["sum"]
    panel.get_by_label("Layer").select_option("3")
    panel.get_by_label("Head").select_option("2")
    playground.settled()
    assert playground.pixels("Attention")["sum"] != before
    drawn = playground.state("drawn.attention")
    exact = inspect(playground.url, playground.live("run"), 3, 2)
    assert drawn["probability"] == pytest.approx(exact[drawn["row"]][drawn["key"]], abs=1e-6)
    assert "layer 3" in panel.locator(".summary").inner_text().lower()


def test_the_pairs_of_rope_add_up_to_the_score_of_the_map(playground: Playground) -> None:
    playground.generate(PROMPT, tokens=12)
    playground.settled()
    rope = playground.state("drawn.rope")
    assert sum(rope["contributions"]) + rope["rest"] == pytest.approx(rope["score"], abs=1e-4)
    exact = inspect(playground.url, playground.live("run"), rope["layer"], rope["head"])
    assert rope["probability"] == pytest.approx(exact[rope["query"]][rope["key"]], abs=1e-6)


def test_the_cache_panel_agrees_with_the_bytes_that_were_measured(playground: Playground) -> None:
    playground.generate(PROMPT, tokens=12)
    playground.settled()
    cache = playground.state("drawn.kvCache")
    assert cache["agree"] is True
    assert cache["total"] == cache["k"] + cache["v"] > 0


def test_every_panel_has_its_numbers_as_a_table(playground: Playground) -> None:
    playground.generate(PROMPT, tokens=8)
    playground.settled()
    for name in PANELS:
        panel = playground.page.get_by_role("region", name=name, exact=True)
        panel.get_by_role("button", name="Table").click()
        assert panel.get_by_role("row").count() > 2, name
        panel.get_by_role("button", name="Table").click()


@pytest.mark.parametrize("name", PANELS)
def test_every_panel_enlarges_to_a_figure(playground: Playground, name: str) -> None:
    playground.generate(PROMPT, tokens=8)
    playground.settled()
    playground.page.get_by_role("region", name=name, exact=True).get_by_role("button", name="Enlarge").click()
    dialog = playground.page.get_by_role("dialog")
    dialog.locator(".main-svg").first.wait_for()
    with playground.page.expect_download() as download:
        dialog.get_by_role("button", name="CSV").click()
    assert download.value.suggested_filename.endswith(".csv")
    dialog.get_by_role("button", name="Close").click()
    dialog.wait_for(state="hidden")
