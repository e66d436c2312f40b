"""Layers of a KV cache: what transformers' `Cache` is made of, and how many bytes they really hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from playground.records import CacheSize


@dataclass(frozen=True)
class KVShape:
    """What one layer caches at each position: K heads of D key and E value dimensions."""

    heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Stack:
    """Consecutive layers of one shape in one tensor, so that a question about all of them is one operation.

    Attributes:
        first: index of the first of its n layers.
        keys: (n, K, capacity, D).
        values: (n, K, capacity, E).
    """

    first: int
    keys: Tensor
    values: Tensor


class ContiguousLayer(CacheLayerMixin):
    """Keys and values in two buffers of fixed capacity, written in place; doubled when a run outgrows them.

    Gives the same views, bit for bit, as transformers' `DynamicLayer`, without copying the past at each step.

    Attributes:
        length: positions stored.
        capacity: positions that there is room for.
        reserved: bytes allocated for keys and values, used or not.
    """

    is_sliding = False
    keys: Tensor
    values: Tensor

    def __init__(self, capacity: int, keys: Tensor | None = None, values: Tensor | None = None) -> None:
        """Room for `capacity` positions: the given buffers (1, K, capacity, D), or its own from the first call on."""
        super().__init__()
        self.capacity = capacity
        self.length = 0
        self.reserved = 0
        self.grown = False
        if keys is not None and values is not None:
            self.dtype, self.device = keys.dtype, keys.device
            self._take(keys, values)
            self.keys, self.values = keys.narrow(2, 0, 0), values.narrow(2, 0, 0)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate for the shapes (B, K, T_new, D) of the first keys and values."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.capacity = max(self.capacity, key_states.shape[2])
        self._take(self._empty(key_states), self._empty(value_states))

    def _take(self, keys: Tensor, values: Tensor) -> None:
        self._keys, self._values = keys, values
        self.reserved = keys.nbytes + values.nbytes
        self.is_initialized = True

    def _empty(self, like: Tensor) -> Tensor:
        batch, heads, _, head_dim = like.shape
        return like.new_empty(batch, heads, self.capacity, head_dim)

    def _grow(self, needed: int) -> None:
        self.capacity, self.grown = max(needed, 2 * self.capacity), True
        old = (self._keys, self._values)
        self._take(*(self._empty(each) for each in old))
        for new, each in zip((self._keys, self._values), old, strict=True):
            new[:, :, : self.length] = each[:, :, : self.length]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append (B, K, T_new, D); returns views (B, K, T, D) of all keys and all values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, new = self.length, key_states.shape[2]
        end = start + new
        if end > self.capacity:
            self._grow(end)
        self._keys.narrow(2, start, new).copy_(key_states)
        self._values.narrow(2, start, new).copy_(value_states)
        self.length = end
        self.keys, self.values = self._keys.narrow(2, 0, end), self._values.narrow(2, 0, end)
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


class ContiguousCache(Cache):
    """A cache of `ContiguousLayer`s, each with room for `capacity` positions.

    Where the layers' shapes are known, one is made for each, and consecutive ones of one shape share a tensor
    (`stacks`); otherwise they are made as the model's layers first call.
    """

    layers: list[ContiguousLayer]  # type: ignore[assignment]

    def __init__(self, capacity: int, shapes: Sequence[KVShape] = ()) -> None:
        self._stacks = tuple(_stacked(capacity, shapes))
        if not shapes:
            super().__init__(layer_class_to_replicate=partial(ContiguousLayer, capacity))  # type: ignore[arg-type]
            return
        pairs = [
            pair for stack in self._stacks for pair in zip(stack.keys.split(1), stack.values.split(1), strict=True)
        ]
        super().__init__(layers=[ContiguousLayer(capacity, *pair) for pair in pairs])

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """All layers in order; each in a stack of its own where they were made or have grown one by one."""
        if self._stacks and not any(layer.grown for layer in self.layers):
            return self._stacks
        return tuple(Stack(index, layer._keys, layer._values) for index, layer in enumerate(self.layers))

    def stack_of(self, layer: int) -> Stack:
        """The stack that a layer stands in."""
        return next(each for each in reversed(self.stacks) if each.first <= layer)

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


def _stacked(capacity: int, shapes: Sequence[KVShape]) -> Iterator[Stack]:
    first = 0
    for shape, group in groupby(shapes):
        count = len(list(group))
        like = torch.empty(0, dtype=shape.dtype, device=shape.device)
        keys = like.new_empty(count, shape.heads, capacity, shape.key_dim)
        yield Stack(first, keys, like.new_empty(count, shape.heads, capacity, shape.value_dim))
        first += count
