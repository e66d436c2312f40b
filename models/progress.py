"""How far loading has come, and a way out of it: transformers' own progress bars, listened to by whoever asked."""

import threading
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from transformers.utils import logging as transformers_logging

from models.errors import LoadCancelledError


@dataclass(frozen=True)
class Progress:
    """One moment of loading.

    Attributes:
        stage: what is being done, in a few words.
        done, total: tensors read (files fetched) of how many; both 0 where nothing can be counted.
    """

    stage: str
    done: int = 0
    total: int = 0


Told = Callable[[Progress], None]
"""Is told every moment; raising in it ends the loading."""


def nobody(_: Progress) -> None:
    """Nobody wants to know."""


def cancellable(told: Told, cancelled: threading.Event, name: str) -> Told:
    """The same, until `cancelled` is set: then loading ends with LoadCancelledError."""

    def telling(progress: Progress) -> None:
        if cancelled.is_set():
            raise LoadCancelledError(f"Loading {name} was cancelled.")
        told(progress)

    return telling


class _Bar:
    """What transformers takes for a tqdm bar: iterates, and tells after every item."""

    def __init__(self, told: Told, stage: str, items: Any, total: int) -> None:
        self._told, self._stage, self._items, self._total = told, stage, items, total

    def __iter__(self) -> Iterator[Any]:
        for index, item in enumerate(self._items or ()):
            self._told(Progress(self._stage, index, self._total))
            yield item

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None  # close, refresh, set_postfix, ...


@contextmanager
def listening(told: Told) -> Iterator[None]:
    """Inside, bars that this thread makes tell `told` and print nothing; other threads' bars are as they were."""
    mine = threading.get_ident()

    def hook(factory: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if threading.get_ident() != mine:
            return factory(*args, **kwargs)
        items = args[0] if args else kwargs.get("iterable")
        total = kwargs.get("total") or (len(items) if isinstance(items, Sized) else 0)
        return _Bar(told, str(kwargs.get("desc") or "Loading"), items, total)

    before = transformers_logging.set_tqdm_hook(hook)
    try:
        yield
    finally:
        transformers_logging.set_tqdm_hook(before)
