"""Another way on from any step of a run: its positions are shared, and only what differs is computed.

A branch is the run with another choice in it: same prompt, same earlier steps, and step i uses the i-th random numbers
of the seed whatever was chosen before. So forcing the token that was drawn anyway gives the same text.
"""

from __future__ import annotations

from collections.abc import Sequence

from playground.comparison import common_beginning
from playground.past import Past
from playground.records import Decoding, Origin
from playground.runs import Run
from playground.tokens import check_length, edited, encode_piece


def branch(
    run: Run, step: int, token: int | str | Sequence[int] | None = None, decoding: Decoding | None = None
) -> Run:
    """A run that shares `run` up to a step, takes `token` there, and goes on.

    Keys, values, queries and logits of the shared positions are not computed again. While the branch is decoded it
    works on a copy of the shared keys and values, since kernels want one block; afterwards it reads them in `run`'s own
    memory, where nobody writes any more. Where some layers keep a state in place of all positions, that state has moved
    on: such a model reads the shared text again.

    Args:
        run: any run, finished or not; it stays as it is.
        step: the step to choose anew: one that is made, or the next one.
        token: an id, several, or a text that the tokenizer reads on its own; None draws under the new settings.
        decoding: the settings from there on, the run's own when None; `max_new_tokens` counts from there, too.

    Raises:
        ValueError: one sentence that says what to change.
    """
    made = len(run.steps)
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= made:
        raise ValueError(f"Step {step} cannot be chosen anew: give a step from 0 to {made}.")
    ids = run.token_ids[: run.prompt_length + step] + _ids(run, token)
    return _continued(run, ids, step, decoding)


def edit(run: Run, text: str, decoding: Decoding | None = None) -> Run:
    """A run that begins with `text`, an edited version of `run.text`; the longest common beginning is shared.

    Tokens behind a change in the continuation are taken one by one in place of draws; a changed prompt is a new one.

    Raises:
        ValueError: one sentence that says what to change.
    """
    made = len(run.steps)
    return _continued(run, edited(run.loaded, run.token_ids[: run.prompt_length + made], text), made, decoding)


def _ids(run: Run, token: int | str | Sequence[int] | None) -> list[int]:
    if token is None:
        return []
    if isinstance(token, str):
        return encode_piece(run.loaded, token)
    ids = [token] if isinstance(token, int) else list(token)
    size = run.loaded.card.vocab_size
    if any(isinstance(each, bool) or not isinstance(each, int) or not 0 <= each < size for each in ids):
        raise ValueError(f"A token id must be a whole number from 0 to {size - 1:,}.")
    return ids


def _continued(run: Run, ids: list[int], made: int, decoding: Decoding | None) -> Run:
    """A run over `ids`, which shares what it can of `run`, of which `made` steps may be used."""
    check_length(run.loaded, len(ids), "text")
    known = run.token_ids[: run.prompt_length + made]
    common = common_beginning(known, ids)
    past = _same_prompt(run, ids, common) if common >= run.prompt_length else _new_prompt(run, ids, common)
    return Run(run.loaded, "", decoding or run.decoding, run.chunk, past)


def _same_prompt(run: Run, ids: list[int], common: int) -> Past:
    step = common - run.prompt_length
    rereads = run.anatomy.state_bytes > 0
    ready = run.step_logits.kept[step] if step < len(run.step_logits) and not rereads else None
    rows = common if ready is not None else common - 1  # without its logits the last position is computed once more
    rows = 0 if rereads else rows
    forced = tuple(ids[common:])
    return Past(
        origin=Origin(run.id, rows, step, len(forced)),
        token_ids=tuple(ids[:common]),
        prompt_length=run.prompt_length,
        rows=rows,
        recorder=run.recorder if rows else None,
        cache=run.cache if rows else None,
        steps=tuple(run.steps[:step]),
        logits=tuple(run.step_logits.kept[:step]),
        eras=tuple(era for era in run.eras if era[0] < step),
        ready=ready,
        forced=forced,
    )


def _new_prompt(run: Run, ids: list[int], common: int) -> Past:
    shared = 0 if run.anatomy.state_bytes else common
    rows = min(shared, len(ids) - 1, run.rows)  # no logits are kept of a prompt: its end is computed anyway
    return Past(
        origin=Origin(run.id, rows, 0, 0),
        token_ids=tuple(ids),
        prompt_length=len(ids),
        rows=rows,
        recorder=run.recorder if rows else None,
        cache=run.cache if rows else None,
    )
