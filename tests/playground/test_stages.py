"""Stages that transformers does not have, against a second computation written for the test; words and penalties."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playground import penalties, truncation

VOCABULARIES = (7, 512, 50_257, 151_936)
KINDS = ("random", "ties", "removed", "single")


def logits_of(vocab_size: int, kind: str) -> torch.Tensor:
    logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * 3
    logits = logits.round() if kind == "ties" else logits
    if kind == "removed":
        logits[::2] = -torch.inf
    if kind == "single":
        logits[torch.arange(vocab_size) != 4] = -torch.inf
    return logits


def kept(logits: torch.Tensor) -> list[int]:
    return (logits > -torch.inf).nonzero()[:, 0].tolist()


def alive(logits: torch.Tensor) -> tuple[list[int], np.ndarray]:
    """Ids from the most likely on, lowest id first among equals, and their probabilities in float64."""
    values = logits.double().numpy()
    order = [int(i) for i in np.lexsort((np.arange(len(values)), -values)) if values[i] > -np.inf]
    return order, logits.softmax(-1).double().numpy()[order]


@pytest.mark.parametrize("vocab_size", VOCABULARIES)
@pytest.mark.parametrize("kind", KINDS)
def test_top_n_sigma_counts_deviations_below_the_largest(kind: str, vocab_size: int) -> None:
    logits = logits_of(vocab_size, kind)
    values = logits.double().numpy()
    finite = values[values > -np.inf]
    for n in (0.5, 2.0):
        border = np.float32(finite.max() - n * finite.std())
        assert kept(truncation.keep_top_n_sigma(logits, n)) == np.flatnonzero(logits.numpy() >= border).tolist()


@pytest.mark.parametrize("vocab_size", VOCABULARIES)
@pytest.mark.parametrize("kind", KINDS)
def test_tail_free_cuts_where_the_bends_are_used_up(kind: str, vocab_size: int) -> None:
    logits = logits_of(vocab_size, kind)
    order, p = alive(logits)
    for z in (0.3, 0.95):
        count = len(order)
        if count > 2:
            bends = [abs((p[i] - p[i + 1]) - (p[i + 1] - p[i + 2])) for i in range(count - 2)]
            total, spent = math.fsum(bends), 0.0
            for i, bend in enumerate(bends):
                spent += bend / total
                if spent > z:
                    count = max(1, i)
                    break
        assert kept(truncation.keep_tail_free(logits, z)) == sorted(order[:count])


@pytest.mark.parametrize("vocab_size", VOCABULARIES)
@pytest.mark.parametrize("kind", KINDS)
def test_xtc_spares_only_the_least_likely_of_the_top_choices(kind: str, vocab_size: int) -> None:
    logits = logits_of(vocab_size, kind)
    for threshold in (0.001, 0.1, 0.5):
        order, p = alive(logits)
        top = [token for token, each in zip(order, p, strict=True) if np.float32(each) >= np.float32(threshold)]
        after = kept(truncation.exclude_top_choices(logits, threshold))
        assert set(kept(logits)) - set(after) == set(top[:-1])


@pytest.mark.parametrize("vocab_size", VOCABULARIES)
@pytest.mark.parametrize("kind", KINDS)
def test_dynamic_temperature_follows_the_entropy(kind: str, vocab_size: int) -> None:
    logits = logits_of(vocab_size, kind)
    order, p = alive(logits)
    changed = truncation.apply_dynamic_temperature(logits, 0.9, 0.5, 1.5)
    if len(order) == 1:
        assert torch.equal(changed, logits)
        return
    p = p[p > 0]
    share = -(p * np.log(p)).sum() / np.log(len(order))
    torch.testing.assert_close(changed, logits / (0.4 + 1.0 * share**1.5), rtol=2e-5, atol=1e-5)


def test_xtc_does_not_spare_what_is_removed_already() -> None:
    logits = torch.tensor([2.0, 1.0, -torch.inf])
    assert kept(truncation.exclude_top_choices(logits, 0.0)) == [1]


def test_dynamic_temperature_of_a_sure_model_stays_finite() -> None:
    changed = truncation.apply_dynamic_temperature(torch.tensor([1000.0, 0.0, -1000.0]), 0.5, 2.0, 1.0)
    assert changed.softmax(-1).tolist() == [1.0, 0.0, 0.0]


def test_frequency_counts_and_presence_does_not() -> None:
    logits = torch.zeros(6)
    assert penalties.apply_frequency_penalty(logits, 0.5, [1, 1, 4]).tolist() == [0, -1, 0, 0, -0.5, 0]
    assert penalties.apply_presence_penalty(logits, 0.5, [1, 1, 4]).tolist() == [0, -0.5, 0, 0, -0.5, 0]
    assert penalties.apply_presence_penalty(logits, -2.0, []).tolist() == [0] * 6
    assert logits.tolist() == [0] * 6


@pytest.mark.parametrize(("last_n", "expected"), [(-1, [1, 2, 3]), (0, []), (2, [2, 3]), (9, [1, 2, 3])])
def test_a_window_holds_the_last_ids(last_n: int, expected: list[int]) -> None:
    assert list(penalties.window([1, 2, 3], last_n)) == expected


def longest_endings(ids: list[int], limit: int) -> dict[int, int]:
    """By comparing everything with everything."""
    found: dict[int, int] = {}
    for at in range(1, len(ids)):
        n = 0
        while n < at and ids[at - 1 - n] == ids[len(ids) - 1 - n]:
            n += 1
        if n:
            found[ids[at]] = max(found.get(ids[at], 0), min(n, limit))
    return found


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 2), max_size=40), limit=st.integers(0, 40))
def test_repetitions_are_found_in_linear_time_and_rightly(ids: list[int], limit: int) -> None:
    assert penalties.repetitions(ids, limit) == longest_endings(ids, limit)


def test_dry_punishes_what_prolongs_a_repetition() -> None:
    ids = [0, 1, 2, 2, 1, 2, 5, 0, 1, 2]  # a b c c b c y a b c, the example in llama.cpp's source
    assert penalties.repetitions(ids, 10) == {2: 3, 1: 1, 5: 2}
    changed = penalties.apply_dry(torch.zeros(6), 0.8, 1.75, 2, penalties.repetitions(ids, 10), {5})
    torch.testing.assert_close(changed, torch.tensor([0, 0, -0.8 * 1.75, 0, 0, 0]))


def test_dry_stays_finite_however_long_the_repetition() -> None:
    changed = penalties.apply_dry(torch.zeros(3), 100.0, 100.0, 1, {1: 5000}, set())
    assert torch.isfinite(changed).all()
    assert float(changed[1]) < -1e29


@pytest.mark.parametrize(
    ("pieces", "breakers", "expected"),
    [
        (["a", "b", "c"], [":"], 3),
        (["a", ":", "c"], [":"], 1),
        (["a", "b:", "c", "d"], [":", "*"], 2),
        (["a", ":"], [":"], 0),
        (["a", "\n", "\n", "c"], ["\n\n"], 1),
        (["x", "##", "# y", "z", "w"], ["###"], 2),
        ([], [":"], 0),
        (["a"], [], 1),
    ],
)
def test_a_breaker_ends_a_repetition(pieces: list[str], breakers: list[str], expected: int) -> None:
    assert penalties.since_breaker(range(len(pieces)), breakers, pieces.__getitem__) == expected


def test_a_ban_that_would_leave_nothing_is_not_carried_out() -> None:
    logits = torch.tensor([1.0, 2.0, -torch.inf])
    assert kept(penalties.ban_words(logits, [[0]], [])) == [1]
    assert torch.equal(penalties.ban_words(logits, [[0], [1]], []), logits)
    assert torch.equal(penalties.delay_end(logits, 3, 0, frozenset({0, 1, 2})), logits)


def drawn(words: list[list[int]], room: int, wish: list[int], end: int = 9) -> list[int]:
    """What comes out when the model wants `wish`, then always the end."""
    ids: list[int] = []
    while len(ids) < room:
        wanted = wish[len(ids)] if len(ids) < len(wish) else end
        logits = torch.zeros(10)
        logits[wanted] = 5.0
        ids.append(int(penalties.force_words(logits, words, ids, room - len(ids), frozenset({end})).argmax()))
        if ids[-1] == end:
            break
    return ids


def test_forced_words_come_at_the_latest_when_room_runs_out() -> None:
    assert drawn([[1, 2], [3]], 5, [7, 7, 7, 7, 7]) == [7, 7, 1, 2, 3]
    assert drawn([[1, 2]], 5, [1, 2]) == [1, 2, 9]
    assert drawn([[1, 2]], 3, [7, 1, 7]) == [7, 1, 2]
    assert drawn([[1, 1, 2]], 3, [7]) == [1, 1, 2]


@settings(max_examples=100, deadline=None)
@given(
    words=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3), max_size=3),
    spare=st.integers(0, 4),
    wish=st.lists(st.integers(0, 9), max_size=12),
)
def test_every_forced_word_stands_in_the_text(words: list[list[int]], spare: int, wish: list[int]) -> None:
    room = sum(map(len, words)) + spare
    text = drawn(words, room, wish)
    assert len(text) <= room
    for word in words:
        assert any(text[at : at + len(word)] == word for at in range(len(text)))


def test_a_forced_word_that_an_earlier_stage_removed_comes_all_the_same() -> None:
    logits = torch.tensor([1.0, -torch.inf, 2.0])
    assert kept(penalties.force_words(logits, [[1]], [], 1, frozenset())) == [1]
