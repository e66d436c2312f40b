"""Recompute every figure on a checkpoint's card: `python -m models.evaluate [DIR] --data ../shared/data`.

Says for each figure whether it agrees with what the weights and the texts give now. The exit status is 1 when one does
not or cannot be recomputed here. What can be measured but is not on the card is printed as well.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from models.card import DRAFT, draft_text, stored_bytes
from models.checkpoints import Loaded, load
from models.corpora import data_sets, documents_by_label
from models.errors import CheckpointError
from models.evaluation import score
from models.head_scores import HeadScore, best, read_measured
from models.heads import PASSAGE, Inputs, measure
from models.speculation import acceptance

DATA = Path("../shared/data")
ALLOWANCES = {"nats per token": 0.002, "bits per byte": 0.001, "head": 0.002, "acceptance": 0.002}  # else: none
# How the card states what is not in one of the tables of measurements: (name of the figure, pattern with the number).
STATED = (
    ("parameters", r"([\d,]+) parameters"),
    ("layers", r"\| layers \| ([\d,]+) \|"),
    ("hidden size", r"\| hidden size \| ([\d,]+) \|"),
    ("query heads", r"\| query heads / key-value heads \| (\d+) /"),
    ("key-value heads", r"\| query heads / key-value heads \| \d+ / (\d+),"),
    ("head size", r"\| query heads / key-value heads \| .*, (\d+) dimensions each \|"),
    ("feed-forward size", r"\| feed-forward \| .*, ([\d,]+) wide \|"),
    ("vocabulary", r"\| vocabulary \| ([\d,]+) "),
    ("context", r"\| context \| ([\d,]+) tokens \|"),
    ("weights, bytes", r"\| weights \| ([\d,]+) bytes \|"),
    ("draft, acceptance", r"accepts ([\d.]+) of what its draft"),
)
MEASURED = ("nats per token", "bits per byte", "tokens", "bytes")


@dataclass(frozen=True)
class Figure:
    """One figure: what the card states and what was found, either of them None where there is no such number."""

    name: str
    stated: float | None
    found: float | None

    @property
    def verdict(self) -> str:
        """Whether the two agree, in words; "NO" and "not recomputed" make a card untrue."""
        if self.stated is None:
            return "not on the card"
        if self.found is None:
            return "not recomputed"
        allowance = next((value for words, value in ALLOWANCES.items() if words in self.name), 0.0)
        return "yes" if abs(self.stated - self.found) <= allowance else "NO"


def table_rows(readme: str, header: str) -> Iterator[list[str]]:
    """Cells of the rows of a Markdown table whose header line begins with `header`."""
    lines = iter(readme.splitlines())
    if any(line.startswith(header) for line in lines):
        next(lines)  # the line of dashes
        for line in lines:
            if not line.startswith("|"):
                return
            yield [cell.strip() for cell in line.strip("|").split("|")]


def stated_figures(readme: str) -> dict[str, float]:
    """Every figure on a card by name."""
    found = ((name, re.search(pattern, readme)) for name, pattern in STATED)
    figures = {name: _number(match[1]) for name, match in found if match}
    for text, *cells in table_rows(readme, "| text | nats per token"):
        figures |= {f"{text}: {name}": _number(cell) for name, cell in zip(MEASURED, cells, strict=True)}
    for kind, layer, head, value in table_rows(readme, "| kind | layer"):
        figures[_head_name(kind, layer, head)] = _number(value)
    return figures


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _head_name(kind: str, layer: object, head: object) -> str:
    return f"{kind}: head {head} of layer {layer}"


def shape_figures(loaded: Loaded) -> dict[str, float]:
    """Counts and sizes of a loaded checkpoint."""
    card = loaded.card
    assert card.directory is not None
    return {
        "parameters": card.parameters,
        "layers": card.num_hidden_layers,
        "hidden size": card.hidden_size,
        "query heads": card.num_attention_heads,
        "key-value heads": card.num_key_value_heads,
        "head size": card.head_dim,
        "feed-forward size": card.intermediate_size or 0,
        "vocabulary": card.vocab_size,
        "context": card.context_length or 0,
        "weights, bytes": stored_bytes(card.directory),
    }


def text_figures(loaded: Loaded, texts: Mapping[str, list[str]], length: int) -> Iterator[tuple[str, float]]:
    """The four measurements of every text, in the order of the card's table, each text as soon as it is read."""
    for label, some in texts.items():
        result = score(loaded.model, loaded.tokenizer, some, length)
        values = (round(result.nats_per_token, 3), round(result.bits_per_byte, 3), result.tokens, result.bytes)
        yield from ((f"{label}: {name}", value) for name, value in zip(MEASURED, values, strict=True))


