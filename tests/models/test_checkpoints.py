"""Loading: what works, and one clear sentence for each thing that can be wrong."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from models import CheckpointError, DecoderConfig, DecoderForCausalLM, load, shipped
from models.data import train_tokenizer
from models.evaluation import score

SMALL = {"vocab_size": 270, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
MAKERS = {
    "ours": lambda: DecoderForCausalLM(DecoderConfig(**SMALL, num_key_value_heads=2, rope_theta=5000.0)),
    "ours, learned": lambda: DecoderForCausalLM(
        DecoderConfig(**SMALL, norm="layernorm", position="learned", feed_forward="plain", hidden_act="gelu")
    ),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, num_key_value_heads=1, max_position_embeddings=99)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=270, n_embd=16, n_layer=2, n_head=4, n_positions=77)),
}


def write(folder: Path, kind: str = "ours") -> Path:
    torch.manual_seed(0)
    MAKERS[kind]().save_pretrained(folder)
    train_tokenizer(["a few words"], 257, 64).save_pretrained(folder)
    return folder


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write(tmp_path / "little")


def change_config(folder: Path, **keys) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **keys}), encoding="utf-8")


@pytest.mark.parametrize(
    ("kind", "heads", "positions", "norm", "activation", "context", "tied"),
    [
        ("ours", 2, "rotary (RoPE), theta 5000", "RMSNorm", "SwiGLU", 512, True),
        ("ours, learned", 4, "learned position embeddings", "LayerNorm", "gelu", 512, True),
        ("llama", 1, "rotary (RoPE), theta 10000", "RMSNorm", "silu", 99, False),
        ("gpt2", 4, "learned position embeddings", "LayerNorm", "gelu_new", 77, True),
    ],
)
def test_the_card_is_read_from_the_model(
    tmp_path: Path, kind: str, heads: int, positions: str, norm: str, activation: str, context: int, tied: bool
) -> None:
    loaded = load(write(tmp_path / "little", kind), device="cpu")
    card = loaded.card
    assert (card.name, card.num_key_value_heads, card.head_dim) == ("little", heads, 4)
    assert (card.position_scheme, card.norm, card.activation) == (positions, norm, activation)
    assert (card.context_length, card.tied_head, card.dtype, card.device) == (context, tied, "float32", "cpu")
    assert card.parameters == loaded.model.num_parameters()
    assert card.weights_bytes == 4 * card.parameters
    assert card.readme == ""
    assert card.loss_curve is None
    json.dumps(card.as_dict())


def test_a_loaded_model_is_ready_to_run_and_not_to_train(checkpoint: Path) -> None:
    model = load(checkpoint, device="cpu").model
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_the_dtype_can_be_chosen(checkpoint: Path) -> None:
    loaded = load(str(checkpoint), device="cpu", dtype="bfloat16")
    assert loaded.model.dtype == torch.bfloat16
    assert loaded.card.dtype == "bfloat16"
    assert loaded.card.weights_bytes == 2 * loaded.card.parameters


def test_readme_and_loss_curve_come_along(checkpoint: Path) -> None:
    (checkpoint / "README.md").write_text("---\nlicense: x\n---\n\n# Little\n", encoding="utf-8")
    (checkpoint / "loss.json").write_text('{"train": {"loss": [1.5]}}', encoding="utf-8")
    card = load(checkpoint, device="cpu").card
    assert card.readme == "# Little"
    assert card.loss_curve == {"train": {"loss": [1.5]}}


def test_a_config_does_not_choose_the_attention_function(checkpoint: Path) -> None:
    change_config(checkpoint, attn_implementation="eager", _attn_implementation="eager")
    assert load(checkpoint, device="cpu").model.config._attn_implementation == "sdpa"


def refusal(name: object, **options) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(name, **{"device": "cpu", **options})
    text = str(caught.value)
    assert "\n" not in text
    assert "/tmp" not in text or str(name) in text
    return text


@pytest.mark.parametrize("name", ["no/such/directory", "../nothing", "two words", ""])
def test_a_place_that_does_not_exist(name: str) -> None:
    assert f"There is no directory {name!r}" in refusal(name)


def test_a_name_that_neither_is_shipped_nor_can_be_fetched() -> None:
    assert "shipped: storyteller" in refusal("nobody/nothing")


def test_a_file_in_place_of_a_directory(checkpoint: Path) -> None:
    assert "is a file; name the directory" in refusal(checkpoint / "config.json")


def test_a_directory_without_a_config(tmp_path: Path) -> None:
    assert "has no config.json" in refusal(tmp_path)


@pytest.mark.parametrize(("text", "words"), [("{", "not valid JSON"), ("[]", "names no model_type")])
def test_a_broken_config(checkpoint: Path, text: str, words: str) -> None:
    (checkpoint / "config.json").write_text(text, encoding="utf-8")
    assert words in refusal(checkpoint)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"model_type": "no-such-type"}, "cannot be used"),
        ({"model_type": "vit"}, "does not generate text"),
        ({"vocab_size": 20_000_000}, "impossible vocab_size"),
        ({"num_hidden_layers": -3}, "impossible num_hidden_layers"),
        ({"num_hidden_layers": 40}, "describes 40 layers, its files hold 2"),
        ({"intermediate_size": 4000}, "its files hold only"),
        ({"num_key_value_heads": 3}, "must be a multiple of num_key_value_heads"),
        ({"norm": "none"}, "norm 'none' is unknown"),
    ],
)
def test_a_config_that_cannot_be_used(checkpoint: Path, keys: dict, words: str) -> None:
    change_config(checkpoint, **keys)
    assert words in refusal(checkpoint)


def test_weights_in_another_format_are_not_read(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / "pytorch_model.bin")
    assert "has no .safetensors file" in refusal(checkpoint)


@pytest.mark.parametrize("content", [b"", b"\x08\x00\x00\x00\x00\x00\x00\x00{broken!", b"\xff" * 16])
def test_a_damaged_weights_file(checkpoint: Path, content: bytes) -> None:
    (checkpoint / "model.safetensors").write_bytes(content)
    assert "little" in refusal(checkpoint)


def edit_weights(folder: Path, edit) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_missing_tensor(checkpoint: Path) -> None:
    edit_weights(checkpoint, lambda tensors: tensors.pop("model.norm.weight"))
    assert "lacks weights for this type of model: model.norm.weight" in refusal(checkpoint)


def test_a_tensor_too_many(checkpoint: Path) -> None:
    edit_weights(checkpoint, lambda tensors: tensors.update(extra=torch.zeros(2)))
    assert "has unexpected weights for this type of model: extra" in refusal(checkpoint)


def test_a_tensor_of_another_shape(checkpoint: Path) -> None:
    edit_weights(checkpoint, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(40)}))
    assert "little" in refusal(checkpoint)


def test_no_tokenizer(checkpoint: Path) -> None:
    for path in checkpoint.glob("tokenizer*"):
        path.unlink()
    assert "has no tokenizer" in refusal(checkpoint)


def test_a_tokenizer_with_more_tokens_than_the_model_knows(checkpoint: Path) -> None:
    train_tokenizer(["many more words than before, and then some"] * 3, 300, 64).save_pretrained(checkpoint)
    assert "tokens, but the model knows only 270" in refusal(checkpoint)


def test_a_device_or_dtype_that_cannot_be_used(checkpoint: Path) -> None:
    assert "device 'quantum' cannot be used" in refusal(checkpoint, device="quantum")
    assert "dtype 'int8' is not one of" in refusal(checkpoint, dtype="int8")


def test_the_storyteller_is_shipped_and_tells_stories() -> None:
    assert shipped() == ("storyteller",)
    loaded = load(device="cpu")
    card, tokenizer = loaded.card, loaded.tokenizer
    assert (card.name, card.position_scheme) == ("storyteller", "rotary (RoPE), theta 10000")
    assert card.num_hidden_layers >= 6
    assert card.num_attention_heads >= 6 > card.num_key_value_heads
    assert card.context_length >= 512
    assert 5e6 <= card.parameters <= 15e6
    assert "bits per byte" in card.readme
    losses = card.loss_curve["train"]["loss"]  # it began from weights, so neither end is that of random ones
    assert np.mean(losses[:20]) > np.mean(losses[-20:]) + 0.2
    story = "Once upon a time, there was a little girl named Lily. She loved to play outside in the sun."
    assert score(loaded.model, tokenizer, [story], 512).bits_per_byte < 0.6
    ids = tokenizer("Once upon a time", return_tensors="pt")
    text = tokenizer.decode(loaded.model.generate(**ids, max_new_tokens=8, do_sample=False)[0])
    assert text.startswith("Once upon a time, there was a")
