"""Keeping queries against keeping maps: time and peak memory of 128 -> 1,024 tokens with all attention at hand.

Each side runs once in a process of its own (`side`), because memory that one side freed would hide what the other
needs; `benchmarks.__main__` starts them and pairs their reports.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch

from benchmarks import twins
from benchmarks.decode import greedy
from benchmarks.measure import Setup, peak_bytes
from playground import generate

PROMPT, END = 128, 1024


def side(shape: str, which: str, setup: Setup) -> dict[str, float]:
    """{"seconds", "bytes"} of one side: "ours", or "theirs" with output_attentions=True and eager attention."""
    act = _ours(shape, setup) if which == "ours" else _theirs(shape, setup)
    act(8)  # warm-up: thread pools, kernels, allocator
    started = perf_counter()
    peak = peak_bytes(setup.device, lambda: act(END - PROMPT))
    return {"seconds": perf_counter() - started, "bytes": float(peak)}


def _ours(shape: str, setup: Setup) -> Any:
    loaded = twins.ours(shape, setup)
    return lambda tokens: generate(loaded, twins.prompt(PROMPT), greedy(tokens)).finish()


def _theirs(shape: str, setup: Setup) -> Any:
    model: Any = twins.theirs(shape, setup, attention="eager")
    inputs = (torch.arange(PROMPT, device=model.device) * 7 % 4096)[None]
    options = {"do_sample": False, "pad_token_id": 0, "output_attentions": True, "return_dict_in_generate": True}
    mask = torch.ones_like(inputs)
    return lambda tokens: model.generate(inputs, attention_mask=mask, max_new_tokens=tokens, **options)
