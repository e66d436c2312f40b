"""Find, vet and load a checkpoint: a shipped name, a local directory or a hub id.

Only safetensors are read and no code that comes with a checkpoint is run. What can be wrong with one is checked before
any weight is allocated, and said in one sentence.
"""

import json
import math
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from models.head_scores import HeadScore, read_heads

SHIPPED = {"storyteller": Path(__file__).parent / "storyteller"}
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
MAX_CONFIG_BYTES = 1 << 20
MAX_HEADER_BYTES = 10 << 20
MAX_VALUE = 10_000_000  # no honest number in a config that we read is larger
COUNTS = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "README.md"]


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message is one sentence for the person who named it."""


@dataclass(frozen=True)
class Card:
    """What there is to say about a loaded model, read from the model itself and not from its name."""

    name: str
    architecture: str
    parameters: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int | None
    vocab_size: int
    context_length: int | None
    position_scheme: str
    norm: str
    activation: str
    tied_head: bool
    dtype: str
    device: str
    weights_bytes: int
    directory: Path | None
    readme: str
    loss_curve: dict[str, Any] | None
    heads: tuple[HeadScore, ...] = ()  # what the checkpoint's heads.json says, if it has one; see models/heads.py

    def as_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON (the directory as its last name only)."""
        return {**asdict(self), "directory": self.directory.name if self.directory else None}


