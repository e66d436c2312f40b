"""The experiments find what is known of them, and what is recorded was made by the commands it names."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch

from models.configuration import DecoderConfig
from models.experiments import recorded
from models.experiments.__main__ import EXPERIMENTS, main, parser
from models.experiments.attention_cost import WAYS, peak_bytes
from models.experiments.by_depth import stability
from models.experiments.causality import causality
from models.experiments.saturation import saturation
from models.experiments.studies import SHAPE, heads, losses, positions, split, trained
from models.presets import PRESETS
from models.twins import twin


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_result_is_recorded_with_a_command_that_can_be_run(name: str) -> None:
    record = recorded(name)
    assert record is not None
    words = record["command"].split()
    assert words[:3] == ["python", "-m", "models.experiments"]
    assert parser().parse_args(words[3:]).name == name
    assert record["result"]
    assert record["machine"]


@pytest.mark.parametrize("name", ["GPT-2 small", "Gemma 2 2B", "BLOOM 560M", "Mixtral 8x7B"])
def test_nothing_looks_ahead_in_designs_of_every_kind(name: str) -> None:
    found = causality(twin(PRESETS[name].config(), 64))
    assert found["causal"]
    assert found["smallest_change_at_and_after"] > 0


def test_scores_deviate_by_the_root_of_the_head_size_unless_divided_by_it() -> None:
    found = saturation()
    for plain, scaled in zip(found["plain"], found["scaled"], strict=True):
        assert plain["deviation"] == pytest.approx(math.sqrt(plain["size"]), rel=0.1)
        assert scaled["deviation"] == pytest.approx(1, rel=0.1)
        assert scaled["jacobian"] == pytest.approx(found["scaled"][-1]["jacobian"], rel=0.1)
    assert found["plain"][-1]["jacobian"] < 0.5 * found["scaled"][-1]["jacobian"]


def test_a_vector_grows_by_the_largest_eigenvalue_unless_it_is_normed() -> None:
    found = stability()["64"]
    steps = [b - a for a, b in itertools.pairwise(found["plain"][50:])]
    assert sum(steps) / len(steps) == pytest.approx(math.log10(found["spectral_radius"]), rel=0.05)
    assert max(found["normed"]) - min(found["normed"][5:]) < 0.5


def test_post_norm_gradients_grow_with_depth_and_pre_norm_ones_fall() -> None:
    record = recorded("gradients")
    assert record is not None
    assert record["result"]["post"][-1] > 1.5 * record["result"]["post"][0]
    assert record["result"]["pre"][-1] < record["result"]["pre"][0]


def test_three_ways_to_attend_agree_and_only_one_keeps_the_whole_matrix() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 512, 16) for _ in range(3))
    outs = [attend(q, k, v) for attend in WAYS.values()]
    for out in outs[1:]:
        torch.testing.assert_close(out, outs[0], atol=1e-5, rtol=1e-5)
    peaks = {name: peak_bytes(attend, q, k, v) for name, attend in WAYS.items()}
    assert peaks["naive"] >= 2 * 512 * 512 * 4
    assert peaks["fused"] < 0.25 * peaks["naive"]


def text(count: int) -> bytes:
    draw = random.Random(0)
    return "".join(draw.choice(["the cat sat. ", "a dog ran. ", "we saw it. "]) for _ in range(count)).encode()


def test_the_position_study_evaluates_every_scheme_at_every_length() -> None:
    found = positions(text(9000), steps=2)
    assert [row["scheme"] for row in found["rows"]] == [
        "learned", "sinusoidal", "rope", "alibi", "none", "rope, linear", "rope, ntk", "rope, yarn",
    ]  # fmt: skip
    by_scheme = {row["scheme"]: row["losses"] for row in found["rows"]}
    for scheme in ("rope, linear", "rope, ntk", "rope, yarn"):
        assert by_scheme[scheme]["128"] == by_scheme["rope"]["128"], "nothing is scaled at the trained length"
        assert by_scheme[scheme]["1024"] != by_scheme["rope"]["1024"]
    assert all(0 < each["all"] < 7 for row in found["rows"] for each in row["losses"].values())


def test_the_head_study_compares_models_of_one_size() -> None:
    rows = heads(text(9000), steps=2)["rows"]
    sizes = [row["parameters"] for row in rows]
    assert max(sizes) < 1.01 * min(sizes)
    assert [row["kv_bytes_per_token"] for row in rows] == [2304, 768, 384]
    assert all(row["milliseconds_per_token"] > 0 for row in rows)


def test_a_study_trains() -> None:
    ids, held_out = split(text(9000))
    config = DecoderConfig(**{**SHAPE, "num_hidden_layers": 1, "hidden_size": 48, "intermediate_size": 64})
    before, after = (losses(trained(config, ids, steps)[0], held_out, 128)["all"] for steps in (1, 25))
    assert after < before - 0.5


def test_a_study_without_a_text_says_what_to_give() -> None:
    with pytest.raises(SystemExit, match="name a text file of a few megabytes with --data"):
        main(["positions"])
    with pytest.raises(ValueError, match="the text has 5 bytes, but the study needs 65,600"):
        split(b"short")
