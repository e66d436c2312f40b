"""Logits that are kept as the vector behind them come back bit for bit, or are kept whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM

from models import Loaded
from playground import Decoding, branch, generate
from playground.anatomy import prepare
from playground.engine import plan_bytes
from playground.logits import output_layer
from tests.playground.conftest import PROMPT

DECODING = Decoding(max_new_tokens=12, temperature=0.9, top_k=40, repetition_penalty=1.1, seed=5, stop_at_end=False)


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("playground.logits.WHOLE_BYTES", 1000)


def test_a_vector_gives_the_very_logits_that_were_drawn_from(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = generate(loaded, PROMPT, DECODING).finish()
    monkeypatch.setattr("playground.logits.WHOLE_BYTES", 1000)
    run = generate(loaded, PROMPT, DECODING)
    newest = [run.logits(step.index) for step in run]
    assert run.token_ids == whole.token_ids
    for step in range(len(run.steps)):
        np.testing.assert_array_equal(run.logits(step), whole.logits(step))
        np.testing.assert_array_equal(newest[step], whole.logits(step))
        np.testing.assert_array_equal(run.distribution(step), whole.distribution(step))
        assert run.steps[step].stages == whole.steps[step].stages


def test_vectors_take_the_room_that_was_planned_and_less_than_logits(loaded: Loaded, no_room: None) -> None:
    run = generate(loaded, PROMPT, DECODING).finish()
    output = prepare(loaded.model).output
    held = sum(each.nbytes for each in run.step_logits.tensors())
    assert held == output.kept_bytes(12) == 2 * output.logit_bytes + 11 * output.vector_bytes
    assert held < 12 * output.logit_bytes / 2
    assert run.nbytes == plan_bytes(loaded, run.prompt_length, 12)


def test_a_branch_reads_the_logits_that_its_parent_keeps_as_vectors(tiny: Loaded, no_room: None) -> None:
    run = generate(tiny, PROMPT, DECODING).finish()
    made = branch(run, 6, [17]).finish()
    for step in range(7):
        np.testing.assert_array_equal(made.logits(step), run.logits(step))


def test_logits_that_are_capped_after_the_output_layer_are_kept_whole() -> None:
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=300, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, final_logit_softcapping=5.0, initializer_range=0.5,
    )  # fmt: skip
    output = output_layer(Gemma2ForCausalLM(config).eval())
    assert output.module is None
    assert output.kept_bytes(100) == 100 * 300 * 4
    assert output.kept_bytes(10**9) == 0
