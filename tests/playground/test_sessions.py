"""The store of runs: who may start, what is counted, what is forgotten, and that the worker survives everything."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from models import Loaded
from playground import Decoding, attention, engine, frames, sessions
from playground.sessions import Entry, Limits, RefusedError, Store, Worker
from tests.frame_reader import steps_of
from tests.tiny_model import tiny_loaded

TEN = Decoding(max_new_tokens=10)


class Asked:
    """A reader who asked for the next frame of a run."""

    def __init__(self, entry: Entry, due: float = 0.0) -> None:
        self.listens = True
        self.told: list[str | None] = []
        entry.ask(self, due)

    def waits(self) -> bool:
        return self.listens

    def tell(self, frame: str | None) -> None:
        self.told.append(frame)

    def fail(self, error: Exception) -> None:
        raise error

    def frame(self) -> dict[str, Any]:
        """What was told, once."""
        (text,) = self.told
        assert text is not None
        return dict(json.loads(text))


class Clock:
    """Time that moves when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return tiny_loaded()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make(clock: Clock, **limits: Any) -> tuple[Store, Worker]:
    store = Store(Limits(**limits), clock)
    return store, Worker(store)


def work(store: Store, worker: Worker, turns: int = 10_000) -> None:
    """The worker's loop, on this thread and without waiting."""
    for _ in range(turns):
        entry = store.turn(patience=0)
        if entry is None:
            return
        worker.advance(entry)


def drain(entry: Entry) -> list[dict[str, Any]]:
    frames = []
    while (text := entry.frame()) is not None:
        frames.append(json.loads(text))
    return frames


def bytes_of(loaded: Loaded, prompt: str, decoding: Decoding = TEN) -> int:
    return engine.plan_bytes(loaded, len(prompt), decoding.max_new_tokens)


def test_a_run_is_made_to_its_end_and_told_in_numbered_frames(loaded: Loaded, clock: Clock) -> None:
    store, worker = make(clock)
    entry = store.start("a", loaded, "Hello", TEN)
    told = drain(entry)
    while not entry.run.finished:
        work(store, worker, turns=1)
        told += drain(entry)
    told += drain(entry)
    assert [frame["seq"] for frame in told] == list(range(len(told)))
    assert [told[0]["kind"], told[-1]["kind"], told[-1]["state"]] == ["begin", "end", "done"]
    steps = [step["index"] for frame in told if frame["kind"] == "steps" for step in steps_of(frame)]
    assert steps == list(range(10))


def test_what_happened_between_two_looks_is_one_frame(loaded: Loaded, clock: Clock) -> None:
    store, worker = make(clock)
    entry = store.start("a", loaded, "Hello", TEN)
    assert [frame["kind"] for frame in drain(entry)] == ["begin"]
    work(store, worker)
    told = drain(entry)
    assert [frame["kind"] for frame in told] == ["steps", "end"]
    assert len(steps_of(told[0])) == 10
    assert entry.frame() is None


def test_the_prefill_is_shown_as_progress(loaded: Loaded, clock: Clock) -> None:
    store, worker = make(clock)
    entry = store.start("a", loaded, "x" * 200, TEN)
    entry.run.chunk = 64
    drain(entry)
    work(store, worker, turns=2)
    assert [(frame["kind"], frame.get("done")) for frame in drain(entry)] == [("prefill", 128)]


def test_runs_of_different_sessions_take_turns(loaded: Loaded, clock: Clock) -> None:
    store, worker = make(clock)
    first, second = (store.start(name, loaded, "Hello", TEN) for name in "ab")
    work(store, worker, turns=8)
    assert [len(first.run.steps), len(second.run.steps)] == [4, 4]


def test_a_new_run_replaces_the_one_under_way_of_the_same_session_only(loaded: Loaded, clock: Clock) -> None:
    store, worker = make(clock)
    other = store.start("b", loaded, "Hello", TEN)
    old = store.start("a", loaded, "Hello", TEN)
    work(store, worker, turns=4)
    new = store.start("a", loaded, "Hello again", TEN)
    assert old.retired
    assert old.run.finished
    assert store.runs("a") == [new]
    work(store, worker)
    assert [len(old.run.steps), other.run.state, new.run.state] == [2, "done", "done"]


def test_stop_ends_a_run_before_its_next_step_and_keeps_it(loaded: Loaded, clock: Clock) -> None:
    store, worker = make(clock)
    entry = store.start("a", loaded, "Hello", TEN)
    work(store, worker, turns=3)
    store.stop("somebody else")
    assert not entry.run.finished
    store.stop("a")
    work(store, worker)
    assert [len(entry.run.steps), entry.run.state] == [3, "stopped"]
    assert store.find(entry.run.id) is entry
    assert store.active == 0


