"""Who moves which weight, and that optimizers are taken up where they were."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from models.decoder import DecoderConfig, DecoderForCausalLM
from models.optimizers import Optimizers, layer_matrices
from models.settings import Settings


def small(seed: int = 0) -> DecoderForCausalLM:
    torch.manual_seed(seed)
    return DecoderForCausalLM(DecoderConfig(vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=2))


def moved(model: DecoderForCausalLM, optimizers: Optimizers, steps: int) -> None:
    for step in range(steps):
        ids = torch.arange(10).view(1, 10) + step
        model(input_ids=ids, labels=ids).loss.backward()
        optimizers.set_rate(0.01)
        optimizers.step()


def test_muon_moves_the_matrices_in_the_layers_and_adamw_all_else() -> None:
    model = small()
    adamw, muon = Optimizers(model, Settings(optimizer="muon")).parts
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    by_muon = {names[id(p)] for group in muon.param_groups for p in group["params"]}
    by_adamw = {names[id(p)] for group in adamw.param_groups for p in group["params"]}
    assert by_muon == {name for name in names.values() if name.startswith("model.layers.") and "norm" not in name}
    assert by_adamw == set(names.values()) - by_muon
    assert "model.embed_tokens.weight" in by_adamw
    assert len(by_muon) == len(layer_matrices(model)) == 2 * 4
    assert [group["weight_decay"] for group in adamw.param_groups] == [0.1, 0.0]


def test_adamw_alone_moves_every_weight() -> None:
    model = small()
    (only,) = Optimizers(model, Settings()).parts
    assert sum(len(group["params"]) for group in only.param_groups) == len(list(model.parameters()))


def test_a_step_of_muon_is_orthogonal_up_to_its_scale() -> None:
    model = small()
    weight = model.model.layers[0].mlp.down_proj.weight  # (C, F)
    before = weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape)  # of full rank, as gradients of many tokens are
    optimizers = Optimizers(model, replace(Settings(optimizer="muon"), weight_decay=0.0))
    optimizers.set_rate(0.01)
    optimizers.step()
    values = torch.linalg.svdvals(before - weight.detach()) / (0.01 * 0.2 * max(weight.shape) ** 0.5)
    assert values.min() > 0.5  # five Newton-Schulz steps bring every singular value near 1 (Jordan 2024)
    assert values.max() < 1.5


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_saved_state_goes_on_exactly(optimizer: str) -> None:
    settings = Settings(optimizer=optimizer)
    whole, parted = small(), small()
    moved(whole, Optimizers(whole, settings), 2)
    first = Optimizers(parted, settings)
    moved(parted, first, 2)
    whole_again = Optimizers(whole, settings)
    whole_again.load_state_dict(deepcopy(first.state_dict()))  # else both would move the same numbers
    moved(whole, whole_again, 2)
    moved(parted, first, 2)
    for a, b in zip(whole.parameters(), parted.parameters(), strict=True):
        assert torch.equal(a, b)
