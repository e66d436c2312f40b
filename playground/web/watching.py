"""Looking at a run from an event of the page: at most so often, and never longer than somebody listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from anyio.to_thread import run_sync

from playground.sessions import Entry

MOST_OFTEN, LEAST_OFTEN = 1 / 20.5, 1 / 12
"""Seconds between two looks: eyes need no more, and less would no longer look alive."""
SHARE = 0.03
"""Part of the time that making frames may take: decoding waits for them."""

LONGEST_STEP = 0.01
"""Seconds that a step is given before whoever waits for its frame asks to be woken."""


def pause(cost: float) -> float:
    """Seconds from one look to the next when making a frame took `cost` seconds."""
    return min(max(cost / SHARE, MOST_OFTEN), LEAST_OFTEN)


class _Mailbox:
    """One frame, made by another thread.

    Whoever wants it looks when it should be there, and is woken only if it was not: a thread that is woken interrupts
    decoding at Python's lock several times before it sleeps again.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._content: tuple[str | None, Exception | None] | None = None
        self._filled: asyncio.Future[None] | None = None
        self._open = True

    def waits(self) -> bool:
        """Until it was emptied, or nobody will do so."""
        return self._open

    def tell(self, frame: str | None) -> None:
        """Put the frame in."""
        self._put((frame, None))

    def fail(self, error: Exception) -> None:
        """Put an error in, to be raised where the frame is awaited."""
        self._put((None, error))

    def _put(self, content: tuple[str | None, Exception | None]) -> None:
        self._content = content  # first this and then the question, `take` the other way round: one sees the other
        if self._filled is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody is left to listen
                self._loop.call_soon_threadsafe(self._wake, self._filled)

    @staticmethod
    def _wake(filled: asyncio.Future[None]) -> None:
        if not filled.done():
            filled.set_result(None)

    async def take(self, patience: float) -> str | None:
        """The frame, which should be there in `patience` seconds."""
        try:
            if patience > 0:
                await asyncio.sleep(patience)
            self._filled = self._loop.create_future()
            if self._content is None:
                await self._filled
        finally:
            self._open = False
        frame, error = self._content or (None, None)
        if error is not None:
            raise error
        return frame


def patience(entry: Entry, due: float) -> float:
    """Seconds until a frame that is due then should be made: after the step under way, unless steps take long."""
    step = entry.run.steps[-1].seconds if entry.run.steps else 0.0
    return due - entry.clock() + min(step, LONGEST_STEP) + entry.cost


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


async def _asked(entry: Entry, due: float) -> str | None:
    mailbox = _Mailbox()
    entry.ask(mailbox, due)
    return await mailbox.take(patience(entry, due))


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
