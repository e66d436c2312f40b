"""With copied weights the decoder is the transformers family that it imitates."""

import pytest
import torch

from tests.models.families import FAMILIES

PICKED = ["LLaMA, grouped-query", "GPT-2"]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_the_reference(name: str, attention: str) -> None:
    reference, ours = FAMILIES[name]()
    ours.set_attn_implementation(attention)
    ids = torch.randint(0, 61, (2, 23), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        torch.testing.assert_close(ours(ids).logits, reference(ids).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", PICKED)
def test_padded_batches_equal_the_reference(name: str) -> None:
    reference, ours = FAMILIES[name]()
    ids = torch.randint(0, 61, (2, 9), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    with torch.inference_mode():
        got, wanted = ours(**inputs).logits, reference(**inputs).logits
    torch.testing.assert_close(got[mask.bool()], wanted[mask.bool()], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", PICKED)
def test_greedy_text_equals_the_reference(name: str) -> None:
    reference, ours = FAMILIES[name]()
    ids = torch.randint(0, 61, (1, 5), generator=torch.Generator().manual_seed(3))
    settings = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    assert ours.generate(ids, **settings).tolist() == reference.generate(ids, **settings).tolist()


@pytest.mark.parametrize("name", PICKED)
def test_attentions_equal_the_reference(name: str) -> None:
    reference, ours = FAMILIES[name]()
    ids = torch.randint(0, 61, (1, 11), generator=torch.Generator().manual_seed(4))
    for model in (reference, ours):
        model.set_attn_implementation("eager")
    with torch.inference_mode():
        got = ours(ids, output_attentions=True, output_hidden_states=True)
        wanted = reference(ids, output_attentions=True, output_hidden_states=True)
    assert len(got.attentions) == len(wanted.attentions) == 3
    for a, b in zip(got.attentions + got.hidden_states, wanted.attentions + wanted.hidden_states, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
