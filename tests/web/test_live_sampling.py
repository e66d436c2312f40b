"""What the browser re-cuts equals transformers' processors and playground.sampling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from playground import Decoding, sampling
from tests.web.live_page import module_page

VOCABULARY = 900
SEEN = [3, 5, 5, 700, 12]


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    with module_page(browser) as opened:
        yield opened


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(4)) * 3


def recut(page: Any, logits: torch.Tensor, decoding: Decoding) -> list[dict[str, Any]]:
    """The stages as the browser makes them: name, kept, mass, entropy, probabilities."""
    script = """async ({ logits, settings, seen }) => {
      const { applyStages, describe } = await import("/static/sampling.js");
      const stages = describe(applyStages(Float32Array.from(logits), settings, seen));
      return stages.map((stage) => ({ ...stage, probabilities: Array.from(stage.probabilities) }));
    }"""
    stages: list[dict[str, Any]] = page.evaluate(
        script, {"logits": logits.tolist(), "settings": decoding.as_dict(), "seen": SEEN}
    )
    return stages


@pytest.mark.parametrize(
    ("settings", "processor"),
    [
        ({"repetition_penalty": 1.7}, RepetitionPenaltyLogitsProcessor(1.7)),
        ({"repetition_penalty": 0.6}, RepetitionPenaltyLogitsProcessor(0.6)),
        ({"temperature": 0.31}, TemperatureLogitsWarper(0.31)),
        ({"temperature": 3.0}, TemperatureLogitsWarper(3.0)),
        ({"top_k": 1}, TopKLogitsWarper(1)),
        ({"top_k": 37}, TopKLogitsWarper(37)),
        ({"top_k": 5000}, TopKLogitsWarper(5000)),
        ({"top_p": 0.9}, TopPLogitsWarper(0.9)),
        ({"top_p": 0.05}, TopPLogitsWarper(0.05)),
        ({"top_p": 0.0}, TopPLogitsWarper(0.0)),
        ({"min_p": 0.07}, MinPLogitsWarper(0.07)),
        ({"min_p": 1.0}, MinPLogitsWarper(1.0)),
    ],
)
def test_each_stage_equals_the_transformers_processor_of_its_name(
    page: Any, logits: torch.Tensor, settings: dict[str, float], processor: Any
) -> None:
    (name,) = settings
    neutral = {"temperature": 1.0, "max_new_tokens": 1}
    stages = recut(page, logits, Decoding(**{**neutral, **settings}))
    assert [stage["name"] for stage in stages] == ["softmax", name]
    expected = processor(torch.tensor([SEEN]), logits[None].double())[0].softmax(-1).numpy()
    np.testing.assert_allclose(stages[-1]["probabilities"], expected, atol=1e-12)
    assert stages[-1]["kept"] == int((expected > 0).sum())


def test_the_chain_equals_the_processors_in_their_order(page: Any, logits: torch.Tensor) -> None:
    decoding = Decoding(temperature=0.7, top_k=60, top_p=0.92, min_p=0.02, repetition_penalty=1.3)
    stages = recut(page, logits, decoding)
    chain = LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(1.3),
            TemperatureLogitsWarper(0.7),
            TopKLogitsWarper(60),
            TopPLogitsWarper(0.92),
            MinPLogitsWarper(0.02),
        ]
    )
    expected = chain(torch.tensor([SEEN]), logits[None].double())[0].softmax(-1).numpy()
    assert [stage["name"] for stage in stages] == ["softmax", *decoding.order]
    np.testing.assert_allclose(stages[-1]["probabilities"], expected, atol=1e-12)


def test_another_order_gives_what_python_gives(page: Any, logits: torch.Tensor) -> None:
    order = ("top_p", "min_p", "temperature", "repetition_penalty", "top_k")
    decoding = Decoding(temperature=1.8, top_k=30, top_p=0.8, min_p=0.01, repetition_penalty=1.2, order=order)
    seen = sampling.seen_tokens(SEEN, VOCABULARY)
    applied = sampling.apply_stages(logits.double(), decoding, seen)
    raw = applied[0].logits.softmax(-1)
    for mine, stage in zip(recut(page, logits, decoding), applied, strict=True):
        kept = stage.logits > -torch.inf
        entropy = torch.distributions.Categorical(logits=stage.logits[kept]).entropy()
        assert (mine["name"], mine["setting"], mine["kept"]) == (stage.name, stage.setting, int(kept.sum()))
        assert mine["mass"] == pytest.approx(float(raw[kept].sum()))
        assert mine["entropy"] == pytest.approx(float(entropy))


def test_ties_at_the_border_of_top_k_stay(page: Any) -> None:
    logits = torch.tensor([0.0, 2.0, 2.0, 2.0, 1.0])
    kept = recut_small(page, logits, top_k=2)
    assert kept == [1, 2, 3]


def recut_small(page: Any, logits: torch.Tensor, **settings: float) -> list[int]:
    script = """async ({ logits, settings }) => {
      const { applyStages } = await import("/static/sampling.js");
      const last = applyStages(Float32Array.from(logits), settings, []).at(-1).logits;
      return Array.from(last.keys()).filter((i) => last[i] > -Infinity);
    }"""
    full = Decoding(**{"temperature": 1.0, **settings}).as_dict()  # type: ignore[arg-type]
    kept: list[int] = page.evaluate(script, {"logits": logits.tolist(), "settings": full})
    return kept


def test_greedy_has_no_filters(page: Any, logits: torch.Tensor) -> None:
    stages = recut(page, logits, Decoding(temperature=0.0, top_k=3, top_p=0.5, min_p=0.5))
    assert [stage["name"] for stage in stages] == ["softmax"]


@pytest.mark.parametrize("uniform", [0.0, 1e-9, 0.2, 0.5, 0.99, 1 - 2**-53])
def test_the_same_random_number_draws_the_same_token(page: Any, logits: torch.Tensor, uniform: float) -> None:
    probabilities = sampling.keep_top_k(logits.double(), 50).softmax(-1)
    script = """async ({ probabilities, uniform }) => {
      const { draw } = await import("/static/sampling.js");
      return draw(Float64Array.from(probabilities), uniform);
    }"""
    drawn = page.evaluate(script, {"probabilities": probabilities.tolist(), "uniform": uniform})
    assert drawn == sampling.draw(probabilities, uniform)
