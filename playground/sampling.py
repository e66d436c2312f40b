"""From logits to a token: the stages by name, the chain of them, what each one did, and the draw.

The stages themselves, with their sources, are the pure functions of `playground.truncation` and `playground.penalties`:
each takes logits and returns logits of the same shape, with -inf where a token was removed, and never removes all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from playground import penalties, truncation
from playground.penalties import Context, window
from playground.records import NEUTRAL, Decoding, Stage
from playground.truncation import LOWEST_LOG

REMOVED = truncation.REMOVED
Numbers = tuple[int, float, float]
"""Of one stage: tokens kept, their mass under the raw distribution, entropy in nats."""
Warp = Callable[[Tensor, Decoding], Tensor]
Process = Callable[[Tensor, Decoding, Context], Tensor]


def _recent(decoding: Decoding, context: Context) -> Sequence[int]:
    return window(context.token_ids, decoding.penalty_last_n)


def _dry(logits: Tensor, decoding: Decoding, context: Context) -> Tensor:
    ids = window(context.token_ids, decoding.dry_penalty_last_n)
    limit = penalties.since_breaker(ids, decoding.dry_sequence_breakers, context.piece)
    repeats = penalties.repetitions(ids, limit)
    breakers = {each for each in repeats if any(text in context.piece(each) for text in decoding.dry_sequence_breakers)}
    return penalties.apply_dry(
        logits, decoding.dry_multiplier, decoding.dry_base, decoding.dry_allowed_length, repeats, breakers
    )


def _xtc(logits: Tensor, decoding: Decoding, context: Context) -> Tensor:
    if context.chance is None:
        raise ValueError("XTC needs the random number of its step.")
    acts = context.chance <= decoding.xtc_probability
    return truncation.exclude_top_choices(logits, decoding.xtc_threshold) if acts else logits


def _mirostat(logits: Tensor, decoding: Decoding, context: Context) -> Tensor:
    if context.mu is None:
        raise ValueError("Mirostat needs the surprise that is allowed in its step.")
    cut = truncation.keep_zipf if decoding.mirostat == 1 else truncation.keep_surprise
    return cut(logits, context.mu)


def first_mu(decoding: Decoding) -> float | None:
    """The surprise in bits that mirostat allows in a run's first step; None where it is off."""
    return 2 * decoding.mirostat_tau if "mirostat" in active_stages(decoding) else None


def next_mu(mu: float | None, probability: float, decoding: Decoding) -> float | None:
    """What mirostat allows after a token that was drawn with this probability: less when it was a surprise."""
    if mu is None or probability == 0:  # a forced token may have none left
        return mu
    return mu - decoding.mirostat_eta * (-math.log2(probability) - decoding.mirostat_tau)


WARPERS: Mapping[str, Warp] = {
    "temperature": lambda x, d: truncation.apply_temperature(x, d.temperature),
    "dynatemp_range": lambda x, d: truncation.apply_dynamic_temperature(
        x, d.temperature, d.dynatemp_range, d.dynatemp_exponent
    ),
    "top_k": lambda x, d: truncation.keep_top_k(x, d.top_k),
    "top_p": lambda x, d: truncation.keep_top_p(x, d.top_p),
    "min_p": lambda x, d: truncation.keep_min_p(x, d.min_p),
    "typical_p": lambda x, d: truncation.keep_typical_p(x, d.typical_p),
    "epsilon_cutoff": lambda x, d: truncation.cut_epsilon(x, d.epsilon_cutoff),
    "eta_cutoff": lambda x, d: truncation.cut_eta(x, d.eta_cutoff),
    "top_n_sigma": lambda x, d: truncation.keep_top_n_sigma(x, d.top_n_sigma),
    "tfs_z": lambda x, d: truncation.keep_tail_free(x, d.tfs_z),
}
"""Stages that need nothing but logits (..., V). Greedy decoding leaves them out."""

