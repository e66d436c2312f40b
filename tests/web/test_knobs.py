"""The settings on the page: none forgotten, ranges that are allowed, presets that mean what they say."""

from __future__ import annotations

from dataclasses import fields

import pytest

from playground import Decoding
from playground.records import LIMITS, NEUTRAL
from playground.sampling import active_stages
from playground.web import knobs
from playground.words import KINDS

ALL = [*knobs.BASIC, *(each for group in knobs.GROUPS for each in group.knobs)]


def decoding(values: dict[str, object]) -> Decoding:
    return Decoding(**{name: value for name, value in values.items() if name not in knobs.TYPED})


def test_every_setting_has_a_widget() -> None:
    words = {becomes: name for name, (becomes, _, _) in KINDS.items()}
    assert sorted(knobs.SETTINGS) == sorted(words.get(each.name, each.name) for each in fields(Decoding))


@pytest.mark.parametrize("knob", ALL, ids=lambda knob: knob.name)
def test_every_widget_explains_itself_and_stays_within_the_limits(knob: knobs.Knob) -> None:
    start = knobs.start(knob.name)
    if knob.name in knobs.TYPED or isinstance(start, bool):
        return
    low, high = LIMITS[knob.name]
    assert low <= knob.low <= start <= knob.high <= high
    assert knob.hint.endswith(".")
    assert len(knob.hint) <= 75
    decoding({knob.name: knob.low})
    decoding({knob.name: knob.high, "max_new_tokens": 400})


def test_every_stage_has_a_name_for_people() -> None:
    assert set(knobs.STAGE_LABELS) >= set(NEUTRAL)
    assert len({knobs.STAGE_LABELS[name] for name in NEUTRAL}) == len(NEUTRAL)


def test_neutral_leaves_the_model_to_itself() -> None:
    (neutral,) = [each for each in knobs.PRESETS if each.name == "neutral"]
    assert active_stages(decoding(dict(neutral.values))) == ()
    assert all(neutral.values[name] == "" for name in KINDS)


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("deterministic", ()),
        ("precise", ("temperature", "top_p")),
        ("balanced", ("temperature", "top_k", "top_p", "min_p")),
        ("creative", ("dry_multiplier", "temperature", "min_p", "xtc_probability")),
        ("steady", ("mirostat",)),
    ],
)
def test_a_preset_switches_on_what_it_names_and_nothing_else(name: str, stages: tuple[str, ...]) -> None:
    (preset,) = [each for each in knobs.PRESETS if each.name == name]
    assert active_stages(decoding(dict(preset.values))) == stages
    assert "max_new_tokens" not in preset.values
    assert "banned_words" not in preset.values


def test_texts_are_typed_as_they_are_read() -> None:
    from playground.words import plain_texts

    texts = ("\n\n", "The end", "a\\nb", "\t")
    assert plain_texts("stop_strings", knobs.typed(texts)) == texts
