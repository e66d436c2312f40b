"""The lesson in induction: what it costs, and that it makes a head look at the right place."""

import numpy as np
import pytest
import torch

from models.decoder import DecoderConfig, DecoderForCausalLM
from models.guidance import _looking, lesson, lesson_rows
from models.heads import induction
from models.objective import Objective


@pytest.fixture
def model() -> DecoderForCausalLM:
    torch.manual_seed(0)
    return DecoderForCausalLM(
        DecoderConfig(vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
    )


def test_rows_say_random_tokens_twice_and_fit_the_context() -> None:
    for context, most in ((512, 48), (20, 10), (8, 4)):
        rows = lesson_rows(np.random.default_rng(0), 1000, context)
        period = rows.shape[1] // 2
        assert period <= most
        assert torch.equal(rows[:, :period], rows[:, period:])


def test_the_cost_of_looking_is_that_of_the_head_which_the_induction_score_names() -> None:
    torch.manual_seed(1)
    ids = torch.stack([torch.randperm(50)[:6] for _ in range(3)]).repeat(1, 2)  # (B, 2 period), no token twice in 6
    patterns = torch.randn(3, 4, 12, 12).masked_fill(~torch.ones(12, 12).tril().bool(), -torch.inf).softmax(-1)
    patterns[:, 2] = 0.0
    patterns[:, 2, torch.arange(6, 12), torch.arange(1, 7)] = 0.7
    assert induction(patterns, ids).argmax() == 2
    assert _looking((patterns,), 6).item() == pytest.approx(-np.log(0.7), rel=1e-5)


def test_a_lesson_leaves_the_attention_of_the_model_as_it_was(model: DecoderForCausalLM) -> None:
    rows, before = lesson_rows(np.random.default_rng(0), 40, 32), model.config._attn_implementation
    assert lesson(model, rows).requires_grad
    assert model.config._attn_implementation == before


def test_without_rows_an_objective_has_no_lesson(model: DecoderForCausalLM) -> None:
    loss, taught = Objective(model)(torch.arange(18).view(2, 9), halves=False)
    assert taught.item() == 0.0
    assert loss.item() > 0.0


def test_lessons_make_a_head_look_where_the_token_came_before(model: DecoderForCausalLM) -> None:
    generator, optimizer = np.random.default_rng(0), torch.optim.AdamW(model.parameters(), lr=5e-3)
    costs = []
    for _ in range(60):
        cost = lesson(model, lesson_rows(generator, 40, 32))
        cost.backward()
        optimizer.step()
        optimizer.zero_grad()
        costs.append(cost.item())
    assert np.mean(costs[-5:]) < 0.75 * np.mean(costs[:5])
