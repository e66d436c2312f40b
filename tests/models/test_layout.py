"""Weights lie in memory as the processor multiplies them fastest; what they are does not change."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from models import DecoderConfig, DecoderForCausalLM, layout, load
from models.layout import arrange, usual_order

SMALL = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}


@pytest.fixture
def gains(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that gains by the other layout in float32."""
    monkeypatch.setattr(layout, "faster_along_outputs", lambda dtype: dtype is torch.float32)


@pytest.fixture
def decoder() -> DecoderForCausalLM:
    torch.manual_seed(0)
    return DecoderForCausalLM(DecoderConfig(**SMALL, num_attention_heads=2, num_key_value_heads=1)).eval()


def along_outputs(weight: torch.Tensor) -> bool:
    return weight.stride() == (1, weight.shape[0])


@pytest.mark.usefixtures("gains")
def test_tall_matrices_lie_along_their_outputs_and_wide_ones_along_their_inputs(decoder: DecoderForCausalLM) -> None:
    arrange(decoder)
    layer = decoder.model.layers[0]
    assert along_outputs(layer.mlp.gate_up_proj.weight)
    assert along_outputs(decoder.lm_head.weight)
    assert layer.mlp.down_proj.weight.is_contiguous()
    assert layer.self_attn.o_proj.weight.is_contiguous()


@pytest.mark.usefixtures("gains")
def test_a_layer_of_gpt2_which_stores_inputs_first_follows_the_same_rule() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    arrange(model)
    block = model.transformer.h[0].mlp
    assert block.c_fc.weight.is_contiguous()  # (inputs, outputs): along the outputs as it is
    assert along_outputs(block.c_proj.weight)  # (inputs, outputs), so this is along the inputs


@pytest.mark.usefixtures("gains")
def test_values_names_and_tied_weights_stay(decoder: DecoderForCausalLM, tmp_path: Path) -> None:
    before = {name: weight.clone() for name, weight in decoder.state_dict().items()}
    ids = torch.arange(12)[None]
    logits = decoder(ids).logits
    arrange(decoder)
    after = decoder.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    assert decoder.lm_head.weight is decoder.model.embed_tokens.weight
    torch.testing.assert_close(decoder(ids).logits, logits, atol=1e-6, rtol=1e-5)
    decoder.save_pretrained(tmp_path)
    usual_order(decoder)
    assert decoder.lm_head.weight.is_contiguous()
    assert decoder.lm_head.weight is decoder.model.embed_tokens.weight
    again = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(again[name], weight) for name, weight in before.items())


@pytest.mark.usefixtures("gains")
def test_other_types_and_other_devices_are_left_alone(decoder: DecoderForCausalLM) -> None:
    half = decoder.bfloat16()
    arrange(half)
    assert half.lm_head.weight.is_contiguous()
    with torch.device("meta"):
        nowhere = DecoderForCausalLM(decoder.config)
    arrange(nowhere)
    assert nowhere.lm_head.weight.is_contiguous()


@pytest.mark.usefixtures("gains")
def test_a_loaded_checkpoint_is_arranged_and_writes_the_same_text_as_one_that_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from playground import Decoding, generate

    decoding = Decoding(max_new_tokens=24, temperature=0.0)
    arranged = load("storyteller", "cpu", "float32")
    assert along_outputs(arranged.model.lm_head.weight)
    monkeypatch.setattr(layout, "faster_along_outputs", lambda _: False)
    usual = load("storyteller", "cpu", "float32")
    assert usual.model.lm_head.weight.is_contiguous()
    runs = [generate(each, "Once upon a time", decoding).finish() for each in (arranged, usual)]
    assert runs[0].text == runs[1].text
    for step in range(24):
        torch.testing.assert_close(*(torch.from_numpy(run.logits(step)) for run in runs), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("usual", "other", "pays"), [(2.0, 1.0, True), (1.2, 1.0, False), (1.0, 2.0, False)])
def test_whether_it_pays_clearly_is_found_out_once(
    monkeypatch: pytest.MonkeyPatch, usual: float, other: float, pays: bool
) -> None:
    asked: list[bool] = []

    def seconds(matrices: list[torch.Tensor], vector: torch.Tensor) -> float:
        asked.append(along_outputs(matrices[0]))
        return other if asked[-1] else usual

    monkeypatch.setattr(layout, "_seconds", seconds)
    layout.faster_along_outputs.cache_clear()
    try:
        assert [layout.faster_along_outputs(torch.float32) for _ in range(2)] == [pays, pays]
        assert asked == [False, True]
    finally:
        layout.faster_along_outputs.cache_clear()
