"""A toy run: it learns, and an interrupted run ends where an uninterrupted one does."""

import itertools
import json
import math
import random
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from models import load
from models.data import END
from models.training import (
    Settings,
    Trainer,
    command,
    decoder_config,
    learning_rate,
    main,
    parameter_groups,
    prepare_sources,
    prepare_tokenizer,
)

NAMES, VERBS, THINGS = ("Tom", "Ann", "Sam"), ("saw", "had", "hid"), ("a cat", "the sun", "a red ball")
TOY = {
    "mixture": "toy=1.0",
    "vocab_size": 280,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "context_length": 32,
    "rows": 8,
    "learning_rate": 1e-2,
    "warmup": 5,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences of three words each drawn at random: their order can be learned, their choice cannot."""
    folder, draw = tmp_path_factory.mktemp("data"), random.Random(0)
    (folder / "toy").mkdir()
    for split, count in (("train", 900), ("valid", 20)):
        lines = [f"{draw.choice(NAMES)} {draw.choice(VERBS)} {draw.choice(THINGS)}." for _ in range(count)]
        text = "".join(f"{' '.join(lines[i : i + 5])}\n{END}\n" for i in range(0, count, 5))
        (folder / "toy" / f"toy_{split}.txt").write_text(text, encoding="utf-8")
    return folder


def arguments(data: Path, folder: Path, **changes) -> list[str]:
    options = {
        **TOY,
        "device": "cpu",
        "threads": torch.get_num_threads(),
        "evaluate_every": 30,
        "sample_tokens": 3,
        **changes,
    }
    listed = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
    return [f"--data={data}", f"--work={folder / 'work'}", f"--out={folder / 'out'}", *listed]


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    main(arguments(data, folder, steps=50, short_until=0.3))
    return folder


def test_the_toy_model_learns_more_than_how_often_tokens_occur(finished: Path) -> None:
    curve = json.loads((finished / "out" / "loss.json").read_text(encoding="utf-8"))
    counts = Counter(np.load(finished / "work" / "toy.npy").tolist())
    total = sum(counts.values())
    entropy = -sum(n / total * math.log(n / total) for n in counts.values())
    assert curve["train"]["loss"][0] > entropy
    assert curve["validation"]["toy_valid"]["loss"][-1] < 0.75 * entropy
    assert np.mean(curve["train"]["loss"][-5:]) < 0.75 * entropy


def test_the_finished_checkpoint_loads_and_its_card_says_how_it_was_made(finished: Path) -> None:
    loaded = load(finished / "out", device="cpu")
    assert loaded.card.parameters == sum(p.numel() for p in loaded.model.parameters())
    assert loaded.card.loss_curve["train"]["tokens"][-1] == 50 * 8 * 32
    for words in ("--steps 50", "toy_valid", "bits per byte", "seed 0", "not stated", "CPU"):
        assert words in loaded.card.readme
    assert str(finished.parent) not in loaded.card.readme
    assert not loaded.card.readme.startswith("---")


def test_an_interrupted_run_ends_with_the_same_weights(finished: Path, data: Path, tmp_path: Path) -> None:
    settings = Settings(**{**TOY, "steps": 8})
    whole, first, second = (trainer_of(finished, settings) for _ in range(3))
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


def test_a_second_start_of_a_finished_run_trains_no_further(finished: Path, data: Path) -> None:
    before = (finished / "out" / "model.safetensors").read_bytes()
    main(arguments(data, finished, steps=50, short_until=0.3))
    assert (finished / "out" / "model.safetensors").read_bytes() == before


def test_a_state_of_other_settings_is_refused_by_name(finished: Path) -> None:
    other = trainer_of(finished, Settings(**{**TOY, "steps": 50, "learning_rate": 0.5, "seed": 3}))
    with pytest.raises(ValueError, match="another learning_rate, seed"):
        other.restore(finished / "work" / "state.pt")


def trainer_of(finished: Path, settings: Settings) -> Trainer:
    work = finished / "work"
    tokenizer = prepare_tokenizer(settings, work, work)
    return Trainer(
        settings, prepare_sources(settings, work, work, tokenizer), decoder_config(settings, tokenizer), "cpu"
    )


def test_parts_of_a_step_add_up_to_the_whole(finished: Path) -> None:
    whole, parts = (trainer_of(finished, Settings(**{**TOY, "accumulate": n})) for n in (1, 4))
    assert parts.advance() == pytest.approx(whole.advance(), rel=1e-5)
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


def test_the_rate_warms_up_and_falls_along_a_cosine() -> None:
    settings = Settings(steps=110, warmup=10, learning_rate=1.0, final_rate=0.1)
    rates = [learning_rate(step, settings) for step in range(111)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == 1.0
    assert rates[60] == pytest.approx(0.55)
    assert rates[110] == pytest.approx(0.1)
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))


def test_matrices_decay_and_norms_and_biases_do_not() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    decayed, spared = parameter_groups(model, 0.1)
    assert [tuple(p.shape) for p in decayed["params"]] == [(4, 3)]
    assert [tuple(p.shape) for p in spared["params"]] == [(4,), (4,), (4,)]
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)


def test_the_command_names_what_differs_from_the_defaults() -> None:
    text = command(Settings(steps=7, short_until=0.5))
    assert text.startswith("python -m models.training --data DATA")
    assert text.endswith("--steps 7 \\\n  --short-until 0.5")
    assert "--seed" not in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mixture": "toy"}, "mixture must look like"),
        ({"mixture": "missing=1.0"}, "Data set missing has no file missing_train.txt"),
        ({"num_key_value_heads": 3}, "must be a multiple of num_key_value_heads"),
        ({"precision": "int4"}, "invalid choice: 'int4'"),
        ({"context_length": 100_000}, "too few for rows of 100000"),
    ],
)
def test_a_wrong_option_is_answered_with_a_sentence(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict, words: str
) -> None:
    with pytest.raises(SystemExit):
        main(arguments(data, tmp_path, **changes))
    assert words in capsys.readouterr().err


def test_asked_to_stop_it_saves_and_leaves(
    finished: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = Trainer.advance

    def advance_and_ask(self: Trainer) -> float:
        if self.step == 2:
            signal.raise_signal(signal.SIGTERM)
        return advance(self)

    monkeypatch.setattr(Trainer, "advance", advance_and_ask)
    main(arguments(data, tmp_path, steps=10))
    assert torch.load(tmp_path / "work" / "state.pt", weights_only=True)["step"] == 3
    assert not (tmp_path / "out").exists()


def test_a_changed_number_of_steps_is_taken_up_and_remembered(finished: Path, tmp_path: Path) -> None:
    first, second = (trainer_of(finished, Settings(**{**TOY, "steps": steps})) for steps in (8, 20))
    first.advance()
    first.save(tmp_path / "state.pt")
    second.restore(tmp_path / "state.pt")
    assert second.history.plans == [[1, 8]]
    assert second.step == 1
