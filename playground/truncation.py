"""Stages that reshape or cut a distribution: pure functions, nothing is changed in place, no text needed.

Every one takes logits (..., V), unitless, and returns logits of the same shape with -inf where a token was removed; it
never removes all. Sources: temperature, top-k, top-p, min-p, typical-p, epsilon and eta cut-off equal the classes
`...LogitsWarper` of `transformers.generation.logits_process` bit for bit in float32 (Fan et al. 2018, Holtzman et al.
2020, Nguyen et al. 2024, Meister et al. 2023, Hewitt et al. 2022). Dynamic temperature (`temp_ext`), XTC and
top-n-sigma (Tang et al. 2024) follow `src/llama-sampling.cpp` of llama.cpp; tail-free sampling (Bricken 2019) follows
what llama.cpp had until October 2024. XTC was first described in text-generation-webui's pull request 6335. Mirostat
(Basu et al. 2021, arXiv 2007.14966: algorithm 1, and 2 of its later versions) cuts as llama.cpp does.

On a CPU numpy compares, selects and sorts values 3 to 20 times as fast as torch does; both give the same bits.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

REMOVED = float("-inf")
LOWEST_LOG = -1e30
ZIPF_TOKENS = 100
"""The most likely tokens from which mirostat 1 estimates Zipf's exponent: m of the paper."""
FEW = 4096
COLDEST = 1e-6
"""Dynamic temperature stops here: colder, quotients of logits would leave the range of float32."""


def _below(logits: Tensor, border: Tensor) -> Tensor:
    """`logits < border`, bool (..., V)."""
    if logits.is_cpu:
        return torch.from_numpy(logits.numpy() < border.numpy())
    return logits < border


def remove(logits: Tensor, gone: Tensor) -> Tensor:
    """Logits (..., V) with -inf where `gone`, bool (..., V)."""
    if not logits.is_cpu:
        return logits.masked_fill(gone, REMOVED)
    kept = torch.full_like(logits, REMOVED)
    np.copyto(kept.numpy(), logits.numpy(), where=~gone.numpy())
    return kept


def _sorted(logits: Tensor) -> Tensor:
    """Ascending values (..., V)."""
    return torch.from_numpy(np.sort(logits.numpy())) if logits.is_cpu else logits.sort(dim=-1).values


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Divide (..., V) by the temperature, which must not be 0."""
    return logits / temperature


def apply_dynamic_temperature(logits: Tensor, temperature: float, spread: float, exponent: float) -> Tensor:
    """Divide (..., V) by a temperature between `temperature - spread` (at least 0) and `temperature + spread`.

    Where it lies depends on how uncertain the model is: the entropy as a share of the largest possible one, log of the
    number of tokens left, to the power of `exponent`. A sure model gets the lower end.
    """
    log_p = logits.log_softmax(-1)
    entropy = -(log_p.softmax(-1) * log_p.clamp(min=LOWEST_LOG)).sum(-1, keepdim=True)
    alive = (logits > REMOVED).sum(-1, keepdim=True)
    share = (entropy / alive.clamp(min=2).to(logits.dtype).log()).clamp(0, 1)
    low, high = max(0.0, temperature - spread), temperature + spread
    return torch.where(alive > 1, logits / (low + (high - low) * share**exponent).clamp(min=COLDEST), logits)


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Remove what is less likely than the k-th most likely token; ties with it stay. (..., V)."""
    size = logits.shape[-1]
    if k >= size:
        return logits
    return remove(logits, _below(logits, _kth_largest(logits, k)))


