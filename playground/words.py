"""Words as people type them, and the token ids that they mean for a model: banned, forced and biased words.

One entry a line. In the middle of a sentence a word has a space before it, and other tokens than without one; so a
plain word means both, and a word in double quotes exactly what the quotes hold. Line breaks, tabs and backslashes are
typed as `ESCAPES` has them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from playground.records import LARGEST_BIAS, MOST_WORDS, Decoding, within
from playground.tokens import piece, quoted

if TYPE_CHECKING:
    from models import Loaded

ANCHOR = "\n"
"""Words are read behind a line break: at the beginning of a text some tokenizers put a space before them."""
ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}
LONGEST_TEXT = 20_000
BIASED = re.compile(r"(?P<word>\S.*?)\s*[=:\s]\s*(?P<bias>[+\-−]?\d+(?:\.\d+)?)")

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Word:
    """One typed word.

    Attributes:
        text: what it stands for.
        variants: the token ids of each way to write it: behind a space and without one.
    """

    text: str
    variants: tuple[Ids, ...]


@dataclass(frozen=True)
class Reading:
    """What a model's tokenizer makes of the words.

    Attributes:
        settings: fields of `Decoding`.
        notes: one sentence for each word, of what it does.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def entries(name: str, typed: Any) -> tuple[str, ...]:
    """The lines of a box with one entry a line, or the texts of a list. `ValueError` with one sentence otherwise."""
    if isinstance(typed, str):
        if len(typed) > LONGEST_TEXT:
            raise ValueError(f"{name} has {len(typed):,} characters: shorten it to {LONGEST_TEXT:,} or fewer.")
        typed = [each for each in typed.splitlines() if each.strip()]
    if typed is None:
        return ()
    if not isinstance(typed, list | tuple) or not all(isinstance(each, str) and each for each in typed):
        raise ValueError(f"{name} must be text with one entry a line, or a list of texts.")
    if len(typed) > MOST_WORDS:
        raise ValueError(f"{name} has {len(typed):,} entries: shorten it to {MOST_WORDS:,} or fewer.")
    return tuple(typed)


def plain_texts(name: str, typed: Any) -> tuple[str, ...]:
    """Entries that stay text: stop strings, breakers. Those of a list are taken as they are."""
    found = entries(name, typed)
    return tuple(_text(each)[0] for each in found) if isinstance(typed, str) else found


def _text(entry: str) -> tuple[str, bool]:
    """The text that a typed entry stands for, and whether it was quoted."""
    entry = entry.strip() or entry
    if len(entry) > 2 and entry[0] == entry[-1] == '"':
        try:
            return str(json.loads(entry)), True
        except ValueError:
            return entry[1:-1], True
    return re.sub(r"\\[nt\\]", lambda found: ESCAPES[found[0]], entry), False


def word(loaded: Loaded, name: str, entry: str) -> Word:
    """The tokens of an entry. `ValueError` with one sentence where the tokenizer makes none of it."""
    text, exact = _text(entry)
    ways = [text] if exact or not text.strip() else [f" {text}", text]
    variants = tuple(dict.fromkeys(ids for each in ways if (ids := _ids(loaded, each))))
    if not variants:
        raise ValueError(f"{name}: the tokenizer makes no tokens of {quoted(text)}, leave it out.")
    return Word(text, variants)


def _ids(loaded: Loaded, text: str) -> Ids:
    try:
        before, whole, alone = (_encoded(loaded, each) for each in (ANCHOR, ANCHOR + text, text))
    except UnicodeEncodeError:
        raise ValueError("A word holds half of a surrogate pair, which is no character: delete it.") from None
    return whole[len(before) :] if whole[: len(before)] == before else alone


