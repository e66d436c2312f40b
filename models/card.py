"""The model card of a trained checkpoint: a README with the front matter that model hubs read."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.capability import Card
from models.data import LICENCES
from models.evaluation import Score
from models.head_scores import HeadScore, best
from models.speculation import Acceptance

TEMPERATURE = 0.8  # of the samples
DRAFT = "draft"  # folder in a checkpoint: a smaller model that guesses for it in speculative decoding
OPTIMIZERS = {"adamw": "AdamW", "muon": "Muon for the matrices in the layers, AdamW for the rest"}
STARTED_FROM = "### The weights it started from"
DRAFTED = 4  # tokens guessed at a time, for the example on the card


@dataclass(frozen=True)
class Earlier:
    """The training that a run took its first weights from, as its card and loss curve tell it."""

    name: str
    tokens: int  # seen in all of its runs
    made: str  # the section "How it was made" of its card, without the heading
    runs: int = 1

    @classmethod
    def of(cls, card: Card) -> "Earlier":
        """What a checkpoint's card says; 0 tokens and no words where it says nothing."""
        section = re.search(r"^## How it was made\n(.*?)(?=^## |\Z)", card.readme, re.MULTILINE | re.DOTALL)
        before = re.search(r"that had seen ([\d,]+) tokens", card.readme)  # of its runs but the last
        own = int(max((card.loss_curve or {}).get("train", {}).get("tokens", ()), default=0))
        tokens = own + (int(before[1].replace(",", "")) if before and own else 0)
        runs = 1 + card.readme.count(f"{STARTED_FROM}\n")  # each tells of the one before it in a quotation
        return cls(card.name, tokens, section[1].strip() if section else "", runs)


@dataclass(frozen=True)
class TrainingFacts:
    """What is known at the end of a training run and cannot be read from the weights."""

    base: str | None  # name of the checkpoint that was trained further; None: random weights
    command: str
    settings: Mapping[str, object]  # every hyper-parameter by name
    shares: Mapping[str, float]  # data set -> share of the training tokens
    steps: int
    changes: Sequence[Sequence[Any]]  # (until step, setting, its value until then), where one was changed on the way
    tokens: int
    hours: float
    hardware: str
    stored_as: str
    scores: Mapping[str, Score]  # held-out text -> score of the stored weights
    length: int  # tokens at which documents were cut for the scores
    heads_measured: Mapping[str, object]  # as in heads.json
    samples: Sequence[tuple[int, str]]  # (seed, text with its prompt)
    earlier: Earlier | None = None  # where the weights at the start were not random
    draft: tuple[str, int, Acceptance] | None = None  # text it was measured on, parameters of the draft, acceptance


def stored_bytes(folder: Path) -> int:
    """Size of a checkpoint's weights on disk: its safetensors files."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def draft_text(labels: Iterable[str]) -> str:
    """Which held-out text the acceptance of a draft is measured on: the first test text, else the first."""
    labels = list(labels)
    return next((label for label in labels if label.endswith("_test")), labels[0])


def write_card(folder: Path, card: Card, facts: TrainingFacts) -> None:
    """Write README.md into the checkpoint's folder; `card` is what loading it said."""
    sections = (
        _front_matter(facts),
        _opening(card, facts, stored_bytes(folder)),
        _measured(facts),
        _heads(card.heads, facts),
        _draft(facts),
        _data(facts),
        _made(facts),
        _settings(facts),
        _samples(facts),
        _limits(facts),
    )
    (folder / "README.md").write_text("\n".join(section for section in sections if section), encoding="utf-8")


def _front_matter(facts: TrainingFacts) -> str:
    tags = "\n".join(f"  - {name}" for name in facts.shares)
    return f"---\nlanguage: en\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n{tags}\n---\n"


def _opening(card: Card, facts: TrainingFacts, size: int) -> str:
    origin = f"fine-tuned from {facts.base}" if facts.base else "trained from scratch"
    if facts.earlier:
        origin += f", in {1 + facts.earlier.runs} runs"
    heads = f"{card.num_attention_heads} / {card.num_key_value_heads}"
    tied = "shared with the output head" if card.tied_head else "separate from the output head"
    return f"""# {card.name}

A small language model: {card.parameters:,} parameters, {origin}.

| | |
|---|---|
| layers | {card.num_hidden_layers} |
| hidden size | {card.hidden_size} |
| query heads / key-value heads | {heads}, {card.head_dim} dimensions each |
| feed-forward | {card.activation}, {card.intermediate_size or "-"} wide |
| norm | {card.norm} |
| positions | {card.position_scheme} |
| vocabulary | {card.vocab_size:,} tokens, embeddings {tied} |
| context | {card.context_length or "-"} tokens |
| weights | {size:,} bytes |
| stored as | {facts.stored_as}, safetensors |
"""


