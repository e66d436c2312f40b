"""What the browser gets: a run as small numbered JSON messages. Schema version 5.

Common to all: `v` (schema version), `run` (id), `seq` (0, 1, 2, ... in a run; a gap means a message was lost and can be
asked for again), `kind`. Arrays are base64 of little-endian float32 ("f32"), float64 ("f64"), uint32 ("u32") or uint8
("u8").

begin    seq 0. `model`: name, architecture, parameters, vocab_size, dtype, device, context_length, position_scheme;
         heads / kv_heads / head_dims / value_dims (one number a layer, 0 where it has no attention or caches nothing),
         query_dims (of q and k in the scores, 0 where they cannot be had), kinds (what a layer has instead of
         attention, else empty), scalings (factor on q kT, one a layer). `heads`: the best of each kind [{kind, layer,
         head, score}], where the checkpoint has measured scores. `rope`: null, or
         `layers` (index of a table or -1, one a layer) and `tables` of `pairs` [[i, j], ...], `inv_freq` (radians per
         position), `scaling`, `theta`; `rope_reason`: one sentence why null. `cache`: kind, dtype, element_bytes,
         capacity (positions reserved). `decoding`: the settings; `stages` [{name, setting}] that they mean for each
         step; `eras`: [{first, decoding, stages}], since which step which settings hold: a branch's earlier steps were
         drawn under its parent's. `branch`: null, or `run` (the parent's id), `shared` (positions that are the
         parent's own), `step` (the branch's first own step), `forced` (tokens given in place of draws).
         `prompt_length` P, `planned` (positions at most), `end_ids` (tokens that end the text), `tokens`: [{id, text}]
         of the prompt.
prefill  `done` of `of` positions of the text that is given are computed.
steps    What came since the last message: `steps`; the rows of attention `rows` {first, count};
         `tiles` of the mosaic; `focus`: rows of the head in focus, or null; `norms`: f32 [layers, 2, count], root mean
         square of the new K and V vectors; `caches`; `clock`; `texts`: {id: text} of ids not sent before.
         Steps, a column a fact: `first` (index), ids u32, probabilities f32, seconds f32, and, where there are any,
         uniforms f64 (NaN where nothing was drawn), chances f64 (random numbers of XTC), mus f64 (bits of surprise
         that mirostat allows), forced (indices of those that were given, not drawn). `details` of the newest one; those
         of the others are told when somebody asks (`details`): index, stages f32 [stages, 3] (tokens kept, their raw
         mass, entropy in nats) and, where the logits are kept, rank (0 = most likely in the raw distribution), lse
         (log-sum-exp of the raw logits), ids u32 [N], logits f32 [N] raw, probabilities f32 [stages, N] (0 = removed).
         N: the most likely, and the drawn one.
         Tiles, or null while they wait: `bin` w, `row` (first row bin), `rows`, `cols`, `until` (rows of attention
         that the mosaic shows now), data u8 [sum of heads, rows, cols]: 255 * sqrt(p), the largest in each w x w cell
         over the new rows only. w is the power of two with at most TILE_BINS bins for all rows there are.
         Focus: layer, head, first, count, pattern f32 [first + count]: the newest row; earlier u8: the rows before it,
         one after another (row r has r + 1 values), 255 * sqrt(p); q f32 [D] of the newest row, the position `key` that
         it looks at most, and k f32 [D] of that one, after rotation (both empty where queries cannot be had). Exact
         rows before it, with the same of each, are told when somebody asks (`rows`), and so are other keys (`keys`).
         Caches: `k`, `v` (bytes) and `positions`, one entry a step; k and v of a step are one number when all layers
         agree, else a list; reserved (bytes) and states (bytes of layers that are not attention), one entry a step or
         one number where all are the same.
         Clock: first_token and decode in seconds, steps.
end      `state` (done, stopped, error), `reason`, `clock`; `tiles` as above, where some waited.

Row, step and position: the token at position t >= P was drawn at step t - P by the pass whose newest row is t - 1.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models import head_scores
from playground import attention, rope, sampling
from playground.threads import one_thread
from playground.tokens import end_ids

if TYPE_CHECKING:
    from playground.anatomy import Rotary
    from playground.records import Decoding, Step
    from playground.runs import Run

VERSION = 5
TILE_BINS = 48
CANDIDATES = 20
FOCUS_ROWS = 64
"""A message carries at most this many rows of the head in focus; the browser asks for longer stretches itself."""
LARGEST_PICTURE = 512
MOSAIC_NUMBERS = 1 << 19
"""Probabilities in a mosaic from which on a second thread is worth waking."""
MOST_DETAILS = 32
"""Steps whose details travel at once: as much as a page of text, made in a few milliseconds."""
MOST_ANGLES = 512
"""Positions whose cosines and sines travel at once."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Focus:
    """The head whose exact rows travel with the frames."""

    layer: int = 0
    head: int = 0


