"""Layers of a KV cache: what transformers' `Cache` is made of, and how many bytes they really hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin, DummyLayer, LinearAttentionLayer

from playground.pieces import Pieces
from playground.records import CacheSize


@dataclass(frozen=True)
class KVShape:
    """What one layer caches at each position: K heads of D key and E value dimensions; no heads: nothing."""

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
    keys: Pieces
    values: Pieces


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
        self.resume(end)
        return self.keys, self.values

    def resume(self, length: int) -> None:
        """The first `length` positions are in the buffers already."""
        self.length = length
        self.keys, self.values = self._keys.narrow(2, 0, length), self._values.narrow(2, 0, length)

    def release(self) -> None:
        """Let go of the buffers; nothing can be added any more."""
        nothing = self._keys.new_empty(0)
        self._take(nothing, nothing)
        self.keys = self.values = nothing

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(key length, offset) that a mask for `query_length` new positions needs."""
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """Positions stored."""
        return self.length

    def get_max_length(self) -> int:
        """-1: the buffers grow."""
        return -1


class HybridLayer(LinearAttentionLayer, ContiguousLayer):  # type: ignore[misc]
    """The cache of a layer with attention and a state side by side."""

    is_compileable = False
    is_croppable = False

    def __init__(self, states: int, capacity: int, *buffers: Tensor) -> None:
        LinearAttentionLayer.__init__(self, number_of_states=states)
        ContiguousLayer.__init__(self, capacity, *buffers)

    def lazy_initialization(self, *pair: Tensor, **states: Any) -> None:  # type: ignore[override]
        """For keys and values, given by place, or for states, given by name, as transformers calls it."""
        if pair:
            ContiguousLayer.lazy_initialization(self, *pair)
        else:
            LinearAttentionLayer.lazy_initialization(self, **states)

    def get_max_length(self) -> int:
        """-1: the buffers grow."""
        return -1


def _number_of_states(layer: Any) -> int:
    return int(getattr(layer, "number_of_states", 0))


def unlike_attention(config: Any) -> tuple[Any, ...]:
    """For each layer that is not only attention a fresh cache layer as transformers makes it, None for the others.

    Empty for a plain decoder. A layer with attention and a state side by side is not only attention.
    """
    try:
        layers = DynamicCache(config=config).layers
    except (AttributeError, KeyError, TypeError, ValueError):  # a config that says nothing of its layers
        return ()
    special = [each if _number_of_states(each) or isinstance(each, DummyLayer) else None for each in layers]
    return tuple(special) if any(each is not None for each in special) else ()


