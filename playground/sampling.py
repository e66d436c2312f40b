"""From logits to a token: pure functions, nothing is changed in place.

Every stage takes logits (..., V) and returns logits of the same shape, with -inf where a token was removed, and equals
the processor of that name in `transformers.generation.logits_process`. The sources of the formulas:
repetition penalty: Keskar et al. 2019 (CTRL), section 4.1; top-k: Fan et al. 2018; top-p: Holtzman et al. 2020;
min-p: Nguyen et al. 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from playground.records import Decoding, Stage

REMOVED = float("-inf")
LOWEST_LOG = -1e30


def seen_tokens(token_ids: Sequence[int], vocab_size: int, device: torch.device | str = "cpu") -> Tensor:
    """Which tokens occur among `token_ids`: bool (V,)."""
    seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
    seen[torch.tensor(token_ids, dtype=torch.long, device=device)] = True
    return seen


def apply_repetition_penalty(logits: Tensor, penalty: float, seen: Tensor) -> Tensor:
    """Divide positive and multiply negative logits (..., V) by `penalty` where `seen`, bool (..., V)."""
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Divide (..., V) by the temperature, which must not be 0."""
    return logits / temperature


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Remove what is less likely than the k-th most likely token; ties with it stay. (..., V)."""
    smallest = logits.topk(min(k, logits.shape[-1])).values[..., -1:]
    return logits.masked_fill(logits < smallest, REMOVED)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the smallest set of most likely tokens whose mass reaches p, at least one. (..., V).

    A token goes when the mass of it and of everything less likely is at most 1 - p.
    """
    ascending, order = logits.sort(dim=-1)
    remove = ascending.softmax(-1).cumsum(-1) <= 1 - p
    remove[..., -1] = False
    return logits.masked_fill(torch.empty_like(remove).scatter_(-1, order, remove), REMOVED)


def keep_min_p(logits: Tensor, min_p: float) -> Tensor:
    """Remove what is less than `min_p` times as likely as the most likely token. (..., V)."""
    probabilities = logits.softmax(-1)
    remove = probabilities < min_p * probabilities.amax(-1, keepdim=True)
    remove.scatter_(-1, probabilities.argmax(-1, keepdim=True), False)
    return logits.masked_fill(remove, REMOVED)


@dataclass(frozen=True)
class Applied:
    """A stage as it was applied: its name, its setting, and the logits (..., V) after it."""

    name: str
    setting: float | None
    logits: Tensor


def active_stages(decoding: Decoding) -> tuple[str, ...]:
    """Names of the stages that change anything under these settings, in their order. Greedy has no filters."""
    neutral = {
        "repetition_penalty": decoding.repetition_penalty == 1,
        "temperature": decoding.greedy or decoding.temperature == 1,
        "top_k": decoding.greedy or decoding.top_k == 0,
        "top_p": decoding.greedy or decoding.top_p >= 1,
        "min_p": decoding.greedy or decoding.min_p == 0,
    }
    return tuple(name for name in decoding.order if not neutral[name])


def _apply(name: str, logits: Tensor, decoding: Decoding, seen: Tensor | None) -> Tensor:
    setting = getattr(decoding, name)
    if name == "repetition_penalty":
        if seen is None:
            raise ValueError("A repetition penalty needs to know which tokens were seen.")
        return apply_repetition_penalty(logits, setting, seen)
    return {"temperature": apply_temperature, "top_k": keep_top_k, "top_p": keep_top_p, "min_p": keep_min_p}[name](
        logits, setting
    )


def apply_stages(logits: Tensor, decoding: Decoding, seen: Tensor | None = None) -> tuple[Applied, ...]:
    """All stages in order, the raw logits first under the name `softmax`.

    Args:
        logits: (..., V) raw.
        decoding: the settings; stages that change nothing are left out.
        seen: bool (..., V), tokens that a repetition penalty punishes; needed only when there is one.
    """
    applied = [Applied("softmax", None, logits)]
    for name in active_stages(decoding):
        applied.append(Applied(name, float(getattr(decoding, name)), _apply(name, applied[-1].logits, decoding, seen)))
    return tuple(applied)


def log_probabilities(applied: Sequence[Applied]) -> Tensor:
    """Log-probabilities after each stage: (S, ..., V), -inf where a token was removed."""
    return torch.stack([each.logits for each in applied]).log_softmax(-1)


def describe(applied: Sequence[Applied], log_p: Tensor) -> tuple[tuple[Stage, ...], ...]:
    """What each stage kept, one tuple of stages for each of n rows.

    Entropies are in nats; masses are under the first (raw) distribution.

    Args:
        applied: stages of logits (n, V).
        log_p: their `log_probabilities` (S, n, V).
    """
    p = log_p.exp()
    kept = log_p > REMOVED
    numbers = torch.stack(
        (
            kept.sum(-1).to(p.dtype),
            (p[0] * kept).sum(-1),
            -(p * log_p.clamp(min=LOWEST_LOG)).sum(-1),  # 0 * log 0 counts as 0
        ),
        dim=-1,
    )  # (S, n, 3)
    return tuple(_stages(applied, row) for row in numbers.transpose(0, 1).tolist())


def _stages(applied: Sequence[Applied], numbers: Sequence[Sequence[float]]) -> tuple[Stage, ...]:
    """Stages of one row; rounding in the sums must not leave the range of a mass or an entropy."""
    return tuple(
        Stage(each.name, each.setting, int(kept), min(mass, 1.0), max(entropy, 0.0))
        for each, (kept, mass, entropy) in zip(applied, numbers, strict=True)
    )


def draw(probabilities: Tensor, uniform: float) -> int:
    """The token whose slice of the cumulative distribution (token-id order) holds `uniform`, in [0, 1).

    probabilities: (V,). Summed in float64, so that 100,000 small terms do not shift the borders. Tokens without
    probability are never drawn.
    """
    cumulative = probabilities.double().cumsum(-1)
    total = cumulative[-1:]
    index = torch.searchsorted(cumulative, total * uniform, right=True)
    last = torch.searchsorted(cumulative, total)  # rounding may carry the product up to the total itself
    return int(torch.minimum(index, last))


def sample(logits: Tensor, decoding: Decoding, seen: Tensor | None, uniform: float) -> tuple[int, float]:
    """One token from raw logits (V,), and its probability in the last distribution: drawn, or the largest if greedy."""
    logits = apply_stages(logits, decoding, seen)[-1].logits
    probabilities = logits.softmax(-1)
    token_id = int(logits.argmax()) if decoding.greedy else draw(probabilities, uniform)
    return token_id, float(probabilities[token_id])
