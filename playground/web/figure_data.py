"""What the enlarged figures are drawn from: one frozen record for each panel, plain numbers and numpy arrays.

Shapes: T positions, D head size, P rotated pairs, S stages, N candidates, L layers. Layers, heads, positions and steps
count from 0. A record whose arrays do not fit together raises `ValueError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


def _expect(name: str, values: Any, shape: tuple[int, ...]) -> None:
    if np.shape(values) != shape:
        raise ValueError(f"{name} must have the shape {shape}, not {np.shape(values)}.")


@dataclass(frozen=True)
class AttentionData:
    """One head's attention map.

    Attributes:
        layer, head: which one, counted from 0.
        pattern: (T, T) probabilities, rows = queries; what lies above the diagonal is not drawn.
        tokens: T texts, one for each position.
        row: the selected query position, 0 to T - 1.
        key: the selected key position; None when there is none.
    """

    layer: int
    head: int
    pattern: Floats
    tokens: Sequence[str]
    row: int
    key: int | None = None

    def __post_init__(self) -> None:
        size = len(self.tokens)
        _expect("pattern", self.pattern, (size, size))


@dataclass(frozen=True)
class RopeData:
    """The rotation of one query and one key of a head.

    Attributes:
        layer, head: the query head, counted from 0.
        query, key: positions of the two tokens.
        query_token, key_token: their texts.
        pairs: (P, 2) the dimensions that turn together.
        inv_freq: (P,) radians per position.
        q_before, q_after, k_before, k_after: (D,) before and after rotation.
        scale: what the dot product is multiplied with to give the score (1/sqrt(D) in most models).
        positions: how many positions to draw angles for; at least query + 1.
    """

    layer: int
    head: int
    query: int
    key: int
    query_token: str
    key_token: str
    pairs: NDArray[np.integer]
    inv_freq: Floats
    q_before: Floats
    q_after: Floats
    k_before: Floats
    k_after: Floats
    scale: float
    positions: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "pairs", np.asarray(self.pairs, dtype=int).reshape(-1, 2))
        size = len(self.q_after)
        _expect("inv_freq", self.inv_freq, (len(self.pairs),))
        for name in ("q_before", "q_after", "k_before", "k_after"):
            _expect(name, getattr(self, name), (size,))

    @property
    def contributions(self) -> Floats:
        """(P,) what each pair adds to the score."""
        products = np.asarray(self.q_after, float) * np.asarray(self.k_after, float) * self.scale
        return products[self.pairs].sum(axis=1)

    @property
    def score(self) -> float:
        """The attention score before masking and softmax: all pairs and the dimensions that are not rotated."""
        return float(np.asarray(self.q_after, float) @ np.asarray(self.k_after, float) * self.scale)


@dataclass(frozen=True)
class NextTokenData:
    """The distribution of one step through its stages.

    Attributes:
        step: counted from 0.
        ids, tokens: N candidates, the most likely in the raw distribution first.
        stages, settings: S names ("softmax", "temperature", ...) and the values used ("" for none).
        probabilities: (S, N) after each stage; 0 = removed.
        kept, entropies: S numbers of tokens left and entropies in nats, over the whole vocabulary.
        drawn: index into ids of the token that was drawn; None when nothing was drawn.
    """

    step: int
    ids: Sequence[int]
    tokens: Sequence[str]
    stages: Sequence[str]
    settings: Sequence[str]
    probabilities: Floats
    kept: Sequence[int]
    entropies: Sequence[float]
    drawn: int | None = None

    def __post_init__(self) -> None:
        _expect("probabilities", self.probabilities, (len(self.stages), len(self.ids)))
        for name in ("settings", "kept", "entropies"):
            _expect(name, getattr(self, name), (len(self.stages),))
        _expect("tokens", self.tokens, (len(self.ids),))

    def removed_by(self, candidate: int) -> str | None:
        """Name of the stage that set a candidate to zero; None when it survived."""
        gone = np.flatnonzero(np.asarray(self.probabilities)[:, candidate] <= 0)
        return self.stages[int(gone[0])] if len(gone) else None


@dataclass(frozen=True)
class CacheData:
    """Bytes of the KV cache as positions are added.

    Attributes:
        k_bytes, v_bytes: (L, T) bytes of keys and values held when t + 1 positions are stored.
        position: the selected number of stored positions minus one, 0 to T - 1.
        reserved: bytes allocated in all, used or not; 0 when unknown.
        formula: how the bytes follow from the model's shape, with its numbers filled in.
    """

    k_bytes: NDArray[np.number]
    v_bytes: NDArray[np.number]
    position: int
    reserved: int = 0
    formula: str = ""

    def __post_init__(self) -> None:
        _expect("v_bytes", self.v_bytes, np.shape(self.k_bytes))

    @classmethod
    def growing(cls, layers: Sequence[tuple[int, int]], positions: int, **rest: Any) -> CacheData:
        """From the (key, value) bytes of each layer at `positions` positions, where every position costs the same."""
        share = np.arange(1, positions + 1) / positions
        totals = np.asarray(layers, float)
        return cls(k_bytes=totals[:, :1] * share, v_bytes=totals[:, 1:] * share, **rest)
