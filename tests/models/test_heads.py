"""Head scores on patterns made by hand, on a model with known heads, and in their file."""

import json
import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor

from models import DecoderConfig, DecoderForCausalLM, load
from models.data import train_tokenizer
from models.head_scores import KINDS, HeadScore, best, read_heads, write_heads
from models.heads import Inputs, duplicate_token, first_token, induction, local, main, measure, previous_token

LENGTH = 12
IDS = torch.tensor([[9, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 8]])  # 1 to 5 come twice, five apart


def looking(keys: list[int]) -> Tensor:
    """A pattern (1, 1, T, T) of which query t looks at keys[t] alone."""
    pattern = torch.zeros(1, 1, LENGTH, LENGTH)
    pattern[0, 0, torch.arange(LENGTH), torch.tensor(keys)] = 1.0
    return pattern


BEFORE = looking([max(0, t - 1) for t in range(LENGTH)])
FIRST = looking([0] * LENGTH)
OWN = looking(list(range(LENGTH)))
FIVE_BACK = looking([max(0, t - 5) for t in range(LENGTH)])
FOUR_BACK = looking([max(0, t - 4) for t in range(LENGTH)])
EVEN = torch.ones(LENGTH, LENGTH).tril().div(torch.arange(1, LENGTH + 1)[:, None])[None, None]


@pytest.mark.parametrize(
    ("pattern", "previous", "sink", "near"),
    [
        (BEFORE, 1.0, 1 / 11, 1.0),
        (FIRST, 1 / 11, 1.0, 0.0),
        (OWN, 0.0, 0.0, 1.0),
        (FIVE_BACK, 1 / 11, 5 / 11, 0.0),
        (
            EVEN,
            sum(1 / (t + 1) for t in range(1, 12)) / 11,
            sum(1 / (t + 1) for t in range(1, 12)) / 11,
            sum(4 / (t + 1) for t in range(4, 12)) / 8,
        ),
    ],
    ids=["before", "first", "own", "five back", "even"],
)
def test_scores_by_position(pattern: Tensor, previous: float, sink: float, near: float) -> None:
    assert previous_token(pattern).tolist() == pytest.approx([previous])
    assert first_token(pattern).tolist() == pytest.approx([sink])
    assert local(pattern).tolist() == pytest.approx([near])


@pytest.mark.parametrize(
    ("pattern", "duplicates", "following"),
    [
        (FIVE_BACK, 1.0, 0.0),
        (FOUR_BACK, 0.0, 1.0),
        (OWN, 0.0, 0.0),
        (BEFORE, 0.0, 0.0),
        (EVEN, sum(1 / (t + 1) for t in range(6, 11)) / 5, sum(1 / (t + 1) for t in range(6, 11)) / 5),
    ],
    ids=["five back", "four back", "own", "before", "even"],
)
def test_scores_by_token(pattern: Tensor, duplicates: float, following: float) -> None:
    assert duplicate_token(pattern, IDS).tolist() == pytest.approx([duplicates])
    assert induction(pattern, IDS).tolist() == pytest.approx([following])


def test_all_earlier_occurrences_count() -> None:
    ids = torch.tensor([[7, 3, 7, 3, 7, 3, 7, 3, 7, 3, 7, 3]])
    half = (FIVE_BACK + FOUR_BACK) / 2
    assert duplicate_token(half, ids).item() == pytest.approx(0.55)  # t = 2 and 4 look at 0 alone, 5 to 11 half at it
    assert induction(half, ids).item() <= 1.0


def test_nothing_repeated_scores_nothing() -> None:
    ids = torch.arange(LENGTH)[None]
    assert duplicate_token(EVEN, ids).item() == induction(EVEN, ids).item() == 0.0


def test_heads_are_scored_apart_and_sequences_together() -> None:
    patterns = torch.cat((torch.cat((BEFORE, FIRST), 1), torch.cat((BEFORE, OWN), 1)))  # (2, 2, T, T)
    assert previous_token(patterns).tolist() == pytest.approx([1.0, 0.5 / 11])
    assert first_token(patterns).tolist() == pytest.approx([1 / 11, 0.5])


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["Once there was a fox who lived at the river."], vocab_size=257, context_length=128)


