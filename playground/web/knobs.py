"""The settings as people see them: label, range and one line of explanation each, in groups; and the presets.

Data only: layout.py makes widgets of it. Names are those of `Decoding`, and of `playground.words` for what is typed as
words; ranges hold what is of use, where `records.LIMITS` holds what is possible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from playground.records import LLAMA_CPP_ORDER, NEUTRAL, TRANSFORMERS_ORDER, Decoding
from playground.words import KINDS


class Knob(NamedTuple):
    """One setting: a slider from `low` to `high`, a choice, a tick, or a box for text with one entry a line.

    `hint` says in one line what it does and in which unit, and with which value it does nothing.
    """

    name: str
    label: str
    hint: str = ""
    low: float = 0
    high: float = 1
    step: float = 0.01
    choices: tuple[tuple[str, int], ...] = ()
    placeholder: str = ""


class Group(NamedTuple):
    """Knobs that fold away together."""

    title: str
    name: str
    knobs: tuple[Knob, ...]


BASIC = (
    Knob(
        "temperature",
        "Temperature",
        "Divides the logits: below 1 bolder, above 1 more varied; 0 is greedy.",
        0,
        2,
        0.05,
    ),
    Knob("top_k", "Top-k", "Keeps the k most likely tokens; 0 keeps all.", 0, 200, 1),
    Knob("top_p", "Top-p", "Keeps the most likely tokens up to this mass; 1 keeps all.", 0.01),
    Knob("min_p", "Min-p", "Keeps what is this fraction as likely as the best, or more; 0 keeps all."),
    Knob(
        "repetition_penalty", "Repetition penalty", "Makes tokens seen before less likely; 1 is neutral.", 0.5, 2, 0.05
    ),
)

GROUPS = (
    Group(
        "Truncation",
        "truncation",
        (
            Knob("typical_p", "Typical-p", "Mass kept around the usual surprise; 1 is off.", 0.01),
            Knob("top_n_sigma", "Top-n-sigma", "Standard deviations kept below the best logit; 0 is off.", 0, 5, 0.1),
            Knob("tfs_z", "Tail-free z", "Share of the curve’s bends that is kept; 1 is off.", 0.01),
            Knob("epsilon_cutoff", "Epsilon cut-off", "Least probability that stays; 0 is off.", 0, 0.02, 0.0001),
            Knob("eta_cutoff", "Eta cut-off", "The same, lower where the model is unsure; 0 is off.", 0, 0.02, 0.0001),
            Knob(
                "xtc_probability", "XTC probability", "How often the top choices go, all but one; 0 is off.", 0, 1, 0.05
            ),
            Knob("xtc_threshold", "XTC threshold", "How likely a top choice is; above 0.5 nothing happens.", 0, 0.5),
        ),
    ),
    Group(
        "Penalties",
        "penalties",
        (
            Knob("frequency_penalty", "Frequency penalty", "Off a logit for each time seen; 0 is off.", -2, 2, 0.05),
            Knob("presence_penalty", "Presence penalty", "Off a logit once, when seen; 0 is off.", -2, 2, 0.05),
            Knob("penalty_last_n", "Penalty window", "Tokens looked back at by the penalties; −1 is all.", -1, 512, 1),
            Knob(
                "no_repeat_ngram_size", "No-repeat n-gram", "Tokens in a row that never come twice; 0 is off.", 0, 10, 1
            ),
            Knob(
                "dry_multiplier",
                "DRY strength",
                "Off the logit that would go on with a repetition; 0 is off.",
                0,
                5,
                0.05,
            ),
            Knob("dry_base", "DRY base", "Growth with each token that the repetition is longer.", 1, 4, 0.05),
            Knob("dry_allowed_length", "DRY allowed length", "Tokens; shorter repetitions are free.", 1, 20, 1),
            Knob("dry_penalty_last_n", "DRY window", "Tokens looked back at; −1 is all, 0 is off.", -1, 512, 1),
            Knob("dry_sequence_breakers", "DRY breakers", "Texts no repetition reaches across; one a line."),
        ),
    ),
    Group(
        "Adaptive",
        "adaptive",
        (
            Knob("dynatemp_range", "Dynamic range", "Temperature moves so far either way; 0 is off.", 0, 2, 0.05),
            Knob("dynatemp_exponent", "Dynamic exponent", "Power of the entropy that moves it.", 0, 5, 0.1),
            Knob(
                "mirostat",
                "Mirostat",
                "Steers the surprise of the text.",
                choices=(("Off", 0), ("1", 1), ("2", 2)),
            ),
            Knob("mirostat_tau", "Mirostat tau", "Surprise aimed at, in bits a token.", 0, 10, 0.1),
            Knob("mirostat_eta", "Mirostat eta", "Share of each miss that is made good at once.", 0, 1, 0.01),
        ),
    ),
    Group(
        "Words & stopping",
        "words",
        (
            Knob("banned_words", "Banned words", "Never come; one a line, in quotes exactly so.", placeholder="cat"),
            Knob("forced_words", "Forced words", "Come before the end; one a line.", placeholder="moon"),
            Knob(
                "word_bias",
                "Word bias",
                "Added to the logit; a word and a number a line.",
                placeholder="happy +2\nsad -3",
            ),
            Knob("stop_strings", "Stop strings", "Texts that end the run; one a line.", placeholder="The end\n\\n\\n"),
            Knob("min_new_tokens", "Min new tokens", "Tokens before the text may end; 0 is off.", 0, 200, 1),
            Knob("stop_at_end", "Stop at the end-of-text token"),
        ),
    ),
)

TYPED = (*KINDS, "dry_sequence_breakers", "stop_strings")
"""Settings typed as text, which the model's tokenizer has to read."""

