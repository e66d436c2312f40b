"""Generate with a decoder and look inside: `generate(load(...), prompt, Decoding(...))` gives a `Run` of `Step`s."""

from playground.records import CacheSize, Decoding, Stage, Step
from playground.runs import Run, generate

__all__ = ["CacheSize", "Decoding", "Run", "Stage", "Step", "generate"]
