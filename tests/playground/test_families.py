"""Decoders of many families against transformers' own attention: nothing here is known to the engine by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

from models import Loaded
from playground import Decoding, Run, frames, generate, rope
from tests.playground.conftest import PROMPT, VOCAB_SIZE

DECODING = Decoding(max_new_tokens=10, temperature=0.0, stop_at_end=False)
TOKENS = {"vocab_size": VOCAB_SIZE, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GROUPED = {
    **TOKENS, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 96, "initializer_range": 0.2,
}  # fmt: skip
PLAIN = {name: value for name, value in GROUPED.items() if name != "num_key_value_heads"}
OLD = {**TOKENS, "n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 96, "initializer_range": 0.2}
MIXED = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
EXPERTS = {"num_experts_per_tok": 2}

FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": GROUPED,
    "Mistral": {**GROUPED, "sliding_window": 6},
    "Qwen2": GROUPED,
    "Qwen3": {**GROUPED, "head_dim": 16},
    "Gemma2": {**GROUPED, "head_dim": 8, "sliding_window": 6, "attn_logit_softcapping": 3.0},
    "Gemma3Text": {**GROUPED, "head_dim": 8, **MIXED},
    "GPTNeoX": {**PLAIN, "rotary_pct": 0.5},
    "Phi3": GROUPED,
    "Phi": {**GROUPED, "partial_rotary_factor": 0.5},
    "Mixtral": {**GROUPED, "num_local_experts": 4, **EXPERTS},
    "GptOss": {**GROUPED, "head_dim": 8, "num_local_experts": 4, **EXPERTS, **MIXED},
    "Cohere2": {**GROUPED, **MIXED},
    "SmolLM3": GROUPED,
    "Llama4Text": {
        **GROUPED, "head_dim": 8, "num_local_experts": 2, "intermediate_size_mlp": 64, "attention_chunk_size": 8
    },
    "DeepseekV3": {
        **PLAIN, "num_key_value_heads": 6, "n_routed_experts": 4, **EXPERTS, "n_group": 1, "topk_group": 1,
        "moe_intermediate_size": 32, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 1,
    },
    "OPT": {
        **TOKENS, "hidden_size": 48, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 6,
        "max_position_embeddings": 96, "word_embed_proj_dim": 48, "init_std": 0.2,
    },
    "GPTBigCode": {**OLD, "multi_query": True},
    "Falcon": {
        **TOKENS, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "multi_query": True,
        "parallel_attn": True, "alibi": False, "new_decoder_architecture": False, "initializer_range": 0.2,
    },
    "Falcon, ALiBi": {
        **TOKENS, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "multi_query": False,
        "parallel_attn": False, "alibi": True, "new_decoder_architecture": False, "initializer_range": 0.2,
    },
    "Falcon, grouped": {
        **TOKENS, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "num_kv_heads": 2,
        "alibi": False, "new_decoder_architecture": True, "initializer_range": 0.2,
    },
    "Gemma3nText": {
        **GROUPED, "num_hidden_layers": 4, "head_dim": 8, "num_kv_shared_layers": 2, "laurel_rank": 8,
        "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB_SIZE, "altup_num_inputs": 2,
    },
    "Mpt": {**TOKENS, "d_model": 48, "n_layers": 2, "n_heads": 6, "max_seq_len": 96, "initializer_range": 0.2},
    "Bloom": {**TOKENS, "hidden_size": 48, "n_layer": 2, "n_head": 6, "initializer_range": 0.2},
    "GPTJ": {**OLD, "rotary_dim": 4},
    "GPTNeo": {
        **TOKENS, "hidden_size": 48, "num_layers": 2, "attention_types": [[["global", "local"], 1]], "num_heads": 6,
        "max_position_embeddings": 96, "window_size": 6, "initializer_range": 0.2,
    },
    "XGLM": {
        **TOKENS, "d_model": 48, "ffn_dim": 64, "num_layers": 2, "attention_heads": 6, "max_position_embeddings": 96,
        "init_std": 0.2,
    },
}  # fmt: skip
"""Configuration class (without `Config`; a variant after a comma) and its arguments."""

WATCHED = {"Falcon", "Falcon, ALiBi", "Falcon, grouped", "Mpt", "Bloom", "GPTJ", "GPTNeo", "XGLM"}
"""Families that compute attention in code of their own: patterns can be had, queries cannot."""


def _built(family: str, **options: Any) -> PreTrainedModel:
    torch.manual_seed(2)
    config = getattr(transformers, f"{family.split(',')[0]}Config")(**FAMILIES[family])
    return AutoModelForCausalLM.from_config(config, **options).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def ran(tiny: Loaded) -> Callable[[str], Run]:
    """A finished run of a tiny random model of a family, its prompt read in pieces."""
    made: dict[str, Run] = {}

    def run(family: str) -> Run:
        if family not in made:
            loaded = dataclasses.replace(tiny, model=_built(family))
            made[family] = generate(loaded, PROMPT, DECODING, chunk=5).finish()
        return made[family]

    return run


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"Falcon, ALiBi"}))
def test_maps_and_logits_equal_those_of_transformers(family: str, ran: Callable[[str], Run]) -> None:
    run = ran(family)
    eager = _built(family, attn_implementation="eager")
    with torch.no_grad():
        output = eager(torch.tensor([run.token_ids[:-1]]), output_attentions=True, use_cache=False)
    assert len(output.attentions) == len(run.anatomy.heads)
    for layer, expected in enumerate(output.attentions):
        np.testing.assert_allclose(run.attention(layer), expected[0].numpy(), atol=2e-5)
    for step in range(len(run.steps)):
        expected = output.logits[0, run.prompt_length - 1 + step].numpy()
        np.testing.assert_allclose(run.logits(step), expected, atol=1e-4)


def test_falcon_with_linear_biases_equals_the_fused_path(ran: Callable[[str], Run]) -> None:
    """transformers' eager Falcon adds its ALiBi bias twice, so its fused path is what to compare with.

    That gives no patterns; but patterns times values must be what the layer hands to its output projection.
    """
    run, model, mixed = ran("Falcon, ALiBi"), _built("Falcon, ALiBi"), []
    for block in model.transformer.h:
        block.self_attention.dense.register_forward_pre_hook(lambda _, args: mixed.append(args[0][0]))
    with torch.no_grad():
        logits = model(torch.tensor([run.token_ids[:-1]]), use_cache=False).logits[0]
    for step in range(len(run.steps)):
        np.testing.assert_allclose(run.logits(step), logits[run.prompt_length - 1 + step].numpy(), atol=1e-4)
    for layer, expected in enumerate(mixed):
        values = run.cache.values_at(layer, run.rows).numpy()  # (H, T, D)
        found = (run.attention(layer) @ values).transpose(1, 0, 2).reshape(run.rows, -1)
        np.testing.assert_allclose(found, expected.numpy(), atol=2e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_messages_speak_for_every_family(family: str, ran: Callable[[str], Run]) -> None:
    run, cursor = ran(family), frames.Cursor()
    begin = frames.begin(run, cursor)
    assert (begin["rope"] is None) == bool(begin["rope_reason"])
    assert frames.delta(run, cursor, frames.Focus(1, 2))["rows"]["count"] == run.rows
    assert frames.focus(run, 0, 1)["map"]["size"] == run.rows
    tensors = [(layer.keys, layer.values) for layer in run.cache.layers]  # none where layers share those of others
    assert run.cache_bytes() == tuple((0, 0) if k is None else (k.nbytes, v.nbytes) for k, v in tensors)


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - WATCHED))
def test_a_rotation_read_off_the_model_turns_back_and_forth(family: str, ran: Callable[[str], Run]) -> None:
    """At position 0 nothing turns; lengths of pairs never change but by the model's own scaling."""
    run = ran(family)
    rotary = run.anatomy.rotary
    if rotary is None:
        assert rope.reason_without(run).endswith(".")
        return
    for layer in rotary.layers:
        of = rope.pairs(rotary, layer)
        before, after = run.queries(layer, rotated=False), run.queries(layer)
        np.testing.assert_allclose(before[:, 0], after[:, 0] / _lengths(of, after.shape[-1]), atol=1e-5)
        for i, j in zip(of.first.tolist(), of.second.tolist(), strict=True):
            turned = np.hypot(after[..., i], after[..., j])
            np.testing.assert_allclose(
                np.hypot(before[..., i], before[..., j]) * of.scaling, turned, rtol=1e-4, atol=1e-5
            )


