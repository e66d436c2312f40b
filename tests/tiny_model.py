"""A loaded model that costs nothing: a random two-layer Llama that reads and writes bytes."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from models import Card, Loaded

CONTEXT = 256
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())


def _card() -> Card:
    return Card(
        name="tiny",
        architecture="LlamaForCausalLM",
        parameters=1234,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=64,
        vocab_size=len(LETTERS),
        context_length=CONTEXT,
        position_scheme="rotary (RoPE), theta 10000",
        norm="RMSNorm",
        activation="SwiGLU",
        tied_head=False,
        dtype="float32",
        device="cpu",
        weights_bytes=4936,
        directory=None,
        readme="# Tiny\n\nA random model.",
        loss_curve=None,
    )


def tiny_loaded() -> Loaded:
    torch.manual_seed(0)
    card = _card()
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
    return Loaded(model, PreTrainedTokenizerFast(tokenizer_object=letters), card)
