"""Attention maps of a run, computed from its recorded queries and cached keys when somebody looks.

pattern = softmax(softcap(q kT * scaling) + causal and window mask), in float32, with the scaling, soft-cap and window
that the layer itself used (Vaswani et al. 2017, section 3.2.1).
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from playground.capture import LayerScores
    from playground.engine import Generation

UNREADABLE = "Layer {layer} adds {terms} to its scores, which the attention panel cannot follow yet."


def queries(run: Generation, layer: int, start: int = 0, end: int | None = None) -> Tensor:
    """Post-rotation queries (H, n, D) of the rows start..end, a view."""
    return run.recorder.queries[layer][:, start : run.rows if end is None else end]


def keys(run: Generation, layer: int, end: int | None = None) -> Tensor:
    """Post-rotation keys (K, end, D), a view."""
    return run.cache.keys_at(layer, run.rows if end is None else end)


def _raw_scores(run: Generation, layer: int, start: int, end: int, head: int | None) -> Tensor:
    """Q kT * scaling of the rows start..end: float32 (H or 1, n, end). Query heads of a group share a key head."""
    q, k = queries(run, layer, start, end).float(), keys(run, layer, end).float()
    if head is not None:
        q, k = q[head][None], k[head * k.shape[0] // q.shape[0]][None]
    grouped = q.reshape(k.shape[0], -1, q.shape[-1]) * run.recorder.scores[layer].scaling  # (K, H/K * n, D)
    return torch.matmul(grouped, k.transpose(1, 2)).reshape(q.shape[0], end - start, end)  # (H, n, T)


def _pattern(raw: Tensor, start: int, how: LayerScores) -> Tensor:
    """Soft-cap, mask and softmax of raw scores (H, n, T) whose first row is `start`."""
    if how.softcap is not None:
        raw = torch.tanh(raw / how.softcap) * how.softcap
    hidden = _hidden(raw, start, how.sliding_window)
    return (raw if hidden is None else raw.masked_fill(hidden, float("-inf"))).softmax(-1)


def _hidden(raw: Tensor, start: int, window: int | None) -> Tensor | None:
    """Where a query at row start + i may not look, bool (n, T): later positions, and those that left the window."""
    rows, length = raw.shape[-2:]
    if rows == 1 and window is None:
        return None
    query = torch.arange(start, start + rows, device=raw.device)[:, None]
    key = torch.arange(length, device=raw.device)[None, :]
    hidden = key > query
    return hidden if window is None else hidden | (key <= query - window)


def _readable(run: Generation, layer: int) -> LayerScores:
    how = run.recorder.scores[layer]
    if how.unreadable:
        raise ValueError(UNREADABLE.format(layer=layer, terms=" and ".join(how.unreadable)))
    return how


@torch.inference_mode()
def rows(run: Generation, layer: int, start: int, end: int, head: int | None = None) -> Tensor:
    """Attention probabilities (H or 1, end - start, end) float32 of the queries start..end, on the layer's device.

    Raises:
        ValueError: one sentence, when this layer's scores hold a term that maps cannot follow.
    """
    return _pattern(_raw_scores(run, layer, start, end, head), start, _readable(run, layer))


@torch.inference_mode()
def pooled_rows(run: Generation, start: int, end: int, width: int) -> Tensor:
    """All heads of all layers as small pictures: max over cells of `width` x `width` positions of sqrt(p), as uint8.

    Layers that make their scores in the same way are worked on together: a message a token must cost next to nothing.

    Returns:
        (sum of H over layers, row bins, column bins) on the CPU. Row bins start at start // width; only the rows
        start..end enter, so that bins at the edge are merged with what is there already.
    """
    pictures = []
    for how, layers in groupby(range(len(run.anatomy.heads)), key=lambda layer: _readable(run, layer)):
        raw = [_raw_scores(run, layer, start, end, None).to(run.device) for layer in layers]
        pictures.append(_pool(_pattern(torch.cat(raw), start, how), start % width, width).cpu())
    return (torch.cat(pictures).sqrt() * 255).round().to(torch.uint8)


def _pool(pattern: Tensor, lead: int, width: int) -> Tensor:
    """Max over width x width cells of (H, n, T); the first cell lacks its first `lead` rows, the last may be short."""
    across = _pool_last(pattern, 0, width)  # (H, n, column bins)
    return _pool_last(across.transpose(1, 2), lead, width).transpose(1, 2)  # (H, row bins, column bins)


def _pool_last(values: Tensor, lead: int, width: int) -> Tensor:
    """Max over runs of `width` in the last dimension of non-negative values, after `lead` missing ones."""
    length = lead + values.shape[-1]
    padded = F.pad(values, (lead, -length % width))
    return padded.reshape(*values.shape[:-1], -1, width).amax(-1)


def picture(run: Generation, layer: int, head: int, end: int, largest: int) -> tuple[int, Tensor]:
    """One head's whole map as sqrt(p) in 8 bits: (cell width, uint8 (m, m)) with m at most `largest`.

    The map is made and pooled in bands of rows, so that a long context costs no T x T float matrix.
    """
    width = 1
    while -(-end // width) > largest:
        width *= 2
    size = -(-end // width)
    image = torch.zeros(size, size, dtype=torch.uint8)
    band = width * max(1, 256 // width)
    for start in range(0, end, band):
        stop = min(start + band, end)
        cells = _pool(rows(run, layer, start, stop, head), 0, width)[0].cpu()
        image[start // width : start // width + cells.shape[0], : cells.shape[1]] = (cells.sqrt() * 255).round()
    return width, image
