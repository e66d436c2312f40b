"""Small experiments on the architecture, each a function that returns numbers: `python -m models.experiments NAME`.

Recorded results stand in `results/`, with the command, the settings and the machine that made them.
"""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def recorded(name: str) -> dict[str, Any] | None:
    """An experiment as recorded: {"command", "machine", "seconds", "note", "result"}; None where there is none."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
