"""The real app around a tiny random model, served on a free loopback port for all tests of the web."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
import pytest

from models import Loaded
from playground.sessions import Limits, Store
from tests.tiny_model import tiny_loaded

if TYPE_CHECKING:
    from playground.server import Server

T = TypeVar("T")


@pytest.fixture(scope="session")
def loaded() -> Loaded:
    return tiny_loaded()


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Its result, from a loop in a thread of its own: with a browser open, this thread has a loop running already."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


@dataclass(frozen=True)
class Served:
    """A running app: its address, and the store behind it."""

    url: str
    store: Store

    def call(self, name: str, *data: Any, session: str | None = None) -> list[tuple[str, Any]]:
        """The (event, data) pairs that an endpoint streams."""
        body = {"data": list(data)} | ({"session_hash": session} if session else {})
        with httpx.Client(base_url=self.url, timeout=60) as client:
            joined = client.post(f"/gradio_api/call/{name}", json=body)
            joined.raise_for_status()
            told = client.get(f"/gradio_api/call/{name}/{joined.json()['event_id']}").text
        events = [block.split("\n", 1) for block in told.strip().split("\n\n")]
        return [(event.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for event, data in events]


@pytest.fixture(scope="session")
def served(loaded: Loaded) -> Iterator[Served]:
    from playground.server import Settings, make_server

    limits = Limits(prompt_characters=2000, new_tokens=400, active=3)
    settings = Settings(port=0, limits=limits, log_level="warning")
    ready, where = threading.Event(), []

    def started(url: str) -> None:
        where.append(url)
        ready.set()

    async def made() -> Server:
        return make_server(loaded, settings, started)  # type: ignore[arg-type]

    server = run_async(made())  # with no loop running, Gradio would make one for each lock and leave it open
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert ready.wait(60)
    yield Served(where[0], server.app.state.store)
    server.should_exit = True
    thread.join(20)
    assert not thread.is_alive()
