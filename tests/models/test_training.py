"""A toy run: it learns, and an interrupted run ends where an uninterrupted one does."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from models import load
from models.card import Earlier
from models.corpora import chosen
from models.head_scores import KINDS
from models.settings import Settings
from models.trainer import Trainer, accelerator
from models.training import main, new_model, prepare_tokenizer
from models.training_run import packed_sources

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def trainer(toy: Path, data: Path, toy_settings: dict) -> Callable[..., Trainer]:
    """Makes a trainer of the toy model, with changes to its settings."""

    def made(**changes) -> Trainer:
        settings, sets = Settings(**{**toy_settings, **changes}), chosen(data, ["toy"])
        tokenizer = prepare_tokenizer(settings, sets, toy / "work")
        sources = packed_sources(sets, settings.shares(), tokenizer, toy / "work")
        return Trainer(settings, new_model(settings, tokenizer), sources, accelerator(settings.precision, "cpu"))

    return made


def test_the_toy_model_learns_more_than_how_often_tokens_occur(toy: Path) -> None:
    curve = json.loads((toy / "out" / "loss.json").read_text(encoding="utf-8"))
    counts = Counter(np.load(toy / "work" / "toy.npy").tolist())
    total = sum(counts.values())
    entropy = -sum(n / total * math.log(n / total) for n in counts.values())
    assert curve["train"]["loss"][0] > entropy
    assert curve["validation"]["toy_valid"]["loss"][-1] < 0.75 * entropy
    assert np.mean(curve["train"]["loss"][-5:]) < 0.75 * entropy


def test_the_finished_checkpoint_loads_and_its_card_says_how_it_was_made(toy: Path) -> None:
    loaded = load(toy / "out", device="cpu")
    assert loaded.card.parameters == sum(p.numel() for p in loaded.model.parameters())
    assert loaded.card.loss_curve["train"]["tokens"][-1] == 50 * 8 * 32
    for words in ("--steps 50", "toy_valid", "bits per byte", "| seed | 0 |", "| clip | 1.0 |", "not stated", "CPU"):
        assert words in loaded.card.readme
    assert str(toy.parent) not in loaded.card.readme
    assert not loaded.card.readme.startswith("---")
    for name in asdict(Settings()):
        assert f"\n| {name} | " in loaded.card.readme
    assert {each.kind for each in loaded.card.heads} == set(KINDS)
    assert list(loaded.card.loss_curve["heads"]) == ["step", *KINDS]
    assert (toy / "out" / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "random_parts",
    [{}, {"dropout": 0.1, "own_words": 0.2, "random_repeats": 0.3, "optimizer": "muon"}],
    ids=["plain", "random parts"],
)
def test_an_interrupted_run_ends_with_the_same_weights(
    trainer: Callable[..., Trainer], tmp_path: Path, random_parts: dict
) -> None:
    whole, first, second = (trainer(steps=8, **random_parts) for _ in range(3))
    for _ in range(8):
        whole.advance()
    for _ in range(4):
        first.advance()
    first.save(tmp_path / "state.pt")
    first.advance()  # lost in the interruption
    second.restore(tmp_path / "state.pt")
    while second.step < 8:
        second.advance()
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, second.model.state_dict()[name]), name
    assert second.history.train["loss"] == whole.history.train["loss"]


def test_a_second_start_of_a_finished_run_trains_no_further(toy: Path, arguments: Callable[..., list[str]]) -> None:
    before = (toy / "out" / "model.safetensors").read_bytes()
    main(arguments(toy, steps=50, short_until=0.3))
    assert (toy / "out" / "model.safetensors").read_bytes() == before


def test_a_state_of_other_settings_is_refused_by_name(toy: Path, trainer: Callable[..., Trainer]) -> None:
    other = trainer(steps=50, short_until=0.3, learning_rate=0.5, seed=3)
    with pytest.raises(ValueError, match="another learning_rate, seed"):
        other.restore(toy / "work" / "state.pt")


def test_parts_of_a_step_add_up_to_the_whole(trainer: Callable[..., Trainer]) -> None:
    whole, parts = (trainer(accumulate=n) for n in (1, 3))
    assert parts.advance() == pytest.approx(whole.advance(), rel=1e-5)
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mixture": "toy"}, "mixture must look like"),
        ({"mixture": "missing=1.0"}, "Data set missing has no file missing_train.txt"),
        ({"num_key_value_heads": 3}, "must be a multiple of num_key_value_heads"),
        ({"precision": "int4"}, "invalid choice: 'int4'"),
        ({"tokenizer": "/nowhere"}, "There is no tokenizer.json in /nowhere"),
        ({"init": "/nowhere"}, "/nowhere"),
        ({"context_length": 100_000}, "too few for rows of 100000"),
    ],
)
def test_a_wrong_option_is_answered_with_a_sentence(
    arguments: Callable[..., list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict,
    words: str,
) -> None:
    with pytest.raises(SystemExit):
        main(arguments(tmp_path, **changes))
    assert words in capsys.readouterr().err


def test_asked_to_stop_it_saves_and_leaves(
    arguments: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = Trainer.advance

    def advance_and_ask(self: Trainer) -> float:
        if self.step == 2:
            signal.raise_signal(signal.SIGTERM)
        return advance(self)

    monkeypatch.setattr(Trainer, "advance", advance_and_ask)
    main(arguments(tmp_path, steps=10))
    assert torch.load(tmp_path / "work" / "state.pt", weights_only=True)["step"] == 3
    assert not (tmp_path / "out").exists()


def test_a_changed_number_of_steps_is_taken_up_and_remembered(trainer: Callable[..., Trainer], tmp_path: Path) -> None:
    first, second = (trainer(steps=steps) for steps in (8, 20))
    first.advance()
    first.save(tmp_path / "state.pt")
    second.restore(tmp_path / "state.pt")
    assert second.history.changes == [[1, "steps", 8]]
    assert second.step == 1


def test_activations_computed_again_give_the_same_weights(trainer: Callable[..., Trainer]) -> None:
    plain, again = (trainer(gradient_checkpointing=each, dropout=0.1) for each in (False, True))
    for _ in range(3):
        assert again.advance() == pytest.approx(plain.advance(), rel=1e-6)
    for a, b in zip(plain.model.parameters(), again.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_products_in_bfloat16_leave_the_weights_in_float32(trainer: Callable[..., Trainer]) -> None:
    rough, exact = (trainer(precision=each) for each in ("bfloat16", "float32"))
    losses = [(rough.advance(), exact.advance()) for _ in range(3)]
    assert losses == [(pytest.approx(b, rel=0.02), b) for _, b in losses]
    assert any(a != b for a, b in losses)
    assert {parameter.dtype for parameter in rough.model.parameters()} == {torch.float32}


def test_rows_that_processes_cannot_share_are_refused(trainer: Callable[..., Trainer]) -> None:
    made = trainer()
    made.accelerator.state._shared_state["num_processes"] = 3
    with pytest.raises(ValueError, match="8 rows cannot be shared evenly by 3 processes"):
        Trainer(made.settings, made.model, made.mixture.sources, made.accelerator)


def test_two_processes_end_with_the_weights_of_one(
    arguments: Callable[..., list[str]], tmp_path: Path, free_port: int
) -> None:
    options = {"steps": 3, "precision": "float32", "threads": 1, "num_hidden_layers": 1, "sample_tokens": 1}
    main(arguments(tmp_path / "one", **options))
    shared = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port)}
    line = [sys.executable, "-m", "models.training", *arguments(tmp_path / "two", **options)]
    running = [
        subprocess.Popen(
            line, cwd=ROOT, stderr=subprocess.PIPE, env={**shared, "RANK": rank, "LOCAL_RANK": rank}, text=True
        )
        for rank in ("0", "1")
    ]
    ends = [(process.communicate(timeout=300)[1], process.returncode) for process in running]
    assert [code for _, code in ends] == [0, 0], ends
    one, two = (load_file(tmp_path / run / "out" / "model.safetensors") for run in ("one", "two"))
    for name, weight in one.items():
        torch.testing.assert_close(weight, two[name], atol=1e-4, rtol=1e-3)


def test_anybody_trains_on_a_text_of_their_own(
    arguments: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "mine.txt"
    own.write_text("\n\n".join(f"Day {number}: it rained and I stayed in bed." for number in range(400)))
    main(arguments(tmp_path, data=own, mixture=None, work=None, steps=3, schedule="wsd", compile=None, lora=None))
    readme = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "| mine_valid |" in readme
    assert "| mine | 100% |" in readme
    assert (tmp_path / "out.work" / "state.pt").exists()
    assert "tokens/s, MFU=" in capsys.readouterr().err


def test_a_run_that_starts_from_a_checkpoint_begins_where_it_stood_and_its_card_says_so(
    toy: Path, arguments: Callable[..., list[str]], tmp_path: Path
) -> None:
    small = dict.fromkeys(("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size"))
    main(arguments(tmp_path, init=toy / "out", steps=3, learning_rate=1e-4, random_repeats=0.1, **small))
    before, after = (load(folder / "out", device="cpu").card for folder in (toy, tmp_path))
    assert after.loss_curve["train"]["loss"][0] == pytest.approx(before.loss_curve["train"]["loss"][-1], abs=0.3)
    assert (after.hidden_size, after.num_hidden_layers) == (before.hidden_size, before.num_hidden_layers)
    for words in (
        "those of an earlier checkpoint, out, that had seen 12,800 tokens",
        "> 50 steps, 12,800 tokens",
        "3 steps, 768 tokens",
        "| hidden_size | 32 |",
        "--init",
    ):
        assert words in after.readme
    assert str(toy.parent) not in after.readme
    assert "trained from scratch, in 2 runs" in after.readme
    third = Earlier.of(after)
    assert (third.tokens, third.runs) == (12_800 + 768, 2)
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (toy / "out" / "tokenizer.json").read_bytes()


def test_a_draft_takes_over_the_tokenizer_and_the_card_says_how_well_it_guesses(
    toy: Path, arguments: Callable[..., list[str]], tmp_path: Path
) -> None:
    shutil.copytree(toy, tmp_path / "run")
    out = tmp_path / "run" / "out"
    options = {"tokenizer": out, "work": tmp_path / "draft", "out": out / "draft", "num_hidden_layers": 1}
    main(arguments(tmp_path, steps=3, **options))
    main(arguments(tmp_path / "run", steps=50, short_until=0.3))
    card = load(out, device="cpu").card
    assert "accepts 0." in card.readme
    draft = load(out / "draft", device="cpu").card
    assert draft.vocab_size == card.vocab_size
    assert "--tokenizer out" in draft.readme
