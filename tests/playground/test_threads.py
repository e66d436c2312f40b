"""Passes over one token leave the CPU's other threads asleep, where these cannot help."""

from collections.abc import Iterator

import pytest
import torch

from models import Loaded, layout, load
from playground import Decoding, generate, threads

TWO = Decoding(max_new_tokens=2, temperature=0.0, stop_at_end=False)


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def arranged(monkeypatch: pytest.MonkeyPatch) -> Loaded:
    monkeypatch.setattr(layout, "faster_along_outputs", lambda _: True)
    return load("storyteller", "cpu", "float32")


def threads_of_passes(loaded: Loaded, prompt: str = "Once upon a time") -> list[int]:
    """How many threads each pass of a short run had."""
    seen: list[int] = []
    hook = loaded.model.register_forward_pre_hook(lambda *_: seen.append(torch.get_num_threads()))
    run = generate(loaded, prompt, TWO).finish()
    hook.remove()
    assert torch.get_num_threads() == 3
    assert len(run.steps) == 2
    return seen[-2:]


def test_a_prompt_uses_all_threads_and_one_token_uses_one(arranged: Loaded) -> None:
    assert threads_of_passes(arranged) == [3, 1]


def test_all_threads_help_once_much_is_cached(arranged: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "LITTLE", 1024)
    assert threads_of_passes(arranged) == [3, 3]


def test_weights_in_the_usual_order_keep_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "faster_along_outputs", lambda _: False)
    assert threads_of_passes(load("storyteller", "cpu", "float32")) == [3, 3]


def test_the_threads_come_back_after_an_error() -> None:
    def broken() -> None:
        with threads.one_thread():
            assert torch.get_num_threads() == 1
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        broken()
    assert torch.get_num_threads() == 3
