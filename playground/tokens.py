"""Between text and token ids: what a prompt becomes, and what one token looks like on its own."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from transformers.convert_slow_tokenizer import bytes_to_unicode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from models import Loaded

REPLACEMENT = "\ufffd"
BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""SentencePiece writes a byte that is no character like this."""

WORD_START = "\u2581"
"""SentencePiece marks a leading space with this character."""


def encode(loaded: Loaded, prompt: str, what: str = "prompt") -> list[int]:
    """Token ids of a prompt, special tokens as the tokenizer adds them; one that begins with its start is not doubled.

    `what` is what sentences call the prompt.

    Raises:
        ValueError: one sentence, when the prompt is no text, empty, not valid Unicode, or longer than the context.
    """
    if not isinstance(prompt, str):
        raise ValueError(f"The {what} must be text.")
    if not prompt.strip("\x00"):
        raise ValueError(
            f"The {what} is empty: type a few words for the model to {'continue' if what == 'prompt' else 'read'}."
        )
    _refuse_lone_surrogates(prompt)
    start = loaded.tokenizer.bos_token
    written = bool(start) and prompt.startswith(start)
    ids = loaded.tokenizer(prompt, add_special_tokens=not written, verbose=False)["input_ids"]
    if not ids:
        raise ValueError(f"The tokenizer makes no tokens of this {what}: type a few words.")
    check_length(loaded, len(ids), what)
    _refuse_foreign_ids(loaded, ids)
    return ids


def check_length(loaded: Loaded, length: int, what: str = "prompt") -> None:
    """Raises `ValueError` with one sentence where so many tokens leave no room for a new one."""
    limit = loaded.card.context_length
    if limit is not None and length >= limit:
        raise ValueError(
            f"The {what} has {length:,} tokens and the model reads {limit:,} at most, one of them new: "
            f"shorten it by {length - limit + 1:,} tokens or more."
        )


def _refuse_foreign_ids(loaded: Loaded, ids: list[int]) -> None:
    if max(ids, default=0) >= loaded.card.vocab_size:
        raise ValueError(
            f"The tokenizer gives id {max(ids):,}, but the model knows {loaded.card.vocab_size:,} tokens: "
            "the tokenizer does not belong to this model."
        )


def encode_piece(loaded: Loaded, text: str) -> list[int]:
    """Token ids of a text that goes on from another: no special tokens.

    Raises:
        ValueError: one sentence, when the text is empty or no valid Unicode.
    """
    _refuse_lone_surrogates(text)
    ids: list[int] = loaded.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    if not ids:
        raise ValueError("There is no token in this text: type at least one character.")
    _refuse_foreign_ids(loaded, ids)
    return ids


def edited(loaded: Loaded, ids: list[int], text: str) -> list[int]:
    """Token ids of `text`, an edited version of the text of `ids`.

    The tokens of the untouched beginning stay, although a tokenizer may cut the same text in another way; from the last
    untouched word on the text is cut anew. Where that does not give the text back, all of it is.

    Raises:
        ValueError: as `encode`.
    """
    fresh = encode(loaded, text)
    kept = _untouched(loaded, ids, text)
    rest = text[len(_text(loaded, ids[:kept])) :]
    if not rest:
        return ids[:kept]
    joined = ids[:kept] + loaded.tokenizer(rest, add_special_tokens=False, verbose=False)["input_ids"]
    return joined if kept and _text(loaded, joined) == text else fresh


def _untouched(loaded: Loaded, ids: list[int], text: str) -> int:
    """How many of `ids` stand unchanged at the beginning of `text`, up to the beginning of the word that changed."""
    kept = bisect_left(range(1, len(ids) + 1), True, key=lambda n: not text.startswith(_text(loaded, ids[:n])))
    while kept and not _ends_before_change(_text(loaded, ids[:kept]), text):
        kept -= 1
    return kept


def _ends_before_change(beginning: str, text: str) -> bool:
    if not text.startswith(beginning):
        return False
    after = text[len(beginning) : len(beginning) + 1]
    return not (beginning[-1:].isalnum() and after.isalnum())


def _text(loaded: Loaded, ids: list[int]) -> str:
    """What a run over these ids shows as its text."""
    return str(loaded.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _refuse_lone_surrogates(prompt: str) -> None:
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"Character {error.start + 1} of the prompt is half of a surrogate pair, which is no character: delete it."
        ) from None


@lru_cache(maxsize=1)
def _byte_of_letter() -> dict[str, int]:
    """Byte-level BPE writes each byte as a printable letter: the way back."""
    return {letter: byte for byte, letter in bytes_to_unicode().items()}


def piece(tokenizer: PreTrainedTokenizerBase, token_id: int) -> str:
    """The text of one token on its own; bytes that are no whole character are written as hexadecimal escapes."""
    raw: str | None = tokenizer.convert_ids_to_tokens([token_id])[0]
    if raw is None:
        return f"[{token_id}]"  # rows of the embedding beyond the tokenizer's vocabulary
    if byte := BYTE_PIECE.fullmatch(raw):
        value = int(byte[1], 16)
        return chr(value) if value < 0x80 else f"\\x{value:02x}"
    text = str(tokenizer.decode([token_id], clean_up_tokenization_spaces=False))
    if REPLACEMENT in text:
        letters = _byte_of_letter()
        return "".join(f"\\x{letters[each]:02x}" if each in letters else each for each in raw)
    if raw.startswith(WORD_START) and not text.startswith(" "):
        return " " + text
    return text


def known_piece(loaded: Loaded, token_id: int) -> str:
    """`piece`, worked out once for each token while the model is loaded: frames name twenty candidates a step."""
    text = loaded.pieces.get(token_id)
    if text is None:
        text = loaded.pieces[token_id] = piece(loaded.tokenizer, token_id)
    return text


def end_ids(loaded: Loaded) -> frozenset[int]:
    """Ids that end a text: the model's generation settings and the tokenizer's end-of-text token."""
    ids: set[int] = set()
    for found in (loaded.model.generation_config.eos_token_id, loaded.tokenizer.eos_token_id):
        if found is not None:
            ids.update([found] if isinstance(found, int) else found)
    return frozenset(ids)


def quoted(text: str) -> str:
    """Text for a sentence: in double quotes, line breaks and the like as JSON writes them."""
    return json.dumps(text, ensure_ascii=False)


def text_after(tokenizer: PreTrainedTokenizerBase, token_ids: list[int], start: int) -> str:
    """What the tokens from `start` on add to the text; the one before them keeps a leading space from being lost."""
    whole = str(tokenizer.decode(token_ids[max(0, start - 1) :], clean_up_tokenization_spaces=False))
    before = str(tokenizer.decode(token_ids[max(0, start - 1) : start], clean_up_tokenization_spaces=False))
    if whole.startswith(before):
        return whole.removeprefix(before)
    return str(tokenizer.decode(token_ids[start:], clean_up_tokenization_spaces=False))


def find_stop(tokenizer: PreTrainedTokenizerBase, token_ids: list[int], start: int, stops: Sequence[str]) -> str | None:
    """The stop string that the newest token completed in the text of the tokens from `start` on; the first listed.

    Only so many tokens are read as a stop string can be spread over: each has a byte of it at least.
    """
    if not stops:
        return None
    longest = max(len(each.encode()) for each in stops)
    tail = text_after(tokenizer, token_ids, max(start, len(token_ids) - longest - 1))
    return next((each for each in stops if each in tail), None)
