"""How often a run is looked at, and what happens when nobody looks any more."""

from __future__ import annotations

import asyncio
import json

import pytest

from models import Loaded
from playground import Decoding
from playground.sessions import Entry, Store, Worker
from playground.web.watching import LEAST_OFTEN, MOST_OFTEN, SHARE, Mailbox, changes, pause, watch
from tests.web.conftest import run_async


def begin(loaded: Loaded, tokens: int = 50) -> tuple[Store, Worker, Entry]:
    store = Store()
    entry = store.start("a", loaded, "Hello", Decoding(max_new_tokens=tokens))
    return store, Worker(store), entry


def test_cheap_frames_come_as_often_as_eyes_need_and_dear_ones_less_often() -> None:
    assert pause(0.0) == MOST_OFTEN
    assert pause(0.002) == pytest.approx(0.002 / SHARE)
    assert pause(10.0) == LEAST_OFTEN


def test_a_frame_that_comes_before_it_is_due_is_not_kept_waiting() -> None:
    async def early() -> str | None:
        mailbox = Mailbox(due=1e6, patience=1e6)
        mailbox.tell("the end")
        return await asyncio.wait_for(mailbox.take(), 10)

    assert run_async(early()) == "the end"


def test_a_frame_that_is_there_in_time_is_found_without_being_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    async def in_time() -> str | None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *_: pytest.fail("it was woken"))
        mailbox = Mailbox(due=0.0, patience=0.0)
        mailbox.tell("a frame")
        return await asyncio.wait_for(mailbox.take(), 10)

    assert run_async(in_time()) == "a frame"


def test_a_late_frame_wakes_whoever_has_looked_for_it() -> None:
    async def late() -> str | None:
        mailbox = Mailbox(due=0.0, patience=0.0)
        asyncio.get_running_loop().call_later(0, mailbox.tell, "a frame")  # behind the look
        return await asyncio.wait_for(mailbox.take(), 10)

    assert run_async(late()) == "a frame"


def test_an_error_comes_out_where_the_frame_was_awaited() -> None:
    async def failed() -> None:
        mailbox = Mailbox(due=1e6, patience=1e6)
        mailbox.fail(ValueError("no frame"))
        await asyncio.wait_for(mailbox.take(), 10)

    with pytest.raises(ValueError, match="no frame"):
        run_async(failed())


def test_nobody_waits_for_a_frame_whose_reader_was_cancelled() -> None:
    async def cancelled() -> bool:
        mailbox = Mailbox(due=1e6, patience=1e6)
        task = asyncio.create_task(mailbox.take())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return mailbox.waits()

    assert run_async(cancelled()) is False


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
