"""Every stage against transformers' processor of that name, and the draw against the distribution it draws from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from transformers import (
    LogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from playground import Decoding
from playground.records import STAGE_ORDER, Stage
from playground.sampling import Applied, apply_stages, describe, draw, log_probabilities, sample, seen_tokens

VOCABULARIES = (7, 512, 50_257)
CONTEXT = [0, 3, 3, 4]

PROCESSORS = {
    "repetition_penalty": RepetitionPenaltyLogitsProcessor,
    "temperature": TemperatureLogitsWarper,
    "top_k": TopKLogitsWarper,
    "top_p": TopPLogitsWarper,
    "min_p": MinPLogitsWarper,
}
NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}


def random_logits(vocab_size: int, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(vocab_size, generator=torch.Generator().manual_seed(seed)) * spread


def reference(name: str, value: float, logits: torch.Tensor) -> torch.Tensor:
    processor: LogitsProcessor = PROCESSORS[name](value)
    return processor(torch.tensor([CONTEXT]), logits[None].clone())[0]


def last(logits: torch.Tensor, **settings: float) -> torch.Tensor:
    decoding = Decoding(**(NEUTRAL | settings))
    return apply_stages(logits, decoding, seen_tokens(CONTEXT, logits.shape[-1]))[-1].logits


def described(applied: tuple[Applied, ...]) -> tuple[Stage, ...]:
    rows = [Applied(each.name, each.setting, each.logits[None]) for each in applied]
    return describe(rows, log_probabilities(rows))[0]


@pytest.mark.parametrize("vocab_size", VOCABULARIES)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repetition_penalty", 1.3),
        ("repetition_penalty", 0.7),
        ("temperature", 0.3),
        ("temperature", 2.5),
        ("top_k", 1),
        ("top_k", 5),
        ("top_k", 400),
        ("top_p", 0.02),
        ("top_p", 0.5),
        ("top_p", 0.95),
        ("min_p", 0.05),
        ("min_p", 1.0),
    ],
)
def test_each_stage_equals_transformers_bit_for_bit(name: str, value: float, vocab_size: int) -> None:
    logits = random_logits(vocab_size)
    torch.testing.assert_close(last(logits, **{name: value}), reference(name, value, logits), rtol=0, atol=0)


@pytest.mark.parametrize("order", [STAGE_ORDER, tuple(reversed(STAGE_ORDER))])
def test_a_chain_equals_the_processors_in_the_same_order(order: tuple[str, ...]) -> None:
    values = {"repetition_penalty": 1.2, "temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.02}
    logits = random_logits(512)
    expected = logits
    for name in order:
        expected = reference(name, values[name], expected)
    applied = apply_stages(logits, Decoding(**values, order=order), seen_tokens(CONTEXT, 512))
    torch.testing.assert_close(applied[-1].logits, expected, rtol=0, atol=0)
    assert [each.name for each in applied] == ["softmax", *order]


def test_ties_at_the_border_of_top_k_all_stay() -> None:
    logits = torch.tensor([1.0, 2.0, 2.0, 2.0, 0.0])
    assert torch.isfinite(last(logits, top_k=2)).tolist() == [False, True, True, True, False]


def test_tokens_that_were_removed_already_stay_removed() -> None:
    logits = random_logits(512)
    logits[::2] = float("-inf")
    for name, value in {"temperature": 0.5, "top_k": 300, "top_p": 0.99, "min_p": 0.001}.items():
        after = last(logits, **{name: value})
        torch.testing.assert_close(after, reference(name, value, logits), rtol=0, atol=0)
        assert torch.isinf(after[::2]).all()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    vocab_size=st.integers(1, 200),
    temperature=st.floats(0.05, 5),
    top_k=st.integers(0, 250),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    penalty=st.floats(0.5, 3),
    order=st.permutations(STAGE_ORDER),
)
def test_a_chain_never_empties_the_set_nor_changes_its_input(
    seed, vocab_size, temperature, top_k, top_p, min_p, penalty, order
) -> None:
    logits = random_logits(vocab_size, seed)
    before = logits.clone()
    decoding = Decoding(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=penalty, order=tuple(order)
    )
    seen = seen_tokens([0], vocab_size)
    applied = apply_stages(logits, decoding, seen)
    assert torch.equal(logits, before)
    for stage in described(applied):
        assert 1 <= stage.kept <= vocab_size
        assert 0 <= stage.mass <= 1
        assert -1e-6 <= stage.entropy <= np.log(vocab_size) + 1e-5
    assert float(applied[-1].logits.softmax(-1).sum()) == pytest.approx(1, abs=1e-5)
    token_id, probability = sample(logits, decoding, seen, 0.5)
    assert probability > 0
    assert torch.isfinite(applied[-1].logits[token_id])


def test_a_hundred_thousand_draws_follow_the_distribution() -> None:
    probabilities = random_logits(50, spread=1.5).softmax(-1)
    probabilities[::7] = 0
    generator = torch.Generator().manual_seed(1)
    cumulative = probabilities.double().cumsum(-1)
    uniforms = torch.rand(100_000, generator=generator, dtype=torch.float64)
    quick = torch.searchsorted(cumulative, uniforms * cumulative[-1], right=True)
    assert [draw(probabilities, float(each)) for each in uniforms[:500]] == quick[:500].tolist()
    counts = np.bincount(quick, minlength=50)
    assert not counts[::7].any()
    expected = (probabilities / probabilities.sum()).double().numpy()
    alive = expected > 0
    assert chisquare(counts[alive], expected[alive] / expected[alive].sum() * counts.sum()).pvalue > 0.001


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_edges_of_the_uniform_never_draw_what_was_removed(uniform: float) -> None:
    probabilities = torch.tensor([0.0, 0.3, 0.7 + 1e-7, 0.0])
    assert probabilities[draw(probabilities, uniform)] > 0


def test_greedy_takes_the_most_likely_and_reports_its_probability() -> None:
    logits = random_logits(100)
    token_id, probability = sample(logits, Decoding(temperature=0.0, top_k=3, top_p=0.2), None, 0.9)
    assert token_id == int(logits.argmax())
    assert probability == pytest.approx(float(logits.softmax(-1).max()))


def test_masses_and_entropies_are_those_of_the_distribution() -> None:
    logits = random_logits(60)
    stages = described(apply_stages(logits, Decoding(**(NEUTRAL | {"top_k": 5}))))
    p = logits.softmax(-1).double().numpy()
    top = np.sort(p)[-5:]
    assert stages[0].kept == 60
    assert stages[0].entropy == pytest.approx(-(p * np.log(p)).sum(), rel=1e-5)
    assert stages[1].kept == 5
    assert stages[1].mass == pytest.approx(top.sum(), rel=1e-5)
    assert stages[1].entropy == pytest.approx(-(top / top.sum() * np.log(top / top.sum())).sum(), rel=1e-5)


def test_a_repetition_penalty_without_a_context_is_an_error() -> None:
    with pytest.raises(ValueError, match="seen"):
        apply_stages(random_logits(5), Decoding(repetition_penalty=2.0))