@dataclass
class Cursor:
    """How far one reader was told: the next seq; steps, rows, rows of the mosaic sent; ids whose text it knows.

    `tile_seconds`: what a row of the mosaic took when last some were made.
    """

    seq: int = 0
    steps: int = 0
    rows: int = 0
    tiled: int = 0
    tile_seconds: float = 0.0
    known: set[int] = field(default_factory=set)

    def next(self, run: Run, kind: str, **content: Any) -> Json:
        """The message with the next number."""
        message = {"v": VERSION, "run": run.id, "seq": self.seq, "kind": kind, **content}
        self.seq += 1
        return message


def packed(values: Any, dtype: str) -> str:
    """Base64 of numbers as little-endian `dtype`."""
    return base64.b64encode(np.asarray(values, dtype="<" + dtype).tobytes()).decode()


def f32(values: Any) -> str:
    """Base64 of float32; tensors may live on any device."""
    return packed(values.detach().float().cpu().numpy() if isinstance(values, Tensor) else values, "f4")


# ---------------------------------------------------------------------------------------------------------- messages


def begin(run: Run, cursor: Cursor) -> Json:
    """The first message: what the model is, and the prompt."""
    prompt = run.token_ids[: run.prompt_length]
    cursor.known.update(prompt)
    return cursor.next(
        run,
        "begin",
        model=_model(run),
        heads=[asdict(each) for each in head_scores.best(run.loaded.card.heads)],
        rope=_rope(run),
        rope_reason=rope.reason_without(run),
        cache=_cache_kind(run),
        decoding=run.decoding.as_dict(),
        stages=_stage_names(run.decoding),
        eras=[
            {"first": first, "decoding": decoding.as_dict(), "stages": _stage_names(decoding)}
            for first, decoding in run.eras
        ],
        branch=None if run.origin is None else asdict(run.origin),
        prompt_length=run.prompt_length,
        planned=run.capacity,
        end_ids=sorted(end_ids(run.loaded)),
        tokens=[{"id": each, "text": run.piece(each)} for each in prompt],
    )


def _stage_names(decoding: Decoding) -> list[Json]:
    return [{"name": name, "setting": setting} for name, setting in sampling.stages(decoding)]


def prefill(run: Run, cursor: Cursor) -> Json:
    """How much of the prompt is computed."""
    return cursor.next(run, "prefill", done=run.rows, of=len(run.token_ids))


