"""Who runs what: the one place that changes while the app runs.

A `Store` holds the runs of every browser session, counts their bytes and refuses what cannot fit. One `Worker` thread
makes all forward passes, one step of each active run in turn, at its own pace. Whoever shows a run only looks at it:
`Entry.frame` puts into one message all that happened since the last look, so looking more seldom costs nothing.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import orjson

from models.devices import free_bytes
from playground import Run, branch, edit, engine, frames, generate, tree
from playground.records import Decoding

log = logging.getLogger(__name__)
T = TypeVar("T")
MIB = 1 << 20
LONGEST_LABEL = 40
"""Characters of a run's name."""
MOSAIC_FIRST, MOSAIC_SECONDS, MOSAIC_SHARE, MOSAIC_EVERY = 24, 0.0025, 0.008, 0.09
"""The small pictures of all heads cost more than the rest of a frame. The first ones show so many rows, later ones as
many as take so many seconds of work. Then they rest until that was no more than this part of the time, at least so many
seconds; and so those of a long prompt fill up in a while. What took longer than meant, as the first of a process may,
does not make them rest longer."""


class RefusedError(ValueError):
    """What was asked for cannot be done here; the message is one sentence that says what to change."""


@dataclass(frozen=True)
class Choice:
    """What somebody chose in place of what a run did.

    Attributes:
        run: id of that run.
        step: the step to choose anew; None where the whole text was edited.
        token: an id instead of the drawn one; None for what `text` says.
        text: what is typed there, or the whole edited text.
    """

    run: str
    step: int | None = None
    token: int | None = None
    text: str | None = None

    def made(self, run: Run, decoding: Decoding) -> Run:
        """The branch. Raises `ValueError` with one sentence."""
        if self.step is None:
            return edit(run, self.text or "", decoding)
        return branch(run, self.step, self.text if self.token is None else self.token, decoding)


class Reader(Protocol):
    """Who asked for one frame, told by whichever thread has made it."""

    def waits(self) -> bool:
        """Whether anybody still wants it."""

    def tell(self, frame: str | None) -> None:
        """Here it is; None when the run is retired, or nothing is new."""

    def fail(self, error: Exception) -> None:
        """It could not be made."""


@dataclass(frozen=True)
class Limits:
    """What one visitor and all of them together may use.

    Attributes:
        session_bytes: memory that the runs of one browser session may hold.
        total_bytes: the same for all sessions together.
        new_tokens: tokens that one run may draw.
        prompt_characters: length of the longest prompt that is read.
        active: runs that may be under way at the same time, all sessions together.
        seconds: wall-clock time of one run; a reader that left must not keep the model busy.
        idle_seconds: how long a finished run is kept after the last look at it.
        log_bytes: frames kept for each run, to hand out again what a browser lost.
    """

    session_bytes: int = 512 * MIB
    total_bytes: int = 2048 * MIB
    new_tokens: int = 1024
    prompt_characters: int = 20_000
    active: int = 8
    seconds: float = 600.0
    idle_seconds: float = 1800.0
    log_bytes: int = 16 * MIB


