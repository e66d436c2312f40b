"""The Measures page: a pasted text scored token by token, and samples under several settings side by side.

Everything that needs the model is done by the store's worker, so that it takes turns with the runs of all visitors.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import gradio as gr
from anyio.to_thread import run_sync

from playground import measures
from playground.model_store import ModelStore
from playground.records import Decoding
from playground.sessions import Choice, Entry, RefusedError, Store
from playground.web import score_figure
from playground.web.live import STATIC, WithoutStub

Answer = dict[str, Any]
MOST_SETTINGS, MOST_SAMPLES = 4, 16
MOST_TOKENS = 4096
"""Tokens of all samples under all settings together."""
LOOK = 1 / 20
"""Seconds between two looks at a sample that is being made."""
PLACE = '<div id="measures"></div>'
PRIVATE: Any = {"api_visibility": "private", "concurrency_limit": None, "show_progress": "hidden"}


class Measures(gr.HTML, metaclass=WithoutStub):
    """An empty place that static/measures.js fills; its value is one answer of `scored` or `compared`.

    Args:
        most: the largest numbers that may be asked for: samples, tokens of one, tokens of all, settings.
    """

    def __init__(self, most: Mapping[str, int], **place: Any) -> None:
        super().__init__(
            None,
            html_template=PLACE,
            css_template="",
            js_on_load=(STATIC / "measures_bootstrap.js").read_text(encoding="utf-8"),
            apply_default_css=False,
            padding=False,
            most=dict(most),
            **place,
        )

    def postprocess(self, value: Any) -> Any:
        """As it is: no text in it becomes markup."""
        return value

    def api_info(self) -> dict[str, Any]:
        """Schema of the value."""
        return {"type": "object"}


def most(new_tokens: int) -> dict[str, int]:
    """What may be asked for where one run may draw `new_tokens`."""
    return {
        "settings": MOST_SETTINGS,
        "samples": MOST_SAMPLES,
        "tokens": min(new_tokens, MOST_TOKENS),
        "all": MOST_TOKENS,
    }


class Turns:
    """Which request of a session holds: a newer one, or a stop, takes the place of the one before."""

    def __init__(self) -> None:
        self._last: dict[str, object] = {}

    def begin(self, session: str) -> object:
        """The mark of a new request."""
        mark = self._last[session] = object()
        return mark

    def holds(self, session: str, mark: object) -> bool:
        """Whether that request has neither been stopped nor replaced."""
        return self._last.get(session) is mark

    def end(self, session: str) -> None:
        """Stop what is under way."""
        self._last.pop(session, None)


def wire(page: Measures, store: Store, models: ModelStore) -> None:
    """Connect the page; call it inside the Blocks."""
    turns = Turns()

    async def score(request: gr.Request, event: gr.EventData) -> AsyncIterator[Answer]:
        session = str(request.session_hash)
        loaded = await run_sync(models.of, session)
        async for answer in answers(scored(store, loaded, turns, session, event._data), "score"):
            yield answer

    async def compare(request: gr.Request, event: gr.EventData) -> AsyncIterator[Answer]:
        session = str(request.session_hash)
        loaded = await run_sync(models.of, session)
        async for answer in answers(compared(store, loaded, turns, session, event._data), "compare"):
            yield answer

    def halt(request: gr.Request) -> None:
        turns.end(str(request.session_hash))

    streamed: Any = {"trigger_mode": "multiple", "show_progress_on": [], **PRIVATE}
    page.score(score, None, [page], api_name="page_score", **streamed)
    page.compare(compare, None, [page], api_name="page_compare", **streamed)
    page.halt(halt, None, None, trigger_mode="multiple", api_name="page_halt", **PRIVATE)


async def answers(made: AsyncIterator[Answer], kind: str) -> AsyncIterator[Answer]:
    """What is made, numbered, since equal values would not be noticed; a refusal as its sentence."""
    at = 0
    try:
        async for answer in made:
            at += 1
            yield {"kind": kind, "at": at, **answer}
    except ValueError as error:
        yield {"kind": kind, "at": at + 1, "state": "refused", "reason": str(error)}


# ---- a text


async def scored(store: Store, loaded: Any, turns: Turns, session: str, asked: Any) -> AsyncIterator[Answer]:
    """Progress, then the scores of the text. Raises `ValueError` with one sentence."""
    text = _field(asked, "text")
    longest = store.limits.prompt_characters
    if not isinstance(text, str) or len(text) > longest:
        raise RefusedError(f"The text must have at most {longest:,} characters: shorten it.")
    mark = turns.begin(session)
    scoring = measures.Scoring(loaded, text)
    while not scoring.finished:
        yield {"state": "running", "done": scoring.done, "of": len(scoring.token_ids)}
        await asyncio.wrap_future(store.errand(scoring.advance))
        if not turns.holds(session, mark):
            yield {"state": "stopped", "reason": f"Stopped after {scoring.done:,} tokens."}
            return
    yield {"state": "done", **told(scoring.result(), dark=_field(asked, "dark") is True)}


def told(found: measures.Scored, dark: bool) -> Answer:
    """A scored text for the page: totals, columns for each token, and the figure with its CSV."""
    return {
        "totals": {
            "tokens": len(found.log_p),
            "bytes": found.bytes,
            "nats": found.nats,
            "mean": found.mean,
            "perplexity": found.perplexity,
            "bits_per_byte": found.bits_per_byte,
            "entropy": float(found.entropy.mean()),
        },
        "tokens": list(found.tokens),
        "surprisal": (-found.log_p).tolist(),
        "entropy": found.entropy.tolist(),
        "rank": found.rank.tolist(),
        **score_figure.build(found.tokens, -found.log_p, found.entropy, found.rank, dark).as_json(),
    }


# ---- several settings


async def compared(store: Store, loaded: Any, turns: Turns, session: str, asked: Any) -> AsyncIterator[Answer]:
    """The samples under each setting and their measures, after each sample. Raises `ValueError` with one sentence."""
    prompt, settings, count = request_of(store, asked)
    mark, own = turns.begin(session), f"{session} measures"
    groups: list[list[measures.Sample]] = [[] for _ in settings]
    everything = count * len(settings)
    first: Entry | None = None
    try:
        for index in range(everything):
            group, more = index % len(settings), index // len(settings)
            yield {"state": "running", "done": index, "of": everything, "groups": tell(settings, groups)}
            decoding = replace(settings[group], seed=settings[group].seed + more)
            entry = _next(store, loaded, own, prompt, decoding, first)
            first = first or entry
            while not entry.settled and turns.holds(session, mark):
                await asyncio.sleep(LOOK)
            if not turns.holds(session, mark):
                told_so_far = {"groups": tell(settings, groups)}
                yield {"state": "stopped", "reason": f"Stopped after {index} samples.", **told_so_far}
                return
            if entry.run.state == "error":
                raise RefusedError(entry.run.reason)
            groups[group].append(await asyncio.wrap_future(store.errand(partial(measures.sampled, entry.run))))
            if entry is not first:
                store.delete(own, entry.run.id)
        yield {"state": "done", "done": everything, "of": everything, "groups": tell(settings, groups)}
    finally:
        store.leave(own)


def _next(store: Store, loaded: Any, session: str, prompt: str, decoding: Decoding, first: Entry | None) -> Entry:
    """The next sample's run; all but the first share the prompt with it."""
    if first is None:
        return store.start(session, loaded, prompt, decoding)
    first.touch()
    return store.branch(session, Choice(first.run.id, step=0), decoding)


