"""Speed of decoding: what capture and looking cost, and how our loop compares with `transformers.generate`."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch

from benchmarks import twins
from benchmarks.measure import Intervals, Row, Setup, pairs, speed_ratio, undisturbed
from models import Loaded
from models.layout import usual_order
from playground import Decoding, Run, capture, generate
from playground.records import Step
from playground.sessions import Store, Worker
from playground.web.watching import watch

NEW = 32
"""Tokens in one measurement of speed: the cache grows by this much around the length that is asked for."""
LENGTHS = (200, 930)
WATCHED, STRETCH = 200, 50
"""Tokens of a run whose frames are made, and how many are looked at, or not, before it is the other way round."""


def greedy(tokens: int) -> Decoding:
    """The most likely token each time, so that both sides do the same work."""
    return Decoding(max_new_tokens=tokens, temperature=0.0, stop_at_end=False)


def our_interval(loaded: Loaded, length: int) -> float:
    """Median seconds from token to token of our loop, with capture, around `length` positions."""
    seen = Intervals()
    seen.put("prompt")
    for step in generate(loaded, twins.prompt(length - NEW // 2), greedy(NEW)):
        seen.put(step)
    return seen.typical()


def their_interval(model: Any, loaded: Loaded, length: int) -> float:
    """The same of `transformers.generate`."""
    seen = Intervals()
    inputs = loaded.tokenizer(twins.prompt(length - NEW // 2), return_tensors="pt").to(model.device)
    options = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    model.generate(inputs["input_ids"], attention_mask=inputs["attention_mask"], streamer=seen, **options)
    return seen.typical()


def against_generate(setup: Setup) -> list[Row]:
    """Our decoder and loop, capturing, against generate() on LlamaForCausalLM with the same weights."""
    loaded, model = twins.ours("llama", setup), twins.theirs("llama", setup)
    rows = []
    for length in LENGTHS:
        own, other = partial(our_interval, loaded, length), partial(their_interval, model, loaded, length)
        found = pairs(own, other, 15 * setup.rounds)
        what = f"our decode with capture / transformers.generate, same weights, T = {length}"
        rows.append(speed_ratio("against_generate", what, found, goal=1.5))
    return rows


class _Nobody:
    """Stands in for the variable that names the active recorder: there is none."""

    def get(self) -> None:
        """No recorder."""

    def set(self, recorder: object) -> None:
        """Stays without one."""

    def reset(self, token: object) -> None:
        """Nothing to undo."""


@contextmanager
def no_capture() -> Iterator[None]:
    """The same loop, model, cache and attention function, but nothing is recorded."""
    original = capture._active
    capture._active = _Nobody()  # type: ignore[assignment]
    try:
        yield
    finally:
        capture._active = original


def capture_alone(setup: Setup) -> list[Row]:
    """Recording the queries against not recording them."""
    loaded = twins.ours("llama", setup)
    rows = []
    for length in LENGTHS:
        found = step_pairs(loaded, length, 12 * setup.rounds)
        what = f"decode with capture / without, T = {length}"
        rows.append(speed_ratio("capture", what, found, goal=0.99))
    return rows


def step_pairs(loaded: Loaded, length: int, count: int) -> list[tuple[float, float]]:
    """Two runs advance in turn, a step each, one recording and one not: (median with, median without) of each pair.

    A difference of one percent is smaller than the drift between two runs, hence the turns of a single step.
    """
    found = []
    for _ in range(count):
        runs = [generate(loaded, twins.prompt(length - NEW // 2), greedy(2 * NEW)) for _ in range(2)]
        seconds: tuple[list[float], list[float]] = ([], [])
        while not runs[0].finished:
            for side in (0, 1) if runs[0].rows % 2 else (1, 0):
                seconds[side].append(_one_step(runs[side], records=side == 0))
        found.append((statistics.median(seconds[0][4:]), statistics.median(seconds[1][4:])))
    return found


def _one_step(run: Run, records: bool) -> float:
    if records:
        started = perf_counter()
        run.advance()
        return perf_counter() - started
    with no_capture():
        started = perf_counter()
        run.advance()
        return perf_counter() - started


def arranged(setup: Setup) -> list[Row]:
    """Weights as `models.layout` lays them out against the same weights in the usual order."""
    loaded, usual = (twins.ours("llama", setup) for _ in range(2))
    usual_order(usual.model)
    rows = []
    for length in LENGTHS:
        found = pairs(partial(our_interval, loaded, length), partial(our_interval, usual, length), 9 * setup.rounds)
        what = f"decode with weights as they are laid out / in the usual order, T = {length}"
        rows.append(speed_ratio("arranged", what, found))
    return rows


def watched(setup: Setup) -> list[Row]:
    """Decoding while frames are made as often as for the page, against decoding that nobody looks at.

    Every other stretch of a run is looked at, so that both sides of a pair lie a quarter of a second apart: a machine
    that others use is not the same one a second later. A pair is two runs that begin with one and with the other: later
    tokens take longer.
    """
    loaded = twins.ours("llama", setup)
    rows = []
    for length in (100, 800):
        store = Store()
        worker = Worker(store)
        worker.start()
        measure = partial(_stretches, store, loaded, twins.prompt(length))
        found = [_together(measure(True), measure(False)) for _ in range(1 + 18 * setup.rounds)][1:]
        store.close()
        worker.join()
        what = f"decode with capture and live frames / not looked at, T = {length} to {length + WATCHED}"
        rows.append(speed_ratio("watched", what, found, goal=0.97))
    return rows


def _together(*found: tuple[float, float]) -> tuple[float, float]:
    """The mean of each side."""
    ours, theirs = (statistics.mean(side) for side in zip(*found, strict=True))
    return ours, theirs


def _stretches(store: Store, loaded: Loaded, prompt: str, first: bool) -> tuple[float, float]:
    """Mean seconds a token in the stretches of a run that are looked at, and in the others; `first`: one begins it.

    What happened while nobody looked is not shown later: a frame holds as many tokens as on the page.
    """
    entry = store.start("benchmark", loaded, prompt, greedy(WATCHED))
    entry.run.steps = noted = _Noted()
    answer = entry.answer

    def looked_at(tokens: int) -> bool:
        return (tokens // STRETCH % 2 == 0) == first

    def answer_now_and_then() -> None:
        if looked_at(len(noted)) or entry.settled:
            answer()
        else:
            cursor = entry._cursor
            cursor.steps = len(noted)
            cursor.rows = cursor.tiled = entry.run.prompt_length + len(noted) - 1

    async def look() -> None:
        async for _ in watch(entry):
            pass

    entry.answer = answer_now_and_then  # type: ignore[method-assign]
    with undisturbed():
        asyncio.run(look())
    store.leave("benchmark")
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for tokens, (before, after) in enumerate(pairwise(noted.seen.moments), 1):
        seconds[looked_at(tokens)].append(after - before)
    return statistics.mean(seconds[True]), statistics.mean(seconds[False])


class _Noted(list[Step]):
    """Steps, and the moments at which they came: frames are made between them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = Intervals()

    def append(self, step: Step) -> None:
        """A step is there."""
        self.seen.put(step)
        super().append(step)


def prefill(setup: Setup) -> list[Row]:
    """Reading a prompt of 1,024 tokens: our chunks, captured and ready to show, against one forward pass of Llama."""
    loaded, model = twins.ours("llama", setup), twins.theirs("llama", setup)
    text = twins.prompt(1024)
    inputs = loaded.tokenizer(text, return_tensors="pt").to(model.device)["input_ids"]

    def own() -> float:
        run = generate(loaded, text, greedy(1))
        started = perf_counter()
        run.finish()
        return perf_counter() - started

    @torch.inference_mode()
    def llama() -> float:
        started = perf_counter()
        int(model(input_ids=inputs, use_cache=True, logits_to_keep=1).logits[0, -1].argmax())
        return perf_counter() - started

    found = pairs(own, llama, 7 * setup.rounds)
    row = speed_ratio("prefill", "prefill of 1,024 tokens with capture / LlamaForCausalLM in one pass", found)
    per_second = [1024 / ours for ours, _ in found]
    middle = statistics.median(per_second)
    low, high = min(per_second), max(per_second)
    return [row, Row("prefill", "prompt tokens read per second, T = 1,024", middle, low, high, unit="tokens/s")]
