"""Branches: equal to a fresh run with that beginning, computed once, sharing memory, and nobody writes to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from models import Loaded
from playground import Decoding, Origin, Run, branch, edit, frames, generate
from playground.past import Past
from playground.pieces import Pieces
from tests.frame_reader import steps_of
from tests.playground.conftest import CONTEXT, PROMPT, keep_no_logits
from tests.playground.test_families import FAMILIES, _built

DECODING = Decoding(max_new_tokens=12, seed=3, stop_at_end=False)
GREEDY = dataclasses.replace(DECODING, temperature=0.0)


def parent_of(loaded: Loaded, decoding: Decoding = DECODING) -> Run:
    return generate(loaded, PROMPT, decoding).finish()


def fresh(loaded: Loaded, ids: list[int], decoding: Decoding) -> Run:
    """A run over the same tokens that shares nothing: all of them are its prompt."""
    return Run(loaded, "", decoding, past=Past(token_ids=tuple(ids), prompt_length=len(ids))).finish()


def assert_same_run(made: Run, other: Run) -> None:
    """Tokens, logits of the steps that both have, maps, q, k before and after rotation, and bytes."""
    assert made.token_ids == other.token_ids
    ahead = len(made.steps) - len(other.steps)
    for step in range(len(other.steps)):
        np.testing.assert_allclose(made.logits(ahead + step), other.logits(step), atol=1e-5)
    assert made.cache_bytes() == other.cache_bytes()
    assert made.steps[-1].cache.layers == other.steps[-1].cache.layers
    for layer in range(len(made.anatomy.heads)):
        np.testing.assert_allclose(made.attention(layer), other.attention(layer), atol=1e-5)
        if made.anatomy.routed:
            for rotated in (True, False):
                np.testing.assert_allclose(made.queries(layer, rotated), other.queries(layer, rotated), atol=1e-4)
                np.testing.assert_allclose(made.keys(layer, rotated), other.keys(layer, rotated), atol=1e-4)


@pytest.mark.parametrize("words", [[17], [17, 40, 99]])
def test_a_branch_equals_a_fresh_run_with_that_beginning(loaded: Loaded, words: list[int]) -> None:
    run = parent_of(loaded, GREEDY)
    made = branch(run, 4, words).finish()
    beginning = run.token_ids[: run.prompt_length + 4] + words
    assert made.token_ids[: len(beginning)] == beginning
    assert made.origin == Origin(run.id, run.prompt_length + 4, 4, len(words))
    assert [step.forced for step in made.steps] == [False] * 4 + [True] * len(words) + [False] * 12
    assert_same_run(made, fresh(loaded, beginning, GREEDY))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_branch(family: str, tiny: Loaded) -> None:
    """Windows, soft-caps, sinks, latents, linear biases, and patterns that are watched."""
    loaded = dataclasses.replace(tiny, model=_built(family))
    run = generate(loaded, PROMPT, GREEDY, chunk=5).finish()
    made = branch(run, 5, [17]).finish()
    assert made.rows == run.rows + 6
    assert_same_run(made, fresh(loaded, made.token_ids[: run.prompt_length + 6], GREEDY))
    frame = frames.delta(made, frames.Cursor(), frames.Focus())
    assert frame is not None
    assert len(steps_of(frame)) == len(made.steps)


def test_the_token_that_was_drawn_anyway_and_a_new_draw_give_the_same_text(tiny: Loaded) -> None:
    run = parent_of(tiny)
    for token in (run.steps[5].token_id, None):
        made = branch(run, 5, token).finish()
        assert made.token_ids[: len(run.token_ids)] == run.token_ids
        assert len(made.token_ids) > len(run.token_ids)
    xtc = dataclasses.replace(DECODING, xtc_probability=0.5, xtc_threshold=0.01)
    strange = parent_of(tiny, xtc)
    made = branch(strange, 5).finish()
    assert made.token_ids[: len(strange.token_ids)] == strange.token_ids


def passes(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Positions of each forward pass from now on."""
    counted: list[int] = []
    forward = loaded.model.forward

    def counting(*args: Any, **kwargs: Any) -> Any:
        counted.append(kwargs["input_ids"].shape[1])
        return forward(*args, **kwargs)

    monkeypatch.setattr(loaded.model, "forward", counting)
    return counted


