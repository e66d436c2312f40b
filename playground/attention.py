"""Attention maps of a run, computed from its recorded queries and cached keys when somebody looks.

pattern = softmax(softcap(q kT * scaling) + bias + mask), in float32, with the scaling, soft-cap, sinks, linear bias and
mask that the layer itself used (Vaswani et al. 2017, section 3.2.1). Models whose attention cannot be routed through
`capture.attend` keep their patterns instead (`playground.patterns`).
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from playground.anatomy import NO_QUERIES
from playground.capture import softmax_with_sinks

if TYPE_CHECKING:
    from playground.capture import LayerRecord, Sight
    from playground.engine import Generation

ODD = "Layer {layer} has {what} in its scores, which the attention panel cannot follow."
ODD_MASK = "a mask that hides positions between visible ones"


def queries(run: Generation, layer: int, start: int = 0, end: int | None = None) -> Tensor:
    """Post-rotation queries (H, n, D) of the rows start..end, a view.

    Raises:
        ValueError: one sentence, when this model's queries cannot be had.
    """
    if not run.anatomy.routed:
        raise ValueError(NO_QUERIES.format(name=type(run.loaded.model).__name__))
    return run.recorder.layers[layer].queries[:, start : run.rows if end is None else end]


def keys(run: Generation, layer: int, end: int | None = None) -> Tensor:
    """Post-rotation keys (K, end, D), a view: from the cache, or as recorded where the cache holds latents."""
    end = run.rows if end is None else end
    recorded = run.recorder.layers[layer].keys if run.anatomy.routed else None
    return run.cache.keys_at(layer, end) if recorded is None else recorded[:, :end]


def _raw_scores(run: Generation, layer: int, start: int, end: int, head: int | None) -> Tensor:
    """q kT * scaling of the rows start..end: float32 (H or 1, n, end). Query heads of a group share a key head."""
    q, k = queries(run, layer, start, end).float(), keys(run, layer, end).float()
    if head is not None:
        q, k = q[head][None], k[head * k.shape[0] // q.shape[0]][None]
    grouped = q.reshape(k.shape[0], -1, q.shape[-1]) * run.recorder.layers[layer].scores.scaling  # (K, H/K * n, D)
    return torch.matmul(grouped, k.transpose(1, 2)).reshape(q.shape[0], end - start, end)  # (H, n, T)


def _finish(raw: Tensor, start: int, softcap: float | None, sight: Sight | None) -> Tensor:
    """Soft-cap and mask of raw scores (H, n, T) whose first row is `start`."""
    if softcap is not None:
        raw = torch.tanh(raw / softcap) * softcap
    hidden = _hidden(raw, start, sight)
    return raw if hidden is None else raw.masked_fill(hidden, float("-inf"))


def _hidden(raw: Tensor, start: int, sight: Sight | None) -> Tensor | None:
    """Where a query at row start + i may not look, bool (n, T): later positions, and those before its first one."""
    rows, length = raw.shape[-2:]
    if rows == 1 and sight is None:
        return None
    query = torch.arange(start, start + rows, device=raw.device)[:, None]
    key = torch.arange(length, device=raw.device)[None, :]
    hidden = key > query
    return hidden if sight is None else hidden | (key < sight.first[start : start + rows, None])


def _readable(run: Generation, layer: int, start: int, end: int) -> LayerRecord:
    """The record of a layer, if these rows of it can be computed again."""
    record = run.recorder.layers[layer]
    what = record.odd
    if record.sight is not None and not what:
        first, seen = record.sight.first[start:end], record.sight.seen[start:end]
        whole = torch.arange(start, end, device=first.device) - first + 1
        what = "" if bool(((seen == 0) | (seen == whole)).all()) else ODD_MASK
    if what:
        raise ValueError(ODD.format(layer=layer, what=what))
    return record


@torch.inference_mode()
def rows(run: Generation, layer: int, start: int, end: int, head: int | None = None) -> Tensor:
    """Attention probabilities (H or 1, end - start, end) float32 of the queries start..end, on the layer's device.

    Raises:
        ValueError: one sentence, when this layer's scores hold a term that maps cannot follow.
    """
    if not run.anatomy.routed:
        kept = run.recorder.maps[layer][:, start:end, :end]
        return kept if head is None else kept[head][None]
    record = _readable(run, layer, start, end)
    chosen = slice(None) if head is None else slice(head, head + 1)
    raw = _raw_scores(run, layer, start, end, head)
    if record.slopes is not None:
        raw = raw + record.slopes[chosen, None, None] * torch.arange(end, device=raw.device)
    sinks = None if record.sinks is None else record.sinks[chosen]
    return softmax_with_sinks(_finish(raw, start, record.scores.softcap, record.sight), sinks)


@torch.inference_mode()
def pooled_rows(run: Generation, start: int, end: int, width: int) -> Tensor:
    """All heads of all layers as small pictures: max over cells of `width` x `width` positions of sqrt(p), as uint8.

    Layers that make their scores in the same way are worked on together: a message a token must cost next to nothing.

    Returns:
        (sum of H over layers, row bins, column bins) on the CPU. Row bins start at start // width; only the rows
        start..end enter, so that bins at the edge are merged with what is there already.
    """
    patterns: list[Tensor] = []
    for alike, layers in groupby(range(len(run.anatomy.heads)), key=lambda layer: _way(run, layer)):
        if alike is None:
            patterns += [rows(run, layer, start, end) for layer in layers]
            continue
        members = list(layers)
        raw = [_raw_scores(run, layer, start, end, None).to(run.device) for layer in members]
        sight = _readable(run, members[0], start, end).sight
        patterns.append(_finish(torch.cat(raw), start, alike[0], sight).softmax(-1))
    pictures = [_pool(pattern, start % width, width).cpu() for pattern in patterns]
    return (torch.cat(pictures).sqrt() * 255).round().to(torch.uint8)


def _way(run: Generation, layer: int) -> tuple[float | None, int] | None:
    """What layers must share to be finished together: soft-cap and sight. None for those with terms of their own."""
    if not run.anatomy.routed:
        return None
    record = run.recorder.layers[layer]
    if record.sinks is not None or record.slopes is not None or record.odd:
        return None
    return record.scores.softcap, id(record.sight)


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
