"""Stages that look at the text so far: penalties, banned and forced tokens. Pure functions, nothing changed in place.

Each takes logits of one step (V,), unitless, and returns logits (V,), with -inf where a token was removed. Repetition
penalty (Keskar et al. 2019, section 4.1), n-grams, biases, banned words and the least length equal the
`...LogitsProcessor`s of `transformers.generation.logits_process`; presence and frequency penalty (OpenAI's API
reference) and DRY (text-generation-webui's pull request 5677) follow `src/llama-sampling.cpp` of llama.cpp. Forced
words go back to `force_words_ids` of transformers' constrained beam search (Hokamp and Liu 2017); here they work on
one text.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from playground.truncation import REMOVED

LARGEST_LOG = math.log(torch.finfo(torch.float32).max)
Word = Sequence[int]


@dataclass(frozen=True)
class Context:
    """What a stage may know of a step besides its logits; all of it stands in the run's record.

    Attributes:
        history: ids of a text, prompt first; only the first `length` of them came before this step.
        length: how many of them there were; None for all.
        prompt_length: how many of them are the prompt.
        room: how many tokens may still be drawn, this step's included.
        end_ids: tokens that end the text.
        chance: the step's second random number, in [0, 1): whether XTC acts.
        mu: the largest surprise that mirostat allows in this step, in bits.
        piece: the text of a token.
    """

    history: Sequence[int] = ()
    length: int | None = None
    prompt_length: int = 0
    room: int = 2**31
    end_ids: frozenset[int] = frozenset()
    chance: float | None = None
    mu: float | None = None
    piece: Callable[[int], str] = str

    @property
    def token_ids(self) -> Sequence[int]:
        """Prompt and what was drawn before this step."""
        return self.history[: self.length]

    @property
    def new_ids(self) -> Sequence[int]:
        """What was drawn before this step."""
        return self.history[self.prompt_length : self.length]


def window(token_ids: Sequence[int], last_n: int) -> Sequence[int]:
    """The last n ids; all of them for -1."""
    return token_ids if last_n < 0 else token_ids[max(0, len(token_ids) - last_n) :]


def _indices(ids: Iterable[int], logits: Tensor) -> Tensor:
    return torch.tensor(list(ids), dtype=torch.long, device=logits.device)


def _without(logits: Tensor, ids: Collection[int]) -> Tensor:
    """Remove these tokens, unless nothing would be left: then they all stay."""
    if not ids:
        return logits
    changed = logits.clone()
    changed[_indices(ids, logits)] = REMOVED
    return changed if float(changed.amax()) > REMOVED else logits


def apply_repetition_penalty(logits: Tensor, penalty: float, token_ids: Sequence[int]) -> Tensor:
    """Divide positive and multiply negative logits (V,) by `penalty` for tokens among `token_ids`."""
    seen = _indices(sorted(set(token_ids)), logits)
    before = logits[seen]
    changed = logits.clone()
    changed[seen] = torch.where(before < 0, before * penalty, before / penalty)
    return changed


def apply_frequency_penalty(logits: Tensor, penalty: float, token_ids: Sequence[int]) -> Tensor:
    """Subtract `penalty` for each time that a token occurs among `token_ids`. (V,)."""
    counts = Counter(token_ids)
    seen = _indices(counts, logits)
    changed = logits.clone()
    changed[seen] -= torch.tensor(list(counts.values()), dtype=logits.dtype, device=logits.device) * penalty
    return changed


def apply_presence_penalty(logits: Tensor, penalty: float, token_ids: Sequence[int]) -> Tensor:
    """Subtract `penalty` once from every token that occurs among `token_ids`. (V,)."""
    changed = logits.clone()
    changed[_indices(sorted(set(token_ids)), logits)] -= penalty
    return changed


def forbid_repeated_ngrams(logits: Tensor, size: int, token_ids: Sequence[int]) -> Tensor:
    """Remove every token that would repeat a run of `size` tokens. (V,)."""
    ids, before = list(token_ids), size - 1
    if len(ids) < size:
        return logits
    suffix = ids[len(ids) - before :]
    ends = range(before, len(ids))
    return _without(logits, {ids[end] for end in ends if ids[end - before : end] == suffix})


def _completed(words: Iterable[Word], token_ids: Sequence[int]) -> list[Word]:
    """The words that lack nothing but their last token at the end of the text."""
    ids = list(token_ids[-max((len(word) for word in words), default=1) :])
    return [word for word in words if len(word) == 1 or ids[1 - len(word) :] == list(word[:-1])]


def apply_sequence_bias(logits: Tensor, biases: Sequence[tuple[Word, float]], token_ids: Sequence[int]) -> Tensor:
    """Add a bias to each token that completes a sequence; sequences of one token are always completed. (V,)."""
    table = {tuple(word): bias for word, bias in biases}
    bias = torch.zeros_like(logits)
    for word in _completed(table, token_ids):
        bias[word[-1]] += table[tuple(word)]
    return logits + bias


def ban_words(logits: Tensor, words: Sequence[Word], token_ids: Sequence[int]) -> Tensor:
    """Remove each token that would complete a banned word. (V,)."""
    return _without(logits, {word[-1] for word in _completed(words, token_ids)})


def delay_end(logits: Tensor, min_new_tokens: int, new: int, end_ids: frozenset[int]) -> Tensor:
    """Remove the tokens that end the text while fewer than `min_new_tokens` are drawn; `new` are. (V,)."""
    return _without(logits, end_ids) if new < min_new_tokens else logits


def force_words(
    logits: Tensor, words: Sequence[Word], new_ids: Sequence[int], room: int, end_ids: frozenset[int]
) -> Tensor:
    """See to it that every word stands in the continuation before it ends. (V,).

    While a word is missing the text cannot end; when only as many tokens may be drawn as the missing words need, their
    tokens are all that is left, one after another.
    """
    missing = [list(word) for word in words if not _contains(new_ids, list(word))]
    if not missing:
        return logits
    if room > sum(map(len, missing)):
        return _without(logits, end_ids)
    token = missing[0][_begun(new_ids, missing[0])]
    forced = torch.full_like(logits, REMOVED)
    forced[token] = logits[token] if float(logits[token]) > REMOVED else 0.0
    return forced


def _contains(ids: Sequence[int], word: list[int]) -> bool:
    return any(list(ids[at : at + len(word)]) == word for at in range(len(ids) - len(word) + 1))


def _begun(ids: Sequence[int], word: list[int]) -> int:
    """How many tokens of the word's beginning the text ends with."""
    return next(n for n in range(len(word) - 1, -1, -1) if n == 0 or list(ids[-n:]) == word[:n])


