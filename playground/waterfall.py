"""What each stage of one step did, over the whole vocabulary: whose rank moved, who was removed, where the draw fell.

Computed when somebody looks, from the logits of the step and by the functions that drew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from playground import sampling

if TYPE_CHECKING:
    from playground.records import Step
    from playground.runs import Run

MOVES = 10
"""Tokens whose ranks are told on either side of a stage."""
NAMED = 5
"""Removed tokens that are told by name."""
SLICES = 32
"""Largest slices of the cumulative distribution that are told one by one."""

Json = dict[str, Any]
Floats = NDArray[np.floating]


@torch.inference_mode()
def waterfall(run: Run, index: int) -> Json:
    """The stages of a step one by one.

    `stages`: for each, `moves` [{id, from, to, before, after}] of the most likely on either side, of the most likely
    removed and of the drawn token (ranks from 1, 0 where removed; probabilities before and after); `lost`: {count, ids}
    of those removed, the most likely by name. The first stage is the raw distribution, where nothing moves. `slices`:
    see there; null when greedy.

    Raises:
        ValueError: one sentence, when the step does not exist or its logits are not kept.
    """
    run._check_step(index)
    step = run.steps[index]
    applied = run.stages_of(index, index + 1)
    logits = [each.logits[0].cpu().numpy() for each in applied]
    probabilities = [each.logits[0].softmax(-1).cpu().numpy() for each in applied]
    stages = [
        _stage(logits[max(0, at - 1)], logits[at], probabilities[max(0, at - 1)], probabilities[at], step.token_id)
        for at in range(len(applied))
    ]
    drawn_from = applied[-1].logits[0].softmax(-1)
    return {"step": index, "stages": stages, "slices": None if step.uniform is None else slices(drawn_from, step)}


def _stage(before: Floats, after: Floats, p_before: Floats, p_after: Floats, drawn: int) -> Json:
    """One stage from logits (V,) and probabilities (V,) on either side of it."""
    gone = np.where(np.isinf(after) & ~np.isinf(before), before, -np.inf)
    named = _top(gone, NAMED)
    ids = list(dict.fromkeys([*_top(before, MOVES), *_top(after, MOVES), *named, drawn]))
    moves = [
        {
            "id": each,
            "from": _rank(before, each),
            "to": _rank(after, each),
            "before": float(p_before[each]),
            "after": float(p_after[each]),
        }
        for each in ids
    ]
    lost = {"count": int(np.count_nonzero(gone > -np.inf)), "ids": named}
    return {"moves": moves, "lost": lost}


def _top(logits: Floats, count: int) -> list[int]:
    """Ids of the most likely tokens that are not removed, among equals the lowest first."""
    size = min(count, len(logits))
    border = np.partition(logits, len(logits) - size)[len(logits) - size]
    ids = np.flatnonzero((logits >= border) & (logits > -np.inf))
    order = np.argsort(-logits[ids], kind="stable")
    return [int(each) for each in ids[order][:size]]


def _rank(logits: Floats, token: int) -> int:
    """1 for the most likely, equals alike; 0 for a removed token."""
    return 0 if np.isinf(logits[token]) else 1 + int(np.count_nonzero(logits > logits[token]))


def slices(probabilities: torch.Tensor, step: Step) -> Json:
    """The cumulative distribution as the draw went through it, in the order of token ids.

    `ids`, `starts`, `sizes`: the largest slices and the drawn one, as shares of the whole; `count`: of all; `uniform`:
    the number that fell into one of them. probabilities: (V,), of the last stage.
    """
    alive, sums = (each.cpu().numpy() for each in sampling.cumulative(probabilities))
    ends = sums / sums[-1]
    starts = np.concatenate(([0.0], ends[:-1]))
    largest = np.argsort(starts - ends, kind="stable")[:SLICES]
    shown = np.union1d(largest, np.searchsorted(alive, step.token_id))
    return {
        "ids": alive[shown].tolist(),
        "starts": starts[shown].tolist(),
        "sizes": (ends - starts)[shown].tolist(),
        "count": len(alive),
        "uniform": step.uniform,
    }
