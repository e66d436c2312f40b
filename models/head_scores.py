"""What attention heads were found to do: the scores, their file beside a checkpoint, and the best of each kind.

heads.json (all of it written by `models.heads`):

    {"version": 1,
     "measured": {"seed": 0, "sequences": 8, "period": 64, "length": 256, "text": "tinystories_valid"},
     "heads": [{"kind": "induction", "layer": 3, "head": 1, "score": 0.8125}, ...]}

`heads` holds every head of every layer (counted from 0) once for each kind of `KINDS`, score in [0, 1]. `measured` says
how to measure them again: seed, number of sequences and period of the repeated random tokens, length of the rows of
text in tokens, and a label of the text.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

KINDS = ("previous_token", "induction", "duplicate_token", "first_token", "local")
FILE = "heads.json"
VERSION = 1
MAX_FILE_BYTES = 4 << 20
DIGITS = 4  # of a score in the file


@dataclass(frozen=True)
class HeadScore:
    """How much of one kind a head is, in [0, 1]; layer and head count from 0."""

    kind: str
    layer: int
    head: int
    score: float


def best(scores: Iterable[HeadScore], per_kind: int = 3) -> tuple[HeadScore, ...]:
    """The highest scores of every kind, highest first, in the order of `KINDS`; equal ones by layer and head."""
    ranked = sorted(scores, key=lambda each: (-each.score, each.layer, each.head))
    return tuple(each for kind in KINDS for each in [one for one in ranked if one.kind == kind][:per_kind])


def write_heads(directory: Path, scores: Sequence[HeadScore], measured: Mapping[str, Any]) -> None:
    """Write heads.json into a checkpoint directory."""
    heads = [{**asdict(each), "score": round(each.score, DIGITS)} for each in scores]
    lines = ",\n  ".join(json.dumps(head) for head in heads)
    text = f'{{"version": {VERSION},\n "measured": {json.dumps(dict(measured))},\n "heads": [\n  {lines}]}}\n'
    (directory / FILE).write_text(text, encoding="utf-8")


def read_heads(directory: Path, layers: int, heads: int) -> tuple[HeadScore, ...]:
    """The scores in a checkpoint's heads.json; none, and a line in the log, where the file is not what it should be.

    layers, heads: those of the model; a score of a head that it does not have makes the file wrong.
    """
    path = directory / FILE
    if not path.is_file():
        return ()
    try:
        return tuple(_checked(entry, layers, heads) for entry in _content(path)["heads"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        logging.getLogger(__name__).warning("%s of %s is ignored: %s", FILE, directory.name, error)
        return ()


def read_measured(directory: Path) -> dict[str, Any]:
    """How the scores in heads.json were measured; empty where there is no such file. Raises ValueError if malformed."""
    path = directory / FILE
    return dict(_content(path).get("measured") or {}) if path.is_file() else {}


def _content(path: Path) -> dict[str, Any]:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {MAX_FILE_BYTES >> 20} MiB")
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or content.get("version") != VERSION:
        raise ValueError(f"it is not of version {VERSION}")
    return content


def _checked(entry: Any, layers: int, heads: int) -> HeadScore:
    kind, layer, head, score = entry["kind"], entry["layer"], entry["head"], entry["score"]
    whole = type(layer) is int and type(head) is int and 0 <= layer < layers and 0 <= head < heads
    number = isinstance(score, (int, float)) and not isinstance(score, bool) and 0 <= score <= 1
    if kind not in KINDS or not whole or not number:
        raise ValueError("an entry has an unknown kind, no such head, or a score outside [0, 1]")
    return HeadScore(kind, layer, head, float(score))
