"""Rows that several runs own together: a branch reads its ancestors' tensors and writes only to its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

EVERY = slice(None)


@dataclass(frozen=True, eq=False)
class Pieces:
    """The rows of n layers, (n, H, rows, D) in all, in tensors that follow one another along the rows.

    Attributes:
        own: the last of them, which the run itself fills; most runs have no other.
        before: rows of ancestors, their very memory; nobody writes there any more.
    """

    own: Tensor
    before: tuple[Tensor, ...] = ()

    @property
    def start(self) -> int:
        """Rows that stand before the own ones."""
        return sum(each.shape[2] for each in self.before)

    def rows(self, start: int, end: int, layers: slice = EVERY) -> Tensor:
        """(n, H, end - start, D): a view where one tensor holds them, else a copy."""
        if not self.before:
            return self.own[layers, :, start:end]
        found, at = [], 0
        for each in (*self.before, self.own):
            low, high = max(start - at, 0), min(end - at, each.shape[2])
            if low < high:
                found.append(each[layers, :, low:high])
            at += each.shape[2]
        if not found:
            return self.own[layers, :, :0]
        return found[0] if len(found) == 1 else torch.cat(found, dim=2)

    def until(self, end: int) -> tuple[Tensor, ...]:
        """Views of all rows before `end`, one of each tensor that holds some."""
        found, at = [], 0
        for each in (*self.before, self.own):
            if at < end:
                found.append(each[:, :, : end - at])
            at += each.shape[2]
        return tuple(each for each in found if each.shape[2])


def storage_bytes(tensors: tuple[Tensor, ...]) -> dict[int, int]:
    """Bytes of the memory behind some tensors, by its address: what two of them share stands there once."""
    storages = [each.untyped_storage() for each in tensors]
    return {each.data_ptr(): each.nbytes() for each in storages}
