"""The messages for the browser: numbered without gaps, and every number that of the run."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from models import Loaded
from playground import Decoding, Run, branch, frames, generate, rope
from tests.frame_reader import steps_of, unpack
from tests.playground.conftest import PROMPT

DECODING = Decoding(max_new_tokens=30, temperature=0.8, top_k=20, top_p=0.9, repetition_penalty=1.2, stop_at_end=False)
FOCUS = frames.Focus(1, 2)


def told(run: Run, every: int = 4) -> list[dict[str, Any]]:
    """All messages of a run, read whenever `every` steps have been made; each must survive JSON."""
    cursor = frames.Cursor()
    messages = [frames.begin(run, cursor)]
    while not run.finished:
        for _ in range(every):
            run.advance()
        message = frames.delta(run, cursor, FOCUS)
        if message is not None:
            messages.append(message)
    messages.append(frames.end(run, cursor))
    return [json.loads(json.dumps(each, allow_nan=False)) for each in messages]


@pytest.fixture
def run(loaded: Loaded) -> Run:
    return generate(loaded, PROMPT, DECODING)


def test_messages_are_numbered_without_gaps_and_name_their_run(run: Run) -> None:
    messages = told(run)
    assert [each["seq"] for each in messages] == list(range(len(messages)))
    assert {each["run"] for each in messages} == {run.id}
    assert [each["kind"] for each in messages] == ["begin"] + ["steps"] * (len(messages) - 2) + ["end"]
    assert messages[-1]["state"] == "done"
    assert [each["text"] for each in messages[0]["tokens"]] == [
        run.piece(i) for i in run.token_ids[: run.prompt_length]
    ]


def test_steps_tell_the_probabilities_that_were_drawn_from(run: Run) -> None:
    messages = told(run)
    steps = [step for message in messages[1:-1] for step in steps_of(message)]
    newest = {message["details"]["index"]: message["details"] for message in messages[1:-1]}
    assert list(newest) == [steps_of(message)[-1]["index"] for message in messages[1:-1]]
    asked = frames.details(run, 0, len(steps))["steps"]
    names = [(each["name"], each["setting"]) for each in messages[0]["stages"]]
    assert names == [(each.name, each.setting) for each in run.steps[0].stages]
    assert [each["id"] for each in steps] == run.token_ids[run.prompt_length :]
    for brief, detailed in zip(steps, asked, strict=True):
        assert newest.get(brief["index"], detailed) == detailed
        each = brief | detailed
        ids = unpack(each["ids"], "<u4").astype(int)
        assert each["id"] in ids
        assert len(set(ids)) == len(ids)
        np.testing.assert_array_equal(unpack(each["logits"]), run.logits(each["index"])[ids])
        stages = unpack(each["stages"]).reshape(-1, 3)
        shown = unpack(each["probabilities"]).reshape(len(stages), len(ids))
        for stage in range(len(stages)):
            np.testing.assert_allclose(shown[stage], run.distribution(each["index"], stage)[ids], atol=1e-6)
        assert each["probability"] == pytest.approx(float(run.distribution(each["index"])[each["id"]]), abs=1e-6)
        assert each["rank"] == int((run.logits(each["index"]) > run.logits(each["index"])[each["id"]]).sum())
        for told_of, record in zip(stages, run.steps[each["index"]].stages, strict=True):
            assert told_of == pytest.approx((record.kept, record.mass, record.entropy), rel=1e-6)


def test_every_candidate_text_arrives_once(run: Run) -> None:
    messages = told(run)
    known = {each["id"]: each["text"] for each in messages[0]["tokens"]}
    for message in messages[1:-1]:
        new = {int(key): text for key, text in message["texts"].items()}
        assert not known.keys() & new.keys()
        known |= new
        for each in (*unpack(message["steps"]["ids"], "<u4"), *unpack(message["details"]["ids"], "<u4")):
            assert known[int(each)] == run.piece(int(each))


def test_rows_of_the_head_in_focus_are_exact(run: Run) -> None:
    messages = told(run)[1:-1]
    pattern = run.attention(FOCUS.layer, FOCUS.head)
    rows = 0
    for message in messages:
        focus, first, count = message["focus"], message["rows"]["first"], message["rows"]["count"]
        assert first == rows
        rows += count
        np.testing.assert_allclose(unpack(focus["pattern"]), pattern[rows - 1, :rows], atol=1e-6)
        earlier = np.concatenate([[], *(pattern[r, : r + 1] for r in range(first, rows - 1))])
        np.testing.assert_allclose(unpack(focus["earlier"], "u1"), np.sqrt(earlier) * 255, atol=0.51)
        np.testing.assert_array_equal(unpack(focus["q"]), run.queries(FOCUS.layer)[FOCUS.head, rows - 1])
        kv_head = FOCUS.head * run.anatomy.kv_heads[FOCUS.layer] // run.anatomy.heads[FOCUS.layer]
        assert pattern[rows - 1, focus["key"]] == pattern[rows - 1].max()
        np.testing.assert_array_equal(unpack(focus["k"]), run.keys(FOCUS.layer)[kv_head, focus["key"]])
    assert rows == run.rows


def test_angles_turn_what_was_not_turned_into_what_was(run: Run) -> None:
    run.finish()
    if run.anatomy.rotary is None:
        with pytest.raises(ValueError, match="Layer 1 does not rotate"):
            frames.angles(run, 1, 0)
        return
    of = rope.pairs(run.anatomy.rotary, 1)
    answer = frames.angles(run, 1, 2)
    cos, sin = (unpack(answer[name]).reshape(-1, len(of.first)) for name in ("cos", "sin"))
    assert len(cos) == run.capacity - 2  # told ahead of the run
    q, turned = run.queries(1, rotated=False)[:, 2:], run.queries(1)[:, 2:]
    x, y = q[..., of.first], q[..., of.second]
    count = q.shape[1]
    np.testing.assert_allclose(x * cos[:count] - y * sin[:count], turned[..., of.first], atol=1e-5)
    np.testing.assert_allclose(y * cos[:count] + x * sin[:count], turned[..., of.second], atol=1e-5)


def test_tiles_put_together_are_the_pooled_maps(run: Run) -> None:
    assert_tiles_are_the_maps(run, [message["tiles"] for message in told(run)[1:-1]])


def test_tiles_that_come_a_few_rows_at_a_time_are_whole_in_the_end(run: Run) -> None:
    cursor = frames.Cursor()
    frames.begin(run, cursor)
    run.finish()
    first = frames.delta(run, cursor, FOCUS, mosaic=7)
    assert first["tiles"]["until"] == 7
    assert frames.delta(run, cursor, FOCUS, mosaic=7) is None
    last = frames.end(run, cursor)["tiles"]
    assert last["until"] == run.rows
    assert_tiles_are_the_maps(run, [first["tiles"], last])


def assert_tiles_are_the_maps(run: Run, told_tiles: list[dict[str, Any]]) -> None:
    width = told_tiles[-1]["bin"]
    size = -(-run.rows // width)
    heads = sum(run.anatomy.heads)
    assembled = np.zeros((heads, size, size), np.uint8)
    for tiles in told_tiles:
        scale = width // tiles["bin"]
        cells = unpack(tiles["data"], "u1").reshape(heads, tiles["rows"], tiles["cols"])
        for row in range(tiles["rows"]):
            for col in range(tiles["cols"]):
                target = assembled[:, (tiles["row"] + row) // scale, col // scale]
                np.maximum(target, cells[:, row, col], out=target)
    whole = np.concatenate([run.attention(layer) for layer in range(len(run.anatomy.heads))])
    for row in range(size):
        for col in range(size):
            cell = whole[:, row * width : (row + 1) * width, col * width : (col + 1) * width].max((1, 2))
            np.testing.assert_allclose(assembled[:, row, col], np.sqrt(cell) * 255, atol=0.51)


def test_tiles_have_at_most_48_bins() -> None:
    assert [frames.tile_width(rows) for rows in (1, 48, 49, 96, 97, 1024)] == [1, 1, 2, 2, 4, 32]


def test_the_cache_is_told_for_every_step(run: Run) -> None:
    layers = len(run.anatomy.heads)
    told_caches = [message["caches"] for message in told(run)[1:-1]]
    ks, vs, positions = ([each for told in told_caches for each in told[name]] for name in ("k", "v", "positions"))
    assert len(positions) == len(run.steps)
    for k, v, position, step in zip(ks, vs, positions, run.steps, strict=True):
        assert (k + v) * layers == step.cache.total
        assert position == step.cache.positions == run.prompt_length + step.index
    assert {told["reserved"] for told in told_caches} == {step.cache.reserved for step in run.steps}


def test_rare_facts_of_steps_are_told_where_there_are_any(loaded: Loaded) -> None:
    greedy = generate(loaded, PROMPT, Decoding(max_new_tokens=4, temperature=0.0, stop_at_end=False))
    assert not {"uniforms", "chances", "mus", "forced"} & told(greedy)[1]["steps"].keys()
    thrown = Decoding(max_new_tokens=4, xtc_probability=0.5, mirostat=2, stop_at_end=False)
    drawn = generate(loaded, PROMPT, thrown)
    given = branch(drawn.finish(), 2, drawn.token_ids[0], thrown)
    steps = [step for message in told(given)[1:-1] for step in steps_of(message)]
    assert [step["index"] for step in steps if step["forced"]] == [2]
    for step, record in zip(steps, given.steps, strict=True):
        assert (step["uniform"], step["chance"], step["mu"]) == (record.uniform, record.chance, record.mu)
        assert step["seconds"] == pytest.approx(record.seconds, rel=1e-6)


def test_norms_are_the_root_mean_squares_of_the_new_keys_and_values(run: Run) -> None:
    messages = told(run)[1:-1]
    parts = [unpack(each["norms"]).reshape(len(run.anatomy.heads), 2, -1) for each in messages]
    norms = np.concatenate(parts, -1)
    for layer in range(len(run.anatomy.heads)):
        np.testing.assert_allclose(norms[layer, 0], np.sqrt((run.keys(layer) ** 2).mean((0, 2))), rtol=1e-5)
    assert norms.shape[-1] == run.rows


def test_a_head_asked_for_later_comes_with_everything_so_far(run: Run) -> None:
    run.finish()
    answer = json.loads(json.dumps(frames.focus(run, 0, 1)))
    assert answer["rows"] == run.rows
    size = answer["map"]["size"]
    picture = unpack(answer["map"]["data"], "u1").reshape(size, size)
    np.testing.assert_allclose(picture, np.sqrt(run.attention(0, 1)) * 255, atol=0.51)
    row = unpack(frames.rows(run, 0, 1, 9, 11)["pattern"])
    np.testing.assert_allclose(row[:10], run.attention(0, 1)[9, :10], atol=1e-6)
    np.testing.assert_allclose(row[10:], run.attention(0, 1)[10, :11], atol=1e-6)
    np.testing.assert_array_equal(unpack(frames.logits(run, 2)["logits"]), run.logits(2))


def test_rows_and_keys_asked_for_are_those_of_the_head(run: Run) -> None:
    run.finish()
    answer = frames.rows(run, 1, 2, 9, 12)
    kv_head = 2 * run.anatomy.kv_heads[1] // run.anatomy.heads[1]
    np.testing.assert_array_equal(unpack(answer["q"]).reshape(3, -1), run.queries(1)[2, 9:12])
    assert answer["keys"] == run.attention(1, 2)[9:12].argmax(-1).tolist()
    np.testing.assert_array_equal(unpack(answer["k"]).reshape(3, -1), run.keys(1)[kv_head, answer["keys"]])
    stretch = frames.keys(run, 1, 2, 3, 10_000)
    assert stretch["count"] == min(run.rows - 3, frames.FOCUS_ROWS)
    told_keys = unpack(stretch["k"]).reshape(stretch["count"], -1)
    np.testing.assert_array_equal(told_keys, run.keys(1)[kv_head, 3 : 3 + stretch["count"]])


def test_what_cannot_be_asked_is_refused_in_one_sentence(run: Run) -> None:
    run.advance()
    for ask in (
        lambda: frames.focus(run, 99, 0),
        lambda: frames.rows(run, 0, 0, 10_000, 10_001),
        lambda: frames.keys(run, 0, 0, 10_000, 10_001),
        lambda: frames.logits(run, 5),
        lambda: frames.texts(run, [10**9]),
    ):
        with pytest.raises(ValueError, match=r"\.$"):
            ask()
