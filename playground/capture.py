"""Attention as every model here runs it: the fused kernel, plus a note of the query.

`attend` is registered with transformers' `AttentionInterface` under `IMPLEMENTATION`, and its mask twin with
`AttentionMaskInterface`. It computes attention with the fused kernel and, when a `Recorder` is active, copies the
post-rotation queries of the new positions into a preallocated buffer. Keys and values are in the KV cache already;
any attention map can be computed from the two when somebody looks (`playground.attention`). What else enters the
scores is noted beside the queries: scale, soft-cap, sinks, linear position bias, and how far back each query may look.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import repeat_kv
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from playground.pieces import Pieces

IMPLEMENTATION = "playground"
BIAS_CHECKED_TO = 8
"""A position bias counts as linear when it was so on every pass until this many keys."""

_active: ContextVar[Recorder | None] = ContextVar("recorder", default=None)


@dataclass(frozen=True)
class LayerScores:
    """How one attention layer turns q and k into scores: `softcap * tanh(q kT * scaling / softcap)`.

    Attributes:
        scaling: factor on q kT.
        softcap: None, or the bound of the scores (Gemma 2).
    """

    scaling: float
    softcap: float | None = None


class Sight:
    """How far back the queries of a group of layers may look: each sees the positions `first`..itself, or it is odd.

    Attributes:
        first: (capacity,) the earliest position that each query sees.
        seen: (capacity,) how many positions it sees; 0 where no mask was given, which means all up to itself.
        noted: no mask was given from this position on.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.first = torch.zeros(capacity, dtype=torch.long, device=device)
        self.seen = torch.zeros(capacity, dtype=torch.long, device=device)
        self.noted = 0

    def continued(self, rows: int, capacity: int) -> Sight:
        """A copy of what the first `rows` queries see, with room for more."""
        made = Sight(capacity, self.first.device)
        made.first[:rows], made.seen[:rows] = self.first[:rows], self.seen[:rows]
        made.noted = rows
        return made

    def note(self, start: int, mask: Tensor) -> None:
        """Take in the mask (1, 1, n, T) of the rows from `start`; the first layer of the group does it for all."""
        end = start + mask.shape[2]
        if self.noted == end:
            return
        visible = mask[0, 0] if mask.dtype == torch.bool else mask[0, 0] > torch.finfo(mask.dtype).min / 2
        self.first[start:end] = visible.int().argmax(-1)
        self.seen[start:end] = visible.sum(-1)
        self.noted = end


class LayerRecord:
    """What one attention layer left behind, as far as it computed.

    Attributes:
        scores: how its scores are made.
        query: (1, H, n, D) after rotation: what the pass under way, or else the last one, brought.
        stacked: the recorder's stack that this layer's queries are part of, and which part; there from the end of the
            first pass on.
        keys: (K, capacity, D) after rotation, where the cache holds something else (latents); else None.
        key_shape: (K, D) of the keys that attention was given.
        sight: None where every query sees all up to itself.
        sinks: (H,) logits that take part in the softmax but belong to no position (GPT-OSS); else None.
        slopes: (H,) of a bias that is linear in the key's position (ALiBi); else None.
        odd: one phrase, when something enters the scores that maps cannot follow; empty else.
    """

    stacked: tuple[Pieces, int]

    def __init__(self, scores: LayerScores, query: Tensor, key: Tensor, capacity: int, keep_keys: bool) -> None:
        self.scores = scores
        self.query = query
        self.key_shape = (key.shape[1], key.shape[3])
        self.key_nbytes = key.shape[1] * capacity * key.shape[3] * key.itemsize  # what keeping them would take
        self.keys = key.new_empty(key.shape[1], capacity, key.shape[3]) if keep_keys else None
        self.sight: Sight | None = None
        self.sinks: Tensor | None = None
        self.slopes: Tensor | None = None
        self.odd = ""

    def queries(self, start: int, end: int) -> Tensor:
        """(H, end - start, D) after rotation, of complete passes."""
        pieces, index = self.stacked
        return pieces.rows(start, end, slice(index, index + 1))[0]

    def continued(self, rows: int, capacity: int, sight: Sight | None) -> LayerRecord:
        """The record of the same layer in a branch; its queries are stacked by the recorder."""
        made = copy.copy(self)
        made.sight = sight
        if self.keys is not None:
            made.keys = self.keys.new_empty(self.keys.shape[0], capacity, self.keys.shape[2])
            made.keys[:, :rows] = self.keys[:, :rows]
        return made

    def note_bias(self, bias: Tensor) -> None:
        """Keep a position bias (1, H, n, T) as slopes; note it as odd when it is not linear in the key's position."""
        row = bias[0, :, -1].float()  # (H, T)
        length = row.shape[-1]
        if length < 2 or (self.slopes is not None and length > BIAS_CHECKED_TO):
            return
        self.slopes = (row[:, -1] - row[:, 0]) / (length - 1)
        line = row[:, :1] + self.slopes[:, None] * torch.arange(length, device=row.device)
        if not torch.allclose(row, line, rtol=1e-3, atol=1e-3):
            self.odd = "a position bias that is not linear"