@torch.inference_mode()
def delta(run: Run, cursor: Cursor, focus: Focus, mosaic: int | None = None) -> Json | None:
    """All steps and rows since the cursor, which it advances; None when there is no new step.

    The small pictures of all heads are half of its cost. They grow by at most `mosaic` rows where that is given; what
    is left waits for a later message.
    """
    first, last = cursor.steps, len(run.steps)
    if first == last:
        return None
    if not run.anatomy.heads[focus.layer]:
        focus = Focus(run.anatomy.attending[0])  # nobody has chosen yet
    start, end = cursor.rows, run.prompt_length + last - 1  # the rows that these steps were drawn from
    cursor.steps, cursor.rows = last, end
    with one_thread():  # each part is small
        newest = _details(run, last - 1, last)[0]  # others are gone before they could be drawn
        told = {
            "steps": _steps(run, first, last),
            "details": {"index": last - 1} | newest.told,
            "rows": {"first": start, "count": end - start},
            "focus": _focus_rows(run, focus, start, end) if end - start <= FOCUS_ROWS else None,
            "norms": f32(_norms(run, start, end)),
            "caches": _caches(run, first, last),
            "texts": _new_texts(run, cursor, [newest], run.steps[first:last]),
        }
    return cursor.next(run, "steps", **told, tiles=_tiles(run, cursor, mosaic), clock=clock(run))


def end(run: Run, cursor: Cursor) -> Json:
    """The last message, with what is missing of the mosaic."""
    return cursor.next(run, "end", state=run.state, reason=run.reason, clock=clock(run), tiles=_tiles(run, cursor))


def clock(run: Run) -> Json:
    """Measured times of this run in seconds."""
    steps = len(run.steps) - run.first_step
    return {"first_token": run.seconds_prefill, "decode": run.seconds_decode, "steps": steps}


# --------------------------------------------------------------------------------------------- parts of the messages


def _model(run: Run) -> Json:
    card, anatomy = run.loaded.card, run.anatomy
    names = ("name", "architecture", "parameters", "vocab_size", "dtype", "device", "context_length", "position_scheme")
    return {name: getattr(card, name) for name in names} | {
        "heads": anatomy.heads,
        "kv_heads": anatomy.kv_heads,
        "head_dims": anatomy.head_dims,
        "value_dims": anatomy.value_dims,
        "query_dims": anatomy.query_dims,
        "kinds": anatomy.kinds,
        "scalings": anatomy.scalings,
    }


def _rope(run: Run) -> Json | None:
    rotary = run.anatomy.rotary
    if rotary is None:
        return None
    kinds = rope.kinds(rotary)
    layers = [kinds.index(rotary.layers[i]) if i in rotary.layers else -1 for i in range(len(run.anatomy.heads))]
    return {"layers": layers, "tables": [_table(run, rotary, layers.index(i), kind) for i, kind in enumerate(kinds)]}


def _table(run: Run, rotary: Rotary, layer: int, kind: tuple[Any, ...]) -> Json:
    of = rope.pairs(rotary, layer)
    return {
        "pairs": torch.stack((of.first, of.second), 1).tolist(),
        "inv_freq": of.inv_freq.tolist(),
        "scaling": of.scaling,
        "theta": rope.theta(run.loaded.model.config, kind),
    }


def _cache_kind(run: Run) -> Json:
    dtype = run.anatomy.cached[run.anatomy.attending[0]].dtype
    name = str(dtype).removeprefix("torch.")
    return {"kind": "contiguous", "dtype": name, "element_bytes": dtype.itemsize, "capacity": run.capacity}


def _caches(run: Run, first: int, last: int) -> Json:
    sizes = [step.cache for step in run.steps[first:last]]
    layers = [tuple(zip(*size.layers, strict=True)) for size in sizes]
    return {
        "k": [_short(ks) for ks, _ in layers],
        "v": [_short(vs) for _, vs in layers],
        "positions": [size.positions for size in sizes],
        "reserved": _short([size.reserved for size in sizes]),
        "states": _short([size.states for size in sizes]),
    }


def _short(values: Sequence[int]) -> int | list[int]:
    """One number when all are the same."""
    return values[0] if len(set(values)) == 1 else list(values)


