"""What happens when something on the page is used."""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncIterator
from typing import Any

import gradio as gr

from playground.records import Decoding
from playground.sessions import Store
from playground.web import family, measuring
from playground.web.layout import SETTINGS, Page
from playground.web.watching import watch

PRIVATE: Any = {"api_visibility": "private", "concurrency_limit": None, "show_progress": "hidden"}
_refusals = itertools.count(1)  # equal sentences must differ, or the page would not show the second one


def wire(page: Page, store: Store, loaded: Any) -> None:
    """Connect the page to the store of runs; call it inside the page's Blocks."""

    async def generate(request: gr.Request, asked: Any) -> AsyncIterator[Any]:
        try:
            prompt, values = asked_for(asked)
            entry = store.start(str(request.session_hash), loaded, prompt, decoding_from(values))
        except ValueError as error:
            yield refusal(str(error))
            return
        async for frame in watch(entry):
            yield frame

    def stop(request: gr.Request) -> None:
        store.stop(str(request.session_hash))

    def leave(request: gr.Request) -> None:
        store.leave(str(request.session_hash))

    # With every streamed message Gradio tells all inputs and outputs of its event that it still goes on, which takes
    # longer than drawing a panel does. So the values are gathered first, and the event has one of each.
    gathered = page.generate.click(
        None,
        [page.prompt, *page.settings],
        [page.asked],
        js="(...values) => [values]",
        trigger_mode="multiple",
        **PRIVATE,
    )
    gathered.then(
        generate,
        [page.asked],
        [page.live],
        preprocess=False,  # the raw values: they are checked here, in one place, with one kind of sentence
        trigger_mode="multiple",  # a second press replaces the run that is under way
        api_name="page_generate",
        show_progress_on=[],
        **PRIVATE,
    )
    page.stop.click(stop, None, None, trigger_mode="multiple", api_name="page_stop", **PRIVATE)
    page.blocks.unload(leave)
    measuring.wire(page.measures, store, loaded)
    family.wire(page, store, page.settings, lambda values: decoding_from(checked(values)), refusal)
    gr.on(
        [each.change for each in page.settings],  # type: ignore[attr-defined]
        None,
        list(page.settings),
        None,
        js="(...values) => window.playground?.settingsChanged(values)",
        **PRIVATE,
    )


def asked_for(asked: Any) -> tuple[Any, tuple[Any, ...]]:
    """The prompt, and the settings' raw values. Raises `ValueError` when the page did not send them."""
    if not isinstance(asked, list) or not asked:
        raise ValueError("The page did not send all settings: reload it.")
    return asked[0], checked(asked[1:])


def checked(values: list[Any]) -> tuple[Any, ...]:
    """The settings' raw values, all of them. Raises `ValueError` otherwise."""
    if len(values) != len(SETTINGS):
        raise ValueError("The page did not send all settings: reload it.")
    return tuple(values)


def refusal(sentence: str) -> dict[str, Any]:
    """Goes to the live view in place of a frame; the view keeps what it shows, and the notice shows the sentence."""
    return {"refused": sentence, "at": next(_refusals)}


def decoding_from(values: tuple[Any, ...]) -> Decoding:
    """The settings from the widgets' raw values. Raises `ValueError` with one sentence."""
    settings = dict(zip(SETTINGS, values, strict=True))
    return Decoding.from_json({name: rounded(value) for name, value in settings.items()})


def rounded(value: Any) -> Any:
    """Slider values without the dust of binary fractions: 0.15 + 0.15 is shown and used as 0.3."""
    return round(value, 6) if isinstance(value, float) and math.isfinite(value) else value
