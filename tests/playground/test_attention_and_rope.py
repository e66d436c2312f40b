"""Maps and rotations against transformers' eager attention and against sums done by hand."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, MistralConfig, MistralForCausalLM

from models import Loaded
from playground import Decoding, Run, attention, generate, rope
from playground.anatomy import prepare
from playground.capture import IMPLEMENTATION
from tests.playground.conftest import PROMPT

DECODING = Decoding(max_new_tokens=16, temperature=0.9, seed=3, stop_at_end=False)


@pytest.fixture
def run(loaded: Loaded) -> Run:
    return generate(loaded, PROMPT, DECODING, chunk=5).finish()


@pytest.fixture
def eager(loaded: Loaded) -> Iterator[torch.nn.Module]:
    """The model with transformers' own eager attention, for the time of a test."""
    prepare(loaded.model)
    loaded.model.set_attn_implementation("eager")
    yield loaded.model
    loaded.model.set_attn_implementation(IMPLEMENTATION)


def test_maps_equal_eager_attention_in_every_layer_and_head(run: Run, eager: torch.nn.Module) -> None:
    with torch.no_grad():
        output = eager(torch.tensor([run.token_ids[:-1]]), output_attentions=True)
    assert len(output.attentions) == len(run.anatomy.heads)
    for layer, expected in enumerate(output.attentions):
        np.testing.assert_allclose(run.attention(layer), expected[0].numpy(), atol=1e-5)
        np.testing.assert_allclose(run.attention(layer, 1), expected[0, 1].numpy(), atol=1e-5)


def test_rows_sum_to_one_and_nothing_looks_ahead(run: Run) -> None:
    pattern = run.attention(0)
    np.testing.assert_allclose(pattern.sum(-1), 1, atol=1e-6)
    assert not np.triu(pattern, 1).any()


def _first_layer_by_hand(run: Run) -> tuple[torch.Tensor, torch.Tensor]:
    """q and k of the first layer before rotation, from the weights: (H, T, D) and (K, T, D)."""
    model, T = run.loaded.model, run.rows
    ids = torch.tensor([run.token_ids[:-1]])
    heads, kv_heads, D = run.anatomy.heads[0], run.anatomy.kv_heads[0], run.anatomy.head_dims[0]
    with torch.no_grad():
        base = model.base_model
        if hasattr(base, "wpe"):
            x = base.h[0].ln_1(base.wte(ids) + base.wpe(torch.arange(T)))
            q, k, _ = base.h[0].attn.c_attn(x).split((heads * D, kv_heads * D, kv_heads * D), -1)
        elif hasattr(base.layers[0].self_attn, "qkv_proj"):
            x = base.layers[0].input_layernorm(base.embed_tokens(ids))
            q, k, _ = base.layers[0].self_attn.qkv_proj(x).split((heads * D, kv_heads * D, kv_heads * D), -1)
        else:
            x = base.layers[0].input_layernorm(base.embed_tokens(ids))
            q, k = base.layers[0].self_attn.q_proj(x), base.layers[0].self_attn.k_proj(x)
    return q.view(T, heads, D).transpose(0, 1), k.view(T, kv_heads, D).transpose(0, 1)


def test_q_and_k_before_rotation_equal_the_projections_by_hand(run: Run) -> None:
    q, k = _first_layer_by_hand(run)
    np.testing.assert_allclose(run.queries(0, rotated=False), q.numpy(), atol=1e-5)
    np.testing.assert_allclose(run.keys(0, rotated=False), k.numpy(), atol=1e-5)


