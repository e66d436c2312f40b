"""A design of the Architecture page, made small and given random weights, runs in the playground."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import gradio as gr

from models.twins import built, twin
from playground.records import Decoding
from playground.sessions import Store
from playground.web.architecture import config_from
from playground.web.layout import Page
from playground.web.watching import watch


def wire(
    page: Page,
    store: Store,
    settings: list[Any],
    decoding: Callable[[list[Any]], Decoding],
    refusal: Callable[[str], Any],
    tokenizer: Any,
) -> None:
    """Connect the page's "Open a tiny one" to the live view; call it inside the page's Blocks.

    Args:
        page: its parts.
        store: of runs.
        settings: the widgets of the settings.
        decoding: makes settings of their raw values, or raises `ValueError` with one sentence.
        refusal: what the live view gets in place of a frame.
        tokenizer: of the loaded model; the design speaks its tokens.
    """

    async def open_design(request: gr.Request, event: gr.EventData, prompt: Any, *values: Any) -> AsyncIterator[Any]:
        try:
            config = twin(config_from(event._data), len(tokenizer))
            small = await asyncio.to_thread(built, config, tokenizer)
            entry = store.start(str(request.session_hash), small, prompt, decoding(list(values)))
        except ValueError as error:
            yield refusal(str(error))
            return
        async for frame in watch(entry):
            yield frame

    page.architecture.opened(  # Gradio makes an event of each name that the component's script triggers
        open_design,
        [page.prompt, *settings],
        [page.live],
        preprocess=False,
        trigger_mode="multiple",
        api_name="page_open_design",
        show_progress_on=[],
        api_visibility="private",
        concurrency_limit=None,
        show_progress="hidden",
    )
