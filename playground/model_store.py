"""Which models are loaded, who uses which, and which leave when memory is short.

Beside the runs of `playground.sessions` the only thing that changes while the app runs. Visitors choose among what the
operator offers; a model stays loaded for the next visitor and leaves when another needs its room, the least recently
used first, never one that somebody uses.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models import CheckpointError, LoadCancelledError, Loaded, NoRoomError, Progress, load, shipped
from models.devices import DTYPES, available, give_back_memory
from models.progress import cancellable
from playground.anatomy import prepare
from playground.sessions import MIB, RefusedError, Store

log = logging.getLogger(__name__)
AUTO = "auto"
IN_USE_SECONDS = 120.0
"""A finished run counts as looked at for so long after the last look; its model is not put away meanwhile."""


@dataclass(frozen=True)
class Wanted:
    """A model as somebody asks for it: its name on the menu (or a path, or a hub id), where, and in which numbers."""

    name: str
    device: str = AUTO
    dtype: str = AUTO


@dataclass(frozen=True)
class Shelf:
    """What the operator allows.

    Attributes:
        offered: names on the menu, and where each is loaded from.
        any_model: whether visitors may name other paths and hub ids.
        kept_bytes: weights that may stay loaded in all; None: as much as fits.
        device, dtype: what "auto" means here; None: what `models.load` chooses.
    """

    offered: Mapping[str, str]
    any_model: bool = False
    kept_bytes: int | None = None
    device: str | None = None
    dtype: str | None = None


def offered(names: tuple[str, ...], folder: Path | None) -> dict[str, str]:
    """The menu: the given names, or else what is shipped; and the checkpoints that lie in a folder.

    Raises:
        ValueError: one sentence, when the folder does not exist.
    """
    found = {Path(name).name if Path(name).is_dir() else name: name for name in names or shipped()}
    if folder is not None:
        if not folder.is_dir():
            raise ValueError(f"There is no folder {str(folder)!r} to look for models in.")
        configs = sorted(folder.glob("*/config.json"))
        found |= {each.parent.name: str(each.parent) for each in configs}
    return found


@dataclass(eq=False)
class Loading:
    """One load that is under way; several visitors may wait for it.

    Attributes:
        progress: the last that was heard.
        result: the model, or why there is none.
    """

    wanted: Wanted
    waiting: set[str] = field(default_factory=set)
    cancelled: threading.Event = field(default_factory=threading.Event)
    progress: Progress = field(default_factory=lambda: Progress("Waiting"))
    result: Future[Loaded] = field(default_factory=Future)

    def told(self, progress: Progress) -> None:
        """Take in how far it has come."""
        self.progress = progress


class ModelStore:
    """The loaded models. Every method may be called from any thread."""

    def __init__(
        self, first: Loaded, name: str, shelf: Shelf, runs: Store, loader: Callable[..., Loaded] = load
    ) -> None:
        self.shelf, self._runs, self._loader = shelf, runs, loader
        self.first = Wanted(name)
        self._source = str(first.card.directory or name)  # what the first one is loaded from, should it have to leave
        self._loaded: OrderedDict[Wanted, Loaded] = OrderedDict({self.first: first})  # least recently used first
        self._chosen: dict[str, Wanted] = {}
        self._loading: dict[Wanted, Loading] = {}
        self._lock = threading.RLock()

    # ---- what visitors do

    @property
    def names(self) -> tuple[str, ...]:
        """The menu; what the app was started with stands first."""
        return tuple(dict.fromkeys((self.first.name, *self.shelf.offered)))

    def chosen(self, session: str) -> Wanted:
        """What a visitor has chosen, or else what the app was started with."""
        return self._chosen.get(session, self.first)

    def loaded(self) -> tuple[Loaded, ...]:
        """What is loaded now, the most recently used last."""
        with self._lock:
            return tuple(self._loaded.values())

    def ready(self, session: str) -> bool:
        """Whether the visitor's model is still loaded."""
        return self.chosen(session) in self._loaded

    def of(self, session: str) -> Loaded:
        """The visitor's model; one that was put away meanwhile is loaded again, which takes its time.

        Raises:
            CheckpointError: one sentence, when it cannot be loaded any more.
        """
        return self.begin(session, self.chosen(session)).result.result()

    def begin(self, session: str, wanted: Wanted) -> Loading:
        """Have a model loaded for a visitor, whose choice it is once that has succeeded.

        Raises:
            RefusedError: one sentence, when it is not on the menu, or this machine has no such device.
        """
        self._check(wanted)
        with self._lock:
            found = self._loaded.get(wanted)
            if found is not None:
                self._loaded.move_to_end(wanted)
                self._chosen[session] = wanted
                ready = Loading(wanted)
                ready.result.set_result(found)
                return ready
            loading = self._loading.get(wanted)
            if loading is None or loading.cancelled.is_set():
                loading = self._loading[wanted] = Loading(wanted)
                threading.Thread(target=self._load, args=(loading,), name="load", daemon=True).start()
            loading.waiting.add(session)
            return loading

    def cancel(self, session: str) -> None:
        """A visitor no longer waits; what nobody waits for any more is not loaded further."""
        with self._lock:
            for loading in self._loading.values():
                loading.waiting.discard(session)
                if not loading.waiting:
                    loading.cancelled.set()

    def leave(self, session: str) -> None:
        """The tab was closed."""
        self.cancel(session)
        with self._lock:
            self._chosen.pop(session, None)

    # ---- inside

    def _check(self, wanted: Wanted) -> None:
        if not all(isinstance(each, str) for each in (wanted.name, wanted.device, wanted.dtype)):
            raise RefusedError("Choose a model by its name.")
        if wanted.name not in self.names and not self.shelf.any_model:
            raise RefusedError(f"The model {wanted.name[:60]!r} is not offered here: {', '.join(self.names)} are.")
        if wanted.device not in (AUTO, "cuda", *available()):
            raise RefusedError(
                f"The device {wanted.device[:40]!r} cannot be used here; this machine has {', '.join(available())}."
            )
        if wanted.dtype not in (AUTO, *DTYPES):
            raise RefusedError(f"The dtype {wanted.dtype[:40]!r} is not one of {', '.join(DTYPES)}.")

    def _load(self, loading: Loading) -> None:
        """In a thread of its own, from the first look at the files to the calibration."""
        try:
            loaded = self._read(loading)
            prepare(loaded.model)
        except Exception as error:
            self._finish(loading)
            loading.result.set_exception(_one_sentence(loading.wanted, error))
            give_back_memory()
            return
        with self._lock:
            self._loaded[loading.wanted] = loaded
            for session in self._finish(loading):
                self._chosen[session] = loading.wanted
            self._trim(loading.wanted)
        loading.result.set_result(loaded)

    def _read(self, loading: Loading) -> Loaded:
        """The model; where memory is short, others leave one by one until it fits or none is left that may."""
        wanted = loading.wanted
        of_first = wanted.name == self.first.name
        source = self._source if of_first else self.shelf.offered.get(wanted.name, wanted.name)
        device = self.shelf.device if wanted.device == AUTO else wanted.device
        dtype = self.shelf.dtype if wanted.dtype == AUTO else wanted.dtype
        told = cancellable(loading.told, loading.cancelled, wanted.name)
        while True:
            try:
                return self._loader(source, device, dtype, told=told)
            except NoRoomError as error:
                if not self.put_away_one():
                    if self._loaded:
                        raise NoRoomError(f"{str(error)[:-1]}; {len(self._loaded)} others are in use.") from error
                    raise

    def _finish(self, loading: Loading) -> set[str]:
        with self._lock:
            if self._loading.get(loading.wanted) is loading:
                del self._loading[loading.wanted]
            return set(loading.waiting)

    def _trim(self, newest: Wanted) -> None:
        """Put models away until those that stay are within what the operator allows; never the newest."""
        most = self.shelf.kept_bytes
        while most is not None and sum(each.card.weights_bytes for each in self._loaded.values()) > most:
            if not self.put_away_one(keep=newest):
                return

    def put_away_one(self, keep: Wanted | None = None) -> bool:
        """Let go of the least recently used model that nobody uses; whether there was one."""
        with self._lock:
            free = (each for each in self._loaded if each != keep and not self._in_use(each))
            wanted = next(free, None)
            if wanted is None:
                return False
            self._runs.forget_runs_of(self._loaded.pop(wanted))
        give_back_memory()
        log.info("put away %s", wanted.name)
        return True

    def _in_use(self, wanted: Wanted) -> bool:
        return self._runs.uses(self._loaded[wanted], IN_USE_SECONDS)


def _one_sentence(wanted: Wanted, error: Exception) -> Exception:
    if isinstance(error, LoadCancelledError | CheckpointError | ValueError):
        return error
    log.exception("loading %s failed", wanted.name, exc_info=error)
    return CheckpointError(f"{wanted.name} could not be loaded, and the details are in the server's log.")


def menu_bytes(told: int | None) -> int | None:
    """An operator's megabytes as bytes; 0 and None mean no limit."""
    return told * MIB if told else None


def as_choice(name: Any, device: Any, dtype: Any) -> Wanted:
    """What the page sent, raw; `ModelStore.begin` checks it."""
    return Wanted(name.strip() if isinstance(name, str) else name, device or AUTO, dtype or AUTO)
