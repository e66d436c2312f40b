"""A checkpoint trained further on new text: all weights or LoRA, and stored like any other."""

import random
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from models import DecoderConfig, DecoderForCausalLM, load
from models.corpora import data_sets
from models.dropout import set_dropout
from models.evaluation import score
from models.finetuning import linear_layers, main, with_lora
from models.settings import Tuning

SIZES = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
MAKERS = {
    "ours": lambda: DecoderForCausalLM(DecoderConfig(**SIZES)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=60, n_embd=16, n_layer=2, n_head=4)),
}


@pytest.fixture(scope="module")
def diary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text unlike the toy's: other words in another order."""
    draw = random.Random(1)
    days = (f"The {draw.choice(('sun', 'cat', 'ball'))} hid a {draw.choice(('red', 'big'))} Tom!" for _ in range(600))
    path = tmp_path_factory.mktemp("own") / "diary.txt"
    path.write_text("\n\n".join(days), encoding="utf-8")
    return path


def tune(toy: Path, diary: Path, folder: Path, **changes) -> None:
    options = {
        "model": toy / "out", "data": diary, "out": folder / "tuned", "steps": 30, "context-length": 32, "warmup": 3,
        "device": "cpu", "threads": torch.get_num_threads(), "sample-tokens": 3, "evaluate-every": 20, **changes,
    }  # fmt: skip
    main([f"--{key}={value}" for key, value in options.items()])


def bits(folder: Path, diary: Path) -> float:
    loaded, (own,) = load(folder, device="cpu"), data_sets(diary).values()
    return score(loaded.model, loaded.tokenizer, own.texts("valid"), 32).bits_per_byte


@pytest.mark.parametrize(
    "changes", [{"learning-rate": 5e-3}, {"learning-rate": 3e-2, "lora": 4}], ids=["all weights", "LoRA"]
)
def test_new_text_is_learned_and_the_result_is_an_ordinary_checkpoint(
    toy: Path, diary: Path, tmp_path: Path, changes: dict
) -> None:
    tune(toy, diary, tmp_path, **changes)
    tuned = tmp_path / "tuned"
    assert bits(tuned, diary) < 0.75 * bits(toy / "out", diary)
    before, after = load(toy / "out", device="cpu"), load(tuned, device="cpu")
    assert before.model.state_dict().keys() == after.model.state_dict().keys()
    assert before.tokenizer.get_vocab() == after.tokenizer.get_vocab()
    assert AutoModelForCausalLM.from_pretrained(tuned).num_parameters() == before.card.parameters
    for words in ("fine-tuned from out", "| diary_valid |", "python -m models.finetuning", "| lora | "):
        assert words in after.card.readme
    still = torch.equal(
        before.model.get_input_embeddings().weight, after.model.get_input_embeddings().weight
    )  # LoRA leaves alone what is not inside a layer
    assert still == ("lora" in changes)


def test_an_interrupted_lora_run_ends_where_an_unbroken_one_does(toy: Path, diary: Path, tmp_path: Path) -> None:
    options = {"lora": 2, "dropout": 0.1, "schedule": "wsd", "decay": 0.1, "learning-rate": 1e-2}
    tune(toy, diary, tmp_path / "whole", steps=10, **options)
    tune(toy, diary, tmp_path / "parts", steps=6, **options)  # wsd: the first steps do not depend on the last
    tune(toy, diary, tmp_path / "parts", steps=10, **options)
    assert bits(tmp_path / "parts" / "tuned", diary) == pytest.approx(
        bits(tmp_path / "whole" / "tuned", diary), rel=0.1
    )


@pytest.mark.parametrize(("kind", "count"), [("ours", 4), ("llama", 7), ("gpt2", 4)])
def test_linear_layers_are_found_by_looking(kind: str, count: int) -> None:
    model = MAKERS[kind]()
    names = linear_layers(model)
    assert len(names) == 2 * count
    assert not any("lm_head" in name for name in names)


@pytest.mark.parametrize("kind", MAKERS)
def test_fresh_lora_changes_nothing_and_trains_little(kind: str) -> None:
    torch.manual_seed(0)
    model: PreTrainedModel = MAKERS[kind]().eval()
    ids = torch.arange(10)[None]
    before = model(ids).logits
    adapted = with_lora(model, Tuning(lora=2))
    torch.testing.assert_close(adapted(ids).logits, before)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert {min(parameter.shape) for parameter in trained} == {2}
    assert all("lora" in name for name, parameter in model.named_parameters() if parameter.requires_grad)


@pytest.mark.parametrize("kind", MAKERS)
def test_dropout_reaches_every_kind_of_model(kind: str) -> None:
    torch.manual_seed(0)
    model, ids = MAKERS[kind]().train(), torch.arange(10)[None]
    set_dropout(model, 0.0)
    assert torch.equal(model(ids).logits, model(ids).logits)
    set_dropout(model, 0.5)
    assert not torch.equal(model(ids).logits, model(ids).logits)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "/nowhere/at/all"}, "There is no directory '/nowhere/at/all'"),
        ({"data": "/nowhere/at/all"}, "There is no file or folder /nowhere/at/all"),
        ({"context-length": 512}, "out reads 32 tokens at most"),
        ({"lora": -1}, "rank"),
    ],
)
def test_a_wrong_option_is_answered_with_a_sentence(
    toy: Path, diary: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict, words: str
) -> None:
    with pytest.raises(SystemExit):
        tune(toy, diary, tmp_path, **changes)
    assert words in capsys.readouterr().err
