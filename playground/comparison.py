"""Two runs side by side: where their texts differ, and how far their next tokens and their attention are apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise, takewhile

import numpy as np
from numpy.typing import NDArray

from playground import attention
from playground.runs import Run
from playground.tokens import text_after

DIFF_TOKENS = 2000
"""Tokens behind the common beginning that are compared one by one; matching takes time with their square."""
BAND = 256
"""Rows of attention that are compared at once."""
MOVERS = 8

Probabilities = NDArray[np.float64]


@dataclass(frozen=True)
class Part:
    """A stretch of both texts: `same` says whether they agree in it; else one of the two may be empty."""

    same: bool
    first: str
    second: str


@dataclass(frozen=True)
class Mover:
    """A token whose probability differs: its id and text, and what each run gives it."""

    token_id: int
    text: str
    first: float
    second: float


@dataclass(frozen=True)
class Distance:
    """How far two distributions p and q over the same vocabulary are apart.

    Attributes:
        total_variation: half the sum of |p - q|: the most that p and q can differ about any set of tokens; 0 to 1.
        kl: sum of p ln(p / q), nats; infinite where q excludes what p allows.
        kl_back: sum of q ln(q / p), nats.
        jensen_shannon: mean of the divergences of p and q from (p + q) / 2, nats; 0 to ln 2 (Lin 1991).
    """

    total_variation: float
    kl: float
    kl_back: float
    jensen_shannon: float


@dataclass(frozen=True)
class AttentionGap:
    """How far one head's maps are apart over the positions that both runs have.

    Attributes:
        positions: how many these are.
        largest: largest |difference| of two probabilities; `query` and `key` say where.
        mean: mean |difference| over all pairs of a query and a key that it may see.
        mean_since: the same over the queries from the first different token on, None where there are none.
    """

    positions: int
    largest: float
    query: int
    key: int
    mean: float
    mean_since: float | None


def common_beginning(first: Sequence[int], second: Sequence[int]) -> int:
    """How many leading ids agree."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def diff(first: Run, second: Run) -> list[Part]:
    """Both texts in stretches of tokens that agree or differ (`difflib.SequenceMatcher` over token ids)."""
    a, b = list(first.token_ids), list(second.token_ids)
    start = common_beginning(a, b)
    ends = min(len(a), start + DIFF_TOKENS), min(len(b), start + DIFF_TOKENS)
    blocks = SequenceMatcher(None, a[start : ends[0]], b[start : ends[1]], autojunk=False).get_matching_blocks()
    borders = [(0, 0, start), *((start + i, start + j, size) for i, j, size in blocks[:-1]), (len(a), len(b), 0)]
    parts: list[Part] = []
    for (i, j, size), (next_i, next_j, _) in pairwise(borders):
        parts.append(Part(True, _words(first, i, i + size), _words(second, j, j + size)))
        parts.append(Part(False, _words(first, i + size, next_i), _words(second, j + size, next_j)))
    return [part for part in parts if part.first or part.second]


def _words(run: Run, start: int, end: int) -> str:
    return text_after(run.loaded.tokenizer, run.token_ids[:end], start) if start < end else ""


def step_at(run: Run, position: int) -> int:
    """The step that drew the token at a position. Raises `ValueError` with one sentence where none did."""
    step = position - run.prompt_length
    if not 0 <= step < len(run.steps):
        last = run.prompt_length + len(run.steps) - 1
        raise ValueError(
            f"Position {position} was not drawn in both runs: choose one from {run.prompt_length} to {last}."
        )
    return step


def distance(p: Probabilities, q: Probabilities) -> Distance:
    """How far two distributions (V,) are apart."""
    middle = (p + q) / 2
    return Distance(
        total_variation=float(np.abs(p - q).sum() / 2),
        kl=_divergence(p, q),
        kl_back=_divergence(q, p),
        jensen_shannon=(_divergence(p, middle) + _divergence(q, middle)) / 2,
    )


def _divergence(p: Probabilities, q: Probabilities) -> float:
    """Sum of p ln(p / q); rounding must not make it negative."""
    alive = p > 0
    with np.errstate(divide="ignore"):
        return max(0.0, float((p[alive] * (np.log(p[alive]) - np.log(q[alive]))).sum()))


def next_token(first: Run, second: Run, position: int, stage: int = 0) -> tuple[Distance, list[Mover]]:
    """The distributions that the token at a position was drawn from: how far apart, and which tokens moved most.

    Args:
        first: a run.
        second: another run of the same model.
        position: of the token, counted from 0 over prompt and continuation.
        stage: 0 for the model's own distribution, -1 for what was drawn from.
    """
    p, q = (run.distribution(step_at(run, position), stage).astype(np.float64) for run in (first, second))
    p, q = p / p.sum(), q / q.sum()
    most = np.argsort(-np.abs(p - q), kind="stable")[:MOVERS]
    movers = [
        Mover(int(each), first.piece(int(each)), float(p[each]), float(q[each])) for each in most if p[each] != q[each]
    ]
    return distance(p, q), movers


def attention_gap(first: Run, second: Run, layer: int, head: int) -> AttentionGap:
    """One head in both runs, over the positions that both have."""
    first._check(layer, head)
    second._check(layer, head)
    positions = min(first.rows, second.rows)
    since = min(common_beginning(first.token_ids, second.token_ids), positions)
    sums, worst = [0.0, 0.0], (0.0, 0, 0)
    for start in range(0, positions, BAND):
        end = min(start + BAND, positions)
        gap = np.abs(_rows(first, layer, head, start, end) - _rows(second, layer, head, start, end))
        query, key = np.unravel_index(int(gap.argmax()), gap.shape)
        worst = max(worst, (float(gap[query, key]), start + int(query), int(key)), key=lambda each: each[0])
        sums = [sums[0] + float(gap.sum()), sums[1] + float(gap[max(since - start, 0) :].sum())]
    seen = positions * (positions + 1) // 2
    seen_since = seen - since * (since + 1) // 2
    mean_since = sums[1] / seen_since if seen_since else None
    return AttentionGap(positions, *worst, sums[0] / seen, mean_since)


def _rows(run: Run, layer: int, head: int, start: int, end: int) -> Probabilities:
    return attention.rows(run, layer, start, end, head)[0].double().cpu().numpy()