def test_q_and_k_after_rotation_equal_complex_multiplication_by_hand(run: Run) -> None:
    q, k = _first_layer_by_hand(run)
    if run.anatomy.rotary is not None:
        D = q.shape[-1]
        angles = torch.arange(run.rows)[:, None].double() * 10000.0 ** (-torch.arange(0, D, 2).double() / D)
        turn = torch.polar(torch.ones_like(angles), angles)  # (T, D / 2)

        def rotate(x: torch.Tensor) -> torch.Tensor:
            turned = torch.complex(x[..., : D // 2].double(), x[..., D // 2 :].double()) * turn
            return torch.cat((turned.real, turned.imag), -1).float()

        q, k = rotate(q), rotate(k)
    np.testing.assert_allclose(run.queries(0), q.numpy(), atol=1e-5)
    np.testing.assert_allclose(run.keys(0), k.numpy(), atol=1e-5)


def test_the_pairs_and_angles_are_those_of_the_model(tiny: Loaded) -> None:
    anatomy = prepare(tiny.model)
    of = rope.pairs(anatomy.rotary, 0)
    D = anatomy.head_dims[0]
    assert of.first.tolist() == list(range(D // 2))
    assert of.second.tolist() == list(range(D // 2, D))
    np.testing.assert_allclose(of.inv_freq, 10000.0 ** (-np.arange(0, D, 2) / D), rtol=1e-6)
    cos, sin = rope.cos_sin(anatomy.rotary, 0, 3, 9)
    angles = np.arange(3, 9)[:, None] * of.inv_freq.numpy()
    np.testing.assert_allclose(cos, np.cos(angles), atol=1e-6)
    np.testing.assert_allclose(sin, np.sin(angles), atol=1e-6)


def test_a_model_without_rotation_says_what_it_has_instead(checkpoint, loaded: Loaded) -> None:
    run = generate(loaded, PROMPT)
    if run.anatomy.rotary is None:
        assert run.loaded.card.position_scheme in rope.reason_without(run)
    else:
        assert rope.reason_without(run) == ""


@pytest.mark.parametrize("width", [1, 2, 8])
def test_pooled_rows_are_the_largest_of_their_cells(run: Run, width: int) -> None:
    start, end = 7, run.rows
    pooled = attention.pooled(run, start, end, width).numpy()
    whole = np.concatenate([run.attention(layer) for layer in range(len(run.anatomy.heads))])
    for row in range(pooled.shape[1]):
        for col in range(pooled.shape[2]):
            r0 = max((start // width + row) * width, start)
            cell = whole[:, r0 : (start // width + row + 1) * width, col * width : (col + 1) * width]
            np.testing.assert_array_equal(pooled[:, row, col], np.round(np.sqrt(cell.max((1, 2))) * 255))


def test_the_picture_of_a_long_map_is_pooled_in_bands(run: Run) -> None:
    width, image = attention.picture(run, 0, 2, run.rows, largest=16)
    pattern = run.attention(0, 2)
    assert image.shape[0] <= 16
    assert image[3, 1] == np.round(np.sqrt(pattern[3 * width : 4 * width, width : 2 * width].max()) * 255)


@pytest.mark.parametrize("family", ["windowed", "soft-capped"])
def test_windows_and_soft_caps_enter_the_maps(family: str, tiny: Loaded) -> None:
    """Two families that were not built for: their terms come through the attention interface."""
    shape = {
        "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 96, "sliding_window": 6,
        "initializer_range": 0.5,
    }  # fmt: skip
    torch.manual_seed(0)
    if family == "windowed":
        model = MistralForCausalLM(MistralConfig(**shape))
    else:
        model = Gemma2ForCausalLM(Gemma2Config(**shape, attn_logit_softcapping=2.0, query_pre_attn_scalar=8))
    other = Loaded(model.eval().requires_grad_(False), tiny.tokenizer, tiny.card)
    run = generate(other, PROMPT, DECODING, chunk=5).finish()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(torch.tensor([run.token_ids[:-1]]), output_attentions=True)
    for layer, pattern in enumerate(expected.attentions):
        np.testing.assert_allclose(run.attention(layer), pattern[0].numpy(), atol=1e-5)
    logits = expected.logits[0, -1].numpy()
    largest = np.abs(logits).max()  # weights this wide make logits far from 1, and the last bits of a sum go with them
    np.testing.assert_allclose(run.logits(len(run.steps) - 1), logits, atol=1e-5 * largest)
