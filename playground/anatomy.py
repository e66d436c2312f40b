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

from playground.caches import ContiguousCache, ContiguousLayer, KVShape, unlike_attention
from playground.capture import IMPLEMENTATION, Recorder, recording
from playground.logits import OutputLayer, output_layer
from playground.patterns import WatchPatterns

NO_QUERIES = "{name} computes attention in its own code, so its patterns are read there and its queries cannot be had."
NO_ATTENTION = "{name} has no layer with attention, so there is nothing to show: its {count} layers are {kinds}."
OWN_CACHE = "{name} does not work with a KV cache of this program, so it cannot be shown: {reason}"
OWN_STATE = "it keeps the state of {count} layers inside the model, where two runs would mix."
KINDS = {
    "linear_attention": "state space or linear attention",
    "conv": "convolution",
    "mlp": "feed-forward only",
    "moe": "experts only",
}
"""Words for transformers' names of layers without attention of their own."""


@dataclass(frozen=True)
class Rotary:
    """How a model rotates: its own functions, see `playground.rope`.

    Attributes:
        apply: the family's `apply_rotary_pos_emb(q, k, cos, sin)`, or a variant of it.
        table: its module `rotary_emb(x, position_ids, *extra) -> (cos, sin)`.
        layers: of each layer that rotates, the extra arguments with which the table was asked (a layer type).
        dim: how many dimensions of a head are handed to it; not all of them need turn.
        start: where they stand in a head of queries and keys.
    """

    apply: Callable[..., Any]
    table: nn.Module
    layers: dict[int, tuple[Any, ...]]
    dim: int
    start: int = 0


