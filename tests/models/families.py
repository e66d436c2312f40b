"""Small random models of transformers' families, each beside our decoder with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor

from models import DecoderConfig, DecoderForCausalLM

VOCAB, LAYERS, HEADS, WIDTH = 61, 3, 4, 32
SHAPE = {
    "vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "max_position_embeddings": 64,
}  # fmt: skip
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
OLD = {"vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 64}
State = dict[str, Tensor]
Pair = tuple[Any, DecoderForCausalLM]
BIASED = {"attention_bias": True, "mlp_bias": True}
GPT = {"norm": "layernorm", "position": "learned", "feed_forward": "plain", "hidden_act": "gelu_new", **BIASED}


def randomise(model: torch.nn.Module) -> torch.nn.Module:
    """Give every parameter, norms and biases too, a value that matters."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            norm = any(part in name for part in ("norm", "ln_"))
            parameter.copy_(1 + 0.2 * noise if norm else 0.2 * noise)
    return model.eval()


def pair(family: str, theirs: dict, ours: dict, copied: Callable[[State], State]) -> Pair:
    """A model of the family with random weights, and ours with the same ones."""
    kind = getattr(transformers, f"{family}ForCausalLM", None) or getattr(transformers, f"{family}LMHeadModel")
    reference: Any = randomise(kind(getattr(transformers, f"{family}Config")(**theirs)))
    decoder = DecoderForCausalLM(DecoderConfig(**{**SHAPE, **ours})).eval()
    decoder.load_state_dict(copied(reference.state_dict()))
    return reference, decoder


def stacked(state: State) -> State:
    """Llama's tensors under our names: q, k, v and gate, up are stacked into one matrix each."""
    state = {name.replace(".mlp.experts.", ".mlp."): value for name, value in state.items()}
    for layer in range(LAYERS):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        for kind in ("weight", "bias"):
            if f"{attention}.q_proj.{kind}" in state:
                parts = [state.pop(f"{attention}.{name}_proj.{kind}") for name in "qkv"]
                state[f"{attention}.qkv_proj.{kind}"] = torch.cat(parts)
            if f"{mlp}.gate_proj.{kind}" in state:
                parts = [state.pop(f"{mlp}.{name}_proj.{kind}") for name in ("gate", "up")]
                state[f"{mlp}.gate_up_proj.{kind}"] = torch.cat(parts)
    return state


def gemma(state: State) -> State:
    """As Llama's; Gemma stores of each norm what is added to 1."""
    return {name: value + 1 if "norm" in name else value for name, value in stacked(state).items()}


def renamed(outside: dict[str, str], prefix: str, inside: dict[str, str], transposed: bool = False) -> Callable:
    """Tensors under our names: `outside` the layers by full name, `inside` them by the names below their prefix."""

    def copied(state: State) -> State:
        made = {}
        for theirs, name in outside.items():
            made |= {f"{name}.{kind}": state[f"{theirs}.{kind}"] for kind in _kinds(state, theirs)}
        for layer in range(LAYERS):
            for theirs, name in inside.items():
                full = f"{prefix}.{layer}.{theirs}"
                for kind in _kinds(state, full):
                    value = state[f"{full}.{kind}"]
                    value = value.T if transposed and value.dim() == 2 else value
                    made[f"model.layers.{layer}.{name}.{kind}"] = value
        return made

    return copied


def _kinds(state: State, name: str) -> list[str]:
    return [kind for kind in ("weight", "bias") if f"{name}.{kind}" in state]


def by_kind(copied: Callable[[State], State], turning: int | None = None) -> Callable[[State], State]:
    """As `copied`, where each head's q, k and v stand together: all q, then all k, then all v.

    With `turning` of D dimensions rotated, the pairs (i, i + turning / 2) become (i, i + D / 2).
    """
    size = WIDTH // HEADS
    order = list(range(size))
    if turning is not None:
        half, rest = turning // 2, list(range(turning, size))
        split = len(rest) // 2
        order = [*range(half), *rest[:split], *range(half, turning), *rest[split:]]

    def made(state: State) -> State:
        found = copied(state)
        for name, value in found.items():
            if "qkv_proj" in name:
                q, k, v = value.unflatten(0, (HEADS, 3, size)).unbind(1)
                found[name] = torch.cat([q[:, order].flatten(0, 1), k[:, order].flatten(0, 1), v.flatten(0, 1)])
        return found

    return made


