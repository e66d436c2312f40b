"""What the page may ask and do about branches: by the runs of one session alone, and with one sentence where not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from models import Loaded
from playground import Decoding, comparison
from playground.sessions import Choice, Entry, Store, Worker
from playground.web import family

TEN = Decoding(max_new_tokens=10)


def refusal(sentence: str) -> dict[str, Any]:
    return {"refused": sentence}


def finish(store: Store) -> None:
    worker = Worker(store)
    while (entry := store.turn(0)) is not None:
        worker.advance(entry)


@pytest.fixture
def kept(loaded: Loaded) -> tuple[Store, Entry, Entry]:
    store = Store()
    parent = store.start("a", loaded, "Hello there", TEN)
    finish(store)
    child = store.branch("a", Choice(parent.run.id, step=4, token=7), TEN)
    finish(store)
    return store, parent, child


def asking(store: Store) -> dict[str, Any]:
    return {each.__name__: each for each in family.server_functions(store)}


def test_the_tree_and_a_run_from_its_beginning_can_be_asked_for(kept: tuple[Store, Entry, Entry]) -> None:
    store, parent, child = kept
    ask = asking(store)
    told = ask["tree"]({"run": child.run.id})
    assert [node["run"] for node in told["tree"]] == [parent.run.id, child.run.id]
    assert told["at"] != ask["tree"]({"run": child.run.id})["at"]
    frames = ask["replay"]({"run": parent.run.id})["frames"]
    assert [frame["kind"] for frame in frames] == ["begin", "steps", "end"]
    json.dumps([told, frames], allow_nan=False)


def test_two_runs_are_compared_at_one_position_and_head(kept: tuple[Store, Entry, Entry]) -> None:
    store, parent, child = kept
    compare = asking(store)["compare"]
    where = {"position": 17, "layer": 1, "head": 2, "stage": 0}
    found = compare({"run": parent.run.id, "other": child.run.id, **where})
    assert "".join(part["first"] for part in found["text"]) == parent.run.text
    assert found["same"] == 15
    expected, movers = comparison.next_token(parent.run, child.run, 17)
    assert found["next"]["total_variation"] == expected.total_variation > 0
    assert [each["token_id"] for each in found["next"]["movers"]] == [each.token_id for each in movers]
    assert found["attention"]["largest"] == comparison.attention_gap(parent.run, child.run, 1, 2).largest > 0
    beyond = compare({"run": parent.run.id, "other": child.run.id, **where, "position": 3})
    assert beyond["next"] is None
    assert "not drawn in both" in beyond["reason"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (None, "one JSON object"),
        ({"other": "nobody"}, "no longer kept"),
        ({"layer": 9}, "layer must be"),
        ({"head": True}, "head must be"),
        ({"position": -1}, "position must be"),
        ({"stage": 5}, "stage must be"),
        ({"run": "stranger"}, "another page"),
    ],
)
def test_a_comparison_that_cannot_be_made_gets_one_sentence(
    kept: tuple[Store, Entry, Entry], loaded: Loaded, asked: Any, words: str
) -> None:
    store, parent, child = kept
    stranger = store.start("b", loaded, "Mine", TEN)
    finish(store)
    sound = {"run": parent.run.id, "other": child.run.id, "position": 17, "layer": 0, "head": 0, "stage": 0}
    request = None if asked is None else sound | asked
    if asked == {"run": "stranger"}:
        request = sound | {"run": stranger.run.id}
    assert words in asking(store)["compare"](request)["error"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (None, "press Generate"),
        ({"run": 3}, "press Generate"),
        ({"run": "x", "step": "1"}, "step must be"),
        ({"run": "x", "step": 1, "token": True}, "token must be"),
        ({"run": "x", "step": 1, "text": 4}, "at most 100,000"),
        ({"run": "x", "text": "y" * 100_001}, "at most 100,000"),
    ],
)
def test_a_choice_is_checked_before_it_is_made(asked: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        family.choice_from(asked)


def test_runs_are_renamed_and_deleted_by_their_own_session_only(kept: tuple[Store, Entry, Entry]) -> None:
    store, parent, child = kept
    rename = {"do": "rename", "run": parent.run.id, "label": "First"}
    assert "another page" in family.acted(store, "b", rename, refusal)["refused"]
    assert family.acted(store, "a", rename, refusal)["tree"][0]["label"] == "First"
    delete = {"do": "delete", "run": parent.run.id}
    assert [each["run"] for each in family.acted(store, "a", delete, refusal)["tree"]] == [child.run.id]
    for nonsense in (None, {}, {"do": "format"}, {"do": "delete", "run": [1]}):
        assert family.acted(store, "a", nonsense, refusal)["refused"]
