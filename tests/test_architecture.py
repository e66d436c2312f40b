"""The rules of the house, checked on the source text: who may import whom, and how long things may get."""

from __future__ import annotations

import ast
import importlib
import statistics
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("models", "playground", "benchmarks")

# From the ground up; a module imports from its own floor and from those below it.
STAGES = "records truncation penalties sampling"
ENGINE = f"{STAGES} pieces capture patterns logits anatomy caches interventions threads tokens words past engine"
VIEWS = "attention rope capability runs chat branches comparison measures frames waterfall"
FLOORS = (
    ("models",),
    tuple(f"playground.{name}" for name in ENGINE.split()),
    tuple(f"playground.{name}" for name in VIEWS.split()),
    tuple(f"playground.{name}" for name in ("sessions", "share", "model_store", "talks", "tree")),
    ("playground.web",),
    ("playground.server",),
    ("app",),
    ("benchmarks",),
)
ENGINE_ROOM = FLOORS[0] + FLOORS[1] + FLOORS[2] + FLOORS[3]
PAGE_LIBRARIES = {"gradio", "gradio_client", "plotly", "fastapi", "starlette", "uvicorn"}
LONGEST_FUNCTION = 60
LONGEST_FILE = 600
MEDIAN_FUNCTION = 12
SHORTER_FILES = {"playground/engine.py": 250}


def sources(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [*found, *([ROOT / "app.py"] if (ROOT / "app.py").exists() else [])]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def named(paths: list[Path]) -> list[Any]:
    return [pytest.param(path, id=str(path.relative_to(ROOT))) for path in paths]


def imported(path: Path) -> set[str]:
    """Full names of all modules that a file imports, inside functions too; `from a import b` counts as a and a.b."""
    names: set[str] = set()
    inside = module_name(path).split(".")
    package = inside if path.name == "__init__.py" else inside[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return names


def floor(name: str) -> int | None:
    """Index into FLOORS; None for a module of somebody else and for the bare package `playground`."""
    for index, prefixes in enumerate(FLOORS):
        if any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes):
            return index
    return None


def functions(path: Path) -> list[tuple[str, int]]:
    """(name, number of lines) of every function in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [(n.name, (n.end_lineno or n.lineno) - n.lineno + 1) for n in ast.walk(tree) if isinstance(n, kinds)]


@pytest.mark.parametrize("path", named(sources(*PACKAGES)))
def test_imports_point_one_way(path: Path) -> None:
    own = module_name(path)
    if own == "playground":
        return  # the front door re-exports what users call
    mine = floor(own)
    assert mine is not None, f"{own} has no floor in FLOORS: decide who may import it"
    upward = [name for name in imported(path) if (other := floor(name)) is not None and other > mine]
    assert not upward, f"{own} imports from a floor above its own: {sorted(upward)}"
    if mine == 0:
        assert not any(name.split(".")[0] == "playground" for name in imported(path))


@pytest.mark.parametrize("path", named([p for p in sources("models", "playground") if p.name != "app.py"]))
def test_only_the_page_knows_page_libraries(path: Path) -> None:
    own = module_name(path)
    if own != "playground" and not own.startswith(ENGINE_ROOM):
        return
    foreign = {name.split(".")[0] for name in imported(path)} & PAGE_LIBRARIES
    assert not foreign, f"{own} belongs to the engine and must not import {sorted(foreign)}"


@pytest.mark.parametrize("path", named([p for p in sources("playground/web") if p.name != "app.py"]))
def test_drawing_code_never_touches_torch(path: Path) -> None:
    heavy = {name.split(".")[0] for name in imported(path)} & {"torch", "transformers"}
    assert not heavy, f"{module_name(path)} draws: hand it numpy arrays instead of importing {sorted(heavy)}"


@pytest.mark.parametrize("path", named(sources(*PACKAGES, "tests")))
def test_functions_stay_short(path: Path) -> None:
    long = {name: length for name, length in functions(path) if length > LONGEST_FUNCTION}
    assert not long, f"longer than {LONGEST_FUNCTION} lines: {long}"


def test_most_functions_are_very_short() -> None:
    lengths = [length for path in sources("models", "playground") for _, length in functions(path)]
    if not lengths:
        pytest.skip("no functions yet")
    assert statistics.median(lengths) <= MEDIAN_FUNCTION


def test_files_stay_short() -> None:
    scripts = [p for p in (ROOT / "playground").rglob("*") if p.suffix in {".js", ".mjs", ".css"}]
    for path in [*sources(*PACKAGES, "tests"), *scripts]:
        name = str(path.relative_to(ROOT))
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= SHORTER_FILES.get(name, LONGEST_FILE), f"{name} has {lines} lines"


def test_no_file_is_a_drawer_for_everything() -> None:
    drawers = [
        p for p in sources(*PACKAGES, "tests") if p.stem in {"utils", "util", "common", "shared", "helpers", "misc"}
    ]
    assert not drawers


@pytest.mark.parametrize("path", named([p for p in sources(*PACKAGES) if p.name != "__main__.py"]))
def test_every_module_can_be_imported(path: Path) -> None:
    importlib.import_module(module_name(path))
