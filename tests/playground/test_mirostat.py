"""Mirostat against a plain-Python computation of llama.cpp's formulas, and as the state of a run that it is."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from models import Loaded
from playground import Decoding, generate, sampling, truncation
from playground.penalties import Context
from tests.playground.test_stages import KINDS, VOCABULARIES, alive, kept, logits_of

MUS = (-3.0, 0.5, 4.0, 10.0, 40.0, 1e6)


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("vocab_size", VOCABULARIES)
@pytest.mark.parametrize("kind", KINDS)
def test_version_2_keeps_what_is_not_too_surprising(kind: str, vocab_size: int, mu: float) -> None:
    logits = logits_of(vocab_size, kind)
    before = logits.clone()
    order, p = alive(logits)
    expected = [token for token, each in zip(order, p, strict=True) if each > 0 and -math.log2(each) <= mu] or order[:1]
    after = kept(truncation.keep_surprise(logits, mu))
    assert torch.equal(logits, before)
    assert set(after) <= set(order)
    edge = {t for t, each in zip(order, p, strict=True) if each > 0 and abs(-math.log2(each) - mu) < 1e-4}
    assert set(after) - edge == {token for token in expected if token not in edge}


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("vocab_size", VOCABULARIES)
@pytest.mark.parametrize("kind", KINDS)
def test_version_1_keeps_as_many_as_zipfs_law_asks_for(kind: str, vocab_size: int, mu: float) -> None:
    logits = logits_of(vocab_size, kind)
    order, p = alive(logits)
    after = kept(truncation.keep_zipf(logits, mu))
    if len(order) < 2:
        assert after == order
        return
    top = np.maximum(p[:100], 1.2e-38)
    t = [math.log((i + 2) / (i + 1)) for i in range(len(top) - 1)]
    b = [math.log(top[i] / top[i + 1]) for i in range(len(top) - 1)]
    s = sum(x * y for x, y in zip(t, b, strict=True)) / sum(x * x for x in t)
    if s * 1000 < mu:  # 2 ** (mu / s) is out of range: all that there is
        assert len(after) == len(order)
        return
    k = (((s - 1) * 2**mu) / (1 - vocab_size ** -(s - 1))) ** (1 / s)
    if abs(k - round(k)) > 1e-3:
        assert sorted(order[: max(1, int(min(k, vocab_size)))]) == after


def test_zipfs_own_distribution_has_no_hole_in_its_formula() -> None:
    zipf = 1 / np.arange(1, 1001)
    sizes = [truncation.zipf_size(zipf[:100] ** s, 6.0, 1000) for s in (0.999999, 1.0, 1.000001)]
    assert max(sizes) - min(sizes) <= 1
    assert truncation.zipf_size(np.full(7, 1 / 7), 5.0, 7) == 7
    assert truncation.zipf_size(np.full(7, 1 / 7), 0.1, 7) == 1


@pytest.mark.parametrize("version", [1, 2])
def test_a_step_records_what_was_allowed_and_can_be_computed_again(tiny: Loaded, version: int) -> None:
    decoding = Decoding(temperature=1.0, mirostat=version, mirostat_tau=3.0, mirostat_eta=0.2, max_new_tokens=24)
    run = generate(tiny, "Once upon", decoding).finish()
    mu = 6.0
    for step in run.steps:
        assert step.mu == pytest.approx(mu)
        assert step.stages[-1].name == "mirostat"
        p = run.distribution(step.index)
        assert p[step.token_id] == pytest.approx(step.probability, rel=1e-5)
        mu -= 0.2 * (-math.log2(step.probability) - 3.0)
    again = sampling.apply_stages(torch.tensor(run.logits(9)), decoding, Context(mu=run.steps[9].mu))
    assert kept(again[-1].logits) == np.flatnonzero(run.distribution(9)).tolist()


def test_it_aims_at_its_target() -> None:
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(0)) * 1.5
    uniforms = torch.rand(400, generator=torch.Generator().manual_seed(1), dtype=torch.float64).tolist()
    for version in (1, 2):
        decoding = Decoding(temperature=1.0, mirostat=version, mirostat_tau=4.0)
        mu, surprises = sampling.first_mu(decoding), []
        for uniform in uniforms:
            _, probability = sampling.sample(logits, decoding, Context(mu=mu), uniform)
            surprises.append(-math.log2(probability))
            mu = sampling.next_mu(mu, probability, decoding)
        assert np.mean(surprises[100:]) == pytest.approx(4.0, abs=0.2)


def test_without_mirostat_there_is_no_state(tiny: Loaded) -> None:
    for settings in ({"temperature": 1.0}, {"temperature": 0.0, "mirostat": 2}):
        (step,) = generate(tiny, "Once", Decoding(max_new_tokens=1, **settings)).finish().steps
        assert step.mu is None
        assert "mirostat" not in [stage.name for stage in step.stages]
    with pytest.raises(ValueError, match="Mirostat needs"):
        sampling.apply_stages(torch.zeros(5), Decoding(mirostat=2), Context())
