"""Toy text that several tests train on."""

import os
import random
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from models.data import END
from models.training import main

NAMES, VERBS, THINGS = ("Tom", "Ann", "Sam"), ("saw", "had", "hid"), ("a cat", "the sun", "a red ball")
TOY = {
    "mixture": "toy=1.0",
    "vocab_size": 280,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "context_length": 32,
    "rows": 8,
    "learning_rate": 1e-2,
    "warmup": 5,
    "precision": "float32",  # the same on every machine; "auto" would follow the processor
}


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences of three words each drawn at random: their order can be learned, their choice cannot."""
    folder, draw = tmp_path_factory.mktemp("data"), random.Random(0)
    (folder / "toy").mkdir()
    for split, count in (("train", 900), ("valid", 20)):
        lines = [f"{draw.choice(NAMES)} {draw.choice(VERBS)} {draw.choice(THINGS)}." for _ in range(count)]
        text = "".join(f"{' '.join(lines[i : i + 5])}\n{END}\n" for i in range(0, count, 5))
        (folder / "toy" / f"toy_{split}.txt").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def arguments(data: Path) -> Callable[..., list[str]]:
    """The command line of a toy run into a folder, with changes to its options."""

    def listed(folder: Path, **changes) -> list[str]:
        options = {
            **TOY,
            "data": data,
            "work": folder / "work",
            "out": folder / "out",
            "device": "cpu",
            "threads": torch.get_num_threads(),
            "evaluate_every": 30,
            "sample_tokens": 3,
            **changes,
        }
        named = {f"--{key.replace('_', '-')}": value for key, value in options.items()}
        return [name if value is True else f"{name}={value}" for name, value in named.items() if value is not None]

    return listed


@pytest.fixture(scope="session")
def toy(arguments: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished toy run: its folders work and out."""
    folder = tmp_path_factory.mktemp("run")
    main(arguments(folder, steps=50, short_until=0.3))
    return folder


@pytest.fixture
def free_port() -> int:
    """A TCP port of this machine that nobody listens on, below those that outgoing connections are given.

    One of the latter may be taken again before the test listens on it, even by the process that waits to connect to it.
    """
    for port in range(20_000 + os.getpid() % 5_000, 30_000):
        with socket.socket() as sock, suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port
    raise OSError("No port between 20000 and 30000 is free.")


@pytest.fixture(scope="session")
def toy_settings() -> dict:
    """The settings of the toy run, steps left out."""
    return TOY


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table of variants: what each was seen to do in this test run."""
    found: dict[str, dict[str, str]] = {}
    for outcome, mark in (("passed", "yes"), ("failed", "NO"), ("skipped", "-")):
        for report in terminalreporter.stats.get(outcome, []):
            name = re.search(r"test_variants\.py::test_(\w+)\[(.+)\]$", report.nodeid)
            if name and "models" in report.nodeid:
                found.setdefault(name[2], {})[name[1]] = mark
    if not found:
        return
    from tests.models.test_variants import VARIANTS

    columns = ("causal", "cached", "eager", "saved", "compiled", "gradients")
    terminalreporter.section("decoder variants")
    terminalreporter.line(f"{'':24}" + "".join(f"{each:>10}" for each in columns) + "  equal to transformers'")
    for variant, results in found.items():
        marks = "".join(f"{results.get(each, ''):>10}" for each in columns)
        terminalreporter.line(f"{variant:24}{marks}  {VARIANTS[variant][1] or 'none has it'}")
