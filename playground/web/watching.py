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


class Mailbox:
    """One frame, made by another thread and awaited here.

    Whoever waits looks when the frame should be there. To be woken interrupts decoding at Python's lock several times,
    so a frame wakes only when it came before it was due (the run has ended), or after that look.
    """

    def __init__(self, due: float, patience: float) -> None:
        """A frame that is due in so many seconds, and should be there so many later."""
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + due
        self._looked = False
        self._content: tuple[str | None, Exception | None] | None = None
        self._filled: asyncio.Future[None] = self._loop.create_future()
        self._timer = self._loop.call_later(max(due, 0.0) + patience, self._look)

    def waits(self) -> bool:
        """Until it was emptied, or nobody will do so."""
        return not self._filled.done()

    def tell(self, frame: str | None) -> None:
        """Put the frame in."""
        self._put((frame, None))

    def fail(self, error: Exception) -> None:
        """Put an error in, to be raised where the frame is awaited."""
        self._put((None, error))

    def _put(self, content: tuple[str | None, Exception | None]) -> None:
        self._content = content  # first this and then the question, `_look` the other way round: one sees the other
        if self._looked or self._loop.time() < self._due:
            with suppress(RuntimeError):  # the loop is closed: nobody is left to listen
                self._loop.call_soon_threadsafe(self._wake)

    def _look(self) -> None:
        self._looked = True
        if self._content is not None:
            self._wake()

    def _wake(self) -> None:
        if not self._filled.done():
            self._filled.set_result(None)

    async def take(self) -> str | None:
        """The frame, or the error in its place."""
        try:
            await self._filled
        finally:
            self._timer.cancel()
        frame, error = self._content or (None, None)
        if error is not None:
            raise error
        return frame


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
    """The frame that is due then: it should be there after the step under way, unless steps take long."""
    step = entry.run.steps[-1].seconds if entry.run.steps else 0.0
    mailbox = Mailbox(due - entry.clock(), min(step, LONGEST_STEP) + entry.cost)
    entry.ask(mailbox, due)
    return await mailbox.take()


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
