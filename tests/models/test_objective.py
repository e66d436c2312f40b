"""The loss against one worked out by hand, and the model's own words in its input."""

import torch
import torch.nn.functional as F

from models import DecoderConfig, DecoderForCausalLM
from models.objective import Objective
from models.throughput import measured_peak, training_flops_per_token

BORDER = 0


def build(**changes) -> DecoderForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    return DecoderForCausalLM(DecoderConfig(**sizes, eos_token_id=BORDER, initializer_range=0.3, **changes))


def rows(count: int = 3, length: int = 9) -> torch.Tensor:
    return torch.randint(0, 30, (count, length), generator=torch.Generator().manual_seed(1))


def test_the_loss_is_the_mean_surprise_of_the_next_tokens() -> None:
    model = build()
    logs = model(rows()[:, :-1]).logits.log_softmax(-1)
    wanted = -logs.gather(-1, rows()[:, 1:, None]).mean()
    torch.testing.assert_close(Objective(model)(rows(), halves=False)[0], wanted)


def test_halved_rows_are_read_as_two_that_do_not_see_each_other() -> None:
    model, whole = build(), rows()
    halves = torch.cat((whole[:, :5], whole[:, 4:]))
    torch.testing.assert_close(Objective(model)(whole, halves=True)[0], Objective(model)(halves, halves=False)[0])


def test_own_words_replace_about_their_part_of_the_input_and_no_border() -> None:
    inputs = rows(64, 40)
    mixed = Objective(build(), own_words=0.25).mixed(inputs)
    assert torch.equal(mixed[:, 0], inputs[:, 0])
    assert torch.equal(mixed[inputs == BORDER], inputs[inputs == BORDER])
    assert 0.2 < (mixed != inputs).float().mean() < 0.25  # some draws are the true word


def test_own_words_are_what_the_model_expects_after_the_true_ones() -> None:
    model, inputs = build(), rows()
    with torch.no_grad():
        model.model.norm.weight.fill_(1e4)  # sure of itself: a draw is the most likely word
    mixed = Objective(model, own_words=1.0).mixed(inputs)
    likely = model(inputs[:, :-1]).logits.argmax(-1)
    free = inputs[:, 1:] != BORDER
    assert torch.equal(mixed[:, 1:][free], likely[free])


def test_own_words_change_inputs_but_not_what_is_asked() -> None:
    model = build()
    objective, torch_rows = Objective(model, own_words=0.5), rows()
    torch.manual_seed(3)
    mixed = objective.mixed(torch_rows[:, :-1])
    torch.manual_seed(3)
    wanted = F.cross_entropy(model(mixed).logits.flatten(0, 1), torch_rows[:, 1:].flatten())
    torch.testing.assert_close(objective(torch_rows, halves=False)[0], wanted)


def test_dropout_acts_in_training_alone() -> None:
    model, ids = build(residual_dropout=0.5, attention_dropout=0.5), rows()
    model.train()
    assert not torch.equal(model(ids).logits, model(ids).logits)
    model.eval()
    assert torch.equal(model(ids).logits, model(ids).logits)
    torch.testing.assert_close(model(ids).logits, build().eval()(ids).logits)


def test_operations_are_six_for_each_weight_in_a_product_and_those_of_attention() -> None:
    model = build()
    attention = 12 * 2 * 4 * 4 * 100
    weights = sum(parameter.numel() for parameter in model.parameters())
    assert training_flops_per_token(model, 100) == 6 * weights + attention
    untied = build(tie_word_embeddings=False)
    assert training_flops_per_token(untied, 100) == 6 * weights + attention  # the second table is only read
    assert training_flops_per_token(model.requires_grad_(False), 100) == 4 * weights + attention


def test_the_peak_is_measured() -> None:
    assert 1e7 < measured_peak(torch.device("cpu"), torch.float32) < 1e14
