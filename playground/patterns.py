"""The way round for models whose attention cannot be routed through ours: watch the softmax that makes the pattern.

Exact, because the pattern is taken from the very operation that produced it, for any model that writes its attention
with torch. Slower, because every torch call of the forward pass goes through Python, and T x T numbers a head are kept
instead of queries. Queries and keys before and after rotation cannot be had this way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from playground.capture import Recorder

SOFTMAXES: frozenset[Callable[..., Any]] = frozenset({F.softmax, torch.softmax, Tensor.softmax})


class WatchPatterns(TorchFunctionMode):
    """Inside, each attention pattern (1, H, n, T) goes to the recorder, layer by layer in the order of the calls."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._layer = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in SOFTMAXES and self._is_pattern(result):
            self._keep(result if result.dim() == 4 else result[None])
        elif func is F.scaled_dot_product_attention:
            self._keep(_pattern(*args, **kwargs))
        return result

    def _is_pattern(self, result: Tensor) -> bool:
        """A row for each new position over all positions, for several heads: (1, H, n, T), or (H, n, T).

        What else a model puts through a softmax (the router of a mixture of experts, say) has another shape.
        """
        if result.dim() < 3 or result.dim() > 4:
            return False
        batched = result.shape[0] == 1 if result.dim() == 4 else result.shape[0] > 1
        return batched and result.shape[-1] == self._recorder.rows + result.shape[-2]

    def _keep(self, pattern: Tensor) -> None:
        self._recorder.keep_map(self._layer, pattern)
        self._layer += 1


def _pattern(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The pattern (B, H, n, T) inside the fused kernel, from the arguments that it was called with."""
    if key.shape[1] != query.shape[1]:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, float("-inf")) if attn_mask.dtype == torch.bool else scores + attn_mask
    return scores.softmax(-1, dtype=torch.float32)