def test_a_step_under_way_when_stop_is_pressed_is_told_before_the_end(
    loaded: Loaded, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, worker = make(clock)
    entry = store.start("a", loaded, "Hello", TEN)
    work(store, worker, turns=3)
    told, forward = drain(entry), entry.run._forward

    def stopped_in_the_middle(ids: Any) -> Any:
        store.stop("a")
        told.extend(drain(entry))
        return forward(ids)

    monkeypatch.setattr(entry.run, "_forward", stopped_in_the_middle)
    work(store, worker)
    told += drain(entry)
    assert sum(len(steps_of(frame)) for frame in told if frame["kind"] == "steps") == len(entry.run.steps) == 4
    assert [frame["kind"] for frame in told].index("end") == len(told) - 1


def test_a_prompt_that_cannot_fit_is_refused_with_the_length_that_fits(loaded: Loaded, clock: Clock) -> None:
    room = bytes_of(loaded, "x" * 50)
    store, _ = make(clock, session_bytes=room)
    with pytest.raises(RefusedError, match=r"the prompt may have up to 50 tokens\.$"):
        store.start("a", loaded, "x" * 51, TEN)
    assert store.start("a", loaded, "x" * 50, TEN).planned == room


def test_too_many_new_tokens_for_the_memory_are_refused(loaded: Loaded, clock: Clock) -> None:
    store, _ = make(clock, session_bytes=bytes_of(loaded, "x"))
    with pytest.raises(RefusedError, match="ask for fewer than 200 new tokens"):
        store.start("a", loaded, "Hello", Decoding(max_new_tokens=200))


def test_a_refusal_leaves_the_run_under_way_alone(loaded: Loaded, clock: Clock) -> None:
    store, worker = make(clock, session_bytes=bytes_of(loaded, "x" * 20))
    entry = store.start("a", loaded, "Hello", TEN)
    with pytest.raises(RefusedError):
        store.start("a", loaded, "x" * 200, TEN)
    work(store, worker)
    assert entry.run.state == "done"


def test_the_longest_idle_runs_of_a_session_make_room(loaded: Loaded, clock: Clock) -> None:
    store, worker = make(clock, session_bytes=2 * bytes_of(loaded, "Hello") + 100_000)
    kept = []
    for _ in range(12):
        clock.now += 1
        kept.append(store.start("a", loaded, "x" * 100, TEN))
        work(store, worker)
        drain(kept[-1])
    alive = store.runs("a")
    assert store.used("a") <= store.limits.session_bytes
    assert alive == kept[-len(alive) :]
    assert len(alive) < len(kept)


def test_a_run_that_was_looked_at_lately_is_kept_longer(loaded: Loaded, clock: Clock) -> None:
    one = bytes_of(loaded, "Hello") + 1
    store, worker = make(clock, session_bytes=one, total_bytes=2 * one)
    first, second = (store.start(name, loaded, "Hello", TEN) for name in "ab")
    work(store, worker)
    clock.now += 1
    store.find(first.run.id)
    store.start("c", loaded, "Hello", TEN)
    assert first in store.runs()
    assert second not in store.runs()


def test_runs_under_way_are_never_evicted(loaded: Loaded, clock: Clock) -> None:
    one = bytes_of(loaded, "Hello")
    store, _ = make(clock, session_bytes=one, total_bytes=2 * one)
    both = [store.start(name, loaded, "Hello", TEN) for name in "ab"]
    with pytest.raises(RefusedError, match="in use by others"):
        store.start("c", loaded, "Hello", TEN)
    assert store.runs() == both


def test_there_is_a_limit_to_runs_under_way(loaded: Loaded, clock: Clock) -> None:
    store, worker = make(clock, active=2)
    for name in "ab":
        store.start(name, loaded, "Hello", TEN)
    with pytest.raises(RefusedError, match="2 other runs are under way"):
        store.start("c", loaded, "Hello", TEN)
    store.start("b", loaded, "replaces its own", TEN)
    work(store, worker)
    store.start("c", loaded, "Hello", TEN)


def test_bytes_of_a_finished_run_are_those_it_holds(loaded: Loaded, clock: Clock) -> None:
    store, worker = make(clock)
    entry = store.start("a", loaded, "Hello", Decoding(max_new_tokens=100))
    assert store.used("a") == entry.planned
    work(store, worker)
    assert store.used() == entry.run.nbytes
    frame = entry.frame() or ""
    assert store.used() == entry.run.nbytes + len(frame)


def test_leaving_frees_everything_of_that_session(loaded: Loaded, clock: Clock) -> None:
    store, worker = make(clock)
    store.start("a", loaded, "Hello", TEN)
    work(store, worker)
    running, other = store.start("a", loaded, "Hello", TEN), store.start("b", loaded, "Hello", TEN)
    store.leave("a")
    assert running.run.finished
    assert store.used("a") == 0
    assert store.runs() == [other]
    with pytest.raises(RefusedError, match="no longer kept"):
        store.find(running.run.id)


def test_idle_runs_are_forgotten_after_a_while(loaded: Loaded, clock: Clock) -> None:
    store, worker = make(clock, idle_seconds=60)
    entry = store.start("a", loaded, "Hello", TEN)
    work(store, worker)
    clock.now += 61
    store.find(entry.run.id)
    store.sweep()
    assert store.runs() == [entry]
    clock.now += 61
    store.sweep()
    assert store.runs() == []


def test_a_run_has_only_so_much_time(loaded: Loaded, clock: Clock) -> None:
    store, worker = make(clock, seconds=60)
    entry = store.start("a", loaded, "Hello", TEN)
    work(store, worker, turns=2)
    clock.now += 61
    work(store, worker)
    assert [entry.run.state, len(entry.run.steps)] == ["stopped", 2]
    assert "60 s" in entry.run.reason


@pytest.mark.parametrize(
    ("error", "sentence"),
    [(RuntimeError("CUDA out of memory. Tried to allocate"), "out of memory"), (KeyError("secret"), "model failed")],
)
def test_a_failure_becomes_one_sentence_and_the_worker_goes_on(
    loaded: Loaded, clock: Clock, monkeypatch: pytest.MonkeyPatch, error: Exception, sentence: str
) -> None:
    store, worker = make(clock)
    entry = store.start("a", loaded, "Hello", TEN)
    next_one = store.start("b", loaded, "Hello", TEN)

    def fail() -> None:
        raise error

    monkeypatch.setattr(entry.run, "advance", fail)
    work(store, worker)
    end = drain(entry)[-1]
    assert [end["kind"], end["state"]] == ["end", "error"]
    assert sentence in end["reason"]
    assert "secret" not in end["reason"]
    assert next_one.run.state == "done"


def test_lost_frames_are_handed_out_again(loaded: Loaded, clock: Clock) -> None:
    store, worker = make(clock)
    entry = store.start("a", loaded, "Hello", TEN)
    told = drain(entry)
    for _ in range(5):
        work(store, worker, turns=1)
        told += drain(entry)
    assert entry.logged(1, 3) == told[1:4]
    assert entry.logged(4, 99) == told[4:]


def test_the_log_is_bounded_and_says_when_a_frame_is_gone(loaded: Loaded, clock: Clock) -> None:
    store, worker = make(clock, log_bytes=10_000)
    entry = store.start("a", loaded, "Hello", Decoding(max_new_tokens=100))
    last: list[dict[str, Any]] = []
    while not entry.run.finished:
        last = drain(entry) or last
        work(store, worker, turns=1)
    assert entry.nbytes - entry.run.nbytes <= 10_000 + len(json.dumps(last[-1]))
    assert entry.logged(last[-1]["seq"], last[-1]["seq"]) == last[-1:]
    with pytest.raises(RefusedError, match="no longer kept"):
        entry.logged(0, 3)


@pytest.mark.parametrize(
    ("prompt", "decoding", "sentence"),
    [
        ("x" * 1001, TEN, "has 1,001 characters: shorten it to 1,000"),
        (None, TEN, "must be text"),
        (["x"], TEN, "must be text"),
        ("", TEN, "empty"),
        ("half \ud800 pair", TEN, "surrogate"),
        ("x" * 400, TEN, "400 tokens"),
        ("x", replace(TEN, max_new_tokens=101), "ask for 100 or fewer"),
    ],
)
def test_bad_requests_are_refused_in_one_sentence(
    loaded: Loaded, clock: Clock, prompt: Any, decoding: Decoding, sentence: str
) -> None:
    store, _ = make(clock, prompt_characters=1000, new_tokens=100)
    with pytest.raises(ValueError, match=sentence) as raised:
        store.start("a", loaded, prompt, decoding)
    assert "\n" not in str(raised.value)
    assert store.runs() == []


def test_closing_ends_all_runs_and_takes_no_new_ones(loaded: Loaded, clock: Clock) -> None:
    store, worker = make(clock)
    entry = store.start("a", loaded, "Hello", TEN)
    store.close()
    work(store, worker)
    assert entry.run.state == "stopped"
    with pytest.raises(RefusedError, match="shutting down"):
        store.start("b", loaded, "Hello", TEN)


def test_the_thread_works_by_itself_and_ends_when_the_store_is_closed(loaded: Loaded) -> None:
    store = Store(Limits())
    worker = Worker(store)
    worker.start()
    entry = store.start("a", loaded, "Hello", Decoding(max_new_tokens=200))
    assert store.wait(lambda: entry.run.finished, seconds=60)
    assert entry.run.state == "done"
    store.close()
    worker.join(10)
    assert not worker.is_alive()


def test_a_frame_that_was_asked_for_is_made_after_the_step_under_way(loaded: Loaded) -> None:
    store = Store()
    entry = store.start("a", loaded, "Hello", Decoding(max_new_tokens=4, stop_at_end=False))
    worker = Worker(store)
    begin, asked = entry.frame(), Asked(entry)
    assert begin is not None
    assert not asked.told
    worker.advance(entry)
    assert [step["index"] for step in steps_of(asked.frame())] == [0]


def test_a_frame_that_is_not_due_waits_for_a_later_step(loaded: Loaded, clock: Clock) -> None:
    store, worker = make(clock)
    entry = store.start("a", loaded, "Hello", Decoding(max_new_tokens=3, stop_at_end=False))
    entry.frame()
    asked = Asked(entry, due=clock() + 5)
    worker.advance(entry)
    assert not asked.told
    clock.now += 5
    worker.advance(entry)
    assert [step["index"] for step in steps_of(asked.frame())] == [0, 1]
    at_the_end = Asked(entry, due=clock() + 5)
    worker.advance(entry)
    assert at_the_end.told


def test_the_mosaic_takes_its_share_of_the_time(loaded: Loaded, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    now = Clock()
    for module in (sessions.time, frames):
        monkeypatch.setattr(module, "perf_counter", now)
    store, worker = make(clock)
    entry = store.start("a", loaded, "Hello", Decoding(max_new_tokens=60, stop_at_end=False))
    pooled = attention.pooled

    def slow(run: Any, start: int, end: int, width: int) -> Any:
        now.now += 0.001 * (end - start)  # a millisecond a row
        return pooled(run, start, end, width)

    monkeypatch.setattr(attention, "pooled", slow)
    shown = []
    for _ in range(40):
        work(store, worker, turns=1)
        drain(entry)
        shown.append((now.now, entry._cursor.tiled))
        now.now += 0.05
    grown = [(time, rows) for (time, rows), (_, before) in zip(shown[1:], shown, strict=False) if rows > before]
    times = [time for time, _ in grown]
    assert len(grown) > 3
    assert all(after - before >= 0.002 / sessions.MOSAIC_SHARE for before, after in pairwise(times))
    assert all(after - before == 2 for (_, before), (_, after) in pairwise(grown))  # 2.5 ms hold two of them


def test_no_question_for_a_frame_stays_open(loaded: Loaded) -> None:
    store = Store()
    entry = store.start("a", loaded, "Hello", Decoding(max_new_tokens=1, stop_at_end=False))
    entry.frame()
    while_running = Asked(entry)
    Worker(store).advance(entry)
    assert while_running.frame()["kind"] == "steps"
    assert Asked(entry).frame()["kind"] == "end"
    other = store.start("b", loaded, "Hello", Decoding(max_new_tokens=4))
    forgotten = Asked(other)
    store.leave("b")
    assert forgotten.told == [None]
    assert Asked(other).told == [None]


def test_a_frame_that_nobody_awaits_any_more_is_not_made(loaded: Loaded) -> None:
    store = Store()
    entry = store.start("a", loaded, "Hello", Decoding(max_new_tokens=4, stop_at_end=False))
    entry.frame()
    Asked(entry).listens = False
    Worker(store).advance(entry)
    assert json.loads(entry.frame() or "")["seq"] == 1


def test_a_run_for_which_the_device_has_no_memory_is_refused_before_it_begins(
    loaded: Loaded, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = make(clock)
    room = bytes_of(loaded, "Hello there")
    monkeypatch.setattr("playground.sessions.free_bytes", lambda device: room)
    store.start("me", loaded, "Hello there", TEN)
    with pytest.raises(RefusedError, match=r"are free on its device: with 10 new tokens .* up to \d+ tokens\."):
        store.start("me", loaded, "Hello there" * 2, TEN)
    assert len(store.runs("me")) == 1
