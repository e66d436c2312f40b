"""Prefill, step, repeat: the loop that turns a prompt into tokens and keeps what each forward pass made.

`Generation.advance` runs exactly one forward pass. Everything it leaves behind (queries, KV cache, logits) is the very
tensor of that pass; views of it are computed elsewhere, when somebody looks.
"""

from __future__ import annotations

import inspect
import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from playground import sampling
from playground.anatomy import prepare
from playground.logits import Kept, LogitLog
from playground.past import Past
from playground.penalties import Context
from playground.records import Decoding, Stage, Step
from playground.threads import Threads
from playground.tokens import encode, end_ids, find_stop, known_piece, quoted

if TYPE_CHECKING:
    from models import Loaded

PREFILL_CHUNK = 256
"""Prompt positions of one forward pass: long prompts can be stopped, and their progress shown."""


class Generation:
    """One prompt and what the model makes of it, a forward pass at a time.

    Attributes:
        id: unguessable; whoever knows it may look.
        state: pending, prefill, running, then done, stopped or error.
        reason: one sentence why it ended; empty until then.
        token_ids: the prompt, then what was drawn.
        steps: one record for each drawn token.
        rows: positions computed so far.
        capacity: positions that the buffers are made for.
        origin: None, or where this branch comes from; `first_step`: its first own step, 0 for a run of its own.
        eras: (first step, settings) since when the settings hold.
        seconds_prefill: measured time to the first token; seconds_decode: of all later steps together.
    """

    def __init__(
        self, loaded: Loaded, prompt: str, decoding: Decoding, chunk: int = PREFILL_CHUNK, past: Past | None = None
    ) -> None:
        self.loaded, self.decoding = loaded, decoding
        decoding.check_vocabulary(loaded.card.vocab_size)
        past = Past() if past is None else past
        self.origin = past.origin
        self.token_ids = list(past.token_ids) or encode(loaded, prompt)
        self.anatomy = prepare(loaded.model)
        self.device = loaded.device
        self.id = secrets.token_urlsafe(16)
        self.prompt_length = past.prompt_length or len(self.token_ids)
        self.chunk = chunk if self.anatomy.resumes else len(self.token_ids)
        self.capacity = _capacity(loaded, len(self.token_ids) + len(past.forced), decoding.max_new_tokens)
        self.state, self.reason = "pending", ""
        self.steps: list[Step] = list(past.steps)
        self.first_step = len(past.steps)
        self.eras = (*past.eras, (self.first_step, decoding))
        self.rows = past.rows
        self.seconds_prefill = self.seconds_decode = 0.0
        self.recorder = self.anatomy.recorder(self.capacity)
        self.cache = self.anatomy.cache(self.capacity)
        self.borrowed_logits = len(past.logits) + (past.ready is not None)
        self._last_step = self.first_step + len(past.forced) + decoding.max_new_tokens
        all_kept = len(past.logits) == len(past.steps)  # those of all steps, or of none from here on
        self.step_logits = LogitLog(self.anatomy.output, self._last_step, past.logits, all_kept)
        self._ready, self._forced = past.ready, deque(past.forced)
        self._generator = torch.Generator().manual_seed(decoding.seed)
        self._ends = end_ids(loaded)
        self.piece = partial(known_piece, loaded)  # the text of one token on its own
        self._throws = "xtc_probability" in sampling.active_stages(decoding)
        self._mu = sampling.first_mu(decoding)
        self._options = _forward_options(loaded.model)
        self._threads = Threads(loaded.model, self.anatomy.position_bytes / max(len(self.anatomy.attending), 1))
        self._take_over(past)

    def _take_over(self, past: Past) -> None:
        """Go on where another run stood: its positions, and its place in the row of random numbers."""
        if past.recorder is not None and past.cache is not None:
            self.recorder = past.recorder.continued(past.rows, self.capacity)
            self.cache.resume(past.cache, past.rows)
        for step in past.steps:
            self._chances()
            self._mu = sampling.next_mu(self._mu, step.probability, self.decoding)

    @property
    def finished(self) -> bool:
        """Whether no step will follow."""
        return self.state in ("done", "stopped", "error")

    @property
    def text(self) -> str:
        """Prompt and continuation, special tokens left out."""
        decode = self.loaded.tokenizer.decode
        return str(decode(self.token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    @property
    def nbytes(self) -> int:
        """Bytes that this run holds alone: queries, cache (as allocated) and logits."""
        own, size = (*self.recorder.own(), *self.step_logits.tensors(self.borrowed_logits)), self.cache.measure()
        return sum(each.nbytes for each in own) + size.reserved + size.states

    def end(self, state: str, reason: str) -> None:
        """Finish as done, stopped or error, with one sentence why. The first ending counts."""
        if not self.finished:
            self.reason, self.state = reason, state

    def stop(self) -> None:
        """End now; what was made stays."""
        self.end("stopped", "Stopped on request.")

    def rest(self) -> None:
        """Let go of what only decoding needs; for whoever advances the run, once it has finished."""
        self.cache.rest()

    def __iter__(self) -> Iterator[Step]:
        """The steps made so far, then each new one when its token is drawn."""
        index = 0
        while index < len(self.steps) or not self.finished:
            if index == len(self.steps):
                self.advance()
            else:
                yield self.steps[index]
                index += 1

    def advance(self) -> Step | None:
        """Exactly one forward pass: a piece of the prompt (None), or a step. None also when the run has finished."""
        if self.finished:
            self.rest()
            return None
        started = perf_counter()
        if self.rows < len(self.token_ids) - 1:
            return self._prefill(started)
        self.state = "running"
        ready, self._ready = self._ready, None
        return self._step(self._forward(self.token_ids[-1:]) if ready is None else ready.logits(), started, ready)

    def _prefill(self, started: float) -> Step | None:
        self.state = "prefill"
        logits = self._forward(self.token_ids[self.rows : self.rows + self.chunk])
        if self.rows == len(self.token_ids):
            return self._step(logits, started)
        self.seconds_prefill += perf_counter() - started
        return None

    @torch.inference_mode()
    def _forward(self, ids: Sequence[int]) -> Tensor:
        """Logits (V,), as the model gives them, after the last of `ids`; queries and cache grow by their positions."""
        inputs = torch.tensor([ids], device=self.device)
        watching, threads = self.anatomy.watching(self.recorder), self._threads.of(len(ids), self.rows)
        with watching, self.step_logits.hearing(), threads:
            output = self.loaded.model(input_ids=inputs, past_key_values=self.cache, use_cache=True, **self._options)
        self.recorder.close_pass(len(ids))
        self.rows = self.recorder.rows
        return output.logits[0, -1]

    @torch.inference_mode()
    def _step(self, logits: Tensor, started: float, ready: Kept | None = None) -> Step:
        """Draw a token from raw logits (V,) and record how."""
        uniform, chance = self._chances()
        context = self.context(len(self.token_ids), chance, self._mu)
        kept = self.step_logits.add(logits) if ready is None else self.step_logits.keep(ready)
        forced = self._forced.popleft() if self._forced else None
        token_id, probability = sampling.sample(logits.float(), self.decoding, context, uniform, forced)
        describe = partial(_describe, kept or Kept(logits), self.decoding, context)
        seconds = perf_counter() - started
        step = Step(
            index=len(self.steps),
            token_id=token_id,
            token=self.piece(token_id),
            probability=probability,
            uniform=uniform if forced is None else None,
            chance=chance,
            mu=self._mu,
            cache=self.cache.measure(),
            seconds=seconds + (self.seconds_prefill if len(self.steps) == self.first_step else 0.0),
            describe=describe if kept else partial(tuple, describe()),
            forced=forced is not None,
        )
        self._mu = sampling.next_mu(self._mu, probability, self.decoding)
        self._keep(step)
        return step

    def _chances(self) -> tuple[float | None, float | None]:
        """The random numbers of a step: for the draw, and for XTC. A forced step uses its own up like any other."""
        uniform = None if self.decoding.greedy else self._uniform()
        return uniform, self._uniform() if self._throws else None

    def _uniform(self) -> float:
        """The next number in [0, 1) of this run's own generator."""
        return float(torch.rand((), generator=self._generator, dtype=torch.float64))

    def _keep(self, step: Step) -> None:
        if step.index == self.first_step:
            self.seconds_prefill = step.seconds
        else:
            self.seconds_decode += step.seconds
        self.token_ids.append(step.token_id)
        self.steps.append(step)
        self.state = self.state if self.finished else "running"
        stops = () if step.forced else self.decoding.stop_strings
        if self.decoding.stop_at_end and step.token_id in self._ends and not step.forced:
            self.end("done", "The model ended the text.")
        elif stop := find_stop(self.loaded.tokenizer, self.token_ids, self.prompt_length, stops):
            self.end("done", f"The text reached the stop string {quoted(stop)}.")
        elif len(self.steps) == self._last_step:
            self.end("done", f"The wanted {self.decoding.max_new_tokens:,} new tokens are made.")
        elif len(self.token_ids) == self.capacity:
            self.end("done", f"The context of {self.capacity:,} tokens is full.")

    def context(self, length: int, chance: float | None, mu: float | None) -> Context:
        """What the stages of a step may know when `length` tokens stood before it."""
        room = self.capacity - length
        return Context(self.token_ids, length, self.prompt_length, room, self._ends, chance, mu, self.piece)


def _describe(kept: Kept, decoding: Decoding, context: Context) -> tuple[Stage, ...]:
    applied = sampling.apply_stages(kept.logits()[None].float(), decoding, [context])
    return sampling.describe(applied, sampling.log_probabilities(applied))[0]


def _capacity(loaded: Loaded, prompt_length: int, max_new_tokens: int) -> int:
    """Positions of a run that goes to its end: prompt and new tokens, at most the model's context."""
    wanted = prompt_length + max_new_tokens
    limit = loaded.card.context_length
    return wanted if limit is None else min(wanted, limit)


def _forward_options(model: torch.nn.Module) -> dict[str, int]:
    """`logits_to_keep=1` where the model knows it: a long prompt needs no logits but the last."""
    return {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}


def plan_bytes(loaded: Loaded, prompt_length: int, max_new_tokens: int) -> int:
    """Bytes that a run of this length will hold when it goes to its end: queries, cache and logits."""
    positions = _capacity(loaded, prompt_length, max_new_tokens)
    anatomy = prepare(loaded.model)
    return anatomy.buffer_bytes(positions) + anatomy.output.kept_bytes(max_new_tokens)