GPT2 = renamed(
    {"transformer.wte": "model.embed_tokens", "transformer.wpe": "model.embed_positions",
     "transformer.ln_f": "model.norm", "lm_head": "lm_head"},
    "transformer.h",
    {"ln_1": "input_layernorm", "attn.c_attn": "self_attn.qkv_proj", "attn.c_proj": "self_attn.o_proj",
     "ln_2": "post_attention_layernorm", "mlp.c_fc": "mlp.up_proj", "mlp.c_proj": "mlp.down_proj"},
    transposed=True,
)  # fmt: skip
GPT1 = renamed(
    {"transformer.tokens_embed": "model.embed_tokens", "transformer.positions_embed": "model.embed_positions",
     "lm_head": "lm_head"},
    "transformer.h",
    {"ln_1": "post_attention_layernorm", "attn.c_attn": "self_attn.qkv_proj", "attn.c_proj": "self_attn.o_proj",
     "ln_2": "post_feedforward_layernorm", "mlp.c_fc": "mlp.up_proj", "mlp.c_proj": "mlp.down_proj"},
    transposed=True,
)  # fmt: skip
BLOCK = {
    "input_layernorm": "input_layernorm", "self_attention.query_key_value": "self_attn.qkv_proj",
    "self_attention.dense": "self_attn.o_proj", "post_attention_layernorm": "post_attention_layernorm",
    "mlp.dense_h_to_4h": "mlp.up_proj", "mlp.dense_4h_to_h": "mlp.down_proj",
}  # fmt: skip
FALCON = renamed(
    {"transformer.word_embeddings": "model.embed_tokens", "transformer.ln_f": "model.norm", "lm_head": "lm_head"},
    "transformer.h",
    BLOCK,
)
BLOOM = renamed(
    {"transformer.word_embeddings": "model.embed_tokens", "transformer.word_embeddings_layernorm": "model.embed_norm",
     "transformer.ln_f": "model.norm", "lm_head": "lm_head"},
    "transformer.h",
    BLOCK,
)  # fmt: skip
MPT = renamed(
    {"transformer.wte": "model.embed_tokens", "transformer.norm_f": "model.norm", "lm_head": "lm_head"},
    "transformer.blocks",
    {"norm_1": "input_layernorm", "attn.Wqkv": "self_attn.qkv_proj", "attn.out_proj": "self_attn.o_proj",
     "norm_2": "post_attention_layernorm", "ffn.up_proj": "mlp.up_proj", "ffn.down_proj": "mlp.down_proj"},
)  # fmt: skip
NEOX = renamed(
    {"gpt_neox.embed_in": "model.embed_tokens", "gpt_neox.final_layer_norm": "model.norm", "embed_out": "lm_head",
     "lm_head": "lm_head"},
    "gpt_neox.layers",
    {**{name.replace("self_attention.", "attention."): ours for name, ours in BLOCK.items()}},
)  # fmt: skip


