"""The Measures page's answers: progress, results, refusals in one sentence, and a stop that holds."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from models import Loaded
from playground import Decoding, measures
from playground.sessions import Limits, Store, Worker
from playground.web import measuring
from tests.web.conftest import run_async

ASKED = {"prompt": "Hello", "settings": [{"temperature": 0}, {"temperature": 1}], "samples": 2, "tokens": 6, "seed": 1}


@pytest.fixture
def store() -> Iterator[Store]:
    """A store whose worker works."""
    made = Store(Limits(prompt_characters=300, new_tokens=400))
    worker = Worker(made)
    worker.start()
    yield made
    made.close()
    worker.join(20)


def all_of(made: AsyncIterator[dict[str, Any]], kind: str = "score") -> list[dict[str, Any]]:
    async def collect() -> list[dict[str, Any]]:
        return [each async for each in measuring.answers(made, kind)]

    return run_async(collect())


def test_a_text_is_scored_with_progress_and_a_figure(store: Store, loaded: Loaded) -> None:
    text = "Hello there, world."
    told = all_of(measuring.scored(store, loaded, measuring.Turns(), "a", {"text": text, "dark": True}))
    assert [each["state"] for each in told] == ["running", "done"]
    assert [each["at"] for each in told] == [1, 2]
    found, last = measures.score(loaded, text), told[-1]
    assert last["totals"]["nats"] == pytest.approx(found.nats, rel=1e-5)
    assert "".join(last["tokens"]) == text
    assert len(last["surprisal"]) == len(last["entropy"]) == len(last["rank"]) == len(text) - 1
    lines = last["csv"].splitlines()
    assert lines[0] == "position,token,probability,surprisal_nats,surprisal_bits,entropy_nats,rank"
    assert len(lines) == len(text)
    assert [trace["name"] for trace in last["figure"]["data"]] == ["surprisal", "entropy (expected surprisal)"]
    json.dumps(told, allow_nan=False)


def test_settings_are_compared_sample_by_sample(store: Store, loaded: Loaded) -> None:
    told = all_of(measuring.compared(store, loaded, measuring.Turns(), "a", ASKED), "compare")
    assert [each["done"] for each in told] == [0, 1, 2, 3, 4]
    assert {each["of"] for each in told} == {4}
    greedy, drawn = told[-1]["groups"]
    expected = list(measures.samples(loaded, "Hello", Decoding(max_new_tokens=6, temperature=1.0, seed=1), 2))
    assert [each["text"] for each in drawn["samples"]] == [each.text for each in expected]
    assert drawn["measures"]["self_bleu"] == pytest.approx(measures.spread(expected).self_bleu)
    assert greedy["samples"][0]["text"] == greedy["samples"][1]["text"]
    assert greedy["greedy"]
    assert store.runs() == []
    json.dumps(told, allow_nan=False)


def test_a_stop_ends_a_comparison_and_leaves_nothing_behind(store: Store, loaded: Loaded) -> None:
    turns = measuring.Turns()
    asked = {**ASKED, "samples": 16, "tokens": 100}

    async def stopped() -> list[dict[str, Any]]:
        told = []
        async for each in measuring.compared(store, loaded, turns, "a", asked):
            told.append(each)
            if each["done" if "done" in each else "state"] == 1:
                turns.end("a")
        return told

    told = run_async(stopped())
    assert told[-1]["state"] == "stopped"
    assert "1 samples" in told[-1]["reason"]
    assert len(told[-1]["groups"][0]["samples"]) == 1
    assert store.runs() == []


def test_a_newer_request_takes_the_place_of_the_one_before() -> None:
    turns = measuring.Turns()
    first = turns.begin("a")
    assert turns.holds("a", first)
    second = turns.begin("a")
    assert not turns.holds("a", first)
    assert turns.holds("a", second)
    assert not turns.holds("b", second)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt": ""}, "empty"),
        ({"prompt": None}, "empty"),
        ({"prompt": "x" * 301}, "shorten it to 300"),
        ({"settings": []}, "1 to 4 settings"),
        ({"settings": [{}] * 5}, "1 to 4 settings"),
        ({"settings": ["hot"]}, "must be an object"),
        ({"settings": [{"temperature": None}]}, "temperature must be a number"),
        ({"settings": [{"warmth": 1}]}, "Unknown setting"),
        ({"samples": 0}, "from 1 to 16"),
        ({"samples": 2.5}, "from 1 to 16"),
        ({"tokens": 401}, "from 1 to 400"),
        ({"samples": 16, "tokens": 200}, "6,400 tokens"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_nonsense_gets_one_sentence(store: Store, loaded: Loaded, change: dict[str, Any], words: str) -> None:
    told = all_of(measuring.compared(store, loaded, measuring.Turns(), "a", ASKED | change), "compare")
    assert told[-1]["state"] == "refused"
    assert words in told[-1]["reason"]
    assert not any("done" in each and each["done"] > 0 for each in told)


@pytest.mark.parametrize(
    ("asked", "words"),
    [(None, "reload"), ({"text": 3}, "at most 300"), ({"text": "x" * 301}, "at most 300"), ({"text": ""}, "empty")],
)
def test_a_text_that_cannot_be_scored_gets_one_sentence(store: Store, loaded: Loaded, asked: Any, words: str) -> None:
    (told,) = all_of(measuring.scored(store, loaded, measuring.Turns(), "a", asked))
    assert told["state"] == "refused"
    assert words in told["reason"]


def test_errands_are_done_by_the_worker_alone_and_their_errors_come_back(store: Store) -> None:
    assert store.errand(lambda: threading.current_thread().name).result(20) == "decode"
    with pytest.raises(ZeroDivisionError):
        store.errand(lambda: 1 // 0).result(20)
    assert store.errand(lambda: 7).result(20) == 7


def test_too_many_errands_are_refused() -> None:
    idle = Store(Limits(active=2))
    for _ in range(2):
        idle.errand(lambda: 0)
    with pytest.raises(ValueError, match="2 other texts are waiting"):
        idle.errand(lambda: 0)
    idle.close()
    with pytest.raises(ValueError, match="shutting down"):
        idle.errand(lambda: 0)
