"""The runs of a session as a tree: what each one says, how likely the model found it, and what it shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from playground.records import Decoding
from playground.tokens import text_after

if TYPE_CHECKING:
    from playground.runs import Run
    from playground.sessions import Entry

Json = dict[str, Any]
LONGEST_TEXT = 2000
"""Characters of a run's text that travel; the page shows a line of it."""


def nodes(entries: Sequence[Entry]) -> list[Json]:
    """One node for each run, oldest first.

    A node: run (id), label, parent (id of the run that it continues, null where there is none or it is gone), lost
    (the parent is gone), state, step (its first own one), forced, steps, prompt, given and text (what was chosen, and
    all that follows), chances (see `chances`), settings (those that differ from the usual ones), shared (positions and
    their bytes in the cache, which lie in the parent's memory), bytes (held by this run alone).
    """
    known = {each.run.id for each in entries}
    return [node(each, known) for each in entries]


def node(entry: Entry, known: set[str]) -> Json:
    """The node of one run; `known`: ids of the runs that are still there."""
    run, origin = entry.run, entry.run.origin
    parent = entry.parent if entry.parent in known else None
    return {
        "run": run.id,
        "label": entry.label,
        "parent": parent,
        "lost": origin is not None and parent is None,
        "state": run.state,
        "step": run.first_step,
        "forced": origin.forced if origin else 0,
        "steps": len(run.steps),
        "prompt": _text(run, 0, run.prompt_length),
        "given": _text(run, _first(run), _first(run) + (origin.forced if origin else 0)),
        "text": _text(run, _first(run), len(run.token_ids)),
        "chances": entry.chances() if run.finished else None,
        "settings": changed(run.decoding),
        "shared": shared(run),
        "bytes": entry.nbytes,
    }


def _first(run: Run) -> int:
    """Position of the first token that is the run's own; an edited prompt is all its own."""
    return run.prompt_length + run.first_step


def _text(run: Run, start: int, end: int) -> str:
    return text_after(run.loaded.tokenizer, run.token_ids[:end], start)[:LONGEST_TEXT]


def changed(decoding: Decoding) -> Json:
    """The settings that are not the usual ones, and always temperature and seed."""
    usual = asdict(Decoding())
    own = decoding.as_dict()
    usual["order"] = list(usual["order"])
    always = ("temperature", "seed")
    return {name: value for name, value in own.items() if value != usual[name] or name in always}


def shared(run: Run) -> Json:
    """Positions that lie in the memory of the run that this one continues, and their bytes in the KV cache."""
    positions = run.origin.shared if run.origin else 0
    per_position = sum(k + v for k, v in run.cache_bytes()) // max(run.rows, 1)
    return {"positions": positions, "bytes": positions * per_position}


def chances(run: Run) -> Json | None:
    """Sum and mean of the log-probabilities (nats) of the tokens behind the prompt, under the model's own distribution.

    `own` counts from the run's first own step. None where the logits are not kept.
    """
    if len(run.step_logits) < len(run.steps) or not run.steps:
        return None
    log_p = run.log_probabilities()
    own = log_p[run.first_step :]
    return {
        "sum": float(log_p.sum()),
        "mean": float(log_p.mean()),
        "own": float(own.sum()),
        "own_mean": float(own.mean()) if len(own) else 0.0,
    }
