"""The loss curve shows what the record holds."""

from __future__ import annotations

import json

from playground.web.loss_figure import loss_figure

RECORD = {
    "unit": "nats per token",
    "train": {"step": [1, 2, 3], "tokens": [10, 20, 30], "loss": [8.0, 7.0, 6.0], "rate": [0.1, 0.1, 0.1]},
    "validation": {"some_stories": {"step": [3], "loss": [6.5], "bits_per_byte": [2.0]}},
}


def test_each_set_is_a_line_with_its_own_values() -> None:
    lines = {line.name: (list(line.x), list(line.y)) for line in loss_figure(RECORD).data}
    assert lines == {"training batches": ([1, 2, 3], [8.0, 7.0, 6.0]), "some stories, held out": ([3], [6.5])}


def test_the_scores_of_heads_stand_below_the_losses_on_the_same_steps() -> None:
    heads = {"step": [1, 3], "previous_token": [0.1, 0.6], "induction": [0.0, 0.4]}
    figure = loss_figure({**RECORD, "heads": heads})
    lines = {line.name: (list(line.x), list(line.y)) for line in figure.data if line.yaxis == "y2"}
    assert lines == {"previous token": ([1, 3], [0.1, 0.6]), "induction": ([1, 3], [0.0, 0.4])}
    assert figure.layout.yaxis2.domain[1] < figure.layout.yaxis.domain[0]
    assert tuple(figure.layout.yaxis2.range) == (0.0, 1.0)
    assert figure.layout.height > loss_figure(RECORD).layout.height


def test_an_empty_record_is_an_empty_figure() -> None:
    for record in ({}, {"train": {}, "validation": {}}, {"validation": {"x": {"step": [], "loss": []}}}):
        assert json.loads(loss_figure(record).to_json())["data"] == []
