"""How often a run is looked at, and what happens when nobody looks any more."""

from __future__ import annotations

import asyncio
import json

import pytest

from models import Loaded
from playground import Decoding
from playground.sessions import Entry, Store, Worker
from playground.web.watching import LEAST_OFTEN, MOST_OFTEN, SHARE, changes, pause, watch
from tests.web.conftest import run_async


def begin(loaded: Loaded, tokens: int = 50) -> tuple[Store, Worker, Entry]:
    store = Store()
    entry = store.start("a", loaded, "Hello", Decoding(max_new_tokens=tokens))
    return store, Worker(store), entry


def test_cheap_frames_come_as_often_as_eyes_need_and_dear_ones_less_often() -> None:
    assert pause(0.0) == MOST_OFTEN
    assert pause(0.002) == pytest.approx(0.002 / SHARE)
    assert pause(10.0) == LEAST_OFTEN


def test_watching_ends_with_the_run(loaded: Loaded) -> None:
    store, worker, entry = begin(loaded)

    async def all_frames() -> list[str]:
        return [frame async for frame in watch(entry)]

    worker.start()
    kinds = [json.loads(frame)["kind"] for frame in run_async(all_frames())]
    store.close()
    worker.join(10)
    assert [kinds[0], kinds[-1]] == ["begin", "end"]


@pytest.mark.parametrize("look", [watch, changes])
def test_whoever_goes_away_ends_the_run(loaded: Loaded, look: object) -> None:
    _, worker, entry = begin(loaded)
    worker.advance(entry)

    async def first_only() -> None:
        looking = look(entry)  # type: ignore[operator]
        await anext(looking)
        await looking.aclose()

    run_async(first_only())
    assert entry.run.state == "stopped"


def test_watching_a_replaced_run_ends_silently(loaded: Loaded) -> None:
    store, _, entry = begin(loaded)

    async def replaced() -> list[str]:
        looking = watch(entry)
        await anext(looking)
        store.start("a", loaded, "Hello", Decoding(max_new_tokens=5))
        return [frame async for frame in looking]

    assert run_async(replaced()) == []


def test_a_cancelled_task_ends_the_run(loaded: Loaded) -> None:
    _, _, entry = begin(loaded)

    async def cancelled() -> None:
        seen = asyncio.Event()

        async def reader() -> None:
            async for _ in watch(entry):
                seen.set()

        task = asyncio.create_task(reader())
        await seen.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_async(cancelled())
    assert entry.run.state == "stopped"
