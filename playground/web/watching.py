"""Looking at a run from an event of the page: at most so often, and never longer than somebody listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from anyio.to_thread import run_sync

from playground.sessions import Entry

MOST_OFTEN, LEAST_OFTEN = 1 / 20.5, 1 / 12
"""Seconds between two looks: eyes need no more, and less would no longer look alive."""
SHARE = 0.03
"""Part of the time that making frames may take: decoding waits for them."""


def pause(cost: float) -> float:
    """Seconds from one look to the next when making a frame took `cost` seconds."""
    return min(max(cost / SHARE, MOST_OFTEN), LEAST_OFTEN)


async def watch(entry: Entry) -> AsyncIterator[str]:
    """The frames of a run as JSON until its end. Closing this (tab closed, event cancelled) stops the run."""
    due = entry.clock()
    try:
        while not entry.over and not entry.retired:
            at_once = entry.fresh or entry.settled  # else the worker makes it after the step under way
            frame = await (run_sync(entry.frame) if at_once else asyncio.wrap_future(entry.ask(due)))
            if frame is not None:
                yield frame
            due = max(due + pause(entry.cost), entry.clock())
    finally:
        abandon(entry)


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