def _encoded(loaded: Loaded, text: str) -> Ids:
    text.encode("utf-8")
    return tuple(loaded.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _banned(loaded: Loaded, name: str, typed: Any) -> list[tuple[Word, Any]]:
    return [(each, list(each.variants)) for each in (word(loaded, name, entry) for entry in entries(name, typed))]


def _forced(loaded: Loaded, name: str, typed: Any) -> list[tuple[Word, Any]]:
    """One way of writing is enough, the one behind a space."""
    found = [word(loaded, name, entry) for entry in entries(name, typed)]
    return [(Word(each.text, each.variants[:1]), [each.variants[0]]) for each in found]


def _biased(loaded: Loaded, name: str, typed: Any) -> list[tuple[Word, Any]]:
    found = []
    for entry in entries(name, typed):
        match = BIASED.fullmatch(entry.strip())
        if match is None:
            raise ValueError(
                f"{name}: {quoted(entry.strip())} has no number, write a word and a number from {-LARGEST_BIAS:g} to "
                f"{LARGEST_BIAS:g}, such as cat +2."
            )
        each, bias = word(loaded, name, match["word"]), float(match["bias"].replace("−", "-"))
        if abs(bias) > LARGEST_BIAS:
            raise ValueError(f"{name}: {bias:g} is out of range, give a number up to {LARGEST_BIAS:g} either way.")
        found.append((each, [(ids, bias) for ids in each.variants]))
    return found


Reader = Callable[["Loaded", str, Any], list[tuple[Word, Any]]]

KINDS: Mapping[str, tuple[str, Reader, str]] = {
    "banned_words": ("bad_words_ids", _banned, "removed"),
    "forced_words": ("force_words_ids", _forced, "forced"),
    "word_bias": ("sequence_bias", _biased, "biased"),
}
"""Settings that are typed as words: the field of `Decoding` that they become, how they are read, what is done."""

TEXTS = ("dry_sequence_breakers", "stop_strings")
"""Settings that are typed one a line and stay text."""


def read(loaded: Loaded, settings: Mapping[str, Any]) -> Reading:
    """The words and texts among some settings, for this model. Raises `ValueError` with one sentence."""
    made: dict[str, Any] = {name: plain_texts(name, settings[name]) for name in TEXTS if name in settings}
    notes: list[str] = []
    read_words: dict[str, list[tuple[Word, Any]]] = {}
    for name, (becomes, reader, done) in KINDS.items():
        if name not in settings:
            continue
        if becomes in settings:
            raise ValueError(f"{name} and {becomes} are the same setting, as text and as ids: give one of them.")
        found = read_words[name] = reader(loaded, name, settings[name])
        made[becomes] = list(dict.fromkeys(each for _, several in found for each in several))
        notes += [_note(loaded, each, done) for each, _ in found]
    _refuse_contradiction(read_words.get("forced_words", ()), read_words.get("banned_words", ()))
    return Reading(made, tuple(notes))


def _note(loaded: Loaded, found: Word, done: str) -> str:
    pieces = [" + ".join(quoted(piece(loaded.tokenizer, each)) for each in ids) for ids in found.variants]
    several = [ids for ids in found.variants if len(ids) > 1]
    what = f"{quoted(found.text)} is {' or '.join(pieces)}"
    if not several:
        return f"{what}."
    if done == "forced":
        return f"{what}: {len(several[0])} tokens, which come one after another."
    size = "several" if len(several) > 1 else str(len(several[0]))
    return f"{what}: where it is {size} tokens, the last is {done} once the others stand there."


def _refuse_contradiction(forced: Sequence[tuple[Word, Any]], banned: Sequence[tuple[Word, Any]]) -> None:
    for wanted, _ in forced:
        for unwanted, _ in banned:
            if any(within(part, whole) for part in unwanted.variants for whole in wanted.variants):
                raise ValueError(
                    f"{quoted(wanted.text)} is a forced word, and {quoted(unwanted.text)} is banned: "
                    "take it out of one of the lists."
                )


def decoding(loaded: Loaded, settings: Any) -> Decoding:
    """`Decoding.from_json`, which may also name words: banned_words, forced_words, word_bias.

    Raises:
        ValueError: one sentence that says what to change.
    """
    if not isinstance(settings, Mapping):
        return Decoding.from_json(settings)
    rest = {name: value for name, value in settings.items() if name not in KINDS}
    return Decoding.from_json(rest | read(loaded, settings).settings)
