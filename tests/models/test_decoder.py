"""The decoder over all its switches: causality, caches, saving, training tools, refusals."""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, StaticCache

from models import DecoderConfig, DecoderForCausalLM
from models.decoder import ACTIVATIONS, NORMS, POSITIONS, RotaryPositions

SIZES = {
    "vocab_size": 53,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}
SWITCHES = {
    "norm": list(NORMS),
    "position": list(POSITIONS),
    "num_key_value_heads": [4, 2, 1],
    "feed_forward": ["gated", "plain"],
    "tie_word_embeddings": [True, False],
    "attention_bias": [False, True],
}


def combinations() -> Iterator[dict]:
    """Every setting of the switches; the activation and the other biases rotate through their values."""
    for number, values in enumerate(itertools.product(*SWITCHES.values())):
        switches = dict(zip(SWITCHES, values, strict=True))
        activation = list(ACTIVATIONS)[number % len(ACTIVATIONS)]
        yield {**switches, "hidden_act": activation, "mlp_bias": number % 2 == 0, "norm_bias": number % 3 == 0}


def build(**changes) -> DecoderForCausalLM:
    torch.manual_seed(0)
    model = DecoderForCausalLM(DecoderConfig(**{**SIZES, "initializer_range": 0.2, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def tokens(count: int, batch: int = 1, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, SIZES["vocab_size"], (batch, count), generator=torch.Generator().manual_seed(seed))


def test_later_tokens_change_nothing_before_them_in_any_combination() -> None:
    ids, cut = tokens(12), 7
    changed = ids.clone()
    changed[:, cut:] = (changed[:, cut:] + 1) % SIZES["vocab_size"]
    for switches in combinations():
        model = build(**switches)
        with torch.inference_mode():
            before, after = model(ids).logits, model(changed).logits
        assert torch.equal(before[:, :cut], after[:, :cut]) or torch.allclose(
            before[:, :cut], after[:, :cut], atol=1e-6
        ), switches
        assert not torch.allclose(before[:, cut:], after[:, cut:], atol=1e-3), switches


def test_cached_steps_equal_one_pass_in_any_combination() -> None:
    ids = tokens(9)
    for switches in combinations():
        if switches["attention_bias"]:
            continue  # a bias does not touch the cache: half the combinations are enough
        model = build(**switches)
        cache = DynamicCache()
        with torch.inference_mode():
            parts = [model(ids[:, :4], past_key_values=cache).logits]
            parts += [model(ids[:, i : i + 1], past_key_values=cache).logits for i in (4, 5)]
            parts += [model(ids[:, 6:], past_key_values=cache).logits]
            torch.testing.assert_close(torch.cat(parts, 1), model(ids).logits, atol=1e-5, rtol=1e-5, msg=str(switches))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_cache_of_fixed_length_hides_the_places_not_written_yet(attention: str) -> None:
    model, ids = build(num_key_value_heads=2), tokens(9)
    model.set_attn_implementation(attention)
    cache = StaticCache(config=model.config, max_cache_len=24)
    with torch.inference_mode():
        parts = [model(ids[:, :4], past_key_values=cache).logits]
        parts += [model(ids[:, i : i + 1], past_key_values=cache).logits for i in range(4, 9)]
        torch.testing.assert_close(torch.cat(parts, 1), model(ids).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("position", POSITIONS)
def test_padding_at_the_left_changes_nothing(position: str) -> None:
    model, ids = build(position=position, num_key_value_heads=2), tokens(6)
    padded = torch.cat((torch.zeros(1, 3, dtype=torch.long), ids), dim=1)
    mask = (torch.arange(9) >= 3).long().unsqueeze(0)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.inference_mode():
        got = model(padded, attention_mask=mask, position_ids=positions).logits[:, 3:]
        torch.testing.assert_close(got, model(ids).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("position", POSITIONS)
def test_saved_and_loaded_it_is_the_same(position: str, tmp_path: Path) -> None:
    rope = {"rope_theta": 777.0} if position == "rope" else {}
    model, ids = build(position=position, num_key_value_heads=1, **rope), tokens(8)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(again) is DecoderForCausalLM
    for key in (*SIZES, "position", "num_key_value_heads", "head_dim", "rope_parameters", "rope_theta", "norm_eps"):
        assert getattr(again.config, key) == getattr(model.config, key), key
    with torch.inference_mode():
        assert torch.equal(again(ids).logits, model(ids).logits)


def test_rotary_frequencies_survive_loading_although_they_are_not_stored(tmp_path: Path) -> None:
    model = build(rope_theta=500.0)
    model.save_pretrained(tmp_path)
    rotary = AutoModelForCausalLM.from_pretrained(tmp_path).model.rotary_emb
    assert isinstance(rotary, RotaryPositions)
    expected = torch.tensor([500.0 ** (-2 * i / 8) for i in range(4)])
    torch.testing.assert_close(rotary.inv_freq, expected)


def test_only_a_rotating_model_has_a_rotary_module() -> None:
    assert hasattr(build(position="rope").model, "rotary_emb")
    learned = build(position="learned")
    assert not hasattr(learned.model, "rotary_emb")
    assert learned.config.rope_theta is None
    assert learned.config.rope_parameters is None


@pytest.mark.parametrize("position", POSITIONS)
def test_generate_is_greedy_argmax_one_token_at_a_time(position: str) -> None:
    model, ids = build(position=position, num_key_value_heads=2), tokens(5)
    text = model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)
    wanted = ids
    with torch.inference_mode():
        for _ in range(8):
            wanted = torch.cat((wanted, model(wanted, use_cache=False).logits[:, -1:].argmax(-1)), dim=1)
    assert text.tolist() == wanted.tolist()


def test_logits_to_keep_gives_the_last_ones_only() -> None:
    model, ids = build(), tokens(6)
    with torch.inference_mode():
        assert torch.allclose(model(ids, logits_to_keep=1).logits, model(ids).logits[:, -1:], atol=1e-6)


def test_the_loss_is_the_mean_cross_entropy_of_the_next_token() -> None:
    model, ids = build(), tokens(10, batch=2)
    out = model(ids, labels=ids)
    wanted = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(out.loss, wanted)


def test_embeddings_can_be_given_in_place_of_tokens() -> None:
    model, ids = build(), tokens(6)
    with torch.inference_mode():
        embedded = model.get_input_embeddings()(ids)
        assert torch.equal(model(inputs_embeds=embedded).logits, model(ids).logits)
        with pytest.raises(ValueError, match="exactly one"):
            model(ids, inputs_embeds=embedded)


def test_gradient_checkpointing_gives_the_same_gradients() -> None:
    ids, gradients = tokens(10, batch=2), []
    for checkpointing in (False, True):
        model = build(num_key_value_heads=2).train()
        if checkpointing:
            model.activation_checkpointing_enable()
        model(ids, labels=ids, use_cache=False).loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for plain, checkpointed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, checkpointed)


def test_it_is_traced_as_one_graph() -> None:
    model, ids = build(num_key_value_heads=2, num_hidden_layers=1), tokens(8)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.inference_mode():
        torch.testing.assert_close(compiled(ids, use_cache=False).logits, model(ids, use_cache=False).logits)


@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")
def test_compiled_it_computes_the_same() -> None:
    model, ids = build(num_key_value_heads=2, num_hidden_layers=1), tokens(8)
    with torch._inductor.config.patch(compile_threads=1), torch.inference_mode():
        got = torch.compile(model)(ids, use_cache=False).logits
    torch.testing.assert_close(got, model(ids, use_cache=False).logits, atol=1e-5, rtol=1e-5)


def test_what_writes_to_the_residual_stream_starts_smaller_with_depth() -> None:
    torch.manual_seed(0)
    model = DecoderForCausalLM(DecoderConfig(**{**SIZES, "num_hidden_layers": 8, "hidden_size": 64}))
    layer = model.model.layers[0]
    assert layer.self_attn.qkv_proj.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert layer.self_attn.o_proj.weight.std().item() == pytest.approx(0.02 / 4, rel=0.1)
    assert layer.mlp.down_proj.weight.std().item() == pytest.approx(0.02 / 4, rel=0.1)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"norm": "batchnorm"}, "norm 'batchnorm' is unknown; choose one of rmsnorm, layernorm"),
        ({"position": "absolute"}, "position 'absolute' is unknown"),
        ({"feed_forward": "moe"}, "feed_forward 'moe' is unknown"),
        ({"norm_placement": "both"}, "norm_placement 'both' is unknown; choose one of pre, post, sandwich"),
        ({"sliding_window": 0}, "sliding_window must be at least 1, not 0"),
        ({"layer_types": ["full_attention"]}, "layer_types names 1 layers, but num_hidden_layers is 2"),
        ({"layer_types": ["full_attention", "local"]}, "layer_types 'local' is unknown"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window must say how many"),
        ({"position": "alibi", "sliding_window": 4}, "position 'alibi' .* cannot be joined with sliding_window"),
        (
            {"num_local_experts": 4},
            "num_local_experts and num_experts_per_tok need feed_forward 'experts', not 'gated'",
        ),
        (
            {"feed_forward": "experts", "num_local_experts": 2, "num_experts_per_tok": 3},
            "num_experts_per_tok .3. must be at most num_local_experts .2.",
        ),
        ({"feed_forward": "experts", "mlp_bias": True}, "mlp_bias is for feed_forward 'gated' and 'plain'"),
        ({"position": "alibi", "rope_theta": 500.0}, "rope_theta is for position 'rope', not 'alibi'"),
        (
            {"position": "none", "rope_parameters": {"factor": 2.0}},
            "rope_parameters is for position 'rope', not 'none'",
        ),
        ({"position": "sinusoidal", "hidden_size": 33, "num_attention_heads": 3}, "hidden_size must be even, not 33"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor must be above 0 and at most 1, not 1.5"),
        ({"partial_rotary_factor": 0.4}, "must be the part that turns, 3"),
        ({"partial_rotary_factor": 0.1}, "must be the part that turns, 0"),
        ({"rope_parameters": {"rope_type": "longer"}}, "rope_type 'longer' is unknown; choose one of default, linear"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type 'yarn' needs factor"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8}}, "rope_type 'llama3' needs low_freq_factor"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0.5}}, "factor in rope_parameters must be at least 1"),
        ({"rope_parameters": {"rope_type": "ntk", "factor": 2}, "head_dim": 2}, "needs more than 2 turning dimensions"),
        ({"attn_logit_softcapping": 0.0}, "attn_logit_softcapping must be above 0, not 0.0"),
        ({"final_logit_softcapping": -1.0}, "final_logit_softcapping must be above 0"),
        ({"hidden_act": "softmax"}, "hidden_act 'softmax' is unknown"),
        ({"num_key_value_heads": 3}, "num_attention_heads .4. must be a multiple of num_key_value_heads .3."),
        ({"hidden_size": 34}, "hidden_size .34. is not a multiple of num_attention_heads .4."),
        ({"head_dim": 7}, "head_dim must be even, not 7"),
        ({"vocab_size": 0}, "vocab_size must be at least 1"),
        ({"num_key_value_heads": 0}, "num_key_value_heads must be at least 1"),
        ({"intermediate_size": -1}, "intermediate_size must be at least 1"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(keys: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DecoderConfig(**{**SIZES, **keys})


@pytest.mark.parametrize("attention", ["flash_attention_2", "flex_attention"])
def test_alibi_refuses_attention_functions_that_would_leave_its_bias_out(attention: str) -> None:
    with pytest.raises((ValueError, ImportError)):
        build(position="alibi").set_attn_implementation(attention)
    assert build(position="alibi").config._attn_implementation == "sdpa"


def test_the_choices_of_the_router_can_be_read() -> None:
    model, ids = build(feed_forward="experts", num_local_experts=4, num_experts_per_tok=2), tokens(6)
    with torch.inference_mode():
        logits = model(ids, output_router_logits=True).router_logits
    assert [each.shape for each in logits] == [(6, 4), (6, 4)]


def test_a_token_goes_through_its_chosen_experts_only() -> None:
    model, ids = (
        build(feed_forward="experts", num_local_experts=4, num_experts_per_tok=1, num_hidden_layers=1),
        tokens(1),
    )
    with torch.inference_mode():
        before = model(ids).logits
        chosen = model(ids, output_router_logits=True).router_logits[0].argmax().item()
        for expert in range(4):
            changed = build(feed_forward="experts", num_local_experts=4, num_experts_per_tok=1, num_hidden_layers=1)
            changed.model.layers[0].mlp.down_proj[expert] = 0.0
            assert torch.equal(changed(ids).logits, before) == (expert != chosen)


def test_an_odd_head_size_is_fine_without_rotation() -> None:
    assert build(position="learned", head_dim=7)(tokens(4)).logits.shape == (1, 4, 53)
