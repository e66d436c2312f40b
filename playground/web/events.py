"""What happens when something on the page is used."""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncIterator
from typing import Any

import gradio as gr

from playground.records import Decoding
from playground.sessions import Store
from playground.web.layout import SETTINGS, Page
from playground.web.watching import watch

PRIVATE: Any = {"api_visibility": "private", "concurrency_limit": None, "show_progress": "hidden"}
_notices = itertools.count(1)  # equal sentences must differ, or the page would not show the second one


def wire(page: Page, store: Store, loaded: Any) -> None:
    """Connect the page to the store of runs; call it inside the page's Blocks."""

    async def generate(request: gr.Request, prompt: Any, *values: Any) -> AsyncIterator[tuple[Any, Any]]:
        try:
            entry = store.start(str(request.session_hash), loaded, prompt, decoding_from(values))
        except ValueError as error:
            yield None, notice(str(error))  # the live view keeps what it shows
            return
        async for frame in watch(entry):
            yield frame, notice("")

    def stop(request: gr.Request) -> None:
        store.stop(str(request.session_hash))

    def leave(request: gr.Request) -> None:
        store.leave(str(request.session_hash))

    page.generate.click(
        generate,
        [page.prompt, *page.settings],
        [page.live, page.notice],
        preprocess=False,  # the raw values: they are checked here, in one place, with one kind of sentence
        trigger_mode="multiple",  # a second press replaces the run that is under way
        api_name="page_generate",
        **PRIVATE,
    )
    page.stop.click(stop, None, None, trigger_mode="multiple", api_name="page_stop", **PRIVATE)
    page.blocks.unload(leave)
    gr.on(
        [each.change for each in page.settings],  # type: ignore[attr-defined]
        None,
        list(page.settings),
        None,
        js="(...values) => window.playground?.settingsChanged(values)",
        **PRIVATE,
    )


def notice(sentence: str) -> dict[str, Any]:
    """Value of the notice beside the prompt; the empty one is always the same and costs no redraw."""
    return {"text": sentence, "at": next(_notices) if sentence else 0}


def decoding_from(values: tuple[Any, ...]) -> Decoding:
    """The settings from the widgets' raw values. Raises `ValueError` with one sentence."""
    settings = dict(zip(SETTINGS, values, strict=True))
    return Decoding.from_json({name: rounded(value) for name, value in settings.items()})


def rounded(value: Any) -> Any:
    """Slider values without the dust of binary fractions: 0.15 + 0.15 is shown and used as 0.3."""
    return round(value, 6) if isinstance(value, float) and math.isfinite(value) else value