def _lengths(of: rope.Pairs, head_dim: int) -> np.ndarray:
    """The model's scaling on the dimensions that turn, 1 on the others: (D,)."""
    lengths = np.ones(head_dim)
    lengths[of.first.tolist() + of.second.tolist()] = of.scaling
    return lengths


def test_layers_with_their_own_angles_get_tables_of_their_own(ran: Callable[[str], Run]) -> None:
    rope_part = frames.begin(ran("Gemma3Text"), frames.Cursor())["rope"]
    assert rope_part["layers"] == [0, 1, 0]
    assert [table["theta"] for table in rope_part["tables"]] == [10_000.0, 1_000_000.0]


def test_layers_without_rotation_are_told_apart(ran: Callable[[str], Run]) -> None:
    assert frames.begin(ran("Cohere2"), frames.Cursor())["rope"]["layers"] == [0, -1, 0]


@pytest.mark.parametrize("family", sorted(WATCHED))
def test_queries_that_cannot_be_had_are_refused_in_one_sentence(family: str, ran: Callable[[str], Run]) -> None:
    with pytest.raises(ValueError, match="queries cannot be had"):
        ran(family).queries(0)


def test_memory_of_watched_patterns_is_planned_for(tiny: Loaded) -> None:
    from playground.engine import plan_bytes

    loaded = dataclasses.replace(tiny, model=_built("Bloom"))
    run = generate(loaded, PROMPT, DECODING).finish()
    assert run.nbytes == plan_bytes(loaded, run.prompt_length, DECODING.max_new_tokens)


