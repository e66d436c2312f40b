"""Immutable records: what the user asked for, and what happened at each step.

Nothing here computes on a model. A `Step` keeps a reference to the raw logits of its own forward pass and derives its
stages from them on first access, so that generation does not pay for what nobody looks at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

TEXT_STAGES = (
    "sequence_bias",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "dry_multiplier",
    "no_repeat_ngram_size",
    "bad_words_ids",
    "min_new_tokens",
    "force_words_ids",
)
"""Stages that look at the text so far or at single tokens: first in either order, `playground.penalties`."""

TRANSFORMERS_ORDER = (
    *TEXT_STAGES,
    "temperature",
    "dynatemp_range",
    "top_n_sigma",
    "top_k",
    "tfs_z",
    "top_p",
    "min_p",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "xtc_probability",
    "mirostat",
)
"""The order of `_get_logits_processor` in transformers' `generation/utils.py`; what only llama.cpp has stands where it
does no harm: penalties with penalties, cuts with cuts."""

LLAMA_CPP_ORDER = (
    *TEXT_STAGES,
    "top_n_sigma",
    "top_k",
    "tfs_z",
    "typical_p",
    "top_p",
    "min_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "xtc_probability",
    "temperature",
    "dynatemp_range",
    "mirostat",
)
"""The default `samplers` of `common_params_sampling` in llama.cpp's `common/common.h`: temperature last. Tail-free
sampling stands where llama.cpp had it until October 2024; what only transformers has, as above. Where mirostat is on,
llama.cpp leaves out all other cuts; here they act when they are set."""

STAGE_ORDER = TRANSFORMERS_ORDER
"""The order unless another one is asked for."""

NEUTRAL: Mapping[str, Any] = {
    **dict.fromkeys(STAGE_ORDER, 0),
    **dict.fromkeys(("repetition_penalty", "temperature", "tfs_z", "top_p", "typical_p"), 1),
    **dict.fromkeys(("sequence_bias", "bad_words_ids", "force_words_ids"), ()),
}
"""The value of each stage's setting with which the stage does nothing."""

LIMITS: Mapping[str, tuple[float, float]] = {
    "max_new_tokens": (1, 100_000),
    "temperature": (0.0, 100.0),
    "dynatemp_range": (0.0, 100.0),
    "dynatemp_exponent": (0.0, 100.0),
    "top_k": (0, 1_000_000),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "epsilon_cutoff": (0.0, 0.999),
    "eta_cutoff": (0.0, 0.999),
    "top_n_sigma": (0.0, 100.0),
    "tfs_z": (0.0, 1.0),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "mirostat": (0, 2),
    "mirostat_tau": (0.0, 100.0),
    "mirostat_eta": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "penalty_last_n": (-1, 1_000_000),
    "dry_multiplier": (0.0, 100.0),
    "dry_base": (1.0, 100.0),
    "dry_allowed_length": (1, 1_000_000),
    "dry_penalty_last_n": (-1, 1_000_000),
    "no_repeat_ngram_size": (0, 1_000_000),
    "min_new_tokens": (0, 100_000),
    "seed": (0, 2**63 - 1),
}
"""Smallest and largest value that each numeric setting accepts."""

LEAST_ABOVE = {"top_p": 0.0, "typical_p": 0.0, "tfs_z": 0.0}
"""Settings that must lie above their smallest value: with it nothing would be left to draw from."""

COLDEST = 0.01
"""Smallest temperature above 0: below it the division says nothing that greedy decoding does not say better."""

WHOLE = (
    "max_new_tokens",
    "top_k",
    "mirostat",
    "penalty_last_n",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "no_repeat_ngram_size",
    "min_new_tokens",
    "seed",
)
LARGEST_BIAS = 100.0
MOST_WORDS = 1000
LONGEST_WORD = 100
"""Tokens of a word, characters of a breaker or a stop string."""


