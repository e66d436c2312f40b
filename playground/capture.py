"""Attention as every model here runs it: the fused kernel, plus a note of the query.

`attend` is registered with transformers' `AttentionInterface` under `IMPLEMENTATION`, and its mask twin with
`AttentionMaskInterface`. It computes attention with the fused kernel and, when a `Recorder` is active, copies the
post-rotation queries of the new positions into a preallocated buffer. Keys and values are in the KV cache already;
any attention map can be computed from the two when somebody looks (`playground.attention`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from playground.caches import ContiguousCache

IMPLEMENTATION = "playground"

_active: ContextVar[Recorder | None] = ContextVar("recorder", default=None)

UNREADABLE = ("s_aux", "position_bias")
"""Keyword arguments that change scores in ways the maps do not follow yet."""


@dataclass(frozen=True)
class LayerScores:
    """How one attention layer turns q and k into scores: `softcap * tanh(q kT * scaling / softcap)`, windowed.

    Attributes:
        scaling: factor on q kT.
        softcap: None, or the bound of the scores (Gemma 2).
        sliding_window: None, or how many newest positions a query sees, itself included.
        unreadable: names of further terms that maps cannot follow; empty for most models.
    """

    scaling: float
    softcap: float | None = None
    sliding_window: int | None = None
    unreadable: tuple[str, ...] = ()


class Recorder:
    """Post-rotation queries of one run, (H, T, D) a layer, in buffers of the run's full length.

    Only the engine writes, one forward pass at a time. `scores` tells how each layer uses its queries.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.rows = 0
        self.queries: dict[int, Tensor] = {}
        self.scores: dict[int, LayerScores] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return sum(buffer.nbytes for buffer in self.queries.values())

    def write(self, layer: int, query: Tensor) -> None:
        """Keep the queries (1, H, T_new, D) of the positions from `rows` on."""
        count = query.shape[2]
        self.queries[layer][:, self.rows : self.rows + count] = query[0]

    def open_layer(self, layer: int, query: Tensor, scores: LayerScores) -> None:
        """Allocate the buffer of a layer at its first forward pass."""
        _, heads, _, head_dim = query.shape
        self.queries[layer] = query.new_empty(heads, self.capacity, head_dim)
        self.scores[layer] = scores


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
        **kwargs: what else a family passes; `sliding_window`, `position_bias` and `is_causal` are read.

    Returns:
        The mixed values (B, T_new, H, D), and None in place of weights.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    recorder = _active.get()
    if recorder is not None:
        layer: int = module.layer_idx  # type: ignore[assignment]
        if layer not in recorder.queries:
            recorder.open_layer(layer, query, _layer_scores(scale, softcap, kwargs))
        recorder.write(layer, query)
    if softcap is not None:
        return _explicit(query, key, value, attention_mask, scale, softcap), None
    return _fused(query, key, value, attention_mask, scale, dropout, kwargs), None


def _layer_scores(scaling: float, softcap: float | None, kwargs: dict[str, Any]) -> LayerScores:
    unreadable = tuple(name for name in UNREADABLE if kwargs.get(name) is not None)
    return LayerScores(float(scaling), softcap, kwargs.get("sliding_window"), unreadable)


def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    dropout: float,
    kwargs: dict[str, Any],
) -> Tensor:
    """The fused kernel; one new position needs no mask and no repeated keys."""
    batch, heads, new, head_dim = query.shape
    groups = heads // key.shape[1]
    if new == 1 and mask is None:
        packed = query.reshape(batch, key.shape[1], groups, head_dim)  # (B, K, H/K, D)
        mixed = scaled_dot_product_attention(packed, key, value, dropout_p=dropout, scale=scale)
        return mixed.reshape(batch, 1, heads, value.shape[-1])  # (B, 1, H, D)
    bias = kwargs.get("position_bias")
    if bias is not None:
        mask = _biased(mask, bias, new, key.shape[2])
    causal = mask is None and new > 1 and kwargs.get("is_causal") is not False
    if groups > 1:
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)  # (B, H, T, D)
    mixed = scaled_dot_product_attention(query, key, value, mask, dropout, is_causal=causal, scale=scale)
    return mixed.transpose(1, 2).contiguous()  # (B, T_new, H, D)


def _biased(mask: Tensor | None, bias: Tensor, new: int, length: int) -> Tensor:
    """An additive mask: the position bias where a query may look, -inf elsewhere."""
    if mask is None:
        mask = torch.ones(new, length, dtype=torch.bool, device=bias.device).tril(length - new)
    return bias.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else bias + mask


def _explicit(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, softcap: float) -> Tensor:
    """Soft-capped attention, which no fused kernel offers: `softcap * tanh(scores / softcap)` before the softmax."""
    groups = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    scores = torch.tanh(query @ key.transpose(2, 3) * (scale / softcap)) * softcap  # (B, H, T_new, T)
    if mask is None and query.shape[2] > 1:
        new, length = scores.shape[-2:]
        mask = torch.ones(new, length, dtype=torch.bool, device=scores.device).tril(length - new)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    pattern = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    return (pattern @ value).transpose(1, 2).contiguous()


