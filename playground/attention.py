"""Attention maps of a run, computed from its recorded queries and cached keys when somebody looks.

pattern = softmax(softcap(q kT * scaling) + bias + mask), in float32, with the scaling, soft-cap, sinks, linear bias and
mask that the layer itself used (Vaswani et al. 2017, section 3.2.1). Models whose attention cannot be routed through
`capture.attend` keep their patterns instead (`playground.patterns`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from playground.anatomy import NO_QUERIES
from playground.capture import softmax_with_sinks
from playground.sampling import REMOVED

if TYPE_CHECKING:
    from playground.capture import LayerRecord, Sight
    from playground.engine import Generation

ODD = "Layer {layer} has {what} in its scores, which the attention panel cannot follow."
BAND_NUMBERS = 1 << 20
"""Probabilities that are worked out at once for small pictures, in all heads together: 4 MiB, which stays in caches."""
ODD_MASK = "a mask that hides positions between visible ones"


def queries(run: Generation, layer: int, start: int = 0, end: int | None = None) -> Tensor:
    """Post-rotation queries (H, n, D) of the rows start..end, a view where they lie in one block.

    Raises:
        ValueError: one sentence, when this model's queries cannot be had.
    """
    if not run.anatomy.routed:
        raise ValueError(NO_QUERIES.format(name=type(run.loaded.model).__name__))
    return run.recorder.layers[layer].queries(start, run.rows if end is None else end)


def keys(run: Generation, layer: int, end: int | None = None) -> Tensor:
    """Post-rotation keys (K, end, D): from the cache, or as recorded where the cache holds latents."""
    end = run.rows if end is None else end
    recorded = run.recorder.layers[layer].keys if run.anatomy.routed else None
    return run.cache.keys_at(layer, end) if recorded is None else recorded[:, :end]


def _scores(q: Tensor, k: Tensor, scaling: float) -> Tensor:
    """q kT * scaling of g layers, q (g, H, n, D) and k (g, K, T, D): float32 (g, H, n, T).

    Query heads of a group share a key head, so that no key is repeated.
    """
    layers, heads, rows, head_dim = q.shape
    kv_heads, length = k.shape[1:3]
    grouped = q.float().reshape(layers * kv_heads, -1, head_dim) * scaling  # (g K, H/K n, D)
    keys_t = k.float().flatten(0, 1).transpose(1, 2)  # (g K, D, T)
    single = layers * kv_heads == 1  # the head of each frame: half as long without a batch
    scores = torch.mm(grouped[0], keys_t[0]) if single else torch.bmm(grouped, keys_t)  # (g K, H/K n, T)
    return scores.view(layers, heads, rows, length)


@lru_cache(maxsize=64)
def _later(rows: int, device: torch.device) -> Tensor:
    """Which of so many positions stand behind which, bool (rows, rows): making it costs more than its use."""
    return torch.ones(rows, rows, dtype=torch.bool, device=device).triu(1)


def _hide(scores: Tensor, start: int, sights: Sequence[Sight | None]) -> Tensor:
    """Scores (g, H, n, T) of the queries from `start` on in g layers, -inf where they may not look.

    That is at later positions and, in layers with a sight, at those before the first one seen. Writes in place.
    """
    rows, length = scores.shape[-2:]
    if rows > 1:
        scores[..., start:].masked_fill_(_later(rows, scores.device), REMOVED)
    for index, sight in enumerate(sights):
        if sight is None or start >= sight.noted:
            continue
        first = sight.first[start : start + rows, None].to(scores.device)
        if first.any():
            scores[index].masked_fill_(torch.arange(length, device=scores.device) < first, REMOVED)
    return scores


def _readable(run: Generation, layers: range, start: int, end: int) -> list[LayerRecord]:
    """The records of some layers, if these rows of them can be computed again."""
    records = [run.recorder.layers[layer] for layer in layers]
    whole = {sight: _sees_on_end(sight, start, end) for sight in {record.sight for record in records}}
    for layer, record in zip(layers, records, strict=True):
        what = record.odd or ("" if whole[record.sight] else ODD_MASK)
        if what:
            raise ValueError(ODD.format(layer=layer, what=what))
    return records


def _sees_on_end(sight: Sight | None, start: int, end: int) -> bool:
    """Whether each of the queries start..end sees all positions from some first one up to itself."""
    if sight is None or start >= sight.noted:
        return True
    first, seen = sight.first[start:end], sight.seen[start:end]
    whole = torch.arange(start, end, device=first.device) - first + 1
    return bool(((seen == 0) | (seen == whole)).all())


def _patterns(run: Generation, layers: range, start: int, end: int, head: int | None = None) -> Tensor:
    """Probabilities (g, H or 1, n, end) float32 of the queries start..end in layers that stand in one stack."""
    records = _readable(run, layers, start, end)
    (q_stack, at), one = records[0].stacked, records[0]
    q, k = q_stack.rows(start, end, slice(at, at + len(layers))), _stacked_keys(run, layers, end)
    chosen = slice(None)
    if head is not None:
        kv_head, chosen = head * k.shape[1] // q.shape[1], slice(head, head + 1)
        q, k = q[:, chosen], k[:, kv_head : kv_head + 1]
    scores = _scores(q, k, one.scores.scaling)
    if one.scores.softcap is not None:
        scores = torch.tanh(scores / one.scores.softcap) * one.scores.softcap
    if one.slopes is not None:
        scores = scores + one.slopes[chosen, None, None] * torch.arange(end, device=scores.device)
    scores = _hide(scores, start, [each.sight for each in records])
    return softmax_with_sinks(scores, None if one.sinks is None else one.sinks[chosen])


def _stacked_keys(run: Generation, layers: range, end: int) -> Tensor:
    """Post-rotation keys (g, K, end, D) of layers that stand in one stack, a view where they lie in one block."""
    if run.anatomy.keep_keys:
        return keys(run, layers[0], end)[None]
    stack = run.cache.stack_of(layers[0])
    first = layers[0] - stack.first
    return stack.keys.rows(0, end, slice(first, first + len(layers)))


def _together(run: Generation) -> Iterator[range]:
    """All layers in order, in ranges that one operation can serve: of one stack, with the same way to make scores."""
    for _, group in groupby(range(len(run.anatomy.heads)), key=lambda layer: _way(run, layer)):
        layers = list(group)
        if run.anatomy.heads[layers[0]]:
            yield range(layers[0], layers[-1] + 1)


def _way(run: Generation, layer: int) -> object:
    """What neighbours must have in common to be computed together; a layer with terms of its own has its number."""
    if not run.anatomy.routed or run.anatomy.keep_keys or not run.anatomy.heads[layer]:
        return layer
    record = run.recorder.layers[layer]
    if record.sinks is not None or record.slopes is not None:
        return layer
    return id(record.stacked[0]), id(run.cache.stack_of(layer).keys.own), record.scores


@torch.inference_mode()
def rows(run: Generation, layer: int, start: int, end: int, head: int | None = None) -> Tensor:
    """Attention probabilities (H or 1, end - start, end) float32 of the queries start..end, on the layer's device.

    Raises:
        ValueError: one sentence, when this layer's scores hold a term that maps cannot follow.
    """
    if not run.anatomy.routed:
        kept = run.recorder.maps[layer][:, start:end, :end]
        return kept if head is None else kept[head][None]
    return _patterns(run, range(layer, layer + 1), start, end, head)[0]


def _all_rows(run: Generation, start: int, end: int) -> Tensor:
    """What `rows` gives for all layers together, (sum of H over layers, n, end), on the run's device.

    Layers that make their scores in the same way are worked on together: a picture of each must cost next to nothing.
    """
    if run.anatomy.routed:
        patterns = [_patterns(run, layers, start, end).flatten(0, 1) for layers in _together(run)]
    else:
        patterns = [rows(run, layer, start, end) for layer in run.anatomy.attending]
    return patterns[0] if len(patterns) == 1 else torch.cat([each.to(run.device) for each in patterns])


@torch.inference_mode()
def pooled(run: Generation, start: int, end: int, width: int) -> Tensor:
    """All heads of all layers as small pictures: max over cells of `width` x `width` positions of sqrt(p), as uint8.

    Worked out in bands of rows, so that a long prompt costs no T x T numbers a head, nor those after the query.

    Returns:
        (sum of H over layers, row bins, column bins) on the CPU. Row bins start at start // width; only the rows
        start..end enter, so that bins at the edge are merged with what is there already.
    """
    heads, first_bin = sum(run.anatomy.heads), start // width
    pictures = torch.zeros(heads, -(-end // width) - first_bin, -(-end // width), device=run.device)
    band = max(1, BAND_NUMBERS // (heads * end))
    for first in range(start, end, band):
        last = min(first + band, end)
        cells = _pool(_all_rows(run, first, last), first % width, width)
        top = first // width - first_bin
        place = pictures[:, top : top + cells.shape[1], : cells.shape[2]]
        torch.maximum(place, cells, out=place)
    return (pictures.sqrt() * 255).round().to(torch.uint8).cpu()


def _pool(pattern: Tensor, lead: int, width: int) -> Tensor:
    """Max over width x width cells of (H, n, T), none negative: (H, row bins, column bins).

    The first row of cells lacks its first `lead` rows; the last ones may be short.
    """
    if width == 1:
        return pattern
    borders = range(width - lead, pattern.shape[1], width)
    bands = pattern.tensor_split(tuple(borders), dim=1)
    rows = torch.stack([band.amax(1) for band in bands], dim=1)  # rows first: a quick reduction, and less is left
    return F.pad(rows, (0, -rows.shape[-1] % width)).unflatten(-1, (-1, width)).amax(-1)


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
