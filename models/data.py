"""Text for training: documents, a byte-level BPE tokenizer, and packed arrays of token ids.

A text file holds documents, each ended by a line with only `<|endoftext|>`. In the packed arrays every document starts
with that token's id, so one array is a plain stream in which the borders can still be seen.
"""

import gzip
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

END = "<|endoftext|>"
SMALLEST_VOCABULARY = 257  # every byte, and END


# What a model card says about data sets that we know by name.
LICENCES = {
    "tinystories": "CDLA-Sharing-1.0; short stories from TinyStories (Eldan and Li 2023, arXiv 2305.07759)",
    "open_storybooks": "CC BY 3.0 and 4.0, per story; African Storybook Project and Pratham Books / StoryWeaver",
    "fairytales": "Apache-2.0, the texts are in the public domain; FairytaleQA (Xu et al., ACL 2022)",
    "childrens_books": "public domain in the United States; books for children, mostly 1812-1923",
    "general_fiction": "public domain in the United States; novels and stories, 1811-1923",
}


def documents(path: Path) -> list[str]:
    """The documents of a file (.gz is unpacked), without end lines and outer white space; empty ones are left out."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8").replace("\r\n", "\n")
    parts = (part.strip() for part in re.split(rf"^{re.escape(END)}$", text, flags=re.MULTILINE))
    return [part for part in parts if part]


def train_tokenizer(texts: Iterable[str], vocab_size: int, context_length: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer (Radford et al. 2019, section 2.2) that can spell any text; END begins and ends one.

    Raises ValueError when the vocabulary cannot hold every byte.
    """
    if vocab_size < SMALLEST_VOCABULARY:
        raise ValueError(f"vocab_size must be at least {SMALLEST_VOCABULARY} to hold every byte, not {vocab_size}.")
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=END,
        eos_token=END,
        model_max_length=context_length,
        clean_up_tokenization_spaces=False,
    )


def ends(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
    """The tokens that begin and end a text: those the tokenizer names, or the one that ends texts for both.

    Raises ValueError when the tokenizer has no token that ends a text.
    """
    last = tokenizer.eos_token_id
    if last is None:
        raise ValueError("The tokenizer has no token that ends a text (eos_token).")
    first = tokenizer.bos_token_id
    return last if first is None else first, last


def pack(texts: Sequence[str], tokenizer: PreTrainedTokenizerFast) -> NDArray[np.unsignedinteger]:
    """All documents in one array, each between the tokens that begin and end a text, in 16 bits where those suffice.

    Where one token does both, as in our own tokenizers, one stands between two documents.
    """
    first, last = ends(tokenizer)
    between = [last] if first == last else [last, first]
    stream = [first]
    for encoding in tokenizer.backend_tokenizer.encode_batch(list(texts), add_special_tokens=False):
        stream += [*encoding.ids, *between]
    if first != last and texts:
        stream.pop()
    return np.array(stream, dtype=np.uint16 if len(tokenizer) <= np.iinfo(np.uint16).max + 1 else np.uint32)


@dataclass(frozen=True)
class Source:
    """One data set in the training mixture."""

    name: str
    stream: NDArray[np.unsignedinteger]
    share: float  # of the tokens drawn


SHORTEST_REPEAT = 16
FEWEST = 4  # random tokens in a row that says them again and again
REPEATING = 2  # keeps the random numbers of repeated rows apart from those of the order of rows
RANDOM = 3  # and those of rows of random tokens


class Mixture:
    """Training rows of T + 1 tokens, drawn from several streams in fixed shares.

    Each stream is cut into rows that do not overlap; the cut's offset and the order of rows are new in every pass
    through the stream. Row number n is a function of the seed and n alone, so training can resume anywhere.

    A part `repeats` of the rows says its first tokens, `SHORTEST_REPEAT` to T / 2 of them, again and again: what comes
    next can be read off from what came after the same words before, which is what induction heads do (Olsson et al.
    2022, arXiv 2209.11895). A small model sees too little repetition in stories to form them: there the words before
    tell nearly as much. So a part `random_repeats` of the rows says random tokens again and again, `FEWEST` to T / 8 of
    them, few more often than many, where nothing but the earlier occurrence tells what comes next.
    """

    def __init__(
        self, sources: Sequence[Source], length: int, seed: int, repeats: float = 0.0, random_repeats: float = 0.0
    ) -> None:
        for source in sources:
            if len(source.stream) < 2 * length + 2:
                raise ValueError(
                    f"Data set {source.name} has {len(source.stream)} tokens, too few for rows of {length}."
                )
        self.sources, self.length, self.seed, self.repeats = tuple(sources), length, seed, repeats
        self.random_repeats = random_repeats
        self.used = [np.unique(source.stream) for source in sources] if random_repeats else []  # tokens to draw from
        shares = np.array([source.share for source in sources])
        self.shares = shares / shares.sum()
        self._orders: dict[tuple[int, int], tuple[int, NDArray[np.int64]]] = {}
        self._plan: list[tuple[int, int]] = []
        self._given = np.zeros(len(self.sources), dtype=np.int64)

    def rows(self, first: int, count: int) -> Tensor:
        """Rows first .. first + count as int64 (count, T + 1)."""
        return torch.stack([self._row(number) for number in range(first, first + count)])

    def source_of(self, number: int) -> tuple[int, int]:
        """Which source row `number` comes from, and how many rows that source gave before it.

        Every source follows its own share as closely as whole rows allow (largest deficit first).
        """
        while len(self._plan) <= number:
            chosen = int(np.argmax(self.shares * (len(self._plan) + 1) - self._given))
            self._plan.append((chosen, int(self._given[chosen])))
            self._given[chosen] += 1
        return self._plan[number]

    def _row(self, number: int) -> Tensor:
        chosen, nth = self.source_of(number)
        random_row = self._random_row(number, chosen)
        if random_row is not None:
            return random_row
        stream = self.sources[chosen].stream
        per_pass = len(stream) // self.length - 1
        offset, order = self._order(chosen, nth // per_pass, per_pass)
        start = offset + int(order[nth % per_pass]) * self.length
        row = stream[start : start + self.length + 1].astype(np.int64)
        return torch.from_numpy(np.resize(row[: self._period(number)], len(row)))

    def _random_row(self, number: int, chosen: int) -> Tensor | None:
        """Random tokens of a source, again and again, where row `number` is such a row; each counts as a source's."""
        if not self.random_repeats:
            return None
        generator = np.random.default_rng([self.seed, number, REPEATING, RANDOM])
        if generator.random() >= self.random_repeats:
            return None
        most = max(FEWEST, self.length // 8)
        period = round(math.exp(generator.uniform(math.log(FEWEST), math.log(most))))
        once = generator.choice(self.used[chosen], period).astype(np.int64)
        return torch.from_numpy(np.resize(once, self.length + 1))

    def _period(self, number: int) -> int:
        """After how many tokens row `number` begins again; its whole length for most."""
        if not self.repeats:
            return self.length + 1
        generator = np.random.default_rng([self.seed, number, REPEATING])
        period = int(generator.integers(min(SHORTEST_REPEAT, self.length // 2), self.length // 2 + 1))
        return period if generator.random() < self.repeats else self.length + 1

    def _order(self, chosen: int, turn: int, per_pass: int) -> tuple[int, NDArray[np.int64]]:
        key = (chosen, turn)
        if key not in self._orders:
            generator = np.random.default_rng([self.seed, chosen, turn])
            self._orders[key] = (int(generator.integers(self.length)), generator.permutation(per_pass))
        return self._orders[key]
