"""Measures of texts: how surprising a given text is to a model, and how varied the texts are that it writes.

A text is scored by teacher forcing: the model reads it once, and the distribution at each position is asked about the
token that really follows. Texts are compared by words, which are runs of letters and digits, or single marks.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from playground.anatomy import prepare
from playground.branches import branch
from playground.records import Decoding
from playground.runs import Run, generate
from playground.tokens import encode, piece, text_after

if TYPE_CHECKING:
    from models import Loaded

LOGITS_AT_ONCE = 64 * 2**20
"""Bytes of logits of one forward pass while a text is scored."""
MOST_AT_ONCE = 256
REPEATED = 4
"""Words of the runs whose repetition is counted, as in seq-rep-4 (Welleck et al. 2020, section 2)."""
BLEU_ORDER = 4
BLEU_EPSILON = 0.1
"""What stands for no match of some length, as in method 1 of Chen and Cherry 2014, which nltk offers as well."""
WORD = re.compile(r"\w+|[^\w\s]")

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """What a model makes of a text; the arrays are of the n tokens behind the first, which nothing precedes.

    Attributes:
        token_ids: of the whole text, the first one included; `tokens`: their texts.
        log_p: natural logarithm of the probability of each token: its surprisal is -log_p, in nats.
        entropy: of the distribution that the token was asked about, in nats: the surprisal to be expected.
        rank: how many tokens were likelier.
        bytes: of the text of these tokens in UTF-8.
    """

    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]
    log_p: Floats
    entropy: Floats
    rank: NDArray[np.int64]
    bytes: int

    @property
    def nats(self) -> float:
        """Surprisal of the whole text."""
        return float(-self.log_p.sum())

    @property
    def mean(self) -> float:
        """Nats per token: the loss that training minimises."""
        return self.nats / len(self.log_p)

    @property
    def perplexity(self) -> float:
        """e to the power of the mean: among so many equally likely tokens the model seems to choose."""
        return math.exp(min(self.mean, 700.0))

    @property
    def bits_per_byte(self) -> float:
        """Bits of surprisal for each byte of text: comparable between tokenizers."""
        return self.nats / math.log(2) / self.bytes


class Scoring:
    """A text while it is read, a forward pass at a time; `token_ids` is all of it, `done` how many tokens are read.

    Raises:
        ValueError: one sentence, when the text is empty, too short to score, or longer than the model reads.
    """

    def __init__(self, loaded: Loaded, text: str) -> None:
        self.loaded = loaded
        self.token_ids = encode(loaded, text, "text")
        if len(self.token_ids) < 2:
            raise ValueError("The text has only one token, and nothing precedes it: type a few more words.")
        anatomy = prepare(loaded.model)
        self.done = 0
        self._cache = anatomy.cache(len(self.token_ids))
        most = max(1, min(MOST_AT_ONCE, LOGITS_AT_ONCE // (4 * loaded.card.vocab_size)))
        self._chunk = most if anatomy.resumes else len(self.token_ids)
        self._parts: list[tuple[Floats, Floats, NDArray[np.int64]]] = []

    @property
    def finished(self) -> bool:
        """Whether all that can be scored is: the last token is asked about, but not read."""
        return self.done >= len(self.token_ids) - 1

    @torch.inference_mode()
    def advance(self) -> None:
        """One forward pass."""
        end = min(self.done + self._chunk, len(self.token_ids) - 1)
        inputs = torch.tensor([self.token_ids[self.done : end]], device=self.loaded.device)
        output = self.loaded.model(input_ids=inputs, past_key_values=self._cache, use_cache=True)
        asked = torch.tensor(self.token_ids[self.done + 1 : end + 1], device=output.logits.device)
        self._parts.append(_scores(output.logits[0].float(), asked))
        self.done = end

    def result(self) -> Scored:
        """What was found; only when it has finished."""
        while not self.finished:
            self.advance()
        log_p, entropy, rank = (np.concatenate(each) for each in zip(*self._parts, strict=True))
        tokenizer, ids = self.loaded.tokenizer, self.token_ids
        size = len(text_after(tokenizer, ids, 1).encode("utf-8", errors="replace"))
        return Scored(tuple(ids), tuple(piece(tokenizer, each) for each in ids), log_p, entropy, rank, max(size, 1))


def _scores(logits: Tensor, asked: Tensor) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Log-probability and rank of the tokens `asked` (n,), and entropy, under logits (n, V)."""
    log_p = logits.log_softmax(-1)
    chosen = log_p.gather(1, asked[:, None])
    entropy = -(log_p.exp() * log_p.clamp(min=-1e30)).sum(-1)
    rank = (logits > logits.gather(1, asked[:, None])).sum(-1)
    return chosen[:, 0].double().cpu().numpy(), entropy.double().cpu().numpy(), rank.cpu().numpy()


