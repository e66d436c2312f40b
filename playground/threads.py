"""How many of the CPU's threads a forward pass uses.

In a pass over one token nothing but attention is large enough to be shared out, and waking other threads for it, once a
layer, costs more than they save until much is cached. Left alone, the other cores serve the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch

from models.layout import is_arranged

if TYPE_CHECKING:
    from torch import nn

LITTLE = 2 << 20
"""Bytes of keys and values in a layer. One thread read so many as quickly as two did, on the machine that this was
measured on; twice as many it did not."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Leave the other threads asleep: for work so small that waking them takes longer."""
    usual = torch.get_num_threads()
    if usual == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


class Threads:
    """The threads of one run's passes."""

    def __init__(self, model: nn.Module, layer_bytes: float) -> None:
        """layer_bytes: what a layer keeps of one position. Only weights that lie along outputs need no help."""
        self._most = int(LITTLE / layer_bytes) if layer_bytes and is_arranged(model) else 0

    def of(self, new: int, rows: int) -> AbstractContextManager[None]:
        """Around a pass over `new` tokens behind `rows` that are cached."""
        return one_thread() if new == 1 and rows <= self._most else nullcontext()
