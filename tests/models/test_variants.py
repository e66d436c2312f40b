"""Every variant of the decoder: causal, cached as uncached, saved and loaded, compiled, trained, watched.

At the end of a test run tests/models/conftest.py prints these results as a table, with the family of transformers that
the variant was compared with in test_decoder_equality.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from models import DecoderConfig, DecoderForCausalLM
from models.capability import position_scheme
from models.configuration import CHOICES, ROPE_KEYS
from models.decoder import ACTIVATIONS, FEED_FORWARDS, NORMS, PLACEMENTS, POSITIONS
from models.position_formulas import ROPE_SCALINGS
from tests.models.families import FAMILIES

SIZES = {
    "vocab_size": 53, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 32, "initializer_range": 0.2,
}  # fmt: skip
GPT2 = {"norm": "layernorm", "position": "learned", "feed_forward": "plain", "hidden_act": "gelu_new"}


def rope(kind: str, **given: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 100.0, **given}}


VARIANTS: dict[str, tuple[dict[str, Any], str]] = {
    "RMSNorm": ({}, "LLaMA"),
    "LayerNorm": ({"norm": "layernorm"}, "GPT-2"),
    "LayerNorm without bias": ({"norm": "layernorm", "norm_bias": False}, "MPT"),
    "pre-norm": ({"norm_placement": "pre"}, "LLaMA"),
    "post-norm": ({"norm_placement": "post"}, "GPT"),
    "sandwich norm": ({"norm_placement": "sandwich"}, "Gemma2"),
    "parallel, one norm": ({"norm_placement": "parallel"}, "Falcon"),
    "parallel, two norms": ({"norm_placement": "parallel_two_norms"}, "GPT-NeoX"),
    "embedding norm": ({"embedding_norm": True}, "BLOOM"),
    "embedding multiplier": ({"embedding_multiplier": 5.5}, "Gemma2"),
    "learned positions": ({"position": "learned"}, "GPT-2"),
    "sinusoidal positions": ({"position": "sinusoidal"}, ""),
    "RoPE": ({"position": "rope"}, "LLaMA"),
    "RoPE, partial": ({"partial_rotary_factor": 0.5}, "GPT-NeoX"),
    "RoPE, linear": (rope("linear", factor=4.0), "LLaMA, linear"),
    "RoPE, NTK": (rope("ntk", factor=4.0), "LLaMA, NTK"),
    "RoPE, YaRN": (rope("yarn", factor=4.0, original_max_position_embeddings=16), "LLaMA, YaRN"),
    "RoPE, llama3": (
        rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16),
        "LLaMA, llama3",
    ),
    "ALiBi": ({"position": "alibi"}, "MPT"),
    "no positions": ({"position": "none"}, "SmolLM3"),
    "multi-head": ({"num_key_value_heads": 4}, "LLaMA"),
    "grouped-query": ({"num_key_value_heads": 2}, "LLaMA, grouped-query"),
    "multi-query": ({"num_key_value_heads": 1}, "LLaMA, multi-query"),
    "sliding window": ({"sliding_window": 3}, "Mistral"),
    "windows in some layers": (
        {"sliding_window": 3, "layer_types": ["full_attention", "sliding_attention"], "num_key_value_heads": 2},
        "Gemma2",
    ),
    "QK-norm": ({"qk_norm": True, "num_key_value_heads": 2}, "Qwen3"),
    "score soft-cap": ({"attn_logit_softcapping": 2.0}, "Gemma2"),
    "logit soft-cap": ({"final_logit_softcapping": 2.0}, "Gemma2"),
    "ReLU": ({**GPT2, "hidden_act": "relu"}, "GPT-2, ReLU"),
    "GELU": ({**GPT2, "hidden_act": "gelu"}, "GPT-NeoX"),
    "GeGLU": ({"hidden_act": "gelu"}, "Gemma2"),
    "SwiGLU": ({"feed_forward": "gated"}, "LLaMA"),
    "experts": ({"feed_forward": "experts", "num_local_experts": 4, "num_experts_per_tok": 2}, "Mixtral"),
    "tied head": ({"tie_word_embeddings": True}, "LLaMA, tied"),
    "own head": ({"tie_word_embeddings": False}, "LLaMA"),
    "biases": ({"attention_bias": True, "mlp_bias": True}, "LLaMA, biases"),
    "biases on q, k, v": ({"attention_bias": True, "attention_out_bias": False}, "Qwen2"),
    "ALiBi and soft-cap": ({"position": "alibi", "attn_logit_softcapping": 2.0}, ""),
    "everything": (
        {"norm_placement": "sandwich", "qk_norm": True, "partial_rotary_factor": 0.5, "sliding_window": 3,
         "num_key_value_heads": 2, "attn_logit_softcapping": 2.0, "feed_forward": "experts", "num_local_experts": 3,
         "layer_types": ["sliding_attention", "full_attention"], "attention_bias": True, "embedding_norm": True},
        "",
    ),
}  # fmt: skip
"""A variant: the switches that make it, and the family in `FAMILIES` that has it (empty: none in transformers)."""

every_variant = pytest.mark.parametrize("variant", VARIANTS)


def build(variant: str, **changes: Any) -> DecoderForCausalLM:
    torch.manual_seed(0)
    model = DecoderForCausalLM(DecoderConfig(**{**SIZES, **VARIANTS[variant][0], **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def tokens(count: int = 12) -> torch.Tensor:
    return torch.randint(0, SIZES["vocab_size"], (1, count), generator=torch.Generator().manual_seed(1))


def test_every_choice_is_in_the_table_and_built() -> None:
    assert set(CHOICES["norm"]) == set(NORMS)
    assert set(CHOICES["norm_placement"]) == set(PLACEMENTS)
    assert set(CHOICES["position"]) == set(POSITIONS)
    assert set(CHOICES["feed_forward"]) == set(FEED_FORWARDS)
    assert set(CHOICES["hidden_act"]) == set(ACTIVATIONS)
    assert set(ROPE_KEYS) == set(ROPE_SCALINGS)
    built = [DecoderConfig(**{**SIZES, **switches}) for switches, _ in VARIANTS.values()]
    for key in ("norm", "norm_placement", "position", "feed_forward"):
        assert {getattr(config, key) for config in built} == set(CHOICES[key])
    assert {config.rope_parameters["rope_type"] for config in built if config.rope_parameters} == set(ROPE_KEYS)
    assert {family for _, family in VARIANTS.values()} - {""} <= set(FAMILIES)


@every_variant
def test_causal(variant: str) -> None:
    model, ids, cut = build(variant), tokens(), 7
    changed = ids.clone()
    changed[:, cut:] = (changed[:, cut:] + 1) % SIZES["vocab_size"]
    with torch.inference_mode():
        before, after = model(ids).logits, model(changed).logits
    torch.testing.assert_close(before[:, :cut], after[:, :cut], atol=1e-6, rtol=1e-6)
    assert not torch.allclose(before[:, cut:], after[:, cut:], atol=1e-3)


@every_variant
def test_cached(variant: str) -> None:
    """In one pass, in pieces, a token at a time, and with a cache that drops what a window has left behind."""
    model, ids = build(variant), tokens()
    with torch.inference_mode():
        whole = model(ids, use_cache=False).logits
        for cache in (DynamicCache(), DynamicCache(config=model.config)):
            parts = [model(ids[:, :5], past_key_values=cache).logits, model(ids[:, 5:7], past_key_values=cache).logits]
            parts += [model(ids[:, i : i + 1], past_key_values=cache).logits for i in range(7, 12)]
            torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-5, rtol=1e-5)


def test_the_card_names_the_position_scheme() -> None:
    schemes = {
        "RoPE": "rotary (RoPE), theta 10000", "RoPE, linear": "rotary (RoPE), theta 100, scaled (linear)",
        "learned positions": "learned position embeddings", "no positions": "none found",
        "sinusoidal positions": "sinusoids added to the embeddings", "ALiBi": "ALiBi (linear biases on the scores)",
    }  # fmt: skip
    assert {variant: position_scheme(build(variant)) for variant in schemes} == schemes


@every_variant
def test_eager(variant: str) -> None:
    model, ids = build(variant), tokens()
    with torch.inference_mode():
        fused = model(ids).logits
        model.set_attn_implementation("eager")
        torch.testing.assert_close(model(ids).logits, fused, atol=1e-5, rtol=1e-5)


@every_variant
def test_saved(variant: str, tmp_path: Path) -> None:
    model, ids = build(variant), tokens()
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    wanted = {**model.config.to_dict(), "_name_or_path": None, "architectures": None, "dtype": None}
    assert {key: again.config.to_dict()[key] for key in wanted if wanted[key] is not None} == {
        key: value for key, value in wanted.items() if value is not None
    }
    with torch.inference_mode():
        torch.testing.assert_close(again(ids).logits, model(ids).logits, atol=1e-6, rtol=1e-6)
    for name, stored in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], stored), name


@every_variant
def test_compiled(variant: str) -> None:
    """Traced by dynamo, in one graph but for experts, whose number of tokens is only known when they are chosen."""
    torch.compiler.reset()
    model, ids = build(variant, num_hidden_layers=1, layer_types=None), tokens()
    whole = VARIANTS[variant][0].get("feed_forward") != "experts"
    compiled = torch.compile(model, fullgraph=whole, backend="eager")
    with torch.inference_mode():
        got, wanted = compiled(ids, use_cache=False).logits, model(ids, use_cache=False).logits
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


@every_variant
def test_gradients(variant: str) -> None:
    """They reach every parameter, and a step along them lowers the loss."""
    model, ids = build(variant, initializer_range=0.02).train(), tokens()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05), []
    for _ in range(4):
        loss = model(ids, labels=ids, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        missing = [name for name, each in model.named_parameters() if each.grad is None or not each.grad.abs().sum()]
        assert not missing
        optimizer.step()
    assert losses[-1] < losses[0]
