"""What the component shows of a run, told by its own account of what it drew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from models import Loaded
from models.head_scores import HeadScore
from playground import Decoding
from tests.web.live_page import LivePage, Tape, live_page

PROMPT = "Hello <b>there</b>"
SETTINGS = Decoding(max_new_tokens=40, temperature=0.9, top_k=30, top_p=0.95, repetition_penalty=1.2, seed=3)
PANELS = ("Attention", "RoPE", "Next token", "KV cache")


@pytest.fixture(scope="module")
def tape(loaded: Loaded) -> Tape:
    return Tape(loaded, PROMPT, SETTINGS)


@pytest.fixture(scope="module")
def shown(browser: Any, tape: Tape) -> Iterator[LivePage]:
    with live_page(browser, tape) as opened:
        opened.tell_all()
        yield opened


@pytest.fixture
def live(shown: LivePage) -> LivePage:
    """The finished run, selection and settings at their start."""
    shown.get(
        "() => { app.whatIf(null); app.selection.set({ layer: 0, head: 0, key: null, pair: null, stage: null }); }"
    )
    shown.pick(tape_end(shown.tape))
    return shown


def tape_end(tape: Tape) -> int:
    return len(tape.run.token_ids) - 1


def test_before_a_run_every_panel_says_what_will_appear(browser: Any, tape: Tape) -> None:
    with live_page(browser, tape) as live:
        live.page.wait_for_function("() => !app.pending")
        for name in PANELS:
            assert len(live.page.get_by_role("region", name=name).inner_text()) > 60
        assert live.get("() => document.getElementById('live').dataset.state") == "idle"
        heard = "prompts = []; document.addEventListener('playground:example', (e) => prompts.push(e.detail.prompt))"
        live.get(f"() => {{ window.{heard}; }}")
        live.page.get_by_role("group", name="Tokens").get_by_role("button").click()
        assert live.get("() => prompts.length") == 1


def test_tokens_are_buttons_with_their_text_and_never_markup(live: LivePage, tape: Tape) -> None:
    chips = live.page.get_by_role("group", name="Tokens").get_by_role("button")
    assert chips.count() == len(tape.run.token_ids)
    assert live.page.locator("#live b").all_inner_texts() == ["Done"]
    assert chips.nth(6).inner_text() == "<"


def test_panels_follow_the_selected_token_with_the_runs_numbers(live: LivePage, tape: Tape) -> None:
    run = tape.run
    for step in (0, 17, 39):
        live.pick(run.prompt_length + step)
        drawn = live.get("() => app.drawn")
        row = run.prompt_length + step - 1
        pattern = run.attention(0, 0)[row, : row + 1]
        assert drawn["attention"]["row"] == drawn["rope"]["query"] == row
        assert drawn["attention"]["probability"] == pytest.approx(float(pattern.max()), abs=1e-7)
        positive = pattern[pattern > 0].astype(np.float64)
        assert drawn["attention"]["entropy"] == pytest.approx(float(-(positive * np.log(positive)).sum()), abs=1e-5)
        assert drawn["nextToken"]["step"] == step
        assert drawn["kvCache"]["positions"] == row + 1


def test_the_score_is_the_sum_of_the_pairs_and_leads_to_the_probability(live: LivePage, tape: Tape) -> None:
    run, row, key = tape.run, tape.run.rows - 1, 4
    live.get("key => app.selection.set({ layer: 1, head: 3, key })", key)
    live.settled()
    rope = live.get("() => app.drawn.rope")
    q, k = run.queries(1)[3], run.keys(1)[1]
    scores = (k[: row + 1] @ q[row]) / np.sqrt(q.shape[-1])
    assert rope["score"] == pytest.approx(float(scores[key]), abs=1e-5)
    assert sum(rope["contributions"]) == pytest.approx(rope["score"], abs=1e-5)
    assert rope["probability"] == pytest.approx(float(np.exp(scores[key]) / np.exp(scores).sum()), abs=1e-6)


def test_vectors_before_rotation_are_the_models_own(live: LivePage, tape: Tape) -> None:
    script = """() => {
      const { headData, row } = app.view;
      return app.panels[1].parts.pairs.map((pair) => [...pair.dims, ...pair.qBefore]);
    }"""
    before = tape.run.queries(0, rotated=False)[0, tape.run.rows - 1]
    for i, j, x, y in live.get(script):
        assert (x, y) == pytest.approx((before[int(i)], before[int(j)]), abs=1e-5)


def test_candidates_have_the_probabilities_of_every_stage(live: LivePage, tape: Tape) -> None:
    step = 20
    live.pick(tape.run.prompt_length + step)
    told = live.get("() => app.drawn.nextToken")
    assert [stage["name"] for stage in told["stages"]] == [stage.name for stage in tape.run.steps[step].stages]
    raw, last = tape.run.distribution(step, 0), tape.run.distribution(step, -1)
    for row in told["rows"]:
        assert row["raw"] == pytest.approx(float(raw[row["id"]]), abs=1e-6)
        assert row["final"] == pytest.approx(float(last[row["id"]]), abs=1e-6)
        assert (row["removedBy"] is None) == bool(last[row["id"]] > 0)
    assert [row["id"] for row in told["rows"] if row["drawn"]] == [tape.run.steps[step].token_id]
    rest = 1 - sum(row["probability"] for row in told["rows"])
    assert told["rest"]["mass"] == pytest.approx(rest, abs=1e-5)


def test_a_stage_can_be_chosen(live: LivePage) -> None:
    group = live.page.get_by_role("group", name="Stage shown by the bars")
    group.get_by_role("button").first.click()
    live.settled()
    told = live.get("() => app.drawn.nextToken")
    assert told["stage"] == 0
    assert all(row["probability"] == row["raw"] for row in told["rows"])


def test_other_settings_recut_the_step_exactly_and_what_happened_comes_back(live: LivePage, tape: Tape) -> None:
    step = 11
    live.pick(tape.run.prompt_length + step)
    before = live.get("() => app.drawn.nextToken")
    other = Decoding(temperature=1.5, top_k=9, repetition_penalty=1.0, seed=3)
    detail = {"temperature": 1.5, "top_k": 9, "top_p": 1, "min_p": 0, "repetition_penalty": 1}
    live.get("detail => document.dispatchEvent(new CustomEvent('playground:settings', { detail }))", detail)
    live.page.wait_for_function("() => app.drawn.nextToken.whatIf && app.drawn.nextToken.whole")
    told = live.get("() => app.drawn.nextToken")
    logits = tape.run.logits(step).astype(np.float64) / other.temperature
    logits[logits < np.sort(logits)[-9]] = -np.inf
    expected = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    for row in told["rows"]:
        assert row["final"] == pytest.approx(float(expected[row["id"]]), abs=1e-9)
    past = {row["id"]: row["final"] for row in before["rows"]}
    assert all(row["happened"] == past[row["id"]] for row in told["rows"] if row["id"] in past)
    live.page.get_by_role("button", name="Back to what happened").click()
    live.settled()
    after = live.get("() => app.drawn.nextToken")
    assert after["whatIf"] is False
    assert after["rows"] == before["rows"]


def test_a_step_that_cannot_be_recut_says_so_and_shows_what_happened(live: LivePage, tape: Tape) -> None:
    live.pick(tape.run.prompt_length + 5)
    before = live.get("() => app.drawn.nextToken.rows")
    detail = {"temperature": 1.5, "xtc_probability": 0.5, "xtc_threshold": 0.1}
    live.get("detail => document.dispatchEvent(new CustomEvent('playground:settings', { detail }))", detail)
    summary = live.page.get_by_role("region", name="Next token").locator(".summary")
    summary.get_by_text("cannot be re-cut with XTC, because its run threw no random number for it").wait_for()
    assert live.get("() => app.drawn.nextToken.rows") == before
    assert live.get("() => app.drawn.nextToken.whatIf") is False


def test_the_runs_own_settings_are_no_what_if(live: LivePage, tape: Tape) -> None:
    own = {name: tape.run.decoding.as_dict()[name] for name in ("temperature", "top_k", "top_p")}
    live.get("detail => document.dispatchEvent(new CustomEvent('playground:settings', { detail }))", own)
    live.settled()
    assert live.get("() => app.drawn.nextToken.whatIf") is False


def test_bytes_of_the_formula_and_of_the_tensors_agree(live: LivePage, tape: Tape) -> None:
    cache = live.get("() => app.drawn.kvCache")
    measured = sum(k + v for k, v in tape.run.cache_bytes())
    assert cache["agree"] is True
    assert cache["measured"] == measured
    assert cache["formula"] == measured
    assert "they agree" in live.page.get_by_role("region", name="KV cache").inner_text()


def test_a_token_of_the_prompt_was_given(live: LivePage) -> None:
    live.pick(2)
    region = live.page.get_by_role("region", name="Next token")
    assert "given by the prompt" in region.locator(".summary").inner_text()
    assert live.get("() => document.getElementById('live').dataset.step") == str(2 - live.tape.run.prompt_length)


@pytest.mark.parametrize("name", PANELS)
def test_summaries_change_with_the_selection(live: LivePage, name: str) -> None:
    summary = live.page.get_by_role("region", name=name).locator(".summary")
    before = summary.inner_text()
    live.pick(tape_end(live.tape) - 9)
    assert summary.inner_text() not in ("", before)


def test_clicks_on_the_mosaic_choose_a_head_and_on_the_map_a_row_and_a_key(live: LivePage) -> None:
    boxes = live.get("() => app.drawn.attention.boxes")
    canvas = live.page.get_by_role("region", name="Attention").locator(".lv-canvas")
    mosaic, focus = boxes["mosaic"], boxes["map"]
    at = {"x": mosaic["x"] + 2.5 * mosaic["cell"], "y": mosaic["y"] + 1.5 * mosaic["cell"]}
    canvas.click(position=at)
    live.settled()
    assert live.get("() => [app.selection.layer, app.selection.head]") == [1, 2]
    step = focus["size"] / focus["extent"]
    canvas.click(position={"x": focus["x"] + 6.5 * step, "y": focus["y"] + 30.5 * step})
    live.settled()
    assert live.get("() => [app.drawn.attention.row, app.drawn.attention.key]") == [30, 6]


def test_tables_hold_the_exact_numbers(live: LivePage, tape: Tape) -> None:
    panel = live.page.get_by_role("region", name="Attention")
    toggle = panel.get_by_role("button", name="Table")
    toggle.click()
    live.settled()
    cells = [float(text) for text in panel.locator("tbody td:nth-child(3)").all_inner_texts()]
    np.testing.assert_allclose(cells, tape.run.attention(0, 0)[-1], rtol=1e-5)
    assert toggle.get_attribute("aria-pressed") == "true"
    toggle.click()


def test_keys_move_the_selection_but_not_while_something_is_typed(live: LivePage) -> None:
    end = tape_end(live.tape)
    live.page.locator("#live").focus()
    for key, expected in (("ArrowLeft", end - 1), ("Home", 0), ("ArrowRight", 1), ("End", end)):
        live.page.keyboard.press(key)
        assert live.get("() => app.selection.position") == expected
    live.get("() => app.selection.set({ key: 5 })")
    live.settled()
    live.page.keyboard.press(",")
    assert live.get("() => app.selection.key") == 4
    live.page.get_by_label("Layer").focus()
    live.page.keyboard.press("ArrowLeft")
    assert live.get("() => app.selection.position") == end


def test_the_hands_of_rope_end_where_the_rotated_vectors_point(live: LivePage) -> None:
    script = """async () => {
      const { turning } = await import("/static/rope_math.js");
      const { row, key } = app.view;
      return app.panels[1].parts.pairs.map((pair) => [pair, turning(pair, row, key, 1), turning(pair, row, key, 0)]);
    }"""
    for pair, end, start in live.get(script):
        for which in ("q", "k"):
            assert end[which] == pytest.approx(pair[which], abs=1e-4)
            assert start[which] == pytest.approx(pair[f"{which}Before"])


def test_the_selection_follows_until_the_user_picks(browser: Any, tape: Tape) -> None:
    with live_page(browser, tape) as live:
        live.tell(*tape.messages[:6])
        live.settled()
        follow = live.page.get_by_role("button", name="Follow newest")
        assert not follow.is_visible()
        live.pick(3)
        live.tell(*tape.messages[6:9])
        live.settled()
        assert live.get("() => app.selection.position") == 3
        follow.click()
        live.settled()
        assert live.get("() => app.selection.position") == live.get("() => app.store.tokens.length - 1")


def test_dark_repaints_with_its_own_colours(live: LivePage) -> None:
    read = """() => {
      const { x, y } = app.drawn.attention.boxes.mosaic;
      const pen = app.panels[0].panel.surface.base.getContext("2d");
      return pen.getImageData(x + 20, y + 5, 1, 1).data.join();
    }"""
    light = live.get(read)
    live.get("() => { document.body.classList.add('dark'); }")
    live.page.wait_for_function("() => app.palette.version > 0 && !app.pending")
    assert live.get(read) != light
    live.get("() => { document.body.classList.remove('dark'); }")
    live.settled()


@pytest.mark.parametrize("width", [366, 720, 1120, 1600])
def test_nothing_is_wider_than_its_place(browser: Any, tape: Tape, width: int) -> None:
    with live_page(browser, tape, width=width) as live:
        live.tell_all()
        assert live.get("() => document.documentElement.scrollWidth") <= width
        for name in PANELS:
            assert live.page.get_by_role("region", name=name).bounding_box()["width"] <= width


def test_at_1440_by_900_all_panels_are_on_the_screen(browser: Any, tape: Tape) -> None:
    with live_page(browser, tape, width=1120, height=820) as live:
        live.tell_all()
        for name in PANELS:
            box = live.page.get_by_role("region", name=name).bounding_box()
            assert box["y"] >= 0
            assert box["y"] + box["height"] <= 802


def test_the_menu_of_interesting_heads_selects_them(browser: Any, loaded: Loaded) -> None:
    heads = (HeadScore("induction", 1, 2, 0.5), HeadScore("induction", 0, 1, 0.8749), HeadScore("local", 1, 3, 0.25))
    tape = Tape(replace(loaded, card=replace(loaded.card, heads=heads)), "Other", Decoding(max_new_tokens=4))
    with live_page(browser, tape) as live:
        live.tell_all()
        menu = live.page.get_by_label("Best of each kind")
        assert menu.locator("optgroup").evaluate_all("all => all.map((group) => group.label)") == ["induction", "local"]
        menu.select_option("L0 H1 · 0.87")
        live.settled()
        drawn = live.get("() => app.drawn.attention")
        assert (drawn["layer"], drawn["head"]) == (0, 1)
        live.get("() => app.selection.set({ layer: 0, head: 0 })")
        live.settled()
        assert menu.input_value() == ""


def test_there_is_no_menu_of_heads_where_nothing_was_measured(live: LivePage) -> None:
    assert not live.page.get_by_label("Best of each kind").is_visible()
