"""Branches on the page: what the live component may ask about a session's runs, and what may be done with them."""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import gradio as gr

from playground import comparison, tree
from playground.records import Decoding
from playground.sessions import Choice, Entry, RefusedError, Store
from playground.web.inspection import Answer, answered, chosen_head, whole
from playground.web.watching import watch

if TYPE_CHECKING:
    from playground.web.layout import Page

GATHER = "(...values) => [{ values, choice: document.querySelector('#live')?.live?.choice ?? null }]"
"""The settings as they are when a branch is asked for, and what was chosen."""

LONGEST_CHOICE = 100_000
"""Characters of an edited text that are looked at; the store allows fewer."""

_told = itertools.count(1)  # equal answers must differ, or the page would not hear of the second one


def server_functions(store: Store) -> list[Callable[[Any], Answer]]:
    """More functions for `Live(server_functions=...)`: tree, replay, compare."""

    def tree(request: Any) -> Answer:
        return answered(lambda entry, _: told(store, entry.session), store, request)

    def replay(request: Any) -> Answer:
        return answered(lambda entry, _: {"frames": entry.replay()}, store, request)

    def compare(request: Any) -> Answer:
        return answered(lambda entry, asked: compared(store, entry, asked), store, request)

    return [tree, replay, compare]


def told(store: Store, session: str) -> Answer:
    """All runs of a session as nodes of a tree."""
    return {"tree": tree.nodes(store.runs(session)), "at": next(_told)}


def compared(store: Store, entry: Entry, asked: Mapping[str, Any]) -> Answer:
    """A run beside another of its session: texts, next token at a position (null with the reason), one head's maps."""
    other = store.owned(entry.session, asked.get("other"))
    layer, head = chosen_head(entry, asked)
    position = whole(asked, "position", 1 << 31)
    stage = whole(asked, "stage", 2)
    made: Answer = {"text": [asdict(each) for each in comparison.diff(entry.run, other.run)], "position": position}
    made["same"] = comparison.common_beginning(entry.run.token_ids, other.run.token_ids)
    made["attention"] = {"layer": layer, "head": head, **_gap(entry, other, layer, head)}
    try:
        distance, movers = comparison.next_token(entry.run, other.run, position, -stage)
    except ValueError as error:
        return made | {"next": None, "reason": str(error)}
    numbers = {name: value if math.isfinite(value) else None for name, value in asdict(distance).items()}
    return made | {"next": numbers | {"movers": [asdict(each) for each in movers]}, "reason": ""}


def _gap(entry: Entry, other: Entry, layer: int, head: int) -> Answer:
    try:
        return asdict(comparison.attention_gap(entry.run, other.run, layer, head))
    except ValueError as error:
        return {"reason": str(error)}


def choice_from(asked: Any) -> Choice:
    """What was chosen, as the page sent it. Raises `RefusedError` with one sentence."""
    if not isinstance(asked, Mapping) or not isinstance(asked.get("run"), str):
        raise RefusedError("Choose a token of a run first: press Generate to make one.")
    step, token, text = (asked.get(name) for name in ("step", "token", "text"))
    for name, value in (("step", step), ("token", token)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise RefusedError(f"The {name} must be a whole number.")
    if text is not None and (not isinstance(text, str) or len(text) > LONGEST_CHOICE):
        raise RefusedError(f"The text must have at most {LONGEST_CHOICE:,} characters: shorten it.")
    return Choice(asked["run"], step, token, text)


def wire(
    page: Page,
    store: Store,
    settings: Sequence[Any],
    read: Callable[[Any, Any], Decoding],
    refusal: Callable[[str], Answer],
) -> None:
    """Connect branches, names and deletions to the store; call it inside the page's Blocks.

    Args:
        page: the parts of the page.
        store: of runs.
        settings: the widgets whose values a branch is made with.
        read: settings for a model from their raw values; raises `ValueError` with one sentence.
        refusal: what the live view gets in place of a frame.
    """
    private: Any = {"api_visibility": "private", "concurrency_limit": None, "show_progress": "hidden"}
    chosen = gr.HTML(None, html_template="", visible="hidden", apply_default_css=False, padding=False)

    async def branch(request: gr.Request, asked: Any) -> AsyncIterator[Any]:
        try:
            if not isinstance(asked, Mapping) or not isinstance(asked.get("values"), list):
                raise RefusedError("The page did not send all settings: reload it.")
            choice = choice_from(asked.get("choice"))
            session = str(request.session_hash)
            loaded = store.owned(session, choice.run).run.loaded  # whatever has been chosen since
            entry = store.branch(session, choice, read(loaded, asked["values"]))
        except ValueError as error:
            yield refusal(str(error))
            return
        async for frame in watch(entry):
            yield frame

    def act(request: gr.Request, event: gr.EventData) -> Answer:
        return acted(store, str(request.session_hash), event._data, refusal)

    gathered = page.live.branch(None, list(settings), [chosen], js=GATHER, trigger_mode="multiple", **private)
    gathered.then(
        branch,
        [chosen],
        [page.live],
        preprocess=False,
        trigger_mode="multiple",
        api_name="page_branch",
        show_progress_on=[],
        **private,
    )
    page.live.act(act, None, [page.live], trigger_mode="multiple", api_name="page_act", **private)


def acted(store: Store, session: str, asked: Any, refusal: Callable[[str], Answer]) -> Answer:
    """Rename or delete a run of the session; the tree afterwards, or why not."""
    asked = asked if isinstance(asked, Mapping) else {}
    try:
        if asked.get("do") == "rename":
            store.rename(session, asked.get("run"), asked.get("label"))
        elif asked.get("do") == "delete":
            store.delete(session, asked.get("run"))
        else:
            raise RefusedError("A run can be renamed or deleted.")
    except ValueError as error:
        return refusal(str(error))
    return told(store, session)
