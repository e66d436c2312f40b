"""The record of a run: thinned for JSON, drawn as a picture."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageColor

from models.evaluation import Score
from models.loss_curve import CHECKED, TRAINED, History, _ticks, draw, loss_curve


def history(steps: int) -> History:
    record = History()
    for step in range(1, steps + 1):
        for key, value in {"step": step, "tokens": 10 * step, "loss": 5 / step, "rate": 0.1}.items():
            record.train[key].append(value)
    record.add_validation("some_valid", steps, Score(nats=20.0, tokens=10, bytes=40))
    record.add_heads(steps, {"induction": 0.5})
    return record


def test_a_long_record_is_averaged_to_few_points() -> None:
    curve = loss_curve(history(1000), seed=3, points=100)
    assert [len(column) for column in curve["train"].values()] == [100] * 4
    assert curve["train"]["step"][-1] == 1000
    assert curve["train"]["loss"][0] == round(np.mean([5 / step for step in range(1, 11)]), 4)
    assert curve["validation"]["some_valid"] == {"step": [1000], "loss": [2.0], "bits_per_byte": [20 / np.log(2) / 40]}
    assert curve["heads"] == {"step": [1000], "induction": [0.5]}


def test_the_picture_shows_both_curves(tmp_path: Path) -> None:
    draw(loss_curve(history(50), seed=0), tmp_path / "loss.png")
    with Image.open(tmp_path / "loss.png") as image:
        picture = np.asarray(image.convert("RGB"))
    assert picture.shape == (540, 960, 3)
    for colour in (TRAINED, CHECKED[0]):
        near = np.abs(picture[80:].astype(int) - ImageColor.getrgb(colour)).sum(-1) < 30  # below the legend
        assert near.sum() >= 10, colour


def test_a_record_without_points_is_an_empty_picture(tmp_path: Path) -> None:
    draw(loss_curve(History(), seed=0), tmp_path / "loss.png")
    with Image.open(tmp_path / "loss.png") as image:
        assert image.size == (960, 540)


def test_axes_are_marked_with_few_round_numbers_around_the_data() -> None:
    assert _ticks(0, 120) == [0, 20, 40, 60, 80, 100, 120]
    assert _ticks(0.612, 5.63) == [0, 1, 2, 3, 4, 5, 6]
    for low, high in ((0.0, 0.001), (3.0, 3.0), (2.19, 2.21), (0, 123_456)):
        ticks = _ticks(low, high)
        assert ticks[0] <= low <= high <= ticks[-1]
        assert 2 <= len(ticks) <= 8
