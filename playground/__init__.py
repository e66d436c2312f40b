"""Generate with a decoder and look inside: `generate(load(...), prompt, Decoding(...))` gives a `Run` of `Step`s."""

from models.chat_template import Turn
from playground.branches import branch, edit
from playground.capability import capability
from playground.chat import chat
from playground.records import CacheSize, Decoding, Origin, Stage, Step
from playground.runs import Run, generate

__all__ = [
    "CacheSize",
    "Decoding",
    "Origin",
    "Run",
    "Stage",
    "Step",
    "Turn",
    "branch",
    "capability",
    "chat",
    "edit",
    "generate",
]
