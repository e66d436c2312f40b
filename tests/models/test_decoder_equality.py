"""With copied weights the decoder is LlamaForCausalLM or GPT2LMHeadModel."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from models import DecoderConfig, DecoderForCausalLM

LLAMA = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


def randomise(model: torch.nn.Module) -> torch.nn.Module:
    """Give every parameter, norms and biases too, a value that matters."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if "norm" in name or "ln_" in name else 0.2 * noise)
    return model.eval()


def from_llama(state: dict[str, torch.Tensor], layers: int) -> dict[str, torch.Tensor]:
    """Llama's tensors under our names: q, k, v and gate, up are stacked into one matrix each."""
    state = dict(state)
    for layer in range(layers):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        for kind in ("weight", "bias"):
            if f"{attention}.q_proj.{kind}" in state:
                parts = [state.pop(f"{attention}.{name}_proj.{kind}") for name in "qkv"]
                state[f"{attention}.qkv_proj.{kind}"] = torch.cat(parts)
            if f"{mlp}.gate_proj.{kind}" in state:
                parts = [state.pop(f"{mlp}.{name}_proj.{kind}") for name in ("gate", "up")]
                state[f"{mlp}.gate_up_proj.{kind}"] = torch.cat(parts)
    return state


GPT2_NAMES = {
    "ln_1": "input_layernorm",
    "attn.c_attn": "self_attn.qkv_proj",
    "attn.c_proj": "self_attn.o_proj",
    "ln_2": "post_attention_layernorm",
    "mlp.c_fc": "mlp.up_proj",
    "mlp.c_proj": "mlp.down_proj",
}


def from_gpt2(state: dict[str, torch.Tensor], layers: int) -> dict[str, torch.Tensor]:
    """GPT-2's tensors under our names; its Conv1D stores matrices transposed."""
    ours = {
        "model.embed_tokens.weight": state["transformer.wte.weight"],
        "model.embed_positions.weight": state["transformer.wpe.weight"],
        "model.norm.weight": state["transformer.ln_f.weight"],
        "model.norm.bias": state["transformer.ln_f.bias"],
        "lm_head.weight": state["lm_head.weight"],
    }
    for layer in range(layers):
        for theirs, name in GPT2_NAMES.items():
            weight = state[f"transformer.h.{layer}.{theirs}.weight"]
            ours[f"model.layers.{layer}.{name}.weight"] = weight if weight.dim() == 1 else weight.T
            ours[f"model.layers.{layer}.{name}.bias"] = state[f"transformer.h.{layer}.{theirs}.bias"]
    return ours


def llama_pair(**changes) -> tuple[LlamaForCausalLM, DecoderForCausalLM]:
    keys = {**LLAMA, **changes}
    llama = randomise(LlamaForCausalLM(LlamaConfig(**keys, rms_norm_eps=1e-5)))
    ours = DecoderForCausalLM(DecoderConfig(**keys, rms_norm_eps=1e-5)).eval()
    ours.load_state_dict(from_llama(llama.state_dict(), keys["num_hidden_layers"]))
    return llama, ours


def gpt2_pair() -> tuple[GPT2LMHeadModel, DecoderForCausalLM]:
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=61, n_embd=32, n_layer=3, n_head=4, n_positions=64))
    config = DecoderConfig(
        **{**LLAMA, "intermediate_size": 128},
        norm="layernorm",
        position="learned",
        feed_forward="plain",
        hidden_act="gelu_new",
        attention_bias=True,
        mlp_bias=True,
    )
    ours = DecoderForCausalLM(config).eval()
    ours.load_state_dict(from_gpt2(randomise(gpt2).state_dict(), 3))
    return gpt2, ours


PAIRS = {
    "multi-head": lambda: llama_pair(tie_word_embeddings=False),
    "grouped-query": lambda: llama_pair(num_key_value_heads=2, tie_word_embeddings=True),
    "multi-query": lambda: llama_pair(num_key_value_heads=1, rope_theta=500.0, tie_word_embeddings=False),
    "biases": lambda: llama_pair(attention_bias=True, mlp_bias=True, tie_word_embeddings=False),
    "head_dim": lambda: llama_pair(head_dim=16, num_key_value_heads=2, tie_word_embeddings=False),
    "gpt2": gpt2_pair,
}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", PAIRS)
def test_logits_equal_the_reference(name: str, attention: str) -> None:
    reference, ours = PAIRS[name]()
    reference.set_attn_implementation(attention)
    ours.set_attn_implementation(attention)
    ids = torch.randint(0, 61, (2, 23), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        torch.testing.assert_close(ours(ids).logits, reference(ids).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["grouped-query", "gpt2"])
def test_padded_batches_equal_the_reference(name: str) -> None:
    reference, ours = PAIRS[name]()
    ids = torch.randint(0, 61, (2, 9), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    with torch.inference_mode():
        got, wanted = ours(**inputs).logits, reference(**inputs).logits
    torch.testing.assert_close(got[mask.bool()], wanted[mask.bool()], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["grouped-query", "gpt2"])
def test_greedy_text_equals_the_reference(name: str) -> None:
    reference, ours = PAIRS[name]()
    ids = torch.randint(0, 61, (1, 5), generator=torch.Generator().manual_seed(3))
    settings = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    assert ours.generate(ids, **settings).tolist() == reference.generate(ids, **settings).tolist()


@pytest.mark.parametrize("name", ["grouped-query", "gpt2"])
def test_attentions_equal_the_reference(name: str) -> None:
    reference, ours = PAIRS[name]()
    ids = torch.randint(0, 61, (1, 11), generator=torch.Generator().manual_seed(4))
    for model in (reference, ours):
        model.set_attn_implementation("eager")
    with torch.inference_mode():
        got = ours(ids, output_attentions=True, output_hidden_states=True)
        wanted = reference(ids, output_attentions=True, output_hidden_states=True)
    assert len(got.attentions) == len(wanted.attentions) == 3
    for a, b in zip(got.attentions + got.hidden_states, wanted.attentions + wanted.hidden_states, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
