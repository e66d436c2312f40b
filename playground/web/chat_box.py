"""Conversations with models that have a chat template: what stands in the box, and what sending does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
from anyio.to_thread import run_sync

from playground.model_store import ModelStore
from playground.records import Decoding
from playground.talks import Talks
from playground.web.live import STATIC
from playground.web.watching import watch

PRIVATE: Any = {"api_visibility": "private", "concurrency_limit": None, "show_progress": "hidden"}
BOOTSTRAP = STATIC / "chat_bootstrap.js"


@dataclass(frozen=True)
class Talk:
    """The parts of the box; `asked` is not seen and holds what was in it when Send was pressed."""

    system: gr.Textbox
    message: gr.Textbox
    send: gr.Button
    fresh: gr.Button
    turns: gr.HTML
    asked: gr.HTML


def build() -> Talk:
    """The box; the page shows it for models with a chat template."""
    with gr.Accordion("Chat", open=True, elem_id="chat"):
        turns = gr.HTML(
            {"turns": [], "note": ""},
            html_template='<div class="turns"></div>',
            js_on_load=BOOTSTRAP.read_text(encoding="utf-8"),
            apply_default_css=False,
            padding=False,
        )
        message = gr.Textbox(label="Message", lines=2, max_lines=4, placeholder="What the assistant is to answer")
        with gr.Row(elem_id="chat-actions"):
            send = gr.Button("Send", elem_id="send", min_width=96)
            fresh = gr.Button("New conversation", elem_id="chat-new", min_width=120)
        system = gr.Textbox(label="System", lines=1, max_lines=3, placeholder="How the assistant is to behave")
        asked = gr.HTML(None, html_template="", visible="hidden", apply_default_css=False, padding=False)
    return Talk(system, message, send, fresh, turns, asked)


def _answering(
    talks: Talks,
    models: ModelStore,
    read: Callable[[Any, Any], Decoding],
    refusal: Callable[[str], dict[str, Any]],
) -> Callable[[gr.Request, Any], AsyncIterator[Any]]:
    """What makes an answer from what was in the box, frame by frame."""

    async def converse(request: gr.Request, asked: Any) -> AsyncIterator[Any]:
        session = str(request.session_hash)
        try:
            message, system, values = taken_apart(asked)
            loaded = await run_sync(models.of, session)
            decoding = read(loaded, values)
            entry = await run_sync(talks.converse, session, loaded, message, system or "", decoding)
        except ValueError as error:
            yield refusal(str(error))
            return
        async for frame in watch(entry):
            yield frame

    return converse


def wire(
    talk: Talk,
    live: Any,
    settings: Sequence[Any],
    talks: Talks,
    models: ModelStore,
    read: Callable[[Any, Any], Decoding],
    refusal: Callable[[str], dict[str, Any]],
) -> None:
    """Connect the box to the store; call it inside the page's Blocks.

    Args:
        talk: the parts of the box.
        live: the live view, which shows the answer while it comes.
        settings: the widgets whose values the answer is drawn with.
        talks: what was said so far.
        models: who has chosen which.
        read: settings for a model from their raw values; raises `ValueError` with one sentence.
        refusal: what the live view gets in place of a frame.
    """

    def hear(request: gr.Request, asked: Any) -> dict[str, Any]:
        return told(talks, str(request.session_hash), said_in(asked))

    def show(request: gr.Request, asked: Any, typed: Any) -> tuple[dict[str, Any], Any]:
        conversation = told(talks, str(request.session_hash))
        said = said_in(asked)
        heard = any(turn["role"] == "user" and turn["content"] == said for turn in conversation["turns"][-2:])
        return conversation, gr.skip() if heard or typed else said  # what was not answered goes back into the box

    def begin(request: gr.Request) -> dict[str, Any]:
        talks.forget(str(request.session_hash))
        return {"turns": [], "note": ""}

    gathered = gr.on(
        [talk.send.click, talk.message.submit],
        None,
        [talk.message, talk.system, *settings],
        [talk.asked, talk.message],
        js="(...values) => [values, '']",
        trigger_mode="multiple",
        **PRIVATE,
    )
    # one after another: what was asked stands there while the answer comes, and the answer when it is whole
    heard = gathered.then(hear, [talk.asked], [talk.turns], preprocess=False, api_name="page_chat_heard", **PRIVATE)
    answered = heard.then(
        _answering(talks, models, read, refusal),
        [talk.asked],
        [live],
        preprocess=False,
        trigger_mode="multiple",
        api_name="page_chat",
        show_progress_on=[],
        **PRIVATE,
    )
    both = [talk.asked, talk.message]
    answered.then(show, both, [talk.turns, talk.message], preprocess=False, api_name="page_chat_told", **PRIVATE)
    talk.fresh.click(begin, None, [talk.turns], api_name="page_chat_new", **PRIVATE)


def said_in(asked: Any) -> str:
    """The message that was in the box when Send was pressed; empty where the page sent none."""
    said = asked[0] if isinstance(asked, list) and asked else ""
    return said if isinstance(said, str) else ""


def taken_apart(asked: Any) -> tuple[Any, Any, list[Any]]:
    """Message, system prompt and raw settings. Raises `ValueError` when the page did not send them."""
    if not isinstance(asked, list) or len(asked) < 2:
        raise ValueError("The page did not send all settings: reload it.")
    return asked[0], asked[1], asked[2:]


def told(talks: Talks, session: str, said: str = "") -> dict[str, Any]:
    """The conversation for the page; `said` is what waits for its answer."""
    turns = [{"role": each.role, "content": each.content} for each in talks.so_far(session)]
    waiting = [{"role": "user", "content": said}] if said.strip() else []
    return {"turns": turns + waiting, "note": "" if waiting else talks.left_out(session)}
