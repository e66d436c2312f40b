"""Nats per token and bits per byte against a computation by hand."""

import math

import pytest
import torch

from models import DecoderConfig, DecoderForCausalLM
from models.data import train_tokenizer
from models.evaluation import Score, batches, score

TEXTS = ["A cat sat.", "Die Straße ist lang, sagte der Hund.", "Oh!"]


def test_units() -> None:
    assert Score(nats=10 * math.log(2), tokens=5, bytes=20).bits_per_byte == pytest.approx(0.5)
    assert Score(nats=10.0, tokens=5, bytes=20).nats_per_token == 2.0


def test_batches_hold_every_row_once_with_its_next_tokens() -> None:
    rows = [list(range(1, n)) for n in (5, 30, 4, 12, 30, 3)]
    seen = []
    for inputs, labels in batches(rows, tokens=40):
        for given, wanted in zip(inputs, labels, strict=True):
            kept = wanted != -100
            assert torch.equal(given[kept] + 1, wanted[kept])
            seen.append([1, *wanted[kept].tolist()])
    assert sorted(seen) == sorted(rows)


def test_the_score_is_the_sum_over_documents_read_from_their_start() -> None:
    tokenizer = train_tokenizer(TEXTS * 3, vocab_size=280, context_length=32)
    torch.manual_seed(0)
    model = DecoderForCausalLM(
        DecoderConfig(vocab_size=280, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, initializer_range=0.5)
    )
    nats, count, size, length = 0.0, 0, 0, 12
    for text in TEXTS:
        ids = [tokenizer.eos_token_id, *tokenizer(text)["input_ids"], tokenizer.eos_token_id][: length + 1]
        with torch.no_grad():
            logs = model(torch.tensor([ids[:-1]])).logits.log_softmax(-1)[0]
        nats -= sum(logs[i, token].item() for i, token in enumerate(ids[1:]))
        count += len(ids) - 1
        letters = [token for token in ids[1:] if token != tokenizer.eos_token_id]
        size += sum(len(tokenizer.convert_ids_to_tokens(token)) for token in letters)
    result = score(model, tokenizer, TEXTS, length, tokens=20)
    assert result.tokens == count
    assert result.bytes == size
    assert result.nats == pytest.approx(nats, rel=1e-5)
    assert model.training


def test_bytes_are_those_of_utf8() -> None:
    tokenizer = train_tokenizer(TEXTS, vocab_size=280, context_length=32)
    model = DecoderForCausalLM(
        DecoderConfig(vocab_size=280, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    )
    result = score(model, tokenizer, TEXTS, length=500)
    assert result.bytes == sum(len(text.encode()) for text in TEXTS)
