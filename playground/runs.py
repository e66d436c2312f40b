"""A run: a generation and every view of it that the public contract names."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from playground import attention, rope, sampling
from playground.engine import PREFILL_CHUNK, Generation
from playground.pieces import storage_bytes
from playground.records import Decoding

if TYPE_CHECKING:
    from models import Loaded

Floats = NDArray[np.float32]
AT_ONCE = 64
"""Steps whose whole distributions are worked out together."""


class Run(Generation):
    """A generation with its views; each is computed from the tensors of the forward passes when it is asked for.

    T is the number of positions computed so far: len(token_ids) - 1 once a token was drawn, because the newest token
    has not been through the model yet.
    """

    def finish(self) -> Run:
        """Run to the end; returns itself."""
        while not self.finished:
            self.advance()
        self.rest()
        return self

    def attention(self, layer: int, head: int | None = None) -> Floats:
        """Attention probabilities float32: (H, T, T), or (T, T) of one head; rows are queries."""
        self._check(layer, head)
        pattern = attention.rows(self, layer, 0, self.rows, head).cpu().numpy()
        return pattern if head is None else pattern[0]

    def queries(self, layer: int, rotated: bool = True) -> Floats:
        """Queries (H, T, D) float32, after or before rotation."""
        self._check(layer)
        found = attention.queries(self, layer)
        return (found if rotated else rope.before_rotation(self, layer, found)).float().cpu().numpy().copy()

    def keys(self, layer: int, rotated: bool = True) -> Floats:
        """Keys (K, T, D) float32, after or before rotation."""
        self._check(layer)
        found = attention.keys(self, layer)
        return (found if rotated else rope.before_rotation(self, layer, found)).float().cpu().numpy().copy()

    def logits(self, step: int) -> Floats:
        """Raw logits (V,) float32 of a step, before any stage. Step 0 drew the first new token."""
        self._check_step(step)
        return self.step_logits[step].float().cpu().numpy().copy()

    def distribution(self, step: int, stage: int = -1) -> Floats:
        """Probabilities (V,) float32 after a stage of `steps[step].stages`: 0 is the raw softmax, -1 the last."""
        self._check_step(step)
        return self.stages_of(step, step + 1)[stage].logits[0].softmax(-1).cpu().numpy()

    @torch.inference_mode()
    def stages_of(self, first: int, last: int) -> tuple[sampling.Applied, ...]:
        """The logits (n, V) of steps first..last after each stage, from the raw ones by the functions that drew.

        The steps must have been drawn under the same settings: those of one of `spans`.
        """
        steps = self.steps[first:last]
        contexts = [self.context(self.prompt_length + step.index, step.chance, step.mu) for step in steps]
        return sampling.apply_stages(self.raw_logits(first, last), self.decoding_at(first), contexts)

    def raw_logits(self, first: int, last: int) -> torch.Tensor:
        """Those of steps first..last before any stage: (n, V) float32."""
        if last - first == 1:  # as every frame asks: a view, not a copy
            return self.step_logits[first][None].float()
        return torch.stack([self.step_logits[step] for step in range(first, last)]).float()

    @torch.inference_mode()
    def log_probabilities(self) -> NDArray[np.float64]:
        """Natural logarithm of what the model gave each token behind the prompt, before any stage: (steps,).

        Given tokens count like drawn ones, so that branches with different settings can be compared.
        """
        steps = len(self.steps)
        if steps:
            self._check_step(steps - 1)
        return np.concatenate([np.zeros(0), *(self._log_probabilities(at) for at in range(0, steps, AT_ONCE))])

    def _log_probabilities(self, first: int) -> NDArray[np.float64]:
        steps = self.steps[first : first + AT_ONCE]
        log_p = self.raw_logits(first, first + len(steps)).double().log_softmax(-1)  # (n, V)
        chosen = torch.tensor([step.token_id for step in steps], device=log_p.device)
        return log_p.gather(1, chosen[:, None])[:, 0].cpu().numpy()

    def decoding_at(self, step: int) -> Decoding:
        """The settings under which a step was drawn."""
        return next(decoding for first, decoding in reversed(self.eras) if first <= step)

    def spans(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The steps first..last in stretches that were drawn under the same settings."""
        borders = [first, *(step for step, _ in self.eras if first < step < last), last]
        return ((start, end) for start, end in pairwise(borders) if start < end)

    def own(self) -> dict[int, int]:
        """Bytes of the memory that this run made, by address; branches may share it."""
        return storage_bytes((*self.recorder.own(), *self.cache.own(), *self.step_logits.tensors(self.borrowed_logits)))

    def borrowed(self) -> dict[int, int]:
        """Bytes of the memory of other runs that this one continues, by address."""
        shared = (*self.recorder.borrowed(), *self.cache.borrowed(), *self.step_logits.tensors(0, self.borrowed_logits))
        return storage_bytes(shared)

    def cache_bytes(self) -> tuple[tuple[int, int], ...]:
        """(key bytes, value bytes) of each layer, the tensors' own nbytes."""
        return self.cache.layer_bytes()

    def _check(self, layer: int, head: int | None = None) -> None:
        heads = self.anatomy.heads
        if not self.rows:
            raise ValueError("Nothing is computed yet: iterate over the run or call finish() first.")
        if not 0 <= layer < len(heads):
            raise ValueError(f"Layer {layer} does not exist: the model has layers 0 to {len(heads) - 1}.")
        if not heads[layer]:
            raise ValueError(
                f"Layer {layer} has no attention ({self.anatomy.kinds[layer]}): "
                f"layers {', '.join(map(str, self.anatomy.attending))} have."
            )
        if head is not None and not 0 <= head < heads[layer]:
            raise ValueError(f"Head {head} does not exist: layer {layer} has heads 0 to {heads[layer] - 1}.")

    def _check_step(self, step: int) -> None:
        if not 0 <= step < len(self.steps):
            raise ValueError(f"Step {step} does not exist: {len(self.steps)} steps are made.")
        if step >= len(self.step_logits):
            raise ValueError("This run is too long for its vocabulary to keep all logits: ask for fewer new tokens.")


def generate(loaded: Loaded, prompt: str, decoding: Decoding | None = None, *, chunk: int = PREFILL_CHUNK) -> Run:
    """Begin a run; no forward pass happens until it is iterated, advanced or finished.

    Args:
        loaded: what `models.load` returned.
        prompt: the text to continue.
        decoding: how to draw; the defaults of `Decoding` when None.
        chunk: prompt positions of one forward pass.

    Raises:
        ValueError: one sentence that says what to change.
    """
    return Run(loaded, prompt, Decoding() if decoding is None else decoding, chunk)