class ContiguousCache(Cache):
    """A cache of `ContiguousLayer`s, each with room for `capacity` positions.

    Where the layers' shapes are known, one is made for each, and consecutive ones of one shape share a tensor
    (`stacks`); otherwise they are made as the model's layers first call. Layers without attention keep what
    transformers gives them (`unlike_attention`): a state that does not grow, or nothing.

    A branch works on a copy of the positions that it shares, because attention kernels want each layer's keys in one
    block. When it has ended, `rest` lets the copy go and reads those positions in the ancestors' own memory.
    """

    layers: list[Any]  # ContiguousLayer, HybridLayer, and transformers' layers for states

    def __init__(self, capacity: int, shapes: Sequence[KVShape] = (), others: Sequence[Any] = ()) -> None:
        self._stacks = tuple(_stacked(capacity, shapes))
        self._shared: tuple[tuple[tuple[Tensor, ...], tuple[Tensor, ...]], ...] = ()  # (keys, values) of each stack
        self._bytes: tuple[tuple[int, int], ...] | None = None  # of each layer, once at rest
        self._stateful: list[Any] = []
        self._storing: tuple[tuple[int, ContiguousLayer], ...] | None = None  # with indices, where they are known
        if not shapes and not others:
            super().__init__(layer_class_to_replicate=partial(ContiguousLayer, capacity))  # type: ignore[arg-type]
            return
        pairs = {
            stack.first + at: pair
            for stack in self._stacks
            for at, pair in enumerate(zip(stack.keys.own.split(1), stack.values.own.split(1), strict=True))
        }
        others = others or [None] * len(shapes)
        super().__init__(layers=[_layer(capacity, pairs.get(i, ()), other) for i, other in enumerate(others)])
        self._stateful = [layer for layer in self.layers if _number_of_states(layer)]
        self._storing = self._attending() if shapes else None

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """All attention layers in order; each in a stack of its own where they were made or have grown one by one."""
        if self._stacks and not any(layer.grown for _, layer in self._attending()):
            return self._stacks
        return tuple(Stack(index, Pieces(layer._keys), Pieces(layer._values)) for index, layer in self._attending())

    @property
    def storing(self) -> tuple[int, ...]:
        """The layers that keep keys and values."""
        return tuple(index for index, _ in self._attending())

    def _attending(self) -> tuple[tuple[int, ContiguousLayer], ...]:
        """The layers that keep keys and values, with their indices."""
        if self._storing is not None:
            return self._storing
        layers = enumerate(self.layers)
        return tuple((i, each) for i, each in layers if isinstance(each, ContiguousLayer) and each.reserved)

    def stack_of(self, layer: int) -> Stack:
        """The stack that a layer stands in."""
        return next(each for each in reversed(self.stacks) if each.first <= layer)

    def resume(self, earlier: ContiguousCache, length: int) -> None:
        """Begin with the first `length` positions of another cache with the same stacks: copied, not computed."""
        self._shared = tuple((each.keys.until(length), each.values.until(length)) for each in earlier.stacks)
        for stack, shared in zip(self._stacks, self._shared, strict=True):
            for pieces, parts in zip((stack.keys, stack.values), shared, strict=True):
                _copy(parts, pieces.own)
        for _, layer in self._attending():
            layer.resume(length)

    def rest(self) -> None:
        """Nothing will be added: give up the copy of what is shared and keep the own positions alone."""
        if not self._shared or any(layer.grown for _, layer in self._attending()):
            return
        length, self._bytes = self.get_seq_length(), self.layer_bytes()
        self._stacks = tuple(_rested(*each, length) for each in zip(self._stacks, self._shared, strict=True))
        self._shared = ()
        for _, layer in self._attending():
            layer.release()
        self._storing = ()

    def layer_bytes(self) -> tuple[tuple[int, int], ...]:
        """(key bytes, value bytes) of each layer: the tensors' own nbytes."""
        if self._bytes is not None:
            return self._bytes
        kept = dict(self._attending())
        return tuple(
            (kept[i].keys.nbytes, kept[i].values.nbytes) if i in kept else (0, 0) for i in range(len(self.layers))
        )

    def own(self) -> tuple[Tensor, ...]:
        """The tensors that nobody else made."""
        return tuple(each for stack in self.stacks for each in (stack.keys.own, stack.values.own))

    def borrowed(self) -> tuple[Tensor, ...]:
        """Tensors of ancestors."""
        pairs = self._shared or tuple((each.keys.before, each.values.before) for each in self._stacks)
        return tuple(each for keys, values in pairs for each in (*keys, *values))

    def measure(self) -> CacheSize:
        """The cache as it is now."""
        at_rest = self._bytes is not None
        layers = (layer.reserved for _, layer in self._attending())
        reserved = sum(each.nbytes for each in self.own()) if at_rest else sum(layers)
        return CacheSize(self.get_seq_length(), self.layer_bytes(), reserved, self.state_bytes())

    def state_bytes(self) -> int:
        """Bytes of the states of layers that are not attention; they do not grow with the text."""
        return sum(
            state.nbytes
            for layer in self._stateful
            for states in (layer.conv_states, layer.recurrent_states)
            for state in states.values()
            if state is not None
        )

    def keys_at(self, layer: int, end: int) -> Tensor:
        """Rotated keys (K, end, D) of one layer; a view, but of a branch that has ended."""
        stack = self.stack_of(layer)
        return stack.keys.rows(0, end, slice(layer - stack.first, layer - stack.first + 1))[0]

    def values_at(self, layer: int, end: int) -> Tensor:
        """Values (K, end, D) of one layer; a view, but of a branch that has ended."""
        stack = self.stack_of(layer)
        return stack.values.rows(0, end, slice(layer - stack.first, layer - stack.first + 1))[0]


def _copy(parts: Sequence[Tensor], into: Tensor) -> None:
    at = 0
    for each in parts:
        into.narrow(2, at, each.shape[2]).copy_(each)
        at += each.shape[2]


def _rested(stack: Stack, shared: tuple[tuple[Tensor, ...], tuple[Tensor, ...]], length: int) -> Stack:
    keys, values = (
        Pieces(pieces.own[:, :, sum(part.shape[2] for part in parts) : length].clone(), parts)
        for pieces, parts in zip((stack.keys, stack.values), shared, strict=True)
    )
    return Stack(stack.first, keys, values)


def _layer(capacity: int, pair: Sequence[Tensor], other: Any) -> Any:
    """One layer of a cache: its buffers where they are known, its state where it has one."""
    if other is None:
        return ContiguousLayer(capacity, *pair)
    if isinstance(other, CacheLayerMixin):
        return HybridLayer(_number_of_states(other), capacity, *pair)
    return other


def _stacked(capacity: int, shapes: Sequence[KVShape]) -> Iterator[Stack]:
    first = 0
    for shape, group in groupby(shapes):
        count = len(list(group))
        if not shape.heads:
            first += count
            continue
        like = torch.empty(0, dtype=shape.dtype, device=shape.device)
        keys = like.new_empty(count, shape.heads, capacity, shape.key_dim)
        values = like.new_empty(count, shape.heads, capacity, shape.value_dim)
        yield Stack(first, Pieces(keys), Pieces(values))
        first += count
