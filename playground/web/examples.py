"""Prompts to click: each shows something in the panels, and the hint says what to look for."""

from __future__ import annotations

from typing import NamedTuple


class Example(NamedTuple):
    """One prompt, the few words on its button, and what it is good for."""

    label: str
    prompt: str
    hint: str


EXAMPLES = (
    Example(
        "A dragon",
        "Once upon a time, there was a little dragon who",
        "A story from its first words: watch the distribution widen and narrow.",
    ),
    Example(
        "Whose kite?",
        "Tom had a red ball. Mia had a blue kite. Tom gave Mia his",
        "Names and things come back: look for heads that point at them.",
    ),
    Example(
        "Repetition",
        "The cat saw a green frog. The cat saw a green",
        "A sentence repeats: look for heads whose stripes run parallel to the diagonal.",
    ),
)
