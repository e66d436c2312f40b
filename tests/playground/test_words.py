"""Words become token ids: both ways to write them, exact ones in quotes, and a sentence for what cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from models import Loaded, load
from playground import Decoding, generate, words
from playground.tokens import find_stop, quoted, text_after


@pytest.fixture(scope="module")
def shipped() -> Loaded:
    return load("storyteller")


def texts(loaded: Loaded, sequences: Any) -> list[str]:
    return [loaded.tokenizer.decode(list(ids)) for ids in sequences]


def test_a_plain_word_means_itself_behind_a_space_and_without_one(shipped: Loaded) -> None:
    made = words.read(shipped, {"banned_words": "cat\nmoon"}).settings["bad_words_ids"]
    assert texts(shipped, made) == [" cat", "cat", " moon", "moon"]


def test_quotes_mean_exactly_what_they_hold(shipped: Loaded) -> None:
    made = words.read(shipped, {"banned_words": '" cat"\n"moon"\n"\\n"'}).settings["bad_words_ids"]
    assert texts(shipped, made) == [" cat", "moon", "\n"]


def test_a_forced_word_is_written_one_way(shipped: Loaded) -> None:
    made = words.read(shipped, {"forced_words": "dragonfly"}).settings["force_words_ids"]
    assert texts(shipped, made) == [" dragonfly"]


@pytest.mark.parametrize("line", ["cat +2.5", "cat: 2.5", "cat=2.5", "  cat   2.5 "])
def test_a_bias_is_a_word_and_a_number(shipped: Loaded, line: str) -> None:
    made = words.read(shipped, {"word_bias": line}).settings["sequence_bias"]
    assert [(shipped.tokenizer.decode(list(ids)), bias) for ids, bias in made] == [(" cat", 2.5), ("cat", 2.5)]
    negative = words.read(shipped, {"word_bias": ": −3"}).settings["sequence_bias"]
    assert {bias for _, bias in negative} == {-3.0}


def test_texts_stay_texts_and_know_escapes(shipped: Loaded) -> None:
    made = words.read(shipped, {"stop_strings": 'The end\n\\n\\n\n" x "\n"', "dry_sequence_breakers": [" a", "\n"]})
    assert made.settings == {"stop_strings": ("The end", "\n\n", " x ", '"'), "dry_sequence_breakers": (" a", "\n")}


def test_a_word_of_several_tokens_says_so(shipped: Loaded) -> None:
    (note,) = words.read(shipped, {"banned_words": '" dragonfly"'}).notes
    assert note.startswith('" dragonfly" is " dragon" + "f" + "ly": ')
    assert note.endswith(": where it is 3 tokens, the last is removed once the others stand there.")
    (one,) = words.read(shipped, {"banned_words": '" cat"'}).notes
    assert one == '" cat" is " cat".'


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"banned_words": "cat", "forced_words": "cat"}, '"cat" is a forced word, and "cat" is banned'),
        ({"word_bias": "cat"}, 'word_bias: "cat" has no number'),
        ({"word_bias": "cat 200"}, "200 is out of range"),
        ({"banned_words": 3}, "banned_words must be text"),
        ({"banned_words": ["", "a"]}, "banned_words must be text"),
        ({"banned_words": "a", "bad_words_ids": [[3]]}, "the same setting"),
        ({"banned_words": ["\ud800"]}, "surrogate"),
        ({"stop_strings": ["\ud800"]}, "surrogate"),
        ({"stop_strings": "x" * 101}, "1 to 100 characters"),
        ({"banned_words": "x" * 20_001}, "20,000"),
        ({"banned_words": ["x"] * 1001}, "1,000"),
        ({"forced_words": "dragonfly", "max_new_tokens": 2}, "needs 3 tokens"),
        ([], "JSON object"),
    ],
)
def test_nonsense_gets_one_sentence(shipped: Loaded, settings: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as refusal:
        words.decoding(shipped, settings)
    assert "\n" not in str(refusal.value)


def test_what_cannot_be_banned_is_said_before_the_run(tiny: Loaded) -> None:
    everything = [[each] for each in range(tiny.card.vocab_size)]
    with pytest.raises(ValueError, match="bans every token"):
        generate(tiny, "Once", Decoding(bad_words_ids=everything))


def test_banned_words_stay_away_and_forced_ones_come(shipped: Loaded) -> None:
    asked = {"banned_words": "a\nthe", "forced_words": "moon", "max_new_tokens": 40, "temperature": 1.0}
    text = generate(shipped, "Once upon a time", words.decoding(shipped, asked)).finish().text
    new = text.removeprefix("Once upon a time")
    assert " moon" in new
    assert " the " not in new
    assert " a " not in new


def test_the_text_after_a_place_keeps_its_leading_space(shipped: Loaded) -> None:
    ids = shipped.tokenizer("Once upon a time", add_special_tokens=False)["input_ids"]
    for start in range(len(ids) + 1):
        assert shipped.tokenizer.decode(ids[:start]) + text_after(shipped.tokenizer, ids, start) == "Once upon a time"


def test_a_stop_string_is_found_across_tokens_and_not_in_the_prompt(shipped: Loaded) -> None:
    ids = shipped.tokenizer("the end. Then the dragonfly end", add_special_tokens=False)["input_ids"]
    pieces = [shipped.tokenizer.decode([each]) for each in ids]
    start = pieces.index(" Then") if " Then" in pieces else 3
    seen = [
        find_stop(shipped.tokenizer, ids[:end], start, ["agonfl", "the end."]) for end in range(start, len(ids) + 1)
    ]
    assert "the end." not in seen
    first = next(i for i, found in enumerate(seen) if found) + start
    assert "agonfl" in "".join(pieces[start:first])
    assert "agonfl" not in "".join(pieces[start : first - 1])


def test_a_stop_string_ends_the_run_and_the_reason_names_it(shipped: Loaded) -> None:
    decoding = Decoding(max_new_tokens=120, stop_strings=("\n", ". "), seed=3)
    run = generate(shipped, "Once upon a time", decoding).finish()
    new = run.text.removeprefix("Once upon a time")
    found = next(each for each in decoding.stop_strings if each in new)
    assert run.reason == f"The text reached the stop string {quoted(found)}."
    assert run.state == "done"
    last = shipped.tokenizer.decode(run.token_ids[:-1])
    assert not any(each in last.removeprefix("Once upon a time") for each in decoding.stop_strings)


def test_a_stop_string_of_letters_that_are_several_tokens_each(tiny: Loaded) -> None:
    ids = tiny.tokenizer("aé🐉b", add_special_tokens=False)["input_ids"]
    ends = [find_stop(tiny.tokenizer, ids[:end], 1, ["🐉"]) for end in range(2, len(ids) + 1)]
    assert ends[-2:] == ["🐉", "🐉"]
    assert not any(ends[:-2])
