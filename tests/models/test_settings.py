"""Settings as options, as a command line and against a saved record."""

import argparse
from dataclasses import asdict

import pytest

from models.settings import Settings, Tuning, add_options, command, differences, read_options


@pytest.mark.parametrize("kind", [Settings, Tuning])
def test_options_give_back_what_the_command_line_says(kind: type) -> None:
    settings = kind(steps=7, short_until=0.5, schedule="wsd", compile=True, mixture="a=0.5,b=0.5")
    parser = argparse.ArgumentParser()
    add_options(parser, kind)
    words = command("program", settings).replace("\\\n", " ").split()
    assert words[0] == "program"
    assert read_options(parser.parse_args(words[1:]), kind) == settings


def test_the_command_leaves_defaults_out() -> None:
    assert command("program", Settings(steps=7, compile=True)) == "program \\\n  --steps 7 \\\n  --compile"


def test_the_mixture_may_be_left_out_where_there_is_one_data_set() -> None:
    assert Settings().mixing(("mine",)).shares() == {"mine": 1.0}
    assert Settings(mixture="a=3,b=1").mixing(("a", "b", "c")).shares() == {"a": 3.0, "b": 1.0}
    with pytest.raises(ValueError, match=r"2 data sets: name their shares with --mixture a=0\.5,b=0\.5"):
        Settings().mixing(("a", "b"))


def test_a_record_from_before_an_option_existed_was_made_with_its_default() -> None:
    record = {name: value for name, value in asdict(Settings()).items() if name != "own_words"}
    assert differences(Settings(), record, free=()) == []
    assert differences(Settings(own_words=0.1, seed=2, steps=3), record, free=("steps",)) == ["own_words", "seed"]
