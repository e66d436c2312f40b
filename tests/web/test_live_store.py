"""The browser's memory of a run: every message counts once, in order, and lost ones are fetched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from models import Loaded
from playground import Decoding
from tests.web.live_page import LivePage, Tape, live_page, module_page

TOKENS = 60
SETTINGS = Decoding(max_new_tokens=TOKENS, top_k=30, top_p=0.95, repetition_penalty=1.2, seed=3)
COUNTS = "() => ({ steps: app.store.steps.length, rows: app.store.rows, next: app.store.next, state: app.store.state })"


@pytest.fixture(scope="module")
def tape(loaded: Loaded) -> Tape:
    return Tape(loaded, "Hello there", SETTINGS)


@pytest.fixture
def live(browser: Any, tape: Tape) -> Iterator[LivePage]:
    tape.asked.clear()
    tape.broken.clear()
    with live_page(browser, tape) as opened:
        yield opened


def whole(tape: Tape) -> dict[str, Any]:
    return {"steps": TOKENS, "rows": tape.run.rows, "next": len(tape.messages), "state": "done"}


def test_a_run_told_in_order_is_known_completely(live: LivePage, tape: Tape) -> None:
    live.tell_all()
    assert live.get(COUNTS) == whole(tape)
    assert "backfill" not in tape.asked
    assert live.get("() => app.store.tokens.map((token) => token.id)") == list(tape.run.token_ids)


def test_messages_that_arrive_twice_count_once(live: LivePage, tape: Tape) -> None:
    live.tell(*(message for message in tape.messages for _ in range(2)))
    live.settled()
    assert live.get(COUNTS) == whole(tape)
    assert live.get("() => app.store.received") == len(tape.messages)


def test_lost_messages_are_asked_for_and_nothing_is_missing(live: LivePage, tape: Tape) -> None:
    live.tell(*tape.messages[:4], *tape.messages[9:])
    live.page.wait_for_function("() => app.store.state === 'done'")
    live.settled()
    assert "backfill" in tape.asked
    assert live.get(COUNTS) == whole(tape)


def test_a_page_that_missed_the_beginning_catches_up(live: LivePage, tape: Tape) -> None:
    live.tell(tape.messages[-1])
    live.page.wait_for_function("() => app.store.state === 'done'")
    live.settled()
    assert live.get(COUNTS) == whole(tape)


def test_messages_out_of_order_are_put_in_order(live: LivePage, tape: Tape) -> None:
    tape.broken.add("backfill")
    live.tell(tape.messages[0], tape.messages[2], tape.messages[1], *tape.messages[3:])
    live.settled()
    assert live.get(COUNTS) == whole(tape)


def test_what_cannot_be_had_again_is_said_and_the_rest_goes_on(live: LivePage, tape: Tape) -> None:
    tape.broken.add("backfill")
    live.tell(*tape.messages[:5], *tape.messages[6:])
    live.page.wait_for_function("() => app.store.state === 'done'")
    assert "lost" in live.page.locator(".lv-note").inner_text()
    tape.broken.clear()
    live.pick(tape.run.prompt_length + 3)  # the step that never came
    live.pick(tape.run.prompt_length + 9)
    assert live.get("() => app.drawn.nextToken.step") == 9
    lost = tape.run.prompt_length + 4
    told = live.get("() => app.store.tokens.map((token) => token.text)")
    meant = [tape.run.piece(each) for each in tape.run.token_ids]
    assert told[:lost] + told[lost + 1 :] == meant[:lost] + meant[lost + 1 :]  # texts that got lost with it, too


def test_another_run_starts_with_a_clean_slate(live: LivePage, tape: Tape, loaded: Loaded) -> None:
    live.tell_all()
    second = Tape(loaded, "Other", Decoding(max_new_tokens=4))
    live.tell(*second.messages[:3])
    assert live.get("() => app.store.run") == second.run.id
    assert live.get("() => app.store.steps.length") == 2
    assert live.get("() => app.selection.position") == second.run.prompt_length + 1


def test_several_messages_may_come_as_one_value(live: LivePage, tape: Tape) -> None:
    live.tell(tape.messages)
    live.settled()
    assert live.get(COUNTS) == whole(tape)


@pytest.mark.parametrize("per_message", [1, 7, TOKENS])
def test_the_mosaic_is_the_largest_of_each_cell_however_the_rows_came(
    browser: Any, loaded: Loaded, per_message: int
) -> None:
    tape = Tape(loaded, "Hello there", SETTINGS, per_message)
    with live_page(browser, tape) as live:
        live.tell_all()
        told = live.get("() => ({ bin: app.store.tiles.bin, data: Array.from(app.store.tiles.data) })")
    limit, wide = 48, told["bin"]
    drawn = np.array(told["data"], float).reshape(-1, limit, limit)
    maps = np.concatenate([tape.run.attention(layer) for layer in range(2)])
    rows = maps.shape[-1]
    padded = np.zeros((len(maps), limit * wide, limit * wide))
    padded[:, :rows, :rows] = maps
    expected = padded.reshape(len(maps), limit, wide, limit, wide).max((2, 4))
    np.testing.assert_allclose(drawn / 255, np.sqrt(expected), atol=0.51 / 255)


def test_a_head_in_focus_is_known_exactly(live: LivePage, tape: Tape) -> None:
    live.tell_all()
    exact = tape.run.attention(0, 0)
    for row in (0, 10, tape.run.rows - 1):
        live.pick(row + 1)
        pattern = live.get("row => Array.from(app.store.heads.find(0, 0).exact.get(row).pattern)", row)
        np.testing.assert_allclose(pattern, exact[row, : row + 1], atol=1e-6)
        q = live.get("row => Array.from(app.store.heads.find(0, 0).exact.get(row).q)", row)
        np.testing.assert_array_equal(np.array(q, np.float32), tape.run.queries(0)[0, row])
        strongest, k = live.get(
            "row => { const { key, k } = app.store.heads.find(0, 0).exact.get(row); return [key, Array.from(k)]; }", row
        )
        assert exact[row, strongest] == exact[row].max()
        np.testing.assert_array_equal(np.array(k, np.float32), tape.run.keys(0)[0, strongest])


def test_a_key_that_somebody_chooses_is_fetched_with_its_neighbours_once(live: LivePage, tape: Tape) -> None:
    live.tell_all()
    live.pick(15)
    asked = tape.asked.count("keys")
    strongest = live.get("() => app.view.strongest")
    for key in [each for each in (3, 4, 5) if each != strongest][:2]:
        live.get("key => app.selection.set({ key })", key)
        live.settled()
        k = live.get("key => Array.from(app.store.heads.find(0, 0).key(app.selection.row, key))", key)
        np.testing.assert_array_equal(np.array(k, np.float32), tape.run.keys(0)[0, key])
        assert live.get("() => app.drawn.rope.key") == key
    assert tape.asked.count("keys") == asked + 1


def test_details_of_steps_that_came_together_are_fetched_with_their_neighbours(browser: Any, loaded: Loaded) -> None:
    tape = Tape(loaded, "Hello there", SETTINGS, per_message=20)
    with live_page(browser, tape) as live:
        live.tell_all()
        first = tape.run.prompt_length
        for step in (25, 26, 27, 24):
            live.pick(first + step)
            assert live.get("() => app.drawn.nextToken.step") == step
        assert tape.asked.count("details") == 2  # those around 25, and the next ones ahead of need
        tape.broken.add("details")
        live.pick(first + 3)  # came with the first
        assert live.get("() => app.drawn.nextToken.step") == 3


def test_details_that_do_not_come_are_said_to_be_missing(browser: Any, loaded: Loaded) -> None:
    tape = Tape(loaded, "Hello there", SETTINGS, per_message=20)
    tape.broken.add("details")
    with live_page(browser, tape) as live:
        live.tell_all()
        live.get("position => app.selection.pick(position)", tape.run.prompt_length + 5)
        live.page.get_by_text("What led to step 5 could not be fetched.").wait_for()


def test_another_head_is_fetched_once_and_then_kept(live: LivePage, tape: Tape) -> None:
    live.tell_all()
    for head in (2, 0, 2, 0, 2):
        live.get("head => app.selection.set({ layer: 1, head })", head)
        live.settled()
    assert tape.asked.count("focus") == 2
    assert live.get("() => app.drawn.attention.head") == 2
    pattern = live.get("() => Array.from(app.view.pattern)")
    np.testing.assert_allclose(pattern, tape.run.attention(1, 2)[-1], atol=1e-6)


def test_a_server_that_fails_leaves_a_sentence_and_a_page_that_works(live: LivePage, tape: Tape) -> None:
    live.tell_all()
    tape.broken.add("focus")
    live.get("() => app.selection.set({ layer: 1, head: 1 })")
    live.page.wait_for_function("() => app.store.note === 'focus is broken.'")
    live.get("() => app.selection.set({ layer: 0, head: 0 })")
    live.settled()


def test_maps_merge_neighbours_when_they_outgrow_their_cells(browser: Any) -> None:
    script = """async (rows) => {
      const { PooledMaps } = await import("/static/growing.js");
      const maps = new PooledMaps(1, 16);
      rows.forEach((row, position) => maps.addRow(position, Float32Array.from(row)));
      return { bin: maps.bin, data: Array.from(maps.data) };
    }"""
    rng = np.random.default_rng(1)
    size = 50
    pattern = np.tril(rng.random((size, size)).astype(np.float32))
    with module_page(browser) as page:
        told = page.evaluate(script, [pattern[row, : row + 1].tolist() for row in range(size)])
    assert told["bin"] == 4
    padded = np.zeros((64, 64))
    padded[:size, :size] = np.sqrt(pattern)
    expected = padded.reshape(16, 4, 16, 4).max((1, 3))
    np.testing.assert_allclose(np.array(told["data"]).reshape(16, 16) / 255, expected, atol=0.51 / 255)
