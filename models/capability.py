"""What there is to say about a loaded model, read from the model itself and not from its name."""

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import get_layer_types_and_kwargs

from models.devices import device_words
from models.head_scores import HeadScore, read_heads

CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
ACTIVE_KEYS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
SAMPLE = (
    "The quick brown fox jumps over the lazy dog. In 1969, two people walked on the moon; 600 million watched! "
    "She asked: “Why?” — and def f(x): return x + 1 is code."
)
"""A little of everything that English text holds: what a tokenizer makes of it tells whether it knows English."""
MANY_UNKNOWN = 0.1
FEW_TOKENS = 0.5
PARTS = (
    ("norms", re.compile(r"norm|^ln$", re.IGNORECASE)),
    ("experts", re.compile(r"expert|moe|sparse|router|gate$", re.IGNORECASE)),
    ("attention", re.compile(r"attention|attn", re.IGNORECASE)),
    ("state space and convolution", re.compile(r"mamba|ssm|conv|recurrent|gateddelta|mixer|rglru|kda", re.IGNORECASE)),
    ("feed-forward", re.compile(r"mlp|ffn|feed_?forward|glu", re.IGNORECASE)),
)
"""Parts by the class names of the modules that own their weights, innermost first."""


@dataclass(frozen=True)
class Card:
    """What there is to say about a loaded model.

    Attributes:
        rope_theta: base of the rotary angles; None without rotation.
        rope_type: how the angles are scaled for longer contexts; "default": not at all.
        rotary_share: part of each head that rotates, 0 to 1; None without rotation.
        layer_types: what each layer has, in transformers' words (`full_attention`, `sliding_attention`, `conv`, ...).
        windows: how many positions back each layer may look; None: all.
        experts, experts_per_token: of each mixture-of-experts layer, where there are such.
        parameter_parts: parameters by what they are for; they add up to `parameters`.
        chat_template: whether the tokenizer knows how to write a conversation.
        unknown_rate: share of unknown tokens in a sample of plain English, 0 to 1.
        notes: sentences on what seems odd about the checkpoint and does not forbid using it.
        devices: every device that holds a part of it.
        heads: what the checkpoint's heads.json says, if it has one; see models/heads.py.
    """

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
    heads: tuple[HeadScore, ...] = ()
    model_type: str = ""
    rope_theta: float | None = None
    rope_type: str = "default"
    rotary_share: float | None = None
    layer_types: tuple[str, ...] = ()
    windows: tuple[int | None, ...] = ()
    experts: int | None = None
    experts_per_token: int | None = None
    parameter_parts: Mapping[str, int] = field(default_factory=dict)
    chat_template: bool = False
    unknown_rate: float = 0.0
    notes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON (the directory as its last name only)."""
        return {**asdict(self), "directory": self.directory.name if self.directory else None}


def read_card(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path) -> Card:
    """The card of a model that was loaded from `directory`."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None) or 0
    layer_types, windows = _layers(config)
    devices = _devices(model)
    unknown = unknown_rate(tokenizer)
    return Card(
        name=name,
        architecture=type(model).__name__,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=heads,
        num_key_value_heads=_first(config, ("num_key_value_heads", "num_kv_heads")) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // max(heads, 1),
        intermediate_size=_intermediate_size(config),
        vocab_size=config.vocab_size,
        context_length=_first(config, CONTEXT_KEYS),
        position_scheme=position_scheme(model),
        norm=_norm(model),
        activation=_activation(config),
        tied_head=_tied(model),
        dtype=str(model.dtype).removeprefix("torch."),
        device=" + ".join(devices),
        weights_bytes=sum(parameter.nbytes for parameter in model.parameters()),
        directory=directory,
        readme=_readme(directory),
        loss_curve=_loss_curve(directory),
        heads=read_heads(directory, config.num_hidden_layers, heads),
        model_type=str(config.model_type),
        **_rope(model, config),
        layer_types=layer_types,
        windows=windows,
        experts=_first(config, EXPERT_KEYS),
        experts_per_token=_first(config, ACTIVE_KEYS),
        parameter_parts=parameter_parts(model),
        chat_template=bool(getattr(tokenizer, "chat_template", None)),
        unknown_rate=unknown,
        notes=_notes(config, tokenizer, unknown),
        devices=devices,
    )


def _first(config: Any, keys: tuple[str, ...]) -> int | None:
    """The first of these that a config has and that says something."""
    found = (getattr(config, key, None) for key in keys)
    return next((int(each) for each in found if isinstance(each, int) and each), None)


def _layers(config: Any) -> tuple[tuple[str, ...], tuple[int | None, ...]]:
    """Type and window of each layer, as transformers itself makes its caches from them."""
    try:
        types, options = get_layer_types_and_kwargs(config)
    except (AttributeError, TypeError, ValueError):  # a config that says nothing of its layers
        return (), ()
    return tuple(map(str, types)), tuple(each.get("sliding_window") for each in options)


def _devices(model: PreTrainedModel) -> tuple[str, ...]:
    placed = getattr(model, "hf_device_map", None)
    if not placed:
        return (device_words(model.device),)
    kinds = dict.fromkeys(placed.values())
    return tuple(str(each) if each == "disk" else device_words(torch.device(each)) for each in kinds)


