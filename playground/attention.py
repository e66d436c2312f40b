"""Attention maps of a run, computed from its recorded queries and cached keys when somebody looks.

pattern = softmax(softcap(q kT * scaling) + causal and window mask), in float32, with the scaling, soft-cap and window
that the layer itself used (Vaswani et al. 2017, section 3.2.1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from playground import caches

if TYPE_CHECKING:
    from playground.capture import LayerScores
    from playground.engine import Generation

UNREADABLE = "Layer {layer} adds {terms} to its scores, which the attention panel cannot follow yet."


def queries(run: Generation, layer: int, start: int = 0, end: int | None = None) -> Tensor:
    """Post-rotation queries (H, n, D) of the rows start..end, a view."""
    return run.recorder.queries[layer][:, start : run.rows if end is None else end]


def keys(run: Generation, layer: int, end: int | None = None) -> Tensor:
    """Post-rotation keys (K, end, D), a view."""
    return caches.keys_at(run.cache, layer, run.rows if end is None else end)


def scores(run: Generation, layer: int, start: int, end: int, head: int | None = None) -> Tensor:
    """Masked scores before the softmax, float32: (H, end - start, end), or (1, ...) for one head; -inf where hidden."""
    how = run.recorder.scores[layer]
    if how.unreadable:
        raise ValueError(UNREADABLE.format(layer=layer, terms=" and ".join(how.unreadable)))
    q, k = queries(run, layer, start, end), keys(run, layer, end)
    if head is not None:
        k = k[head * k.shape[0] // q.shape[0]][None]
        q = q[head][None]
    return _mask(_raw_scores(q, k, how), start, how.sliding_window)


def _raw_scores(q: Tensor, k: Tensor, how: LayerScores) -> Tensor:
    """Scores (H, n, T) of q (H, n, D) with k (K, T, D); query heads of a group share a key head."""
    heads, rows, head_dim = q.shape
    grouped = q.float().reshape(k.shape[0], -1, head_dim)  # (K, H/K * n, D)
    raw = torch.matmul(grouped, k.float().transpose(1, 2)).reshape(heads, rows, -1) * how.scaling  # (H, n, T)
    return raw if how.softcap is None else torch.tanh(raw / how.softcap) * how.softcap


def _mask(raw: Tensor, start: int, window: int | None) -> Tensor:
    """-inf where a query at row start + i may not look: later positions, and those that left the window."""
    rows, length = raw.shape[-2:]
    query = torch.arange(start, start + rows, device=raw.device)[:, None]
    key = torch.arange(length, device=raw.device)[None, :]
    hidden = key > query
    if window is not None:
        hidden = hidden | (key <= query - window)
    return raw.masked_fill(hidden, float("-inf"))


@torch.inference_mode()
def rows(run: Generation, layer: int, start: int, end: int, head: int | None = None) -> Tensor:
    """Attention probabilities (H or 1, end - start, end) float32 of the queries start..end, on the layer's device.

    Raises:
        ValueError: one sentence, when this layer's scores hold a term that maps cannot follow.
    """
    return scores(run, layer, start, end, head).softmax(-1)


def pooled_rows(run: Generation, start: int, end: int, width: int) -> Tensor:
    """All heads of all layers as small pictures: max over cells of `width` x `width` positions of sqrt(p), as uint8.

    Returns:
        (sum of H over layers, row bins, column bins) on the CPU. Row bins start at start // width; only the rows
        start..end enter, so that bins at the edge are merged with what is there already.
    """
    lead = start % width  # rows of the first bin that came earlier
    pictures = [_pool(rows(run, layer, start, end), lead, width) for layer in range(len(run.anatomy.heads))]
    merged = torch.cat([each.cpu() for each in pictures])
    return (merged.sqrt() * 255).round().to(torch.uint8)


def _pool(pattern: Tensor, lead: int, width: int) -> Tensor:
    """Max over width x width cells of (H, n, T); `lead` empty rows come first, zeros fill the last cells."""
    heads, count, length = pattern.shape
    row_bins, col_bins = -(-(lead + count) // width), -(-length // width)
    padded = pattern.new_zeros(heads, row_bins * width, col_bins * width)
    padded[:, lead : lead + count, :length] = pattern
    return padded.reshape(heads, row_bins, width, col_bins, width).amax((2, 4))  # (H, row bins, column bins)


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
