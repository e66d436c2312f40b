"""Conversations: which turns fit into the context, and what a model reads of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.chat_template import Turn, render
from playground.past import Past
from playground.records import Decoding
from playground.runs import Run

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from models import Loaded

MOST_TURNS = 200
NO_TEMPLATE = "{name} came without a chat template: it continues a prompt, and that is all it has learnt."


@dataclass(frozen=True)
class Prepared:
    """A conversation as the model reads it.

    Attributes:
        text: what the template made of the turns that were kept.
        token_ids: its tokens; special ones are tokens of their own.
        kept: the turns in it.
        cut: the oldest turns, which did not fit; `cut_tokens`: by how many tokens the text got shorter.
    """

    text: str
    token_ids: tuple[int, ...]
    kept: tuple[Turn, ...]
    cut: tuple[Turn, ...] = ()
    cut_tokens: int = 0

    @property
    def words(self) -> str:
        """What was cut, in one sentence; empty when all fits."""
        if not self.cut:
            return ""
        turns = f"{len(self.cut)} oldest turn{'s' if len(self.cut) > 1 else ''}"
        return f"The conversation is longer than the context: its {turns} ({self.cut_tokens:,} tokens) were left out."


def prepare_chat(loaded: Loaded, turns: Sequence[Turn], new_tokens: int) -> Prepared:
    """What the model reads so that `new_tokens` more fit into its context; the oldest turns leave first.

    A system turn at the beginning and the last turn always stay.

    Raises:
        ValueError: one sentence, when there is no template, nothing to answer, or not even the last turn fits.
    """
    if not loaded.card.chat_template:
        raise ValueError(NO_TEMPLATE.format(name=loaded.card.name))
    if not turns or turns[-1].role != "user" or not turns[-1].content.strip():
        raise ValueError("Nothing was said: type what the model is to answer.")
    if len(turns) > MOST_TURNS:
        raise ValueError(f"The conversation has {len(turns)} turns: start a new one after {MOST_TURNS}.")
    system, rest = (turns[:1], turns[1:]) if turns[0].role == "system" else ((), turns)
    context = loaded.card.context_length
    room = None if context is None else max(context - new_tokens, 1)
    whole = _tokens(loaded, [*system, *rest])
    gone, found = 0, whole
    while room is not None and len(found[1]) > room and gone + 2 < len(rest) + 1:
        gone += 2  # a question and its answer
        found = _tokens(loaded, [*system, *rest[gone:]])
    if room is not None and len(found[1]) > room:
        raise ValueError(
            f"What was said last has {len(found[1]):,} tokens and {room:,} are left beside {new_tokens:,} new ones: "
            "shorten it, or ask for fewer new tokens."
        )
    kept = (*system, *rest[gone:])
    return Prepared(found[0], tuple(found[1]), kept, tuple(rest[:gone]), len(whole[1]) - len(found[1]))


def chat(loaded: Loaded, turns: Sequence[Turn], decoding: Decoding | None = None) -> Run:
    """Begin the assistant's answer to a conversation, as `generate` begins the continuation of a prompt.

    Raises:
        ValueError: one sentence that says what to change.
    """
    decoding = Decoding() if decoding is None else decoding
    return begin(loaded, prepare_chat(loaded, turns, decoding.max_new_tokens), decoding)


def begin(loaded: Loaded, prepared: Prepared, decoding: Decoding) -> Run:
    """A run over what was prepared."""
    past = Past(token_ids=prepared.token_ids, prompt_length=len(prepared.token_ids))
    return Run(loaded, "", decoding, past=past)


def answer(run: Run) -> str:
    """What the assistant said: the text of the drawn tokens, special ones left out."""
    drawn = run.token_ids[run.prompt_length :]
    return str(run.loaded.tokenizer.decode(drawn, skip_special_tokens=True, clean_up_tokenization_spaces=False)).strip()


def _tokens(loaded: Loaded, turns: Sequence[Turn]) -> tuple[str, list[int]]:
    """Text and ids of a conversation; the template writes all special tokens itself."""
    tokenizer = loaded.tokenizer
    text = render(template_of(tokenizer), turns, special_tokens(tokenizer))
    return text, list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def template_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """The template's source; of several the one for conversations without tools."""
    found = tokenizer.chat_template
    if isinstance(found, dict):
        return str(found.get("default") or next(iter(found.values())))
    return str(found)


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """Special tokens by name, as templates know them."""
    return {name: str(value) for name, value in tokenizer.special_tokens_map.items() if isinstance(value, str)}
