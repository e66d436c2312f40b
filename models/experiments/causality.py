"""Is attention causal? Change one token at a time and see which outputs move."""

from typing import Any

import torch

from models.configuration import DecoderConfig
from models.decoder import DecoderForCausalLM

TOKENS = 12
ROUNDING = 1e-5
"""Experts work on the tokens that chose them together, so other tokens may change the last bits of a product."""


@torch.inference_mode()
def causality(config: DecoderConfig | None = None) -> dict[str, Any]:
    """The largest change of the logits at each position (row) when the token of another (column) is replaced.

    Above the diagonal all must be 0, or of the size of rounding: what comes later cannot matter. Weights of seed 0.
    """
    config = config or DecoderConfig(vocab_size=64, hidden_size=64, num_hidden_layers=2, num_attention_heads=4)
    torch.manual_seed(0)
    model = DecoderForCausalLM(config).eval()
    ids = torch.randint(0, config.vocab_size, (1, TOKENS))
    before = model(ids, use_cache=False).logits[0]  # (T, V)
    moved = torch.empty(TOKENS, TOKENS)
    for column in range(TOKENS):
        changed = ids.clone()
        changed[0, column] = (changed[0, column] + 1) % config.vocab_size
        moved[:, column] = (model(changed, use_cache=False).logits[0] - before).abs().amax(-1)
    later = moved.triu(1)
    return {
        "moved": [[float(f"{value:.3g}") for value in row] for row in moved.tolist()],
        "largest_change_before": later.max().item(),
        "smallest_change_at_and_after": moved[moved.tril() > 0].min().item(),
        "causal": later.max().item() < ROUNDING,
    }
