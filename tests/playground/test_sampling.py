"""Every stage against transformers' processor of that name, and the draw against the distribution it draws from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from transformers import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    LogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from playground import Decoding
from playground.penalties import Context
from playground.records import LLAMA_CPP_ORDER, NEUTRAL, STAGE_ORDER, TRANSFORMERS_ORDER, Stage
from playground.sampling import Applied, active_stages, apply_stages, describe, draw, log_probabilities, sample

VOCABULARIES = (7, 512, 50_257, 151_936)
HISTORY = [0, 3, 3, 4, 6, 0, 3]
CONTEXT = Context(HISTORY, prompt_length=2, room=20, end_ids=frozenset({1, 5}), chance=0.25, mu=6.0)
BIASES = [[[2], 1.5], [[0, 3, 6], -2.25], [[3, 6], 0.5], [[4, 4], 9.0]]
WORDS = [[2], [3, 4], [4, 5]]

PROCESSORS = {
    "repetition_penalty": RepetitionPenaltyLogitsProcessor,
    "temperature": TemperatureLogitsWarper,
    "top_k": TopKLogitsWarper,
    "top_p": TopPLogitsWarper,
    "min_p": MinPLogitsWarper,
    "typical_p": TypicalLogitsWarper,
    "epsilon_cutoff": EpsilonLogitsWarper,
    "eta_cutoff": EtaLogitsWarper,
    "no_repeat_ngram_size": NoRepeatNGramLogitsProcessor,
    "sequence_bias": SequenceBiasLogitsProcessor,
    "bad_words_ids": NoBadWordsLogitsProcessor,
    "min_new_tokens": lambda value: MinNewTokensLengthLogitsProcessor(2, value, [1, 5]),
}
CORE = {"repetition_penalty": 1.2, "temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.02}


def random_logits(vocab_size: int, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(vocab_size, generator=torch.Generator().manual_seed(seed)) * spread


def reference(name: str, value: Any, logits: torch.Tensor) -> torch.Tensor:
    processor: LogitsProcessor = PROCESSORS[name](value)
    return processor(torch.tensor([HISTORY]), logits[None].clone())[0]


def last(logits: torch.Tensor, context: Context = CONTEXT, **settings: Any) -> torch.Tensor:
    return apply_stages(logits, Decoding(**{"temperature": 1.0, **settings}), context)[-1].logits


def kept(logits: torch.Tensor) -> list[int]:
    return torch.isfinite(logits).nonzero()[:, 0].tolist()


def described(applied: tuple[Applied, ...]) -> tuple[Stage, ...]:
    rows = [Applied(each.name, each.setting, each.logits[None]) for each in applied]
    return describe(rows, log_probabilities(rows))[0]


CASES = [
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
    ("typical_p", 0.05),
    ("typical_p", 0.6),
    ("typical_p", 0.95),
    ("epsilon_cutoff", 3e-4),
    ("epsilon_cutoff", 0.9),
    ("eta_cutoff", 3e-4),
    ("eta_cutoff", 0.05),
    ("no_repeat_ngram_size", 1),
    ("no_repeat_ngram_size", 2),
    ("no_repeat_ngram_size", 3),
    ("no_repeat_ngram_size", 30),
    ("sequence_bias", BIASES),
    ("bad_words_ids", WORDS),
    ("min_new_tokens", 5),
    ("min_new_tokens", 6),
]


def variants(vocab_size: int) -> dict[str, torch.Tensor]:
    """Random logits; with many ties; with half of them removed; with a single survivor."""
    removed = random_logits(vocab_size, 1)
    removed[::2] = -torch.inf
    single = torch.full((vocab_size,), -torch.inf)
    single[4] = 1.0
    rounded = random_logits(vocab_size, 2).round()
    return {"random": random_logits(vocab_size), "ties": rounded, "removed": removed, "single": single}


@pytest.mark.parametrize("kind", ["random", "ties", "removed", "single"])
@pytest.mark.parametrize("vocab_size", VOCABULARIES)
@pytest.mark.parametrize(("name", "value"), CASES)
def test_each_stage_equals_transformers_bit_for_bit(name: str, value: Any, vocab_size: int, kind: str) -> None:
    logits = variants(vocab_size)[kind]
    before = logits.clone()
    expected = reference(name, value, logits)
    if torch.isinf(expected).all():
        expected = logits  # where a processor empties the set, ours lets it pass
    torch.testing.assert_close(last(logits, **{name: value}), expected, rtol=0, atol=0)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("order", [tuple(CORE), tuple(reversed(CORE))])
def test_a_chain_equals_the_processors_in_the_same_order(order: tuple[str, ...]) -> None:
    logits = random_logits(512)
    expected = logits
    for name in order:
        expected = reference(name, CORE[name], expected)
    applied = apply_stages(logits, Decoding(**CORE, order=order), CONTEXT)
    torch.testing.assert_close(applied[-1].logits, expected, rtol=0, atol=0)
    assert [each.name for each in applied] == ["softmax", *order]


def test_the_named_orders_hold_every_stage_and_the_default_is_that_of_transformers() -> None:
    assert sorted(TRANSFORMERS_ORDER) == sorted(LLAMA_CPP_ORDER) == sorted(NEUTRAL)
    assert Decoding().order == STAGE_ORDER == TRANSFORMERS_ORDER
    assert active_stages(Decoding(**CORE)) == tuple(CORE)
    assert active_stages(Decoding(**CORE, order=LLAMA_CPP_ORDER)) == (
        "repetition_penalty",
        "top_k",
        "top_p",
        "min_p",
        "temperature",
    )


def test_a_neutral_setting_makes_no_stage() -> None:
    assert active_stages(Decoding(**NEUTRAL)) == ()
    off = Decoding(**{**NEUTRAL, "penalty_last_n": 0, "repetition_penalty": 2, "presence_penalty": 1})
    assert active_stages(off) == ()
    assert active_stages(Decoding(temperature=1.0, xtc_probability=1.0, xtc_threshold=0.6)) == ()


def test_rows_together_are_what_each_row_is_alone() -> None:
    logits = torch.stack([random_logits(512, seed) for seed in range(3)])
    contexts = [Context(HISTORY, n, 2, 20, frozenset({1}), chance, 8.0) for n, chance in ((3, 0.1), (5, 0.9), (7, 0.3))]
    decoding = Decoding(**ALL)
    together = apply_stages(logits, decoding, contexts)
    assert len(together) == 1 + len(active_stages(decoding))
    for row, context in enumerate(contexts):
        for one, alone in zip(together, apply_stages(logits[row], decoding, context), strict=True):
            torch.testing.assert_close(one.logits[row], alone.logits)


def test_ties_at_the_border_of_top_k_all_stay() -> None:
    logits = torch.tensor([1.0, 2.0, 2.0, 2.0, 0.0])
    assert torch.isfinite(last(logits, top_k=2)).tolist() == [False, True, True, True, False]


@pytest.mark.parametrize("top_p", [0.01, 0.3, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("vocab_size", [7, 4096])
def test_of_tokens_tied_at_the_border_of_top_p_those_go_that_transformers_removes(
    top_p: float, vocab_size: int
) -> None:
    logits = random_logits(vocab_size).round()
    torch.testing.assert_close(last(logits, top_p=top_p), reference("top_p", top_p, logits), rtol=0, atol=0)


ALL = {
    **CORE,
    "top_p": 0.99,
    "dynatemp_range": 0.4,
    "typical_p": 0.98,
    "epsilon_cutoff": 1e-4,
    "eta_cutoff": 1e-4,
    "top_n_sigma": 2.5,
    "tfs_z": 0.99,
    "xtc_probability": 0.5,
    "mirostat": 2,
    "frequency_penalty": 0.3,
    "presence_penalty": -0.4,
    "dry_multiplier": 0.8,
    "dry_sequence_breakers": [],
    "no_repeat_ngram_size": 3,
    "sequence_bias": BIASES,
    "bad_words_ids": WORDS,
    "force_words_ids": [[4, 4]],
    "min_new_tokens": 8,
}
VALUES = {
    "temperature": st.floats(0.05, 5),
    "dynatemp_range": st.floats(0, 5),
    "top_k": st.integers(0, 250),
    "top_p": st.floats(1e-6, 1),
    "min_p": st.floats(0, 1),
    "typical_p": st.floats(1e-6, 1),
    "epsilon_cutoff": st.floats(0, 0.99),
    "eta_cutoff": st.floats(0, 0.99),
    "top_n_sigma": st.floats(0, 4),
    "tfs_z": st.floats(0.01, 1),
    "xtc_probability": st.floats(0, 1),
    "xtc_threshold": st.floats(0, 0.5),
    "mirostat": st.integers(0, 2),
    "repetition_penalty": st.floats(0.5, 3),
    "frequency_penalty": st.floats(-2, 2),
    "presence_penalty": st.floats(-2, 2),
    "penalty_last_n": st.integers(-1, 8),
    "dry_multiplier": st.floats(0, 100),
    "dry_base": st.floats(1, 100),
    "no_repeat_ngram_size": st.integers(0, 5),
    "min_new_tokens": st.integers(0, 20),
    "sequence_bias": st.lists(st.tuples(st.lists(st.integers(0, 6), min_size=1, max_size=3), st.floats(-100, 100))),
    "bad_words_ids": st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), max_size=9),
    "force_words_ids": st.lists(st.lists(st.integers(4, 6), min_size=1, max_size=3), max_size=3),
    "order": st.permutations(STAGE_ORDER),
}


def check_chain(logits: torch.Tensor, asked: dict[str, Any], room: int, chance: float, mu: float) -> None:
    """Nothing is changed in place, nothing emptied, every distribution is one, and the order is the one asked for."""
    before = logits.clone()
    decoding = Decoding(**asked)
    context = Context(HISTORY, None, 2, room, frozenset({1, 5}), chance, mu)
    applied = apply_stages(logits, decoding, context)
    assert torch.equal(logits, before)
    assert [each.name for each in applied[1:]] == [name for name in decoding.order if name in active_stages(decoding)]
    for each, stage in zip(applied, described(applied), strict=True):
        assert 1 <= stage.kept <= len(logits)
        assert 0 <= stage.mass <= 1
        assert -1e-6 <= stage.entropy <= np.log(len(logits)) + 1e-5
        assert float(each.logits.double().softmax(-1).sum()) == pytest.approx(1, abs=1e-6)
    token_id, probability = sample(logits, decoding, context, 0.5)
    assert probability > 0
    assert torch.isfinite(applied[-1].logits[token_id])


@pytest.mark.parametrize(("vocab_size", "examples"), [(7, 120), (512, 120), (50_257, 40), (151_936, 25)])
def test_a_chain_never_empties_the_set_nor_changes_its_input(vocab_size: int, examples: int) -> None:
    kinds = variants(vocab_size)

    @settings(max_examples=examples, deadline=None)
    @given(
        kind=st.sampled_from(sorted(kinds)),
        room=st.integers(1, 12),
        chance=st.floats(0, 1),
        mu=st.floats(-20, 200),
        asked=st.fixed_dictionaries({}, optional=VALUES),
    )
    def check(kind: str, room: int, chance: float, mu: float, asked: dict[str, Any]) -> None:
        check_chain(kinds[kind], asked, room, chance, mu)

    check()


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
    token_id, probability = sample(logits, Decoding(temperature=0.0, top_k=3, top_p=0.2), CONTEXT, None)
    assert token_id == int(logits.argmax())
    assert probability == pytest.approx(float(logits.softmax(-1).max()))


def test_masses_and_entropies_are_those_of_the_distribution() -> None:
    logits = random_logits(60)
    stages = described(apply_stages(logits, Decoding(temperature=1.0, top_k=5)))
    p = logits.softmax(-1).double().numpy()
    top = np.sort(p)[-5:]
    assert stages[0].kept == 60
    assert stages[0].entropy == pytest.approx(-(p * np.log(p)).sum(), rel=1e-5)
    assert stages[1].kept == 5
    assert stages[1].mass == pytest.approx(top.sum(), rel=1e-5)
    assert stages[1].entropy == pytest.approx(-(top / top.sum() * np.log(top / top.sum())).sum(), rel=1e-5)
