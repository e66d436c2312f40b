"""What a model has: found out once, by forward passes over two tokens and one, and never from its name."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from playground.caches import ContiguousCache, ContiguousLayer, KVShape
from playground.capture import IMPLEMENTATION, Recorder, recording
from playground.logits import OutputLayer, output_layer
from playground.patterns import WatchPatterns

NO_QUERIES = "{name} computes attention in its own code, so its patterns are read there and its queries cannot be had."
NO_ATTENTION = "{name} has layers without attention or a cache of its own kind, which cannot be shown yet."


@dataclass(frozen=True)
class Rotary:
    """How a model rotates: its own functions, see `playground.rope`.

    Attributes:
        apply: the family's `apply_rotary_pos_emb(q, k, cos, sin)`.
        table: its module `rotary_emb(x, position_ids, *extra) -> (cos, sin)`.
        layers: of each layer that rotates, the extra arguments with which the table was asked (a layer type).
        dim: how many leading dimensions of a head are handed to it; not all of them need turn.
    """

    apply: Callable[..., Any]
    table: nn.Module
    layers: dict[int, tuple[Any, ...]]
    dim: int


@dataclass(frozen=True)
class Anatomy:
    """What a calibration forward pass found out about a model's attention.

    Attributes:
        heads: query heads of each layer.
        cached: what each layer keeps of a position.
        query_dims: size of each layer's queries.
        scalings: factor on q kT of each layer.
        position_bytes: what one more position costs in cache and recorded queries.
        output: what makes the logits, and what they take.
        routed: whether attention passes through `capture.attend`; else patterns are watched.
        keep_keys: whether keys must be recorded because the cache holds something else.
        rotary: None where nothing rotates, or where it does so in a way that cannot be followed.
        rotates: whether the model seems to rotate at all.
    """

    heads: tuple[int, ...]
    cached: tuple[KVShape, ...]
    query_dims: tuple[int, ...]
    scalings: tuple[float, ...]
    position_bytes: int
    output: OutputLayer
    routed: bool
    keep_keys: bool
    rotary: Rotary | None
    rotates: bool

    @property
    def kv_heads(self) -> tuple[int, ...]:
        """Key-value heads of each layer, as cached."""
        return tuple(each.heads for each in self.cached)

    @property
    def head_dims(self) -> tuple[int, ...]:
        """Size of each layer's cached keys."""
        return tuple(each.key_dim for each in self.cached)

    def buffer_bytes(self, positions: int) -> int:
        """Bytes that a run of this many positions holds: queries, keys, values, and maps where those are kept."""
        maps = 0 if self.routed else 4 * sum(self.heads) * positions**2
        return positions * self.position_bytes + maps

    def cache(self, capacity: int) -> ContiguousCache:
        """An empty cache for one run."""
        return ContiguousCache(capacity, self.cached)

    def recorder(self, capacity: int) -> Recorder:
        """An empty recorder for one run."""
        return Recorder(capacity, self.keep_keys)

    @contextmanager
    def watching(self, recorder: Recorder) -> Iterator[None]:
        """Let `recorder` see one forward pass, in the way that works for this model."""
        with recording(recorder) if self.routed else WatchPatterns(recorder):
            yield


_anatomies: WeakKeyDictionary[nn.Module, Anatomy] = WeakKeyDictionary()


def prepare(model: PreTrainedModel) -> Anatomy:
    """Route the model's attention through `attend` where that can be done, and find out its anatomy; once a model.

    Raises:
        ValueError: one sentence, when the model has no attention to show.
    """
    if model not in _anatomies:
        routed = model._can_set_attn_implementation()
        if routed:
            model.set_attn_implementation(IMPLEMENTATION)
        _anatomies[model] = _calibrate(model, routed)
    return _anatomies[model]


@torch.inference_mode()
def _calibrate(model: PreTrainedModel, routed: bool) -> Anatomy:
    """One forward pass over two tokens: shapes from the recorder and the cache, rotation from the calls to it."""
    recorder, cache = Recorder(capacity=2), ContiguousCache(capacity=2)
    ids = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    with recording(recorder) if routed else WatchPatterns(recorder), _watching_rotation(model, recorder) as rotation:
        try:
            model(input_ids=ids, past_key_values=cache, use_cache=True)
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            raise ValueError(NO_ATTENTION.format(name=type(model).__name__)) from error
    recorder.close_pass(ids.shape[1])
    found = sorted(recorder.layers if routed else recorder.maps)
    if not found or found != list(range(len(cache.layers))):
        raise ValueError(NO_ATTENTION.format(name=type(model).__name__))
    return _read_off(model, recorder, cache, rotation)


