"""Models whose layers are not all attention: those that are work, the others are named, and all follow transformers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from models import Loaded
from playground import Decoding, Origin, Run, branch, frames, generate
from playground.engine import plan_bytes
from playground.past import Past
from tests.frame_reader import unpack
from tests.playground.conftest import PROMPT, VOCAB_SIZE

DECODING = Decoding(max_new_tokens=8, temperature=0.0, stop_at_end=False)
SHAPE = {
    "vocab_size": VOCAB_SIZE, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "hidden_size": 48,
    "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2,
    "max_position_embeddings": 96, "initializer_range": 0.1,
}  # fmt: skip
STATES = {"mamba_n_heads": 6, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
ALTERNATE = ["linear_attention", "full_attention"] * 2

HYBRIDS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "Jamba": (
        {"num_experts": 2, "use_mamba_kernels": False, "attn_layer_period": 2, "attn_layer_offset": 1,
         "mamba_d_state": 8, "mamba_dt_rank": 4}, (1, 3)),
    "Bamba": ({**STATES, "attn_layer_indices": [1, 3]}, (1, 3)),
    "Zamba": (
        {"num_hidden_layers": 6, "num_key_value_heads": 6, "use_mamba_kernels": False, "attn_layer_period": 2,
         "attn_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 4, "n_mamba_heads": 2}, (2, 4)),
    "Zamba2": (
        {"num_key_value_heads": 6, "layers_block_type": ["linear_attention", "hybrid"] * 2, "num_mem_blocks": 1,
         "mamba_d_state": 8, "n_mamba_heads": 6, "mamba_headdim": 16, "mamba_ngroups": 1}, (1, 3)),
    "FalconH1": ({**STATES, "mamba_d_ssm": 96}, (0, 1, 2, 3)),
    "Lfm2": ({"layer_types": ["conv", "full_attention"] * 2, "block_multiple_of": 8}, (1, 3)),
    "GraniteMoeHybrid": ({**STATES, **EXPERTS, "layer_types": ALTERNATE, "shared_intermediate_size": 32}, (1, 3)),
    "NemotronH": (
        {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"], "head_dim": 8,
         "mamba_num_heads": 6, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 1, "n_routed_experts": 4,
         "num_experts_per_tok": 2, "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 32}, (2,)),
    "Qwen3Next": (
        {"head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
         "linear_value_head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
         "shared_expert_intermediate_size": 32}, (3,)),
}  # fmt: skip
"""Arguments beside those of `SHAPE`, and which layers attend."""
EXACT = 2e-5
"""Rounding of float32 in one layer of attention; states that are carried along multiply it, hence the factors."""


def _built(family: str, **options: Any) -> PreTrainedModel:
    torch.manual_seed(2)
    config = getattr(transformers, f"{family}Config")(**{**SHAPE, **HYBRIDS[family][0]})
    return AutoModelForCausalLM.from_config(config, **options).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def ran(tiny: Loaded) -> Callable[[str], Run]:
    made: dict[str, Run] = {}

    def run(family: str) -> Run:
        if family not in made:
            loaded = dataclasses.replace(tiny, model=_built(family))
            made[family] = generate(loaded, PROMPT, DECODING, chunk=5).finish()
        return made[family]

    return run


@torch.inference_mode()
def _reference(run: Run, family: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Logits, and the last step's rows of attention, of transformers' own loop: the prompt at once, then each token."""
    model = _built(family, attn_implementation="eager")
    cache = DynamicCache(config=model.config)
    ids, logits = torch.tensor([run.token_ids[:-1]]), []
    pieces = [ids[:, : run.prompt_length], *ids[:, run.prompt_length :].split(1, dim=1)]
    for piece in pieces:
        output = model(piece, past_key_values=cache, use_cache=True, output_attentions=True)
        logits.append(output.logits[0, -1].float().numpy())
    return logits, [each[0, :, -1].numpy() for each in output.attentions if each is not None]


