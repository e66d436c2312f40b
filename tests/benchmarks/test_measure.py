"""The harness itself: twins are twins, pairs alternate, ratios and the table say what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from benchmarks import report, twins
from benchmarks.measure import Intervals, Row, Setup, pairs, peak_bytes, quartiles, speed_ratio
from models import DecoderConfig, DecoderForCausalLM

TINY = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}


def same_logits(ours: torch.nn.Module, theirs: torch.nn.Module) -> bool:
    ids = torch.arange(12)[None] % 31
    with torch.inference_mode():
        return torch.allclose(ours.eval()(ids).logits, theirs.eval()(ids).logits, atol=1e-5)


def test_the_llama_twin_computes_the_same() -> None:
    shape = {**TINY, "intermediate_size": 24, "num_key_value_heads": 2}
    theirs = LlamaForCausalLM(LlamaConfig(**shape, rms_norm_eps=1e-5, tie_word_embeddings=True))
    ours = DecoderForCausalLM(DecoderConfig(**shape, norm_eps=1e-5))
    ours.load_state_dict(twins.from_llama(theirs.state_dict()))
    assert same_logits(ours, theirs)


def test_the_gpt2_twin_computes_the_same() -> None:
    theirs = GPT2LMHeadModel(GPT2Config(vocab_size=31, n_embd=16, n_layer=2, n_head=4, n_positions=32))
    ours = DecoderForCausalLM(DecoderConfig(**TINY, **twins.GPT2_CHOICES, max_position_embeddings=32))
    ours.load_state_dict(twins.from_gpt2(theirs.state_dict()))
    assert same_logits(ours, theirs)


def test_pairs_alternate_and_leave_the_warm_up_out() -> None:
    order: list[str] = []
    found = pairs(lambda: order.append("a") or 1.0, lambda: order.append("b") or 2.0, count=3, warm_ups=1)
    assert found == [(1.0, 2.0)] * 3
    assert order == ["a", "b", "b", "a", "a", "b", "b", "a"]


def test_a_ratio_above_one_means_that_ours_is_faster() -> None:
    row = speed_ratio("case", "what", [(1.0, 2.0), (1.0, 3.0), (1.0, 4.0)], goal=2.5)
    assert (row.value, row.met) == (3.0, True)
    assert row.notes["ours_ms"] == 1000


def test_a_goal_can_be_an_upper_limit() -> None:
    assert Row("case", "what", 11, 11, 11, goal=12, at_least=False).met is True
    assert Row("case", "what", 13, 13, 13, goal=12, at_least=False).met is False
    assert Row("case", "what", 13, 13, 13).met is None


def test_quartiles_of_one_value_are_that_value() -> None:
    assert quartiles([5.0]) == (5.0, 5.0, 5.0)


def test_intervals_leave_out_prompt_and_first_token() -> None:
    seen = Intervals()
    seen.moments = [0.0, 10.0, 11.0, 12.0, 13.0]
    assert seen.typical() == 1.0


def test_peak_memory_counts_what_was_freed_again() -> None:
    size = 64 * 2**20
    assert peak_bytes("cpu", lambda: bytearray(b"x" * size)[:1]) >= 0.9 * size


def test_the_table_says_value_spread_goal_and_whether_it_was_met() -> None:
    row = Row("case", "decode", 0.98765, 0.97, 0.99, goal=0.97, notes={"ours_ms": 4.2})
    assert report.line(row) == "| decode | 0.988 [0.97, 0.99] | ≥ 0.97 | yes | ours ms 4.2 |"
    text = report.markdown([row], report.environment(Setup()))
    assert text.startswith("# Benchmarks\n")
    assert text.endswith(report.line(row) + "\n")


def test_cases_that_are_not_measured_again_keep_their_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    first = Row("prefill", "reading", 1.5, 1.4, 1.6)
    report.write([first, Row("capture", "old", 0.5, 0.5, 0.5)], Setup())
    text = report.write([Row("capture", "new", 0.9, 0.9, 0.9)], Setup())
    assert report.line(first) in text
    assert "| new |" in text
    assert "| old |" not in text
    assert "| new |" not in report.write([first], Setup(threads=7))  # measured under other conditions