class Recorder:
    """What the attention layers of one run leave behind, in buffers of the run's full length.

    Only the engine writes, one forward pass at a time. A layer's query is set aside while the pass runs; at its end
    those of all layers are copied at once, because small copies cost decoding more than all else that is recorded.

    Attributes:
        rows: positions recorded in full.
        layers: the records by the layers' own index; `order` gives it where several layers share one module.
        maps: (H, capacity, capacity) patterns by layer, only for models whose queries cannot be had.
    """

    def __init__(self, capacity: int, keep_keys: bool = False, order: tuple[int, ...] = ()) -> None:
        self.capacity, self.keep_keys, self._order = capacity, keep_keys, order
        self._calls = 0
        self.rows = 0
        self.layers: dict[int, LayerRecord] = {}
        self.maps: dict[int, Tensor] = {}
        self._stacks: list[tuple[list[LayerRecord], Pieces]] = []
        self._sights: dict[int, Sight] = {}

    def continued(self, rows: int, capacity: int) -> Recorder:
        """A recorder for a branch, whose first `rows` positions are those recorded here.

        Queries stay where they are and are read from there; what takes little (what a query sees) and what must lie in
        one block (keys beside a cache of latents, whole maps) is copied.
        """
        made = Recorder(capacity, self.keep_keys, self._order)
        made.rows = rows
        sights = {each.sight: each.sight.continued(rows, capacity) for each in self.layers.values() if each.sight}
        for layer, record in self.layers.items():
            made.layers[layer] = record.continued(rows, capacity, sights.get(record.sight) if record.sight else None)
        for layer, kept in self.maps.items():
            made.maps[layer] = kept.new_zeros(kept.shape[0], capacity, capacity)
            made.maps[layer][:, :rows, :rows] = kept[:, :rows, :rows]
        for records, pieces in self._stacks:
            own = pieces.own.new_empty(*pieces.own.shape[:2], capacity - rows, pieces.own.shape[3])
            layers = [layer for layer, each in self.layers.items() if each in records]
            made._stack([made.layers[layer] for layer in sorted(layers)], own, pieces.until(rows))
        return made

    def own(self) -> tuple[Tensor, ...]:
        """The buffers that this run fills."""
        kept = [each.keys for each in self.layers.values() if each.keys is not None]
        return (*(pieces.own for _, pieces in self._stacks), *kept, *self.maps.values())

    def borrowed(self) -> tuple[Tensor, ...]:
        """Tensors of ancestors."""
        return tuple(each for _, pieces in self._stacks for each in pieces.before)

    def close_pass(self, count: int) -> None:
        """A forward pass over `count` positions is complete."""
        if not self._stacks:
            self._allocate()
        for records, pieces in self._stacks:
            new = torch.cat([record.query for record in records])  # (n, H, count, D)
            pieces.own.narrow(2, self.rows - pieces.start, count).copy_(new)
        self.rows += count
        self._calls = 0
        self._sights.clear()

    def layer_of(self, module: nn.Module) -> int:
        """The index of the layer that attends now."""
        if not self._order:
            return module.layer_idx  # type: ignore[return-value]
        self._calls += 1
        return self._order[self._calls - 1]

    def _allocate(self) -> None:
        """One stack (n, H, capacity, D) for each n consecutive layers whose queries are of one shape."""
        ordered = [self.layers[layer] for layer in sorted(self.layers)]
        for (heads, head_dim, dtype, device), group in groupby(ordered, key=_query_shape):
            records = list(group)
            own = torch.empty(len(records), heads, self.capacity, head_dim, dtype=dtype, device=device)
            self._stack(records, own)

    def _stack(self, records: list[LayerRecord], own: Tensor, before: tuple[Tensor, ...] = ()) -> None:
        pieces = Pieces(own, before)
        self._stacks.append((records, pieces))
        for index, record in enumerate(records):
            record.stacked = pieces, index

    def note_mask(self, record: LayerRecord, mask: Tensor) -> None:
        """Keep how far back the new queries may look; layers that were given the same mask share it."""
        if record.sight is None:
            if id(mask) not in self._sights:
                self._sights[id(mask)] = Sight(self.capacity, mask.device)
            record.sight = self._sights[id(mask)]
        record.sight.note(self.rows, mask)

    def keep_map(self, layer: int, pattern: Tensor) -> None:
        """Keep a pattern (1, H, n, T) of the positions from `rows` on."""
        _, heads, count, length = pattern.shape
        if layer not in self.maps:
            self.maps[layer] = pattern.new_zeros(heads, self.capacity, self.capacity, dtype=torch.float32)
        self.maps[layer][:, self.rows : self.rows + count, :length] = pattern[0]


