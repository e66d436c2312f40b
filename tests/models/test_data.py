"""Documents, tokenizer, packing and the order of training rows."""

import copy
import itertools
from pathlib import Path

import numpy as np
import pytest

from models.data import END, Mixture, Source, documents, pack, train_tokenizer
from models.evaluation import document_rows

TEXTS = ["Once there was a cat.\n\nIt sat.", "A dog ran home. Café, 日本 and 🙂!", "The end of it all."]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS * 5, vocab_size=300, context_length=64)


def test_documents_end_at_lines_that_hold_the_end_mark_alone(tmp_path: Path) -> None:
    path = tmp_path / "some.txt"
    path.write_text(f"one\n\ntwo\n{END}\nthree {END} four\n{END}\n\n{END}\n", encoding="utf-8")
    assert documents(path) == ["one\n\ntwo", f"three {END} four"]


def test_any_text_survives_the_tokenizer(tokenizer) -> None:
    for text in (*TEXTS, "  two  spaces\tand\x00 control\r\n", "العربية עברית", "\U0001f9d9‍♂️"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_end_mark_is_one_token_that_begins_and_ends_text(tokenizer) -> None:
    assert len(tokenizer) == 300
    assert tokenizer.bos_token == tokenizer.eos_token == END
    assert tokenizer(END)["input_ids"] == [tokenizer.eos_token_id]
    assert tokenizer.decode([tokenizer.eos_token_id], skip_special_tokens=True) == ""


def test_a_vocabulary_too_small_for_every_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 257"):
        train_tokenizer(TEXTS, vocab_size=100, context_length=8)


def test_packing_keeps_every_document_and_its_borders(tokenizer) -> None:
    stream = pack(TEXTS, tokenizer)
    assert stream.dtype == np.uint16
    ends = np.flatnonzero(stream == tokenizer.eos_token_id)
    assert (ends[0], ends[-1]) == (0, len(stream) - 1)
    assert [tokenizer.decode(stream[a + 1 : b].tolist()) for a, b in itertools.pairwise(ends)] == TEXTS


def test_a_tokenizer_with_a_token_of_its_own_for_beginnings_uses_it(tokenizer) -> None:
    other = copy.deepcopy(tokenizer)
    other.bos_token = "a"
    first, last = other.bos_token_id, other.eos_token_id
    assert first != last
    texts = ["the", "his"]
    wanted = [[first, *tokenizer(text)["input_ids"], last] for text in texts]
    assert pack(texts, other).tolist() == wanted[0] + wanted[1]
    assert document_rows(texts, other, 50) == wanted
    other.eos_token = None
    with pytest.raises(ValueError, match="no token that ends a text"):
        pack(texts, other)


def mixture(seed: int = 0) -> Mixture:
    first = Source("first", np.arange(0, 1000, dtype=np.uint16), 0.75)
    second = Source("second", np.arange(2000, 2200, dtype=np.uint16), 0.25)
    return Mixture([first, second], length=16, seed=seed)


def test_rows_are_unbroken_pieces_of_one_stream() -> None:
    rows = mixture().rows(0, 50)
    assert rows.shape == (50, 17)
    assert (rows.diff(dim=1) == 1).all()


def test_every_data_set_gets_its_share() -> None:
    rows = mixture().rows(0, 80)
    assert (rows[:, 0] < 1000).sum() == 60


def test_one_pass_reads_no_place_twice() -> None:
    mixed = mixture()
    starts = [int(row[0]) for row in mixed.rows(0, 80) if row[0] < 1000][:61]
    assert len(set(starts)) == len(starts) == 60


def test_rows_depend_on_their_number_and_the_seed_only() -> None:
    whole = mixture().rows(0, 100)
    later = mixture()
    assert (later.rows(37, 20) == whole[37:57]).all()
    assert (later.rows(3, 5) == whole[3:8]).all()
    assert not (mixture(seed=1).rows(0, 100) == whole).all()


def test_a_part_of_the_rows_repeats_its_first_tokens() -> None:
    source = Source("only", np.arange(20_000, dtype=np.uint16), 1.0)
    plain, mixed = Mixture([source], 128, seed=0).rows(0, 150), Mixture([source], 128, seed=0, repeats=0.2).rows(0, 150)
    repeated = [n for n in range(150) if not (plain[n] == mixed[n]).all()]
    assert 15 < len(repeated) < 45
    for number in repeated:
        row = mixed[number]
        period = int((row == row[0]).nonzero()[1, 0])
        assert 16 <= period <= 64
        assert (row[period:] == row[:-period]).all()
        assert (row[:period] == plain[number, :period]).all()


def test_a_data_set_shorter_than_a_row_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="tiny has 10 tokens"):
        Mixture([Source("tiny", np.zeros(10, dtype=np.uint16), 1.0)], length=16, seed=0)


def test_a_part_of_the_rows_repeats_random_tokens_of_the_streams() -> None:
    stream = np.random.default_rng(0).permutation(np.arange(5, 20_005, dtype=np.uint16))
    sources = [Source("only", stream, 1.0)]
    plain, mixed = (Mixture(sources, 256, seed=0, random_repeats=part).rows(0, 150) for part in (0.0, 0.2))
    drawn = [n for n in range(150) if not (plain[n] == mixed[n]).all()]
    assert 15 < len(drawn) < 45
    for number in drawn:
        row = mixed[number]
        period = next(p for p in range(1, 257) if (row[p:] == row[:-p]).all())
        assert 4 <= period <= 32
        assert set(row.tolist()) <= set(stream.tolist())
        assert not set(row.tolist()) <= set(plain[number].tolist())


def test_rows_of_random_tokens_depend_on_their_number_and_the_seed_only() -> None:
    source = Source("only", np.arange(20_000, dtype=np.uint16), 1.0)
    whole, later = (Mixture([source], 128, seed=0, random_repeats=0.3) for _ in range(2))
    assert (later.rows(11, 9) == whole.rows(0, 20)[11:]).all()
