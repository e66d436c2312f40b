"""Settings refuse nonsense in one sentence that names the setting."""

from __future__ import annotations

import dataclasses
import json

import pytest

from playground import Decoding


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", float("nan")),
        ("temperature", -0.1),
        ("temperature", float("inf")),
        ("temperature", "hot"),
        ("temperature", None),
        ("temperature", True),
        ("top_k", -3),
        ("top_k", 2.5),
        ("top_p", 1.01),
        ("min_p", -1),
        ("repetition_penalty", 0.0),
        ("max_new_tokens", 0),
        ("max_new_tokens", 10**9),
        ("seed", -1),
        ("stop_at_end", "yes"),
        ("order", ["temperature"]),
        ("order", "temperature"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name) as refusal:
        Decoding.from_json({name: value})
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("settings", [None, [], "x", 3])
def test_settings_that_are_no_object_are_refused(settings: object) -> None:
    with pytest.raises(ValueError, match="JSON object"):
        Decoding.from_json(settings)


def test_an_unknown_setting_is_refused_and_the_known_ones_named() -> None:
    with pytest.raises(ValueError, match=r"heat.*temperature"):
        Decoding.from_json({"heat": 1})


def test_settings_survive_json() -> None:
    decoding = Decoding(top_k=5, seed=9, order=("min_p", "top_p", "top_k", "temperature", "repetition_penalty"))
    assert Decoding.from_json(json.loads(json.dumps(decoding.as_dict()))) == decoding


def test_whole_numbers_may_come_as_floats_from_a_slider() -> None:
    assert Decoding(top_k=40.0).top_k == 40
    assert isinstance(Decoding(top_k=40.0).top_k, int)


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Decoding().temperature = 2
