"""How things are measured: in pairs, one right after the other in one process, so that its drift cancels out."""

from __future__ import annotations

import gc
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import torch

STATUS = Path("/proc/self/status")
RESET_PEAK = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Setup:
    """What a case runs on."""

    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 2
    rounds: int = 1
    """Multiplies the number of pairs: more for a steadier result."""


@dataclass(frozen=True)
class Row:
    """One line of the table: a measured value, how far its repetitions lie apart, and what we wanted.

    Attributes:
        case, what: which case, and what was measured in words.
        value, low, high: median, and the quartiles of the repetitions (all three alike for a single measurement).
        unit: "x" for a ratio.
        goal: None when nothing is asked; `at_least` says on which side of it the value should lie.
        notes: the figures behind the value, by name.
    """

    case: str
    what: str
    value: float
    low: float
    high: float
    unit: str = "x"
    goal: float | None = None
    at_least: bool = True
    notes: dict[str, float] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the goal was reached; None without one."""
        if self.goal is None:
            return None
        return self.value >= self.goal if self.at_least else self.value <= self.goal


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """(median, lower quartile, upper quartile)."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return middle, low, high


@contextmanager
def undisturbed() -> Iterator[None]:
    """Garbage is collected before, never during."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def pairs(
    ours: Callable[[], float], theirs: Callable[[], float], count: int, warm_ups: int = 2
) -> list[tuple[float, float]]:
    """Measure both `count` times, alternating which goes first."""
    found = []
    for index in range(-warm_ups, count):
        measured = {}
        for side in (ours, theirs) if index % 2 else (theirs, ours):
            with undisturbed():
                measured[side] = side()
        if index >= 0:
            found.append((measured[ours], measured[theirs]))
    return found


def speed_ratio(case: str, what: str, found: Sequence[tuple[float, float]], goal: float | None = None) -> Row:
    """How many times faster the first of each pair of durations (seconds) is than the second."""
    middle, low, high = quartiles([theirs / ours for ours, theirs in found])
    ours, theirs = (statistics.median(side) * 1e3 for side in zip(*found, strict=True))
    notes = {"ours_ms": ours, "theirs_ms": theirs, "pairs": len(found)}
    return Row(case, what, middle, low, high, goal=goal, notes=notes)


class Intervals:
    """Collects the moments at which tokens appear; usable as a streamer of `transformers.generate`."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    def put(self, _: object) -> None:
        """A token (for generate: first of all the prompt) is there."""
        self.moments.append(perf_counter())

    def end(self) -> None:
        """Nothing follows."""

    def typical(self) -> float:
        """Median seconds from token to token; the prompt and the first token are left out."""
        moments = self.moments[2:]
        return statistics.median(after - before for before, after in pairwise(moments))


def peak_bytes(device: str, act: Callable[[], object]) -> int:
    """Most memory that `act` needs at any moment beyond what the process held before: resident, or the GPU's.

    Run it once in a process of its own: memory that was freed earlier but not returned would hide what is needed.
    """
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        kept = act()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
    else:
        RESET_PEAK.write_text("5")  # the kernel begins a new maximum
        before = _resident("VmRSS")
        kept = act()
        peak = _resident("VmHWM")
    del kept
    return peak - before


def _resident(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", STATUS.read_text())
    if found is None:
        raise OSError(f"{STATUS} has no {name}: memory is measured on Linux only.")
    return int(found[1]) * 1024