def request_of(store: Store, asked: Any) -> tuple[str, list[Decoding], int]:
    """The prompt, one `Decoding` for each of up to four settings, and how many samples of each; `ValueError` else."""
    prompt, given = _field(asked, "prompt"), _field(asked, "settings")
    count, tokens = _number(asked, "samples", MOST_SAMPLES), _number(asked, "tokens", store.limits.new_tokens)
    if not isinstance(given, list) or not 1 <= len(given) <= MOST_SETTINGS:
        raise RefusedError(f"Choose 1 to {MOST_SETTINGS} settings to compare.")
    if count * tokens * len(given) > MOST_TOKENS:
        raise RefusedError(
            f"{len(given)} settings × {count} samples × {tokens} tokens are {count * tokens * len(given):,} tokens: "
            f"ask for {MOST_TOKENS:,} or fewer in all."
        )
    seed = _field(asked, "seed")
    settings = []
    for each in given:
        if not isinstance(each, Mapping):
            raise RefusedError("Each of the settings must be an object of names and values.")
        settings.append(Decoding.from_json({**each, "max_new_tokens": tokens, "seed": seed}))
    return prompt if isinstance(prompt, str) else "", settings, count


def tell(settings: list[Decoding], groups: list[list[measures.Sample]]) -> list[Answer]:
    """Each setting's samples so far, and their measures."""
    return [
        {
            "samples": [{"text": each.text, "surprisal": _mean(each)} for each in group],
            "measures": asdict(measures.spread(group)) if group else None,
            "greedy": decoding.greedy,
        }
        for decoding, group in zip(settings, groups, strict=True)
    ]


def _mean(sample: measures.Sample) -> float:
    return float(-sample.log_p.mean()) if len(sample.log_p) else 0.0


def _field(asked: Any, name: str) -> Any:
    if not isinstance(asked, Mapping):
        raise RefusedError("The page did not send what to measure: reload it.")
    return asked.get(name)


def _number(asked: Any, name: str, largest: int) -> int:
    value = _field(asked, name)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        raise RefusedError(f"The number of {name} must be a whole number from 1 to {largest:,}.")
    return value