@pytest.mark.parametrize("family", HYBRIDS)
def test_attention_layers_work_and_equal_those_of_transformers(family: str, ran: Callable[[str], Run]) -> None:
    run = ran(family)
    assert run.anatomy.attending == HYBRIDS[family][1]
    logits, rows = _reference(run, family)
    scale = max(1.0, float(np.abs(logits).max()))
    for step, expected in enumerate(logits):
        np.testing.assert_allclose(run.logits(step), expected, atol=5 * EXACT * scale)
    assert len(rows) == len(run.anatomy.attending)
    for layer, expected in zip(run.anatomy.attending, rows, strict=True):
        np.testing.assert_allclose(run.attention(layer)[:, -1], expected, atol=10 * EXACT)


@pytest.mark.parametrize("family", HYBRIDS)
def test_other_layers_are_named_and_have_no_map(family: str, ran: Callable[[str], Run]) -> None:
    run = ran(family)
    for layer, (heads, kind) in enumerate(zip(run.anatomy.heads, run.anatomy.kinds, strict=True)):
        assert bool(heads) != bool(kind)
        if not heads:
            with pytest.raises(ValueError, match=f"Layer {layer} has no attention .{kind}"):
                run.attention(layer)


@pytest.mark.parametrize("family", HYBRIDS)
def test_bytes_of_keys_values_and_states_are_those_of_the_tensors(family: str, ran: Callable[[str], Run]) -> None:
    run = ran(family)
    for layer, (keys, values) in enumerate(run.cache_bytes()):
        attends = layer in run.anatomy.attending
        of = run.cache.layers[layer]
        assert (keys, values) == ((of.keys.nbytes, of.values.nbytes) if attends else (0, 0))
    states = {
        id(state): state.nbytes
        for layer in run.cache.layers if hasattr(layer, "number_of_states")
        for each in (layer.conv_states, layer.recurrent_states) for state in each.values() if state is not None
    }  # fmt: skip
    assert run.cache.state_bytes() == sum(states.values()) > 0
    assert run.nbytes == plan_bytes(run.loaded, run.prompt_length, DECODING.max_new_tokens)


@pytest.mark.parametrize("family", HYBRIDS)
def test_messages_keep_a_place_for_every_layer(family: str, ran: Callable[[str], Run]) -> None:
    run, cursor = ran(family), frames.Cursor()
    begin = frames.begin(run, cursor)
    layers = len(run.anatomy.heads)
    assert [len(begin["model"][name]) for name in ("heads", "kv_heads", "value_dims", "kinds")] == [layers] * 4
    delta = frames.delta(run, cursor, frames.Focus(run.anatomy.attending[0], 1))
    norms = unpack(delta["norms"]).reshape(layers, 2, run.rows)
    assert [bool(each.any()) for each in norms] == [bool(heads) for heads in run.anatomy.heads]
    assert delta["caches"]["states"] == run.cache.state_bytes()
    if begin["rope"]:
        assert {i for i, table in enumerate(begin["rope"]["layers"]) if table >= 0} <= set(run.anatomy.attending)


def test_two_runs_of_one_hybrid_do_not_mix(tiny: Loaded, ran: Callable[[str], Run]) -> None:
    loaded = dataclasses.replace(tiny, model=_built("Lfm2"))
    runs = [generate(loaded, PROMPT, DECODING) for _ in range(2)]
    while not all(run.finished for run in runs):
        for run in runs:
            run.advance()
    assert runs[0].token_ids == runs[1].token_ids == ran("Lfm2").token_ids


@pytest.mark.parametrize("family", HYBRIDS)
def test_a_branch_of_a_hybrid_reads_the_text_again_and_equals_a_fresh_run(
    family: str, ran: Callable[[str], Run]
) -> None:
    run = ran(family)
    made = branch(run, 3, [17]).finish()
    assert made.origin == Origin(run.id, 0, 3, 1)
    ids = tuple(made.token_ids[: run.prompt_length + 3])
    past = Past(token_ids=ids, prompt_length=len(ids))
    fresh = Run(run.loaded, "", run.decoding, run.chunk, past).finish()
    size = np.abs(fresh.logits(0)).max()
    np.testing.assert_allclose(made.logits(3), fresh.logits(0), atol=1e-5 * size)
    assert len(made.token_ids) == len(ids) + 1 + run.decoding.max_new_tokens
    assert made.steps[:3] == run.steps[:3]
