"""Hostile and broken checkpoints: each is refused in one sentence, at once, and before it can take any memory."""

from __future__ import annotations

import json
import re
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPTJConfig, LlamaConfig, LlamaForCausalLM

from models import CheckpointError, load
from models.data import train_tokenizer

MIB = 1 << 20
MOST_SECONDS = 1.0
"""Of this process's own time: other work on the machine does not count."""
MOST_BYTES = 200 * MIB
SHAPE = {
    "vocab_size": 270, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "little"
    LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(folder)
    train_tokenizer(["a few words"], 257, 64).save_pretrained(folder)
    return folder


def config_with(folder: Path, **keys: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **keys}), encoding="utf-8")


def peak_since(act: Callable[[], None]) -> int:
    """Bytes by which the resident memory rose above where it was, at its highest, while `act` ran."""
    refs, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")

    def kib(name: str) -> int:
        return int(re.search(rf"{name}:\s+(\d+) kB", status.read_text())[1])  # type: ignore[index]

    if not refs.exists():
        pytest.skip("needs Linux, whose /proc tells the highest use of memory")
    refs.write_text("5")  # the highest use starts anew
    before = kib("VmRSS")
    act()
    return (kib("VmHWM") - before) * 1024


def refusal(folder: Path) -> str:
    """The sentence, once time and memory were found to be small."""
    said: list[str] = []

    def attempt() -> None:
        with pytest.raises(CheckpointError) as caught:
            load(folder, "cpu")
        said.append(str(caught.value))

    started = time.process_time()
    peak = peak_since(attempt)
    assert time.process_time() - started < MOST_SECONDS
    assert peak < MOST_BYTES
    assert "\n" not in said[0]
    assert said[0].endswith(".")
    return said[0]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"vocab_size": 20_000_000}, "impossible vocab_size: 20,000,000 is not between 1 and 4,000,000"),
        ({"vocab_size": 3_000_000}, "describes 3,000,000 tokens, but no stored tensor has more than 270 rows"),
        ({"num_hidden_layers": 5000}, "impossible num_hidden_layers: 5,000"),
        ({"num_hidden_layers": 900}, "describes 900 layers, its files hold 2"),
        ({"hidden_size": 150_000}, "its files hold only 1"),
        ({"head_dim": 50_000}, "its files hold only 1"),
        ({"num_attention_heads": 10_000}, "not a multiple of the number of attention"),
        ({"rope_theta": 10**400}, "impossible rope_theta: a number of 401 digits"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps that is not a number"),
        ({"text_config": {"vocab_size": 10**9}}, "impossible vocab_size"),
        ({"note": "x" * (2 * MIB)}, "has 2.0 MiB, more than the 1 MiB that are read"),
        ({"model_type": "gpt_neo", "attention_types": [[["global"], 10**9]]}, "impossible attention_types"),
        ({"model_type": "never-heard-of", "auto_map": {"AutoConfig": "own.Config"}}, "needs code of its own"),
        ({"quantization_config": {"quant_method": "gptq"}}, "stored quantised (gptq)"),
    ],
)  # fmt: skip
def test_a_config_that_claims_too_much(checkpoint: Path, keys: dict, words: str) -> None:
    load(checkpoint, "cpu")  # what is imported with the first load does not count
    config_with(checkpoint, **keys)
    assert words in refusal(checkpoint)


def test_a_config_nested_without_end(checkpoint: Path) -> None:
    load(checkpoint, "cpu")
    (checkpoint / "config.json").write_text('{"model_type": "llama", "a": ' + "[" * 50 + "]" * 50 + "}")
    assert "nested more than 32 levels" in refusal(checkpoint)
    (checkpoint / "config.json").write_text('{"model_type": "llama", "a": ' + "[" * 200_000 + "]" * 200_000 + "}")
    assert "is not valid JSON" in refusal(checkpoint)


def write_header(path: Path, header: bytes, claimed: int | None = None) -> None:
    path.write_bytes(struct.pack("<Q", len(header) if claimed is None else claimed) + header)


def huge_header() -> bytes:
    """71 MB of tensors of no size, such as took transformers 13.5 s."""
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    return json.dumps({f"model.layers.{index}.weight": entry for index in range(780_000)}).encode()


