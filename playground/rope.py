"""Rotary position embedding as the model itself applies it (Su et al. 2021, RoFormer, section 3.4.2).

Nothing is assumed about which dimensions form a pair or how angles are scaled: unit vectors go through the family's
own rotation function, and the pairs, cosines and sines are read off what comes out. A pair (i, j) turns as
    y_i = c x_i - s x_j,    y_j = c x_j + s x_i,
where c and s carry the model's attention scaling; dividing by c^2 + s^2 inverts it exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from models import Loaded
    from playground.anatomy import Anatomy, Rotary
    from playground.engine import Generation


@dataclass(frozen=True)
class Pairs:
    """Which dimensions of a head turn together, and how fast.

    Attributes:
        first, second: (P,) dimension indices of each pair.
        inv_freq: (P,) float64, radians per position.
        scaling: length of a rotated unit vector (1 but for YaRN and relatives).
    """

    first: Tensor
    second: Tensor
    inv_freq: Tensor
    scaling: float


def reason_without(run: Generation) -> str:
    """Why there is nothing to turn, in one sentence; empty when there is a rotation."""
    return no_rotation(run.loaded, run.anatomy)


def no_rotation(loaded: Loaded, anatomy: Anatomy) -> str:
    """The same, for a model that may not have run yet."""
    if anatomy.rotary is not None:
        return ""
    if anatomy.rotates:
        return "This model rotates queries and keys in code of its own, which this panel cannot follow yet."
    return f"This model does not rotate queries and keys; its position scheme: {loaded.card.position_scheme}."


def kinds(rotary: Rotary) -> list[tuple[Any, ...]]:
    """The different ways in which the layers ask the table, in the order of their first layer; most models have one."""
    return list(dict.fromkeys(rotary.layers[layer] for layer in sorted(rotary.layers)))


_known: WeakKeyDictionary[nn.Module, dict[tuple[Any, ...], Pairs]] = WeakKeyDictionary()


def pairs(rotary: Rotary, layer: int) -> Pairs:
    """The pairs of a layer; worked out once for each loaded model and kind of layer."""
    kind = rotary.layers[layer]
    found = _known.setdefault(rotary.table, {})
    if kind not in found:
        found[kind] = _find_pairs(rotary, kind)
    return found[kind]


@torch.inference_mode()
def _find_pairs(rotary: Rotary, kind: tuple[Any, ...]) -> Pairs:
    """The pairs of a kind of layer, from the rotation matrix of position 1; dimensions count from a head's first."""
    unit = torch.eye(rotary.dim)[:, None]  # (dim, 1 position, dim): row b becomes what unit vector b becomes
    matrix = _turn(rotary, kind, unit, torch.tensor([1]))[:, 0]
    off = matrix - torch.diag(matrix.diagonal())
    partner = off.abs().argmax(1)
    first = torch.tensor([b for b in range(rotary.dim) if off[b, partner[b]] > 0])  # e_i gains +s in dimension j
    second = partner[first]
    cos, sin = matrix[first, first], matrix[first, second]
    angle = torch.atan2(sin.double(), cos.double())
    place = rotary.start
    return Pairs(
        first + place, second + place, _exact_frequencies(rotary, kind, angle), float(torch.hypot(cos, sin).mean())
    )


def _exact_frequencies(rotary: Rotary, kind: tuple[Any, ...], angle: Tensor) -> Tensor:
    """The model's own inverse frequencies where they agree with the measured angles of position 1, else those. (P,)."""
    for name in ("inv_freq", *(f"{each}_inv_freq" for each in kind)):
        own = getattr(rotary.table, name, None)
        if own is not None and own.numel() == angle.numel() and torch.allclose(own.double().cpu(), angle, atol=1e-3):
            return own.double().cpu()
    return angle


