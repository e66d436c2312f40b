"""The table of results, for people as Markdown and for programs as JSON."""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.measure import Row, Setup

RESULTS = Path(__file__).resolve().parent / "results"


def write(rows: Sequence[Row], setup: Setup) -> str:
    """Write results/<device>-<dtype>.md and .json; returns the Markdown. Cases not measured now keep their rows."""
    RESULTS.mkdir(exist_ok=True)
    name = f"{setup.device.split(':')[0]}-{setup.dtype}"
    where, told = environment(setup), RESULTS / f"{name}.json"
    rows = [*_kept(told, where, {row.case for row in rows}), *rows]
    told.write_text(
        json.dumps({"environment": where, "rows": [asdict(row) | {"met": row.met} for row in rows]}, indent=1) + "\n"
    )
    text = markdown(rows, where)
    (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
    return text


def _kept(told: Path, where: dict[str, Any], measured: set[str]) -> list[Row]:
    """Rows of earlier runs in the same environment (on any day), without the cases measured now."""
    if not told.exists():
        return []
    before = json.loads(told.read_text())
    if before["environment"] | {"date": ""} != where | {"date": ""}:
        return []
    return [
        Row(**{name: value for name, value in row.items() if name != "met"})
        for row in before["rows"]
        if row["case"] not in measured
    ]


def environment(setup: Setup) -> dict[str, Any]:
    """What the figures were measured on."""
    gpu = setup.device.startswith("cuda")
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "processor": torch.cuda.get_device_name() if gpu else _processor(),
        "threads": setup.threads,
        "dtype": setup.dtype,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def markdown(rows: Sequence[Row], where: dict[str, Any]) -> str:
    """A heading with the machine, and one line for each row."""
    head = f"{where['processor']}, {where['threads']} threads, {where['dtype']}, torch {where['torch']}, "
    head += f"transformers {where['transformers']}, {where['date']}"
    lines = ["# Benchmarks", "", f"{head}. Medians; in brackets the quartiles of the repetitions.", ""]
    lines += ["| what | measured | goal | met | behind it |", "|---|---:|---:|---|---|"]
    return "\n".join([*lines, *map(line, rows)]) + "\n"


def line(row: Row) -> str:
    """One line of the table."""
    value = f"{_number(row.value)}{'' if row.unit == 'x' else ' ' + row.unit}"
    if row.low != row.high:
        value += f" [{_number(row.low)}, {_number(row.high)}]"
    goal = "" if row.goal is None else f"{'≥' if row.at_least else '≤'} {_number(row.goal)}"
    met = {True: "yes", False: "no", None: ""}[row.met]
    notes = ", ".join(f"{name.replace('_', ' ')} {_number(number)}" for name, number in row.notes.items())
    return f"| {row.what} | {value} | {goal} | {met} | {notes} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
