"""The card against the weights: a true card holds, a false one is found out, and the shipped one is checked."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from models import load
from models.corpora import documents_by_label
from models.evaluate import main, stated_figures, table_rows
from models.evaluation import score
from models.head_scores import KINDS
from models.heads import main as measure_heads


@pytest.fixture
def checkpoint(toy: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(toy / "out", tmp_path / "toy"))


@pytest.fixture
def verdicts(data: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, str]]]:
    """Evaluates a checkpoint: exit status, and figure -> verdict."""

    def ask(folder: Path, *options: str) -> tuple[int, dict[str, str]]:
        with pytest.raises(SystemExit) as caught:
            main([str(folder), f"--data={data}", "--device=cpu", *options])
        lines = (re.split(r"\s{2,}", line.strip()) for line in capsys.readouterr().out.splitlines())
        return caught.value.code, {parts[0]: parts[-1] for parts in lines if len(parts) > 1}

    return ask


def test_a_card_that_was_written_by_its_run_holds(checkpoint: Path, verdicts: Callable) -> None:
    status, found = verdicts(checkpoint)
    assert status == 0
    assert set(found.values()) == {"yes"}
    for name in ("parameters", "weights, bytes", "toy_valid: bits per byte", "toy_valid: nats per token"):
        assert name in found
    assert all(sum(name.startswith(f"{kind}: head") for name in found) == 3 for kind in KINDS)


@pytest.mark.parametrize(
    ("pattern", "other", "name"),
    [
        (r"(\| toy_valid \| [\d.]+ \| )[\d.]+", r"\g<1>0.111", "toy_valid: bits per byte"),
        (r"[\d,]+ parameters", "999 parameters", "parameters"),
        (r"\| layers \| \d+", "| layers | 9", "layers"),
        (r"\| weights \| [\d,]+", "| weights | 5", "weights, bytes"),
    ],
)
def test_a_false_figure_is_found_out(checkpoint: Path, verdicts: Callable, pattern: str, other: str, name: str) -> None:
    readme = checkpoint / "README.md"
    readme.write_text(re.sub(pattern, other, readme.read_text(encoding="utf-8")), encoding="utf-8")
    status, found = verdicts(checkpoint)
    assert status == 1
    assert [figure for figure, verdict in found.items() if verdict == "NO"] == [name]


def test_head_scores_that_no_longer_hold_are_found_out(checkpoint: Path, verdicts: Callable) -> None:
    heads = checkpoint / "heads.json"
    text = heads.read_text(encoding="utf-8")
    heads.write_text(re.sub(r'("layer": 1, "head": 2, "score": )[\d.]+', r"\g<1>0.99", text, count=1), encoding="utf-8")
    status, found = verdicts(checkpoint)
    assert status == 1
    assert [name for name, verdict in found.items() if verdict == "NO"] == [
        "heads.json, previous_token: head 2 of layer 1"
    ]


def test_heads_measured_on_the_built_in_passage_are_measured_on_it_again(checkpoint: Path, verdicts: Callable) -> None:
    measure_heads([str(checkpoint)])
    assert not any(name.startswith("heads.json") for name in verdicts(checkpoint)[1])


def test_a_figure_about_text_that_is_not_here_cannot_be_vouched_for(checkpoint: Path, verdicts: Callable) -> None:
    readme = checkpoint / "README.md"
    text = readme.read_text(encoding="utf-8").replace("| toy_valid |", "| poems_valid |")
    readme.write_text(text, encoding="utf-8")
    status, found = verdicts(checkpoint)
    assert status == 1
    assert found["poems_valid: bits per byte"] == "not recomputed"


def test_a_draft_in_the_checkpoint_is_measured(checkpoint: Path, verdicts: Callable) -> None:
    shutil.copytree(checkpoint, checkpoint / "draft")
    assert verdicts(checkpoint)[1]["draft, acceptance"] == "not on the card"
    readme = checkpoint / "README.md"
    told = readme.read_text(encoding="utf-8") + "\nIt accepts 1.000 of what its draft proposes.\n"
    readme.write_text(told, encoding="utf-8")
    assert verdicts(checkpoint)[1]["draft, acceptance"] == "yes"


def test_tables_end_where_their_lines_end() -> None:
    text = "x\n| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n\n| 5 | 6 |\n"
    assert list(table_rows(text, "| a | b")) == [["1", "2"], ["3", "4"]]
    assert list(table_rows(text, "| c")) == []


def test_the_headline_of_the_shipped_card_is_what_the_shipped_model_scores(shared: Path) -> None:
    loaded = load("storyteller", device="cpu", dtype="float32")
    stated = stated_figures(loaded.card.readme)["tinystories_test: bits per byte"]
    texts = documents_by_label(shared / "data", "tinystories_test")
    found = score(loaded.model, loaded.tokenizer, texts[:40], loaded.card.context_length).bits_per_byte
    assert found == pytest.approx(stated, abs=0.04)  # 40 of 500 documents: `python -m models.evaluate` reads them all
