"""Endpoints for programs: /generate streams a run, /branch another way on, /models says what is here, /inspect maps."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any

import gradio as gr

from playground import words
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
    if settings is None or settings == "":
        return Decoding()
    if isinstance(settings, str):
        try:
            settings = json.loads(settings)
        except ValueError:
            raise RefusedError('The settings are not JSON: send an object such as {"temperature": 0.8}.') from None
    return words.decoding(loaded, settings)


def told(error: ValueError) -> gr.Error:
    """What a client gets to see: the sentence alone."""
    return gr.Error(str(error), print_exception=False)


def publish(store: Store, loaded: Any, names: tuple[str, ...]) -> None:
    """Declare the endpoints; call it inside the Blocks. `names`: the checkpoints that `models.load` ships with."""

    async def generate(request: gr.Request, prompt: str, settings: Settings = None) -> AsyncIterator[dict[str, Any]]:
        """Continue a prompt; settings are those of Decoding by name. Streams what is new since the last message.

        Words may be given as text instead of token ids: banned_words, forced_words, and word_bias ("cat +2"), each a
        list or one a line.

        Each message: run (id for /inspect), state, reason, text (all of it), steps: [{index, id, text, probability}].
        """
        try:
            entry = store.start(_session(request), loaded, prompt, decoding_of(loaded, settings))
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
            entry = store.branch(_session(request), choice, decoding_of(loaded, settings))
        except ValueError as error:
            raise told(error) from None
        async for first in changes(entry):
            yield progress(entry, first)

    def models() -> dict[str, Any]:
        """The checkpoints that ship with the app, and the card of the one that answers here."""
        return {"shipped": list(names), "loaded": card_facts(loaded)}

    def inspect(run: str, layer: int, head: int, as_list: bool = False) -> dict[str, Any]:
        """The attention map of one head of a run: rows are queries, T x T probabilities, layers and heads from 0.

        `map` is base64 of little-endian float32, row after row; with as_list a nested list of numbers.
        """
        try:
            return exact_map(store.find(run), layer, head, as_list)
        except ValueError as error:
            raise told(error) from None

    gr.api(generate, api_name="generate", concurrency_limit=None)
    gr.api(branch, api_name="branch", concurrency_limit=None)
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


def card_facts(loaded: Any) -> Mapping[str, Any]:
    """The card without what is of no use to strangers (folders of the server) or long (the readme, the curve)."""
    hidden = ("directory", "readme", "loss_curve")
    return {name: value for name, value in loaded.card.as_dict().items() if name not in hidden}
