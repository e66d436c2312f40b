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


def test_an_empty_record_is_an_empty_figure() -> None:
    for record in ({}, {"train": {}, "validation": {}}, {"validation": {"x": {"step": [], "loss": []}}}):
        assert json.loads(loss_figure(record).to_json())["data"] == []
