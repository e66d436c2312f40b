"""Data sets in folders, one's own text files, and the part of them that is held out."""

import gzip
from pathlib import Path

import pytest

from models.corpora import chosen, data_sets, documents_by_label, held_out_texts, split_documents
from models.data import END


def write(path: Path, *texts: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{text}\n{END}\n" for text in texts), encoding="utf-8")
    return path


def test_a_folder_of_data_sets_is_read_by_their_names(tmp_path: Path) -> None:
    write(tmp_path / "tales" / "tales_train.txt", "one", "two")
    write(tmp_path / "tales" / "tales_valid.txt", "three")
    write(tmp_path / "tales" / "tales_test.txt", "four")
    (tmp_path / "empty").mkdir()
    (tales,) = chosen(tmp_path, ["tales"])
    assert list(data_sets(tmp_path)) == ["tales"]
    assert tales.texts("train") == ["one", "two"]
    assert held_out_texts([tales]) == {"tales_valid": ["three"], "tales_test": ["four"]}
    assert documents_by_label(tmp_path, "tales_test") == ["four"]
    assert documents_by_label(tmp_path, "poems_test") == []


def test_a_text_file_is_a_data_set_named_after_it(tmp_path: Path) -> None:
    path = write(tmp_path / "my diary.txt", *(f"day {number}" for number in range(40)))
    diary = data_sets(path)["my diary"]
    assert diary.texts("valid") == ["day 19", "day 39"]
    assert len(diary.texts("train")) == 38
    assert diary.texts("test") == []
    assert not set(diary.texts("train")) & set(diary.texts("valid"))


def test_a_folder_of_text_files_is_one_data_set_packed_or_not(tmp_path: Path) -> None:
    for number in range(21):
        (tmp_path / "notes").mkdir(exist_ok=True)
        (tmp_path / "notes" / f"{number:02}.txt").write_text(f"note {number}\r\n", encoding="utf-8")
    (tmp_path / "notes" / "21.txt.gz").write_bytes(gzip.compress(b"note 21"))
    (notes,) = data_sets(tmp_path / "notes").values()
    assert notes.name == "notes"
    assert notes.texts("valid") == ["note 19"]
    assert notes.texts("train")[-1] == "note 21"


def test_one_long_text_loses_its_end_from_a_paragraph_border_on() -> None:
    paragraphs = [f"{number:03} " + "word " * 40 for number in range(200)]
    kept, held_out = split_documents(["\n\n".join(paragraphs)])
    together = "\n\n".join([*kept, *held_out])
    assert [part.strip() for part in together.split("\n\n")] == [part.strip() for part in paragraphs]
    assert 0.04 < sum(map(len, held_out)) / len(together) <= 0.05
    assert all(piece[:3].isdigit() for piece in held_out)
    assert len(held_out) > 1


def test_text_without_any_border_is_still_split() -> None:
    kept, held_out = split_documents(["x" * 1000])
    assert (len(kept[0]), [len(piece) for piece in held_out]) == (950, [50])


def test_what_is_not_there_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="There is no file or folder"):
        data_sets(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="holds no text file and no folder"):
        data_sets(tmp_path)
    write(tmp_path / "tales" / "tales_valid.txt", "three")
    with pytest.raises(FileNotFoundError, match=r"Data set tales has no file tales_train\.txt"):
        chosen(tmp_path, ["tales"])