def _measured(facts: TrainingFacts) -> str:
    rows = "\n".join(
        f"| {name} | {score.nats_per_token:.3f} | {score.bits_per_byte:.3f} | {score.tokens:,} | {score.bytes:,} |"
        for name, score in facts.scores.items()
    )
    if not rows:
        return ""
    return f"""## Measured

Cross-entropy of the stored weights on text that was held out. Each document is read from its start and cut at
{facts.length} tokens. The token that ends a document counts towards nats, its bytes do not count.

| text | nats per token | bits per byte | tokens | bytes |
|---|---:|---:|---:|---:|
{rows}
"""


def _heads(scores: Sequence[HeadScore], facts: TrainingFacts) -> str:
    rows = "\n".join(f"| {each.kind} | {each.layer} | {each.head} | {each.score:.3f} |" for each in best(scores))
    if not rows:
        return ""
    how = ", ".join(f"{name} {value}" for name, value in facts.heads_measured.items())
    return f"""## Heads

The best attention heads of each kind; layers and heads count from 0. A score is the mean part of its attention that a
head gives to what its kind is named after; `models/heads.py` has the definitions, `heads.json` all scores. Measured
with {how}.

| kind | layer | head | score |
|---|---:|---:|---:|
{rows}
"""


def _draft(facts: TrainingFacts) -> str:
    if facts.draft is None:
        return ""
    text, parameters, accepted = facts.draft
    return f"""## Draft

Speculative decoding at temperature 1 accepts {accepted.rate:.3f} of what its draft (folder `{DRAFT}`, {parameters:,}
weights) proposes: the mean over {accepted.positions:,} positions of {text} of what both distributions share (Leviathan
et al. 2023, arXiv 2211.17192). With {DRAFTED} tokens proposed at a time that makes
{accepted.tokens_per_pass(DRAFTED):.2f} tokens for each pass of the large model.
"""


def _data(facts: TrainingFacts) -> str:
    rows = "\n".join(
        f"| {name} | {share:.0%} | {LICENCES.get(name, 'not stated')} |" for name, share in facts.shares.items()
    )
    return f"""## Data

| data set | share of the training tokens | licence and origin |
|---|---:|---|
{rows}
"""


def _made(facts: TrainingFacts) -> str:
    optimizer = str(facts.settings.get("optimizer", "adamw"))
    changes = ", ".join(f"{name} was {before:,} until step {until:,}" for until, name, before in facts.changes)
    note = (
        f"\nSettings were changed on the way: {changes}. The schedule follows the number of steps.\n" if changes else ""
    )
    return f"""## How it was made

{facts.steps:,} steps, {facts.tokens:,} tokens, {facts.hours:.1f} hours on {facts.hardware}.
{OPTIMIZERS[optimizer]} (weight decay on matrices only), straight warm-up, then the schedule named
below, gradients clipped; `loss.json` holds the curve, `loss.png` is its picture.

```
{facts.command}
```

`DATA` is a text file, a folder of text files, or a folder with one folder per data set: `NAME/NAME_train.txt` and
`NAME/NAME_valid.txt`, each document ended by a line `<|endoftext|>`.
{note}{_earlier(facts.earlier)}"""


def _earlier(earlier: Earlier | None) -> str:
    """What went before: figures of this run alone would make the weights look cheaper than they were."""
    if earlier is None:
        return ""
    told = "\n".join(f"> {line}".rstrip() for line in (earlier.made or "Its card does not say how.").splitlines())
    seen = f"had seen {earlier.tokens:,} tokens" if earlier.tokens else "had seen an unknown number of tokens"
    return f"""
{STARTED_FROM}

The run did not start from random weights but from those of an earlier checkpoint, {earlier.name}, that {seen}. The
weights alone were taken over; the optimizer began without memory, and steps and tokens above are counted from there.
How the earlier checkpoint was made, in the words of its card:

{told}
"""


def _settings(facts: TrainingFacts) -> str:
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.settings.items())
    return f"## Hyper-parameters\n\n| name | value |\n|---|---|\n{rows}\n"


def _samples(facts: TrainingFacts) -> str:
    texts = "\n\n".join(f"Seed {seed}:\n\n> " + text.strip().replace("\n", "\n> ") for seed, text in facts.samples)
    return f"## Samples\n\nTemperature {TEMPERATURE}, not chosen by hand.\n\n{texts}\n"


def _limits(facts: TrainingFacts) -> str:
    if facts.base:
        return (
            f"## Limits\n\nWhat holds for {facts.base} holds here, too; it may have forgotten some of what that knew.\n"
        )
    return """## Limits

It knows what its data told it and nothing else. It does not follow instructions, states no facts and loses the thread
after a while. Older texts in its data carry the attitudes of their time.
"""
