"""The models that are measured, each twice: transformers' own class and our decoder, with the same weights.

"llama": 11.8 million parameters: 8 layers of 6 query heads and 2 key-value heads of 64, hidden size 384, feed-forward
768, vocabulary 4,096, tied head. "gpt2": the shape of GPT-2 small, 124 million. The weights are random; the arithmetic
is that of any trained model of the shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from benchmarks.measure import Setup
from models import DecoderConfig, DecoderForCausalLM, Loaded, load

SCRATCH = Path(__file__).resolve().parent / "scratch"
LLAMA: Mapping[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 384,
    "intermediate_size": 768,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": None,
}
GPT2_CHOICES: Mapping[str, Any] = {
    "norm": "layernorm",
    "position": "learned",
    "feed_forward": "plain",
    "hidden_act": "gelu_new",
    "attention_bias": True,
    "mlp_bias": True,
}
GPT2_NAMES = {
    "ln_1": "input_layernorm",
    "attn.c_attn": "self_attn.qkv_proj",
    "attn.c_proj": "self_attn.o_proj",
    "ln_2": "post_attention_layernorm",
    "mlp.c_fc": "mlp.up_proj",
    "mlp.c_proj": "mlp.down_proj",
}


def ours(shape: str, setup: Setup) -> Loaded:
    """Our twin, loaded as any checkpoint is."""
    return load(_folder(shape, "ours"), device=setup.device, dtype=setup.dtype)


def theirs(shape: str, setup: Setup, attention: str = "sdpa") -> PreTrainedModel:
    """The twin of transformers, with an attention implementation of its own."""
    dtype = getattr(torch, setup.dtype)
    model = AutoModelForCausalLM.from_pretrained(_folder(shape, "theirs"), dtype=dtype, attn_implementation=attention)
    torch.nn.Module.to(model, setup.device)
    model.generation_config.eos_token_id = None  # random weights may end the text, and ours would go on
    return model.eval().requires_grad_(False)


def prompt(tokens: int) -> str:
    """A text of exactly so many tokens under the twins' tokenizer."""
    return " ".join(f"w{(7 * i) % 4096}" for i in range(tokens))


def _folder(shape: str, side: str) -> Path:
    """A checkpoint directory; all are written at the first call and reused."""
    folder = SCRATCH / shape / side
    if not (folder / "tokenizer.json").exists():
        torch.manual_seed(0)
        for name, model in zip(("ours", "theirs"), _BUILD[shape](), strict=True):
            model.save_pretrained(SCRATCH / shape / name)
            _tokenizer(model.config.vocab_size).save_pretrained(SCRATCH / shape / name)
    return folder


def _tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    plain = Tokenizer(WordLevel({f"w{index}": index for index in range(vocab_size)}, unk_token="w0"))
    plain.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=plain)


def _llama() -> tuple[PreTrainedModel, PreTrainedModel]:
    twin = LlamaForCausalLM(LlamaConfig(**LLAMA, rms_norm_eps=1e-5)).eval()
    own = DecoderForCausalLM(DecoderConfig(**LLAMA, norm_eps=1e-5)).eval()
    own.load_state_dict(from_llama(twin.state_dict()))
    return own, twin


def _gpt2() -> tuple[PreTrainedModel, PreTrainedModel]:
    twin = GPT2LMHeadModel(GPT2Config(bos_token_id=None, eos_token_id=None)).eval()
    shape: dict[str, Any] = {
        "vocab_size": 50257,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    }
    config = DecoderConfig(**shape, **GPT2_CHOICES, max_position_embeddings=1024)
    own = DecoderForCausalLM(config).eval()
    own.load_state_dict(from_gpt2(twin.state_dict()))
    return own, twin


_BUILD = {"llama": _llama, "gpt2": _gpt2}


def from_llama(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Llama's tensors under our names: q, k and v in one matrix, gate and up in one."""
    fused = {"q_proj": "qkv_proj", "gate_proj": "gate_up_proj"}
    parts = {"q_proj": ("q_proj", "k_proj", "v_proj"), "gate_proj": ("gate_proj", "up_proj")}
    followers = {name for group in parts.values() for name in group[1:]}
    made: dict[str, Tensor] = {}
    for name, tensor in state.items():
        kind = name.split(".")[-2]
        if kind in parts:
            made[name.replace(kind, fused[kind])] = torch.cat([state[name.replace(kind, part)] for part in parts[kind]])
        elif kind not in followers:
            made[name] = tensor
    return made


def from_gpt2(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """GPT-2's tensors under our names; its linear layers store their matrices transposed."""
    made = {
        "model.embed_tokens.weight": state["transformer.wte.weight"],
        "model.embed_positions.weight": state["transformer.wpe.weight"],
        "model.norm.weight": state["transformer.ln_f.weight"],
        "model.norm.bias": state["transformer.ln_f.bias"],
        "lm_head.weight": state["lm_head.weight"],
    }
    for name, tensor in state.items():
        if not name.startswith("transformer.h."):
            continue
        layer, rest = name.removeprefix("transformer.h.").split(".", 1)
        module, _, kind = rest.rpartition(".")
        matrix = kind == "weight" and not module.startswith("ln_")
        made[f"model.layers.{layer}.{GPT2_NAMES[module]}.{kind}"] = tensor.T if matrix else tensor
    return made
