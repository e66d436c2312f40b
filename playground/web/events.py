"""What happens when something on the page is used."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import AsyncIterator, Mapping
from typing import Any

import gradio as gr
from anyio.to_thread import run_sync

from playground import words
from playground.model_store import ModelStore
from playground.records import Decoding
from playground.sessions import Store
from playground.talks import Talks
from playground.web import chat_box, designing, family, measuring, model_events
from playground.web.knobs import GROUPS, PRESETS, SETTINGS, TYPED
from playground.web.layout import Page
from playground.web.watching import watch

PRIVATE: Any = {"api_visibility": "private", "concurrency_limit": None, "show_progress": "hidden"}
_refusals = itertools.count(1)  # equal sentences must differ, or the page would not show the second one


def wire(page: Page, store: Store, models: ModelStore) -> None:
    """Connect the page to the stores of runs and models; call it inside the page's Blocks."""
    talks = Talks(store)

    async def generate(request: gr.Request, asked: Any) -> AsyncIterator[Any]:
        try:
            prompt, values = asked_for(asked)
            session = str(request.session_hash)
            if not models.ready(session):
                yield refusal(f"{models.chosen(session).name} had to make room: it is loaded again, then it answers.")
            loaded = await run_sync(models.of, session)
            entry = store.start(session, loaded, prompt, decoding_from(loaded, values))
        except ValueError as error:
            yield refusal(str(error))
            return
        async for frame in watch(entry):
            yield frame

    def stop(request: gr.Request) -> None:
        store.stop(str(request.session_hash))

    def leave(request: gr.Request) -> None:
        store.leave(str(request.session_hash))
        talks.forget(str(request.session_hash))
        models.leave(str(request.session_hash))

    # With every streamed message Gradio tells all inputs and outputs of its event that it still goes on, which takes
    # longer than drawing a panel does. So the values are gathered first, and the event has one of each.
    settings = list(page.settings.values())
    gathered = page.generate.click(
        None,
        [page.prompt, *settings],
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
    model_events.wire(page.model, models)
    measuring.wire(page.measures, store, models)
    values = list(page.settings.values())
    chat_box.wire(page.talk, page.live, values, talks, models, read, refusal)
    family.wire(page, store, values, read, refusal)
    first = models.of("").tokenizer  # designs speak the tokens of what the app was started with
    designing.wire(page, store, values, lambda raw: read(models.of(""), raw), refusal, first)
    _wire_settings(page, models)


def read(loaded: Any, raw: list[Any]) -> Decoding:
    """The settings from what the page sent; words are read by that model's tokenizer. Raises `ValueError`."""
    return decoding_from(loaded, checked(raw))


def _wire_settings(page: Page, models: ModelStore) -> None:
    """Moved settings are told to the browser's modules; typed words are read by the model's tokenizer."""
    settings = list(page.settings.values())
    groups = {each.name: [knob.name for knob in each.knobs] for each in GROUPS}
    presets = {each.name: dict(each.values) for each in PRESETS}
    told = json.dumps({"names": SETTINGS, "typed": TYPED, "groups": groups, "presets": presets})
    # kept on the window, too: the page may be built before the module that wants to know has been loaded
    tell = f"(...values) => {{ window.playgroundSettings = [values, {told}]; window.playground?.settingsChanged(); }}"
    gr.on(
        [*(each.change for each in settings), page.blocks.load],  # type: ignore[attr-defined]
        None,
        settings,
        None,
        js=tell,
        **PRIVATE,
    )

    def read_words(request: gr.Request, *typed: Any) -> dict[str, Any]:
        return words_read(models.of(str(request.session_hash)), dict(zip(TYPED, typed, strict=True)))

    boxes = [page.settings[name] for name in TYPED]
    reading: Any = {"inputs": boxes, "outputs": [page.words], "api_name": "page_words", **PRIVATE}
    gr.on([each.blur for each in boxes], read_words, preprocess=False, trigger_mode="always_last", **reading)  # type: ignore[attr-defined]
    for preset in PRESETS:
        outputs = [page.settings[name] for name in preset.values]
        values = json.dumps([list(each) if isinstance(each, tuple) else each for each in preset.values.values()])
        pressed = page.presets[preset.name].click(None, None, outputs, js=f"() => {values}", **PRIVATE)
        pressed.then(None, settings, None, js=tell, **PRIVATE)
        if any(name in TYPED for name in preset.values):
            pressed.then(read_words, preprocess=False, **reading)


def words_read(loaded: Any, typed: Mapping[str, Any]) -> dict[str, Any]:
    """What the tokenizer makes of the typed words: `notes` for people and `settings` by name, or why not: `refused`."""
    try:
        decoding = words.decoding(loaded, typed)
        found = words.read(loaded, typed)
    except ValueError as error:
        return {"refused": str(error), "at": next(_refusals)}
    return {"notes": list(found.notes), "settings": {name: getattr(decoding, name) for name in found.settings}}


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


def decoding_from(loaded: Any, values: tuple[Any, ...]) -> Decoding:
    """The settings from the widgets' raw values. Raises `ValueError` with one sentence."""
    settings = dict(zip(SETTINGS, values, strict=True))
    return words.decoding(loaded, {name: rounded(value) for name, value in settings.items()})


def rounded(value: Any) -> Any:
    """Slider values without the dust of binary fractions: 0.15 + 0.15 is shown and used as 0.3."""
    return (round(value, 6) or value) if isinstance(value, float) and math.isfinite(value) else value
