"""The raw logits of a run's steps: kept whole, or as the vector that the output layer made them from.

The logits of 50,257 tokens take 201 kB a step, the vector behind them 3 kB. A vector stands for them only where the
layer, given it again, yields the very same bits: nothing that is shown later may differ from what was drawn from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WHOLE_BYTES = 64 * 2**20
"""Up to this many bytes a run keeps its logits whole: that is quickest to look at."""
MOST_BYTES = 256 * 2**20
"""The same where vectors cannot stand for them. Beyond it only what the stages were is kept."""
LONG = 256.0
"""How much longer than usual a vector is made to see what becomes of large logits."""


@dataclass(frozen=True, eq=False)
class Kept:
    """The logits of one step.

    Attributes:
        held: the logits (V,), or the vector (1, 1, C) that `layer` was given.
        layer: None where the logits are held themselves.
    """

    held: Tensor
    layer: nn.Module | None = None

    @torch.inference_mode()
    def logits(self) -> Tensor:
        """Raw logits (V,), in the model's own type."""
        return self.held if self.layer is None else self.layer(self.held).flatten()


@dataclass(frozen=True)
class OutputLayer:
    """What turns the last vector of a pass into logits, and what it takes to keep either.

    Attributes:
        module: None where what it is given does not tell the logits (they are capped or scaled afterwards, say).
        vector_bytes: bytes of what it is given for one position; 0 without it.
        logit_bytes: bytes of the logits of one position, in the type that the model gives them.
    """

    module: nn.Module | None
    vector_bytes: int
    logit_bytes: int

    def whole(self, tokens: int) -> bool:
        """Whether a run of so many new tokens keeps its logits whole."""
        return self.logit_bytes * tokens <= (MOST_BYTES if self.module is None else WHOLE_BYTES)

    def kept_bytes(self, tokens: int) -> int:
        """Bytes that the logits of a run of so many new tokens will take at its end."""
        if self.whole(tokens):
            return self.logit_bytes * tokens
        if self.module is None:
            return 0
        newest = self.logit_bytes * (tokens > 1)
        return self.logit_bytes + self.vector_bytes * (tokens - 1) + newest  # the first is kept whole, too


@torch.inference_mode()
def output_layer(model: PreTrainedModel, device: torch.device | None = None) -> OutputLayer:
    """Find out, by passes over one token, whether the model's output layer alone makes its logits.

    Token ids go to `device`, that of the model unless it has several. Another pass gives the layer a vector so long
    that a cap on the logits, which hardly touches small ones, shows.
    """
    module = model.get_output_embeddings()
    ids = torch.ones(1, 1, dtype=torch.long, device=device or model.device)
    for factor in (1.0, LONG):
        heard: list[Tensor] = []
        with _hearing(module, heard, factor):
            logits: Tensor = model(input_ids=ids, use_cache=False).logits
        logit_bytes = logits.shape[-1] * logits.dtype.itemsize
        if module is None or not heard or not torch.equal(module(heard[0]), logits) or not logits.any():
            return OutputLayer(None, 0, logit_bytes)
    return OutputLayer(module, heard[0].nbytes, logit_bytes)


@contextmanager
def _hearing(module: nn.Module | None, heard: list[Tensor], factor: float = 1.0) -> Iterator[None]:
    """Put what a module is given into `heard`, while this lasts; `factor` makes it longer before that."""
    if module is None:
        yield
        return

    def hear(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        given = None if factor == 1.0 else (args[0] * factor, *args[1:])
        heard[:] = (args if given is None else given)[:1]
        return given

    handle = module.register_forward_pre_hook(hear)
    try:
        yield
    finally:
        handle.remove()


class LogitLog:
    """The logits of a run's steps, in order; those of the newest are at hand whole."""

    def __init__(self, layer: OutputLayer, tokens: int, past: Sequence[Kept] = (), keeps: bool = True) -> None:
        whole = layer.whole(tokens)
        self.kept: list[Kept] = list(past)
        self._keeps = keeps and (whole or layer.module is not None)
        self._module = layer.module if self._keeps and not whole else None
        self._heard: list[Tensor] = []
        self._newest: Tensor | None = None

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """Around a forward pass: hear the vector, where vectors are kept."""
        self._heard.clear()
        with _hearing(self._module, self._heard):
            yield

    def add(self, logits: Tensor) -> Kept | None:
        """Keep the logits (V,) of the pass that was heard last; None where this run keeps none."""
        if not self._keeps:
            return None
        vector = self._heard[0] if self._heard else None
        # a prompt's last vector stands in a row with others, which may change the last bits of what comes of it
        alone = vector is not None and bool(self.kept) and vector.numel() == vector.shape[-1]
        kept = Kept(vector, self._module) if vector is not None and alone else Kept(logits)
        self._newest = None if kept.layer is None else logits
        return self.keep(kept)

    def keep(self, kept: Kept) -> Kept | None:
        """Take over what another run kept."""
        if not self._keeps:
            return None
        self.kept.append(kept)
        return kept

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, step: int) -> Tensor:
        """Raw logits (V,) of a step, in the model's own type."""
        if step == len(self.kept) - 1 and self._newest is not None:
            return self._newest
        return self.kept[step].logits()

    def tensors(self, first: int = 0, last: int | None = None) -> list[Tensor]:
        """What is held of the steps first..last."""
        newest = [] if self._newest is None or last is not None else [self._newest]
        return [each.held for each in self.kept[first:last]] + newest