def _rotary(model: PreTrainedModel) -> bool:
    named = any("rotary" in name.rsplit(".", 1)[-1] for name, _ in model.named_modules())
    return named or model.config.get_text_config().to_dict().get("rotary_dim") is not None


def _rope(model: PreTrainedModel, config: Any) -> dict[str, Any]:
    """theta, scaling and share of the rotation; of the first kind of layer, where there are several."""
    if not _rotary(model):
        return {}
    told: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    told = next((each for each in told.values() if isinstance(each, Mapping)), told)
    theta = told.get("rope_theta", getattr(config, "rope_theta", None))
    share = told.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", None)
    share = share or getattr(config, "rotary_pct", None)
    if share is None and getattr(config, "rotary_dim", None):
        share = config.rotary_dim / (config.hidden_size // config.num_attention_heads)
    return {
        "rope_theta": None if theta is None else float(theta),
        "rope_type": str(told.get("rope_type", "default")),
        "rotary_share": 1.0 if share is None else float(share),
    }


def position_scheme(model: PreTrainedModel) -> str:
    """How the model knows where a token stands, found from its modules and config."""
    config = model.config.get_text_config()
    names = [name.rsplit(".", 1)[-1] for name, _ in model.named_modules()]
    if _rotary(model):
        told = _rope(model, config)
        theta, kind, share = told["rope_theta"], told["rope_type"], told["rotary_share"]
        parts = [
            "rotary (RoPE)",
            f"theta {theta:.0f}" if theta else "",
            "" if kind == "default" else f"scaled ({kind})",
            "" if share == 1 else f"{share:.0%} of each head",
        ]
        return ", ".join(each for each in parts if each)
    if "sinusoidal_positions" in names:
        return "sinusoids added to the embeddings"
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
    found = getattr(config, "intermediate_size", None)
    if isinstance(found, list):  # one a layer
        return int(max(found))
    size = _first(config, ("intermediate_size", "n_inner", "ffn_dim"))
    return size or (4 * config.hidden_size if hasattr(config, "n_inner") else None)


def _tied(model: PreTrainedModel) -> bool:
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    return isinstance(head, nn.Module) and head.weight is embedding.weight


def parameter_parts(model: PreTrainedModel) -> dict[str, int]:
    """Parameters by what they are for, largest first; shared ones count once, where they stand first."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    counted: Counter[str] = Counter()
    kinds = {name: type(module).__name__ for name, module in model.named_modules()}
    whole = {id(each.weight): part for each, part in ((head, "output head"), (embedding, "embedding")) if each}
    for name, parameter in model.named_parameters():
        counted[whole.get(id(parameter)) or _part(name, kinds)] += parameter.numel()
    return dict(counted.most_common())


def _part(name: str, kinds: Mapping[str, str]) -> str:
    """The part that a parameter belongs to: asked of its own module first, then of those around it."""
    path = name.split(".")[:-1]
    for end in range(len(path), 0, -1):
        words = (kinds.get(".".join(path[:end]), ""), path[end - 1])
        for part, pattern in PARTS:
            if any(pattern.search(word) for word in words):
                return part
    return "other"


def unknown_rate(tokenizer: PreTrainedTokenizerBase) -> float:
    """Share of a sample of plain English that the tokenizer has no token for, 0 to 1."""
    ids = tokenizer(SAMPLE, add_special_tokens=False, verbose=False)["input_ids"]
    if not ids:
        return 1.0
    unknown = tokenizer.unk_token_id
    return 0.0 if unknown is None else sum(each == unknown for each in ids) / len(ids)


def _notes(config: Any, tokenizer: PreTrainedTokenizerBase, unknown: float) -> tuple[str, ...]:
    """What makes one doubt that the tokenizer belongs to the model, or that it knows the language."""
    notes = []
    if unknown > MANY_UNKNOWN:
        notes.append(f"The tokenizer has no token for {unknown:.0%} of a sample of plain English.")
    if len(tokenizer) < FEW_TOKENS * config.vocab_size:
        notes.append(
            f"The tokenizer has {len(tokenizer):,} tokens and the model {config.vocab_size:,}: "
            "it may belong to another model."
        )
    told = getattr(config, "eos_token_id", None)
    ends = {each for each in (told if isinstance(told, list) else [told]) if isinstance(each, int)}
    if ends and tokenizer.eos_token_id is not None and tokenizer.eos_token_id not in ends:
        notes.append(
            f"The config ends a text with token {min(ends):,}, the tokenizer with {tokenizer.eos_token_id:,}: "
            "both are taken as an end."
        )
    return tuple(notes)


def _readme(directory: Path) -> str:
    path = directory / "README.md"
    if not path.is_file() or path.stat().st_size > 1 << 20:
        return ""
    text = path.read_text(encoding="utf-8", errors="replace")
    return re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL).strip()


def _loss_curve(directory: Path) -> dict[str, Any] | None:
    try:
        curve = json.loads((directory / "loss.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return curve if isinstance(curve, dict) else None