REFUSED = {
    "Mamba": ({}, "has no layer with attention, so there is nothing to show: its 2 layers are state space"),
    "RecurrentGemma": (
        {"num_hidden_layers": 3, "num_attention_heads": 6, "lru_width": 48},
        "keeps the state of 2 layers inside the model, where two runs would mix",
    ),
    "MiniMax": ({"num_attention_heads": 6, "num_local_experts": 2}, "does not work with a KV cache of this program"),
    "OpenAIGPT": ({"n_embd": 48, "n_layer": 2, "n_head": 6}, "does not work with a KV cache of this program"),
}


@pytest.mark.parametrize("family", REFUSED)
def test_a_model_that_cannot_be_shown_is_refused_in_one_sentence(family: str, tiny: Loaded) -> None:
    extra, words = REFUSED[family]
    shape = {**TOKENS, "num_hidden_layers": 2, "hidden_size": 48, "intermediate_size": 64}
    model = AutoModelForCausalLM.from_config(getattr(transformers, f"{family}Config")(**{**shape, **extra})).eval()
    with pytest.raises(ValueError, match=words) as caught:
        generate(dataclasses.replace(tiny, model=model), PROMPT)
    assert "\n" not in str(caught.value)


ROTATED = ("Llama", "Qwen3", "GPTNeoX", "Phi3", "Phi", "Gemma3Text", "DeepseekV3", "Cohere2", "GptOss", "Mixtral")


@pytest.mark.parametrize("family", ROTATED)
def test_vectors_before_and_after_rotation_are_those_of_the_familys_own_function(
    family: str, ran: Callable[[str], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes into the family's rotation, and what comes out, at every layer of one pass over the whole text."""
    import sys

    run, model, seen = ran(family), _built(family), []
    module = sys.modules[type(model.base_model).__module__]
    for name, function in list(vars(module).items()):
        if name.startswith("apply_rotary") and callable(function):
            original = function

            def noting(q: Any, k: Any, *args: Any, original: Any = original, **kwargs: Any) -> Any:
                turned = original(q, k, *args, **kwargs)
                seen.append((q, k, *turned))
                return turned

            monkeypatch.setattr(module, name, noting)
    with torch.no_grad():
        model(torch.tensor([run.token_ids[:-1]]), use_cache=False)
    rotary = run.anatomy.rotary
    assert rotary is not None
    assert len(seen) == len(rotary.layers)
    place = slice(rotary.start, rotary.start + rotary.dim)
    for layer, (q, k, q_turned, k_turned) in zip(sorted(rotary.layers), seen, strict=True):
        if family == "DeepseekV3":  # its function also brings interleaved pairs into two halves
            q, k = (torch.cat((each[..., ::2], each[..., 1::2]), -1) for each in (q, k))
        for rotated, queries, keys in ((False, q, k), (True, q_turned, k_turned)):
            np.testing.assert_allclose(run.queries(layer, rotated)[..., place], queries[0].numpy(), atol=2e-5)
            found = run.keys(layer, rotated)[..., place]
            np.testing.assert_allclose(found, np.broadcast_to(keys[0].numpy(), found.shape), atol=2e-5)
