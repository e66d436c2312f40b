"""What sampling costs at a large vocabulary: the chain of typical settings and the draw, against transformers' own."""

from __future__ import annotations

from time import perf_counter

import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from benchmarks.measure import Row, Setup, pairs, quartiles, speed_ratio
from playground import Decoding, sampling
from playground.penalties import Context

VOCAB_SIZE = 151_936
STEPS = 20
TYPICAL = Decoding(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, repetition_penalty=1.1)


@torch.inference_mode()
def stages(setup: Setup) -> list[Row]:
    """Milliseconds from raw logits to a token, ours as a run does it."""
    torch.manual_seed(0)
    logits = torch.randn(STEPS, VOCAB_SIZE, device=setup.device) * 3
    ids = torch.randint(VOCAB_SIZE, (256,)).tolist()
    found = pairs(lambda: _ours(logits, ids), lambda: _theirs(logits, ids), 9 * setup.rounds)
    each = [ours / STEPS * 1e3 for ours, _ in found]
    what = f"from logits to a token, V = {VOCAB_SIZE:,}, five stages"
    return [
        Row("stages", what, *quartiles(each), unit="ms", goal=3, at_least=False),
        speed_ratio("stages", "the same: transformers' processors and draw / ours", found),
    ]


def _ours(logits: Tensor, ids: list[int]) -> float:
    context = Context(ids, len(ids), len(ids))
    started = perf_counter()
    for row in logits:
        sampling.sample(row, TYPICAL, context, 0.5)
    return perf_counter() - started


def _theirs(logits: Tensor, ids: list[int]) -> float:
    chain = LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(TYPICAL.repetition_penalty),
            TemperatureLogitsWarper(TYPICAL.temperature),
            TopKLogitsWarper(TYPICAL.top_k),
            TopPLogitsWarper(TYPICAL.top_p),
            MinPLogitsWarper(TYPICAL.min_p),
        ]
    )
    seen = torch.tensor([ids], device=logits.device)
    started = perf_counter()
    for row in logits:
        int(chain(seen, row[None]).softmax(-1).multinomial(1))  # type: ignore[arg-type]
    return perf_counter() - started