def copying_model(vocab_size: int, length: int) -> DecoderForCausalLM:
    """Two layers of attention only: layer 0, head 0 looks one back and writes what stands there; layer 1, head 0 looks
    for its own token in what layer 0 wrote. That is an induction head; all other heads look at everything alike.

    Residual stream: token one-hot (V), the token before (V), position one-hot (P).
    """
    places = 2 * vocab_size + length + 1  # even
    config = DecoderConfig(
        vocab_size=vocab_size, hidden_size=places, intermediate_size=1, num_hidden_layers=2, num_attention_heads=2,
        head_dim=places, position="learned", max_position_embeddings=length, tie_word_embeddings=False,
    )  # fmt: skip
    model = DecoderForCausalLM(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        parameter.fill_(1.0 if "norm" in name else 0.0)
    model.model.embed_tokens.weight[:, :vocab_size] = torch.eye(vocab_size)
    model.model.embed_positions.weight[:, 2 * vocab_size : -1] = torch.eye(length)
    token, before, position = slice(0, vocab_size), slice(vocab_size, 2 * vocab_size), slice(2 * vocab_size, -1)
    first, second = (layer.self_attn for layer in model.model.layers)
    query0, _, key0, _, value0, _ = first.qkv_proj.weight.split(places)  # of head 0, head 1, head 0, ...
    query1, _, key1, *_ = second.qkv_proj.weight.split(places)
    query0[position, position] = 100.0 * torch.ones(length - 1).diag(1)  # from position t to t - 1
    key0[position, position] = torch.eye(length)
    value0[before, token] = torch.eye(vocab_size)
    first.o_proj.weight[before, before] = torch.eye(vocab_size)
    query1[token, token] = 100.0 * torch.eye(vocab_size)
    key1[token, before] = torch.eye(vocab_size)
    return model


def test_a_model_built_to_copy_has_one_previous_token_head_and_one_induction_head(tokenizer) -> None:
    model = copying_model(len(tokenizer), 33)
    inputs = Inputs(sequences=2, period=16, length=33)
    scores = {(s.kind, s.layer, s.head): s.score for s in measure(model, tokenizer, ["A fox and an owl. " * 9], inputs)}
    assert len(scores) == len(KINDS) * 4
    assert scores["previous_token", 0, 0] > 0.95
    assert scores["local", 0, 0] > 0.95
    assert scores["induction", 1, 0] > 0.95
    assert scores["duplicate_token", 1, 0] < 0.05
    for layer in (0, 1):  # the other heads look at all positions alike
        assert scores["induction", layer, 1] == pytest.approx(sum(1 / t for t in range(18, 34)) / 16, abs=1e-3)
        assert scores["first_token", layer, 1] == pytest.approx(sum(1 / t for t in range(2, 34)) / 32, abs=1e-3)


def test_measuring_leaves_the_model_as_it_was_and_gives_the_same_twice(tokenizer) -> None:
    torch.manual_seed(0)
    config = DecoderConfig(vocab_size=257, hidden_size=16, num_hidden_layers=2, num_attention_heads=4)
    model = DecoderForCausalLM(config).train()
    found = [measure(model, tokenizer, ["The fox ran home. " * 20]) for _ in range(2)]
    assert found[0] == found[1]
    assert model.config._attn_implementation == "sdpa"
    assert model.training
    assert all(0 <= each.score <= 1 for each in found[0])


def test_rows_in_several_chunks_give_the_same(tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    config = DecoderConfig(vocab_size=257, hidden_size=16, num_hidden_layers=2, num_attention_heads=4)
    model = DecoderForCausalLM(config)
    texts = ["The fox ran home. " * 300]
    whole = measure(model, tokenizer, texts)
    monkeypatch.setattr("models.heads.CHUNK_BYTES", 1)
    for one, other in zip(whole, measure(model, tokenizer, texts), strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-5)


def test_too_little_text_is_refused(tokenizer) -> None:
    config = DecoderConfig(vocab_size=257, hidden_size=16, num_hidden_layers=1, num_attention_heads=4)
    with pytest.raises(ValueError, match="too little text"):
        measure(DecoderForCausalLM(config), tokenizer, ["."])


SCORES = tuple(
    HeadScore(kind, layer, head, (1 + layer + head) / 8) for kind in KINDS for layer in (0, 1) for head in (0, 1)
)


def test_the_best_come_first_and_equals_by_place() -> None:
    assert [(s.layer, s.head) for s in best(SCORES, per_kind=3)][:3] == [(1, 1), (0, 1), (1, 0)]
    assert [s.kind for s in best(SCORES, per_kind=1)] == list(KINDS)


def test_scores_survive_their_file(tmp_path: Path) -> None:
    write_heads(tmp_path, SCORES, {"seed": 0})
    assert read_heads(tmp_path, layers=2, heads=2) == SCORES
    assert read_heads(tmp_path / "nowhere", layers=2, heads=2) == ()


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"version": 2, "heads": []}',
        '{"version": 1}',
        '{"version": 1, "heads": [1]}',
        '{"version": 1, "heads": [{"kind": "induction", "layer": 0, "head": 2, "score": 0.5}]}',
        '{"version": 1, "heads": [{"kind": "induction", "layer": true, "head": 0, "score": 0.5}]}',
        '{"version": 1, "heads": [{"kind": "induction", "layer": 0, "head": 0, "score": 1.5}]}',
        '{"version": 1, "heads": [{"kind": "induction", "layer": 0, "head": 0, "score": NaN}]}',
        '{"version": 1, "heads": [{"kind": ["x"], "layer": 0, "head": 0, "score": 0.5}]}',
        '{"version": 1, "heads": [{"kind": "clever", "layer": 0, "head": 0, "score": 0.5}]}',
        " " * (5 << 20),
        "[" * 100_000,
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_ignored_with_a_word(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "heads.json").write_text(content, encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert read_heads(tmp_path, layers=2, heads=2) == ()
    assert "heads.json" in caplog.text


def test_the_command_writes_what_loading_reads(tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = DecoderConfig(vocab_size=257, hidden_size=16, num_hidden_layers=2, num_attention_heads=4)
    DecoderForCausalLM(config).save_pretrained(tmp_path / "little")
    tokenizer.save_pretrained(tmp_path / "little")
    main([str(tmp_path / "little"), "--per-kind", "1"])
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(printed) == 2 + len(KINDS)
    card = load(tmp_path / "little", device="cpu").card
    assert len(card.heads) == len(KINDS) * 2 * 4
    json.dumps(card.as_dict())
    with pytest.raises(SystemExit):
        main([str(tmp_path / "nothing")])
