"""Where training text comes from: data sets in a folder, or anybody's own text files.

A folder of data sets holds one folder per data set with NAME/NAME_train.txt and, where there are any, NAME_valid.txt
and NAME_test.txt. A plain text file, or a folder with .txt files directly in it, is one data set named after it. Files
may be gzipped (.txt.gz). Documents end at lines that hold only `<|endoftext|>`; a file without one is one document.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from models.data import documents

HELD_OUT = 20  # one document in this many, where no held-out file says otherwise: 5 %
PIECE = 1000  # characters, at least, of the pieces that the end of a long text is held out in
ENDINGS = (".txt", ".txt.gz")


@dataclass(frozen=True)
class DataSet:
    """One named data set: the files of its splits."""

    name: str
    files: dict[str, tuple[Path, ...]]  # "train", and "valid" and "test" where there are such files

    def texts(self, split: str) -> list[str]:
        """Documents of "train", "valid" or "test"; what is not there is an empty list.

        Without a file of held-out text, "valid" is 5 % of the training text, always the same, and "train" the rest.
        """
        if split == "test" or "valid" in self.files:
            return self._read(split)
        kept, held_out = split_documents(self._read("train"))
        return kept if split == "train" else held_out

    def _read(self, split: str) -> list[str]:
        return [text for path in self.files.get(split, ()) for text in documents(path)]


def data_sets(data: Path) -> dict[str, DataSet]:
    """Every data set that a path holds, by name.

    Raises FileNotFoundError with one sentence where there is nothing to train on.
    """
    if data.is_file():
        return {_stem(data): DataSet(_stem(data), {"train": (data,)})}
    if not data.is_dir():
        raise FileNotFoundError(f"There is no file or folder {data}.")
    own = tuple(sorted(path for path in data.iterdir() if path.name.endswith(ENDINGS)))
    if own:
        return {data.resolve().name: DataSet(data.resolve().name, {"train": own})}
    found = {folder.name: _in_folder(folder) for folder in sorted(data.iterdir()) if folder.is_dir()}
    known = {name: data_set for name, data_set in found.items() if data_set.files}
    if not known:
        raise FileNotFoundError(f"{data} holds no text file and no folder NAME with a file NAME_train.txt.")
    return known


def chosen(data: Path, names: Sequence[str]) -> list[DataSet]:
    """The data sets of these names. Raises FileNotFoundError, naming the file, where one has no training text."""
    known = data_sets(data)
    for name in names:
        if name not in known or "train" not in known[name].files:
            raise FileNotFoundError(f"Data set {name} has no file {name}_train.txt in {data / name}.")
    return [known[name] for name in names]


def held_out_texts(sets: Sequence[DataSet], most: int | None = None) -> dict[str, list[str]]:
    """Label NAME_valid or NAME_test -> held-out documents, the first `most` of each; labels without text are left out.

    Order: data set by data set.
    """
    found = {f"{each.name}_{split}": each.texts(split)[:most] for each in sets for split in ("valid", "test")}
    return {label: texts for label, texts in found.items() if texts}


def documents_by_label(data: Path, label: str) -> list[str]:
    """The documents that a label of `held_out_texts` stands for; none where they are not here."""
    name, _, split = label.rpartition("_")
    known = data_sets(data)
    return known[name].texts(split) if name in known else []


def split_documents(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Documents to train on, and about 5 % to hold out, chosen by their order alone.

    Every twentieth document is held out. A text of fewer documents loses its end, from a paragraph border on, in pieces
    of whole paragraphs.
    """
    if len(texts) >= HELD_OUT:
        kept = [text for number, text in enumerate(texts, 1) if number % HELD_OUT]
        return kept, list(texts[HELD_OUT - 1 :: HELD_OUT])
    kept, whole = list(texts[:-1]), texts[-1] if texts else ""
    cut = len(whole) - min(sum(map(len, texts)) // HELD_OUT, len(whole) // 2)
    border = next((at for mark in ("\n\n", "\n", " ") if (at := whole.find(mark, cut)) >= 0), cut)
    return [*kept, whole[:border].strip()], _pieces(whole[border:])


def _pieces(text: str) -> list[str]:
    pieces = [""]
    for paragraph in text.split("\n\n"):
        if len(pieces[-1]) >= PIECE:
            pieces.append("")
        pieces[-1] += paragraph + "\n\n"
    return [piece.strip() for piece in pieces if piece.strip()]


def _in_folder(folder: Path) -> DataSet:
    """What a folder of a data set offers; without files of the expected names it offers nothing."""
    files = {}
    for split in ("train", "valid", "test"):
        paths = (folder / f"{folder.name}_{split}{ending}" for ending in ENDINGS)
        there = tuple(path for path in paths if path.is_file())[:1]
        if there:
            files[split] = there
    return DataSet(folder.name, files)


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".txt")
