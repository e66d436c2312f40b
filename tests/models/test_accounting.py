"""Sums against models, counters and published tables."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, DynamicCache

from models import DecoderConfig, DecoderForCausalLM
from models.accounting import (
    DEVICES,
    activation_bytes,
    bytes_read,
    decode_flops,
    intensity,
    kv_bytes,
    parameters,
    prefill_flops,
    tokens_per_second,
    weight_bytes,
)
from models.claims import claims
from models.presets import PRESETS
from tests.models.test_variants import SIZES, VARIANTS, build, tokens

GIB = 2**30


def on_meta(config: DecoderConfig) -> DecoderForCausalLM:
    with torch.device("meta"):
        return DecoderForCausalLM(config)


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_of_presets_are_those_of_the_model_and_of_its_parts(name: str) -> None:
    preset = PRESETS[name]
    model, found = on_meta(preset.config()), parameters(preset.config())
    assert found.total == sum(each.numel() for each in model.parameters())
    by_part = {"attention": 0, "feed_forward": 0, "router": 0, "norms": 0}
    for key, each in model.model.named_parameters():
        part = "norms" if "norm" in key else "router" if "mlp.gate." in key else None
        part = part or ("attention" if "self_attn" in key else "feed_forward" if ".mlp." in key else None)
        if part:
            by_part[part] += each.numel()
    assert by_part == {part: getattr(found, part) for part in by_part}
    assert found.embedding == model.model.embed_tokens.weight.numel()


@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if preset.parameters])
def test_presets_have_the_published_number_of_parameters(name: str) -> None:
    assert parameters(PRESETS[name].config()).total == PRESETS[name].parameters


FOREIGN = {
    "GPT": ("GPT2", {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
                     "max_position_embeddings": "n_positions", "vocab_size": "vocab_size"}),
    "LLaMA": ("Llama", {}), "Mistral": ("Mistral", {}), "Mixtral": ("Mixtral", {}), "Qwen2": ("Qwen2", {}),
    "Gemma 2 ": ("Gemma2", {}), "Gemma": ("Gemma", {}), "GPT-NeoX": ("GPTNeoX", {}), "Falcon": ("Falcon", {}),
    "MPT": ("Mpt", {"hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
                    "max_position_embeddings": "max_seq_len", "vocab_size": "vocab_size"}),
    "BLOOM": ("Bloom", {"hidden_size": "hidden_size", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
                        "vocab_size": "vocab_size"}),
}  # fmt: skip
"""Family by the start of a preset's name, and its own names of the sizes (by default, ours)."""
SAME = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
    "vocab_size", "max_position_embeddings", "tie_word_embeddings", "num_local_experts", "num_experts_per_tok",
)  # fmt: skip


def family_of(name: str) -> str:
    return max((start for start in FOREIGN if name.startswith(start)), key=len)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_as_large_as_the_model_of_transformers(name: str) -> None:
    family, names = FOREIGN[family_of(name)]
    config = PRESETS[name].config()
    keys: dict[str, Any] = {theirs: getattr(config, ours) for ours, theirs in names.items()}
    keys = keys or {key: getattr(config, key) for key in SAME if getattr(config, key) is not None}
    if family == "Falcon":
        new = config.norm_placement == "parallel_two_norms"
        keys.pop("head_dim")
        keys |= {"new_decoder_architecture": new, "num_kv_heads": config.num_key_value_heads, "parallel_attn": True,
                 "bias": False, "alibi": False, "multi_query": not new}  # fmt: skip
    with torch.device("meta"):
        reference = AutoModelForCausalLM.from_config(getattr(transformers, f"{family}Config")(**keys))
    reference.tie_weights()
    assert parameters(config).total == sum(each.numel() for each in reference.parameters())


@pytest.mark.parametrize("variant", VARIANTS)
def test_parameters_and_caches_of_every_variant(variant: str) -> None:
    model, ids = build(variant), tokens()
    assert parameters(model.config).total == sum(each.numel() for each in model.parameters())
    assert weight_bytes(model.config, 4) == sum(each.nbytes for each in model.parameters())
    for trimmed, cache in ((False, DynamicCache()), (True, DynamicCache(config=model.config))):
        with torch.inference_mode():
            model(ids, past_key_values=cache)
            model(ids[:, :1], past_key_values=cache)  # a window's cache is cut when it grows
        held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
        slides = trimmed * (model.config.layer_types or []).count("sliding_attention")
        # transformers keeps one position less than the window: the new token brings its own
        spare = slides * 2 * model.config.heads[1] * model.config.head_size * 4
        assert kv_bytes(model.config, 13, 4, trimmed=trimmed) == held + spare


@pytest.mark.parametrize("variant", VARIANTS)
def test_flops_of_every_variant_are_those_of_the_flop_counter(variant: str) -> None:
    model, ids = build(variant), tokens()
    model.set_attn_implementation("eager")  # plain matrix products: all T * T pairs
    with torch.inference_mode():
        with FlopCounterMode(display=False) as prefill:
            cache = model(ids, past_key_values=DynamicCache()).past_key_values
        with FlopCounterMode(display=False) as decode:
            model(ids[:, :1], past_key_values=cache)
    assert prefill_flops(model.config, 12).total == prefill.get_total_flops()
    assert decode_flops(model.config, 13, masked=False).total == decode.get_total_flops()