def test_shared_positions_are_not_computed_again(tiny: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    run = parent_of(tiny)
    counted = passes(tiny, monkeypatch)
    branch(run, 6, [17, 18]).finish()
    # two tokens given and twelve drawn: the first logits are there, and the last token needs none
    assert counted == [1] * 13
    counted.clear()
    made = edit(run, PROMPT.replace("cat who", "cow who"))
    untouched = len(tiny.tokenizer(PROMPT[: PROMPT.index(" cat who")])["input_ids"])
    assert made.origin == Origin(run.id, untouched, 0, 0)
    made.advance()
    assert counted == [made.prompt_length - untouched]


def test_shared_positions_lie_in_the_parents_memory_and_stay_as_they_were(tiny: Loaded) -> None:
    run = parent_of(tiny)
    kept = [each.clone() for each in (*run.recorder.own(), *run.cache.own())]
    made = branch(run, 6, [17]).finish()
    for mine, theirs in zip(made.recorder.borrowed(), run.recorder.own(), strict=True):
        assert mine.data_ptr() == theirs.data_ptr()
    for mine, theirs in zip(made.cache.borrowed(), run.cache.own(), strict=True):
        assert mine.data_ptr() == theirs.data_ptr()
        assert mine.shape[2] == made.origin.shared  # type: ignore[union-attr]
    assert set(made.borrowed()) <= set(run.own())
    assert not set(made.own()) & set(run.own())
    per_position = sum(k + v for k, v in made.cache_bytes()) // made.rows
    own_rows = made.rows - made.origin.shared  # type: ignore[union-attr]
    assert made.cache.measure().reserved == own_rows * per_position
    for before, after in zip(kept, (*run.recorder.own(), *run.cache.own()), strict=True):
        torch.testing.assert_close(before, after, rtol=0, atol=0, equal_nan=True)


def test_a_branch_outlives_its_parent_and_can_branch_again(tiny: Loaded) -> None:
    run = parent_of(tiny)
    made = branch(run, 6, [17]).finish()
    ids = [*made.token_ids[: run.prompt_length + 9], 20]
    del run
    again = branch(made, 9, [20], GREEDY).finish()
    assert len(again.cache.borrowed()) == 2 * len(made.cache.borrowed())
    assert_same_run(again, fresh(tiny, ids, GREEDY))


def test_a_running_parent_may_go_on_beside_its_branch(tiny: Loaded) -> None:
    alone = parent_of(tiny)
    run = generate(tiny, PROMPT, DECODING)
    steps = iter(run)
    for _ in range(5):
        next(steps)
    made = branch(run, 3, [17])
    for _ in range(4):
        made.advance()
        run.advance()
    assert run.finish().token_ids == alone.token_ids
    assert made.finish().token_ids == branch(alone, 3, [17]).finish().token_ids


def test_other_settings_hold_from_the_branch_on_and_the_past_keeps_its_own(tiny: Loaded) -> None:
    run = parent_of(tiny)
    made = branch(run, 4, [17], dataclasses.replace(GREEDY, repetition_penalty=1.3)).finish()
    assert made.steps[:4] == run.steps[:4]
    names = [[stage.name for stage in step.stages] for step in made.steps]
    assert names == [["softmax", "temperature"]] * 4 + [["softmax", "repetition_penalty"]] * 13
    for step in range(4):
        np.testing.assert_array_equal(made.distribution(step), run.distribution(step))
    begun = frames.begin(made, frames.Cursor())
    assert [era["first"] for era in begun["eras"]] == [0, 4]
    assert [len(era["stages"]) for era in begun["eras"]] == [2, 2]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda text: text + " cat", "longer"),
        (lambda text: text[: len(PROMPT) + 3], "shorter"),
        (lambda text: text.replace("small cat", "small dog"), "prompt"),
        (lambda text: "A new story", "all"),
    ],
)
def test_an_edited_text_goes_on_as_if_it_had_been_typed(
    tiny: Loaded, change: Callable[[str], str], expected: str
) -> None:
    run = parent_of(tiny, GREEDY)
    text = change(run.text)
    made = edit(run, text).finish()
    assert made.text.startswith(text)
    beginning = made.token_ids[: len(made.token_ids) - 12]
    assert_same_run(made, fresh(tiny, beginning, GREEDY))
    assert made.origin is not None
    assert (made.origin.shared >= run.prompt_length) == (expected in ("longer", "shorter"))