def _turn(rotary: Rotary, kind: tuple[Any, ...], vectors: Tensor, positions: Tensor) -> Tensor:
    """Vectors (n, T, rotary dim) rotated as at `positions` (T,) by the family's functions, float32 on the CPU.

    Some functions also reorder the dimensions, as position 0 shows, where nothing turns (DeepSeek). Vectors are meant
    in the order that comes out: that is the one of the queries and keys that attention sees.
    """
    at_rest = _apply(rotary, kind, torch.eye(rotary.dim)[:, None], torch.tensor([0]))[:, 0]
    order = at_rest.abs().argmax(0)  # the input dimension that each output dimension is made of
    fed = torch.empty_like(vectors)
    fed[..., order] = vectors
    return _apply(rotary, kind, fed, positions)


def _apply(rotary: Rotary, kind: tuple[Any, ...], vectors: Tensor, positions: Tensor) -> Tensor:
    """Vectors (n, T, rotary dim) through the family's functions as at `positions` (T,), float32 on the CPU."""
    where = next(rotary.table.buffers()).device
    inputs = vectors.to(where)[None]  # (1, n, T, dim)
    cos, sin = rotary.table(inputs, positions.to(where)[None], *kind)
    rotated, _ = rotary.apply(inputs, inputs, cos, sin)
    return rotated[0].float().cpu()


BLOCK = 64
"""Positions whose cosines and sines are worked out at once: a run that grows asks for a few at a time."""
_turned: WeakKeyDictionary[nn.Module, dict[tuple[Any, ...], tuple[Tensor, Tensor]]] = WeakKeyDictionary()


def cos_sin(rotary: Rotary, layer: int, start: int, end: int) -> tuple[Tensor, Tensor]:
    """The (end - start, P) cosines and sines, scaling included, that a layer uses at these positions (float32)."""
    if changes_with_length(rotary.table):
        return _cos_sin(rotary, layer, start, end)
    kind = rotary.layers[layer]
    known = _turned.setdefault(rotary.table, {})
    cos, sin = known.get(kind) or _cos_sin(rotary, layer, 0, BLOCK)
    if len(cos) < end:
        more = _cos_sin(rotary, layer, len(cos), -(-end // BLOCK) * BLOCK)
        cos, sin = torch.cat((cos, more[0])), torch.cat((sin, more[1]))
    known[kind] = cos, sin
    return cos[start:end], sin[start:end]


def changes_with_length(table: nn.Module) -> bool:
    """Whether the angle of a position depends on how long the text is by then."""
    found = getattr(table, "rope_type", None)
    types = found.values() if isinstance(found, dict) else [found]
    return any("dynamic" in str(each) or each == "longrope" for each in types)


@torch.inference_mode()
def _cos_sin(rotary: Rotary, layer: int, start: int, end: int) -> tuple[Tensor, Tensor]:
    of = pairs(rotary, layer)
    first, second = of.first - rotary.start, of.second - rotary.start
    unit = torch.zeros(1, end - start, rotary.dim)
    unit[..., first] = 1.0
    turned = _turn(rotary, rotary.layers[layer], unit, torch.arange(start, end))[0]  # (n, rotary dim)
    return turned[:, first], turned[:, second]


def unrotate(rotated: Tensor, of: Pairs, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries or keys (H, T, D) before rotation, from those after it and the tables (T, P). Other dimensions stay."""
    plain = rotated.float().cpu().clone()
    y_i, y_j = plain[..., of.first], plain[..., of.second]
    square = cos * cos + sin * sin
    plain[..., of.first] = (cos * y_i + sin * y_j) / square
    plain[..., of.second] = (cos * y_j - sin * y_i) / square
    return plain


def before_rotation(run: Generation, layer: int, rotated: Tensor) -> Tensor:
    """Q or k (H, T, D) of rows 0..T before rotation, float32; the same numbers where the layer does not rotate."""
    rotary = run.anatomy.rotary
    if rotary is None or layer not in rotary.layers:
        return rotated.float().cpu()
    return unrotate(rotated, pairs(rotary, layer), *cos_sin(rotary, layer, 0, rotated.shape[1]))


def theta(config: Any, kind: tuple[Any, ...] = ()) -> float | None:
    """The base of the angles that a configuration names, for a kind of layer where it has several; None without one."""
    parameters = getattr(config, "rope_parameters", None) or {}
    for each in kind:
        parameters = parameters.get(each, parameters)
    found = parameters.get("rope_theta", getattr(config, "rope_theta", None))
    return None if found is None else float(found)
