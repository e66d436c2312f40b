"""The numbers behind position schemes: rotary frequencies and their scalings, sinusoids, slopes of linear biases.

A scaling makes rotary angles serve a longer context than they were trained on. Each takes the plain frequencies (P,),
radians per position, fastest first, and what `rope_parameters` gives.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def linear_frequencies(plain: Tensor, given: dict[str, Any]) -> Tensor:
    """All angles divided by the factor: positions are interpolated (Chen et al. 2023)."""
    return plain / given["factor"]


def ntk_frequencies(plain: Tensor, given: dict[str, Any]) -> Tensor:
    """A larger base, such that the slowest pair is interpolated and the fastest is not ("NTK-aware", bloc97 2023)."""
    pairs = len(plain)
    return plain / given["factor"] ** (torch.arange(pairs) / (pairs - 1))


def llama3_frequencies(plain: Tensor, given: dict[str, Any]) -> Tensor:
    """Interpolates slow pairs, leaves fast ones, and blends between (Llama 3.1, `apply_scaling` in its code)."""
    low, high = given["low_freq_factor"], given["high_freq_factor"]
    turns = given["original_max_position_embeddings"] * plain / (2 * math.pi)  # in the context it was trained on
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - keep) * plain / given["factor"] + keep * plain


def yarn_frequencies(plain: Tensor, given: dict[str, Any]) -> Tensor:
    """Interpolates pairs that turn less than beta_slow times, keeps those above beta_fast (Peng et al. 2023, eq. 23).

    The blend is linear in the number of the pair, its ends rounded outwards, as in the authors' code.
    """
    context, theta, pairs = given["original_max_position_embeddings"], given["rope_theta"], len(plain)

    def pair_that_turns(times: float) -> float:
        return pairs * math.log(context / (times * 2 * math.pi)) / math.log(theta)

    first = max(math.floor(pair_that_turns(given.get("beta_fast") or 32)), 0)
    last = min(math.ceil(pair_that_turns(given.get("beta_slow") or 1)), 2 * pairs - 1)
    interpolated = ((torch.arange(pairs) - first) / max(last - first, 1e-3)).clamp(0, 1)
    return plain / given["factor"] * interpolated + plain * (1 - interpolated)


ROPE_SCALINGS: dict[str, Callable[[Tensor, dict[str, Any]], Tensor]] = {
    "default": lambda plain, given: plain,
    "linear": linear_frequencies,
    "ntk": ntk_frequencies,
    "yarn": yarn_frequencies,
    "llama3": llama3_frequencies,
}


def attention_scaling(given: dict[str, Any]) -> float:
    """The factor on turned queries and keys; 1 but for YaRN, which makes scores sharper (Peng et al. 2023, eq. 22)."""
    if given.get("rope_type") != "yarn":
        return 1.0
    return given.get("attention_factor") or 0.1 * math.log(given["factor"]) + 1.0


def rotary_frequencies(head_dim: int, turning: int, given: dict[str, Any]) -> Tensor:
    """Radians per position of each pair of a head, (head_dim / 2,): theta ** (-2 i / turning), then scaled.

    Pairs beyond the `turning` dimensions stand still: 0.
    """
    with torch.device("cpu"):
        plain = 1.0 / given["rope_theta"] ** (torch.arange(0, turning, 2, dtype=torch.float32) / turning)
        scaled = ROPE_SCALINGS[given.get("rope_type", "default")](plain, given)
    return F.pad(scaled, (0, (head_dim - turning) // 2))


def sinusoids(position_ids: Tensor, size: int) -> Tensor:
    """position_ids (B, T) -> (B, T, size) float32: sin and cos of p / 10000^(2i/size) in turn (Vaswani 2017, 3.5)."""
    angles = position_ids[..., None] * 10000.0 ** -(torch.arange(0, size, 2, device=position_ids.device) / size)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


def alibi_slopes(heads: int) -> Tensor:
    """(heads,): 2 ** (-8 i / heads), i = 1..heads, where that is a power of 2, else also every second of twice as many.

    (Press et al. 2022, section 3 and its footnote.)
    """
    power = 2 ** math.floor(math.log2(heads))
    exponents = [8 * (i + 1) / power for i in range(power)]
    exponents += [4 * (i + 1) / power for i in range(0, 2 * (heads - power), 2)]
    return torch.tensor([2**-each for each in exponents], dtype=torch.float32, device="cpu")
