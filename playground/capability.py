"""What the panels can show of a loaded model, and why not: its card, and what the calibration pass found out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from models.devices import free_bytes
from playground import rope
from playground.anatomy import Anatomy, prepare

if TYPE_CHECKING:
    from models import Card, Loaded

WATCHED = "The model computes attention in its own code: patterns are read there, exactly; queries cannot be had."


@dataclass(frozen=True)
class Panel:
    """What one panel of the page does for a model: `shows` "all", "part" or "nothing", and why in one sentence."""

    name: str
    shows: str
    why: str


@dataclass(frozen=True)
class Layer:
    """One layer, counted from 0: what it has, found by running it.

    Attributes:
        kind: "attention", or what it has instead, in a few words.
        heads, kv_heads, head_dim, value_dim: of attention as it is cached; 0 where there is none.
        window: how many positions back it looks; None: all.
        rotates: whether its queries and keys are turned.
    """

    index: int
    kind: str
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None
    rotates: bool


@dataclass(frozen=True)
class Capability:
    """A model's card and what can be shown of it.

    Attributes:
        pairing: "halves" or "neighbours": which dimensions of a head turn together; empty where none do.
        position_bytes: what one more token costs in cache and recorded queries; `state_bytes`: what does not grow.
        free_bytes: what was free on the model's device when this was asked.
        longest: tokens that would fit in there, at most the context; None where a token costs nothing.
    """

    card: Card
    layers: tuple[Layer, ...]
    panels: tuple[Panel, ...]
    pairing: str
    position_bytes: int
    state_bytes: int
    free_bytes: int
    longest: int | None

    def as_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON."""
        return {**asdict(self), "card": self.card.as_dict()}


def capability(loaded: Loaded) -> Capability:
    """What can be shown of a model. Raises `ValueError` with one sentence when that is nothing."""
    anatomy, free = prepare(loaded.model), free_bytes(loaded.device)
    return Capability(
        card=loaded.card,
        layers=_layers(loaded.card, anatomy),
        panels=(_attention(anatomy), _rope(loaded, anatomy), _next_token(anatomy), _kv_cache(anatomy)),
        pairing=_pairing(anatomy),
        position_bytes=anatomy.position_bytes,
        state_bytes=anatomy.state_bytes,
        free_bytes=free,
        longest=_longest(anatomy, free, loaded.card.context_length),
    )


def _longest(anatomy: Anatomy, free: int, context: int | None) -> int | None:
    """The most positions whose buffers fit into `free` bytes, by halving."""
    if not anatomy.buffer_bytes(1):
        return context
    low, high = 0, 1 << 32
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if anatomy.buffer_bytes(middle) <= free else (low, middle - 1)
    return low if context is None else min(low, context)


def _layers(card: Card, anatomy: Anatomy) -> tuple[Layer, ...]:
    turned = anatomy.rotary.layers if anatomy.rotary else {}
    windows = card.windows if len(card.windows) == len(anatomy.heads) else (None,) * len(anatomy.heads)
    return tuple(
        Layer(
            index=index,
            kind=anatomy.kinds[index] or "attention",
            heads=heads,
            kv_heads=anatomy.kv_heads[index],
            head_dim=anatomy.head_dims[index],
            value_dim=anatomy.value_dims[index],
            window=windows[index] if heads else None,
            rotates=index in turned,
        )
        for index, heads in enumerate(anatomy.heads)
    )


def _pairing(anatomy: Anatomy) -> str:
    if anatomy.rotary is None:
        return ""
    pairs = rope.pairs(anatomy.rotary, min(anatomy.rotary.layers))
    return "neighbours" if bool(((pairs.second - pairs.first).abs() == 1).all()) and len(pairs.first) > 1 else "halves"


def _some(anatomy: Anatomy) -> str:
    """Which layers the panels about attention speak of, where it is not all of them."""
    attending, layers = len(anatomy.attending), len(anatomy.heads)
    others = " and ".join(dict.fromkeys(kind for kind in anatomy.kinds if kind))
    return "" if attending == layers else f"{attending} of {layers} layers have attention; the others are {others}."


def _attention(anatomy: Anatomy) -> Panel:
    told = [each for each in (_some(anatomy), "" if anatomy.routed else WATCHED) if each]
    return Panel("Attention", "part" if told else "all", " ".join(told) or "Every head of every layer.")


def _rope(loaded: Loaded, anatomy: Anatomy) -> Panel:
    without = rope.no_rotation(loaded, anatomy)
    if without or anatomy.rotary is None:
        return Panel("RoPE", "nothing", without)
    turned, attending = len(anatomy.rotary.layers), len(anatomy.attending)
    if turned < attending:
        return Panel("RoPE", "part", f"{turned} of {attending} attention layers rotate; the others know no positions.")
    return Panel("RoPE", "all", "Every layer with attention.")


def _next_token(anatomy: Anatomy) -> Panel:
    words = "kept whole" if anatomy.output.module is None else "kept as the vector that makes them, in long runs"
    return Panel("Next token", "all", f"Raw logits of each step, {words}.")


def _kv_cache(anatomy: Anatomy) -> Panel:
    some = _some(anatomy)
    states = " Layers with a state keep it whole; it does not grow." if anatomy.state_bytes else ""
    if some:
        return Panel("KV cache", "part", some + states)
    return Panel("KV cache", "all", f"Keys and values of every layer.{states}")
