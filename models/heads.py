"""What attention heads do, measured: `python -m models.heads DIR` writes heads.json into the checkpoint.

Five kinds, each a mean over queries of the attention that a head gives to the keys named here; 0 never, 1 all of it:

previous_token    the token before (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits").
induction         tokens that came after an earlier occurrence of the query's token: the prefix-matching score on
                  repeated random tokens (Olsson et al. 2022, arXiv 2209.11895, appendix "Prefix matching").
duplicate_token   earlier occurrences of the query's own token (Wang et al. 2022, arXiv 2211.00593, section 3).
first_token       the first token of the text, an attention sink (Xiao et al. 2023, arXiv 2309.17453, section 3.1).
local             the query's own and the three positions before it: what a sliding window of 4 would keep (Beltagy et
                  al. 2020, arXiv 2004.05150, section 3.1). Queries that see no further are left out.

Induction and duplicates are measured on random tokens repeated once, where nothing else can tell what comes next; the
others on text.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from models.data import documents
from models.head_scores import KINDS, HeadScore, best, write_heads

WINDOW = 4  # positions that count as local, the query's own included
CHUNK_BYTES = 256 << 20  # of the attention patterns of one pass

PASSAGE = """A fox lived at the edge of a wood, and every morning he went down to the river to drink. One day
he saw a small boat on the water. There was nobody in the boat, only a red coat and a loaf of bread. "Whose
boat is this?" asked the fox. "It is mine," said a voice from under the coat, and out came a mouse with a very
wet nose. "I have come down the river for three days, and I do not know how to stop." The fox thought about
it. Then he took the rope of the boat in his teeth and pulled, and pulled, until the boat stood on the sand.
"Thank you," said the mouse. "Now we can share the bread." So they sat down by the river, the fox and the
mouse, and ate the bread together. When the sun went down, the mouse put on the red coat and the fox showed
her the way to the wood. "You may live here," said the fox, "and on every fine day we will take the boat to
the other side of the river, and you will tell me what you have seen." And that is what they did. The mouse
told of towers and bridges, of ships with white sails and of a town where the bells never stop. The fox told
of owls, and of snow, and of the path that nobody walks twice. In the winter the river froze, and the boat lay
under the snow, but the fox and the mouse sat by the fire and ate bread and told each other everything once
more.""".replace("\n", " ")


def previous_token(patterns: Tensor) -> Tensor:
    """Mean attention to the position before the query; patterns (B, H, T, T) with rows = queries -> (H,)."""
    return patterns.diagonal(-1, dim1=2, dim2=3).float().mean(dim=(0, 2))


def first_token(patterns: Tensor) -> Tensor:
    """Mean attention of all queries but the first to position 0; patterns (B, H, T, T) -> (H,)."""
    return patterns[:, :, 1:, 0].float().mean(dim=(0, 2))


def local(patterns: Tensor) -> Tensor:
    """Mean attention to the query's own and the positions just before it, `WINDOW` in all; (B, H, T, T) -> (H,)."""
    near = sum(patterns.diagonal(-back, dim1=2, dim2=3)[:, :, WINDOW - back :].float() for back in range(WINDOW))
    assert isinstance(near, Tensor)
    return near.mean(dim=(0, 2))


def duplicate_token(patterns: Tensor, ids: Tensor) -> Tensor:
    """Mean attention to earlier occurrences of the query's token, over queries that have one.

    patterns (B, H, T, T), ids (B, T) -> (H,); zeros when no token occurs twice.
    """
    same = ids[:, :, None] == ids[:, None, :]  # (B, T, T): query, key
    return _mass_on(patterns, same.tril(-1))


def induction(patterns: Tensor, ids: Tensor) -> Tensor:
    """Mean attention to tokens that follow an earlier occurrence of the query's token, over queries that have one.

    patterns (B, H, T, T), ids (B, T) -> (H,); zeros when no token occurs twice.
    """
    after = torch.zeros_like(patterns[:, 0], dtype=torch.bool)
    after[:, :, 1:] = ids[:, :, None] == ids[:, None, :-1]  # key s counts where the token at s - 1 is the query's
    return _mass_on(patterns, after.tril())


def _mass_on(patterns: Tensor, wanted: Tensor) -> Tensor:
    """Attention on the wanted (B, T, T) pairs, averaged over the queries that have any; (B, H, T, T) -> (H,)."""
    mass = (patterns.float() * wanted[:, None]).sum(-1)  # (B, H, T)
    queries = wanted.any(-1)  # (B, T)
    return (mass * queries[:, None]).sum(dim=(0, 2)) / queries.sum().clamp(min=1)


ON_TEXT: dict[str, Callable[[Tensor], Tensor]] = {
    "previous_token": previous_token,
    "first_token": first_token,
    "local": local,
}
ON_REPEATS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "induction": induction,
    "duplicate_token": duplicate_token,
}


