"""What depth does to activations and to gradients, with norms and without."""

import math
from typing import Any

import torch
from torch import Tensor

from models.configuration import DecoderConfig
from models.decoder import DecoderForCausalLM

LAYERS, WIDTHS = 100, (5, 64)
DEPTH = 24


def stability() -> dict[str, Any]:
    """A vector multiplied 100 times by one random matrix with entries in [-1, 1], normed before each product or not.

    Gives log10 of the vector's length after each product. Without norm it grows or shrinks by the largest eigenvalue
    each time; with it, the length stays what one product makes of a vector of unit deviation.
    """
    found: dict[str, Any] = {"layers": LAYERS}
    for width in WIDTHS:
        generator = torch.Generator().manual_seed(0)
        start = torch.rand(width, generator=generator, dtype=torch.float64) * 2 - 1
        matrix = torch.rand(width, width, generator=generator, dtype=torch.float64) * 2 - 1
        radius = torch.linalg.eigvals(matrix).abs().max().item()
        found[str(width)] = {
            "spectral_radius": round(radius, 4),
            "plain": _lengths(start, matrix, normed=False),
            "normed": _lengths(start, matrix, normed=True),
        }
    return found


def _lengths(x: Tensor, matrix: Tensor, normed: bool) -> list[float]:
    lengths = []
    for _ in range(LAYERS):
        x = matrix @ ((x - x.mean()) / x.std() if normed else x)
        lengths.append(round(math.log10(x.norm().item()), 4))
    return lengths


def gradients() -> dict[str, Any]:
    """The gradient's length for the output matrix of each feed-forward layer, at the start of training, by placement.

    Xiong et al. 2020, figure 3: with post-norm it is large in the last layers and small in the first; with pre-norm it
    is even. 24 layers of 128 dimensions, LayerNorm, all matrices drawn alike; the mean of four seeds.
    """
    placements = ("pre", "post", "sandwich", "parallel")
    return {"layers": DEPTH, **{placement: _gradient_lengths(placement) for placement in placements}}


def _gradient_lengths(placement: str) -> list[float]:
    sums = torch.zeros(DEPTH)
    for seed in range(4):
        torch.manual_seed(seed)
        config = DecoderConfig(
            vocab_size=256, hidden_size=128, num_hidden_layers=DEPTH, num_attention_heads=4, norm="layernorm",
            norm_placement=placement, position="learned", feed_forward="plain", hidden_act="relu",
            tie_word_embeddings=False, initializer_range=128**-0.5,
        )  # fmt: skip
        model: Any = DecoderForCausalLM(config)
        ids = torch.randint(0, 256, (4, 64))
        with torch.no_grad():
            for layer in model.model.layers:  # the smaller start of what writes to the stream is a remedy of its own
                layer.self_attn.o_proj.weight.normal_(0, config.initializer_range)
                layer.mlp.down_proj.weight.normal_(0, config.initializer_range)
        model(ids, labels=ids, use_cache=False).loss.backward()
        sums += torch.tensor([layer.mlp.down_proj.weight.grad.norm() for layer in model.model.layers])
    return [float(f"{value / 4:.4g}") for value in sums.tolist()]