def _checked_number(name: str, value: Any) -> float | int:
    """`value` as the number that the setting `name` needs; `ValueError` with one sentence otherwise."""
    low, high = LIMITS[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(
            f"{name} must be a number, but it is {type(value).__name__}: give a number from {low} to {high}."
        )
    if not math.isfinite(value) or not low <= value <= high:
        raise ValueError(f"{name} is {value}: give a number from {low} to {high}.")
    if value == LEAST_ABOVE.get(name):
        raise ValueError(f"{name} is {value}, which leaves nothing to draw from: give a number above it, up to {high}.")
    if name == "temperature" and 0 < value < COLDEST:
        raise ValueError(f"temperature is {value}: give 0 for greedy decoding, or a number from {COLDEST} to {high}.")
    if name in WHOLE:
        if value != int(value):
            raise ValueError(f"{name} is {value}: give a whole number.")
        return int(value)
    return float(value)


def _checked_word(name: str, word: Any) -> tuple[int, ...]:
    """A sequence of token ids; `ValueError` with one sentence otherwise."""
    sound = isinstance(word, list | tuple) and 1 <= len(word) <= LONGEST_WORD
    if not sound or any(isinstance(each, bool) or not isinstance(each, int) or each < 0 for each in word):
        raise ValueError(f"{name}: each word must be a list of 1 to {LONGEST_WORD} token ids.")
    return tuple(word)


def _checked_list(name: str, values: Any) -> list[Any]:
    if not isinstance(values, list | tuple) or len(values) > MOST_WORDS:
        raise ValueError(f"{name} must be a list of at most {MOST_WORDS:,} entries.")
    return list(values)


def _checked_words(name: str, values: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(_checked_word(name, each) for each in _checked_list(name, values))


def _checked_biases(name: str, values: Any) -> tuple[tuple[tuple[int, ...], float], ...]:
    """Pairs of a word and what is added to the logit of its last token."""
    pairs = _checked_list(name, values)
    if not all(isinstance(each, list | tuple) and len(each) == 2 for each in pairs):
        raise ValueError(f"{name} must be a list of pairs: a list of token ids, and a number to add.")
    for _, bias in pairs:
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not abs(bias) <= LARGEST_BIAS:
            raise ValueError(f"{name}: each bias must be a number from {-LARGEST_BIAS:g} to {LARGEST_BIAS:g}.")
    return tuple((_checked_word(name, word), float(bias)) for word, bias in pairs)


def _checked_texts(name: str, values: Any) -> tuple[str, ...]:
    texts = _checked_list(name, values)
    if not all(isinstance(each, str) and 1 <= len(each) <= LONGEST_WORD for each in texts):
        raise ValueError(f"{name} must be texts of 1 to {LONGEST_WORD} characters.")
    if any("\ud800" <= letter <= "\udfff" for each in texts for letter in each):
        raise ValueError(f"{name} holds half of a surrogate pair, which is no character: delete it.")
    return tuple(texts)


def _checked_order(order: Any) -> tuple[str, ...]:
    """All stages: those that `order` leaves out follow the one that stands before them in `STAGE_ORDER`."""
    known = isinstance(order, list | tuple) and all(isinstance(each, str) and each in STAGE_ORDER for each in order)
    if not known or len(set(order)) < len(order):
        raise ValueError(f"order must name stages once each: {', '.join(STAGE_ORDER)}.")
    whole = list(order)
    for place, name in enumerate(STAGE_ORDER):
        if name not in whole:
            whole.insert(whole.index(STAGE_ORDER[place - 1]) + 1 if place else 0, name)
    return tuple(whole)


CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(LIMITS, _checked_number),
    "sequence_bias": _checked_biases,
    "bad_words_ids": _checked_words,
    "force_words_ids": _checked_words,
    "dry_sequence_breakers": _checked_texts,
    "stop_strings": _checked_texts,
    "order": lambda _, order: _checked_order(order),
}


def within(part: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether some ids stand one after another among others."""
    return any(whole[at : at + len(part)] == part for at in range(len(whole) - len(part) + 1))


@dataclass(frozen=True)
class Decoding:
    """How tokens are drawn; names and meaning are those of `transformers.GenerationConfig` where it has one.

    What it lacks is named as in llama.cpp's `common_params_sampling`. A stage bears the name of the setting that
    switches it on; `playground.sampling` has the formulas and their sources.

    Attributes:
        max_new_tokens: tokens to draw at most.
        temperature: logits are divided by it; 0 means greedy (the most likely token, nothing is drawn).
        dynatemp_range: the temperature moves this far to both sides with the entropy, instead of staying; 0: it stays.
        dynatemp_exponent: power of the entropy's share of the largest possible one that moves it.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose mass reaches p; 1 keeps all.
        min_p: keep tokens at least this fraction as likely as the most likely one; 0 keeps all.
        typical_p: keep the tokens whose surprisal is nearest to the entropy, up to this mass; 1 keeps all.
        epsilon_cutoff: keep tokens at least this likely; 0 keeps all.
        eta_cutoff: the same, with a limit that falls with the entropy; 0 keeps all.
        top_n_sigma: keep logits at most n standard deviations below the largest; 0 keeps all.
        tfs_z: keep the share z of the bends of the sorted distribution; 1 keeps all.
        xtc_probability: how often all but the least likely of the tokens above `xtc_threshold` go; 0 never.
        xtc_threshold: how likely these are; above 0.5 there cannot be two of them, and the stage is off.
        mirostat: version 1 or 2 of the cut that steers the surprise of what is drawn towards `mirostat_tau`; 0: off.
        mirostat_tau: the surprise aimed at, in bits a token.
        mirostat_eta: how quickly the cut is moved after a token that was more or less surprising than that.
        repetition_penalty: divides positive and multiplies negative logits of tokens seen before; 1 is neutral.
        frequency_penalty: subtracted for each time a token was seen. presence_penalty: subtracted once. 0 is neutral.
        penalty_last_n: how many of the last tokens these three look at; -1 at the whole text, 0 at nothing.
        dry_multiplier: size of the penalty on tokens that prolong a repetition; 0 switches it off.
        dry_base: the penalty's growth with each token of the repetition beyond `dry_allowed_length`.
        dry_allowed_length: shorter repetitions go unpunished.
        dry_penalty_last_n: how many of the last tokens it looks at; -1 at the whole text, 0 at nothing.
        dry_sequence_breakers: texts that no repetition reaches across.
        no_repeat_ngram_size: no run of so many tokens occurs twice; 0 allows all.
        sequence_bias: ((token ids, number), ...): added to the logit of the last id where the others stand before it.
        bad_words_ids: sequences of token ids that must not come about.
        force_words_ids: sequences of token ids that the continuation must contain.
        min_new_tokens: before so many are drawn no token ends the text.
        stop_strings: texts that end the run as soon as one stands in the continuation, across tokens too.
        seed: of the random draws.
        stop_at_end: whether an end-of-text token ends the run.
        order: the stages in the order in which they are applied; those left out keep their place behind the one that
            stands before them in `STAGE_ORDER`.

    Raises:
        ValueError: one sentence that names the setting, its value, and what to give instead.
    """

    max_new_tokens: int = 64
    temperature: float = 0.8
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    top_n_sigma: float = 0.0
    tfs_z: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = -1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    no_repeat_ngram_size: int = 0
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    force_words_ids: tuple[tuple[int, ...], ...] = ()
    min_new_tokens: int = 0
    stop_strings: tuple[str, ...] = ()
    seed: int = 0
    stop_at_end: bool = True
    order: tuple[str, ...] = STAGE_ORDER

    def __post_init__(self) -> None:
        for name, check in CHECKS.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))
        if not isinstance(self.stop_at_end, bool):
            raise ValueError("stop_at_end must be true or false.")
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens is {self.min_new_tokens:,}, more than the {self.max_new_tokens:,} of max_new_tokens: "
                "lower it."
            )
        self._check_forced()

    def _check_forced(self) -> None:
        forced, room = self.force_words_ids, self.max_new_tokens
        if sum(map(len, forced)) > room:
            raise ValueError(
                f"force_words_ids needs {sum(map(len, forced)):,} tokens, but max_new_tokens is {room:,}: raise it."
            )
        for banned in self.bad_words_ids:
            if any(within(banned, word) for word in forced):
                raise ValueError(f"force_words_ids and bad_words_ids both name {list(banned)}: take it out of one.")

    def check_vocabulary(self, size: int) -> None:
        """Raises `ValueError` with one sentence where the words do not fit a vocabulary of so many tokens."""
        named = {
            "sequence_bias": [word for word, _ in self.sequence_bias],
            "bad_words_ids": self.bad_words_ids,
            "force_words_ids": self.force_words_ids,
        }
        for name, words in named.items():
            largest = max((max(word) for word in words), default=0)
            if largest >= size:
                raise ValueError(f"{name} names token {largest:,}, but the model knows ids from 0 to {size - 1:,}.")
        if len({word[0] for word in self.bad_words_ids if len(word) == 1}) == size:
            raise ValueError("bad_words_ids bans every token there is: leave at least one.")

    @classmethod
    def from_json(cls, settings: Any) -> Decoding:
        """Settings from outside. Raises `ValueError` with one sentence for anything but known names and sane values."""
        if not isinstance(settings, Mapping):
            raise ValueError("The settings must be a JSON object of names and values.")
        known = {each.name for each in fields(cls)}
        unknown = sorted(str(name) for name in settings if name not in known)
        if unknown:
            raise ValueError(f"Unknown setting {unknown[0][:40]!r}: known are {', '.join(sorted(known))}.")
        return cls(**settings)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken instead of drawing one."""
        return self.temperature == 0

    def as_dict(self) -> dict[str, Any]:
        """The settings by name, ready for JSON."""
        return {**asdict(self), "order": list(self.order)}


@dataclass(frozen=True)
class Stage:
    """The distribution after one stage of sampling.

    Attributes:
        name: `softmax` for the raw distribution, else the name of the processor.
        setting: the value that the processor used, of lists of words how many there are; None for `softmax`.
        kept: how many tokens still have a probability.
        mass: their total probability under the raw distribution, 0 to 1.
        entropy: of the distribution after this stage, in nats.
    """

    name: str
    setting: float | None
    kept: int
    mass: float
    entropy: float


@dataclass(frozen=True)
class CacheSize:
    """The KV cache after a step, in bytes of the tensors that hold the keys and values.

    Attributes:
        positions: how many positions are stored.
        layers: (key bytes, value bytes) of each layer.
        reserved: bytes allocated for keys and values in all, used or not.
        states: bytes of the states of layers that are not attention; they do not grow.
    """

    positions: int
    layers: tuple[tuple[int, int], ...]
    reserved: int
    states: int = 0

    @property
    def total(self) -> int:
        """Bytes in use, keys and values of all layers."""
        return sum(k + v for k, v in self.layers)


@dataclass(frozen=True)
class Origin:
    """Where a branch comes from.

    Attributes:
        run: id of the run that it continues.
        shared: positions whose keys, values and queries are that run's own, computed once for both.
        step: the first step that is the branch's own; the earlier ones are that run's.
        forced: how many of the branch's first tokens were given instead of drawn.
    """

    run: str
    shared: int
    step: int
    forced: int


@dataclass(frozen=True)
class Step:
    """One drawn token and the forward pass that led to it.

    Attributes:
        index: 0 drew the first new token.
        token_id: the token that was drawn.
        token: its text.
        probability: in the distribution that it was drawn from (the last stage).
        uniform: the number in [0, 1) that chose it; None when greedy or forced.
        chance: the second random number in [0, 1) of this step, which decides whether XTC acts; None without XTC.
        mu: what mirostat allowed of surprise in this step, in bits; None without mirostat.
        cache: size of the KV cache at that moment.
        seconds: measured time of the forward pass and the draw; for step 0 of the whole prefill.
        forced: the token was not drawn but chosen by somebody, as a branch's first ones are.
    """

    index: int
    token_id: int
    token: str
    probability: float
    uniform: float | None
    chance: float | None
    mu: float | None
    cache: CacheSize
    seconds: float
    describe: Callable[[], tuple[Stage, ...]] = field(repr=False, compare=False)
    forced: bool = False

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """Every stage from the raw softmax to what was drawn from; derived from this step's own logits."""
        return self.describe()
