"""How well a model predicts text: nats per token and bits per byte."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from models.data import ends

IGNORED = -100  # label of padding


@dataclass(frozen=True)
class Score:
    """Total surprise of a model over some text."""

    nats: float
    tokens: int
    bytes: int

    @property
    def nats_per_token(self) -> float:
        """Mean cross-entropy of a token, in nats."""
        return self.nats / self.tokens

    @property
    def bits_per_byte(self) -> float:
        """Surprise per byte of UTF-8 text, in bits: comparable between tokenizers."""
        return self.nats / math.log(2) / self.bytes


def document_rows(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, length: int) -> list[list[int]]:
    """A row of token ids for each document: the token that begins texts, the text, the end token; length + 1 ids."""
    first, last = ends(tokenizer)
    encoded = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
    return [[first, *ids, last][: length + 1] for ids in encoded]


def batches(rows: Sequence[list[int]], tokens: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and labels (B, T) of similar lengths, padded at the right, with about `tokens` places a batch."""
    rows, first = sorted(rows, key=len), 0
    while first < len(rows):
        count = max(1, tokens // len(rows[min(len(rows) - 1, first + tokens // len(rows[first]))]))
        some = rows[first : first + count]
        first += count
        width = len(some[-1])
        inputs = torch.zeros(len(some), width - 1, dtype=torch.long)
        labels = torch.full_like(inputs, IGNORED)
        for index, row in enumerate(some):
            inputs[index, : len(row) - 1] = torch.tensor(row[:-1])
            labels[index, : len(row) - 1] = torch.tensor(row[1:])
        yield inputs, labels


@torch.no_grad()
def score(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], length: int, tokens: int = 4096
) -> Score:
    """Score each document from its start, up to `length` tokens.

    The nats of the end token count; it has no bytes, so bits per byte are not flattered by it.
    """
    rows = document_rows(texts, tokenizer, length)
    was_training = model.training
    model.eval()
    nats, predicted = 0.0, 0
    for inputs, labels in batches(rows, tokens):
        logits = model(input_ids=inputs.to(model.device), use_cache=False).logits.float()
        labels = labels.to(model.device)
        nats += F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum").item()
        predicted += int((labels != IGNORED).sum())
    model.train(was_training)
    return Score(nats, predicted, _bytes(rows, tokenizer))


def _bytes(rows: Sequence[list[int]], tokenizer: PreTrainedTokenizerBase) -> int:
    """Bytes of the text that the predicted tokens spell."""
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    length = len if "\u0120" in tokens else _sentencepiece_bytes  # byte-level BPE: a character of a token is one byte
    lengths = [length(token or "") for token in tokens]
    for special in tokenizer.all_special_ids:
        lengths[special] = 0
    return sum(lengths[token] for row in rows for token in row[1:])


def _sentencepiece_bytes(token: str) -> int:
    """Bytes of a SentencePiece token: <0x0A> is one, the mark for a space is one, other characters are UTF-8."""
    return 1 if re.fullmatch(r"<0x[0-9A-F]{2}>", token) else len(token.replace("\u2581", " ").encode())