SETTINGS = (
    *(each.name for each in BASIC),
    "max_new_tokens",
    "seed",
    *(each.name for group in GROUPS for each in group.knobs),
    "order",
)
"""Names of the settings in the order of the widgets."""


def typed(texts: tuple[str, ...]) -> str:
    """Texts as they are typed into a box."""
    return "\n".join(each.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t") for each in texts)


def start(name: str) -> Any:
    """What a widget shows when the page opens."""
    if name in KINDS:
        return ""
    value = getattr(Decoding(), name)
    return typed(value) if name in TYPED else value


_OFF: Mapping[str, Any] = {
    **{name: value for name, value in NEUTRAL.items() if name in SETTINGS},
    **{name: start(name) for group in GROUPS for name in (each.name for each in group.knobs) if name not in NEUTRAL},
}
_KEPT = ("banned_words", "forced_words", "word_bias", "stop_strings", "min_new_tokens", "stop_at_end")


class Preset(NamedTuple):
    """A button that sets several settings; those it does not name are set to do nothing or, if typed, stay."""

    name: str
    label: str
    hint: str
    values: Mapping[str, Any]


def _preset(name: str, label: str, hint: str, **values: Any) -> Preset:
    off = {key: value for key, value in _OFF.items() if key not in _KEPT}
    return Preset(name, label, hint, {**off, **values})


PRESETS = (
    Preset("neutral", "Neutral", "Every stage off: draws from the model’s own distribution.", _OFF),
    _preset("deterministic", "Deterministic", "Always the most likely token.", temperature=0.0),
    _preset("precise", "Precise", "Few surprises: low temperature, most of the mass.", temperature=0.4, top_p=0.9),
    _preset(
        "balanced",
        "Balanced",
        "The defaults of llama.cpp.",
        temperature=0.8,
        top_k=40,
        top_p=0.95,
        min_p=0.05,
    ),
    _preset(
        "creative",
        "Creative",
        "Hot, cut by min-p; XTC and DRY keep it off beaten tracks.",
        temperature=1.2,
        min_p=0.05,
        xtc_probability=0.5,
        dry_multiplier=0.8,
    ),
    _preset(
        "steady",
        "Steady",
        "Mirostat 2 holds the surprise at 3 bits a token.",
        temperature=1.0,
        mirostat=2,
        mirostat_tau=3.0,
    ),
)

ORDERS: Mapping[str, tuple[str, ...]] = {"transformers": TRANSFORMERS_ORDER, "llama.cpp": LLAMA_CPP_ORDER}

STAGE_LABELS: Mapping[str, str] = {
    **{each.name: each.label for each in (*BASIC, *(knob for group in GROUPS for knob in group.knobs))},
    "sequence_bias": "Word bias",
    "bad_words_ids": "Banned words",
    "force_words_ids": "Forced words",
    "dynatemp_range": "Dynamic temperature",
    "xtc_probability": "XTC",
    "dry_multiplier": "DRY",
    "tfs_z": "Tail-free",
}
"""What a stage is called in the list of their order."""
