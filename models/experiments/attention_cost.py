"""Attention three ways: all scores at once, block by block, and the fused kernel; time and memory by length."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

HEADS, SIZE, BLOCK = 4, 64, 256
LENGTHS = (256, 512, 1024, 2048, 4096)
REPEATS = 5


def naive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q kT / sqrt(D) + mask) v with the whole T x T matrix, q, k, v (H, T, D)."""
    later = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(1, 2) * q.shape[2] ** -0.5).masked_fill(later, -torch.inf)
    return scores.softmax(-1) @ v


def blocked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same, a block of queries at a time against the keys that it may see."""
    out = torch.empty_like(q)
    for start in range(0, q.shape[1], BLOCK):
        end = min(start + BLOCK, q.shape[1])
        later = torch.ones(end - start, end, dtype=torch.bool).triu(start + 1)
        scores = q[:, start:end] @ k[:, :end].transpose(1, 2) * q.shape[2] ** -0.5
        out[:, start:end] = scores.masked_fill(later, -torch.inf).softmax(-1) @ v[:, :end]
    return out


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's kernel, which keeps a running softmax (Dao et al. 2022, FlashAttention)."""
    return scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]


WAYS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"naive": naive, "blocked": blocked, "fused": fused}


@torch.inference_mode()
def attention_cost() -> dict[str, Any]:
    """Milliseconds (the least of five) and peak extra MiB of each way, at each length; 4 heads of 64, float32."""
    found: dict[str, Any] = {"lengths": list(LENGTHS), "heads": HEADS, "head_size": SIZE, "block": BLOCK}
    for name, attend in WAYS.items():
        rows = []
        for length in LENGTHS:
            torch.manual_seed(0)
            q, k, v = (torch.randn(HEADS, length, SIZE) for _ in range(3))
            difference = (attend(q, k, v) - fused(q, k, v)).abs().max().item()
            rows.append({
                "milliseconds": round(_least_seconds(attend, q, k, v) * 1e3, 2),
                "peak_mib": round(peak_bytes(attend, q, k, v) / 2**20, 2),
                "difference": difference,
            })  # fmt: skip
        found[name] = rows
    return found


def _least_seconds(attend: Callable[..., Tensor], *tensors: Tensor) -> float:
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        attend(*tensors)
        times.append(time.perf_counter() - begun)
    return min(times)


def peak_bytes(attend: Callable[..., Tensor], *tensors: Tensor) -> int:
    """The most that torch's CPU allocator held at once beyond what it held before, from the profiler's log."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as log:
        attend(*tensors)
    results: Any = log.profiler.kineto_results if log.profiler is not None else None
    held = most = 0
    for event in sorted(results.events(), key=lambda each: each.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most
