"""What the live component may ask: the answers agree with the run, and nonsense gets a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from models import Loaded
from playground import Decoding
from playground.sessions import Entry, Store, Worker
from playground.waterfall import waterfall
from playground.web import inspection
from tests.frame_reader import unpack

PROMPT = "Hello there"
SETTINGS = Decoding(max_new_tokens=12, top_k=20, top_p=0.9, repetition_penalty=1.2)
Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def store() -> Store:
    return Store()


@pytest.fixture(scope="module")
def entry(loaded: Loaded, store: Store) -> Entry:
    worker = Worker(store)
    made = store.start("a", loaded, PROMPT, SETTINGS)
    while not made.run.finished:
        worker.advance(made)
        while made.frame():
            pass
    while made.frame():
        pass
    return made


@pytest.fixture(scope="module")
def ask(store: Store, entry: Entry) -> Ask:
    functions = {function.__name__: function for function in inspection.server_functions(store)}

    def asked(name: str, **request: Any) -> dict[str, Any]:
        return functions[name]({"run": entry.run.id, **request})

    return asked


def test_focus_answers_with_the_head_and_changes_what_later_frames_carry(ask: Ask, entry: Entry) -> None:
    answer = ask("focus", layer=1, head=3)
    assert [answer["layer"], answer["head"], answer["rows"]] == [1, 3, entry.run.rows]
    assert [entry.focus.layer, entry.focus.head] == [1, 3]


def test_rows_are_exact(ask: Ask, entry: Entry) -> None:
    answer = ask("rows", layer=0, head=2, first=7, last=9)
    pattern = entry.run.attention(0, 2)
    np.testing.assert_allclose(unpack(answer["pattern"]), np.concatenate([pattern[7, :8], pattern[8, :9]]), atol=1e-6)
    np.testing.assert_array_equal(unpack(answer["q"]), entry.run.queries(0)[2, 7:9].ravel())


def test_keys_are_those_that_the_head_looks_at(ask: Ask, entry: Entry) -> None:
    answer = ask("keys", layer=1, head=3, first=4, last=6)
    np.testing.assert_array_equal(unpack(answer["k"]), entry.run.keys(1)[1, 4:6].ravel())


def test_details_are_those_of_the_steps_that_were_asked_for(ask: Ask, entry: Entry) -> None:
    answer = ask("details", first=2, last=5)
    assert [step["index"] for step in answer["steps"]] == [2, 3, 4]
    for step in answer["steps"]:
        assert len(unpack(step["stages"])) == 3 * len(entry.run.steps[step["index"]].stages)


def test_angles_reach_ahead_of_the_run(ask: Ask, entry: Entry) -> None:
    answer = ask("angles", layer=0, first=3)
    pairs = len(unpack(answer["cos"])) // (entry.run.capacity - 3)
    cos, sin = unpack(answer["cos"]).reshape(-1, pairs), unpack(answer["sin"]).reshape(-1, pairs)
    np.testing.assert_allclose(cos**2 + sin**2, 1, atol=1e-6)
    np.testing.assert_allclose(cos[0, 0], np.cos(3), atol=1e-6)  # the first pair turns by one radian a position


def test_the_stages_of_a_step_are_told_one_by_one(ask: Ask, entry: Entry) -> None:
    assert ask("waterfall", step=3) == waterfall(entry.run, 3)


def test_logits_are_those_of_the_step(ask: Ask, entry: Entry) -> None:
    np.testing.assert_array_equal(unpack(ask("logits", step=4)["logits"]), entry.run.logits(4))


def test_texts_are_those_of_the_tokenizer(ask: Ask, entry: Entry) -> None:
    ids = entry.run.token_ids[:3]
    assert ask("texts", ids=ids)["texts"] == {str(each): entry.run.piece(each) for each in ids}


def test_backfill_hands_out_frames_by_number(ask: Ask) -> None:
    assert [frame["seq"] for frame in ask("backfill", first=2, last=5)["frames"]] == [2, 3, 4, 5]
    assert ask("backfill", first=900, last=901)["frames"] == []


@pytest.mark.parametrize("panel", ["attention", "rope", "next_token", "kv_cache"])
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("step", [0, 5])
def test_every_panel_enlarges(ask: Ask, panel: str, dark: bool, step: int) -> None:
    answer = ask("figure", panel=panel, step=step, layer=1, head=1, key=2, dark=dark)
    assert set(answer) == {"title", "figure", "csv", "filename"}
    assert answer["figure"]["data"]
    assert len(answer["csv"].splitlines()) > 2
    json.dumps(answer, allow_nan=False)


def test_the_enlarged_distribution_is_that_of_the_step(ask: Ask, entry: Entry, store: Store) -> None:
    data = inspection._next_token(entry, {"step": 5})
    step = entry.run.steps[5]
    assert data.ids[data.drawn] == step.token_id
    assert data.stages == [stage.name for stage in step.stages]
    last = data.probabilities[-1][data.drawn]
    assert last == pytest.approx(step.probability, abs=1e-6)


def test_the_enlarged_rotation_gives_the_score_of_the_map(entry: Entry) -> None:
    request = {"step": 3, "layer": 1, "head": 2}
    scores = [inspection._rope(entry, {**request, "key": key}).score for key in range(3)]
    pattern = entry.run.attention(1, 2)[len(PROMPT) + 2, :3]
    np.testing.assert_allclose(np.diff(scores), np.diff(np.log(pattern)), atol=1e-4)


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("focus", {}),
        ("focus", {"layer": 2, "head": 0}),
        ("focus", {"layer": 0, "head": 4}),
        ("focus", {"layer": -1, "head": 0}),
        ("focus", {"layer": "0", "head": 0}),
        ("focus", {"layer": True, "head": 0}),
        ("focus", {"layer": float("nan"), "head": 0}),
        ("focus", {"layer": float("inf"), "head": 0}),
        ("focus", {"layer": [0], "head": {}}),
        ("rows", {"layer": 0, "head": 0, "first": 999, "last": 1000}),
        ("rows", {"layer": 0, "head": 0, "first": 3, "last": 3}),
        ("rows", {"layer": 0, "head": 0}),
        ("details", {"first": 12, "last": 13}),
        ("details", {"first": 0}),
        ("waterfall", {}),
        ("waterfall", {"step": 99}),
        ("logits", {"step": 12}),
        ("logits", {"step": -1}),
        ("texts", {"ids": "abc"}),
        ("texts", {"ids": [10**9]}),
        ("texts", {"ids": [0] * 5000}),
        ("texts", {"ids": [None]}),
        ("backfill", {"first": 5, "last": 2}),
        ("backfill", {"first": -1, "last": 2}),
        ("backfill", {"first": 0, "last": 10**12}),
        ("figure", {"panel": "everything", "step": 0}),
        ("figure", {"panel": ["attention"], "step": 0}),
        ("figure", {"panel": "attention", "step": 99, "layer": 0, "head": 0}),
        ("figure", {"panel": "attention", "step": 0, "layer": 0, "head": 0, "key": 999}),
        ("figure", {"panel": "next_token", "step": -1}),
    ],
)
def test_nonsense_gets_one_sentence(ask: Ask, name: str, request_: dict[str, Any]) -> None:
    answer = ask(name, **request_)
    assert set(answer) == {"error"}
    assert answer["error"].endswith(".")
    assert "server's log" not in answer["error"]


@pytest.mark.parametrize("request_", [None, [], "x", 5, {"run": "unknown"}, {"run": None}, {"run": {}}, {}])
def test_questions_about_no_run_get_one_sentence(store: Store, entry: Entry, request_: Any) -> None:
    for function in inspection.server_functions(store):
        assert set(function(request_)) == {"error"}


def test_what_breaks_inside_stays_inside(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("secret")

    monkeypatch.setattr(inspection.frames, "rows", broken)
    answer = ask("rows", layer=0, head=0, first=0, last=1)
    assert "secret" not in answer["error"]
