"""The stages of a step, drawn from what happened and from what other settings would do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from models import Loaded
from playground import Decoding
from playground.waterfall import waterfall
from tests.web.live_page import LivePage, Tape, live_page

SETTINGS: dict[str, Any] = {
    "repetition_penalty": 1.5,
    "temperature": 1.3,
    "top_k": 30,
    "top_p": 0.9,
    "sequence_bias": [[[40], 2.5]],
    "xtc_probability": 0.5,
    "seed": 3,
}
STEP = 5


@pytest.fixture(scope="module")
def tape(loaded: Loaded) -> Tape:
    return Tape(loaded, "Once upon a time", Decoding(max_new_tokens=12, **SETTINGS))


@pytest.fixture
def view(browser: Any, tape: Tape) -> Iterator[LivePage]:
    with live_page(browser, tape) as opened:
        opened.tell_all()
        opened.pick(tape.run.prompt_length + STEP)
        opened.page.get_by_role("button", name="Stages", exact=True).click()
        opened.page.wait_for_function("() => app.drawn.nextToken.pastFall")
        opened.settled()
        yield opened


def what_if(view: LivePage, **settings: Any) -> None:
    view.get("settings => app.whatIf({ ...app.store.begin.decoding, ...settings })", settings)
    view.page.wait_for_function("() => !app.pending && app.drawn.nextToken.whatIf && app.drawn.nextToken.fall")
    view.settled()


def rows(view: LivePage) -> list[list[str]]:
    script = "rows => rows.map(row => [...row.children].map(cell => cell.textContent))"
    return view.page.locator("button.lv-fall-row").evaluate_all(script)


def test_each_stage_is_a_row_in_the_runs_own_order(view: LivePage, tape: Tape) -> None:
    stages = tape.run.steps[STEP].stages
    assert [row[2:] for row in rows(view)] == [[f"{each.kept:,}", f"{each.entropy:.2f}"] for each in stages]
    assert [row[0].split(" ")[0] for row in rows(view)] == ["raw", "bias", "penalty", "temp", "top-k", "top-p", "XTC"]
    left = view.page.locator("button.lv-fall-row .lv-left")
    widths = left.evaluate_all("all => all.map(i => parseFloat(i.style.width))")
    assert widths == pytest.approx([100 * each.mass for each in stages], abs=1e-3)


def test_what_is_drawn_is_what_python_tells(view: LivePage, tape: Tape) -> None:
    assert view.get("() => app.drawn.nextToken.pastFall") == waterfall(tape.run, STEP)


def test_the_twin_of_the_runs_own_settings_is_what_happened(view: LivePage, tape: Tape) -> None:
    order = [*(each for each in tape.run.decoding.order if each != "min_p"), "min_p"]
    what_if(view, min_p=1e-6, order=order)  # one more stage, which removes nothing
    told, twin = waterfall(tape.run, STEP), view.get("() => app.drawn.nextToken.fall")
    for mine, stage in zip(twin["stages"][:-1], told["stages"], strict=True):
        assert mine["lost"] == stage["lost"]
        moves = {move["id"]: move for move in mine["moves"]}
        for move in stage["moves"]:
            assert (moves[move["id"]]["from"], moves[move["id"]]["to"]) == (move["from"], move["to"])
            assert moves[move["id"]]["after"] == pytest.approx(move["after"], abs=1e-6)
    assert twin["slices"]["ids"] == told["slices"]["ids"]
    assert twin["slices"]["starts"] == pytest.approx(told["slices"]["starts"], abs=1e-6)


def test_removed_tokens_stay_visible_struck_and_named(view: LivePage, tape: Tape) -> None:
    at = [each.name for each in tape.run.steps[STEP].stages].index("top_k")
    view.page.locator("button.lv-fall-row").nth(at).click()
    view.settled()
    lost = waterfall(tape.run, STEP)["stages"][at]["lost"]
    struck = view.page.locator(".lv-moves s")
    assert struck.count() >= 1
    assert struck.first.locator("xpath=..").get_attribute("data-candidate") == str(lost["ids"][0])
    assert f"Removed {lost['count']:,} tokens" in (view.page.locator(".lv-fall-head").text_content() or "")


def test_a_rank_that_moved_stands_in_both_places(view: LivePage, tape: Tape) -> None:
    view.page.locator("button.lv-fall-row").nth(2).click()
    view.settled()
    moves = waterfall(tape.run, STEP)["stages"][2]["moves"]
    move = next(each for each in moves if each["from"] != each["to"] and max(each["from"], each["to"]) <= 8)
    for side, rank in (("Before", move["from"]), ("After", move["to"])):
        place = view.page.locator(f'.lv-moves ol[aria-label="{side}"] [data-candidate="{move["id"]}"] .lv-rank')
        assert place.text_content() == str(rank)


def test_the_draw_is_shown_on_the_cumulative_bar(view: LivePage, tape: Tape) -> None:
    step = tape.run.steps[STEP]
    hit = view.page.locator(".lv-track .lv-hit")
    assert hit.get_attribute("data-candidate") == str(step.token_id)
    mark = view.page.locator(".lv-track b").evaluate("b => parseFloat(b.style.left) / 100")
    start, size = hit.evaluate("i => [parseFloat(i.style.left) / 100, parseFloat(i.style.width) / 100]")
    assert mark == pytest.approx(step.uniform, abs=1e-5)
    assert start - 1e-5 <= mark <= start + size + 1e-5


def test_other_settings_recut_it_at_once_while_what_happened_stays(view: LivePage, tape: Tape) -> None:
    before = rows(view)
    what_if(view, top_k=3, xtc_probability=0)
    assert [row[0] for row in rows(view)] == ["raw", "bias 1", "penalty 1.5", "temp 1.3", "top-k 3", "top-p 0.9"]
    assert rows(view)[4][2] == "3"
    assert view.page.locator(".lv-draw > span").all_text_contents() == ["what if", "happened"]
    past = view.page.locator(".lv-draw").nth(1).locator(".lv-hit")
    assert past.get_attribute("data-candidate") == str(tape.run.steps[STEP].token_id)
    view.page.get_by_role("button", name="Back to what happened").click()
    view.settled()
    assert rows(view) == before


def test_another_order_moves_the_rows(view: LivePage, tape: Tape) -> None:
    order = [*(each for each in tape.run.decoding.order if each != "temperature"), "temperature"]
    what_if(view, order=order, xtc_probability=0)
    assert rows(view)[-1][0] == "temp 1.3"


def test_a_click_on_another_token_goes_on_with_it(view: LivePage, tape: Tape) -> None:
    view.get("() => { app.branch = (choice) => { window.chosen = choice; }; }")
    view.page.locator("button.lv-fall-row").first.click()
    view.settled()
    drawn = tape.run.steps[STEP].token_id
    other = view.page.locator(f'.lv-moves [data-candidate]:not([data-candidate="{drawn}"])').first
    token = int(other.get_attribute("data-candidate") or -1)
    other.click()
    assert view.get("() => window.chosen") == {"step": STEP, "token": token}


def test_xtc_tells_the_number_it_went_by(view: LivePage, tape: Tape) -> None:
    view.page.locator("button.lv-fall-row").last.click()
    view.settled()
    chance = tape.run.steps[STEP].chance
    assert chance is not None
    words = "is not above 0.5: it acts" if chance <= 0.5 else "is above 0.5: it rests"
    assert f"{chance:.2f} {words}" in (view.page.locator(".lv-fall-head").text_content() or "")


def test_greedy_is_a_stage_and_draws_nothing(view: LivePage) -> None:
    what_if(view, temperature=0)
    assert rows(view)[-1][0] == "greedy"
    assert rows(view)[-1][2] == "1"
    assert view.page.locator(".lv-draw").count() == 1  # what happened


def test_the_table_has_the_same_numbers(view: LivePage, tape: Tape) -> None:
    view.page.get_by_role("region", name="Next token").get_by_role("button", name="Table").click()
    view.settled()
    script = "all => all.map(row => [...row.children].map(cell => cell.textContent))"
    cells = view.page.locator(".lv-next tbody tr").evaluate_all(script)
    assert [row[1] for row in cells] == [str(each.kept) for each in tape.run.steps[STEP].stages]
    assert cells[0][3] == "1"
    assert float(cells[-1][7]) == pytest.approx(tape.run.steps[STEP].probability, rel=1e-5)


def test_a_running_generation_is_not_asked_about_every_token(browser: Any, tape: Tape) -> None:
    with live_page(browser, tape) as opened:
        tape.asked.clear()
        opened.tell(*tape.messages[:3])
        opened.page.get_by_role("button", name="Stages", exact=True).click()
        opened.tell(*tape.messages[3:-1])
        assert "waterfall" not in tape.asked
        assert opened.page.locator("button.lv-fall-row").count() == len(tape.run.steps[0].stages)
        opened.tell(tape.messages[-1])
        opened.page.wait_for_function("() => app.drawn.nextToken.pastFall")


@pytest.mark.parametrize("width", [390, 1120])
def test_nothing_is_cut_off(browser: Any, tape: Tape, width: int) -> None:
    with live_page(browser, tape, width=width) as opened:
        opened.tell_all()
        opened.page.get_by_role("button", name="Stages", exact=True).click()
        opened.page.wait_for_function("() => app.drawn.nextToken.pastFall")
        opened.settled()
        script = """() => [...document.querySelectorAll('.lv-moves li, .lv-track, .lv-fall-row')].filter((node) => {
          const box = node.getBoundingClientRect(), panel = node.closest('.lv-panel').getBoundingClientRect();
          return box.right > panel.right || box.bottom > panel.bottom || box.left < panel.left;
        }).length"""
        assert opened.get(script) == 0
