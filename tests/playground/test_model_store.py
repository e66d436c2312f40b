"""Models that are kept for the next visitor: who may choose what, who leaves when, and that nothing stays behind."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from models import CheckpointError, LoadCancelledError, Loaded, NoRoomError, Progress, load
from models.devices import give_back_memory
from playground import Decoding, generate
from playground.model_store import ModelStore, Shelf, Wanted, offered
from playground.sessions import RefusedError, Store, Worker
from tests.playground.conftest import PROMPT

MIB = 1 << 20


@pytest.fixture
def shelf(checkpoint: Callable[[str], Path]) -> dict[str, str]:
    return {family: str(checkpoint(family)) for family in ("llama", "gpt2", "decoder")}


@pytest.fixture
def models(tiny: Loaded, shelf: dict[str, str]) -> ModelStore:
    return ModelStore(tiny, "first", Shelf(shelf), Store())


def names(models: ModelStore) -> list[str]:
    return [each.card.name for each in models.loaded()]


def test_a_model_is_loaded_once_and_stays_for_the_next_visitor(models: ModelStore, tiny: Loaded) -> None:
    mine = models.begin("me", Wanted("gpt2")).result.result(60)
    assert models.begin("you", Wanted("gpt2")).result.result(60) is mine
    assert models.of("me") is models.of("you") is mine
    assert models.of("somebody else") is tiny
    assert models.chosen("somebody else").name == "first"


def test_what_is_not_offered_is_refused_unless_the_operator_allows_it(
    models: ModelStore, checkpoint: Callable[[str], Path]
) -> None:
    path = str(checkpoint("gpt2"))
    with pytest.raises(RefusedError, match="not offered here: first, llama, gpt2, decoder are"):
        models.begin("me", Wanted(path))
    models.shelf = Shelf(models.shelf.offered, any_model=True)
    assert models.begin("me", Wanted(path)).result.result(60).card.architecture == "GPT2LMHeadModel"


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Wanted("gpt2", device="cuda:99"), "'cuda:99' cannot be used here; this machine has cpu"),
        (Wanted("gpt2", dtype="int8"), "'int8' is not one of float32, bfloat16, float16"),
        (Wanted(None), "by its name"),  # type: ignore[arg-type]
    ],
)
def test_a_device_or_a_type_that_is_not_there(models: ModelStore, wanted: Wanted, words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        models.begin("me", wanted)


def test_the_same_model_in_other_numbers_is_another_one(models: ModelStore) -> None:
    half = models.begin("me", Wanted("gpt2", "cpu", "bfloat16")).result.result(60)
    assert half.card.dtype == "bfloat16"
    assert models.begin("you", Wanted("gpt2", "cpu", "float32")).result.result(60) is not half


def test_a_model_that_cannot_be_loaded_leaves_the_choice_as_it_was(models: ModelStore, tmp_path: Path) -> None:
    models.shelf = Shelf({"broken": str(tmp_path)})
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        models.begin("me", Wanted("broken")).result.result(60)
    assert models.chosen("me").name == "first"


def loading_until(cancelled: threading.Event, started: threading.Event) -> Callable[..., Loaded]:
    def loader(*_: Any, told: Callable[[Progress], None]) -> Loaded:
        started.set()
        assert cancelled.wait(30)
        told(Progress("Reading", 1, 2))
        raise AssertionError("a cancelled load went on")

    return loader


def test_loading_ends_when_nobody_waits_for_it_any_more(tiny: Loaded, shelf: dict[str, str]) -> None:
    go, started = threading.Event(), threading.Event()
    models = ModelStore(tiny, "first", Shelf(shelf), Store(), loading_until(go, started))
    loading = models.begin("me", Wanted("gpt2"))
    assert models.begin("you", Wanted("gpt2")) is loading
    assert started.wait(30)
    models.cancel("me")
    assert not loading.cancelled.is_set()
    models.leave("you")
    go.set()
    with pytest.raises(LoadCancelledError, match="Loading gpt2 was cancelled"):
        loading.result.result(30)
    assert models.chosen("me").name == "first"


def test_progress_counts_the_tensors_and_cancelling_ends_a_load_on_the_way(checkpoint: Callable[[str], Path]) -> None:
    heard: list[Progress] = []
    load(checkpoint("llama"), "cpu", told=heard.append)
    counted = [each for each in heard if each.total]
    assert [each.done for each in counted] == list(range(counted[0].total))
    assert counted[0].total > 20

    def enough(progress: Progress) -> None:
        if progress.done == 3:
            raise LoadCancelledError("Loading was cancelled.")

    with pytest.raises(LoadCancelledError):
        load(checkpoint("llama"), "cpu", told=enough)
    assert load(checkpoint("llama"), "cpu").card.parameters


def test_the_longest_unused_model_leaves_when_more_is_kept_than_allowed(tiny: Loaded, shelf: dict[str, str]) -> None:
    sizes = {name: load(path, "cpu").card.weights_bytes for name, path in shelf.items()}
    room = tiny.card.weights_bytes + max(sizes.values()) + 1
    models = ModelStore(tiny, "first", Shelf(shelf, kept_bytes=room), Store())
    for name in ("gpt2", "decoder"):
        models.begin("me", Wanted(name)).result.result(60)
    assert names(models)[-1].startswith("decoder")
    assert len(models.loaded()) == 2
    assert models.of("somebody").card.name == tiny.card.name  # loaded again where it had to leave


def test_a_model_in_use_never_leaves(tiny: Loaded, shelf: dict[str, str]) -> None:
    runs = Store()
    models = ModelStore(tiny, "first", Shelf(shelf, kept_bytes=1), runs)
    used = models.begin("me", Wanted("gpt2")).result.result(60)
    entry = runs.start("me", used, PROMPT, Decoding(max_new_tokens=4))
    models.begin("you", Wanted("decoder")).result.result(60)
    assert used in models.loaded()
    Worker(runs).advance(entry)
    assert not models.put_away_one(keep=Wanted("decoder")) or used in models.loaded()


def test_when_memory_is_short_others_make_room_and_then_it_is_said(tiny: Loaded, shelf: dict[str, str]) -> None:
    tried: list[int] = []

    def loader(*arguments: Any, told: Any) -> Loaded:
        tried.append(len(models.loaded()))
        if len(models.loaded()) > 1 or arguments[0] == "huge":
            raise NoRoomError("It needs 9.00 GiB, and 1.00 GiB are free on cpu.")
        return load(*arguments, told=told)

    models = ModelStore(tiny, "first", Shelf({**shelf, "huge": "huge"}), Store(), loader)
    models.begin("me", Wanted("gpt2")).result.result(60)
    models.begin("me", Wanted("decoder")).result.result(60)
    assert tried == [1, 2, 1]
    with pytest.raises(NoRoomError, match=r"and 1\.00 GiB are free on cpu\.$"):
        models.begin("me", Wanted("huge")).result.result(60)


def test_the_menu_is_what_is_shipped_and_what_lies_in_the_folder(checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint("gpt2").parent
    found = offered((), folder)
    assert "storyteller" in found
    assert found[checkpoint("gpt2").name] == str(checkpoint("gpt2"))
    assert offered(("org/model@v1",), None) == {"org/model@v1": "org/model@v1"}
    with pytest.raises(ValueError, match="There is no folder"):
        offered((), folder / "nowhere")


def test_twenty_models_one_after_another_leave_the_memory_as_it_was(checkpoint: Callable[[str], Path]) -> None:
    process, kept = psutil.Process(), []

    def one(family: str) -> None:
        loaded = load(checkpoint(family), "cpu")
        run = generate(loaded, PROMPT, Decoding(max_new_tokens=8, stop_at_end=False)).finish()
        run.attention(0)
        kept.append(weakref.ref(loaded.model))

    for family in ("llama", "gpt2", "decoder"):  # what is imported or kept once does not count
        one(family)
    give_back_memory()
    before = process.memory_info().rss
    for index in range(20):
        one(("llama", "gpt2", "decoder")[index % 3])
    give_back_memory()
    gc.collect()
    assert process.memory_info().rss - before < 100 * MIB
    assert not [each for each in kept if each() is not None]
