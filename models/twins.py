"""A design made small: the same switches on a size that runs at once, with random weights of a seed."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import PreTrainedTokenizerBase

from models.checkpoints import Loaded, load
from models.configuration import SLIDING, DecoderConfig
from models.decoder import DecoderForCausalLM

LAYERS, HEADS, HEAD_SIZE, CONTEXT, WINDOW, EXPERTS = 4, 8, 16, 512, 8, 4
SIZES = (
    "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size", "intermediate_size",
    "max_position_embeddings", "vocab_size",
)  # fmt: skip


def twin(config: DecoderConfig, vocab_size: int) -> DecoderConfig:
    """The design with few layers, small heads, a short window; ratios and all switches that are no size stay.

    Weights are drawn wider than for training (deviation 1 / sqrt(C)), so that attention is not flat.
    """
    heads = min(config.num_attention_heads, HEADS)
    shared = max(min(config.heads[1], 2), round(heads * config.heads[1] / config.heads[0]))  # grouped stays grouped
    while heads % shared:
        shared -= 1
    size = HEAD_SIZE
    hidden, layers = heads * size, min(config.num_hidden_layers, LAYERS)
    kinds = config.attention_kinds[:layers] if config.layer_types else None
    changes = {
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": shared, "head_dim": size,
        "hidden_size": hidden, "intermediate_size": max(8, round(config.inner_size / config.hidden_size * hidden)),
        "max_position_embeddings": CONTEXT, "vocab_size": vocab_size, "initializer_range": hidden**-0.5,
        "layer_types": list(kinds) if kinds else None, "rope_parameters": config.rope_parameters,
        "sliding_window": min(config.sliding_window or 0, WINDOW) if kinds and SLIDING in kinds else None,
        "embedding_multiplier": hidden**0.5 if config.embedding_multiplier != 1.0 else 1.0,
        "query_pre_attn_scalar": size if config.query_pre_attn_scalar else None,
    }  # fmt: skip
    if config.feed_forward == "experts":
        experts = min(config.num_local_experts or EXPERTS, EXPERTS)
        changes |= {"num_local_experts": experts, "num_experts_per_tok": min(config.num_experts_per_tok or 1, experts)}
    kept = {key: getattr(config, key) for key in DecoderConfig.__annotations__ if key in config.__dict__}
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    return DecoderConfig(**{**{k: v for k, v in kept.items() if k not in SIZES}, **ends, **changes})


def built(config: DecoderConfig, tokenizer: PreTrainedTokenizerBase, seed: int = 0) -> Loaded:
    """A model of the design with random weights of the seed, by way of a checkpoint that is loaded as any other."""
    generator_state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        model = DecoderForCausalLM(config)
    finally:
        torch.set_rng_state(generator_state)
    with TemporaryDirectory() as folder:
        place = Path(folder) / "random weights"
        model.save_pretrained(place)
        tokenizer.save_pretrained(place)
        return load(str(place), device="cpu", dtype="float32")
