"""Devices, types of number, and models that are spread over several places."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from models import CheckpointError, layout, load
from models.data import train_tokenizer
from models.devices import available, choose_device, choose_dtype, free_bytes
from playground import Decoding, generate

SHAPE = {"vocab_size": 270, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}
GREEDY = Decoding(max_new_tokens=8, temperature=0.0, stop_at_end=False)


@pytest.fixture(params=["llama", "gpt2"])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    torch.manual_seed(0)
    llama = LlamaConfig(**SHAPE, intermediate_size=64, num_key_value_heads=2, initializer_range=0.2)
    gpt2 = GPT2Config(vocab_size=270, n_embd=32, n_layer=4, n_head=4, initializer_range=0.2)
    model = LlamaForCausalLM(llama) if request.param == "llama" else GPT2LMHeadModel(gpt2)
    model.save_pretrained(tmp_path / "little")
    train_tokenizer(["a few words"], 257, 64).save_pretrained(tmp_path / "little")
    return tmp_path / "little"


def test_names_of_devices_and_types() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert str(choose_device("auto")) in available()
    assert choose_dtype("auto", torch.device("cpu")) == torch.float32
    assert choose_dtype(None, torch.device("cuda", 0)) == torch.bfloat16
    assert choose_dtype("float16", torch.device("cpu")) == torch.float16
    assert free_bytes(torch.device("cpu")) > 0


@pytest.mark.parametrize("name", ["cuda:99", "mps", "meta", "nonsense"])
def test_a_device_that_is_not_there(name: str) -> None:
    with pytest.raises(CheckpointError, match="cannot be used here; this machine has cpu"):
        choose_device(name)


def places(folder: Path, where: Callable[[int], str]) -> dict[str, str]:
    """The parts of a model with four layers: all on the CPU but the layers, which `where` places."""
    gpt2 = "gpt2" in (folder / "config.json").read_text()
    layers = {f"{'transformer.h' if gpt2 else 'model.layers'}.{index}": where(index) for index in range(4)}
    rest = ("transformer.wte", "transformer.wpe", "transformer.ln_f") if gpt2 else ("model.embed_tokens", "model.norm")
    rest = rest if gpt2 else (*rest, "model.rotary_emb")
    return {**dict.fromkeys((*rest, "lm_head"), "cpu"), **layers}


def test_layers_on_the_disk_are_captured_like_any_other(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # parts of a model that is spread lie in the usual order: products along the outputs round differently
    monkeypatch.setattr(layout, "faster_along_outputs", lambda _: False)
    whole = generate(load(checkpoint, "cpu"), "a few words", GREEDY).finish()
    spread = load(checkpoint, device_map=places(checkpoint, lambda index: "disk" if index in (1, 3) else "cpu"))
    assert spread.card.devices == ("cpu", "disk")
    assert spread.device == torch.device("cpu")
    assert any(parameter.device.type == "meta" for parameter in spread.model.parameters())
    run = generate(spread, "a few words", GREEDY).finish()
    assert run.token_ids == whole.token_ids
    for layer in range(4):
        np.testing.assert_allclose(run.attention(layer), whole.attention(layer), atol=1e-6)
        np.testing.assert_allclose(run.queries(layer, rotated=False), whole.queries(layer, rotated=False), atol=1e-6)
    np.testing.assert_allclose(run.logits(7), whole.logits(7), atol=1e-5)
    assert run.cache_bytes() == whole.cache_bytes()


def test_auto_places_a_model_that_fits_on_one_device(checkpoint: Path) -> None:
    loaded = load(checkpoint, "cpu", device_map="auto")
    assert generate(loaded, "a few words", GREEDY).finish().text


def test_a_hub_id_is_read_from_the_cache_with_its_revision(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    hub = tmp_path / "hub" / "models--org--little"
    (hub / "snapshots").mkdir(parents=True)
    (hub / "refs").mkdir()
    (hub / "refs" / "v2").write_text(commit)
    checkpoint.rename(hub / "snapshots" / commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert load("org/little@v2", "cpu").card.name == "little@v2"
    with pytest.raises(CheckpointError, match="'org/little' with the revision 'v3'"):
        load("org/little@v3", "cpu")