def _tiles(run: Run, cursor: Cursor, most: int | None = None) -> Json | None:
    """Small pictures of the rows that the mosaic lacks, the earliest first and at most so many; None without any."""
    start, end = cursor.tiled, cursor.rows if most is None else min(cursor.rows, cursor.tiled + most)
    if start == end:
        return None
    started, width = perf_counter(), tile_width(cursor.rows)
    little = sum(run.anatomy.heads) * (end - start) * end < MOSAIC_NUMBERS
    with one_thread() if little else nullcontext():
        pictures = attention.pooled(run, start, end, width)
    cursor.tiled, cursor.tile_seconds = end, (perf_counter() - started) / (end - start)
    _, rows, cols = pictures.shape
    place = {"bin": width, "row": start // width, "rows": rows, "cols": cols, "until": end}
    return place | {"data": packed(pictures, "u1")}


def tile_width(rows: int) -> int:
    """Positions in one cell of a tile: the smallest power of two that needs at most TILE_BINS cells."""
    width = 1
    while -(-rows // width) > TILE_BINS:
        width *= 2
    return width


def _focus_rows(run: Run, focus: Focus, start: int, end: int) -> Json:
    pattern = attention.rows(run, focus.layer, start, end, focus.head)[0].cpu().numpy()  # (n, end)
    newest, earlier = pattern[-1], np.rint(np.sqrt(pattern[:-1]) * 255)
    key = int(newest.argmax())
    where = {"layer": focus.layer, "head": focus.head, "first": start, "count": end - start, "key": key}
    told = {"pattern": packed(newest, "f4"), "earlier": _ragged(earlier, start, "u1")}
    return where | told | {"q": _queries(run, focus, end - 1, end), "k": _keys(run, focus, slice(key, key + 1))}


def _ragged(pattern: NDArray[np.float32], start: int, dtype: str) -> str:
    """Base64 of the rows start, start + 1, ... of attention (n, T), one after another, each up to itself."""
    rows = pattern.astype("<" + dtype)
    return base64.b64encode(b"".join(row[: start + n].tobytes() for n, row in enumerate(rows, 1))).decode()


def _queries(run: Run, focus: Focus, start: int, end: int) -> str:
    """q of a head after rotation, f32 [end - start, D]; empty where queries cannot be had."""
    return f32(attention.queries(run, focus.layer, start, end)[focus.head]) if run.anatomy.routed else ""


def _keys(run: Run, focus: Focus, positions: Sequence[int] | slice) -> str:
    """k that a head looks at, after rotation, f32 [positions, D]; empty where queries cannot be had."""
    if not run.anatomy.routed:
        return ""
    k = attention.keys(run, focus.layer)
    kv_head = focus.head * k.shape[0] // run.anatomy.heads[focus.layer]
    return f32(k[kv_head, positions])


def _norms(run: Run, start: int, end: int) -> NDArray[np.float32]:
    """Root mean square of the new keys and values over heads and dimensions: (layers, 2, n)."""
    norms = np.zeros((len(run.anatomy.heads), 2, end - start), dtype=np.float32)  # layers that cache nothing stay 0
    for stack in run.cache.stacks:
        of = slice(stack.first, stack.first + len(stack.keys.own))
        norms[of, 0], norms[of, 1] = _rms(stack.keys.rows(start, end)), _rms(stack.values.rows(start, end))
    return norms


def _rms(vectors: Tensor) -> NDArray[np.float32]:
    """Root mean square over heads and dimensions of (g, K, n, D): (g, n). A few numbers: numpy has them sooner."""
    array = vectors.float().cpu().numpy()
    return np.sqrt(np.einsum("gknd,gknd->gn", array, array) / (array.shape[1] * array.shape[3]))


# ------------------------------------------------------------------------------------------------------------- steps


def _steps(run: Run, first: int, last: int) -> Json:
    """Steps first..last in columns: as names of a record a step, they would take five times the characters."""
    steps = run.steps[first:last]
    told = {
        "first": first,
        "ids": packed([step.token_id for step in steps], "u4"),
        "probabilities": packed([step.probability for step in steps], "f4"),
        "seconds": packed([step.seconds for step in steps], "f4"),
    }
    forced = [step.index for step in steps if step.forced]
    rare = {
        "uniforms": _rare([step.uniform for step in steps]),
        "chances": _rare([step.chance for step in steps]),
        "mus": _rare([step.mu for step in steps]),
    }
    return told | ({"forced": forced} if forced else {}) | {name: column for name, column in rare.items() if column}


def _rare(values: Sequence[float | None]) -> str:
    """f64 with NaN where there is none; empty without any."""
    if all(value is None for value in values):
        return ""
    return packed([math.nan if value is None else value for value in values], "f8")


class _Details(NamedTuple):
    """Of one step: what is told, and the ids that stand in it."""

    told: Json
    ids: tuple[int, ...] = ()


def _details(run: Run, first: int, last: int) -> list[_Details]:
    """What the stages of steps first..last did, and to which candidates, computed together where logits are kept.

    The steps must have been drawn under the same settings.
    """
    if last > len(run.step_logits):
        kept = [[(each.kept, each.mass, each.entropy) for each in step.stages] for step in run.steps[first:last]]
        return [_Details({"stages": packed(numbers, "f4")}) for numbers in kept]
    stages = run.stages_of(first, last)
    log_p = sampling.log_probabilities(stages)
    return _candidates(run, stages[0].logits, log_p, sampling.numbers(log_p), first)


def _candidates(
    run: Run, raw: Tensor, log_p: Tensor, numbers: list[list[sampling.Numbers]], first: int
) -> list[_Details]:
    """Of each step what its stages did, and to the most likely tokens and the drawn one.

    raw: (n, V) logits; log_p: (S, n, V) after each stage; numbers: those of `sampling`.
    """
    count = raw.shape[0]
    top = raw.topk(min(CANDIDATES, raw.shape[-1])).indices.cpu().numpy()
    drawn = np.array([[run.steps[first + row].token_id] for row in range(count)])
    ids, of = np.concatenate((top, drawn), 1), np.arange(count)[:, None]
    values = (raw.numpy(), log_p.numpy()) if raw.is_cpu else (raw, log_p)
    on_host = [each.cpu().numpy() if isinstance(each, Tensor) else each for each in _picked(ids, of, *values)]
    return [_candidate_row(row, numbers[row], ids, *on_host) for row in range(count)]


def _picked(ids: NDArray[np.int64], of: NDArray[np.int64], raw: Any, log_p: Any) -> tuple[Any, ...]:
    """Logits (n, N) and log-probabilities (S, n, N) of tokens `ids` (n, N) in the rows `of` (n, 1).

    Then the rank of the last of them (n,), and log-sum-exp of the raw logits (n,). Tensors on a GPU, arrays else:
    quicker by half there.
    """
    logits, log_probabilities = raw[of, ids], log_p[:, of, ids]
    return logits, log_probabilities, (raw > logits[:, -1:]).sum(1), logits[:, 0] - log_probabilities[0, :, 0]


def _candidate_row(
    row: int, numbers: list[sampling.Numbers], ids: Any, logits: Any, log_probabilities: Any, ranks: Any, log_mass: Any
) -> _Details:
    """The drawn token stands last; it is left out when it is among the most likely anyway."""
    *likely, drawn = ids[row].tolist()
    kept = likely if drawn in likely else [*likely, drawn]
    told = {
        "stages": packed(numbers, "f4"),
        "rank": int(ranks[row]),
        "lse": float(log_mass[row]),
        "ids": packed(kept, "u4"),
        "logits": packed(logits[row, : len(kept)], "f4"),
        "probabilities": packed(np.exp(log_probabilities[:, row, : len(kept)]), "f4"),
    }
    return _Details(told, tuple(kept))


def _new_texts(run: Run, cursor: Cursor, details: Iterable[_Details], steps: Iterable[Step] = ()) -> dict[str, str]:
    """Text of the tokens and candidates that this reader has not seen."""
    ids = {step.token_id for step in steps}.union(*(each.ids for each in details))
    new = ids - cursor.known
    cursor.known |= new
    return {str(each): run.piece(each) for each in sorted(new)}


# --------------------------------------------------------------------------------------------------- answers on demand


@torch.inference_mode()
def focus(run: Run, layer: int, head: int) -> Json:
    """One head's map so far, as a picture.

    Raises:
        ValueError: one sentence, when the layer or head does not exist or nothing is computed yet.
    """
    run._check(layer, head)
    rows = run.rows
    width, image = attention.picture(run, layer, head, rows, LARGEST_PICTURE)
    picture = {"bin": width, "size": image.shape[0], "data": packed(image, "u1")}
    return {"layer": layer, "head": head, "rows": rows, "map": picture}


@torch.inference_mode()
def rows(run: Run, layer: int, head: int, first: int, last: int) -> Json:
    """Exact rows of attention from `first` up to `last`, at most `FOCUS_ROWS`, and what makes their largest scores.

    pattern: f32, row r has r + 1 values; q: f32 [count, D] after rotation; keys: the position that each row looks at
    most; k: f32 [count, D] of these. q and k are empty where queries cannot be had.
    """
    run._check(layer, head)
    last = _until(run, first, last)
    pattern = attention.rows(run, layer, first, last, head)[0].cpu().numpy()
    strongest = pattern.argmax(-1).tolist()
    where = {"layer": layer, "head": head, "first": first, "count": last - first}
    told = {"pattern": _ragged(pattern, first, "f4"), "q": _queries(run, Focus(layer, head), first, last)}
    return where | told | {"keys": strongest, "k": _keys(run, Focus(layer, head), strongest)}


@torch.inference_mode()
def keys(run: Run, layer: int, head: int, first: int, last: int) -> Json:
    """k that a head looks at from `first` up to `last`, at most `FOCUS_ROWS`: f32 [count, D] after rotation."""
    run._check(layer, head)
    last = _until(run, first, last)
    where = {"layer": layer, "head": head, "first": first, "count": last - first}
    return where | {"k": _keys(run, Focus(layer, head), slice(first, last))}


def _until(run: Run, first: int, last: int) -> int:
    """Where a stretch of positions ends that is asked for. `ValueError` when it begins behind what is computed."""
    if not 0 <= first < run.rows:
        raise ValueError(f"Position {first} is not computed: there are {run.rows} positions.")
    return min(last, first + FOCUS_ROWS, run.rows)


def angles(run: Run, layer: int, first: int) -> Json:
    """What turns q and k of a layer at the positions from `first` on: cos and sin with scaling, f32 [count, pairs].

    Angles do not depend on the text, so they are told ahead of it, except where they change with its length.
    """
    rotary = run.anatomy.rotary
    if rotary is None or layer not in rotary.layers:
        raise ValueError(f"Layer {layer} does not rotate its queries and keys.")
    known = run.rows if rope.changes_with_length(rotary.table) else run.capacity
    end = min(first + MOST_ANGLES, known)
    cos, sin = rope.cos_sin(rotary, layer, first, max(first, end))
    return {"layer": layer, "first": first, "cos": f32(cos), "sin": f32(sin)}


@torch.inference_mode()
def details(run: Run, first: int, last: int) -> Json:
    """The details of steps first..last, at most `MOST_DETAILS`, and the texts of their candidates."""
    last = min(last, first + MOST_DETAILS, len(run.steps))
    told = [{"index": index} for index in range(first, last)]
    found = [each for span in run.spans(first, last) for each in _details(run, *span)]
    steps = [one | more.told for one, more in zip(told, found, strict=True)]
    return {"steps": steps, "texts": _new_texts(run, Cursor(), found)}


def logits(run: Run, step: int) -> Json:
    """All raw logits of a step: f32 [V]."""
    return {"step": step, "logits": f32(run.logits(step))}


def texts(run: Run, ids: Sequence[int]) -> Json:
    """The text of some tokens."""
    vocab_size = run.loaded.card.vocab_size
    if len(ids) > 1024 or not all(isinstance(each, int) and 0 <= each < vocab_size for each in ids):
        raise ValueError(f"Ask for the text of up to 1,024 ids from 0 to {vocab_size - 1}.")
    return {"texts": {str(each): run.piece(each) for each in ids}}
