"""Settings refuse nonsense in one sentence that names the setting."""

from __future__ import annotations

import dataclasses
import json

import pytest

from playground import Decoding
from playground.records import STAGE_ORDER


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
        ("order", ["temperature", "temperature"]),
        ("order", ["heat"]),
        ("order", [1]),
        ("temperature", 1e-9),
        ("top_p", 0),
        ("top_p", float("nan")),
        ("typical_p", 0.0),
        ("tfs_z", 0),
        ("epsilon_cutoff", 1),
        ("penalty_last_n", -2),
        ("dry_base", 0.5),
        ("dry_sequence_breakers", [""]),
        ("dry_sequence_breakers", "abc"),
        ("stop_strings", "abc"),
        ("stop_strings", [""]),
        ("stop_strings", ["\ud800"]),
        ("mirostat", 3),
        ("mirostat", 1.5),
        ("mirostat_tau", -1),
        ("mirostat_eta", 2),
        ("sequence_bias", {"3": 1}),
        ("sequence_bias", [[[3], float("nan")]]),
        ("sequence_bias", [[[3], float("inf")]]),
        ("sequence_bias", [[[], 1.0]]),
        ("sequence_bias", [3]),
        ("bad_words_ids", [3]),
        ("bad_words_ids", [[]]),
        ("bad_words_ids", [[-1]]),
        ("bad_words_ids", [[True]]),
        ("bad_words_ids", [[1]] * 1001),
        ("force_words_ids", [["a"]]),
        ("force_words_ids", [[1] * 65]),
        ("min_new_tokens", 65),
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
    decoding = Decoding(
        top_k=5,
        seed=9,
        order=("min_p", "top_p", "top_k", "temperature", "repetition_penalty"),
        sequence_bias=[[[1, 2], 0.5]],
        bad_words_ids=[[3]],
        force_words_ids=[[4, 5]],
        dry_sequence_breakers=["."],
        stop_strings=["\n\n"],
        mirostat=2,
    )
    assert Decoding.from_json(json.loads(json.dumps(decoding.as_dict()))) == decoding


def test_whole_numbers_may_come_as_floats_from_a_slider() -> None:
    assert Decoding(top_k=40.0).top_k == 40
    assert isinstance(Decoding(top_k=40.0).top_k, int)


def test_a_forced_word_that_is_also_banned_is_refused() -> None:
    with pytest.raises(ValueError, match=r"force_words_ids and bad_words_ids both name \[2, 3\]"):
        Decoding(force_words_ids=[[1, 2, 3]], bad_words_ids=[[9], [2, 3]])
    assert Decoding(force_words_ids=[[1, 2]], bad_words_ids=[[2, 1]]).force_words_ids == ((1, 2),)


def test_words_must_fit_the_vocabulary_and_leave_something() -> None:
    with pytest.raises(ValueError, match="bans every token"):
        Decoding(bad_words_ids=[[0], [1], [2]]).check_vocabulary(3)
    for name, value in {"bad_words_ids": [[3]], "force_words_ids": [[1, 3]], "sequence_bias": [[[3], 1]]}.items():
        with pytest.raises(ValueError, match=rf"{name} names token 3.*0 to 2"):
            Decoding.from_json({name: value}).check_vocabulary(3)
    Decoding(bad_words_ids=[[0], [1], [2, 2]]).check_vocabulary(3)


def test_stages_left_out_of_an_order_stay_behind_their_predecessor() -> None:
    assert Decoding(order=("temperature",)).order == STAGE_ORDER
    order = Decoding(order=("min_p", "top_p", "top_k", "temperature", "repetition_penalty")).order
    assert sorted(order) == sorted(STAGE_ORDER)
    assert [name for name in order if name in ("min_p", "top_k", "repetition_penalty")] == [
        "min_p",
        "top_k",
        "repetition_penalty",
    ]
    assert order.index("xtc_probability") == order.index("eta_cutoff") + 1
    assert order.index("mirostat") == order.index("xtc_probability") + 1


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Decoding().temperature = 2
