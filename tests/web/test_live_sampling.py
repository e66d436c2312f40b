"""What the browser re-cuts equals transformers' processors and playground.sampling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from playground import Decoding, sampling, truncation
from playground.penalties import Context
from playground.records import STAGE_ORDER
from tests.web.live_page import module_page

VOCABULARY = 900
SEEN = [3, 5, 5, 700, 12, 3, 5]
ENDS, PROMPT, ROOM, CHANCE, MU = (7, 12), 2, 6, 0.25, 7.5
KNOWN = {"ids": SEEN, "prompt": PROMPT, "room": ROOM, "ends": ENDS, "chance": CHANCE, "mu": MU}
PIECES = [f"{token}:" if token % 10 == 2 else f" {token}" for token in range(VOCABULARY)]
CONTEXT = Context(SEEN, None, PROMPT, ROOM, frozenset(ENDS), CHANCE, MU, PIECES.__getitem__)


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    with module_page(browser) as opened:
        yield opened


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(4)) * 3


def recut(page: Any, logits: torch.Tensor, decoding: Decoding) -> list[dict[str, Any]]:
    """The stages as the browser makes them: name, kept, mass, entropy, probabilities."""
    script = """async ({ logits, settings, known, pieces }) => {
      const { applyStages, describe } = await import("/static/sampling.js");
      const stages = describe(applyStages(Float32Array.from(logits), settings, { ...known, text: (id) => pieces[id] }));
      return stages.map((stage) => ({ ...stage, probabilities: Array.from(stage.probabilities) }));
    }"""
    stages: list[dict[str, Any]] = page.evaluate(
        script, {"logits": logits.tolist(), "settings": decoding.as_dict(), "known": KNOWN, "pieces": PIECES}
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
        ({"min_p": 0.07}, MinPLogitsWarper(0.07)),
        ({"min_p": 1.0}, MinPLogitsWarper(1.0)),
        ({"typical_p": 0.1}, TypicalLogitsWarper(0.1)),
        ({"typical_p": 0.9}, TypicalLogitsWarper(0.9)),
        ({"epsilon_cutoff": 0.002}, EpsilonLogitsWarper(0.002)),
        ({"eta_cutoff": 0.02}, EtaLogitsWarper(0.02)),
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
    assert [stage["name"] for stage in stages] == ["softmax", *sampling.active_stages(decoding)]
    np.testing.assert_allclose(stages[-1]["probabilities"], expected, atol=1e-12)


def test_another_order_gives_what_python_gives(page: Any, logits: torch.Tensor) -> None:
    order = ("top_p", "min_p", "temperature", "repetition_penalty", "top_k")
    agree(page, logits, Decoding(temperature=1.8, top_k=30, top_p=0.8, min_p=0.01, repetition_penalty=1.2, order=order))


@pytest.mark.parametrize(
    "settings",
    [
        {"frequency_penalty": 0.7},
        {"presence_penalty": -0.7},
        {"top_n_sigma": 0.8},
        {"top_n_sigma": 2.0},
        {"tfs_z": 0.2},
        {"tfs_z": 0.97},
        {"top_k": 2, "tfs_z": 0.5},
        {"top_k": 40, "tfs_z": 0.9, "top_n_sigma": 1.0, "typical_p": 0.9, "frequency_penalty": 0.2, "eta_cutoff": 0.01},
    ],
)
@pytest.mark.parametrize("ties", [False, True])
def test_stages_of_llama_cpp_give_what_python_gives(page: Any, logits: torch.Tensor, settings: Any, ties: bool) -> None:
    agree(page, logits.round() if ties else logits, Decoding(temperature=1.0, **settings))


def agree(page: Any, logits: torch.Tensor, decoding: Decoding) -> None:
    """The browser's stages are Python's."""
    applied = sampling.apply_stages(logits.double(), decoding, CONTEXT)
    raw = applied[0].logits.softmax(-1)
    for mine, stage in zip(recut(page, logits, decoding), applied, strict=True):
        kept = stage.logits > -torch.inf
        entropy = torch.distributions.Categorical(logits=stage.logits[kept]).entropy()
        assert (mine["name"], mine["setting"], mine["kept"]) == (stage.name, stage.setting, int(kept.sum()))
        assert mine["mass"] == pytest.approx(float(raw[kept].sum()))
        assert mine["entropy"] == pytest.approx(float(entropy))


TEXTUAL = [
    {"repetition_penalty": 1.4, "penalty_last_n": 2},
    {"frequency_penalty": 0.7, "presence_penalty": 0.4, "penalty_last_n": 3},
    {"dry_multiplier": 0.8, "dry_allowed_length": 1},
    {"dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_sequence_breakers": []},
    {"dry_multiplier": 0.8, "dry_sequence_breakers": ["5 7"], "dry_penalty_last_n": 6},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 3},
    {"no_repeat_ngram_size": 30},
    {"sequence_bias": [[[2], 1.5], [[3, 5, 6], -2.25], [[5, 6], 0.5], [[4, 4], 9.0]]},
    {"bad_words_ids": [[2], [3, 5, 8], [5, 9], [4, 4]]},
    {"min_new_tokens": 6},
    {"min_new_tokens": 5},
    {"force_words_ids": [[12, 3], [400]]},
    {"force_words_ids": [[12, 3], [1, 2, 3, 4, 5, 6]]},
    {"force_words_ids": [[3, 5, 9, 9, 9, 9]]},
]


@pytest.mark.parametrize("settings", TEXTUAL)
def test_stages_that_look_at_the_text_give_what_python_gives(page: Any, logits: torch.Tensor, settings: Any) -> None:
    agree(page, logits, Decoding(temperature=1.0, **settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.9, "dynatemp_range": 0.5, "dynatemp_exponent": 1.5},
        {"temperature": 0.4, "dynatemp_range": 1.0},
        {"temperature": 1.0, "xtc_probability": 0.5, "xtc_threshold": 0.01},
        {"temperature": 1.0, "xtc_probability": 0.2, "xtc_threshold": 0.01},
        {"temperature": 1.0, "mirostat": 1},
        {"temperature": 1.0, "mirostat": 2},
        {"temperature": 1.7, "mirostat": 2, "top_k": 3},
        {"temperature": 1.7, "mirostat": 1, "top_k": 1},
    ],
)
@pytest.mark.parametrize("ties", [False, True])
def test_stages_with_a_number_of_their_step_give_what_python_gives(
    page: Any, logits: torch.Tensor, settings: Any, ties: bool
) -> None:
    agree(page, logits.round() if ties else logits, Decoding(**settings))


def test_all_stages_together_in_a_random_order_give_what_python_gives(page: Any, logits: torch.Tensor) -> None:
    everything = {
        key: value for one in TEXTUAL[:1] + TEXTUAL[2:3] + TEXTUAL[6:7] + TEXTUAL[9:12] for key, value in one.items()
    }
    shapes = {"top_k": 80, "top_p": 0.98, "min_p": 0.001, "typical_p": 0.97, "eta_cutoff": 1e-4, "mirostat": 2}
    for seed in range(6):
        order = [STAGE_ORDER[i] for i in np.random.default_rng(seed).permutation(len(STAGE_ORDER))]
        agree(page, logits, Decoding(temperature=1.2, **everything, **shapes, xtc_probability=0.5, order=order))


VALUES: dict[str, Any] = {
    "repetition_penalty": 1.5,
    "top_k": 5,
    "mirostat": 2,
    "no_repeat_ngram_size": 2,
    "sequence_bias": [[[3], 1.0]],
    "bad_words_ids": [[3]],
    "force_words_ids": [[3]],
    "min_new_tokens": 3,
}


@pytest.mark.parametrize("name", STAGE_ORDER)
def test_the_page_knows_every_stage_and_what_it_lacks_for_one(page: Any, name: str) -> None:
    decoding = Decoding(**{"temperature": 1.0, name: VALUES.get(name, 0.5)})
    script = """async (settings) => {
      const { activeStages, foreignStage } = await import("/static/sampling.js");
      return [activeStages(settings), ...[null, 0.5].map((chance) => foreignStage(settings, { chance }))];
    }"""
    active, without_number, with_number = page.evaluate(script, decoding.as_dict())
    assert active == list(sampling.active_stages(decoding)) == [name]
    assert without_number == (name if name == "xtc_probability" else None)
    assert with_number is None


def test_settings_that_do_the_same_mean_the_same(page: Any) -> None:
    script = """async (pairs) => {
      const { meaning } = await import("/static/sampling.js");
      return pairs.map(([one, other]) => meaning(one) === meaning(other));
    }"""
    order = ["top_p", "top_k"]
    pairs = [
        (Decoding(), Decoding(seed=4, max_new_tokens=7, xtc_threshold=0.3, mirostat_tau=1.0)),
        (Decoding(top_k=4), Decoding(top_k=4, order=order)),
        (Decoding(top_k=4), Decoding(top_k=5)),
        (Decoding(top_k=4, top_p=0.5), Decoding(top_k=4, top_p=0.5, order=order)),
        (Decoding(mirostat=2), Decoding(mirostat=2, mirostat_tau=1.0)),
        (Decoding(temperature=0.0), Decoding(temperature=0.0, top_k=3)),
        (Decoding(temperature=0.0), Decoding(temperature=1.0)),
    ]
    told = page.evaluate(script, [[one.as_dict(), other.as_dict()] for one, other in pairs])
    assert told == [True, True, False, False, False, True, False]


def test_a_window_limits_what_the_penalties_see(page: Any) -> None:
    script = """async () => {
      const { recent } = await import("/static/penalties.js");
      return [recent([1, 2, 3], -1), recent([1, 2, 3], 2), recent([1, 2, 3], 0), recent([1, 2, 3], 9)];
    }"""
    assert page.evaluate(script) == [[1, 2, 3], [2, 3], [], [1, 2, 3]]


def test_ties_at_the_border_of_top_k_stay(page: Any) -> None:
    logits = torch.tensor([0.0, 2.0, 2.0, 2.0, 1.0])
    kept = recut_small(page, logits, top_k=2)
    assert kept == [1, 2, 3]


def recut_small(page: Any, logits: torch.Tensor, **settings: float) -> list[int]:
    script = """async ({ logits, settings }) => {
      const { applyStages } = await import("/static/sampling.js");
      const last = applyStages(Float32Array.from(logits), settings, {}).at(-1).logits;
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
    probabilities = truncation.keep_top_k(logits.double(), 50).softmax(-1)
    script = """async ({ probabilities, uniform }) => {
      const { draw } = await import("/static/sampling.js");
      return draw(Float64Array.from(probabilities), uniform);
    }"""
    drawn = page.evaluate(script, {"probabilities": probabilities.tolist(), "uniform": uniform})
    assert drawn == sampling.draw(probabilities, uniform)
