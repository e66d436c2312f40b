"""Layers of a KV cache: what transformers' `Cache` is made of, and how many bytes they really hold."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from playground.records import CacheSize


class ContiguousLayer(CacheLayerMixin):
    """Keys and values in two buffers of fixed capacity, written in place; doubled when a run outgrows them.

    Gives the same views, bit for bit, as transformers' `DynamicLayer`, without copying the past at each step.
    """

    is_sliding = False
    keys: Tensor
    values: Tensor

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate for the shapes (B, K, T_new, D) of the first keys and values."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.capacity = max(self.capacity, key_states.shape[2])
        self._keys = self._empty(key_states)
        self._values = self._empty(value_states)
        self.is_initialized = True

    def _empty(self, like: Tensor) -> Tensor:
        batch, heads, _, head_dim = like.shape
        return like.new_empty(batch, heads, self.capacity, head_dim)

    def _grow(self, needed: int) -> None:
        self.capacity = max(needed, 2 * self.capacity)
        for name in ("_keys", "_values"):
            old = getattr(self, name)
            new = self._empty(old)
            new[:, :, : self.length] = old[:, :, : self.length]
            setattr(self, name, new)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append (B, K, T_new, D); returns views (B, K, T, D) of all keys and all values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, end = self.length, self.length + key_states.shape[2]
        if end > self.capacity:
            self._grow(end)
        self._keys[:, :, start:end] = key_states
        self._values[:, :, start:end] = value_states
        self.length = end
        self.keys, self.values = self._keys[:, :, :end], self._values[:, :, :end]
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(key length, offset) that a mask for `query_length` new positions needs."""
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """Positions stored."""
        return self.length

    def get_max_length(self) -> int:
        """-1: the buffers grow."""
        return -1

    @property
    def reserved(self) -> int:
        """Bytes allocated for keys and values, used or not."""
        return self._keys.nbytes + self._values.nbytes if self.is_initialized else 0


class ContiguousCache(Cache):
    """A cache of `ContiguousLayer`s, each with room for `capacity` positions, made as the layers first call."""

    layers: list[ContiguousLayer]  # type: ignore[assignment]

    def __init__(self, capacity: int) -> None:
        super().__init__(layer_class_to_replicate=partial(ContiguousLayer, capacity))  # type: ignore[arg-type]

    def layer_bytes(self) -> tuple[tuple[int, int], ...]:
        """(key bytes, value bytes) of each layer: the tensors' own nbytes."""
        return tuple((layer.keys.nbytes, layer.values.nbytes) for layer in self.layers)

    def measure(self) -> CacheSize:
        """The cache as it is now."""
        return CacheSize(self.get_seq_length(), self.layer_bytes(), sum(layer.reserved for layer in self.layers))

    def keys_at(self, layer: int, end: int) -> Tensor:
        """Rotated keys (K, end, D) of one layer, a view."""
        return self.layers[layer].keys[0, :, :end]

    def values_at(self, layer: int, end: int) -> Tensor:
        """Values (K, end, D) of one layer, a view."""
        return self.layers[layer].values[0, :, :end]