@pytest.mark.parametrize("window", [None, 3, 40])
def test_pairs_that_a_mask_leaves_are_counted_one_by_one(window: int | None) -> None:
    config = DecoderConfig(**{**SIZES, "sliding_window": window})
    kept = sum(min(row + 1, window or row + 1) for row in range(12))
    per_pair = 4 * config.num_attention_heads * config.head_size
    assert prefill_flops(config, 12, masked=True).scores == 2 * kept * per_pair
    steps = sum(decode_flops(config, length).scores for length in range(1, 13))
    assert steps == prefill_flops(config, 12, masked=True).scores


def test_the_tables_of_the_texts_come_out() -> None:
    """Parameter table and cache sizes; LLaMA-2 7B keeps 2 GiB at 4,096 tokens, a quarter with 8 heads."""
    totals = {"GPT-2 Large": 774e6, "LLaMA-2 7B": 6.7e9, "LLaMA-2 70B": 69e9, "GPT-3 175B": 175e9}
    for name, total in totals.items():
        assert parameters(PRESETS[name].config()).total == pytest.approx(total, rel=6e-3)
    seven = PRESETS["LLaMA-2 7B"]
    assert kv_bytes(seven.config(), 4096) == 2 * GIB
    assert kv_bytes(seven.config(num_key_value_heads=8), 4096) == GIB // 2
    assert kv_bytes(seven.config(), 32768) == 16 * GIB
    assert kv_bytes(PRESETS["GPT-3 175B"].config(), 2048) == 9 * GIB
    three = PRESETS["GPT-3 175B"].config()
    assert parameters(three).embedding == 50257 * 12288
    layer = parameters(three).attention // 96, parameters(three).feed_forward // 96
    assert (round(layer[0] / 1e6), round(layer[1] / 1e9, 1)) == (604, 1.2)


def test_where_a_text_is_wrong_the_right_number_is_given() -> None:
    found = {claim.topic: claim for claim in claims()}
    wrong = {topic: claim.found for topic, claim in found.items() if not claim.right}
    assert wrong == {
        "LLaMA-2 70B as 12 L C^2 + V C": "68.98 billion",
        "One feed-forward layer of LLaMA-2 7B": "135,266,304",
        "All feed-forward layers of LLaMA-2 7B": "4.329 billion",
        "Attention's T^2 part, one layer of LLaMA-2 7B at T = 4,096": "4 T^2 C = 275 GFLOP",
        "Where GPT-3 norms": "before each part (pre-norm)",
        "Heads of LLaMA-2": "7B and 13B: 32 for 32, multi-head; 70B: 8 for 64",
        "Largest vocabulary in use": "256,000 (Gemma)",
    }
    assert found["Parameters of LLaMA-2 70B"].found == "68,976,648,192"
    assert all(claim.why for claim in found.values() if not claim.right)


def test_a_step_reads_the_weights_it_uses_and_the_cache_it_sees() -> None:
    seven = PRESETS["LLaMA-2 7B"].config()
    used = parameters(seven).total - (seven.vocab_size - 1) * seven.hidden_size  # one row of the embedding
    assert bytes_read(seven, 4096) == 2 * used + 2 * GIB
    mixtral = PRESETS["Mixtral 8x7B"].config()
    assert parameters(mixtral, active=True).total == pytest.approx(12.9e9, rel=0.01)  # Mixtral, section 1: 13B
    assert bytes_read(mixtral, 1) < 2 * 13e9
    gpt2 = PRESETS["GPT-2 small"].config()
    assert bytes_read(gpt2, 1, 4) == pytest.approx(498e6, rel=0.01)  # all but the table of positions: 498 MB


def test_decoding_is_bound_by_memory_and_the_floor_follows_from_the_bytes() -> None:
    seven, card = PRESETS["LLaMA-2 7B"].config(), DEVICES["NVIDIA A100 80 GB SXM"]
    assert intensity(seven, 1) == pytest.approx(1.0, rel=0.01)  # 2 FLOPs for each weight of 2 bytes
    assert intensity(seven, 1) < card.flops / card.bandwidth
    assert tokens_per_second(seven, card, 1) == pytest.approx(card.bandwidth / bytes_read(seven, 1))


@pytest.mark.parametrize("name", ["pre-norm", "sandwich norm", "GELU", "grouped-query", "parallel, one norm"])
def test_activation_memory_is_estimated_to_a_quarter(name: str) -> None:
    """Against what autograd in fact keeps of one training pass, each storage counted once."""
    model, length = build(name, hidden_size=64, intermediate_size=160, num_hidden_layers=4, vocab_size=53), 32
    ids, kept = tokens(length), {}
    weights = {each.untyped_storage().data_ptr() for each in model.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage  # held, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model.train()(ids, labels=ids, use_cache=False).loss
    measured = sum(storage.nbytes() for storage in kept.values())
    assert loss.requires_grad
    assert activation_bytes(model.config, length, 4) == pytest.approx(measured, rel=0.25)