def _query_shape(record: LayerRecord) -> tuple[int, int, torch.dtype, torch.device]:
    query = record.query
    return query.shape[1], query.shape[3], query.dtype, query.device


@contextmanager
def recording(recorder: Recorder | None) -> Iterator[None]:
    """Make `recorder` see the attention of the forward passes inside. Never hold it open around a yield."""
    token = _active.set(recorder)
    try:
        yield
    finally:
        _active.reset(token)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Fused attention that notes the query.

    Args:
        module: the attention module; has `layer_idx`.
        query: (B, H, T_new, D), after rotation.
        key: (B, K, T, D), all cached positions, not repeated for grouped queries.
        value: (B, K, T, D).
        attention_mask: bool (B, 1, T_new, T), True = attend; None = plain causal.
        scaling: factor on q kT; 1 / sqrt(D) when None.
        dropout: probability of dropping a weight, in training.
        softcap: bound of the scores, where a layer has one.
        s_aux: (H,) sinks: logits in the softmax that belong to no position.
        position_bias: (1, H, T_new, T) added to the scores.
        **kwargs: what else a family passes; `is_causal` is read.

    Returns:
        The mixed values (B, T_new, H, D), and None in place of weights.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    recorder = _active.get()
    if recorder is not None:
        layer = recorder.layer_of(module)
        record = recorder.layers.get(layer)
        if record is None:
            made = LayerScores(float(scale), softcap)
            record = LayerRecord(made, query, key, recorder.capacity, recorder.keep_keys)
            record.sinks = s_aux
            recorder.layers[layer] = record
        record.query = query
        if record.keys is not None:
            record.keys[:, recorder.rows : key.shape[2]] = key[0, :, recorder.rows :]
        if attention_mask is not None:
            recorder.note_mask(record, attention_mask)
        if position_bias is not None:
            record.note_bias(position_bias)
    if position_bias is not None:
        attention_mask = _biased(attention_mask, position_bias, query.shape[2], key.shape[2])
    if softcap is not None or s_aux is not None:
        return _explicit(query, key, value, attention_mask, scale, softcap, s_aux), None
    return _fused(query, key, value, attention_mask, scale, dropout, kwargs.get("is_causal") is not False), None


def _fused(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, dropout: float, causal: bool
) -> Tensor:
    """The fused kernel; one new position needs no mask and no repeated keys."""
    batch, heads, new, head_dim = query.shape
    groups = heads // key.shape[1]
    if new == 1 and mask is None:
        packed = query.reshape(batch, key.shape[1], groups, head_dim)  # (B, K, H/K, D)
        mixed = scaled_dot_product_attention(packed, key, value, dropout_p=dropout, scale=scale)
        return mixed.reshape(batch, 1, heads, value.shape[-1])  # (B, 1, H, D)
    if groups > 1:
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)  # (B, H, T, D)
    causal = causal and mask is None and new > 1
    mixed = scaled_dot_product_attention(query, key, value, mask, dropout, is_causal=causal, scale=scale)
    return mixed.transpose(1, 2).contiguous()  # (B, T_new, H, D)


def _biased(mask: Tensor | None, bias: Tensor, new: int, length: int) -> Tensor:
    """An additive mask: the position bias where a query may look, -inf elsewhere."""
    if mask is None:
        mask = torch.ones(new, length, dtype=torch.bool, device=bias.device).tril(length - new)
    return bias.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else bias + mask


def _explicit(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention with what no fused kernel offers: soft-capped scores, and sinks that take a share of the softmax."""
    groups = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    scores = query @ key.transpose(2, 3) * scale  # (B, H, T_new, T)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + _biased(mask, scores.new_zeros(()), query.shape[2], key.shape[2])
    return (softmax_with_sinks(scores, sinks).to(query.dtype) @ value).transpose(1, 2).contiguous()


def softmax_with_sinks(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Probabilities (..., H, n, T) float32 of scores; sinks (H,) take their share first, so rows sum to less than 1."""
    if sinks is None:
        return scores.softmax(-1, dtype=torch.float32)
    column = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat((scores, column), -1).softmax(-1, dtype=torch.float32)[..., :-1]


AttentionInterface.register(IMPLEMENTATION, attend)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
