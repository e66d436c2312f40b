"""A loaded model that costs nothing: a random two-layer Llama that reads and writes bytes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONTEXT = 256
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())


@dataclass(frozen=True)
class TinyCard:
    """The fields of `models.Card`."""

    name: str = "tiny"
    architecture: str = "LlamaForCausalLM"
    parameters: int = 1234
    hidden_size: int = 32
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 8
    intermediate_size: int = 64
    vocab_size: int = len(LETTERS)
    context_length: int | None = CONTEXT
    position_scheme: str = "rotary (RoPE), theta 10000"
    norm: str = "RMSNorm"
    activation: str = "SwiGLU"
    tied_head: bool = False
    dtype: str = "float32"
    device: str = "cpu"
    weights_bytes: int = 4936
    directory: Path | None = None
    readme: str = "# Tiny\n\nA random model."
    loss_curve: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class TinyLoaded:
    """The fields of `models.Loaded`."""

    model: Any
    tokenizer: Any
    card: TinyCard


def tiny_loaded() -> TinyLoaded:
    torch.manual_seed(0)
    card = TinyCard()
    config = LlamaConfig(
        vocab_size=card.vocab_size,
        hidden_size=card.hidden_size,
        intermediate_size=card.intermediate_size,
        num_hidden_layers=card.num_hidden_layers,
        num_attention_heads=card.num_attention_heads,
        num_key_value_heads=card.num_key_value_heads,
        max_position_embeddings=CONTEXT,
        eos_token_id=None,
        bos_token_id=None,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    letters = Tokenizer(models.BPE({letter: i for i, letter in enumerate(LETTERS)}, []))
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters.decoder = decoders.ByteLevel()
    return TinyLoaded(model, PreTrainedTokenizerFast(tokenizer_object=letters), card)
