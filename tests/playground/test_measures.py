"""Measures of texts: scores against transformers' own loss, BLEU against nltk's numbers, the rest by hand."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from models import Loaded
from playground import Decoding, measures
from tests.playground.conftest import CONTEXT, PROMPT
from tests.playground.test_families import _built

TEXT = PROMPT + " sat and saw a small ☃."


def test_scores_agree_with_transformers_loss(loaded: Loaded) -> None:
    found = measures.score(loaded, TEXT)
    ids = torch.tensor([found.token_ids])
    with torch.no_grad():
        output = loaded.model(ids, labels=ids)
        log_p = output.logits[0, :-1].double().log_softmax(-1)
    assert found.mean == pytest.approx(float(output.loss), rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(float(output.loss)), rel=1e-4)
    expected = log_p.gather(1, ids[0, 1:, None])[:, 0]
    np.testing.assert_allclose(found.log_p, expected, atol=1e-4)
    np.testing.assert_allclose(found.entropy, torch.distributions.Categorical(logits=log_p).entropy(), atol=1e-4)
    order = log_p.argsort(-1, descending=True)
    assert found.rank.tolist() == [order[at].tolist().index(each) for at, each in enumerate(found.token_ids[1:])]


@pytest.mark.parametrize("family", ["Mistral", "Gemma2", "Bloom", "GptOss"])
def test_windows_caps_and_families_without_routed_attention_can_score(family: str, tiny: Loaded) -> None:
    loaded = dataclasses.replace(tiny, model=_built(family))
    found = measures.score(loaded, TEXT)
    ids = torch.tensor([found.token_ids])
    with torch.no_grad():
        expected = float(loaded.model(ids, labels=ids, use_cache=False).loss)
    assert found.mean == pytest.approx(expected, rel=1e-4)


def test_a_text_is_read_in_pieces_with_the_same_result(tiny: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = measures.score(tiny, TEXT)
    monkeypatch.setattr(measures, "MOST_AT_ONCE", 4)
    scoring = measures.Scoring(tiny, TEXT)
    scoring.advance()
    assert (scoring.done, scoring.finished) == (4, False)
    pieces = scoring.result()
    np.testing.assert_allclose(pieces.log_p, whole.log_p, atol=1e-5)
    np.testing.assert_array_equal(pieces.rank, whole.rank)


def test_bits_per_byte_count_the_bytes_of_what_was_scored(tiny: Loaded) -> None:
    found = measures.score(tiny, TEXT)
    scored = TEXT.encode()[len(found.tokens[0].encode()) :]
    assert found.bytes == len(scored)
    assert found.bits_per_byte == pytest.approx(found.nats / math.log(2) / len(scored))


def test_texts_that_cannot_be_scored_get_one_sentence(tiny: Loaded) -> None:
    for text, words in [("", "empty"), ("O", "only one token"), ("cat " * CONTEXT, "shorten it"), ("\ud800", "surrog")]:
        with pytest.raises(ValueError, match=words):
            measures.score(tiny, text)


SENTENCES = [
    "the cat sat on the mat . the cat was happy .",
    "a cat sat on a mat and was very happy .",
    "dogs run",
    "the dog ran over the hill and sat on the mat .",
    "the the the the",
    "once upon a time there was a dragon who lived in a castle",
]
NLTK = [0.44833867003844585, 0.1273848270412451, 0.0, 0.35655062085592504, 0.10573712634405641, 0.020448007360218394]
"""nltk 3.9's `sentence_bleu(others, each, smoothing_function=SmoothingFunction().method1)`, computed once."""


def test_bleu_equals_nltks() -> None:
    words = [each.split() for each in SENTENCES]
    found = [measures.bleu(each, [*words[:at], *words[at + 1 :]]) for at, each in enumerate(words)]
    assert found == pytest.approx(NLTK, abs=1e-12)
    assert measures.self_bleu(words) == pytest.approx(np.mean(NLTK))
    assert measures.bleu(words[0], [words[0]]) == 1


def test_variety_and_repetition_are_counted_in_words() -> None:
    words = [["a", "b", "a", "b"], ["a", "c"]]
    assert measures.distinct(words, 1) == 3 / 6
    assert measures.distinct(words, 2) == 3 / 4  # ab, ba, ab; ac
    assert measures.distinct([[]], 1) == 0
    assert measures.repetition(["a", "b", "c", "d", "a", "b", "c", "d"]) == pytest.approx(1 - 4 / 5)
    assert measures.repetition(["a", "b", "c"]) == 0
    assert measures.Sample("It's  a Dragon!", np.zeros(0)).words == ["it", "'", "s", "a", "dragon", "!"]


def test_samples_are_runs_with_the_next_seeds_and_greedy_ones_are_all_alike(tiny: Loaded) -> None:
    decoding = Decoding(max_new_tokens=12, seed=5, stop_at_end=False)
    found = list(measures.samples(tiny, PROMPT, decoding, 3))
    from playground import generate

    for more, sample in enumerate(found):
        run = generate(tiny, PROMPT, dataclasses.replace(decoding, seed=5 + more)).finish()
        assert PROMPT + sample.text == run.text
        np.testing.assert_allclose(sample.log_p, run.log_probabilities(), atol=1e-5)
    drawn = measures.spread(found)
    assert (drawn.samples, drawn.tokens) == (3, 36)
    assert drawn.surprisal == pytest.approx(-np.mean([each.log_p.mean() for each in found]))
    greedy = measures.spread(list(measures.samples(tiny, PROMPT, dataclasses.replace(decoding, temperature=0.0), 3)))
    assert greedy.self_bleu == pytest.approx(1)
    assert greedy.surprisal < drawn.surprisal
    assert measures.spread(found[:1]).self_bleu is None