AttentionInterface.register(IMPLEMENTATION, attend)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)


@dataclass(frozen=True)
class Rotary:
    """How a model rotates: read from its own functions, see `playground.rope`.

    Attributes:
        apply: the family's `apply_rotary_pos_emb(q, k, cos, sin)`.
        table: its module `rotary_emb(x, position_ids) -> (cos, sin)`.
        layers: indices of the layers whose q and k it rotates.
        dim: how many leading dimensions of a head take part.
    """

    apply: Any
    table: nn.Module
    layers: frozenset[int]
    dim: int


@dataclass(frozen=True)
class Anatomy:
    """What a calibration forward pass found out about a model's attention.

    Attributes:
        heads: query heads of each layer.
        kv_heads: key-value heads of each layer.
        head_dims: head size of each layer.
        scalings: factor on q kT of each layer.
        dtype: of queries, keys and values.
        rotary: None where nothing rotates.
        unreadable: terms in the scores that maps cannot follow; empty for most models.
    """

    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    head_dims: tuple[int, ...]
    scalings: tuple[float, ...]
    dtype: torch.dtype
    rotary: Rotary | None
    unreadable: tuple[str, ...] = field(default=())

    @property
    def position_bytes(self) -> int:
        """Bytes that one more position costs: queries, keys and values of all layers."""
        shapes = zip(self.heads, self.kv_heads, self.head_dims, strict=True)
        return sum((h + 2 * k) * d for h, k, d in shapes) * self.dtype.itemsize


_anatomies: WeakKeyDictionary[nn.Module, Anatomy] = WeakKeyDictionary()


def prepare(model: PreTrainedModel) -> Anatomy:
    """Route the model's attention through `attend` and find out its anatomy, once for each loaded model.

    Raises:
        ValueError: one sentence, when the model's attention cannot be routed.
    """
    if model not in _anatomies:
        if not model._can_set_attn_implementation():
            raise ValueError(
                f"{type(model).__name__} does not pass its attention through transformers' attention interface, "
                "so its queries cannot be recorded: choose another model."
            )
        model.set_attn_implementation(IMPLEMENTATION)
        _anatomies[model] = _calibrate(model)
    return _anatomies[model]


@torch.inference_mode()
def _calibrate(model: PreTrainedModel) -> Anatomy:
    """One forward pass over two tokens: shapes from the recorder and the cache, rotation from the calls to it."""
    recorder, cache = Recorder(capacity=2), ContiguousCache(capacity=2)
    ids = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    with recording(recorder), _watching_rotation(model, recorder) as rotated:
        model(input_ids=ids, past_key_values=cache, use_cache=True)
    layers = sorted(recorder.queries)
    if layers != list(range(len(layers))) or len(cache.layers) != len(layers):
        raise ValueError(f"Only some layers of {type(model).__name__} are attention, so it cannot be shown yet.")
    first = recorder.queries[0]
    return Anatomy(
        heads=tuple(recorder.queries[each].shape[0] for each in layers),
        kv_heads=tuple(cache.layers[each].keys.shape[1] for each in layers),
        head_dims=tuple(recorder.queries[each].shape[2] for each in layers),
        scalings=tuple(recorder.scores[each].scaling for each in layers),
        dtype=first.dtype,
        rotary=_rotary(model, rotated),
        unreadable=tuple(sorted({name for each in recorder.scores.values() for name in each.unreadable})),
    )


def _rotary_table(model: PreTrainedModel) -> nn.Module | None:
    """The base model's module that makes cos and sin, if it has one."""
    table = getattr(model.base_model, "rotary_emb", None)
    return table if isinstance(table, nn.Module) else None


def _family(model: PreTrainedModel) -> Any:
    """The Python module that defines the model, where its `apply_rotary_pos_emb` lives."""
    return sys.modules[type(model.base_model).__module__]


@contextmanager
def _watching_rotation(model: PreTrainedModel, recorder: Recorder) -> Iterator[dict[int, int]]:
    """Note which layers call the family's rotation, and on how many dimensions: {layer: dimensions}."""
    family = _family(model)
    rotated: dict[int, int] = {}
    original = getattr(family, "apply_rotary_pos_emb", None)
    if original is None:
        yield rotated
        return

    def noting(q: Tensor, k: Tensor, cos: Tensor, *args: Any, **kwargs: Any) -> Any:
        rotated[len(recorder.queries)] = cos.shape[-1]
        return original(q, k, cos, *args, **kwargs)

    family.apply_rotary_pos_emb = noting
    try:
        yield rotated
    finally:
        family.apply_rotary_pos_emb = original


def _rotary(model: PreTrainedModel, rotated: dict[int, int]) -> Rotary | None:
    table = _rotary_table(model)
    if table is None or not rotated:
        return None
    return Rotary(_family(model).apply_rotary_pos_emb, table, frozenset(rotated), next(iter(rotated.values())))
