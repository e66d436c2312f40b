"""Find, vet and load a checkpoint: a shipped name, a local directory or a hub id, `org/name@revision` included.

Only safetensors are read and no code that comes with a checkpoint is run. What can be wrong with one is checked before
any weight is allocated (`models.vetting`), and said in one sentence.
"""

import re
import tempfile
import threading
import weakref
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from models import vetting
from models.capability import Card, read_card
from models.devices import choose_device, choose_dtype, vet_memory
from models.errors import CheckpointError, LoadCancelledError
from models.layout import arrange
from models.progress import Progress, Told, listening, nobody

SHIPPED = {"storyteller": Path(__file__).parent / "storyteller"}
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?(@[\w./-]+)?")
HUB_TEXT = ["*.json", "*.txt", "*.model", "*.jinja", "README.md"]
HUB_FILES = [*HUB_TEXT, "*.safetensors"]
_one_at_a_time = threading.Lock()  # transformers' progress bars are the process's, not the thread's

DeviceMap = str | dict[str, int | str | torch.device]


@dataclass(frozen=True)
class Loaded:
    """A model ready to run, its tokenizer and its card."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    card: Card

    @cached_property
    def pieces(self) -> dict[int, str]:
        """Texts of single tokens that were worked out so far, for whoever shows them."""
        return {}

    @property
    def device(self) -> torch.device:
        """Where token ids must be: the device of the first layer, also where parts are kept on disk."""
        hook = getattr(self.model, "_hf_hook", None)
        where = getattr(hook, "execution_device", None)
        return self.model.device if where is None else torch.device(where)


def shipped() -> tuple[str, ...]:
    """Names that `load` knows without a path."""
    return tuple(SHIPPED)


def load(
    name: str | Path = "storyteller",
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    *,
    device_map: DeviceMap | None = None,
    told: Told = nobody,
) -> Loaded:
    """Load a checkpoint for inference (eval mode, no gradients).

    Args:
        name: a shipped name, a local directory, or a hub id, with `@revision` if it is not the main one.
        device: a torch device; None or "auto" takes the first CUDA device, else the CPU.
        dtype: float32, bfloat16 or float16; None or "auto" takes bfloat16 on CUDA, else float32.
        device_map: spreads a model over several devices with accelerate ("auto", or which part goes where); then
            `device` counts only for the default dtype.
        told: hears of the progress; raising in it ends the loading.

    Raises:
        CheckpointError: one sentence, when the checkpoint, the device or the dtype cannot be used.
    """
    where = choose_device(device)
    kind = choose_dtype(dtype, where)
    directory = _find(str(name), told)
    told(Progress("Checking the files"))
    told_config = vetting.vet_config(directory)
    weights = vetting.vet_weights(directory)
    vetting.vet_claims(directory, told_config, weights)
    config = _read_config(directory)
    needed = _vet_size(directory, config, weights, kind)
    if device_map is None:
        vet_memory(directory.name, needed, where)
    told(Progress("Reading the tokenizer"))
    tokenizer = _read_tokenizer(directory)
    model = _read_model(directory, config, kind, device_map, told).eval().requires_grad_(False)
    if device_map is None:
        nn.Module.to(model, where)
        arrange(model)
    _vet_vocabulary(directory, tokenizer, model)
    return Loaded(model, tokenizer, read_card(label(name, directory), model, tokenizer, directory))


def label(name: str | Path, directory: Path) -> str:
    """What a checkpoint is called: a hub id's last part with its revision, a directory's own name."""
    return directory.name if directory == Path(str(name)).expanduser() else Path(str(name)).name


def _find(name: str, told: Told) -> Path:
    if name in SHIPPED:
        return SHIPPED[name]
    path = Path(name).expanduser()
    if name and path.is_dir():
        return path
    if name and path.exists():
        raise CheckpointError(f"{name!r} is a file; name the directory that holds config.json and the weights.")
    if not HUB_ID.fullmatch(name) or name.startswith("."):
        raise CheckpointError(f"There is no directory {name!r}.")
    return _download(name, told)


def _download(name: str, told: Told) -> Path:
    """The snapshot of a hub checkpoint: its text files first, and its weights only if those pass."""
    from huggingface_hub import snapshot_download  # only needed for models that are not here

    repository, _, revision = name.partition("@")
    told(Progress(f"Looking for {name}"))
    options: dict[str, Any] = {"revision": revision or None}
    try:
        vetting.vet_config(Path(snapshot_download(repository, allow_patterns=HUB_TEXT, **options)))
        told(Progress(f"Fetching the weights of {name}"))
        return Path(snapshot_download(repository, allow_patterns=HUB_FILES, **options))
    except CheckpointError:
        raise
    except Exception as error:
        what = f"called {repository!r}" + (f" with the revision {revision!r}" if revision else "")
        reason = f"There is no shipped model, directory or reachable hub checkpoint {what}"
        raise CheckpointError(f"{reason}; shipped: {', '.join(SHIPPED)}.") from error


def _first_line(error: Exception) -> str:
    """The reason as one sentence; a heading that ends with a colon takes the next line along."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    told = " ".join(lines[: 1 + lines[0].endswith(":")])
    return told[:300].rstrip(".") + "."


def _read_config(directory: Path) -> Any:
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # every config class has checks of its own
        if "trust_remote_code" in str(error):
            raise CheckpointError(f"{directory.name} needs code of its own, which is not run here.") from error
        raise CheckpointError(f"The config.json of {directory.name} cannot be used: {_first_line(error)}") from error
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise CheckpointError(f"{directory.name} is a {config.model_type!r} model, which does not generate text.")
    config._attn_implementation = None  # a checkpoint does not choose the attention function
    return config


def _vet_size(directory: Path, config: Any, weights: vetting.Weights, dtype: torch.dtype) -> int:
    """Bytes that the model will take, from a model without memory; its parameters must be there in the files."""
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except Exception as error:  # numbers that do not go together
        raise CheckpointError(f"The config.json of {directory.name} cannot be used: {_first_line(error)}") from error
    expected = sum(parameter.numel() for parameter in model.parameters())
    vetting.vet_count(directory, expected, weights)
    return expected * dtype.itemsize + sum(buffer.nbytes for buffer in model.buffers())


def _read_model(
    directory: Path, config: Any, dtype: torch.dtype, device_map: DeviceMap | None, told: Told
) -> PreTrainedModel:
    spread: dict[str, Any] = {}
    if device_map is not None:
        offloaded = tempfile.TemporaryDirectory(prefix="playground-offload-")
        spread = {"device_map": device_map, "offload_folder": offloaded.name}
    try:
        with _one_at_a_time, listening(told):
            both: Any = AutoModelForCausalLM.from_pretrained(
                directory,
                config=config,
                dtype=dtype,
                trust_remote_code=False,
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
                **spread,
            )
    except LoadCancelledError:
        raise
    except Exception as error:  # a damaged file, a device that is full, ...
        raise CheckpointError(f"The weights of {directory.name} cannot be loaded: {_first_line(error)}") from error
    model, report = both
    vetting.vet_report(directory, report)
    if device_map is not None:
        weakref.finalize(model, offloaded.cleanup)
    return model


def _read_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # every tokenizer class raises its own
        raise CheckpointError(f"{directory.name} has no tokenizer that can be loaded.") from error


def _vet_vocabulary(directory: Path, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    embeddings: Any = model.get_input_embeddings()
    rows = embeddings.weight.shape[0]
    if len(tokenizer) > rows:
        raise CheckpointError(
            f"The tokenizer of {directory.name} has {len(tokenizer):,} tokens, but the model knows only {rows:,}."
        )
