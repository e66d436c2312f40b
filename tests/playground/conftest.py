"""Tiny random checkpoints, made once and loaded as a user would load them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from models import DecoderConfig, DecoderForCausalLM, Loaded, load
from playground.anatomy import _anatomies, prepare

VOCAB_SIZE = 300
CONTEXT = 96
PROMPT = "Once upon a time there was a small cat who"


def _tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE: 256 bytes, the end of text, a few merges."""
    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    bare.train_from_iterator([PROMPT + " sat and saw a small small cat. "] * 40, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bare, eos_token="<|endoftext|>")


def _models() -> dict[str, Callable[[], PreTrainedModel]]:
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    llama = LlamaConfig(
        vocab_size=VOCAB_SIZE, hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=CONTEXT, initializer_range=0.2, **ids,
    )  # fmt: skip
    gpt2 = GPT2Config(
        vocab_size=VOCAB_SIZE, n_embd=48, n_layer=2, n_head=4, n_positions=CONTEXT, initializer_range=0.2, **ids
    )
    ours = DecoderConfig(
        vocab_size=VOCAB_SIZE, hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=3, max_position_embeddings=CONTEXT, initializer_range=0.2, **ids,
    )  # fmt: skip
    return {
        "llama": lambda: LlamaForCausalLM(llama),
        "gpt2": lambda: GPT2LMHeadModel(gpt2),
        "decoder": lambda: DecoderForCausalLM(ours),
    }


def keep_no_logits(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if something came after the model's output layer, and its vocabulary were too large to keep logits whole."""
    anatomy = prepare(loaded.model)
    output = dataclasses.replace(anatomy.output, module=None, vector_bytes=0)
    monkeypatch.setitem(_anatomies, loaded.model, dataclasses.replace(anatomy, output=output))
    monkeypatch.setattr("playground.logits.MOST_BYTES", 1000)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a tiny random checkpoint, by family: llama, gpt2 or decoder."""
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            torch.manual_seed(1)
            made[family] = tmp_path_factory.mktemp(family)
            _models()[family]().save_pretrained(made[family])
            _tokenizer().save_pretrained(made[family])
        return made[family]

    return make


@pytest.fixture(scope="session", params=["llama", "gpt2", "decoder"])
def loaded(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> Loaded:
    """Each tiny model in turn."""
    return load(str(checkpoint(request.param)))


@pytest.fixture(scope="session")
def tiny(checkpoint: Callable[[str], Path]) -> Loaded:
    """One tiny model, for what does not depend on the family."""
    return load(str(checkpoint("llama")))
