"""What a run begins with: nothing, or what a branch takes over from the run that it continues."""

from __future__ import annotations

from dataclasses import dataclass

from playground.caches import ContiguousCache
from playground.capture import Recorder
from playground.logits import Kept
from playground.records import Decoding, Origin, Step


@dataclass(frozen=True)
class Past:
    """What stands before a run's first own forward pass; nothing of it is computed again.

    Attributes:
        origin: None for a run of its own.
        token_ids: what stands at the beginning; the first `prompt_length` are the prompt.
        rows: positions that `recorder` and `cache` hold of it.
        steps, logits: of the tokens behind the prompt.
        eras: (first step, settings) since when the settings hold.
        ready: the logits after the last token, where they are there already.
        forced: tokens that follow one by one in place of draws.
    """

    origin: Origin | None = None
    token_ids: tuple[int, ...] = ()
    prompt_length: int = 0
    rows: int = 0
    recorder: Recorder | None = None
    cache: ContiguousCache | None = None
    steps: tuple[Step, ...] = ()
    logits: tuple[Kept, ...] = ()
    eras: tuple[tuple[int, Decoding], ...] = ()
    ready: Kept | None = None
    forced: tuple[int, ...] = ()