@dataclass(frozen=True)
class Anatomy:
    """What a calibration forward pass found out about a model's attention.

    Attributes:
        heads: query heads of each layer; 0 for a layer without attention.
        kinds: for a layer without attention what it has instead, in a few words; empty for the others.
        cached: what each layer keeps of a position; no heads where it keeps nothing.
        query_dims: size of each layer's queries.
        scalings: factor on q kT of each layer.
        position_bytes: what one more position costs in cache and recorded queries.
        output: what makes the logits, and what they take.
        state_bytes: what the states of layers that are not attention take, however long the text.
        resumes: whether a prompt can be read in pieces; not every layer with a state goes on from it.
        config: the model's, from which transformers makes the caches of layers that are not attention.
        routed: whether attention passes through `capture.attend`; else patterns are watched.
        keep_keys: whether keys must be recorded because the cache holds something else.
        order: the layers in the order in which they attend, where several share one module; empty else.
        rotary: None where nothing rotates, or where it does so in a way that cannot be followed.
        rotates: whether the model seems to rotate at all.
    """

    heads: tuple[int, ...]
    kinds: tuple[str, ...]
    cached: tuple[KVShape, ...]
    query_dims: tuple[int, ...]
    scalings: tuple[float, ...]
    position_bytes: int
    output: OutputLayer
    state_bytes: int
    resumes: bool
    config: Any
    routed: bool
    keep_keys: bool
    order: tuple[int, ...]
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

    @property
    def value_dims(self) -> tuple[int, ...]:
        """Size of each layer's cached values."""
        return tuple(each.value_dim for each in self.cached)

    @property
    def attending(self) -> tuple[int, ...]:
        """The layers with attention."""
        return tuple(layer for layer, heads in enumerate(self.heads) if heads)

    def buffer_bytes(self, positions: int) -> int:
        """Bytes that a run of this many positions holds: queries, keys, values, and maps where those are kept."""
        maps = 0 if self.routed else 4 * sum(self.heads) * positions**2
        return positions * self.position_bytes + self.state_bytes + maps

    def cache(self, capacity: int) -> ContiguousCache:
        """An empty cache for one run."""
        return ContiguousCache(capacity, self.cached, unlike_attention(self.config) if self.state_bytes else ())

    def recorder(self, capacity: int) -> Recorder:
        """An empty recorder for one run."""
        return Recorder(capacity, self.keep_keys, self.order)

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
    name, config = type(model).__name__, model.config.get_text_config(decoder=True)
    others = unlike_attention(config)
    try:
        recorder, cache, rotation, logits = _look(model, routed, others, ())
        order: tuple[int, ...] = ()
        if routed and recorder.layers and not set(cache.storing) <= set(recorder.layers):  # layers share one module
            order = cache.storing
            recorder, cache, rotation, logits = _look(model, routed, unlike_attention(config), order)
    except (AttributeError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        _refuse_without_attention(model, config)
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise ValueError(OWN_CACHE.format(name=name, reason=reason)) from error
    if not recorder.layers and not recorder.maps:
        _refuse_without_attention(model, config)
    if not routed and len(recorder.maps) != len(cache.layers):
        reason = f"{len(recorder.maps)} patterns were seen in {len(cache.layers)} layers."
        raise ValueError(OWN_CACHE.format(name=name, reason=reason))
    stateful = sum(bool(getattr(each, "number_of_states", 0)) for each in others)
    if stateful and not cache.state_bytes():
        raise ValueError(OWN_CACHE.format(name=name, reason=OWN_STATE.format(count=stateful)))
    resumes = not stateful or _resumes(model, config)
    return _read_off(model, recorder, cache, rotation, logits, order, resumes)


def _look(
    model: PreTrainedModel, routed: bool, others: tuple[Any, ...], order: tuple[int, ...]
) -> tuple[Recorder, ContiguousCache, _Rotation, Tensor]:
    """What two tokens leave behind."""
    recorder, cache = Recorder(capacity=2, order=order), ContiguousCache(2, others=others)
    ids = _some_ids(model, 2)
    with recording(recorder) if routed else WatchPatterns(recorder), _watching_rotation(model, recorder) as rotation:
        output = model(input_ids=ids, past_key_values=cache, use_cache=True)
    recorder.close_pass(ids.shape[1])
    return recorder, cache, rotation, output.logits


def _some_ids(model: PreTrainedModel, count: int) -> Tensor:
    """Ids (1, count) that are hardly those of padding, whose embedding may be nothing but zeros."""
    size = model.config.get_text_config(decoder=True).vocab_size
    return torch.arange(1, count + 1, device=input_device(model))[None] % size


def input_device(model: PreTrainedModel) -> torch.device:
    """Where token ids must be: the device of the first layer, also where parts are kept on disk."""
    where = getattr(getattr(model, "_hf_hook", None), "execution_device", None)
    return model.device if where is None else torch.device(where)


def _refuse_without_attention(model: PreTrainedModel, config: Any) -> None:
    """Say what a model has instead, unless its config speaks of attention."""
    types = _layer_types(config)
    if any("full" in each or "sliding" in each or "hybrid" in each for each in types):
        return
    kinds = " and ".join(dict.fromkeys(KINDS.get(each, each) for each in types)) or "of another kind"
    count = getattr(config, "num_hidden_layers", "")
    raise ValueError(NO_ATTENTION.format(name=type(model).__name__, count=count, kinds=kinds))


def _layer_types(config: Any) -> tuple[str, ...]:
    """transformers' names for the layers, as far as the config has them."""
    found = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    return tuple(map(str, found)) if isinstance(found, list | tuple) else ()


def _resumes(model: PreTrainedModel, config: Any) -> bool:
    """Whether four tokens in two pieces give what they give at once; some layers with a state start afresh instead."""
    ids = _some_ids(model, 4)
    at_once, in_pieces = (ContiguousCache(4, others=unlike_attention(config)) for _ in range(2))
    whole = model(input_ids=ids, past_key_values=at_once, use_cache=True).logits[0, -1].float()
    model(input_ids=ids[:, :2], past_key_values=in_pieces, use_cache=True)
    later = model(input_ids=ids[:, 2:], past_key_values=in_pieces, use_cache=True).logits[0, -1].float()
    tolerance = 1e-3 if model.dtype == torch.float32 else 3e-2
    return bool((whole - later).abs().max() <= tolerance * whole.abs().max())


def _read_off(
    model: PreTrainedModel,
    recorder: Recorder,
    cache: ContiguousCache,
    rotation: _Rotation,
    logits: Tensor,
    order: tuple[int, ...],
    resumes: bool,
) -> Anatomy:
    """The anatomy that two recorded positions show."""
    config = model.config.get_text_config(decoder=True)
    count = max(len(cache.layers), 1 + max(recorder.layers or recorder.maps))
    cached = [_cached(cache, layer, logits) for layer in range(count)]
    latent = any(record.key_shape != (cached[i].heads, cached[i].key_dim) for i, record in recorder.layers.items())
    kept = sum(each.queries(0, recorder.rows).nbytes + latent * each.key_nbytes for each in recorder.layers.values())
    heads = [_query_shape(recorder, layer)[0] for layer in range(count)]
    return Anatomy(
        heads=tuple(heads),
        kinds=_kinds(heads, config),
        cached=tuple(cached),
        query_dims=tuple(_query_shape(recorder, layer)[1] for layer in range(count)),
        scalings=tuple(recorder.layers[i].scores.scaling if i in recorder.layers else 0.0 for i in range(count)),
        position_bytes=(kept + cache.measure().total) // 2,
        state_bytes=cache.state_bytes(),
        resumes=resumes,
        output=output_layer(model, input_device(model)),
        config=config,
        routed=bool(recorder.layers),
        keep_keys=latent,
        order=order,
        rotary=rotation.found(model, recorder),
        rotates=_rotates(model),
    )


def _query_shape(recorder: Recorder, layer: int) -> tuple[int, int]:
    """(query heads, size of a query) of a layer; zeros where it has none."""
    if layer in recorder.layers:
        heads, _, size = recorder.layers[layer].queries(0, recorder.rows).shape
        return heads, size
    return (recorder.maps[layer].shape[0], 0) if layer in recorder.maps else (0, 0)


def _kinds(heads: list[int], config: Any) -> tuple[str, ...]:
    """What stands in the place of attention, layer by layer."""
    types = _layer_types(config)
    told = [KINDS.get(types[i], types[i].replace("_", " ")) if i < len(types) else "none" for i in range(len(heads))]
    return tuple("" if count else words for count, words in zip(heads, told, strict=True))


def _cached(cache: ContiguousCache, layer: int, logits: Tensor) -> KVShape:
    found = cache.layers[layer] if layer < len(cache.layers) else None
    if not isinstance(found, ContiguousLayer) or not found.reserved:
        return KVShape(0, 0, 0, logits.dtype, logits.device)
    _, heads, _, key_dim = found.keys.shape
    return KVShape(heads, key_dim, found.values.shape[3], found.keys.dtype, found.keys.device)


def _rotates(model: PreTrainedModel) -> bool:
    """Whether anything in the model or its configuration speaks of a rotation."""
    by_module = any("rotary" in name.rsplit(".", 1)[-1] for name, _ in model.named_modules())
    return by_module or model.config.to_dict().get("rotary_dim") is not None


class _Rotation:
    """Notes of a calibration pass: which table made which cosines, and which layer was turned by them."""

    def __init__(self) -> None:
        self.apply: Callable[..., Any] | None = None
        self.asked: dict[int, tuple[Any, ...]] = {}
        self.layers: dict[int, tuple[Any, ...]] = {}
        self.dim = 0
        self._turned: Tensor | None = None
        self._made: list[Tensor] = []  # kept alive, so that no id is used twice

    def note_table(self, args: tuple[Any, ...], kwargs: dict[str, Any], cos: Tensor) -> None:
        """The table was asked with these arguments; the first two are x and position_ids."""
        named = [value for name, value in kwargs.items() if name not in ("x", "position_ids")]
        self.asked[id(cos)] = (*args[2:], *named)
        self._made.append(cos)

    def note_layer(self, rank: int, q: Tensor, cos: Tensor, apply: Callable[..., Any]) -> None:
        """The queries (..., dim) of the layer that attends after `rank` others were turned by these cosines."""
        known = self.asked.get(id(cos)) or next(iter(self.asked.values()), ())
        self.layers[rank], self.apply, self.dim = known, apply, q.shape[-1]

    def note_turned(self, q: Tensor) -> None:
        """What became of the first layer's queries (1, H, T, dim)."""
        self._turned = q if self._turned is None else self._turned

    def found(self, model: PreTrainedModel, recorder: Recorder) -> Rotary | None:
        """The rotation, if its function, its table, and its place in a head were seen."""
        table, attending = _table(model), sorted(recorder.layers or recorder.maps)
        if table is None or self.apply is None or not self.asked:
            return None
        layers = {attending[rank]: asked for rank, asked in self.layers.items()}
        start = self._start(recorder, min(layers))
        return None if start is None else Rotary(self.apply, table, layers, self.dim, start)

    def _start(self, recorder: Recorder, layer: int) -> int | None:
        """Where the turned dimensions stand in the queries: at the beginning, or at the end (DeepSeek)."""
        if layer not in recorder.layers or self._turned is None:
            return 0
        queries = recorder.layers[layer].queries(0, recorder.rows)  # (H, T, D)
        if self._turned.shape[1:3] != queries.shape[:2]:
            return 0  # turned in another layout, all of it
        ends = (0, queries.shape[-1] - self.dim)
        places = {place: queries[..., place : place + self.dim] for place in ends}
        return next((at for at, each in places.items() if torch.equal(each, self._turned[0])), 0)


def _table(model: PreTrainedModel) -> nn.Module | None:
    """The base model's module that makes cos and sin, if it has one."""
    table = getattr(model.base_model, "rotary_emb", None)
    return table if isinstance(table, nn.Module) else None


@contextmanager
def _watching_rotation(model: PreTrainedModel, recorder: Recorder) -> Iterator[_Rotation]:
    """Note the calls to the model's table and to its family's rotation during one forward pass."""
    notes, table = _Rotation(), _table(model)
    family = sys.modules[type(model.base_model).__module__]
    originals = {name: each for name, each in vars(family).items() if name.startswith("apply_rotary") and _turns(each)}
    if table is None or not originals:
        yield notes
        return

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def noted(q: Tensor, k: Tensor, cos: Tensor, *args: Any, **kwargs: Any) -> Any:
            notes.note_layer(max(len(recorder.layers), len(recorder.maps)), q, cos, original)
            turned = original(q, k, cos, *args, **kwargs)
            notes.note_turned(turned[0])
            return turned

        return noted

    hook = table.register_forward_hook(
        lambda _, args, kwargs, made: notes.note_table(args, kwargs, made[0]), with_kwargs=True
    )
    vars(family).update({name: noting(each) for name, each in originals.items()})
    try:
        yield notes
    finally:
        vars(family).update(originals)
        hook.remove()


def _turns(function: Any) -> bool:
    """Whether this is a family's rotation of q and k by cosines and sines."""
    return inspect.isfunction(function) and list(inspect.signature(function).parameters)[:4] == ["q", "k", "cos", "sin"]
