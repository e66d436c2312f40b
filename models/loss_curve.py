"""The record of a training run and the loss curve made of it: as JSON and as a picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from models.evaluation import Score

SIZE, MARGIN, SCALE = (960, 540), (64, 24, 24, 48), 2  # margins: left, top, right, bottom; drawn larger, then shrunk
PAPER, INK, GRID, TRAINED = "#ffffff", "#3a3844", "#e4e2ea", "#a5a2ad"
CHECKED = ("#c2127d", "#0072b2", "#009e73", "#d55e00", "#6553ba")


@dataclass
class History:
    """What a loss curve needs: columns of equal length."""

    train: dict[str, list[float]] = field(default_factory=lambda: {"step": [], "tokens": [], "loss": [], "rate": []})
    validation: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    heads: dict[str, list[float]] = field(default_factory=dict)  # step and, for every kind, the best head's score
    seconds: float = 0.0
    changes: list[list[Any]] = field(default_factory=list)  # [until step, setting, its value until then]

    def add_validation(self, name: str, step: int, result: Score) -> None:
        """Append one measurement of one data set."""
        columns = self.validation.setdefault(name, {"step": [], "loss": [], "bits_per_byte": []})
        columns["step"].append(step)
        columns["loss"].append(result.nats_per_token)
        columns["bits_per_byte"].append(result.bits_per_byte)

    def add_heads(self, step: int, best: dict[str, float]) -> None:
        """Append the best head's score of every kind."""
        for key, value in {"step": step, **best}.items():
            self.heads.setdefault(key, []).append(value)


def loss_curve(history: History, seed: int, points: int = 400) -> dict[str, Any]:
    """The history for JSON, with training losses averaged so that at most `points` remain; nats per token."""
    train = history.train
    width = max(1, math.ceil(len(train["step"]) / points))
    groups = range(0, len(train["step"]), width)
    thinned: dict[str, list[float]] = {
        "step": [train["step"][min(first + width, len(train["step"])) - 1] for first in groups],
        "tokens": [train["tokens"][min(first + width, len(train["step"])) - 1] for first in groups],
        "loss": [round(float(np.mean(train["loss"][first : first + width])), 4) for first in groups],
        "rate": [train["rate"][first] for first in groups],
    }
    return {
        "unit": "nats per token",
        "seed": seed,
        "seconds": round(history.seconds),
        "train": thinned,
        "validation": history.validation,
        "heads": history.heads,
    }


def draw(curve: dict[str, Any], path: Path) -> None:
    """Write the loss curve as PNG: training batches grey, each held-out text in a colour of its own."""
    lines = [("training batches", curve["train"], TRAINED)]
    lines += [
        (f"{name}, held out", columns, CHECKED[index % len(CHECKED)])
        for index, (name, columns) in enumerate(sorted(curve["validation"].items()))
    ]
    lines = [line for line in lines if line[1]["loss"]]
    picture = Image.new("RGB", (SIZE[0] * SCALE, SIZE[1] * SCALE), PAPER)
    if lines:
        _draw_lines(ImageDraw.Draw(picture), lines, curve["unit"])
    picture.resize(SIZE, Image.Resampling.LANCZOS).save(path, optimize=True)


def _draw_lines(pen: ImageDraw.ImageDraw, lines: list[tuple[str, dict[str, list[float]], str]], unit: str) -> None:
    left, top, right, bottom = (margin * SCALE for margin in MARGIN)
    width, height = SIZE[0] * SCALE - left - right, SIZE[1] * SCALE - top - bottom
    steps = _ticks(0.0, max(max(columns["step"]) for _, columns, _ in lines))
    losses = _ticks(
        min(min(columns["loss"]) for _, columns, _ in lines), max(max(columns["loss"]) for _, columns, _ in lines)
    )

    def place(step: float, loss: float) -> tuple[float, float]:
        across = (step - steps[0]) / (steps[-1] - steps[0])
        return left + width * across, top + height * (losses[-1] - loss) / (losses[-1] - losses[0])

    font = ImageFont.load_default(13 * SCALE)
    for loss in losses:
        pen.line([place(steps[0], loss), place(steps[-1], loss)], GRID, SCALE)
        pen.text((left - 8 * SCALE, place(0, loss)[1]), f"{loss:g}", INK, font, anchor="rm")
    for step in steps:
        pen.text((place(step, 0)[0], top + height + 8 * SCALE), f"{step:,.0f}", INK, font, anchor="mt")
    pen.text((left + width, top + height + 26 * SCALE), f"step; loss in {unit}", INK, font, anchor="rt")
    for row, (name, columns, colour) in enumerate(lines):
        points = [place(*point) for point in zip(columns["step"], columns["loss"], strict=True)]
        pen.line(points, colour, 2 * SCALE, joint="curve")
        for x, y in points if len(points) < 60 else ():
            pen.ellipse((x - 3 * SCALE, y - 3 * SCALE, x + 3 * SCALE, y + 3 * SCALE), colour)
        pen.text((left + width, top + (8 + 18 * row) * SCALE), name, colour, font, anchor="rt")


def _ticks(low: float, high: float) -> Sequence[float]:
    """Four to eight round numbers from at most `low` to at least `high`."""
    span = max(high - low, 1e-6)
    size = 10.0 ** math.floor(math.log10(span))
    size *= next(factor for factor in (0.2, 0.5, 1.0, 2.0) if span / (size * factor) <= 6)
    first, last = math.floor(low / size), max(math.ceil(high / size), math.floor(low / size) + 1)
    return [round(number * size, 10) for number in range(first, last + 1)]
