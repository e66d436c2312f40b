"""Learning rates against values worked out by hand, and who decays."""

import itertools

import pytest
import torch

from models.schedule import learning_rate, parameter_groups
from models.settings import Settings


def rates(**changes) -> list[float]:
    settings = Settings(steps=110, warmup=10, learning_rate=1.0, final_rate=0.1, **changes)
    return [learning_rate(step, settings) for step in range(111)]


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_every_schedule_warms_up_in_a_straight_line_and_ends_at_the_final_rate(schedule: str) -> None:
    found = rates(schedule=schedule)
    assert found[:10] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    assert found[10] == 1.0
    assert found[110] == pytest.approx(0.1)


def test_the_cosine_falls_all_the_time_and_is_half_way_in_the_middle() -> None:
    found = rates(schedule="cosine")
    assert found[60] == pytest.approx(0.55)
    assert all(a > b for a, b in itertools.pairwise(found[10:]))


def test_warm_up_stable_decay_holds_its_rate_and_falls_in_a_straight_line_at_the_end() -> None:
    found = rates(schedule="wsd", decay=0.2)  # the last 22 of 110 steps
    assert found[10:89] == [1.0] * 79
    assert found[99] == pytest.approx(0.55)
    falls = [a - b for a, b in itertools.pairwise(found[88:])]
    assert falls == pytest.approx([0.9 / 22] * 22)


def test_steps_beyond_the_plan_keep_the_final_rate() -> None:
    for schedule in ("cosine", "wsd"):
        assert learning_rate(500, Settings(steps=100, schedule=schedule, final_rate=0.0)) == pytest.approx(0.0)


def test_matrices_decay_and_norms_biases_and_frozen_weights_do_not() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 5))
    model[2].requires_grad_(False)
    decayed, spared = parameter_groups(model, 0.1)
    assert [tuple(p.shape) for p in decayed["params"]] == [(4, 3)]
    assert [tuple(p.shape) for p in spared["params"]] == [(4,), (4,), (4,)]
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)