def _read_off(model: PreTrainedModel, recorder: Recorder, cache: ContiguousCache, rotation: _Rotation) -> Anatomy:
    """The anatomy that two recorded positions show."""
    records = [recorder.layers[each] for each in range(len(recorder.layers))]
    maps = [recorder.maps[each] for each in range(len(recorder.maps))]
    keys = [layer.keys for layer in cache.layers]  # (1, K, 2, D) each
    latent = any(each.key_shape != (k.shape[1], k.shape[3]) for each, k in zip(records, keys, strict=False))
    queries = [each.queries(0, recorder.rows) for each in records]  # (H, 2, D) each
    kept = sum(each.nbytes for each in queries) + sum(latent * each.key_nbytes for each in records)
    return Anatomy(
        heads=tuple(each.shape[0] for each in queries) or tuple(each.shape[0] for each in maps),
        cached=tuple(_cached(layer) for layer in cache.layers),
        query_dims=tuple(each.shape[2] for each in queries),
        scalings=tuple(each.scores.scaling for each in records),
        position_bytes=(kept + cache.measure().total) // 2,
        output=output_layer(model),
        routed=bool(records),
        keep_keys=latent,
        rotary=rotation.found(model),
        rotates=_rotates(model),
    )


def _cached(layer: ContiguousLayer) -> KVShape:
    _, heads, _, key_dim = layer.keys.shape
    return KVShape(heads, key_dim, layer.values.shape[3], layer.keys.dtype, layer.keys.device)


def _rotates(model: PreTrainedModel) -> bool:
    """Whether anything in the model or its configuration speaks of a rotation."""
    by_module = any("rotary" in name.rsplit(".", 1)[-1] for name, _ in model.named_modules())
    return by_module or getattr(model.config, "rotary_dim", None) is not None


class _Rotation:
    """Notes of a calibration pass: which table made which cosines, and which layer was turned by them."""

    def __init__(self) -> None:
        self.apply: Callable[..., Any] | None = None
        self.asked: dict[int, tuple[Any, ...]] = {}
        self.layers: dict[int, tuple[Any, ...]] = {}
        self.dim = 0
        self._made: list[Tensor] = []  # kept alive, so that no id is used twice

    def note_table(self, args: tuple[Any, ...], kwargs: dict[str, Any], cos: Tensor) -> None:
        """The table was asked with these arguments; the first two are x and position_ids."""
        named = [value for name, value in kwargs.items() if name not in ("x", "position_ids")]
        self.asked[id(cos)] = (*args[2:], *named)
        self._made.append(cos)

    def note_layer(self, layer: int, q: Tensor, cos: Tensor, apply: Callable[..., Any]) -> None:
        """A layer's queries (..., dim) were turned by these cosines."""
        known = self.asked.get(id(cos)) or next(iter(self.asked.values()), ())
        self.layers[layer], self.apply, self.dim = known, apply, q.shape[-1]

    def found(self, model: PreTrainedModel) -> Rotary | None:
        """The rotation, if both its function and its table were seen."""
        table = _table(model)
        if table is None or self.apply is None or not self.asked:
            return None
        return Rotary(self.apply, table, self.layers, self.dim)


def _table(model: PreTrainedModel) -> nn.Module | None:
    """The base model's module that makes cos and sin, if it has one."""
    table = getattr(model.base_model, "rotary_emb", None)
    return table if isinstance(table, nn.Module) else None


@contextmanager
def _watching_rotation(model: PreTrainedModel, recorder: Recorder) -> Iterator[_Rotation]:
    """Note the calls to the model's table and to its family's rotation during one forward pass."""
    notes, table = _Rotation(), _table(model)
    family = sys.modules[type(model.base_model).__module__]
    original = getattr(family, "apply_rotary_pos_emb", None)
    if (
        table is None
        or original is None
        or list(inspect.signature(original).parameters)[:4] != ["q", "k", "cos", "sin"]
    ):
        yield notes
        return

    def noting(q: Tensor, k: Tensor, cos: Tensor, *args: Any, **kwargs: Any) -> Any:
        notes.note_layer(max(len(recorder.layers), len(recorder.maps)), q, cos, original)
        return original(q, k, cos, *args, **kwargs)

    hook = table.register_forward_hook(
        lambda _, args, kwargs, made: notes.note_table(args, kwargs, made[0]), with_kwargs=True
    )
    family.apply_rotary_pos_emb = noting  # type: ignore[attr-defined]
    try:
        yield notes
    finally:
        family.apply_rotary_pos_emb = original  # type: ignore[attr-defined]
        hook.remove()