def apply_dry(
    logits: Tensor, multiplier: float, base: float, allowed: int, repeats: dict[int, int], breakers: Collection[int]
) -> Tensor:
    """Subtract `multiplier * base ** (n - allowed)` from each token that would prolong a repetition of n tokens. (V,).

    repeats: n of each such token, from `repetitions`; breakers: tokens that are never punished.
    """
    punished = {token: n for token, n in repeats.items() if n >= allowed and token not in breakers}
    largest = int(LARGEST_LOG / math.log(base)) if base > 1.000001 else 0
    exponents = [min(n - allowed, largest) if largest else n - allowed for n in punished.values()]
    changed = logits.clone()
    penalties = torch.tensor([multiplier * base**each for each in exponents], dtype=torch.float64)
    changed[_indices(punished, logits)] -= penalties.clamp(max=1e30).to(logits)
    return changed


def repetitions(token_ids: Sequence[int], limit: int) -> dict[int, int]:
    """For each token that once followed what the text ends with: the longest such ending, at most `limit` tokens.

    In linear time: the Z function of the reversed text (Gusfield 1997, section 1.4) tells how far the text's end
    agrees with what stands before each position.
    """
    ids = list(token_ids)[::-1]
    found: dict[int, int] = {}
    for at, length in enumerate(_agreements(ids)):
        if at and length:
            follower = ids[at - 1]
            found[follower] = max(found.get(follower, 0), min(length, limit))
    return found


def _agreements(ids: list[int]) -> list[int]:
    """Z function: at each index how many ids from there on equal the first ones; index 0 counts as 0."""
    lengths = [0] * len(ids)
    left = right = 0  # the stretch found last that reaches furthest
    for at in range(1, len(ids)):
        n = min(right - at, lengths[at - left]) if at < right else 0
        while at + n < len(ids) and ids[n] == ids[at + n]:
            n += 1
        lengths[at] = n
        if at + n > right:
            left, right = at, at + n
    return lengths


def since_breaker(token_ids: Sequence[int], breakers: Sequence[str], piece: Callable[[int], str]) -> int:
    """How many tokens follow the one in which the latest breaker ends; all of them where the text has none.

    A breaker may be spread over several tokens.
    """
    lengths = [len(piece(token)) for token in token_ids]
    text = "".join(piece(token) for token in token_ids)
    end = max((at + len(each) for each in breakers if (at := text.rfind(each)) >= 0), default=0)
    starts = accumulate(lengths, initial=0)
    return sum(start >= end for start, _ in zip(starts, lengths, strict=False)) if end else len(lengths)
