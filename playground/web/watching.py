"""Looking at a run from an event of the page: at most so often, and never longer than somebody listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from anyio.to_thread import run_sync

from playground.sessions import Entry

MOST_OFTEN, LEAST_OFTEN = 1 / 20.5, 1 / 12
"""Seconds between two looks: eyes need no more, and less would no longer look alive."""
SHARE = 0.03
"""Part of the time that making frames may take: decoding waits for them."""


def pause(cost: float) -> float:
    """Seconds from one look to the next when making a frame took `cost` seconds."""
    return min(max(cost / SHARE, MOST_OFTEN), LEAST_OFTEN)


class _Awaited:
    """A frame that another thread makes and a coroutine awaits; waking up for it costs decoding its turn at the lock.

    A future of `concurrent.futures` wrapped for asyncio does the same in several times as many calls.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.frame: asyncio.Future[str | None] = self._loop.create_future()

    def waits(self) -> bool:
        """Until the coroutine was cancelled."""
        return not self.frame.cancelled()

    def tell(self, frame: str | None) -> None:
        """Hand the frame over to the coroutine's thread."""
        self._settle(self.frame.set_result, frame)

    def fail(self, error: Exception) -> None:
        """Raise the error there."""
        self._settle(self.frame.set_exception, error)

    def _settle(self, act: Callable[[Any], None], value: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is left to listen
            self._loop.call_soon_threadsafe(self._act, act, value)

    def _act(self, act: Callable[[Any], None], value: Any) -> None:
        if not self.frame.done():
            act(value)


async def watch(entry: Entry) -> AsyncIterator[str]:
    """The frames of a run as JSON until its end. Closing this (tab closed, event cancelled) stops the run."""
    due = entry.clock()
    try:
        while not entry.over and not entry.retired:
            at_once = entry.fresh or entry.settled  # else the worker makes it after the step under way
            frame = await (run_sync(entry.frame) if at_once else _asked(entry, due))
            if frame is not None:
                yield frame
            due = max(due + pause(entry.cost), entry.clock())
    finally:
        abandon(entry)


def _asked(entry: Entry, due: float) -> asyncio.Future[str | None]:
    awaited = _Awaited()
    entry.ask(awaited, due)
    return awaited.frame


async def changes(entry: Entry) -> AsyncIterator[int]:
    """Index of the first new step, whenever there are new ones; once more when the run has ended."""
    seen = 0
    try:
        while not entry.retired:
            finished, made = entry.settled, len(entry.run.steps)
            if made > seen or finished:
                entry.touch()
                yield seen
                seen = made
            if finished:
                return
            await asyncio.sleep(MOST_OFTEN)
    finally:
        abandon(entry)


def abandon(entry: Entry) -> None:
    """Nobody listens any more: end the run within a step. It stays to be read until it is evicted."""
    if not entry.run.finished:
        entry.run.stop()
