"""The model card of a trained checkpoint: a README with the front matter that model hubs read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from models.data import LICENCES
from models.decoder import DecoderConfig
from models.evaluation import Score


@dataclass(frozen=True)
class TrainingFacts:
    """What is known at the end of a training run and cannot be read from the weights."""

    command: str
    shares: Mapping[str, float]  # data set -> share of the training tokens
    seed: int
    steps: int
    plans: Sequence[Sequence[int]]  # (until step, planned steps), where the number of steps was changed on the way
    tokens: int
    hours: float
    hardware: str
    stored_as: str
    scores: Mapping[str, Score]  # held-out text -> score of the stored weights
    samples: Mapping[str, str]  # prompt -> text


def write_card(folder: Path, config: DecoderConfig, parameters: int, facts: TrainingFacts) -> None:
    """Write README.md into the checkpoint's folder."""
    sections = (
        _front_matter(facts),
        _opening(folder.name, config, parameters, facts),
        _measured(facts, config.max_position_embeddings),
        _data(facts),
        _made(facts),
        _samples(facts),
        _limits(),
    )
    (folder / "README.md").write_text("\n".join(sections), encoding="utf-8")


def _front_matter(facts: TrainingFacts) -> str:
    tags = "\n".join(f"  - {name}" for name in facts.shares)
    return f"---\nlanguage: en\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n{tags}\n---\n"


def _opening(name: str, config: DecoderConfig, parameters: int, facts: TrainingFacts) -> str:
    heads, shared, _ = config.heads
    tied = "shared with the output head" if config.tie_word_embeddings else "separate from the output head"
    return f"""# {name}

A small language model that writes simple English stories: {parameters:,} parameters, trained from scratch.

| | |
|---|---|
| layers | {config.num_hidden_layers} |
| hidden size | {config.hidden_size} |
| query heads / key-value heads | {heads} / {shared}, {config.head_size} dimensions each |
| feed-forward | {config.feed_forward}, {config.hidden_act}, {config.inner_size} wide |
| norm | {config.norm}, before each sub-layer |
| positions | {config.position}, theta {config.rope_theta or "-"} |
| vocabulary | {config.vocab_size:,} byte-level BPE tokens, embeddings {tied} |
| context | {config.max_position_embeddings} tokens |
| stored as | {facts.stored_as}, safetensors |
"""


def _measured(facts: TrainingFacts, context: int) -> str:
    rows = "\n".join(
        f"| {name} | {score.nats_per_token:.3f} | {score.bits_per_byte:.3f} | {score.tokens:,} | {score.bytes:,} |"
        for name, score in facts.scores.items()
    )
    return f"""## Measured

Cross-entropy of the stored weights on text that was held out. Each document is read from its start and cut at
{context} tokens. The token that ends a document counts towards nats, its bytes do not count.

| text | nats per token | bits per byte | tokens | bytes |
|---|---:|---:|---:|---:|
{rows}
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
    changes = ", ".join(f"{planned:,} until step {until:,}" for until, planned in facts.plans)
    note = f"\nThe number of steps, which the cosine follows, was changed on the way: {changes}.\n" if changes else ""
    return f"""## How it was made

{facts.steps:,} steps, {facts.tokens:,} tokens, {facts.hours:.1f} hours on {facts.hardware}, seed {facts.seed}. AdamW
(weight decay on matrices only), straight warm-up, cosine decay, gradients clipped; `loss.json` holds the curve.

```
{facts.command}
```

`DATA` is a folder with one folder per data set: `NAME/NAME_train.txt` and `NAME/NAME_valid.txt`, each document ended by
a line `<|endoftext|>`.
{note}"""


def _samples(facts: TrainingFacts) -> str:
    texts = "\n\n".join("> " + text.strip().replace("\n", "\n> ") for text in facts.samples.values())
    return f"""## Samples

Temperature 0.7, not chosen by hand:

{texts}
"""


def _limits() -> str:
    return """## Limits

It knows short, simple stories and nothing else. It does not follow instructions, states no facts and loses the thread
after a few sentences. The older texts in its data carry the attitudes of their time.
"""
