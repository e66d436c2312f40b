"""What is told of each stage, against the distributions themselves."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from models import Loaded
from playground import Decoding, generate, sampling
from playground.runs import Run
from playground.waterfall import MOVES, SLICES, waterfall

SETTINGS = {"repetition_penalty": 1.6, "top_k": 30, "min_p": 0.01, "temperature": 1.4, "presence_penalty": 1.0}


@pytest.fixture(scope="module")
def run(tiny: Loaded) -> Run:
    return generate(tiny, "Once upon a time there was", Decoding(max_new_tokens=12, seed=4, **SETTINGS)).finish()


def ranks(p: np.ndarray) -> np.ndarray:
    return np.where(p > 0, 1 + (p[None, :] > p[:, None]).sum(1), 0)


def test_ranks_and_probabilities_are_those_of_the_whole_vocabulary(run: Run) -> None:
    for step in (0, 5, 11):
        told = waterfall(run, step)
        distributions = [run.distribution(step, stage) for stage in range(len(run.steps[step].stages))]
        assert len(told["stages"]) == len(distributions)
        for at, stage in enumerate(told["stages"]):
            before, after = distributions[max(0, at - 1)], distributions[at]
            for move in stage["moves"]:
                assert (move["from"], move["to"]) == (ranks(before)[move["id"]], ranks(after)[move["id"]])
                assert move["before"] == pytest.approx(before[move["id"]])
                assert move["after"] == pytest.approx(after[move["id"]])
            ids = {move["id"] for move in stage["moves"]}
            for p in (before, after):
                border = np.sort(p)[-MOVES]
                assert set(np.flatnonzero(p > border).tolist()) <= ids
            assert run.steps[step].token_id in ids


def test_what_a_stage_removed_is_counted_and_the_most_likely_of_it_named(run: Run) -> None:
    for step in run.steps:
        kept = [stage.kept for stage in step.stages]
        told = waterfall(run, step.index)["stages"]
        assert [stage["lost"]["count"] for stage in told] == [0, *(a - b for a, b in pairwise(kept))]
        for at, stage in enumerate(told):
            before, after = run.distribution(step.index, max(0, at - 1)), run.distribution(step.index, at)
            gone = np.flatnonzero((before > 0) & (after == 0))
            assert set(stage["lost"]["ids"]) <= set(gone.tolist())
            if len(gone):
                assert before[stage["lost"]["ids"][0]] == before[gone].max()


def test_the_uniform_number_lies_in_the_slice_of_the_drawn_token(run: Run) -> None:
    for step in run.steps:
        told = waterfall(run, step.index)["slices"]
        at = told["ids"].index(step.token_id)
        assert told["starts"][at] <= told["uniform"] < told["starts"][at] + told["sizes"][at]
        assert told["uniform"] == step.uniform
        assert told["sizes"][at] == pytest.approx(step.probability, rel=1e-5)


def test_slices_follow_the_order_of_ids_and_are_where_the_draw_finds_them(run: Run) -> None:
    for step in run.steps:
        told = waterfall(run, step.index)["slices"]
        p = run.distribution(step.index)
        assert told["ids"] == sorted(told["ids"])
        assert told["count"] == np.count_nonzero(p)
        assert len(told["ids"]) <= SLICES + 1
        for token, start, size in zip(told["ids"], told["starts"], told["sizes"], strict=True):
            assert start == pytest.approx(p[:token].astype(float).sum(), abs=1e-6)
            assert sampling.draw(torch.tensor(p), start + size / 2) == token


def test_greedy_has_no_slices(tiny: Loaded) -> None:
    run = generate(tiny, "Once", Decoding(max_new_tokens=2, temperature=0.0)).finish()
    assert waterfall(run, 1)["slices"] is None


def test_a_step_that_is_not_there_is_refused(run: Run) -> None:
    with pytest.raises(ValueError, match="Step 99 does not exist"):
        waterfall(run, 99)