def measured_heads(loaded: Loaded, data: Path) -> tuple[HeadScore, ...]:
    """Head scores, measured again as heads.json says that they were; nothing where its text is not here."""
    assert loaded.card.directory is not None
    inputs = Inputs(**read_measured(loaded.card.directory))
    texts = [PASSAGE] if inputs.text == Inputs.text else documents_by_label(data, inputs.text)
    return measure(loaded.model, loaded.tokenizer, texts, inputs) if texts else ()


def head_figures(loaded: Loaded, data: Path, on_card: Sequence[str]) -> list[Figure]:
    """Every score of heads.json that no longer holds, and of those that do the ones on the card or best of their kind.

    `on_card`: names of the heads on the card.
    """
    stored = {_head_name(each.kind, each.layer, each.head): each.score for each in loaded.card.heads}
    scores = measured_heads(loaded, data)
    found = {_head_name(each.kind, each.layer, each.head): each.score for each in scores}
    shown = {*on_card, *(_head_name(each.kind, each.layer, each.head) for each in best(scores))}
    figures = [Figure(f"heads.json, {name}", value, found.get(name)) for name, value in stored.items()]
    wrong = [figure for figure in figures if figure.verdict != "yes"]
    return wrong + [Figure(name, None, found.get(name)) for name in sorted(shown)]


def evaluate(loaded: Loaded, data: Path, draft: Path | None) -> Iterator[Figure]:
    """Figure after figure, in the order of the card, as they are computed."""
    stated = stated_figures(loaded.card.readme)
    cut = re.search(r"cut at\s+([\d,]+)\s+tokens", loaded.card.readme)
    length = int(_number(cut[1])) if cut else loaded.card.context_length or 512
    labels = [name.removesuffix(f": {MEASURED[0]}") for name in stated if name.endswith(MEASURED[0])]
    texts = {label: some for label in labels if (some := documents_by_label(data, label))}
    yielded = set()
    for name, found in shape_figures(loaded).items():
        yielded.add(name)
        yield Figure(name, stated.get(name), found)
    for name, found in text_figures(loaded, texts, length):
        yielded.add(name)
        yield Figure(name, stated.get(name), found)
    for figure in head_figures(loaded, data, [name for name in stated if ": head " in name]):
        yielded.add(figure.name)
        yield Figure(figure.name, stated.get(figure.name, figure.stated), figure.found)
    if draft is not None and texts:
        label = draft_text(texts)
        other = load(draft, loaded.model.device, loaded.model.dtype)
        rate = acceptance(loaded.model, other.model, loaded.tokenizer, texts[label], length).rate
        yielded.add("draft, acceptance")
        yield Figure("draft, acceptance", stated.get("draft, acceptance"), round(rate, 3))
    yield from (Figure(name, value, None) for name, value in stated.items() if name not in yielded)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line a figure; exit with 1 when the card does not hold."""
    options = argparse.ArgumentParser(
        prog="python -m models.evaluate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("checkpoint", nargs="?", default="storyteller", help="directory or shipped name")
    options.add_argument("--data", type=Path, default=DATA, help=f"where the texts are (default: {DATA})")
    options.add_argument("--device", help="torch device (default: the first GPU, else the CPU)")
    options.add_argument("--draft", type=Path, help="draft model (default: the folder draft in the checkpoint, if any)")
    args = options.parse_args(arguments)
    holds = True
    try:
        data_sets(args.data)
        loaded = load(args.checkpoint, args.device, "float32")
        assert loaded.card.directory is not None
        draft = args.draft or loaded.card.directory / DRAFT
        for figure in evaluate(loaded, args.data, draft if draft.is_dir() else None):
            stated, found = (
                "-" if value is None else f"{round(value, 4):,}" for value in (figure.stated, figure.found)
            )
            print(f"{figure.name:44} {stated:>14} {found:>14}  {figure.verdict}", flush=True)
            holds = holds and figure.verdict in ("yes", "not on the card")
    except (CheckpointError, ValueError, OSError) as error:
        options.error(str(error))
    print("The card holds." if holds else "The card does not hold.")
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