def _kth_largest(logits: Tensor, k: int) -> Tensor:
    """(..., 1) of (..., V); numpy is quicker for large k, but slow where most are removed already, being equals."""
    if not logits.is_cpu or k <= FEW:
        return logits.topk(k).values[..., -1:]
    place = logits.shape[-1] - k
    return torch.from_numpy(np.partition(logits.numpy(), place)[..., place : place + 1])


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the smallest set of most likely tokens whose mass reaches p, at least one. (..., V).

    A token goes when the mass of it and of everything less likely is at most 1 - p.
    """
    ascending = _sorted(logits)
    count = _outside_top_p(ascending, p)
    gone = _below(logits, ascending.gather(-1, count))
    if not torch.equal(gone.sum(-1, keepdim=True), count):  # tokens tied at the border, of which only some go
        order = logits.sort(dim=-1).indices
        gone = torch.zeros_like(gone).scatter_(-1, order, torch.arange(logits.shape[-1], device=logits.device) < count)
    return remove(logits, gone)


def _outside_top_p(ascending: Tensor, p: float) -> Tensor:
    """How many of the least likely tokens go, (..., 1): never all."""
    mass = ascending.softmax(-1).cumsum(-1)
    outside = torch.from_numpy(mass.numpy() <= 1 - p) if mass.is_cpu else mass <= 1 - p
    return outside.sum(-1, keepdim=True).clamp(max=ascending.shape[-1] - 1)


def keep_min_p(logits: Tensor, min_p: float) -> Tensor:
    """Remove what is less than `min_p` times as likely as the most likely token. (..., V)."""
    probabilities = logits.softmax(-1)
    return remove(logits, _below(probabilities, min_p * probabilities.amax(-1, keepdim=True)))


def keep_typical_p(logits: Tensor, p: float) -> Tensor:
    """Keep the tokens whose surprisal is nearest to the entropy, until their mass reaches p. (..., V)."""
    log_p = logits.log_softmax(-1)
    entropy = -(log_p * log_p.exp()).nansum(-1, keepdim=True)
    distance = (-log_p - entropy).abs()
    order = _order(distance)
    mass = logits.gather(-1, order).softmax(-1).cumsum(-1)
    last = (mass < p).sum(-1, keepdim=True).clamp(max=logits.shape[-1] - 1)
    return remove(logits, distance > distance.gather(-1, order.gather(-1, last)))


def _order(values: Tensor) -> Tensor:
    """Ascending order, equals by index, of (..., V) that are not negative: int64 (..., V).

    The bits of such floats sort as whole numbers do, so value and index fit into one number: numpy sorts those 7 times
    as fast as torch sorts pairs.
    """
    if not values.is_cpu or values.dtype is not torch.float32:
        return values.sort(dim=-1, stable=True).indices
    index = np.arange(values.shape[-1], dtype=np.uint64)
    keys = (values.numpy().view(np.uint32).astype(np.uint64) << np.uint64(32)) | index
    keys.sort()
    return torch.from_numpy((keys & np.uint64(0xFFFFFFFF)).astype(np.int64))


def cut_epsilon(logits: Tensor, epsilon: float) -> Tensor:
    """Remove what is less likely than `epsilon`, but never the most likely token. (..., V)."""
    return remove(logits, (logits.softmax(-1) < epsilon) & _below(logits, logits.amax(-1, keepdim=True)))


def cut_eta(logits: Tensor, epsilon: float) -> Tensor:
    """Remove what is less likely than min(epsilon, sqrt(epsilon) * exp(-entropy)), never the most likely. (..., V)."""
    limit = torch.tensor(epsilon, dtype=torch.float32, device=logits.device)
    log_p = logits - logits.logsumexp(-1, keepdim=True)
    entropy = -(log_p.clamp(min=torch.finfo(log_p.dtype).min) * log_p.softmax(-1)).sum(-1)
    eta = torch.min(limit, limit.sqrt() * (-entropy).exp())[..., None]
    return remove(logits, (logits.softmax(-1) < eta) & _below(logits, logits.amax(-1, keepdim=True)))


def keep_top_n_sigma(logits: Tensor, n: float) -> Tensor:
    """Remove what lies more than n standard deviations (of the logits not removed yet) below the largest. (..., V)."""
    alive = logits > REMOVED
    count = alive.sum(-1, keepdim=True)
    values = torch.where(alive, logits, 0.0).double()
    mean = values.sum(-1, keepdim=True) / count
    sigma = (torch.where(alive, values - mean, 0.0).square().sum(-1, keepdim=True) / count).sqrt()
    border = logits.amax(-1, keepdim=True) - n * sigma
    return remove(logits, _below(logits, border.to(logits.dtype)))


def keep_tail_free(logits: Tensor, z: float) -> Tensor:
    """Cut the tail where the sorted probabilities have stopped bending. (..., V).

    The second derivatives' absolute values, as shares of their sum, are added up from the most likely token on; what
    follows the token that takes the sum above z goes. Of tokens tied at the border those with the lowest ids stay.
    """
    flat = logits.reshape(-1, logits.shape[-1])
    return torch.stack([_tail_free_row(row, z) for row in flat]).reshape(logits.shape)


def _tail_free_row(logits: Tensor, z: float) -> Tensor:
    probabilities = _sorted(logits.softmax(-1)).flip(-1)[: int((logits > REMOVED).sum())].double()
    if len(probabilities) <= 2:
        return logits
    bends = probabilities.diff().diff().abs()
    total = bends.sum()
    shares = bends / total if total > 1e-6 else torch.full_like(bends, 1 / len(bends))
    past = (shares.cumsum(-1) > z).nonzero()
    return _keep_most_likely(logits, max(1, int(past[0]))) if len(past) else logits


def _keep_most_likely(logits: Tensor, count: int) -> Tensor:
    """Exactly `count` tokens of (V,); among equals the lowest ids."""
    values, border = (each.cpu().numpy() for each in (logits, _kth_largest(logits, count)))
    gone = values < border
    tied = np.flatnonzero(values == border)
    gone[tied[count - np.count_nonzero(values > border) :]] = True
    return remove(logits, torch.from_numpy(gone).to(logits.device))


def exclude_top_choices(logits: Tensor, threshold: float) -> Tensor:
    """XTC: of the tokens at least as likely as `threshold` keep only the least likely, the last id of equals. (..., V).

    What is less likely than the threshold stays; with fewer than two tokens above it nothing happens.
    """
    probabilities = logits.softmax(-1)
    above = (probabilities >= threshold) & (logits > REMOVED)
    least = torch.where(above, probabilities, 2.0).amin(-1, keepdim=True)
    spared = logits.shape[-1] - 1 - (above & (probabilities == least)).flip(-1).byte().argmax(-1, keepdim=True)
    return remove(logits, above.scatter(-1, spared, False))


def keep_surprise(logits: Tensor, mu: float) -> Tensor:
    """Mirostat 2: remove what is more surprising than `mu` bits, but never the most likely token. (V,)."""
    probabilities = logits.softmax(-1)
    least = 2.0 ** -max(mu, -1.0)  # nothing is less surprising than 0 bits
    gone = _below(probabilities, torch.tensor(least, dtype=probabilities.dtype, device=probabilities.device))
    return _keep_most_likely(logits, 1) if bool(gone.all()) else remove(logits, gone)


def keep_zipf(logits: Tensor, mu: float) -> Tensor:
    """Mirostat 1: keep the k most likely tokens, among equals the lowest ids. (V,).

    k is such that a surprise of `mu` bits is in reach under Zipf's law, whose exponent the most likely tokens tell.
    """
    alive = int(np.count_nonzero(logits.cpu().numpy() > REMOVED))
    if alive < 2:
        return logits
    top = logits.softmax(-1).topk(min(ZIPF_TOKENS, alive)).values
    k = zipf_size(top.cpu().numpy(), mu, logits.shape[-1])
    return _keep_most_likely(logits, k) if k < alive else logits


def zipf_size(probabilities: NDArray[np.floating], mu: float, vocab_size: int) -> int:
    """How many tokens mirostat 1 keeps, 1 to `vocab_size`: the paper's k, computed in logarithms.

    probabilities: at least two of the most likely, descending.
    """
    log_p = np.log(np.maximum(probabilities.astype(np.float64), np.finfo(np.float32).tiny))
    steps = np.diff(np.log(np.arange(1, len(log_p) + 1)))
    exponent = max(float(-(steps @ np.diff(log_p)) / (steps @ steps)), 1e-9)
    epsilon, log_v = exponent - 1, math.log(vocab_size)
    # epsilon / (1 - V^-epsilon) has the limit 1 / log V at 0
    ratio = 1 / log_v if abs(epsilon * log_v) < 1e-9 else epsilon / -math.expm1(-epsilon * log_v)
    log_k = (mu * math.log(2) + math.log(ratio)) / exponent
    return vocab_size if log_k >= log_v else max(1, int(math.exp(log_k)))
