"""Rotary position embedding as the model itself applies it (Su et al. 2021, RoFormer, section 3.4.2).

Nothing is assumed about which dimensions form a pair or how angles are scaled: unit vectors go through the family's
own rotation function, and the pairs, cosines and sines are read off what comes out. A pair (i, j) turns as
    y_i = c x_i - s x_j,    y_j = c x_j + s x_i,
where c and s carry the model's attention scaling; dividing by c^2 + s^2 inverts it exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from playground.capture import Rotary
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
    if run.anatomy.rotary is not None:
        return ""
    return f"This model does not rotate queries and keys; its position scheme: {run.loaded.card.position_scheme}."


_known: WeakKeyDictionary[nn.Module, Pairs] = WeakKeyDictionary()


def pairs(rotary: Rotary) -> Pairs:
    """The pairs of a model; worked out once for each loaded model."""
    if rotary.table not in _known:
        _known[rotary.table] = _find_pairs(rotary)
    return _known[rotary.table]


@torch.inference_mode()
def _find_pairs(rotary: Rotary) -> Pairs:
    """The pairs of a model, from the rotation matrix of position 1."""
    matrix = _rotate_at(rotary, torch.eye(rotary.dim), position=1)  # row b: what unit vector b becomes
    off = matrix - torch.diag(matrix.diagonal())
    partner = off.abs().argmax(1)
    first = torch.tensor([b for b in range(rotary.dim) if off[b, partner[b]] > 0])  # e_i gains +s in dimension j
    second = partner[first]
    cos, sin = matrix[first, first], matrix[first, second]
    angle = torch.atan2(sin.double(), cos.double())
    return Pairs(first, second, _exact_frequencies(rotary, angle), float(torch.hypot(cos, sin).mean()))


def _exact_frequencies(rotary: Rotary, angle: Tensor) -> Tensor:
    """The model's own inv_freq where it agrees with the measured angles of position 1, else those angles. (P,)."""
    own = getattr(rotary.table, "inv_freq", None)
    if own is not None and own.numel() == angle.numel() and torch.allclose(own.double().cpu(), angle, atol=1e-3):
        return own.double().cpu()
    return angle


def _rotate_at(rotary: Rotary, vectors: Tensor, position: int) -> Tensor:
    """Vectors (n, rotary dim) rotated as at one position, by the family's function, float32 on the CPU."""
    where = next(rotary.table.buffers()).device
    cos, sin = rotary.table(vectors.to(where), torch.tensor([[position]], device=where))
    rotated, _ = rotary.apply(*(vectors.to(where)[None, :, None],) * 2, cos, sin)  # (1, n, 1, dim)
    return rotated[0, :, 0].float().cpu()


@torch.inference_mode()
def cos_sin(rotary: Rotary, of: Pairs, start: int, end: int) -> tuple[Tensor, Tensor]:
    """The (end - start, P) cosines and sines, scaling included, that the model uses at these positions (float32)."""
    where = next(rotary.table.buffers()).device
    unit = torch.zeros(1, 1, end - start, rotary.dim, device=where)
    unit[..., of.first.to(where)] = 1.0
    cos, sin = rotary.table(unit, torch.arange(start, end, device=where)[None])
    turned = rotary.apply(unit, unit, cos, sin)[0][0, 0].float().cpu()  # (n, rotary dim)
    return turned[:, of.first], turned[:, of.second]


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
    of = pairs(rotary)
    return unrotate(rotated, of, *cos_sin(rotary, of, 0, rotated.shape[1]))


def theta(config: object) -> float | None:
    """The base of the angles that a configuration names; None where it names none."""
    parameters = getattr(config, "rope_parameters", None) or {}
    found = parameters.get("rope_theta", getattr(config, "rope_theta", None))
    return None if found is None else float(found)
