"""The engine against transformers: same tokens, same logits, same bytes; and how a run begins and ends."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from models import Loaded
from playground import Decoding, generate
from playground.engine import plan_bytes
from playground.tokens import piece
from tests.playground.conftest import CONTEXT, PROMPT, keep_no_logits

GREEDY = Decoding(max_new_tokens=24, temperature=0.0, stop_at_end=False)


def test_greedy_text_equals_transformers_generate(loaded: Loaded) -> None:
    run = generate(loaded, PROMPT, GREEDY).finish()
    ids = torch.tensor([run.token_ids[: run.prompt_length]])
    expected = loaded.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert run.token_ids == expected[0].tolist()


@pytest.mark.parametrize("chunk", [1, 3, 256])
def test_logits_of_every_step_equal_one_uncached_forward_pass(loaded: Loaded, chunk: int) -> None:
    run = generate(loaded, PROMPT, GREEDY, chunk=chunk).finish()
    with torch.no_grad():
        expected = loaded.model(torch.tensor([run.token_ids[:-1]]), use_cache=False).logits[0].numpy()
    for step in range(len(run.steps)):
        np.testing.assert_allclose(run.logits(step), expected[run.prompt_length - 1 + step], atol=1e-5)


def test_cache_bytes_equal_those_of_transformers_own_cache(loaded: Loaded) -> None:
    run = generate(loaded, PROMPT, GREEDY).finish()
    cache = DynamicCache()
    with torch.no_grad():
        loaded.model(torch.tensor([run.token_ids[:-1]]), past_key_values=cache, use_cache=True)
    assert run.cache_bytes() == tuple((layer.keys.nbytes, layer.values.nbytes) for layer in cache.layers)
    assert run.steps[-1].cache.layers == run.cache_bytes()
    assert run.steps[-1].cache.positions == len(run.token_ids) - 1 == run.rows


def test_cached_keys_and_values_are_bit_identical_to_transformers_cache(loaded: Loaded) -> None:
    run = generate(loaded, PROMPT, GREEDY)
    run.advance()
    cache = DynamicCache()
    ids = torch.tensor([run.token_ids[: run.prompt_length]])
    with torch.no_grad():
        loaded.model(ids, past_key_values=cache, use_cache=True)
        loaded.model(torch.tensor([run.token_ids[-1:]]), past_key_values=cache, use_cache=True)
    run.advance()
    for layer, theirs in enumerate(cache.layers):
        torch.testing.assert_close(run.cache.keys_at(layer, run.rows), theirs.keys[0], rtol=0, atol=0)
        torch.testing.assert_close(run.cache.values_at(layer, run.rows), theirs.values[0], rtol=0, atol=0)


def test_same_seed_gives_the_same_tokens_and_another_seed_others(tiny: Loaded) -> None:
    first, again, other = (generate(tiny, PROMPT, Decoding(seed=seed)).finish() for seed in (7, 7, 8))
    assert first.token_ids == again.token_ids
    assert first.token_ids != other.token_ids


def test_steps_come_lazily_and_can_be_read_again(tiny: Loaded) -> None:
    run = generate(tiny, PROMPT, Decoding(max_new_tokens=5, stop_at_end=False))
    assert run.state == "pending"
    steps = iter(run)
    first = next(steps)
    assert (first.index, len(run.steps)) == (0, 1)
    rest = list(steps)
    assert [first, *rest] == list(run) == run.steps
    assert run.state == "done"
    assert "5 new tokens" in run.reason


def test_a_long_prompt_is_prefilled_in_chunks_and_can_be_stopped_between_them(tiny: Loaded) -> None:
    run = generate(tiny, PROMPT, chunk=4)
    assert run.advance() is None
    assert (run.state, run.rows) == ("prefill", 4)
    run.stop()
    assert run.advance() is None
    assert (run.state, run.rows, run.steps) == ("stopped", 4, [])


def test_a_run_ends_when_the_context_is_full(loaded: Loaded) -> None:
    run = generate(loaded, PROMPT, Decoding(max_new_tokens=10 * CONTEXT, stop_at_end=False)).finish()
    assert len(run.token_ids) == CONTEXT
    assert "context" in run.reason


def test_a_run_ends_at_the_end_of_text_token_unless_told_otherwise(
    tiny: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = generate(tiny, PROMPT, GREEDY).finish().steps[3].token_id
    monkeypatch.setattr(tiny.model.generation_config, "eos_token_id", [wanted, 299])
    ended = generate(tiny, PROMPT, Decoding(max_new_tokens=24, temperature=0.0)).finish()
    assert ended.token_ids[-1] == wanted
    assert len(ended.steps) <= 4
    assert ended.reason == "The model ended the text."
    assert len(generate(tiny, PROMPT, GREEDY).finish().steps) == 24


def test_the_planned_bytes_are_what_a_whole_run_holds(loaded: Loaded) -> None:
    run = generate(loaded, PROMPT, GREEDY).finish()
    assert run.nbytes == plan_bytes(loaded, run.prompt_length, GREEDY.max_new_tokens)


def test_seconds_are_measured_and_add_up(tiny: Loaded) -> None:
    run = generate(tiny, PROMPT, GREEDY).finish()
    assert run.steps[0].seconds == run.seconds_prefill > 0
    assert sum(step.seconds for step in run.steps[1:]) == pytest.approx(run.seconds_decode)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", "empty"),
        ("\x00", "empty"),
        ("half \ud83d of it", "surrogate"),
        ("cat " * 100_000, "shorten"),
        (None, "text"),
    ],
)
def test_a_prompt_that_cannot_be_read_is_refused_in_one_sentence(tiny: Loaded, prompt: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refusal:
        generate(tiny, prompt)
    assert str(refusal.value).count("\n") == 0
    assert str(refusal.value).endswith(".")


@pytest.mark.parametrize("prompt", ["🦊 fox", "שלום", "tab\tand\x07bell", "   ", "日本語"])
def test_unusual_text_survives_the_round_trip(tiny: Loaded, prompt: str) -> None:
    run = generate(tiny, prompt, Decoding(max_new_tokens=1))
    assert run.text == prompt


def test_pieces_of_a_split_character_are_shown_as_bytes(tiny: Loaded) -> None:
    run = generate(tiny, "🦊")
    assert [run.piece(each) for each in run.token_ids] == ["\\xf0", "\\x9f", "\\xa6", "\\x8a"]


@pytest.mark.parametrize(
    ("raw", "decoded", "shown"),
    [
        ("<0x0A>", "\n", "\n"),
        ("<0xE2>", "\ufffd", "\\xe2"),
        ("\u2581cat", "cat", " cat"),
        ("cat", "cat", "cat"),
        (None, "", "[7]"),
    ],
)
def test_pieces_of_sentencepiece_keep_their_space_and_their_bytes(raw: str | None, decoded: str, shown: str) -> None:
    class Tokenizer:
        def convert_ids_to_tokens(self, ids: list[int]) -> list[str | None]:
            return [raw]

        def decode(self, ids: list[int], **_: bool) -> str:
            return decoded

    assert piece(Tokenizer(), 7) == shown


def test_views_refuse_what_does_not_exist_in_one_sentence(tiny: Loaded) -> None:
    run = generate(tiny, PROMPT, GREEDY)
    with pytest.raises(ValueError, match="Nothing is computed"):
        run.attention(0)
    run.advance()
    for view in (
        lambda: run.attention(9),
        lambda: run.attention(0, 6),
        lambda: run.logits(1),
        lambda: run.attention(-1),
    ):
        with pytest.raises(ValueError, match="does not exist"):
            view()


def test_logits_are_kept_in_the_type_that_the_model_gives_and_shown_in_float32(tiny: Loaded) -> None:
    half = replace(tiny, model=copy.deepcopy(tiny.model).to(torch.bfloat16))
    run = generate(half, PROMPT, Decoding(max_new_tokens=4, top_k=5, stop_at_end=False)).finish()
    assert run.step_logits[0].dtype == torch.bfloat16
    assert run.logits(0).dtype == np.float32
    assert run.nbytes == plan_bytes(half, run.prompt_length, 4)
    step = run.steps[3]
    assert step.probability == pytest.approx(float(run.distribution(3)[step.token_id]), abs=1e-6)


def test_logits_are_dropped_but_stages_kept_when_they_would_take_too_much_room(
    tiny: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = generate(tiny, PROMPT, Decoding(max_new_tokens=4, top_k=5)).finish()
    keep_no_logits(tiny, monkeypatch)
    bare = generate(tiny, PROMPT, Decoding(max_new_tokens=4, top_k=5)).finish()
    assert [step.stages for step in bare.steps] == [step.stages for step in whole.steps]
    with pytest.raises(ValueError, match="fewer new tokens"):
        bare.logits(0)


EVERYTHING = Decoding(
    max_new_tokens=12,
    temperature=1.3,
    dynatemp_range=0.4,
    top_k=60,
    top_p=0.97,
    xtc_probability=0.5,
    xtc_threshold=0.05,
    frequency_penalty=0.5,
    dry_multiplier=0.8,
    no_repeat_ngram_size=3,
    bad_words_ids=[[5]],
    force_words_ids=[[7, 8]],
    min_new_tokens=12,
    seed=3,
)


def test_every_stage_can_be_computed_again_from_the_record(tiny: Loaded) -> None:
    run = generate(tiny, PROMPT, EVERYTHING).finish()
    assert len(run.steps) == 12
    assert len({step.chance for step in run.steps}) == 12
    for step in run.steps:
        last = run.distribution(step.index)
        assert last[step.token_id] == pytest.approx(step.probability, rel=1e-5)
        assert [each.kept for each in step.stages][-1] == int((last > 0).sum())
    new = run.token_ids[run.prompt_length :]
    assert 5 not in new
    assert any(new[at : at + 2] == [7, 8] for at in range(11))
    assert not {0} & set(new)
    assert generate(tiny, PROMPT, EVERYTHING).finish().token_ids == run.token_ids


def test_without_xtc_a_step_draws_one_number(tiny: Loaded) -> None:
    plain = generate(tiny, PROMPT, Decoding(max_new_tokens=3)).finish()
    assert [step.chance for step in plain.steps] == [None] * 3


def test_words_that_do_not_fit_the_model_are_refused_before_anything_runs(tiny: Loaded) -> None:
    with pytest.raises(ValueError, match="names token 99,999"):
        generate(tiny, PROMPT, Decoding(bad_words_ids=[[99_999]]))
