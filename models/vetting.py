"""What is checked about a checkpoint directory before any of its weights is touched.

A checkpoint is somebody else's file: its config may claim anything, its headers may be huge, its index may point out
of the directory. Everything here reads text and headers only, allocates next to nothing, and answers with one sentence.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from safetensors import SafetensorError, safe_open

from models.errors import CheckpointError

MIB = 1 << 20
MOST_BYTES = {
    "config.json": MIB,
    "generation_config.json": MIB,
    "tokenizer_config.json": 8 * MIB,
    "special_tokens_map.json": 8 * MIB,
    "added_tokens.json": 8 * MIB,
    "tokenizer.json": 96 * MIB,
    "vocab.json": 64 * MIB,
    "merges.txt": 64 * MIB,
    "tokenizer.model": 64 * MIB,
    "chat_template.jinja": MIB,
    "model.safetensors.index.json": 16 * MIB,
}
"""Largest size of the text files that are read; several times that of any published checkpoint."""
MAX_HEADER_BYTES = 10 * MIB
MAX_DEPTH = 32
MAX_NUMBER = 10**12
"""No honest number in a config is larger, whatever it counts."""
COUNTS: Mapping[str, int] = {
    "vocab_size": 4_000_000,
    "hidden_size": 200_000,
    "n_embd": 200_000,
    "d_model": 200_000,
    "intermediate_size": 4_000_000,
    "ffn_dim": 4_000_000,
    "num_hidden_layers": 1_000,
    "n_layer": 1_000,
    "n_layers": 1_000,
    "num_layers": 1_000,
    "num_attention_heads": 10_000,
    "num_key_value_heads": 10_000,
    "n_head": 10_000,
    "n_heads": 10_000,
    "head_dim": 100_000,
    "num_experts": 4_096,
    "num_local_experts": 4_096,
    "n_routed_experts": 4_096,
    "decoder_layers": 1_000,
    "encoder_layers": 1_000,
    "attention_types[][]": 1_000,
    "max_position_embeddings": 100_000_000,
    "n_positions": 100_000_000,
    "max_seq_len": 100_000_000,
}
"""Largest sensible value of what a config counts, several times that of any published model."""
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
PLACE = re.compile(r"\.(\d+)(?=\.)")


@dataclass(frozen=True)
class Weights:
    """What the headers of a checkpoint's safetensors files say.

    Attributes:
        files: the files that hold the weights.
        shapes: of each stored tensor, by name.
        stored_bytes: size of the tensors as they are stored.
    """

    files: tuple[Path, ...]
    shapes: Mapping[str, tuple[int, ...]]
    stored_bytes: int

    @property
    def numbers(self) -> int:
        """Numbers stored in all."""
        return sum(math.prod(shape) for shape in self.shapes.values())


def vet_config(directory: Path) -> dict[str, Any]:
    """The config as a dictionary, its size, syntax, type and numbers checked. Raises CheckpointError."""
    if not (directory / "config.json").is_file():
        hint = "only a PEFT adapter: merge it into its base model first" if _is_adapter(directory) else ""
        raise CheckpointError(f"{directory.name} has no config.json{f', {hint}' if hint else ''}.")
    vet_sizes(directory)
    config = _parsed(directory, "config.json")
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise CheckpointError(f"The config.json of {directory.name} names no model_type.")
    if "quantization_config" in config:
        method = (config["quantization_config"] or {}).get("quant_method", "unknown method")
        raise CheckpointError(
            f"{directory.name} is stored quantised ({method}), which is not read here: use its checkpoint in float."
        )
    _vet_numbers(directory, config)
    return config


def vet_sizes(directory: Path) -> None:
    """No text file that will be read may be larger than it has any reason to be."""
    for name, most in MOST_BYTES.items():
        path = directory / name
        if path.is_file() and path.stat().st_size > most:
            size = path.stat().st_size / MIB
            raise CheckpointError(
                f"The {name} of {directory.name} has {size:,.1f} MiB, more than the {most // MIB} MiB that are read."
            )


def _is_adapter(directory: Path) -> bool:
    return (directory / "adapter_config.json").is_file()


def _parsed(directory: Path, name: str) -> Any:
    try:
        return json.loads((directory / name).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"The {name} of {directory.name} is not valid JSON.") from error


def _vet_numbers(directory: Path, config: Mapping[str, Any]) -> None:
    where = f"The config.json of {directory.name}"
    for key, value in _numbers(config):
        if isinstance(value, float):
            if math.isnan(value):
                raise CheckpointError(f"{where} has a {key} that is not a number.")
            continue
        if abs(value) > MAX_NUMBER:
            raise CheckpointError(f"{where} has an impossible {key}: a number of {len(str(abs(value)))} digits.")
        most = COUNTS.get(key)
        if most is not None and not 0 < value <= most:
            raise CheckpointError(f"{where} has an impossible {key}: {value:,} is not between 1 and {most:,}.")


def _numbers(config: Any, key: str = "", depth: int = 0) -> Iterator[tuple[str, int | float]]:
    """Every number in a config with the name that it stands under, however deep."""
    if depth > MAX_DEPTH:
        raise CheckpointError(f"The config is nested more than {MAX_DEPTH} levels deep.")
    if isinstance(config, Mapping):
        for name, value in config.items():
            yield from _numbers(value, name, depth + 1)
    elif isinstance(config, list):
        for value in config:
            yield from _numbers(value, f"{key}[]", depth + 1)
    elif isinstance(config, int | float) and not isinstance(config, bool):
        yield key, config


def vet_weights(directory: Path) -> Weights:
    """What the safetensors files hold, from their headers alone. Raises CheckpointError."""
    if _is_adapter(directory):
        raise CheckpointError(f"{directory.name} holds a PEFT adapter: merge it into its base model first.")
    files = _weight_files(directory)
    shapes: dict[str, tuple[int, ...]] = {}
    stored = 0
    for path in files:
        _vet_header_size(path, directory)
        try:
            with safe_open(path, framework="np") as tensors:
                for name in tensors.offset_keys():
                    shapes[name] = tuple(tensors.get_slice(name).get_shape())
        except SafetensorError as error:
            raise CheckpointError(f"{path.name} of {directory.name} is damaged or not a safetensors file.") from error
        stored += path.stat().st_size
    if not shapes:
        raise CheckpointError(f"The safetensors files of {directory.name} hold 0 tensors.")
    return Weights(files, shapes, stored)


def _weight_files(directory: Path) -> tuple[Path, ...]:
    """The one file, or those that the index names; they must lie in the directory itself."""
    single = directory / "model.safetensors"
    if single.is_file():
        return (single,)
    if not (directory / "model.safetensors.index.json").is_file():
        raise CheckpointError(f"{directory.name} has no .safetensors file; other weight formats are not read.")
    index = _parsed(directory, "model.safetensors.index.json")
    named = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(named, dict) or not named or not all(isinstance(each, str) for each in named.values()):
        raise CheckpointError(f"The model.safetensors.index.json of {directory.name} names no files.")
    for name in sorted(set(named.values())):
        if PurePath(name).name != name or not name.endswith(".safetensors"):
            raise CheckpointError(f"The index of {directory.name} names {name[:60]!r}, no safetensors file beside it.")
        if not (directory / name).is_file():
            raise CheckpointError(f"{directory.name} lacks {name}, which its index names.")
    return tuple(directory / name for name in sorted(set(named.values())))


def _vet_header_size(path: Path, directory: Path) -> None:
    with path.open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
    if header > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{path.name} of {directory.name} has a header of {header / MIB:,.1f} MiB, more than the "
            f"{MAX_HEADER_BYTES // MIB} MiB that are read."
        )


def vet_claims(directory: Path, config: Mapping[str, Any], weights: Weights) -> None:
    """The config's size against the stored tensors, before anything of that size is built. Raises CheckpointError.

    A vocabulary or a number of layers that the files cannot hold is refused here; exact counts are compared later.
    """
    text = config.get("text_config")
    told = {**config, **(text if isinstance(text, dict) else {})}
    layers = next((told[key] for key in LAYERS if isinstance(told.get(key), int)), 0)
    stored = _stored_layers(weights)
    if layers > max(stored, 1):
        raise CheckpointError(f"The config of {directory.name} describes {layers:,} layers, its files hold {stored:,}.")
    vocabulary, largest = told.get("vocab_size"), max(max(shape, default=0) for shape in weights.shapes.values())
    if isinstance(vocabulary, int) and vocabulary > largest:
        raise CheckpointError(
            f"The config of {directory.name} describes {vocabulary:,} tokens, but no stored tensor has more than "
            f"{largest:,} rows."
        )


def _stored_layers(weights: Weights) -> int:
    """The most different numbers that stand in one place of the tensors' names: layers, or experts if they are more."""
    found: dict[str, set[str]] = {}
    for name in weights.shapes:
        for place in PLACE.finditer(name):
            found.setdefault(PLACE.sub(".#", name[: place.start()]), set()).add(place[1])
    return max((len(each) for each in found.values()), default=0)


def vet_count(directory: Path, expected: int, weights: Weights) -> None:
    """The parameters of the model that the config describes against the numbers stored. Raises CheckpointError."""
    if expected > 1.05 * weights.numbers:
        raise CheckpointError(
            f"The config of {directory.name} describes {expected:,} parameters, "
            f"its files hold only {weights.numbers:,}."
        )


def vet_report(directory: Path, report: Mapping[str, Any]) -> None:
    """What transformers says about a load: no tensor may be missing, left over or of another shape."""
    for kind, words in (("missing_keys", "lacks"), ("unexpected_keys", "has unexpected")):
        names = sorted(report.get(kind) or ())
        if names:
            more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
            raise CheckpointError(f"{directory.name} {words} weights for this type of model: {names[0]}{more}.")
    if report.get("mismatched_keys"):
        first = sorted(str(key) for key in report["mismatched_keys"])[0]
        raise CheckpointError(f"A tensor of {directory.name} has another shape than its config says: {first}.")
