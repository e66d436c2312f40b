"""What the panels say of every variant of our decoder, against its own attention written out."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from models import DecoderConfig, DecoderForCausalLM, Loaded
from playground import Decoding, frames, generate
from tests.models.test_variants import VARIANTS
from tests.playground.conftest import PROMPT, VOCAB_SIZE

DECODING = Decoding(max_new_tokens=8, temperature=0.0, stop_at_end=False)
SIZES = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 96, "initializer_range": 0.2,
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_maps_and_logits_are_those_of_the_decoder(variant: str, tiny: Loaded) -> None:
    torch.manual_seed(3)
    model = DecoderForCausalLM(DecoderConfig(**{**SIZES, **VARIANTS[variant][0]})).eval().requires_grad_(False)
    run = generate(dataclasses.replace(tiny, model=model), PROMPT, DECODING, chunk=5).finish()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(torch.tensor([run.token_ids[:-1]]), output_attentions=True, use_cache=False)
    model.set_attn_implementation("playground")
    for layer, expected in enumerate(output.attentions):
        np.testing.assert_allclose(run.attention(layer), expected[0].numpy(), atol=2e-5)
    for step in range(len(run.steps)):
        expected = output.logits[0, run.prompt_length - 1 + step].numpy()
        np.testing.assert_allclose(run.logits(step), expected, atol=1e-4)
    begin = frames.begin(run, frames.Cursor())
    rope = begin["rope"]
    if rope is None:
        assert begin["rope_reason"].startswith("This model does not rotate")
    assert (rope is not None) == (model.config.position == "rope")
    if rope is not None:
        assert len(run.anatomy.rotary.layers) == 2
        turning = model.config.turning_dim // 2
        assert len(rope["tables"][0]["first"] if "first" in rope["tables"][0] else range(turning)) == turning
