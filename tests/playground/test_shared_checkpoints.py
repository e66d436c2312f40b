"""Trained checkpoints of others, loaded as a user would: what they are known to do, they do here."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from models import load
from playground import Decoding, generate

GREEDY = Decoding(temperature=0.0, max_new_tokens=256, stop_at_end=False)
LLAMA2_C = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a "
    "big, red ball. She wanted to play with it, but it was too high.\nLily's mom said, \"Lily, let's go to the park.\" "
    "Lily was sad and didn't know what to do. She said, \"I want to play with your ball, but I can't find it.\"\n"
    "Lily was sad and didn't know what to do. She said, \"I'm sorry, Lily. I didn't know what to do.\"\nLily didn't "
    "want to help her mom, so she said, \"I'm sorry, mom. I didn't know what to do.\" Her mom said, \"Don't worry, "
    "Lily. We can help you."
)
"""What `doc/stories260K.md` of llama2.c shows for temperature 0; its test wants the first 200 tokens."""


@pytest.fixture
def checkpoints(shared: Path) -> Path:
    return shared / "checkpoints"


def test_stories260k_tells_the_published_story(checkpoints: Path) -> None:
    run = generate(load(checkpoints / "stories260K", "cpu"), "<s>", GREEDY).finish()
    assert run.token_ids[: run.prompt_length] == [1]
    assert run.text.strip() == LLAMA2_C


def test_gpt_nano_sort_sorts(checkpoints: Path) -> None:
    loaded = load(checkpoints / "gpt-nano-sort", "cpu")
    for letters in itertools.islice(itertools.product("ABC", repeat=6), 0, None, 13):
        run = generate(loaded, "".join(letters), Decoding(temperature=0.0, max_new_tokens=5)).finish()
        drawn = "".join(step.token for step in run.steps)
        assert drawn == "".join(sorted(letters))[: len(drawn)]
        assert len(drawn) == 5


def test_what_a_prompt_may_hold_is_said_before_a_model_of_a_small_world_runs(checkpoints: Path) -> None:
    loaded = load(checkpoints / "gpt-nano-sort", "cpu")
    with pytest.raises(ValueError, match="has 12 tokens and the model reads 11 at most"):
        generate(loaded, "ABCABCABCABC")


def test_attention_of_stories260k_equals_that_of_transformers(checkpoints: Path) -> None:
    loaded = load(checkpoints / "stories260K", "cpu")
    run = generate(loaded, "Once upon a time", Decoding(temperature=0.0, max_new_tokens=24)).finish()
    loaded.model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = loaded.model(torch.tensor([run.token_ids[:-1]]), output_attentions=True)
    for layer, pattern in enumerate(expected.attentions):
        np.testing.assert_allclose(run.attention(layer), pattern[0].numpy(), atol=1e-5)
