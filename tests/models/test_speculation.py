"""Acceptance of a draft against a computation position by position."""

import pytest
import torch

from models import DecoderConfig, DecoderForCausalLM
from models.data import train_tokenizer
from models.speculation import Acceptance, acceptance

TEXTS = ["A cat sat.", "Die Straße ist lang, sagte der Hund.", "Oh!"]


def build(seed: int, vocab_size: int = 280) -> DecoderForCausalLM:
    torch.manual_seed(seed)
    config = DecoderConfig(
        vocab_size=vocab_size, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, initializer_range=0.5
    )
    return DecoderForCausalLM(config).eval()


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS * 3, vocab_size=280, context_length=32)


def test_the_rate_is_what_the_distributions_share_averaged_over_positions(tokenizer) -> None:
    target, draft, length, shared = build(0), build(1), 12, []
    for text in TEXTS:
        ids = [tokenizer.eos_token_id, *tokenizer(text)["input_ids"], tokenizer.eos_token_id][: length + 1]
        with torch.no_grad():
            p, q = (model(torch.tensor([ids[:-1]])).logits[0].softmax(-1) for model in (target, draft))
        shared += torch.minimum(p, q).sum(-1).tolist()
    result = acceptance(target, draft, tokenizer, TEXTS, length, tokens=20)
    assert result.positions == len(shared)
    assert result.rate == pytest.approx(sum(shared) / len(shared), rel=1e-5)
    assert 0 < result.rate < 1


def test_a_model_accepts_all_of_its_own_words(tokenizer) -> None:
    assert acceptance(build(0), build(0), tokenizer, TEXTS, 12).rate == pytest.approx(1.0)


def test_tokens_of_a_pass_are_a_geometric_sum() -> None:
    assert Acceptance(0.8, 10).tokens_per_pass(4) == pytest.approx((1 - 0.8**5) / (1 - 0.8))
    assert Acceptance(1.0, 10).tokens_per_pass(4) == 5
    assert Acceptance(0.0, 10).tokens_per_pass(4) == 1


def test_models_of_different_tokenizers_are_refused(tokenizer) -> None:
    with pytest.raises(ValueError, match="must share a tokenizer"):
        acceptance(build(0), build(0, vocab_size=300), tokenizer, TEXTS, 12)
