"""The conversations of all sessions: what was said so far, kept as long as the session."""

from __future__ import annotations

from typing import Any

from models.chat_template import Turn
from playground.chat import answer, begin, prepare_chat
from playground.records import Decoding
from playground.runs import Run
from playground.sessions import Entry, Store


class Talks:
    """What visitors and the model said to each other. A session's calls come one after another."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._said: dict[str, tuple[Turn, ...]] = {}
        self._answering: dict[str, Run] = {}
        self._left_out: dict[str, str] = {}

    def converse(self, session: str, loaded: Any, said: object, system: object, decoding: Decoding) -> Entry:
        """The answer to what a visitor says next, with what was said before.

        Raises:
            ValueError: one sentence that says what to change.
        """
        for text in (said, system):
            self._store.check(text, decoding)
        before = self.so_far(session, str(system))
        turns = (*before, Turn("user", str(said)))
        prepared = prepare_chat(loaded, turns, decoding.max_new_tokens)
        run = begin(loaded, prepared, decoding)
        entry = self._store.take(session, run)
        self._said[session], self._answering[session] = turns, run
        self._left_out[session] = prepared.words
        return entry

    def left_out(self, session: str) -> str:
        """A sentence on what of the conversation did not fit into the context when it was last read; mostly empty."""
        return self._left_out.get(session, "")

    def so_far(self, session: str, system: str | None = None) -> tuple[Turn, ...]:
        """What was said so far, the last answer included; with another system turn where one is given."""
        turns, run = self._said.get(session, ()), self._answering.get(session)
        said = answer(run) if run is not None and run.finished else ""
        if turns and turns[-1].role == "user":
            turns = (*turns, Turn("assistant", said)) if said else turns[:-1]
        if system is None:
            return turns
        kept = tuple(each for each in turns if each.role != "system")
        return (Turn("system", system), *kept) if system.strip() else kept

    def forget(self, session: str) -> None:
        """A new conversation begins, or the tab was closed."""
        self._said.pop(session, None)
        self._answering.pop(session, None)
        self._left_out.pop(session, None)