def test_weights_files_that_lie(checkpoint: Path) -> None:
    load(checkpoint, "cpu")
    weights = checkpoint / "model.safetensors"
    write_header(weights, huge_header())
    assert "more than the 10 MiB that are read" in refusal(checkpoint)
    write_header(weights, b"{}", claimed=2**60)
    assert "more than the 10 MiB that are read" in refusal(checkpoint)
    vast = {"model.embed_tokens.weight": {"dtype": "F32", "shape": [10**9, 10**3], "data_offsets": [0, 4 * 10**12]}}
    write_header(weights, json.dumps(vast).encode())
    assert "damaged or not a safetensors file" in refusal(checkpoint)
    write_header(weights, b"{}")
    assert "hold 0 tensors" in refusal(checkpoint)


def test_an_index_that_points_elsewhere(checkpoint: Path) -> None:
    load(checkpoint, "cpu")
    (checkpoint / "model.safetensors").rename(checkpoint.parent / "outside.safetensors")
    index = checkpoint / "model.safetensors.index.json"
    for named, words in (
        ("../outside.safetensors", "no safetensors file beside it"),
        ("/etc/passwd", "no safetensors file beside it"),
        ("part-2.safetensors", "lacks part-2.safetensors, which its index names"),
        (5, "names no files"),
    ):
        index.write_text(json.dumps({"weight_map": {"model.norm.weight": named}}))
        assert words in refusal(checkpoint)


def test_pickled_weights_are_not_opened(checkpoint: Path) -> None:
    load(checkpoint, "cpu")
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch /tmp/owned'\ntR.")
    assert "other weight formats are not read" in refusal(checkpoint)


def test_an_adapter_does_not_fetch_its_base_model(checkpoint: Path) -> None:
    load(checkpoint, "cpu")
    (checkpoint / "adapter_config.json").write_text('{"base_model_name_or_path": "/elsewhere"}')
    assert "holds a PEFT adapter" in refusal(checkpoint)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_a_text_file_of_absurd_size_is_not_read(checkpoint: Path, name: str) -> None:
    load(checkpoint, "cpu")
    with (checkpoint / name).open("wb") as file:
        file.truncate(400 * MIB)
    assert f"The {name} of little has 400.0 MiB" in refusal(checkpoint)


def test_tables_that_no_file_holds_count_as_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-J makes a table of sines for each position: nothing in the files speaks of it."""
    config = GPTJConfig(vocab_size=270, n_embd=16, n_layer=1, n_head=2, rotary_dim=4, n_positions=64)
    folder = tmp_path / "little"
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    train_tokenizer(["a few words"], 257, 64).save_pretrained(folder)
    load(folder, "cpu")
    config_with(folder, n_positions=90_000_000)
    monkeypatch.setattr("models.devices.free_bytes", lambda device: 1 << 30)
    assert "needs 1.34 GiB for its weights, and 1.00 GiB are free on cpu" in refusal(folder)


def test_missing_and_unexpected_tensors_are_named(checkpoint: Path) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, checkpoint / "model.safetensors", metadata={"format": "pt"})
    assert "lacks weights for this type of model: model.layers.1.mlp.up_proj.weight." in refusal(checkpoint)


def test_a_model_that_does_not_fit_is_refused_with_both_numbers(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.devices.free_bytes", lambda device: 64 * MIB)
    said = refusal(checkpoint)
    assert "needs 0.00 GiB for its weights, and 0.06 GiB are free on cpu" in said


def test_a_foreign_tokenizer_is_noticed(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path / "little"
    LlamaForCausalLM(LlamaConfig(**{**SHAPE, "vocab_size": 900}, eos_token_id=899)).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1, "</s>": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", eos_token="</s>").save_pretrained(folder)
    card = load(folder, "cpu").card
    assert card.unknown_rate > 0.9
    assert "no token for" in card.notes[0]
    assert "3 tokens and the model 900" in card.notes[1]
    assert "token 899, the tokenizer with 2" in card.notes[2]


def test_an_honest_checkpoint_has_nothing_to_note(checkpoint: Path) -> None:
    loaded = load(checkpoint, "cpu")
    assert loaded.card.unknown_rate == 0
    assert sum(loaded.card.parameter_parts.values()) == loaded.card.parameters
    assert torch.equal(loaded.model.lm_head.weight, load_file(checkpoint / "model.safetensors")["lm_head.weight"])