@dataclass(frozen=True)
class Inputs:
    """What heads are measured on; the fields are those of `measured` in heads.json."""

    seed: int = 0
    sequences: int = 8
    period: int = 64  # random tokens before they come again
    length: int = 256  # tokens in a row of text
    text: str = "built-in passage"

    def fitting(self, model: PreTrainedModel) -> "Inputs":
        """These inputs, shortened where the model's context or vocabulary is too small for them."""
        config = model.config.get_text_config()
        context = getattr(config, "max_position_embeddings", None) or self.length
        period = max(1, min(self.period, (context - 1) // 2, config.vocab_size // 2))
        return Inputs(self.seed, self.sequences, period, min(self.length, context), self.text)


def repeated_rows(inputs: Inputs, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> Tensor:
    """Rows (sequences, 1 + 2 period): the token that begins text, different random tokens, the same again."""
    special = set(tokenizer.all_special_ids)
    usable = torch.tensor([token for token in range(min(vocab_size, len(tokenizer))) if token not in special])
    generator = torch.Generator().manual_seed(inputs.seed)
    draws = [usable[torch.randperm(len(usable), generator=generator)[: inputs.period]] for _ in range(inputs.sequences)]
    once = torch.stack(draws)
    start = torch.full((inputs.sequences, 1), _border(tokenizer, int(usable[0])))
    return torch.cat((start, once, once), dim=1)


def text_rows(inputs: Inputs, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> Tensor:
    """Rows (n, T) of text, each begun by the token that begins text: n at most `sequences`, T at most `length`.

    Documents follow each other in one stream, which is cut into rows. Raises ValueError when there is no text.
    """
    border, stream = _border(tokenizer, 0), []
    for text in texts:
        stream += [*tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], border]
        if len(stream) > inputs.sequences * inputs.length:
            break
    width = min(inputs.length - 1, len(stream) - 1)
    if width < WINDOW:
        raise ValueError("There is too little text to measure heads on.")
    count = min(inputs.sequences, (len(stream) - 1) // width)
    rows = torch.tensor(stream[: count * width]).view(count, width)
    return torch.cat((torch.full((count, 1), border), rows), dim=1)


def _border(tokenizer: PreTrainedTokenizerBase, otherwise: int) -> int:
    """The token that a text begins with, as far as the tokenizer knows one."""
    known = (tokenizer.bos_token_id, tokenizer.eos_token_id)
    return next((token for token in known if token is not None), otherwise)


@torch.inference_mode()
def measure(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], inputs: Inputs | None = None
) -> tuple[HeadScore, ...]:
    """Scores of all heads of all layers for every kind, ordered by kind, layer and head.

    The model runs with eager attention, which gives the patterns, a few rows at a time so that these stay below
    `CHUNK_BYTES`; afterwards it is as it was before. Raises ValueError when there is too little text.
    """
    inputs = (inputs or Inputs()).fitting(model)
    repeats = repeated_rows(inputs, tokenizer, model.config.get_text_config().vocab_size)
    before, was_training = model.config._attn_implementation, model.training
    model.set_attn_implementation("eager")
    model.eval()
    try:
        found = _means(model, text_rows(inputs, tokenizer, texts), lambda pattern, _: _all_on_text(pattern))
        found |= _means(model, repeats, lambda pattern, ids: {k: f(pattern, ids) for k, f in ON_REPEATS.items()})
    finally:
        model.set_attn_implementation(before)
        model.train(was_training)
    return tuple(
        HeadScore(kind, layer, head, min(1.0, max(0.0, score)))
        for kind in KINDS
        for layer, row in enumerate(found[kind].tolist())
        for head, score in enumerate(row)
    )


def _all_on_text(pattern: Tensor) -> dict[str, Tensor]:
    return {kind: of(pattern) for kind, of in ON_TEXT.items()}


def _means(
    model: PreTrainedModel, rows: Tensor, scores: Callable[[Tensor, Tensor], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """Kind -> scores (L, H), averaged over chunks of rows (n, T) by their number of rows."""
    found: dict[str, Tensor] = {}
    for some in _chunks(model, rows):
        ids = some.to(model.device)
        patterns = model(input_ids=ids, use_cache=False, output_attentions=True).attentions
        layers = [scores(pattern, ids) for pattern in patterns]
        for kind in layers[0]:
            weighted = torch.stack([layer[kind] for layer in layers]).cpu() * (len(some) / len(rows))
            found[kind] = found.get(kind, torch.zeros(())) + weighted
    return found


def _chunks(model: PreTrainedModel, rows: Tensor) -> Iterator[Tensor]:
    config = model.config.get_text_config()
    one = 4 * config.num_hidden_layers * config.num_attention_heads * rows.shape[1] ** 2
    yield from rows.split(max(1, CHUNK_BYTES // one))


def table(scores: Sequence[HeadScore]) -> str:
    """A Markdown table of head scores."""
    rows = (f"| {each.kind} | {each.layer} | {each.head} | {each.score:.3f} |" for each in scores)
    return "\n".join(("| kind | layer | head | score |", "|---|---:|---:|---:|", *rows))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure a checkpoint's heads, print the best and write all into its heads.json."""
    from models.checkpoints import load  # which reads heads.json itself
    from models.errors import CheckpointError

    options = argparse.ArgumentParser(prog="python -m models.heads", description="What the heads of a checkpoint do.")
    options.add_argument("directory", help="checkpoint directory, or the name of a shipped model")
    options.add_argument("--text", type=Path, help="text file to measure on (default: a short story)")
    options.add_argument("--per-kind", type=int, default=3, help="how many heads of each kind to print")
    args = options.parse_args(arguments)
    try:
        loaded = load(args.directory)
        texts = documents(args.text) if args.text else [PASSAGE]
        inputs = Inputs(text=args.text.stem if args.text else Inputs.text).fitting(loaded.model)
        scores = measure(loaded.model, loaded.tokenizer, texts, inputs)
    except (CheckpointError, ValueError, OSError) as error:
        options.error(str(error))
    assert loaded.card.directory is not None
    write_heads(loaded.card.directory, scores, vars(inputs))
    print(table(best(scores, args.per_kind)))


if __name__ == "__main__":
    main()
