"""What the live component may ask about a run: read-only, by the run's unguessable id, every field checked.

Each function takes one dictionary and returns one; what cannot be answered is {"error": sentence}.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from playground import frames, rope
from playground.sessions import Entry, RefusedError, Store
from playground.waterfall import waterfall as told_waterfall
from playground.web import figures
from playground.web.figure_data import AttentionData, CacheData, NextTokenData, RopeData

log = logging.getLogger(__name__)
Answer = dict[str, Any]
MOST_FRAMES = 4096
CANDIDATES = 24
FIGURE_POSITIONS = 512
"""Longest side of an enlarged map: beyond it the browser gets slow; the last positions up to the row are drawn."""


def server_functions(store: Store) -> list[Callable[[Any], Answer]]:
    """For `Live(server_functions=...)`: all that may be asked about one run."""

    def focus(request: Any) -> Answer:
        return answered(_focus, store, request)

    def rows(request: Any) -> Answer:
        return answered(_rows, store, request)

    def keys(request: Any) -> Answer:
        return answered(_keys, store, request)

    def angles(request: Any) -> Answer:
        return answered(_angles, store, request)

    def details(request: Any) -> Answer:
        return answered(_details, store, request)

    def waterfall(request: Any) -> Answer:
        return answered(_waterfall, store, request)

    def logits(request: Any) -> Answer:
        return answered(_logits, store, request)

    def texts(request: Any) -> Answer:
        return answered(_texts, store, request)

    def backfill(request: Any) -> Answer:
        return answered(_backfill, store, request)

    def figure(request: Any) -> Answer:
        return answered(_figure, store, request)

    return [focus, rows, keys, angles, details, waterfall, logits, texts, backfill, figure]


def answered(ask: Callable[[Entry, Mapping[str, Any]], Answer], store: Store, request: Any) -> Answer:
    """What `ask` says of the run that the request names, or {"error": sentence}."""
    try:
        if not isinstance(request, Mapping):
            raise RefusedError("Ask with one JSON object.")
        return ask(store.find(request.get("run")), request)
    except ValueError as error:
        return {"error": str(error)}
    except Exception:
        log.exception("%s failed", ask.__name__)
        return {"error": "This could not be computed, and the details are in the server's log: try another selection."}


def whole(request: Mapping[str, Any], name: str, end: int, start: int = 0) -> int:
    """The whole number `name` of a request, from `start` to `end` - 1; `RefusedError` with one sentence otherwise."""
    value = request.get(name)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or value != value
        or value not in range(start, end)
    ):
        if end <= start:
            raise RefusedError(f"There is no {name} to choose yet: wait for the first token.")
        raise RefusedError(f"{name} must be a whole number from {start} to {end - 1}.")
    return int(value)


def chosen_head(entry: Entry, request: Mapping[str, Any]) -> tuple[int, int]:
    """(layer, head) of a request, both counted from 0."""
    heads = entry.run.anatomy.heads
    layer = whole(request, "layer", len(heads))
    if not heads[layer]:
        raise RefusedError(f"Layer {layer} has no attention ({entry.run.anatomy.kinds[layer]}): choose another.")
    return layer, whole(request, "head", heads[layer])


def _focus(entry: Entry, request: Mapping[str, Any]) -> Answer:
    layer, head = chosen_head(entry, request)
    entry.focus = frames.Focus(layer, head)
    return frames.focus(entry.run, layer, head)


def _rows(entry: Entry, request: Mapping[str, Any]) -> Answer:
    return _stretch(frames.rows, entry, request)


def _keys(entry: Entry, request: Mapping[str, Any]) -> Answer:
    return _stretch(frames.keys, entry, request)


def _stretch(told: Callable[..., Answer], entry: Entry, request: Mapping[str, Any]) -> Answer:
    layer, head = chosen_head(entry, request)
    first = whole(request, "first", entry.run.rows)
    return told(entry.run, layer, head, first, whole(request, "last", entry.run.rows + 1, first + 1))


def _angles(entry: Entry, request: Mapping[str, Any]) -> Answer:
    layer = whole(request, "layer", len(entry.run.anatomy.heads))
    return frames.angles(entry.run, layer, whole(request, "first", entry.run.capacity))


def _details(entry: Entry, request: Mapping[str, Any]) -> Answer:
    made = len(entry.run.steps)
    first = whole(request, "first", made)
    return frames.details(entry.run, first, whole(request, "last", made + 1, first + 1))


def _waterfall(entry: Entry, request: Mapping[str, Any]) -> Answer:
    return told_waterfall(entry.run, whole(request, "step", len(entry.run.steps)))


def _logits(entry: Entry, request: Mapping[str, Any]) -> Answer:
    return frames.logits(entry.run, whole(request, "step", len(entry.run.steps)))


def _texts(entry: Entry, request: Mapping[str, Any]) -> Answer:
    ids = request.get("ids")
    if not isinstance(ids, list):
        raise RefusedError("ids must be a list of token ids.")
    return frames.texts(entry.run, ids)


def _backfill(entry: Entry, request: Mapping[str, Any]) -> Answer:
    first = whole(request, "first", 1 << 31)
    last = whole(request, "last", min(first + MOST_FRAMES, 1 << 31), first)
    return {"frames": entry.logged(first, last)}


# The enlarged figures


def _figure(entry: Entry, request: Mapping[str, Any]) -> Answer:
    gather = _GATHER.get(str(request.get("panel")))
    if gather is None:
        raise RefusedError(f"panel must be one of {', '.join(_GATHER)}.")
    data = gather(entry, request)
    return figures.build(str(request["panel"]), data, dark=request.get("dark") is True).as_json()


def _step(entry: Entry, request: Mapping[str, Any]) -> int:
    """The selected step; negative ones stand for tokens of the prompt."""
    return whole(request, "step", max(len(entry.run.steps), 1), -entry.run.prompt_length)


def _query(entry: Entry, request: Mapping[str, Any]) -> int:
    """Position of the query row that the selected step shows."""
    run = entry.run
    return min(max(run.prompt_length + _step(entry, request) - 1, 0), run.rows - 1)


def _key(entry: Entry, request: Mapping[str, Any], query: int) -> int | None:
    return None if request.get("key") is None else whole(request, "key", query + 1)


def _attention(entry: Entry, request: Mapping[str, Any]) -> AttentionData:
    run, (layer, head) = entry.run, chosen_head(entry, request)
    row = _query(entry, request)
    if row >= FIGURE_POSITIONS:
        raise RefusedError(f"Maps are enlarged up to position {FIGURE_POSITIONS - 1}: select an earlier token.")
    size = min(run.rows, FIGURE_POSITIONS)
    pattern = run.attention(layer, head)[:size, :size]
    tokens = [run.piece(each) for each in run.token_ids[:size]]
    return AttentionData(layer, head, pattern, tokens, row, _key(entry, request, row))


def _rope(entry: Entry, request: Mapping[str, Any]) -> RopeData:
    run, (layer, head) = entry.run, chosen_head(entry, request)
    query = _query(entry, request)
    key = _key(entry, request, query)
    return rotation(run, layer, head, query, query if key is None else key)


def rotation(run: Any, layer: int, head: int, query: int, key: int) -> RopeData:
    """The rotation of one query and one key, from the run. Raises `RefusedError` where nothing rotates."""
    rotary = run.anatomy.rotary
    if rotary is None or layer not in rotary.layers:
        raise RefusedError(
            rope.reason_without(run) or "This layer does not rotate its queries and keys: choose another."
        )
    pairs = rope.pairs(rotary, layer)
    q = [run.queries(layer, rotated)[head, query] for rotated in (False, True)]
    keys = [run.keys(layer, rotated) for rotated in (False, True)]  # (K, T, D) as attended, not as cached
    k = [each[head * each.shape[0] // run.anatomy.heads[layer], key] for each in keys]
    return RopeData(
        layer=layer,
        head=head,
        query=query,
        key=key,
        query_token=run.piece(run.token_ids[query]),
        key_token=run.piece(run.token_ids[key]),
        pairs=np.stack([pairs.first, pairs.second], axis=1),
        inv_freq=np.asarray(pairs.inv_freq),
        q_before=q[0],
        q_after=q[1],
        k_before=k[0],
        k_after=k[1],
        scale=run.anatomy.scalings[layer],
        positions=run.rows,
    )


def _next_token(entry: Entry, request: Mapping[str, Any]) -> NextTokenData:
    run = entry.run
    index = _step(entry, request)
    if index < 0 or not run.steps:
        raise RefusedError("This token was given by the prompt, not drawn: select a later one.")
    step = run.steps[index]
    after = [run.distribution(index, stage) for stage in range(len(step.stages))]
    ids = [int(each) for each in np.argsort(-after[0], kind="stable")[:CANDIDATES]]
    ids += [] if step.token_id in ids else [step.token_id]
    return NextTokenData(
        step=index,
        ids=ids,
        tokens=[run.piece(each) for each in ids],
        stages=[stage.name for stage in step.stages],
        settings=["" if stage.setting is None else f"{stage.setting:g}" for stage in step.stages],
        probabilities=np.stack([each[ids] for each in after]),
        kept=[stage.kept for stage in step.stages],
        entropies=[stage.entropy for stage in step.stages],
        drawn=ids.index(step.token_id),
    )


def _kv_cache(entry: Entry, request: Mapping[str, Any]) -> CacheData:
    run = entry.run
    positions = max(run.rows, 1)
    return CacheData.growing(run.cache_bytes(), positions, position=_query(entry, request))


_GATHER: dict[str, Callable[[Entry, Mapping[str, Any]], Any]] = {
    "attention": _attention,
    "rope": _rope,
    "next_token": _next_token,
    "kv_cache": _kv_cache,
}
