"""Frames as a reader of them takes them apart, with nothing of the code that made them."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np


def unpack(text: str, dtype: str = "<f4") -> np.ndarray:
    """The numbers of a base64 string, little-endian float32 unless `dtype` says otherwise."""
    return np.frombuffer(base64.b64decode(text), dtype=dtype)


def steps_of(frame: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps of a frame of kind `steps`, a record each, with None where nothing was told."""
    told = frame["steps"]
    ids = unpack(told["ids"], "<u4").tolist()
    probabilities, seconds = (unpack(told[name]).tolist() for name in ("probabilities", "seconds"))
    rare = {name: _rare(told.get(f"{name}s"), len(ids)) for name in ("uniform", "chance", "mu")}
    return [
        {
            "index": told["first"] + i,
            "id": token_id,
            "probability": probabilities[i],
            "seconds": seconds[i],
            "forced": told["first"] + i in told.get("forced", []),
        }
        | {name: values[i] for name, values in rare.items()}
        for i, token_id in enumerate(ids)
    ]


def _rare(column: str | None, count: int) -> list[float | None]:
    if column is None:
        return [None] * count
    return [None if np.isnan(value) else value for value in unpack(column, "<f8").tolist()]
