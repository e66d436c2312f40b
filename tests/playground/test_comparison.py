"""Two runs compared: the texts piece by piece, the distributions against scipy, the maps against plain subtraction."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon
from scipy.special import rel_entr

from models import Loaded
from playground import Decoding, Run, branch, comparison, generate
from tests.playground.conftest import PROMPT

DECODING = Decoding(max_new_tokens=12, seed=3, stop_at_end=False)


@pytest.fixture(scope="module")
def pair(tiny: Loaded) -> tuple[Run, Run]:
    run = generate(tiny, PROMPT, DECODING).finish()
    return run, branch(run, 4, [17, 40]).finish()


def test_the_parts_of_both_texts_put_them_together_again(pair: tuple[Run, Run]) -> None:
    first, second = pair
    parts = comparison.diff(first, second)
    assert "".join(each.first for each in parts) == first.text
    assert "".join(each.second for each in parts) == second.text
    assert parts[0].same
    assert parts[0].first == parts[0].second
    assert parts[0].first.startswith(PROMPT)
    assert not all(each.same for each in parts)
    assert [each.same for each in comparison.diff(first, first)] == [True]


def test_distances_equal_those_of_scipy(pair: tuple[Run, Run]) -> None:
    first, second = pair
    for position in range(first.prompt_length + 5, first.prompt_length + 10):
        found, movers = comparison.next_token(first, second, position)
        p, q = (run.distribution(position - run.prompt_length, 0).astype(np.float64) for run in pair)
        p, q = p / p.sum(), q / q.sum()
        assert found.total_variation == pytest.approx(np.abs(p - q).sum() / 2)
        assert found.kl == pytest.approx(rel_entr(p, q).sum())
        assert found.kl_back == pytest.approx(rel_entr(q, p).sum())
        assert found.jensen_shannon == pytest.approx(jensenshannon(p, q) ** 2)
        gaps = [abs(each.first - each.second) for each in movers]
        assert gaps == sorted(gaps, reverse=True)
        assert gaps[0] == pytest.approx(np.abs(p - q).max())


def test_a_cut_distribution_may_be_infinitely_far_away() -> None:
    found = comparison.distance(np.array([0.5, 0.5, 0.0]), np.array([1.0, 0.0, 0.0]))
    assert (found.total_variation, found.kl, found.kl_back) == (0.5, float("inf"), pytest.approx(np.log(2)))
    assert 0 < found.jensen_shannon < np.log(2)
    assert comparison.distance(np.array([0.1, 0.9]), np.array([0.1, 0.9])).kl == 0


def test_the_gap_between_two_maps_is_their_difference(pair: tuple[Run, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = pair
    monkeypatch.setattr(comparison, "BAND", 7)
    rows = min(first.rows, second.rows)
    for layer, head in ((0, 0), (2, 5)):
        found = comparison.attention_gap(first, second, layer, head)
        gap = np.abs(first.attention(layer, head)[:rows, :rows] - second.attention(layer, head)[:rows, :rows])
        assert found.positions == rows
        assert found.largest == pytest.approx(gap.max())
        assert gap[found.query, found.key] == pytest.approx(gap.max())
        assert found.mean == pytest.approx(gap[np.tril_indices(rows)].mean())
        since = first.prompt_length + 4
        assert found.query >= since
        assert found.mean_since == pytest.approx(gap[since:].sum() / sum(range(since + 1, rows + 1)))
    assert comparison.attention_gap(first, first, 0, 0).mean_since is None


def test_positions_that_were_not_drawn_in_both_runs_get_one_sentence(pair: tuple[Run, Run]) -> None:
    for position in (0, 10_000):
        with pytest.raises(ValueError, match="not drawn in both runs"):
            comparison.next_token(*pair, position)
