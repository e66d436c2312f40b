"""Immutable records: what the user asked for, and what happened at each step.

Nothing here computes on a model. A `Step` keeps a reference to the raw logits of its own forward pass and derives its
stages from them on first access, so that generation does not pay for what nobody looks at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

STAGE_ORDER = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p")
"""The order in which `transformers.generate` applies the processors of these names."""

LIMITS: Mapping[str, tuple[float, float]] = {
    "max_new_tokens": (1, 100_000),
    "temperature": (0.0, 100.0),
    "top_k": (0, 1_000_000),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
    "seed": (0, 2**63 - 1),
}
"""Smallest and largest value that each numeric setting accepts."""

WHOLE = ("max_new_tokens", "top_k", "seed")


def _checked_number(name: str, value: Any) -> float | int:
    """`value` as the number that the setting `name` needs; `ValueError` with one sentence otherwise."""
    low, high = LIMITS[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(
            f"{name} must be a number, but it is {type(value).__name__}: give a number from {low} to {high}."
        )
    if not math.isfinite(value) or not low <= value <= high:
        raise ValueError(f"{name} is {value}: give a number from {low} to {high}.")
    if name in WHOLE:
        if value != int(value):
            raise ValueError(f"{name} is {value}: give a whole number.")
        return int(value)
    return float(value)


@dataclass(frozen=True)
class Decoding:
    """How tokens are drawn; names and meaning are those of `transformers.GenerationConfig` where it has one.

    Attributes:
        max_new_tokens: tokens to draw at most.
        temperature: logits are divided by it; 0 means greedy (the most likely token, nothing is drawn).
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose mass reaches p; 1 keeps all.
        min_p: keep tokens at least this fraction as likely as the most likely one; 0 keeps all.
        repetition_penalty: divides positive and multiplies negative logits of tokens seen before; 1 is neutral.
        seed: of the random draws.
        stop_at_end: whether an end-of-text token ends the run.
        order: the stages in the order in which they are applied.

    Raises:
        ValueError: one sentence that names the setting, its value, and what to give instead.
    """

    max_new_tokens: int = 64
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    stop_at_end: bool = True
    order: tuple[str, ...] = STAGE_ORDER

    def __post_init__(self) -> None:
        for name in LIMITS:
            object.__setattr__(self, name, _checked_number(name, getattr(self, name)))
        if not isinstance(self.stop_at_end, bool):
            raise ValueError("stop_at_end must be true or false.")
        order = self.order
        if not isinstance(order, list | tuple) or sorted(map(str, order)) != sorted(STAGE_ORDER):
            raise ValueError(f"order must name each of {', '.join(STAGE_ORDER)} once.")
        object.__setattr__(self, "order", tuple(order))

    @classmethod
    def from_json(cls, settings: Any) -> Decoding:
        """Settings from outside. Raises `ValueError` with one sentence for anything but known names and sane values."""
        if not isinstance(settings, Mapping):
            raise ValueError("The settings must be a JSON object of names and values.")
        known = {each.name for each in fields(cls)}
        unknown = sorted(str(name) for name in settings if name not in known)
        if unknown:
            raise ValueError(f"Unknown setting {unknown[0][:40]!r}: known are {', '.join(sorted(known))}.")
        return cls(**settings)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken instead of drawing one."""
        return self.temperature == 0

    def as_dict(self) -> dict[str, Any]:
        """The settings by name, ready for JSON."""
        return {**asdict(self), "order": list(self.order)}


@dataclass(frozen=True)
class Stage:
    """The distribution after one stage of sampling.

    Attributes:
        name: `softmax` for the raw distribution, else the name of the processor.
        setting: the value that the processor used; None for `softmax`.
        kept: how many tokens still have a probability.
        mass: their total probability under the raw distribution, 0 to 1.
        entropy: of the distribution after this stage, in nats.
    """

    name: str
    setting: float | None
    kept: int
    mass: float
    entropy: float


@dataclass(frozen=True)
class CacheSize:
    """The KV cache after a step, in bytes of the tensors that hold the keys and values.

    Attributes:
        positions: how many positions are stored.
        layers: (key bytes, value bytes) of each layer.
        reserved: bytes allocated in all, used or not.
    """

    positions: int
    layers: tuple[tuple[int, int], ...]
    reserved: int

    @property
    def total(self) -> int:
        """Bytes in use, keys and values of all layers."""
        return sum(k + v for k, v in self.layers)


@dataclass(frozen=True)
class Step:
    """One drawn token and the forward pass that led to it.

    Attributes:
        index: 0 drew the first new token.
        token_id: the token that was drawn.
        token: its text.
        probability: in the distribution that it was drawn from (the last stage).
        uniform: the number in [0, 1) that chose it; None when greedy.
        cache: size of the KV cache at that moment.
        seconds: measured time of the forward pass and the draw; for step 0 of the whole prefill.
    """

    index: int
    token_id: int
    token: str
    probability: float
    uniform: float | None
    cache: CacheSize
    seconds: float
    describe: Callable[[], tuple[Stage, ...]] = field(repr=False, compare=False)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """Every stage from the raw softmax to what was drawn from; derived from this step's own logits."""
        return self.describe()
