"""Designs made small keep their switches and run."""

from __future__ import annotations

import pytest
import torch

from models import load
from models.accounting import parameters
from models.presets import PRESETS
from models.twins import built, twin
from tests.models.test_variants import SIZES, VARIANTS, DecoderConfig

SWITCHES = (
    "norm", "norm_placement", "norm_bias", "qk_norm", "embedding_norm", "position", "rope_parameters",
    "attn_logit_softcapping", "final_logit_softcapping", "feed_forward", "hidden_act", "attention_bias",
    "attention_out_bias", "mlp_bias", "tie_word_embeddings",
)  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_a_twin_of_a_preset_is_small_and_has_its_switches(name: str) -> None:
    large = PRESETS[name].config()
    small = twin(large, 300)
    assert {key: getattr(small, key) for key in SWITCHES} == {key: getattr(large, key) for key in SWITCHES}
    assert parameters(small).total < 3_000_000
    assert set(small.attention_kinds) == set(large.attention_kinds)
    kinds = [(config.heads[0] == config.heads[1], config.heads[1] == 1) for config in (small, large)]
    assert kinds[0] == kinds[1], "multi-head, grouped-query or multi-query"


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_twin_of_every_variant_can_be_made(variant: str) -> None:
    assert twin(DecoderConfig(**{**SIZES, **VARIANTS[variant][0]}), 60).vocab_size == 60


def test_the_same_seed_makes_the_same_weights_and_leaves_other_draws_alone() -> None:
    tokenizer = load("storyteller").tokenizer
    config = twin(PRESETS["Mixtral 8x7B"].config(), len(tokenizer))
    torch.manual_seed(5)
    first = built(config, tokenizer, seed=3)
    drawn = torch.rand(1)
    second, other = built(config, tokenizer, seed=3), built(config, tokenizer, seed=4)
    weights = [dict(each.model.named_parameters())["model.embed_tokens.weight"] for each in (first, second, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(1))
    assert first.card.parameters == parameters(config).total
