"""Run an experiment and print its result; with --record, keep it for the page."""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from models.experiments import RESULTS
from models.experiments.attention_cost import attention_cost
from models.experiments.by_depth import gradients, stability
from models.experiments.causality import causality
from models.experiments.saturation import saturation
from models.experiments.studies import heads, positions

EXPERIMENTS: dict[str, Callable[..., dict[str, Any]]] = {
    "causality": causality,
    "saturation": saturation,
    "stability": stability,
    "gradients": gradients,
    "attention-cost": attention_cost,
    "positions": positions,
    "heads": heads,
}
STUDIES = ("positions", "heads")
"""Those that train, and so take a text and a number of steps."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser("python -m models.experiments", description=__doc__)
    made.add_argument("name", choices=EXPERIMENTS)
    made.add_argument("--data", type=Path, help="text to train on, for " + " and ".join(STUDIES))
    made.add_argument("--steps", type=int, default=600, help="training steps of each model of a study [600]")
    made.add_argument("--threads", type=int, default=1, help="CPU threads [1]")
    made.add_argument("--note", default="", help="a sentence on the circumstances, recorded with the result")
    made.add_argument("--record", action="store_true", help=f"write the result to {RESULTS.name}/")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one experiment."""
    told = parser().parse_args(arguments)
    torch.set_num_threads(told.threads)
    options: dict[str, Any] = {}
    if told.name in STUDIES:
        if told.data is None or not told.data.is_file():
            sys.exit(f"models.experiments: {told.name} trains: name a text file of a few megabytes with --data")
        options = {"text": told.data.read_bytes(), "steps": told.steps, "say": lambda line: print(line, flush=True)}
    begun = time.monotonic()
    result = EXPERIMENTS[told.name](**options)
    trained = f" --data {told.data.name} --steps {told.steps}" if options else ""
    record = {
        "command": f"python -m models.experiments {told.name}{trained} --threads {told.threads}",
        "machine": f"{platform.machine()} CPU, {told.threads} of {os.cpu_count()} threads, torch {torch.__version__}",
        "seconds": round(time.monotonic() - begun),
        "note": told.note,
        "result": result,
    }
    text = json.dumps(record, indent=1)
    print(text)
    if told.record:
        (RESULTS / f"{told.name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