PROCESSORS: Mapping[str, Process] = {
    "sequence_bias": lambda x, d, c: penalties.apply_sequence_bias(x, d.sequence_bias, c.token_ids),
    "repetition_penalty": lambda x, d, c: penalties.apply_repetition_penalty(x, d.repetition_penalty, _recent(d, c)),
    "frequency_penalty": lambda x, d, c: penalties.apply_frequency_penalty(x, d.frequency_penalty, _recent(d, c)),
    "presence_penalty": lambda x, d, c: penalties.apply_presence_penalty(x, d.presence_penalty, _recent(d, c)),
    "dry_multiplier": _dry,
    "no_repeat_ngram_size": lambda x, d, c: penalties.forbid_repeated_ngrams(x, d.no_repeat_ngram_size, c.token_ids),
    "bad_words_ids": lambda x, d, c: penalties.ban_words(x, d.bad_words_ids, c.token_ids),
    "min_new_tokens": lambda x, d, c: penalties.delay_end(x, d.min_new_tokens, len(c.new_ids), c.end_ids),
    "force_words_ids": lambda x, d, c: penalties.force_words(x, d.force_words_ids, c.new_ids, c.room, c.end_ids),
    "xtc_probability": _xtc,
    "mirostat": _mirostat,
}
"""Stages that need the text so far, or a number that belongs to the step: one row (V,) at a time."""

OFF: Mapping[str, Callable[[Decoding], bool]] = {
    "temperature": lambda d: d.dynatemp_range > 0,  # which divides in its place
    "xtc_probability": lambda d: d.greedy or d.xtc_threshold > 0.5,
    "mirostat": lambda d: d.greedy,
    "repetition_penalty": lambda d: d.penalty_last_n == 0,
    "frequency_penalty": lambda d: d.penalty_last_n == 0,
    "presence_penalty": lambda d: d.penalty_last_n == 0,
    "dry_multiplier": lambda d: d.dry_penalty_last_n == 0,
}
"""When a stage does nothing although its own setting is not neutral."""


@dataclass(frozen=True)
class Applied:
    """A stage as it was applied: its name, its setting, and the logits (..., V) after it."""

    name: str
    setting: float | None
    logits: Tensor


def _active(name: str, decoding: Decoding) -> bool:
    if getattr(decoding, name) == NEUTRAL[name] or (decoding.greedy and name in WARPERS):
        return False
    return name not in OFF or not OFF[name](decoding)


@lru_cache(maxsize=64)  # asked for at every step and in every frame
def active_stages(decoding: Decoding) -> tuple[str, ...]:
    """Names of the stages that change anything under these settings, in their order. Greedy has no filters."""
    return tuple(name for name in decoding.order if _active(name, decoding))


def stages(decoding: Decoding) -> tuple[tuple[str, float | None], ...]:
    """(name, setting) of what `apply_stages` makes: the raw distribution, then the active stages."""
    return (("softmax", None), *((name, _setting(getattr(decoding, name))) for name in active_stages(decoding)))


def _setting(value: float | tuple[object, ...]) -> float:
    return float(len(value)) if isinstance(value, tuple) else float(value)


def _apply(name: str, logits: Tensor, decoding: Decoding, contexts: Context | Sequence[Context]) -> Tensor:
    if name in WARPERS:
        return WARPERS[name](logits, decoding)
    process = PROCESSORS[name]
    if isinstance(contexts, Context):
        return process(logits, decoding, contexts)
    return torch.stack([process(row, decoding, each) for row, each in zip(logits, contexts, strict=True)])


def apply_stages(logits: Tensor, decoding: Decoding, contexts: Context | Sequence[Context] = ()) -> tuple[Applied, ...]:
    """All stages in order, the raw logits first under the name `softmax`.

    Args:
        logits: (V,) or (n, V) raw.
        decoding: the settings; stages that change nothing are left out.
        contexts: the context of a single row (V,), or one for each of n rows.
    """
    applied: list[Applied] = []
    for name, setting in stages(decoding):
        after = _apply(name, applied[-1].logits, decoding, contexts) if applied else logits
        applied.append(Applied(name, setting, after))
    return tuple(applied)


