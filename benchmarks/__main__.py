"""Measure and report: `python -m benchmarks [case ...]`. Each case runs in a process of its own."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from benchmarks import decode, memory, report, stages
from benchmarks.measure import Row, Setup

Case = Callable[[Setup], list[Row]]


def _screen(setup: Setup) -> list[Row]:
    from benchmarks.screen import screen  # only this case needs a browser

    return screen(setup)


def _memory(setup: Setup) -> list[Row]:
    rows = []
    for shape in ("llama", "gpt2"):
        ours, theirs = (_in_own_process(setup, f"{shape}:{side}") for side in ("ours", "theirs"))
        notes = {"ours_MB": ours["bytes"] / 1e6, "theirs_MB": theirs["bytes"] / 1e6}
        ratio = ours["bytes"] / theirs["bytes"]
        what = f"peak memory with all attention, 128 to 1,024 tokens, {shape} shape: ours / generate(output_attentions)"
        rows.append(Row("memory", what, ratio, ratio, ratio, goal=1 / 15, at_least=False, notes=notes))
        faster = theirs["seconds"] / ours["seconds"]
        notes = {"ours_s": ours["seconds"], "theirs_s": theirs["seconds"]}
        rows.append(Row("memory", f"speed of the same, {shape} shape", faster, faster, faster, notes=notes))
    return rows


CASES: dict[str, Case] = {
    "capture": decode.capture_alone,
    "watched": decode.watched,
    "against_generate": decode.against_generate,
    "arranged": decode.arranged,
    "memory": _memory,
    "prefill": decode.prefill,
    "stages": stages.stages,
    "screen": _screen,
}


AS_THE_APP = {"watched": {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "10000"}}
"""Environment of cases that measure what happens inside the app, as app.py sets it."""


def main() -> None:
    """The parent starts a child for each case; a child prints its rows as one line of JSON."""
    options = parser().parse_args()
    setup = Setup(options.device, options.dtype or _usual_dtype(options.device), options.threads, options.rounds)
    if options.child:
        torch.set_num_threads(setup.threads)
        print(json.dumps(_child(options.child, setup)))
        return
    rows: list[Row] = []
    for name in options.cases or CASES:
        _warn_when_busy(name)
        found = [Row(**each) for each in _in_own_process(setup, name)]
        rows += found
        print(*(report.line(row) for row in found), sep="\n", flush=True)
    print("\n" + report.write(rows, setup))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    made.add_argument("cases", nargs="*", type=case, help=f"of {', '.join(CASES)}; all when none is named")
    made.add_argument("--device", default="cpu", help="torch device")
    made.add_argument("--dtype", help="float32 or bfloat16; by default bfloat16 on CUDA, else float32")
    made.add_argument("--threads", type=int, default=2, help="CPU threads of torch")
    made.add_argument("--rounds", type=int, default=1, help="times as many repetitions")
    made.add_argument("--child", help=argparse.SUPPRESS)
    return made


def case(name: str) -> str:
    """The name, if there is such a case."""
    if name not in CASES:
        raise argparse.ArgumentTypeError(f"there is no case {name!r}: choose of {', '.join(CASES)}")
    return name


def _usual_dtype(device: str) -> str:
    return "bfloat16" if device.startswith("cuda") else "float32"


def _child(name: str, setup: Setup) -> Any:
    """The rows of a case, or the figures of one side of the memory case ("llama:ours")."""
    if ":" in name:
        shape, side = name.split(":")
        return memory.side(shape, side, setup)
    return [asdict(row) for row in CASES[name](setup)]


def _in_own_process(setup: Setup, name: str) -> Any:
    told = [f"--{key}={value}" for key, value in asdict(setup).items()]
    command = [sys.executable, "-m", "benchmarks", "--child", name, *told]
    quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ | quiet | AS_THE_APP.get(name, {}))
    if done.returncode:
        sys.exit(f"The case {name} failed.")
    return json.loads(done.stdout.splitlines()[-1])


def _warn_when_busy(name: str) -> None:
    busy, cores = os.getloadavg()[0], os.cpu_count() or 1
    if busy > cores / 2:
        print(f"{name}: the machine is busy (load {busy:.1f}), ratios will scatter", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
