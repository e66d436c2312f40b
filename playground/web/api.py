"""Endpoints for programs: /generate streams a run, /branch another way on, /models says what is here, /inspect maps."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any

import gradio as gr
from anyio.to_thread import run_sync

from models import shipped
from playground import words
from playground.capability import capability
from playground.model_store import ModelStore, Wanted
from playground.records import Decoding
from playground.sessions import Entry, RefusedError, Store
from playground.web.family import choice_from
from playground.web.inspection import chosen_head
from playground.web.watching import changes

Settings = dict[str, Any] | str | None


def decoding_of(loaded: Any, settings: Any) -> Decoding:
    """Settings as a JSON object, or as text of one; words are read by the model's tokenizer.

    Raises `ValueError` with one sentence.
    """
    if settings is None:
        return Decoding()
    return words.decoding(loaded, settings)


def model_of(settings: Any) -> tuple[Any, Any]:
    """The model that the settings name, None without one, and the other settings as an object, None without any.

    Raises `ValueError` with one sentence when they are text that is no JSON.
    """
    if settings is None or settings == "":
        return None, None
    if isinstance(settings, str):
        try:
            settings = json.loads(settings)
        except ValueError:
            raise RefusedError('The settings are not JSON: send an object such as {"temperature": 0.8}.') from None
    if not isinstance(settings, Mapping) or "model" not in settings:
        return None, settings
    return settings["model"], {name: value for name, value in settings.items() if name != "model"}


def told(error: ValueError) -> gr.Error:
    """What a client gets to see: the sentence alone."""
    return gr.Error(str(error), print_exception=False)


def publish(store: Store, shelf: ModelStore) -> None:
    """Declare the endpoints; call it inside the Blocks."""

    async def generate(request: gr.Request, prompt: str, settings: Settings = None) -> AsyncIterator[dict[str, Any]]:
        """Continue a prompt; settings are those of Decoding by name. Streams what is new since the last message.

        Words may be given as text instead of token ids: banned_words, forced_words, and word_bias ("cat +2"), each a
        list or one a line.

        `model` among the settings: a name that /models offers; else the one that the app was started with.

        Each message: run (id for /inspect), state, reason, text (all of it), steps: [{index, id, text, probability}].
        """
        session = _session(request)
        try:
            model, settings = model_of(settings)
            wanted = shelf.chosen(session) if model is None else Wanted(model)
            loaded = await run_sync(shelf.begin(session, wanted).result.result)
            entry = store.start(session, loaded, prompt, decoding_of(loaded, settings))
        except ValueError as error:
            raise told(error) from None
        async for first in changes(entry):
            yield progress(entry, first)

    async def branch(
        request: gr.Request,
        run: str,
        step: int | None = None,
        token: int | None = None,
        text: str | None = None,
        settings: Settings = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """Go on from a step of a run of the same session in another way; messages as of /generate, old steps included.

        token: an id in place of the drawn one; text: words in its place; neither: draw again with the settings. Without
        a step, text is the whole text, edited. What stands before the change is not computed again.
        """
        try:
            choice = choice_from({"run": run, "step": step, "token": token, "text": text})
            session, (_, wanted) = _session(request), model_of(settings)
            loaded = store.owned(session, choice.run).run.loaded
            entry = store.branch(session, choice, decoding_of(loaded, wanted))
        except ValueError as error:
            raise told(error) from None
        async for first in changes(entry):
            yield progress(entry, first)

    gr.api(generate, api_name="generate", concurrency_limit=None)
    gr.api(branch, api_name="branch", concurrency_limit=None)
    _publish_readers(store, shelf)


def _publish_readers(store: Store, shelf: ModelStore) -> None:
    """What only looks."""

    def models() -> dict[str, Any]:
        """What is shipped and offered, the card of the one that answers, and what panels show of each loaded one."""
        return models_told(shelf)

    def inspect(run: str, layer: int, head: int, as_list: bool = False) -> dict[str, Any]:
        """The attention map of one head of a run: rows are queries, T x T probabilities, layers and heads from 0.

        `map` is base64 of little-endian float32, row after row; with as_list a nested list of numbers.
        """
        try:
            return exact_map(store.find(run), layer, head, as_list)
        except ValueError as error:
            raise told(error) from None

    gr.api(models, api_name="models", concurrency_limit=None)
    gr.api(inspect, api_name="inspect", concurrency_limit=2)


def _session(request: gr.Request | None) -> str:
    return (request.session_hash if request else None) or secrets.token_urlsafe(8)


def progress(entry: Entry, first: int) -> dict[str, Any]:
    """One message of /generate: the text, and the steps from `first` on."""
    run = entry.run
    fresh = [
        {"index": step.index, "id": step.token_id, "text": step.token, "probability": step.probability}
        for step in run.steps[first:]
    ]
    return {"run": run.id, "state": run.state, "reason": run.reason, "text": run.text, "steps": fresh}


def exact_map(entry: Entry, layer: Any, head: Any, as_list: bool) -> dict[str, Any]:
    """One head's map in full precision. Raises `ValueError` with one sentence."""
    layer, head = chosen_head(entry, {"layer": layer, "head": head})
    pattern = entry.run.attention(layer, head)
    values = pattern.tolist() if as_list else base64.b64encode(pattern.astype("<f4").tobytes()).decode("ascii")
    return {"run": entry.run.id, "layer": layer, "head": head, "shape": list(pattern.shape), "map": values}


def models_told(shelf: ModelStore) -> dict[str, Any]:
    """What /models answers."""
    kept = [capability(each) for each in shelf.loaded()]
    return {
        "shipped": list(shipped()),
        "offered": list(shelf.names),
        "loaded": card_facts(shelf.of("")),
        "kept": [{**each.as_dict(), "card": facts_of(each.card)} for each in kept],
    }


def card_facts(loaded: Any) -> Mapping[str, Any]:
    """A model's card, as strangers may see it."""
    return facts_of(loaded.card)


def facts_of(card: Any) -> Mapping[str, Any]:
    """A card without what is of no use to strangers (folders of the server) or long (the readme, the curve)."""
    hidden = ("directory", "readme", "loss_curve")
    return {name: value for name, value in card.as_dict().items() if name not in hidden}