def test_tokens_before_the_edit_stay_even_if_the_tokenizer_would_cut_them_otherwise(tiny: Loaded) -> None:
    halves = [tiny.tokenizer.convert_tokens_to_ids(letter) for letter in "cat"]
    run = branch(parent_of(tiny), 2, [*halves, tiny.tokenizer.convert_tokens_to_ids("Ġ")]).finish()
    made = edit(run, run.text[: len(PROMPT)] + tiny.tokenizer.decode(run.token_ids[run.prompt_length : -4]))
    assert made.token_ids == run.token_ids[: len(made.token_ids)]


def test_steps_whose_logits_are_not_kept_are_computed_once_more(tiny: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_no_logits(tiny, monkeypatch)
    run = parent_of(tiny, GREEDY)
    made = branch(run, 6, [17]).finish()
    assert made.origin == Origin(run.id, run.prompt_length + 5, 6, 1)
    monkeypatch.undo()
    assert made.token_ids == branch(parent_of(tiny, GREEDY), 6, [17]).finish().token_ids
    assert [len(step.stages) for step in made.steps] == [1] * len(made.steps)
    assert not len(made.step_logits)  # a list with holes would show the logits of other steps


def test_nonsense_gets_one_sentence(tiny: Loaded) -> None:
    run = parent_of(tiny)
    too_long = "cat " * CONTEXT
    for wrong, words in [
        (lambda: branch(run, 13, [17]), "from 0 to 12"),
        (lambda: branch(run, -1, [17]), "from 0 to 12"),
        (lambda: branch(run, True, [17]), "from 0 to 12"),
        (lambda: branch(run, 1, [300]), "from 0 to 299"),
        (lambda: branch(run, 1, [1.5]), "whole number"),  # type: ignore[list-item]
        (lambda: branch(run, 1, ""), "at least one character"),
        (lambda: branch(run, 1, "\ud800"), "surrogate"),
        (lambda: branch(run, 1, too_long), "shorten it"),
        (lambda: edit(run, ""), "empty"),
        (lambda: edit(run, too_long), "shorten it"),
    ]:
        with pytest.raises(ValueError, match=words) as refused:
            wrong()
        assert str(refused.value).count("\n") == 0


def test_pieces_read_across_their_borders() -> None:
    whole = torch.arange(2 * 3 * 10 * 4).reshape(2, 3, 10, 4)
    pieces = Pieces(whole[:, :, 7:], (whole[:, :, :3], whole[:, :, 3:7]))
    assert pieces.start == 7
    for start in range(10):
        for end in range(start, 11):
            torch.testing.assert_close(pieces.rows(start, end, slice(1, 2)), whole[1:2, :, start:end])
            torch.testing.assert_close(torch.cat([whole[:, :, :0], *pieces.until(end)], 2), whole[:, :, :end])
    assert pieces.rows(3, 7).data_ptr() == whole[:, :, 3:].data_ptr()
