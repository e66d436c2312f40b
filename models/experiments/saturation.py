"""Why scores are divided by sqrt(D): else softmax saturates and its gradient vanishes (Vaswani et al. 2017, 3.2.1)."""

from typing import Any

import torch

SIZES = tuple(2**power for power in range(2, 11))
KEYS, QUERIES = 64, 512


def saturation() -> dict[str, Any]:
    """For head sizes D, with unit normal q and k: what softmax over 64 keys is like, scaled and not.

    For each: the standard deviation of the scores (sqrt(D), or 1 when scaled), the mean largest probability, the mean
    entropy in nats (at most ln 64 = 4.16), and the mean size of the softmax's Jacobian, |diag(p) - p pT|.
    """
    generator = torch.Generator().manual_seed(0)
    rows: dict[str, list[dict[str, float]]] = {"plain": [], "scaled": []}
    for size in SIZES:
        q = torch.randn(QUERIES, size, generator=generator, dtype=torch.float64)
        k = torch.randn(KEYS, size, generator=generator, dtype=torch.float64)
        for name, scale in (("plain", 1.0), ("scaled", size**-0.5)):
            scores = q @ k.T * scale  # (queries, keys)
            p = scores.softmax(-1)
            jacobian = torch.diag_embed(p) - p[:, :, None] * p[:, None]
            rows[name].append({
                "size": size,
                "deviation": round(scores.std().item(), 4),
                "largest": round(p.amax(-1).mean().item(), 4),
                "entropy": round(-(p * p.clamp(min=1e-300).log()).sum(-1).mean().item(), 4),
                "jacobian": float(f"{jacobian.flatten(1).norm(dim=1).mean().item():.4g}"),
            })  # fmt: skip
    return {"keys": KEYS, "queries": QUERIES, **rows}
