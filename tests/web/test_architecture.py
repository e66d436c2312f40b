"""What the Architecture page is told: designs from presets and switches, refusals, code that builds what it says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from models import DecoderConfig
from models.accounting import parameters
from models.presets import PRESETS
from playground.web.architecture import FIELDS, background, config_from, design, given_keys, values_of

REST = {"length": 4096, "dtype": "bfloat16", "device": "NVIDIA A100 80 GB SXM"}


def ask(*designs: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return design({"designs": list(designs), **REST, **changes})


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_comes_back_as_it_is_and_its_code_builds_it(name: str) -> None:
    wanted = PRESETS[name].config()
    assert config_from({"preset": name}).to_dict() == wanted.to_dict()
    found = ask({"preset": name, "changes": {}})["designs"][0]
    assert {row[0]: row[1] for row in found["facts"]}["Parameters"] == f"{parameters(wanted).total:,}"
    told = json.loads(found["json"])
    assert told.pop("model_type") == "decoder"
    assert DecoderConfig(**told).to_dict() == wanted.to_dict()
    names: dict[str, Any] = {}
    exec(found["python"], names)
    assert sum(each.numel() for each in names["model"].parameters()) == parameters(wanted).total


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.key)
def test_every_switch_reaches_the_configuration(field: Any) -> None:
    """Of a design in which it matters."""
    base = {"rope_type": "yarn"} if field.key == "factor" else {}
    base |= {"sliding_window": 64} if field.key == "windows" else {}
    base |= {"feed_forward": "experts"} if "experts" in field.key else {}
    base |= {"norm": "layernorm"} if field.key == "norm_bias" else {}
    before = values_of(config_from({"preset": "LLaMA-2 7B", "changes": base}))
    other = {"choice": lambda: next(each for each in field.choices if each != before[field.key]),
             "flag": lambda: not before[field.key], "count": lambda: 2 * before[field.key] or 16,
             "number": lambda: 0.5}[field.kind]()  # fmt: skip
    other = {"num_key_value_heads": 8, "factor": 16.0, "num_local_experts": 4, "num_experts_per_tok": 1}.get(
        field.key, other
    )
    after = values_of(config_from({"preset": "LLaMA-2 7B", "changes": {**base, field.key: other}}))
    assert after[field.key] == other != before[field.key]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_key_value_heads": 5}, "num_attention_heads (32) must be a multiple of num_key_value_heads (5)"),
        ({"position": "alibi", "sliding_window": 64}, "cannot be joined with sliding_window"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be at least 1"),
        ({"num_hidden_layers": 1001}, "Layers must be at most 1,000"),
        ({"hidden_size": 1e9}, "Hidden size must be a number from 0 to 1,000,000"),
        ({"hidden_size": float("nan")}, "Hidden size must be a number from 0 to 1,000,000"),
        ({"hidden_size": "9"}, "Hidden size must be a number"),
        ({"hidden_size": True}, "Hidden size must be a number"),
        ({"norm": "batchnorm"}, "Norm must be one of rmsnorm, layernorm"),
        ({"norm": ["rmsnorm"]}, "Norm must be one of"),
        ({"qk_norm": 1}, "QK-norm must be on or off"),
        ({"_attn_implementation": "x"}, "is no switch of this page"),
        ([], ""),
        ([1], "Choose a preset"),
    ],
)
def test_what_cannot_be_built_is_refused_in_a_sentence(changes: Any, words: str) -> None:
    answer = ask({"preset": "LLaMA-2 7B", "changes": changes})
    assert words in answer.get("error", "")
    assert ("error" in answer) == bool(words)


@pytest.mark.parametrize(
    "request_",
    [None, [], {}, {"designs": 3}, {"designs": [{}], **REST}, {"designs": [None], **REST},
     {"designs": [{"preset": "GPT-2 XL"}], **REST, "length": 0}, {"designs": [], **REST, "length": "many"},
     {"designs": [{"preset": "GPT-2 XL"}], **REST, "device": "abacus"}, {"designs": [{"preset": ["x"]}], **REST}],
)  # fmt: skip
def test_bad_questions_get_an_answer_with_an_error(request_: Any) -> None:
    answer = design(request_)
    assert set(answer) == {"error"} or answer["designs"] == []
    assert "Traceback" not in str(answer)


def test_two_designs_are_compared_by_their_switches() -> None:
    same = ask({"preset": "LLaMA-2 7B"}, {"preset": "LLaMA-2 7B"})
    assert same["differs"] == []
    other = ask({"preset": "LLaMA-2 7B"}, {"preset": "LLaMA-2 7B", "changes": {"num_key_value_heads": 8}})
    assert other["differs"] == ["Key-value heads"]
    facts = [{row[0]: row[1] for row in each["facts"]} for each in other["designs"]]
    assert [each["KV cache of 4,096 tokens"] for each in facts] == ["2.00 GiB", "512.00 MiB"]
    assert [each["name"] for each in other["designs"]] == ["LLaMA-2 7B", "LLaMA-2 7B with changes"]


def test_the_diagram_follows_the_placement_of_norms() -> None:
    def kinds(placement: str) -> list[list[list[str]]]:
        stages = ask({"preset": "LLaMA-2 7B", "changes": {"norm_placement": placement}})["designs"][0]["diagram"][
            "stages"
        ]
        return [[[part["kind"] for part in branch] for branch in stage["branches"]] for stage in stages]

    assert kinds("pre") == [[["norm", "attention"]], [["norm", "feed_forward"]]]
    assert kinds("post") == [[["attention"]], [["feed_forward"]]]
    assert kinds("sandwich") == [[["norm", "attention", "norm"]], [["norm", "feed_forward", "norm"]]]
    assert kinds("parallel") == [[["attention"], ["feed_forward"]]]
    assert kinds("parallel_two_norms") == [[["norm", "attention"], ["norm", "feed_forward"]]]


def test_figures_hold_the_numbers_of_the_sums() -> None:
    shares, flops, caches = ask({"preset": "LLaMA-2 7B"})["figures"]
    assert sum(bar["x"][0] for bar in shares["data"]) == pytest.approx(100)
    cache = next(line for line in caches["data"] if line["name"] == "A: as designed")
    assert dict(zip(cache["x"], cache["y"], strict=True))[4096] == 2048
    squared = next(line for line in flops["data"] if "T²" in line["name"])
    assert squared["y"][-1] == 4 * squared["y"][-2] == 4 * 32 * 4096 * 16384**2


def test_the_page_is_told_of_all_presets_claims_and_experiments() -> None:
    told = background({})
    assert [each["name"] for each in told["presets"]] == list(PRESETS)
    assert sum(not claim["right"] for claim in told["claims"]) >= 5
    assert [each["name"] for each in told["experiments"]] == [
        "causality", "saturation", "stability", "gradients", "attention-cost", "positions", "heads",
    ]  # fmt: skip
    assert all(each["sentence"].endswith(".") and each["figure"]["data"] for each in told["experiments"])
    json.dumps(told, allow_nan=False)
    tables = {each["name"]: each["table"] for each in told["experiments"] if each["table"]}
    assert [row[0] for row in tables["positions"]["rows"]][:5] == ["learned", "sinusoidal", "rope", "alibi", "none"]
    assert all(len(row) == len(each["heads"]) for each in tables.values() for row in each["rows"])


def test_the_configuration_to_copy_leaves_out_what_is_at_its_default() -> None:
    assert given_keys(DecoderConfig()) == {}
    assert given_keys(DecoderConfig(position="alibi")) == {"position": "alibi", "rope_parameters": None}