@dataclass(eq=False)
class Entry:
    """One run, and how much of it has been shown.

    Attributes:
        planned: bytes that the run will hold at its end.
        focus: the head whose exact rows travel with the frames.
        settled: the worker has let go of the run; until then a step that was under way may still be added.
        retired: forgotten, or replaced by a newer run of its session; nobody should show it any more.
        over: the last frame was made.
        cost: seconds that the last look took, without the mosaic, which has its own share of the time.
        label: what the session calls the run.
    """

    run: Any
    session: str
    planned: int
    limits: Limits
    clock: Callable[[], float]
    focus: frames.Focus = field(default_factory=lambda: frames.Focus(0, 0))
    settled: bool = False
    retired: bool = False
    over: bool = False
    cost: float = 0.0
    label: str = ""
    _chances: tuple[dict[str, float] | None] | None = None
    _asked: deque[tuple[float, Reader]] = field(default_factory=deque)
    _cursor: frames.Cursor = field(default_factory=frames.Cursor)
    _log: deque[tuple[int, str]] = field(default_factory=deque)
    _logged: int = 0
    _prefilled: int = -1
    _mosaic_due: float = 0.0

    def __post_init__(self) -> None:
        self.started = self.touched = self.clock()
        self._looking = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes held now; while the run is under way, at least what it will hold at its end."""
        held = self.run.nbytes + self._logged
        return held if self.run.finished else max(held, self.planned)

    @property
    def parent(self) -> str | None:
        """Id of the run that this one continues."""
        return self.run.origin.run if self.run.origin else None

    def chances(self) -> dict[str, float] | None:
        """How likely the model found what the finished run says; worked out once."""
        if self._chances is None:
            self._chances = (tree.chances(self.run),)
        return self._chances[0]

    def touch(self) -> None:
        """Somebody looked: the run is not idle."""
        self.touched = self.clock()

    def frame(self) -> str | None:
        """JSON of everything since the last call, None when there is nothing new; the last one is of kind `end`."""
        with self._looking:
            self.touch()
            started, tiled = time.perf_counter(), self._cursor.tiled
            finished = self.settled  # asked first: what happens after this line belongs to the next frame
            made = self._next()
            if made is None and finished and not self.over:
                made, self.over = frames.end(self.run, self._cursor), True
            text = None if made is None else self._remember(made)
            mosaic, now = (self._cursor.tiled - tiled) * self._cursor.tile_seconds, time.perf_counter()
            self.cost = now - started - mosaic
            if mosaic:
                self._mosaic_due = now + max(min(mosaic, MOSAIC_SECONDS) / MOSAIC_SHARE, MOSAIC_EVERY)
            return text

    @property
    def fresh(self) -> bool:
        """No frame was made yet."""
        return self._cursor.seq == 0

    def ask(self, reader: Reader, due: float = 0.0) -> None:
        """Tell `reader` the next frame, made by whoever computes the run, between two steps; not before `due`.

        Made in a thread of its own it would fight with decoding for Python's lock and the cores, and cost it more; and
        so would one that woke up when it is due only to ask.
        """
        self._asked.append((due, reader))
        if self.settled or self.retired:
            self.answer()

    def answer(self) -> None:
        """Make the frames that are due, all that were asked for when the run is over; None for one that is retired."""
        while self._asked:
            try:
                due, reader = self._asked[0]  # it stays until it is sure to be answered: whoever ends the run sees it
                if due > self.clock() and not (self.settled or self.retired):
                    return
                self._asked.remove((due, reader))
            except (IndexError, ValueError):  # another thread answers it
                return
            if not reader.waits():
                continue
            try:
                frame = None if self.retired else self.frame()
            except Exception as error:
                reader.fail(error)
            else:
                reader.tell(frame)

    def _next(self) -> dict[str, Any] | None:
        run, cursor = self.run, self._cursor
        if cursor.seq == 0:
            return frames.begin(run, cursor)
        if run.state == "prefill" and run.rows != self._prefilled:
            self._prefilled = run.rows
            return frames.prefill(run, cursor)
        return frames.delta(run, cursor, self.focus, self._mosaic_rows())

    def _mosaic_rows(self) -> int:
        """How many more rows of the mosaic may be made now."""
        if time.perf_counter() < self._mosaic_due:
            return 0
        each = self._cursor.tile_seconds
        return max(1, int(MOSAIC_SECONDS / each)) if each else MOSAIC_FIRST

    def _remember(self, frame: dict[str, Any]) -> str:
        text = encoded(frame)
        self._log.append((int(frame["seq"]), text))
        self._logged += len(text)
        while self._logged > self.limits.log_bytes and len(self._log) > 1:
            self._logged -= len(self._log.popleft()[1])
        return text

    def replay(self) -> list[dict[str, Any]]:
        """The run from its first frame on: those that were told, made again where some of them are gone."""
        with self._looking:
            self.touch()
            if self._log and self._log[0][0] == 0 and (self.over or not self.settled):
                return [json.loads(text) for _, text in self._log]
            if not self.settled:
                return []  # whoever watches it is told soon
            cursor = frames.Cursor()
            told = [frames.begin(self.run, cursor), frames.delta(self.run, cursor, self.focus)]
            return [*filter(None, told), frames.end(self.run, cursor)]

    def logged(self, first: int, last: int) -> list[dict[str, Any]]:
        """The frames numbered `first` to `last` that were made so far. Raises `RefusedError` when some are gone."""
        with self._looking:
            self.touch()
            if self._log and first < self._log[0][0]:
                raise RefusedError("That part of the run is no longer kept: press Generate to make it again.")
            return [json.loads(text) for seq, text in self._log if first <= seq <= last]


def encoded(frame: dict[str, Any]) -> str:
    """JSON of a frame. The quick library refuses lone surrogates; the standard one writes them as escapes."""
    try:
        return orjson.dumps(frame).decode()
    except TypeError:
        return json.dumps(frame, separators=(",", ":"))


class Store:
    """The runs of all sessions. Every method may be called from any thread."""

    def __init__(self, limits: Limits | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits or Limits()
        self.clock = clock
        self.closed = False
        self._entries: dict[str, Entry] = {}  # by run id, oldest first
        self._active: deque[Entry] = deque()
        self._errands: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._numbers: dict[str, int] = {}  # runs that each session has begun
        self._changed = threading.Condition()

    # ---- what sessions do

    def start(self, session: str, loaded: Any, prompt: str, decoding: Decoding) -> Entry:
        """A new run of `session`, made by the worker from now on; ends the one it had under way.

        Raises:
            ValueError: one sentence that says what to change (bad prompt, no room, too many runs).
        """
        self.check(prompt, decoding)
        run = generate(loaded, prompt, decoding)
        return self._begin(session, run, run.prompt_length)

    def take(self, session: str, run: Run) -> Entry:
        """A run that somebody else has begun, as `start` would have made it."""
        return self._begin(session, run, run.prompt_length)

    def branch(self, session: str, choice: Choice, decoding: Decoding) -> Entry:
        """Another way on from a run of `session`, which stays; what is under way in the session ends.

        Raises:
            ValueError: one sentence that says what to change.
        """
        parent = self.owned(session, choice.run)
        self.check(choice.text or "", decoding)
        run = choice.made(parent.run, decoding)
        parent.touch()
        return self._begin(session, run, run.capacity - decoding.max_new_tokens)

    def _begin(self, session: str, run: Run, given: int) -> Entry:
        """Take in a run whose first `given` tokens are not drawn; the worker makes it from now on."""
        new = run.decoding.max_new_tokens
        planned = engine.plan_bytes(run.loaded, max(given, 1), new)
        room = min(self.limits.session_bytes, self.limits.total_bytes)
        if planned > room:
            raise RefusedError(too_large(run.loaded, planned, room, new))
        free = free_bytes(run.loaded.device)
        if planned > free:
            raise RefusedError(too_large(run.loaded, planned, free, new, "free on its device"))
        with self._changed:
            self._admit(session, keep=run.origin is not None)
            self._make_room(session, planned)
            self._numbers[session] = self._numbers.get(session, 0) + 1
            entry = Entry(run, session, planned, self.limits, self.clock, label=f"Run {self._numbers[session]}")
            self._entries[run.id] = entry
            self._active.append(entry)
            self._changed.notify_all()
        return entry

    def owned(self, session: str, run_id: object) -> Entry:
        """The run of that id, if it belongs to `session`. Raises `RefusedError` otherwise."""
        entry = self.find(run_id)
        if entry.session != session:
            raise RefusedError("This run belongs to another page: press Generate to make one here.")
        return entry

    def rename(self, session: str, run_id: object, label: object) -> Entry:
        """Call a run of `session` something else. Raises `RefusedError` with one sentence."""
        entry = self.owned(session, run_id)
        name = " ".join(label.split()) if isinstance(label, str) else ""
        if not 1 <= len(name) <= LONGEST_LABEL or not name.isprintable():
            raise RefusedError(f"The name of a run needs 1 to {LONGEST_LABEL} characters.")
        entry.label = name
        return entry

    def delete(self, session: str, run_id: object) -> None:
        """Forget a run of `session`; its branches stay, and with them the memory that they share with it."""
        entry = self.owned(session, run_id)
        with self._changed:
            self._forget(entry)

    def find(self, run_id: object) -> Entry:
        """The run of that id. Raises `RefusedError` where there is none (any more)."""
        with self._changed:
            entry = self._entries.get(run_id) if isinstance(run_id, str) else None
        if entry is None:
            raise RefusedError("This run is no longer kept: press Generate to make it again.")
        entry.touch()
        return entry

    def stop(self, session: str) -> None:
        """End the run that `session` has under way, if any; it stays to be read."""
        for entry in self.runs(session):
            if not entry.run.finished:
                entry.run.stop()

    def leave(self, session: str) -> None:
        """The tab was closed: end and forget all runs of `session`."""
        with self._changed:
            for entry in [each for each in self._entries.values() if each.session == session]:
                self._forget(entry)
            self._numbers.pop(session, None)

    def runs(self, session: str | None = None) -> list[Entry]:
        """Runs of one session (of all for None), oldest first."""
        with self._changed:
            return [each for each in self._entries.values() if session is None or each.session == session]

    def uses(self, loaded: Any, seconds: float) -> bool:
        """Whether a run with this model is under way, or was looked at in the last seconds."""
        since = self.clock() - seconds
        return any(each.run.loaded is loaded and (not each.settled or each.touched > since) for each in self.runs())

    def forget_runs_of(self, loaded: Any) -> None:
        """That model goes: so do the runs it has made."""
        with self._changed:
            for entry in [each for each in self._entries.values() if each.run.loaded is loaded]:
                self._forget(entry)

    def used(self, session: str | None = None) -> int:
        """Bytes counted for one session (for all for None)."""
        return held_bytes(self.runs(session))

    @property
    def active(self) -> int:
        """Runs under way."""
        return len(self._active)

    def errand(self, work: Callable[[], T]) -> Future[T]:
        """Something short that needs the model, done by the worker between two steps: nobody else may run it.

        Raises:
            RefusedError: one sentence, when there are too many already, or the server is shutting down.
        """
        asked: Future[T] = Future()
        with self._changed:
            self._refuse_if_closed()
            if len(self._errands) >= self.limits.active:
                raise RefusedError(f"{len(self._errands)} other texts are waiting: try again in a few seconds.")
            self._errands.append((work, asked))
            self._changed.notify_all()
        return asked

    # ---- what the worker does

    def run_errand(self) -> None:
        """Do the errand that waits longest, if there is one."""
        try:
            work, asked = self._errands.popleft()
        except IndexError:
            return
        if asked.set_running_or_notify_cancel():
            try:
                asked.set_result(work())
            except Exception as error:
                asked.set_exception(error)

    def turn(self, patience: float) -> Entry | None:
        """The run whose turn it is; waits for one up to `patience` seconds."""
        with self._changed:
            if not self._active and not self._errands and not self.closed:
                self._changed.wait(patience)
            if not self._active:
                return None
            self._active.rotate(-1)
            return self._active[-1]

    def done(self, entry: Entry) -> None:
        """That run has ended: it takes no more turns."""
        with self._changed:
            if entry in self._active:
                self._active.remove(entry)
            entry.settled = True
            self._changed.notify_all()
        entry.answer()

    def sweep(self) -> None:
        """Forget finished runs that nobody has looked at for long."""
        oldest = self.clock() - self.limits.idle_seconds
        with self._changed:
            entries = list(self._entries.values())
            for entry in [each for each in entries if each.settled and last_touched(each, entries) < oldest]:
                self._forget(entry)

    def wait(self, reached: Callable[[], bool], seconds: float) -> bool:
        """Block until `reached()` holds, asked again whenever a run starts or ends."""
        with self._changed:
            return self._changed.wait_for(reached, seconds)

    def close(self) -> None:
        """Stop all runs and take no new ones."""
        with self._changed:
            self.closed = True
            for entry in self._active:
                entry.run.stop()
            self._changed.notify_all()

    # ---- inside: the lock is held

    def check(self, prompt: object, decoding: Decoding) -> None:
        """Refuse what is too long, of a prompt or of the answer. Raises `RefusedError` with one sentence."""
        if not isinstance(prompt, str):
            raise RefusedError("The prompt must be text.")
        longest = self.limits.prompt_characters
        if len(prompt) > longest:
            raise RefusedError(f"The prompt has {len(prompt):,} characters: shorten it to {longest:,} or fewer.")
        if decoding.max_new_tokens > self.limits.new_tokens:
            raise RefusedError(
                f"Max new tokens is {decoding.max_new_tokens:,}: ask for {self.limits.new_tokens:,} or fewer."
            )

    def _refuse_if_closed(self) -> None:
        if self.closed:
            raise RefusedError("The server is shutting down: try again in a minute.")

    def _admit(self, session: str, keep: bool) -> None:
        """End what `session` has under way and forget it unless `keep`, where there is a turn to be had."""
        self._refuse_if_closed()
        mine = [entry for entry in self._active if entry.session == session]
        others = len(self._active) - len(mine)
        if others >= self.limits.active:
            raise RefusedError(f"{others} other runs are under way: try again in a few seconds.")
        for entry in mine:
            entry.run.stop() if keep else self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        entry.retired = True
        entry.run.stop()
        entry.answer()
        self._entries.pop(entry.run.id, None)
        if entry in self._active:
            self._active.remove(entry)

    def _make_room(self, session: str, planned: int) -> None:
        self._evict(self.limits.session_bytes - planned, session)
        if not self._evict(self.limits.total_bytes - planned, None):
            raise RefusedError(
                "The memory for runs is in use by others: try again in a few seconds, or with a shorter prompt."
            )

    def _evict(self, allowed: int, session: str | None) -> bool:
        """Forget the longest idle runs until the rest fits into `allowed` bytes; whether it does."""
        mine = [each for each in self._entries.values() if session is None or each.session == session]
        while held_bytes(mine) > allowed:
            idle = [each for each in mine if each.settled]
            if not idle:
                return False
            entry = min(idle, key=lambda each: (last_touched(each, mine), has_branch(each, mine)))
            mine.remove(entry)
            self._forget(entry)
        return True


def held_bytes(entries: Sequence[Entry]) -> int:
    """Bytes that some runs hold together: what a branch shares counts once, after its parent is forgotten, too."""
    shared = {at: size for each in entries if each.run.origin for at, size in each.run.borrowed().items()}
    if shared:
        for each in entries:
            for at in each.run.own():
                shared.pop(at, None)
    return sum(entry.nbytes for entry in entries) + sum(shared.values())


def last_touched(entry: Entry, entries: Sequence[Entry]) -> float:
    """When somebody last looked at a run or at one that continues it: a parent is needed as long as its branches."""
    children = [each for each in entries if each.parent == entry.run.id]
    return max([entry.touched, *(last_touched(each, entries) for each in children)])


def has_branch(entry: Entry, entries: Sequence[Entry]) -> bool:
    """Whether another of the runs continues this one."""
    return any(each.parent == entry.run.id for each in entries)


def too_large(loaded: Any, planned: int, room: int, new_tokens: int, words: str = "allowed") -> str:
    """One sentence: what a run would need, what there is, and the longest prompt that fits."""
    need = f"This run would hold {planned / MIB:,.1f} MiB and {room / MIB:,.1f} MiB are {words}"
    low, high = 0, 1 << 24
    while low < high:  # plan_bytes grows with the prompt: the largest length that fits, by halving
        middle = (low + high + 1) // 2
        low, high = (middle, high) if engine.plan_bytes(loaded, middle, new_tokens) <= room else (low, middle - 1)
    if low == 0:
        return f"{need}: ask for fewer than {new_tokens:,} new tokens."
    return f"{need}: with {new_tokens:,} new tokens the prompt may have up to {low:,} tokens."


class Worker(threading.Thread):
    """The one thread that computes: a step of each active run in turn, and the frames that were asked for."""

    def __init__(self, store: Store, sweep_seconds: float = 30.0) -> None:
        super().__init__(name="decode", daemon=True)
        self._store = store
        self._sweep_seconds = sweep_seconds

    def run(self) -> None:
        """Until the store is closed and its last run has ended."""
        swept = self._store.clock()
        while True:
            entry = self._store.turn(self._sweep_seconds)
            self._store.run_errand()
            if entry is not None:
                self.advance(entry)
            elif self._store.closed:
                return
            if self._store.clock() - swept > self._sweep_seconds:
                swept = self._store.clock()
                self._store.sweep()

    def advance(self, entry: Entry) -> None:
        """One forward pass of one run; whatever goes wrong becomes the run's state, never the thread's end."""
        run = entry.run
        try:
            if self._store.clock() - entry.started > entry.limits.seconds:
                run.end(
                    "stopped", f"Stopped after {entry.limits.seconds:,.0f} s, the longest that one run may take here."
                )
            run.advance()
        except Exception as error:
            log.exception("run %s failed", run.id)
            run.end("error", explained(error))
        if run.finished:
            run.rest()
            self._store.done(entry)
        else:
            entry.answer()


def explained(error: Exception) -> str:
    """One sentence for the page; the details stand in the log."""
    if "out of memory" in str(error).lower() or isinstance(error, MemoryError):
        return "The device ran out of memory: shorten the prompt or ask for fewer new tokens."
    return "The model failed at this step, and the details are in the server's log: try other settings."