def llama(family: str = "Llama", **keys: Any) -> Pair:
    """A family with Llama's names; `keys` mean the same to both."""
    same = {**SHAPE, "intermediate_size": 48, "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, **keys}  # fmt: skip
    if family in ("Mistral", "Mixtral"):
        same["sliding_window"] = keys.get("sliding_window")
    return pair(family, {**same, **IDS}, {**same, **OURS.get(family, {})}, stacked)


OURS: dict[str, dict] = {
    "Qwen2": {"attention_bias": True, "attention_out_bias": False},
    "Qwen3": {"qk_norm": True},
    "Mixtral": {"feed_forward": "experts"},
}


def smollm3() -> Pair:
    """Llama without positions: every layer of SmolLM3 may go without."""
    theirs = {**SHAPE, **IDS, "intermediate_size": 48, "num_key_value_heads": 2, "no_rope_layers": [0] * LAYERS,
              "tie_word_embeddings": False, "rms_norm_eps": 1e-5}  # fmt: skip
    ours = {"intermediate_size": 48, "num_key_value_heads": 2, "position": "none", "tie_word_embeddings": False}
    return pair("SmolLM3", theirs, ours, stacked)


def gemma2() -> Pair:
    """Sandwich norms, GeGLU, alternate windows, both soft-caps, scaled embeddings, a scale of its own."""
    same = {
        **SHAPE, "intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 5.0, "query_pre_attn_scalar": 11, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    }  # fmt: skip
    ours = {"norm_placement": "sandwich", "hidden_act": "gelu_pytorch_tanh", "embedding_multiplier": WIDTH**0.5}
    return pair("Gemma2", {**same, **IDS}, {**same, **ours}, gemma)


def falcon() -> Pair:
    theirs = {**SHAPE, **IDS, "multi_query": True, "parallel_attn": True, "alibi": False, "bias": False,
              "new_decoder_architecture": False}  # fmt: skip
    ours = {"norm": "layernorm", "norm_placement": "parallel", "num_key_value_heads": 1, "feed_forward": "plain",
            "hidden_act": "gelu"}  # fmt: skip
    return pair("Falcon", theirs, ours, FALCON)


def mpt() -> Pair:
    theirs = {"vocab_size": VOCAB, "d_model": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "max_seq_len": 64, **IDS}
    ours = {"norm": "layernorm", "norm_bias": False, "position": "alibi", "feed_forward": "plain",
            "hidden_act": "gelu"}  # fmt: skip
    return pair("Mpt", theirs, ours, MPT)


def bloom() -> Pair:
    theirs = {"vocab_size": VOCAB, "hidden_size": WIDTH, "n_layer": LAYERS, "n_head": HEADS, **IDS}
    ours = {**GPT, "position": "alibi", "embedding_norm": True}
    return pair("Bloom", theirs, ours, by_kind(BLOOM))


def neox() -> Pair:
    rope = {"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 0.5}
    theirs = {**SHAPE, **IDS, "intermediate_size": 48, "rope_parameters": rope, "tie_word_embeddings": False}
    ours = {"intermediate_size": 48, "norm": "layernorm", "norm_placement": "parallel_two_norms", **BIASED,
            "feed_forward": "plain", "hidden_act": "gelu", "partial_rotary_factor": 0.5,
            "tie_word_embeddings": False}  # fmt: skip
    return pair("GPTNeoX", theirs, ours, by_kind(NEOX, turning=4))


def scaled(rope_type: str, **given: float) -> Pair:
    """Llama with rotary angles scaled; "ntk" there is the larger base that it amounts to."""
    rope: dict[str, Any] = {"rope_type": rope_type, "rope_theta": 500.0, "factor": 4.0, **given}
    size, theirs = WIDTH // HEADS, rope
    if rope_type == "ntk":
        theirs = {"rope_type": "default", "rope_theta": 500.0 * 4.0 ** (size / (size - 2))}
    same = {**SHAPE, "intermediate_size": 48, "tie_word_embeddings": False, "rms_norm_eps": 1e-5}
    return pair("Llama", {**same, "rope_parameters": dict(theirs), **IDS}, {**same, "rope_parameters": rope}, stacked)


FAMILIES: dict[str, Callable[[], Pair]] = {
    "LLaMA": llama,
    "LLaMA, tied": lambda: llama(tie_word_embeddings=True),
    "LLaMA, grouped-query": lambda: llama(num_key_value_heads=2),
    "LLaMA, multi-query": lambda: llama(num_key_value_heads=1, rope_theta=500.0),
    "LLaMA, biases": lambda: llama(attention_bias=True, mlp_bias=True),
    "LLaMA, head_dim": lambda: llama(head_dim=16, num_key_value_heads=2),
    "LLaMA, ReLU": lambda: llama(hidden_act="relu"),
    "LLaMA, linear": lambda: scaled("linear"),
    "LLaMA, NTK": lambda: scaled("ntk"),
    "LLaMA, YaRN": lambda: scaled("yarn", original_max_position_embeddings=16),
    "LLaMA, llama3": lambda: scaled(
        "llama3", low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
    ),
    "GPT": lambda: pair("OpenAIGPT", OLD, {**GPT, "norm_placement": "post"}, GPT1),
    "GPT-2": lambda: pair("GPT2", OLD, GPT, GPT2),
    "GPT-2, ReLU": lambda: pair("GPT2", {**OLD, "activation_function": "relu"}, {**GPT, "hidden_act": "relu"}, GPT2),
    "Mistral": lambda: llama("Mistral", num_key_value_heads=2, sliding_window=5),
    "Qwen2": lambda: llama("Qwen2", num_key_value_heads=2),
    "Qwen3": lambda: llama("Qwen3", num_key_value_heads=2, head_dim=16),
    "SmolLM3": smollm3,
    "Gemma2": gemma2,
    "Falcon": falcon,
    "MPT": mpt,
    "BLOOM": bloom,
    "GPT-NeoX": neox,
    "Mixtral": lambda: llama("Mixtral", num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2),
}
"""A family, or one of its switches: the reference and our decoder with its weights."""
