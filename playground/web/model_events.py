"""Choosing a model on the page: progress while it loads, the card when it has, a sentence when it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import gradio as gr
from anyio.to_thread import run_sync

from playground.capability import capability
from playground.model_store import Loading, ModelStore, as_choice
from playground.web import models_tab
from playground.web.models_tab import ModelParts

PRIVATE: Any = {"api_visibility": "private", "concurrency_limit": None, "show_progress": "hidden"}
LOOK_EVERY = 0.1
"""Seconds between two looks at how far a load has come."""


def wire(parts: ModelParts, models: ModelStore) -> None:
    """Connect the menu and the tab to the store of models; call it inside the page's Blocks."""

    async def choose(request: gr.Request, name: Any, device: Any, dtype: Any) -> AsyncIterator[list[Any]]:
        session = str(request.session_hash)
        try:
            loading = models.begin(session, as_choice(name, device, dtype))
            async for told in followed(loading):
                yield [told, *_unchanged(4)]
            loaded = await run_sync(loading.result.result)
            yield await run_sync(_outputs, models, session, loaded)
        except (ValueError, asyncio.CancelledError) as error:
            failed = {"failed": str(error), "loading": None}
            yield [failed, failed, gr.update(value=models.chosen(session).name), *_unchanged(2)]

    def cancel(request: gr.Request) -> None:
        models.cancel(str(request.session_hash))

    outputs = [parts.bar.status, parts.view, parts.menu, parts.readme, parts.curve]
    together: Any = {"preprocess": False, "trigger_mode": "multiple", "show_progress_on": [], **PRIVATE}
    inputs = [parts.menu, parts.device, parts.dtype]
    parts.menu.input(choose, inputs, outputs, api_name="page_model", **together)
    typed = [parts.place, parts.device, parts.dtype]
    gr.on(
        [parts.load.click, parts.place.submit],
        _placed(choose),
        [*typed, parts.menu],
        outputs,
        api_name="page_place",
        **together,
    )
    parts.bar.cancel.click(cancel, None, None, api_name="page_cancel", trigger_mode="multiple", **PRIVATE)


Choose = Callable[..., AsyncIterator[list[Any]]]


def _placed(choose: Choose) -> Choose:
    """Load takes what was typed, or else the menu's model on the chosen device."""

    async def place(request: gr.Request, typed: Any, device: Any, dtype: Any, chosen: Any) -> AsyncIterator[list[Any]]:
        async for update in choose(request, typed or chosen, device, dtype):
            yield update

    return place


async def followed(loading: Loading) -> AsyncIterator[dict[str, Any]]:
    """How far a load has come, whenever that has changed, until it is over."""
    seen = None
    while not loading.result.done():
        now = loading.progress
        if now is not seen:
            seen = now
            told = {"name": loading.wanted.name, "stage": now.stage, "done": now.done, "total": now.total}
            yield {"loading": told, "failed": ""}
        await asyncio.sleep(LOOK_EVERY)


def _unchanged(count: int) -> list[Any]:
    return [gr.skip()] * count


def _outputs(models: ModelStore, session: str, loaded: Any) -> list[Any]:
    """Card, menu, readme and loss curve of a model that has just been chosen."""
    facts = capability(loaded).as_dict()
    name = models.chosen(session).name
    names = list(dict.fromkeys((*models.names, name)))
    told = models_tab.shown(facts) | {"loading": None, "failed": ""}
    return [
        told,
        told,
        gr.update(choices=names, value=name),
        models_tab.readme_of(facts["card"]),
        gr.update(**models_tab.plot_of(facts["card"])),
    ]