def log_probabilities(applied: Sequence[Applied]) -> Tensor:
    """Log-probabilities after each stage: (S, ..., V), -inf where a token was removed."""
    return torch.stack([each.logits for each in applied]).log_softmax(-1)


def describe(applied: Sequence[Applied], log_p: Tensor) -> tuple[tuple[Stage, ...], ...]:
    """What each stage kept, one tuple of stages for each of n rows.

    Args:
        applied: stages of logits (n, V).
        log_p: their `log_probabilities` (S, n, V).
    """
    return tuple(
        tuple(Stage(each.name, each.setting, *found) for each, found in zip(applied, row, strict=True))
        for row in numbers(log_p)
    )


def numbers(log_p: Tensor) -> list[list[Numbers]]:
    """What each stage did to each row: n lists of S.

    log_p: (S, n, V), as `log_probabilities` gives them.
    """
    p = log_p.softmax(-1)  # exp() of the same takes eight times as long on a CPU
    columns = _numbers(log_p.numpy(), p.numpy()) if log_p.is_cpu else _numbers(log_p, p)
    rows = zip(*(column.T.tolist() for column in columns), strict=True)
    # rounding in the sums must not leave the range of a mass or an entropy
    return [[(kept, min(mass, 1.0), max(nats, 0.0)) for kept, mass, nats in zip(*row, strict=True)] for row in rows]


def _numbers(log_p: Any, p: Any) -> tuple[Any, Any, Any]:
    """Kept, mass and entropy, (S, n) each. Tensors on a GPU, arrays else: quicker by half there."""
    kept = log_p > REMOVED
    return kept.sum(-1), (p[0] * kept).sum(-1), -(p * log_p.clip(min=LOWEST_LOG)).sum(-1)  # 0 * log 0 counts as 0


def cumulative(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Ids of the tokens with a probability, ascending, and the sums up to and with each, float64.

    probabilities: (V,). Summed in float64, so that 100,000 small terms do not shift the borders.
    """
    alive = probabilities.nonzero()[:, 0] if not probabilities.is_cpu else _nonzero(probabilities)
    return alive, probabilities[alive].double().cumsum(-1)


def draw(probabilities: Tensor, uniform: float) -> int:
    """The token whose slice of the cumulative distribution (token-id order) holds `uniform`, in [0, 1).

    probabilities: (V,). Tokens without probability are never drawn.
    """
    alive, sums = cumulative(probabilities)
    total = sums[-1:]
    index = torch.searchsorted(sums, total * uniform, right=True)
    last = torch.searchsorted(sums, total)  # rounding may carry the product up to the total itself
    return int(alive[torch.minimum(index, last)])


def _nonzero(values: Tensor) -> Tensor:
    """Indices of what is not 0 in (V,); numpy needs a fifth of torch's time for it."""
    return torch.from_numpy(np.flatnonzero(values.numpy() != 0))


def _largest(logits: Tensor) -> int:
    """Index of the largest of (V,), the first of equals; numpy needs a fifth of torch's time for it."""
    return int(logits.numpy().argmax() if logits.is_cpu else logits.argmax())


def sample(
    logits: Tensor, decoding: Decoding, context: Context, uniform: float | None, forced: int | None = None
) -> tuple[int, float]:
    """One token from raw logits (V,) and its probability in the last distribution.

    It is the `forced` one where somebody chose it, else the likeliest without `uniform`.
    """
    logits = apply_stages(logits, decoding, context)[-1].logits
    probabilities = logits.softmax(-1)
    if forced is not None:
        return forced, float(probabilities[forced])
    token_id = _largest(logits) if uniform is None else draw(probabilities, uniform)
    return token_id, float(probabilities[token_id])