def score(loaded: Loaded, text: str) -> Scored:
    """Per-token probability, surprisal, entropy and rank of a text, and its totals. Raises `ValueError`."""
    return Scoring(loaded, text).result()


# ------------------------------------------------------------------------------------------- the variety of samples


@dataclass(frozen=True)
class Sample:
    """One continuation: its text, and the log-probability (nats, the model's own) of each of its tokens."""

    text: str
    log_p: Floats

    @cached_property
    def words(self) -> list[str]:
        """Its words in small letters."""
        return WORD.findall(self.text.lower())


@dataclass(frozen=True)
class Spread:
    """How varied some samples are, and how likely.

    Attributes:
        samples, tokens: how many there are.
        distinct_1: different words among all words of all samples (Li et al. 2016); 1 when no word comes twice.
        distinct_2: the same of pairs of neighbouring words.
        self_bleu: mean BLEU of each sample against the others (Zhu et al. 2018): 0 varied, 1 all alike; None for one.
        repetition: mean share of a sample's runs of four words that occurred in it before (Welleck et al. 2020).
        surprisal: mean nats per token under the model's own distribution.
    """

    samples: int
    tokens: int
    distinct_1: float
    distinct_2: float
    self_bleu: float | None
    repetition: float
    surprisal: float


def spread(samples: Sequence[Sample]) -> Spread:
    """All measures of some samples, at least one."""
    words = [each.words for each in samples]
    log_p = np.concatenate([each.log_p for each in samples])
    return Spread(
        samples=len(samples),
        tokens=len(log_p),
        distinct_1=distinct(words, 1),
        distinct_2=distinct(words, 2),
        self_bleu=self_bleu(words) if len(words) > 1 else None,
        repetition=float(np.mean([repetition(each) for each in words])),
        surprisal=float(-log_p.mean()) if len(log_p) else 0.0,
    )


def ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    """How often each run of n words occurs."""
    return Counter(tuple(words[at : at + n]) for at in range(len(words) - n + 1))


def distinct(texts: Sequence[Sequence[str]], n: int) -> float:
    """Different runs of n words among all of them, over all texts; 0 where there are none."""
    counts: Counter[tuple[str, ...]] = Counter()
    for words in texts:
        counts.update(ngrams(words, n))
    return len(counts) / counts.total() if counts else 0.0


def repetition(words: Sequence[str], n: int = REPEATED) -> float:
    """1 - different / all runs of n words of a text; 0 where it has none."""
    counts = ngrams(words, n)
    return 1 - len(counts) / counts.total() if counts else 0.0


def bleu(candidate: Sequence[str], references: Sequence[Sequence[str]], order: int = BLEU_ORDER) -> float:
    """BLEU of one text (Papineni et al. 2002): geometric mean of clipped n-gram precisions, times brevity penalty.

    Equals nltk's `sentence_bleu` with `SmoothingFunction().method1`: a precision of 0 counts as 0.1 / all n-grams, and
    a text without a single common word has 0.
    """
    logs = []
    for n in range(1, order + 1):
        own, most = ngrams(candidate, n), Counter[tuple[str, ...]]()
        for reference in references:
            most |= ngrams(reference, n)
        matches = sum((own & most).values())
        if n == 1 and not matches:
            return 0.0
        logs.append(math.log((matches or BLEU_EPSILON) / max(own.total(), 1)))
    length = len(candidate)
    nearest = min((len(each) for each in references), key=lambda size: (abs(size - length), size))
    brevity = 1.0 if length > nearest else math.exp(1 - nearest / length)
    return brevity * math.exp(sum(logs) / order)


def self_bleu(texts: Sequence[Sequence[str]]) -> float:
    """Mean BLEU of each text with all others as references; two texts at least."""
    return float(np.mean([bleu(each, [*texts[:at], *texts[at + 1 :]]) for at, each in enumerate(texts)]))


def sampled(run: Run) -> Sample:
    """The continuation of a run."""
    return Sample(text_after(run.loaded.tokenizer, run.token_ids, run.prompt_length), run.log_probabilities())


def samples(loaded: Loaded, prompt: str, decoding: Decoding, count: int) -> Iterator[Sample]:
    """Continuations of one prompt, each with the next seed; the prompt is read once."""
    first = generate(loaded, prompt, decoding)
    for more in range(count):
        again = replace(decoding, seed=decoding.seed + more)
        yield sampled((branch(first, 0, None, again) if more else first).finish())
