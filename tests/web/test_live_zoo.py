"""The live view for models that are not all attention, and for those whose keys and values differ in width."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config, Lfm2Config

from models import Loaded
from playground import Decoding
from tests.web.live_page import LivePage, Tape, live_page

SHAPE = {
    "hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 6, "max_position_embeddings": 128,
    "initializer_range": 0.2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
HYBRID = {
    **SHAPE, "num_hidden_layers": 5, "num_key_value_heads": 2, "block_multiple_of": 8,
    "layer_types": ["conv", "full_attention", "conv", "conv", "full_attention"],
}  # fmt: skip
LATENT = {
    **SHAPE, "num_hidden_layers": 2, "num_key_value_heads": 6, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "n_group": 1, "topk_group": 1, "moe_intermediate_size": 32, "kv_lora_rank": 16, "q_lora_rank": 16,
    "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 1,
}  # fmt: skip


def _tape(loaded: Loaded, config: object) -> Tape:
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    return Tape(dataclasses.replace(loaded, model=model), "Hello there, you", Decoding(max_new_tokens=20, seed=3))


@pytest.fixture(scope="module")
def hybrid(loaded: Loaded) -> Tape:
    return _tape(loaded, Lfm2Config(vocab_size=loaded.card.vocab_size, **HYBRID))


@pytest.fixture
def live(browser: object, hybrid: Tape) -> Iterator[LivePage]:
    with live_page(browser, hybrid) as opened:
        opened.tell_all()
        yield opened


def selected(live: LivePage) -> list[int]:
    return live.get("() => [app.selection.layer, app.selection.head]")


def test_a_layer_with_attention_is_selected_and_the_keys_step_over_the_others(live: LivePage) -> None:
    assert selected(live) == [1, 0]
    live.page.locator("#live").focus()
    live.page.keyboard.press("ArrowDown")
    assert selected(live) == [4, 0]
    live.page.keyboard.press("ArrowDown")
    assert selected(live) == [4, 0]
    live.page.keyboard.press("ArrowUp")
    assert selected(live) == [1, 0]


def test_the_menu_names_what_other_layers_are_and_does_not_offer_them(live: LivePage) -> None:
    options = live.page.get_by_label("Layer", exact=True).locator("option")
    assert options.all_text_contents() == ["0: convolution", "1", "2: convolution", "3: convolution", "4"]
    disabled = "all => all.map((option) => option.disabled)"
    assert options.evaluate_all(disabled) == [True, False, True, True, False]


def test_the_map_shown_is_that_of_the_selected_layer(live: LivePage, hybrid: Tape) -> None:
    live.get("() => app.selection.set({ layer: 4, head: 2 })")
    live.settled()
    row = live.get("() => Array.from(app.view.pattern)")
    expected = hybrid.run.attention(4, 2)[live.get("() => app.view.row")]
    assert row == pytest.approx(expected[: len(row)].tolist(), abs=1e-6)


def test_the_cache_counts_layers_that_keep_and_tells_of_states(live: LivePage, hybrid: Tape) -> None:
    facts = live.get("() => app.drawn.kvCache")
    assert facts["agree"]
    assert facts["measured"] == sum(map(sum, hybrid.run.cache_bytes()))
    panel = live.page.get_by_role("region", name="KV cache", exact=True)
    assert "2 (K, V) × 2 layers × 2 KV heads × 8 head size" in panel.inner_text()
    assert "3 layers without keys and values hold" in panel.locator(".summary").inner_text()


def test_keys_and_values_of_different_widths_stand_in_the_formula(browser: object, loaded: Loaded) -> None:
    tape = _tape(loaded, DeepseekV3Config(vocab_size=loaded.card.vocab_size, **LATENT))
    anatomy = tape.run.anatomy
    assert anatomy.head_dims != anatomy.value_dims
    with live_page(browser, tape) as live:
        live.tell_all()
        panel = live.page.get_by_role("region", name="KV cache", exact=True)
        words = f"({anatomy.head_dims[0]} K + {anatomy.value_dims[0]} V)"
        assert words in panel.inner_text()
        assert "they agree" in panel.inner_text()
        panel.get_by_role("button", name="Table").click()
        last = panel.locator("tr").last.inner_text()
        k, v = (sum(pair[i] for pair in tape.run.cache_bytes()) for i in (0, 1))
        assert f"{k:,}" in last.replace("\u202f", ",").replace("\u00a0", ",")
        assert k != v
        parts = live.get("() => app.drawn.rope.pairs")
        assert parts == 2
