"""Generate with a decoder and look inside: `generate(load(...), prompt, Decoding(...))` gives a `Run` of `Step`s."""

from playground.branches import branch, edit
from playground.records import CacheSize, Decoding, Origin, Stage, Step
from playground.runs import Run, generate

__all__ = ["CacheSize", "Decoding", "Origin", "Run", "Stage", "Step", "branch", "edit", "generate"]