@dataclass(frozen=True)
class Loaded:
    """A model ready to run, its tokenizer and its card."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    card: Card


def shipped() -> tuple[str, ...]:
    """Names that `load` knows without a path."""
    return tuple(SHIPPED)


def load(
    name: str | Path = "storyteller",
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
) -> Loaded:
    """Load a shipped name, a local directory or a hub id for inference (eval mode, no gradients).

    device: None takes the first CUDA device, else the CPU. dtype: None takes bfloat16 on CUDA, else float32.
    Raises CheckpointError with one sentence when the checkpoint, the device or the dtype cannot be used.
    """
    where = _device(device)
    kind = _dtype(dtype, where)
    directory = _find(str(name))
    _vet_config(directory)
    _vet_weights(directory)
    model = _read_model(directory, kind).eval().requires_grad_(False)
    nn.Module.to(model, where)
    tokenizer = _read_tokenizer(directory, model)
    return Loaded(model, tokenizer, _card(Path(str(name)).name, model, directory))


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise CheckpointError(f"The device {str(device)!r} cannot be used here; try 'cpu'.") from error
    return torch.device("cuda", 0) if chosen == torch.device("cuda") else chosen


def _dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    if dtype is None:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    kind = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if kind not in (torch.float32, torch.bfloat16, torch.float16):
        raise CheckpointError(f"The dtype {str(dtype)!r} is not one of float32, bfloat16 and float16.")
    return kind


def _find(name: str) -> Path:
    if name in SHIPPED:
        return SHIPPED[name]
    path = Path(name).expanduser()
    if name and path.is_dir():
        return path
    if name and path.exists():
        raise CheckpointError(f"{name!r} is a file; name the directory that holds config.json and the weights.")
    if not HUB_ID.fullmatch(name) or name.startswith("."):
        raise CheckpointError(f"There is no directory {name!r}.")
    return _download(name)


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download  # only needed for models that are not here

    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:
        reason = f"There is no shipped model, directory or reachable hub checkpoint called {name!r}"
        raise CheckpointError(f"{reason}; shipped: {', '.join(SHIPPED)}.") from error


def _vet_config(directory: Path) -> None:
    path = directory / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{directory.name} has no config.json, so it is not a checkpoint directory.")
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise CheckpointError(f"The config.json of {directory.name} is larger than 1 MiB.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"The config.json of {directory.name} is not valid JSON.") from error
    if not isinstance(config, dict) or not config.get("model_type"):
        raise CheckpointError(f"The config.json of {directory.name} names no model_type.")
    for key in COUNTS:
        value = config.get(key)
        if isinstance(value, int) and not 0 < value <= MAX_VALUE:
            raise CheckpointError(f"The config.json of {directory.name} has an impossible {key}: {value}.")


def _vet_weights(directory: Path) -> None:
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{directory.name} has no .safetensors file; other weight formats are not read.")
    for path in files:
        with path.open("rb") as file:
            header = int.from_bytes(file.read(8), "little")
        if header > MAX_HEADER_BYTES:
            raise CheckpointError(f"{path.name} of {directory.name} has a header of more than 10 MiB.")
        try:
            with safe_open(path, framework="pt") as tensors:
                tensors.keys()
        except SafetensorError as error:
            raise CheckpointError(f"{path.name} of {directory.name} is damaged or not a safetensors file.") from error


def _stored_parameters(directory: Path) -> int:
    """Numbers in the safetensors files, read from their headers alone."""
    total = 0
    for path in directory.glob("*.safetensors"):
        with safe_open(path, framework="pt") as tensors:
            total += sum(math.prod(tensors.get_slice(key).get_shape()) for key in tensors.keys())  # noqa: SIM118
    return total


def _read_config(directory: Path) -> Any:
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    except (ValueError, KeyError, OSError, TypeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise CheckpointError(f"The config.json of {directory.name} cannot be used: {reason}") from error
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise CheckpointError(f"{directory.name} is a {config.model_type!r} model, which does not generate text.")
    config._attn_implementation = None  # a checkpoint does not choose the attention function
    return config


def _read_model(directory: Path, dtype: torch.dtype) -> PreTrainedModel:
    config = _read_config(directory)
    with torch.device("meta"):
        expected = sum(parameter.numel() for parameter in AutoModelForCausalLM.from_config(config).parameters())
    stored = _stored_parameters(directory)
    if expected > 1.05 * stored:
        raise CheckpointError(
            f"The config of {directory.name} describes {expected:,} parameters, its files hold only {stored:,}."
        )
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        both: Any = AutoModelForCausalLM.from_pretrained(
            directory,
            config=config,
            dtype=dtype,
            trust_remote_code=False,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    except (ValueError, KeyError, OSError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise CheckpointError(f"The weights of {directory.name} cannot be loaded: {reason}") from error
    finally:
        if bars:
            transformers_logging.enable_progress_bar()
    model, report = both
    _vet_report(directory, report)
    return model


def _vet_report(directory: Path, report: dict[str, Any]) -> None:
    for kind, words in (("missing_keys", "lacks"), ("unexpected_keys", "has unexpected")):
        names = sorted(report.get(kind) or ())
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise CheckpointError(f"{directory.name} {words} weights for this type of model: {names[0]}{more}.")
    if report.get("mismatched_keys"):
        first = sorted(str(key) for key in report["mismatched_keys"])[0]
        raise CheckpointError(f"A tensor of {directory.name} has another shape than its config says: {first}.")


def _read_tokenizer(directory: Path, model: PreTrainedModel) -> PreTrainedTokenizerBase:
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # every tokenizer class raises its own
        raise CheckpointError(f"{directory.name} has no tokenizer that can be loaded.") from error
    embeddings: Any = model.get_input_embeddings()
    rows = embeddings.weight.shape[0]
    if len(tokenizer) > rows:
        raise CheckpointError(
            f"The tokenizer of {directory.name} has {len(tokenizer):,} tokens, but the model knows only {rows:,}."
        )
    return tokenizer


def _card(name: str, model: PreTrainedModel, directory: Path) -> Card:
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    return Card(
        name=name,
        architecture=type(model).__name__,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=heads,
        num_key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        intermediate_size=_intermediate_size(config),
        vocab_size=config.vocab_size,
        context_length=next((getattr(config, key) for key in CONTEXT_KEYS if getattr(config, key, None)), None),
        position_scheme=position_scheme(model),
        norm=_norm(model),
        activation=_activation(config),
        tied_head=_tied(model),
        dtype=str(model.dtype).removeprefix("torch."),
        device=_device_words(model.device),
        weights_bytes=sum(parameter.nbytes for parameter in model.parameters()),
        directory=directory,
        readme=_readme(directory),
        loss_curve=_loss_curve(directory),
        heads=read_heads(directory, config.num_hidden_layers, heads),
    )


def position_scheme(model: PreTrainedModel) -> str:
    """How the model knows where a token stands, found from its modules and config."""
    config = model.config.get_text_config()
    names = [name.rsplit(".", 1)[-1] for name, _ in model.named_modules()]
    if any("rotary" in name for name in names):
        parameters = getattr(config, "rope_parameters", None) or {}
        theta = parameters.get("rope_theta", getattr(config, "rope_theta", None))
        kind = parameters.get("rope_type", "default")
        scaled = "" if kind == "default" else f", scaled ({kind})"
        return "rotary (RoPE)" + (f", theta {theta:g}" if theta else "") + scaled
    if any(name in ("wpe", "embed_positions", "position_embeddings", "position_embedding") for name in names):
        return "learned position embeddings"
    family = vars(sys.modules[type(model).__module__])
    if getattr(config, "alibi", None) or any("alibi" in name for name in family):
        return "ALiBi (linear biases on the scores)"
    return "none found"


def _norm(model: PreTrainedModel) -> str:
    """The kind of the last normalisation in the model."""
    kinds = [type(module).__name__ for module in model.modules() if "norm" in type(module).__name__.lower()]
    if not kinds:
        return "none"
    return "RMSNorm" if "rms" in kinds[-1].lower() else kinds[-1]


def _activation(config: Any) -> str:
    keys = ("hidden_act", "activation_function", "hidden_activation", "activation")
    name = next((str(getattr(config, key)) for key in keys if getattr(config, key, None)), "unknown")
    gated = getattr(config, "feed_forward", None) == "gated"
    return "SwiGLU" if gated and name == "silu" else name


def _intermediate_size(config: Any) -> int | None:
    for key in ("intermediate_size", "n_inner", "ffn_dim"):
        if getattr(config, key, None):
            return int(getattr(config, key))
    return 4 * config.hidden_size if hasattr(config, "n_inner") else None


def _tied(model: PreTrainedModel) -> bool:
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    return isinstance(head, nn.Module) and head.weight is embedding.weight


def _device_words(device: torch.device) -> str:
    return f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else str(device)


def _readme(directory: Path) -> str:
    path = directory / "README.md"
    if not path.is_file():
        return ""
    text = path.read_text(encoding="utf-8", errors="replace")
    return re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL).strip()


def _loss_curve(directory: Path) -> dict[str, Any] | None:
    try:
        curve = json.loads((directory / "loss.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return curve if isinstance(curve, dict) else None
