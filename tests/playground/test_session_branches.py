"""Branches in the store: entries like others that share memory with their parents, outlive them, and are told again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from models import Loaded
from playground import Decoding, tree
from playground.sessions import Choice, Entry, Limits, RefusedError, Store, Worker, held_bytes
from tests.frame_reader import steps_of
from tests.playground.test_sessions import Clock, drain, make, work
from tests.tiny_model import tiny_loaded

TEN = Decoding(max_new_tokens=10)


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return tiny_loaded()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def grown(loaded: Loaded, clock: Clock, **limits: Any) -> tuple[Store, Worker, Entry, Entry]:
    """A run of session "a" and a branch of it, both at their end."""
    store, worker = make(clock, **limits)
    parent = store.start("a", loaded, "Hello there", TEN)
    work(store, worker)
    child = store.branch("a", Choice(parent.run.id, step=4, token=7), TEN)
    work(store, worker)
    return store, worker, parent, child


def test_a_branch_is_an_entry_of_the_same_session_and_its_parent_stays(loaded: Loaded, clock: Clock) -> None:
    store, _, parent, child = grown(loaded, clock)
    assert store.runs("a") == [parent, child]
    assert [each.label for each in (parent, child)] == ["Run 1", "Run 2"]
    assert child.parent == parent.run.id
    assert child.settled
    assert child.run.token_ids[: len("Hello there") + 5] == [*parent.run.token_ids[: len("Hello there") + 4], 7]
    frames = drain(child)
    assert [frames[0]["kind"], frames[-1]["kind"]] == ["begin", "end"]
    assert frames[0]["branch"] == {"run": parent.run.id, "shared": 15, "step": 4, "forced": 1}
    assert [step["forced"] for frame in frames[1:-1] for step in steps_of(frame)] == [False] * 4 + [True] + [False] * 10


def test_what_a_branch_shares_is_counted_once(loaded: Loaded, clock: Clock) -> None:
    store, _, parent, child = grown(loaded, clock)
    tensors = [*parent.run.own().items(), *child.run.own().items()]
    assert len(dict(tensors)) == len(tensors)
    assert store.used("a") == parent.run.nbytes + child.run.nbytes
    per_position = sum(k + v for k, v in child.run.cache_bytes()) // child.run.rows
    assert child.run.cache.measure().reserved == (child.run.rows - 15) * per_position


def test_a_branch_outlives_its_deleted_parent_whose_shared_memory_still_counts(loaded: Loaded, clock: Clock) -> None:
    store, _, parent, child = grown(loaded, clock)
    before = child.run.attention(0)
    store.delete("a", parent.run.id)
    assert store.runs("a") == [child]
    np.testing.assert_array_equal(child.run.attention(0), before)
    assert store.used("a") == child.run.nbytes + sum(child.run.borrowed().values())
    grandchild = store.branch("a", Choice(child.run.id, step=6, text="xyz"), TEN)
    assert grandchild.run.origin.shared == 17
    (node, _) = tree.nodes(store.runs("a"))
    assert (node["parent"], node["lost"]) == (None, True)


def test_a_branch_of_a_run_under_way_stops_it_and_keeps_it(loaded: Loaded, clock: Clock) -> None:
    store, worker = make(clock)
    parent = store.start("a", loaded, "Hello", TEN)
    work(store, worker, turns=5)
    child = store.branch("a", Choice(parent.run.id, step=2), TEN)
    work(store, worker)
    assert (parent.run.state, parent.settled, parent.retired) == ("stopped", True, False)
    assert (child.run.state, len(child.run.steps)) == ("done", 12)
    assert drain(parent)[-1]["state"] == "stopped"


def test_branches_go_before_the_runs_that_they_continue(loaded: Loaded, clock: Clock) -> None:
    store, worker, parent, child = grown(loaded, clock)
    clock.now += 10
    other = store.start("a", loaded, "Another", TEN)
    work(store, worker)
    clock.now += 10
    child.touch()  # the parent was not looked at since, but is needed for it
    room = held_bytes([parent, child]) + 1
    store.limits = Limits(session_bytes=room + 10 * other.planned)
    store._evict(room, "a")
    assert store.runs("a") == [parent, child]
    store._evict(room - 2, "a")
    assert store.runs("a") == [parent]


def test_idle_runs_are_kept_as_long_as_somebody_looks_at_their_branches(loaded: Loaded, clock: Clock) -> None:
    store, _, parent, child = grown(loaded, clock, idle_seconds=60)
    clock.now += 50
    child.touch()
    clock.now += 50
    store.sweep()
    assert store.runs("a") == [parent, child]
    clock.now += 61
    store.sweep()
    assert store.runs("a") == []


def test_a_run_is_told_again_from_its_log_or_anew(loaded: Loaded, clock: Clock) -> None:
    _, _, parent, child = grown(loaded, clock)
    told = drain(parent)
    assert parent.replay() == told
    anew = child.replay()  # nobody has looked at it: there is no log
    assert [frame["kind"] for frame in anew] == ["begin", "steps", "end"]
    assert [frame["seq"] for frame in anew] == [0, 1, 2]
    assert len(steps_of(anew[1])) == len(child.run.steps)
    small, worker = make(clock, log_bytes=1000)
    lossy = small.start("b", loaded, "Hello", TEN)
    while not lossy.over:
        work(small, worker, turns=1)
        drain(lossy)
    assert [frame["kind"] for frame in lossy.replay()] == ["begin", "steps", "end"]


def test_the_tree_tells_what_each_run_says_and_how_likely_it_was(loaded: Loaded, clock: Clock) -> None:
    store, _, parent, child = grown(loaded, clock)
    first, second = tree.nodes(store.runs("a"))
    assert (first["parent"], second["parent"], second["step"], second["forced"]) == (None, parent.run.id, 4, 1)
    assert first["prompt"] + first["text"] == parent.run.text
    assert first["prompt"] + first["text"][:4] + second["text"] == child.run.text
    assert second["given"] == second["text"][:1]
    assert second["shared"]["positions"] == 15
    expected = sum(np.log(child.run.distribution(step, 0)[each.token_id]) for step, each in enumerate(child.run.steps))
    assert second["chances"]["sum"] == pytest.approx(expected, rel=1e-5)
    assert second["chances"]["mean"] == pytest.approx(expected / 15, rel=1e-5)
    assert first["settings"]["temperature"] == 0.8
    assert "top_k" not in first["settings"]


def test_nonsense_gets_one_sentence_and_changes_nothing(loaded: Loaded, clock: Clock) -> None:
    store, _, parent, child = grown(loaded, clock, prompt_characters=100, new_tokens=20)
    run = parent.run.id
    for wrong, words in [
        (lambda: store.branch("b", Choice(run, step=1), TEN), "another page"),
        (lambda: store.branch("a", Choice("nobody", step=1), TEN), "no longer kept"),
        (lambda: store.branch("a", Choice(run, step=11), TEN), "from 0 to 10"),
        (lambda: store.branch("a", Choice(run, step=1, token=99_999), TEN), "from 0 to 255"),
        (lambda: store.branch("a", Choice(run, step=1, text="x" * 101), TEN), "shorten it to 100"),
        (lambda: store.branch("a", Choice(run, text=""), TEN), "empty"),
        (lambda: store.branch("a", Choice(run, step=1), Decoding(max_new_tokens=21)), "20 or fewer"),
        (lambda: store.rename("a", run, "  "), "1 to 40 characters"),
        (lambda: store.rename("a", run, "x" * 41), "1 to 40 characters"),
        (lambda: store.rename("a", run, None), "1 to 40 characters"),
        (lambda: store.rename("b", run, "mine"), "another page"),
        (lambda: store.delete("b", run), "another page"),
    ]:
        with pytest.raises(ValueError, match=words):
            wrong()
    assert store.runs() == [parent, child]
    store.rename("a", run, " The  first ")
    assert parent.label == "The first"
    store.leave("a")
    with pytest.raises(RefusedError):
        store.find(run)
