"""The page "Architecture": designs described for the browser; static/architecture.js draws what this says."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import gradio as gr

from models.accounting import (
    DEVICES,
    ITEM_BYTES,
    activation_bytes,
    bytes_read,
    decode_flops,
    intensity,
    kv_bytes,
    parameters,
    prefill_flops,
    tokens_per_second,
    weight_bytes,
)
from models.claims import claims
from models.configuration import CHOICES, FULL, ROPE_KEYS, SLIDING, DecoderConfig
from models.experiments import recorded
from models.presets import PRESETS
from playground.web import architecture_figures as figures
from playground.web.live import STATIC, WithoutStub

log = logging.getLogger(__name__)
PLACE = '<div id="architecture"></div>'
LARGEST = 1_000_000
EXPERIMENTS = ("causality", "saturation", "stability", "gradients", "attention-cost", "positions", "heads")
Answer = dict[str, Any]


@dataclass(frozen=True)
class Field:
    """A switch of the form: its key, its words, and its values (a list of names, "count", "number" or "flag")."""

    key: str
    label: str
    kind: str
    choices: tuple[str, ...] = ()


FIELDS = (
    Field("num_hidden_layers", "Layers", "count"),
    Field("hidden_size", "Hidden size", "count"),
    Field("num_attention_heads", "Query heads", "count"),
    Field("num_key_value_heads", "Key-value heads", "count"),
    Field("head_dim", "Head size", "count"),
    Field("intermediate_size", "Feed-forward size", "count"),
    Field("vocab_size", "Vocabulary", "count"),
    Field("max_position_embeddings", "Context", "count"),
    Field("norm", "Norm", "choice", CHOICES["norm"]),
    Field("norm_placement", "Norm placement", "choice", CHOICES["norm_placement"]),
    Field("position", "Positions", "choice", CHOICES["position"]),
    Field("rope_type", "RoPE scaling", "choice", tuple(ROPE_KEYS)),
    Field("factor", "Scaling factor", "number"),
    Field("partial_rotary_factor", "Turned part of a head", "number"),
    Field("sliding_window", "Sliding window (0: none)", "count"),
    Field("windows", "Layers with a window", "choice", ("all", "every second")),
    Field("attn_logit_softcapping", "Score soft-cap (0: none)", "number"),
    Field("feed_forward", "Feed-forward", "choice", CHOICES["feed_forward"]),
    Field("hidden_act", "Activation", "choice", CHOICES["hidden_act"]),
    Field("num_local_experts", "Experts", "count"),
    Field("num_experts_per_tok", "Experts a token", "count"),
    Field("qk_norm", "QK-norm", "flag"),
    Field("norm_bias", "Bias in LayerNorm", "flag"),
    Field("attention_bias", "Bias in attention", "flag"),
    Field("mlp_bias", "Bias in feed-forward", "flag"),
    Field("tie_word_embeddings", "Tied output head", "flag"),
)
"""The switches of the page, in their order."""
ROPE = ("rope_type", "factor", "partial_rotary_factor")


class Architecture(gr.HTML, metaclass=WithoutStub):
    """The place on the page that static/architecture.js fills; `opened` fires when a design is to be run."""

    def __init__(self) -> None:
        super().__init__(
            None,
            html_template=PLACE,
            css_template="",
            js_on_load=(STATIC / "architecture_bootstrap.js").read_text(encoding="utf-8"),
            apply_default_css=False,
            padding=False,
            server_functions=[design, background],
        )


def values_of(config: DecoderConfig) -> dict[str, Any]:
    """The form's values for a design."""
    rope = config.rope_parameters or {}
    values = {field.key: getattr(config, field.key, None) for field in FIELDS if field.key not in (*ROPE, "windows")}
    kinds = config.attention_kinds
    return {
        **values,
        "rope_type": rope.get("rope_type", "default"),
        "factor": rope.get("factor", 1.0),
        "partial_rotary_factor": rope.get("partial_rotary_factor", 1.0),
        "sliding_window": config.sliding_window or 0,
        "windows": "every second" if FULL in kinds and SLIDING in kinds else "all",
        "attn_logit_softcapping": config.attn_logit_softcapping or 0,
        "num_local_experts": config.num_local_experts or 8,
        "num_experts_per_tok": config.num_experts_per_tok or 2,
    }


def config_from(request: Mapping[str, Any]) -> DecoderConfig:
    """The design that the browser asks for: {"preset": name, "changes": {key: value}}. Or `ValueError`.

    What was not changed is the preset's. A change of the size of the hidden state or of the number of heads lets head
    and feed-forward sizes follow, unless they are given too.
    """
    preset = PRESETS.get(str(request.get("preset")))
    changes = request.get("changes") or {}
    if preset is None or not isinstance(changes, Mapping):
        raise ValueError("Choose a preset from the list.")
    fields = {field.key: field for field in FIELDS}
    told = {key: _checked(fields.get(key), key, value) for key, value in changes.items()}
    return DecoderConfig(**_merged(preset.config(), dict(preset.switches), told))


def _checked(field: Field | None, key: str, value: Any) -> Any:
    if field is None:
        raise ValueError(f"{key!r:.40} is no switch of this page.")
    if field.kind == "flag" and isinstance(value, bool):
        return value
    if field.kind == "choice" and value in field.choices:
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LARGEST
    if number and (field.kind == "number" or (field.kind == "count" and value == int(value))):
        return float(value) if field.kind == "number" else int(value)
    wanted = {"flag": "on or off", "choice": f"one of {', '.join(field.choices)}"}
    raise ValueError(f"{field.label} must be {wanted.get(field.kind, f'a number from 0 to {LARGEST:,}')}.")


def _merged(old: DecoderConfig, switches: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    """Keys of `DecoderConfig`, from those of the preset and what the form changed."""
    new = {**switches, **{key: value for key, value in told.items() if key not in (*ROPE, "windows")}}
    if new["num_hidden_layers"] > 1000:
        raise ValueError(f"Layers must be at most 1,000, not {new['num_hidden_layers']:,}.")
    if {"hidden_size", "num_attention_heads"} & set(told) and "head_dim" not in told:
        new.pop("head_dim", None)
    if "num_attention_heads" in told and "num_key_value_heads" not in told and old.heads[0] == old.heads[1]:
        new.pop("num_key_value_heads", None)
    if new.get("feed_forward", "gated") == "experts":
        new.setdefault("num_local_experts", 8)
    else:
        new.pop("num_local_experts", None)
        new.pop("num_experts_per_tok", None)
    new["attn_logit_softcapping"] = new.get("attn_logit_softcapping") or None
    return {**new, **_windows(old, new, told), **_rotation(old, new, told)}


def _windows(old: DecoderConfig, new: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    window, layers = new.get("sliding_window") or None, new["num_hidden_layers"]
    second = told.get("windows", values_of(old)["windows"]) == "every second"
    kinds = [FULL if second and layer % 2 else SLIDING for layer in range(layers)] if window else None
    return {"sliding_window": window, "layer_types": kinds}


def _rotation(old: DecoderConfig, new: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    for key in ("rope_theta", "partial_rotary_factor"):
        new.pop(key, None)
    if new.get("position", "rope") != "rope":
        return {"rope_parameters": None}
    rope = {"rope_theta": 10000.0, **(old.rope_parameters or {}), **{key: told[key] for key in ROPE if key in told}}
    kind = rope.setdefault("rope_type", "default")
    if kind == "default":
        rope.pop("factor", None)
    elif not rope.get("factor"):
        rope["factor"] = 4.0
    if kind == "llama3":
        rope = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, **rope}
    return {"rope_parameters": rope}


def design(request: Any) -> Answer:
    """What the page shows of one or two designs: {"designs", "length", "dtype", "device"} -> facts and figures."""
    try:
        if not isinstance(request, Mapping) or not isinstance(request.get("designs"), list):
            raise ValueError("Ask with one JSON object that names designs.")
        length = request.get("length")
        if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= LARGEST:
            raise ValueError(f"Length must be a whole number from 1 to {LARGEST:,} tokens.")
        dtype, device = request.get("dtype"), request.get("device")
        if dtype not in ITEM_BYTES or device not in DEVICES:
            raise ValueError("Choose a type of number and a device from the lists.")
        configs = {}
        for mark, each in zip("AB", request["designs"], strict=False):
            configs[mark] = config_from(each)
        described = [
            described_design(mark, asked, configs[mark], length, dtype, device)
            for mark, asked in zip(configs, request["designs"], strict=False)
        ]
        pair = list(configs.values())
        return {
            "designs": described,
            "differs": differences(*pair) if len(pair) == 2 else [],
            "figures": [each.to_dict() for each in figures.of_designs(configs, length, dtype)],
        }
    except ValueError as error:
        return {"error": str(error).strip().split("\n")[-1].strip()}
    except Exception:
        log.exception("a design could not be described")
        return {"error": "This design could not be worked out: go back to a preset."}


def described_design(mark: str, asked: Mapping[str, Any], config: DecoderConfig, *rest: Any) -> Answer:
    """Everything about one design, in words, numbers and the parts of its diagram."""
    length, dtype, device = rest
    preset, keys = PRESETS[asked["preset"]], given_keys(config)
    return {
        "mark": mark,
        "name": preset.name + (" with changes" if asked.get("changes") else ""),
        "source": preset.source,
        "values": values_of(config),
        "facts": facts(config, length, dtype, device),
        "diagram": diagram(config),
        "json": json.dumps({"model_type": "decoder", **keys}, indent=2),
        "python": python_of(config),
    }


def given_keys(config: DecoderConfig) -> dict[str, Any]:
    """The configuration without what is at its default."""
    default = {
        **DecoderConfig().to_dict(),
        "num_key_value_heads": config.num_attention_heads,
        "head_dim": config.hidden_size // config.num_attention_heads,
        "intermediate_size": 4 * config.hidden_size,
        "attention_out_bias": config.attention_bias,
        "layer_types": [SLIDING] * config.num_hidden_layers if config.sliding_window else None,
    }
    skipped = ("transformers_version", "model_type", "dtype", "architectures")
    found = config.to_dict().items()
    return {key: value for key, value in found if key not in skipped and default.get(key) != value}


def python_of(config: DecoderConfig) -> str:
    """Three lines that build the design, on the meta device, whatever its size."""
    keys = ", ".join(f"{key}={_shortened(value)}" for key, value in given_keys(config).items())
    return (
        "import torch; from models import DecoderConfig, DecoderForCausalLM\n"
        f"config = DecoderConfig({keys})\n"
        'with torch.device("meta"): model = DecoderForCausalLM(config)'
    )


def _shortened(value: Any) -> str:
    if isinstance(value, list) and len(set(value)) == 1:
        return f"[{value[0]!r}] * {len(value)}"
    if isinstance(value, list) and len(value) > 4 and len(value) % 2 == 0 and value == value[:2] * (len(value) // 2):
        return f"{value[:2]!r} * {len(value) // 2}"
    return repr(value)


def differences(first: DecoderConfig, second: DecoderConfig) -> list[str]:
    """Labels of the form's fields in which two designs differ."""
    a, b = values_of(first), values_of(second)
    return [field.label for field in FIELDS if a[field.key] != b[field.key]]


def facts(config: DecoderConfig, length: int, dtype: str, device: str) -> list[list[str]]:
    """Rows (name, value, formula) of the table of sums, for a prompt of `length` tokens."""
    size, card = ITEM_BYTES[dtype], DEVICES[device]
    total, active = parameters(config).total, parameters(config, active=True).total
    prefill, step = prefill_flops(config, length, logits=1), decode_flops(config, length)
    kept = kv_bytes(config, length, size)
    query, shared, _ = config.heads
    rows = [
        ["Parameters", f"{total:,}", "sum of the parts"],
        ["of these used by a token", f"{active:,}", "all but the experts that were not chosen"],
        ["Weights", _bytes(weight_bytes(config, size)), f"parameters × {size} bytes"],
        ["KV cache a token", _bytes(kv_bytes(config, 1, size)), "2 · layers · key-value heads · head size · bytes"],
        [f"KV cache of {length:,} tokens", _bytes(kept), "a token's × tokens"],
        ["the same with a head each (MHA)", _bytes(kept // shared * query), f"{query} key-value heads"],
        ["the same with one head (MQA)", _bytes(kept // shared), "1 key-value head"],
        [f"FLOPs of a prompt of {length:,}", _flops(prefill.total), "2 × weights × tokens + the T² part"],
        ["of these in the T² part", _flops(prefill.scores), "4 · T² · layers · heads · head size, nothing skipped"],
        ["FLOPs of the next token", _flops(step.total), "2 × weights used + the part of its keys"],
        ["Bytes read for it", _bytes(bytes_read(config, length, size)), "weights used + the cache it sees"],
        ["Arithmetic intensity", f"{intensity(config, length, size):.2f} FLOP/byte", "FLOPs ÷ bytes of that step"],
        ["Activations in training", _bytes(activation_bytes(config, length, size)), "estimate for one sequence, fused"],
        [
            "Most tokens/s of one sequence",
            f"{tokens_per_second(config, card, length, size):,.1f}",
            f"bandwidth ÷ bytes read: {card.bandwidth / 1e9:,.0f} GB/s; fits: "
            + ("yes" if weight_bytes(config, size) + kept <= card.memory else "no, not on one"),
        ],
    ]
    if SLIDING in config.attention_kinds:
        trimmed = kv_bytes(config, length, size, trimmed=True)
        rows.insert(5, ["if windows drop what they left", _bytes(trimmed), f"{config.sliding_window:,} positions"])
    return rows


def _bytes(number: float) -> str:
    for unit, power in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if number >= 2**power:
            return f"{number / 2**power:,.2f} {unit}"
    return f"{number:,.0f} bytes"


def _flops(number: float) -> str:
    for unit, size in (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6)):
        if number >= size:
            return f"{number / size:,.2f} {unit}"
    return f"{number:,.0f} FLOP"


def diagram(config: DecoderConfig) -> Answer:
    """The block as parts: stages of branches between the stream and a sum, each part with a name and its sizes."""
    norm: Answer = {"kind": "norm", "name": "RMSNorm" if config.norm == "rmsnorm" else "LayerNorm", "lines": []}
    attention = {"kind": "attention", "name": _attention_name(config), "lines": _attention_lines(config)}
    forward = {"kind": "feed_forward", "name": _forward_name(config), "lines": _forward_lines(config)}
    stages = {
        "pre": [_stage([norm, attention]), _stage([norm, forward])],
        "post": [_stage([attention], after=[norm]), _stage([forward], after=[norm])],
        "sandwich": [_stage([norm, attention, norm]), _stage([norm, forward, norm])],
        "parallel": [_stage([attention], [forward], shared=[norm])],
        "parallel_two_norms": [_stage([norm, attention], [norm, forward])],
    }[config.norm_placement]
    enters = {"learned": "+ learned position", "sinusoidal": "+ sinusoids"}.get(config.position, "")
    tied = "same matrix as the embedding" if config.tie_word_embeddings else "its own matrix"
    return {
        "layers": config.num_hidden_layers,
        "stream": f"T × {config.hidden_size:,}",
        "embedding": [f"{config.vocab_size:,} × {config.hidden_size:,}", *([enters] if enters else [])],
        "stages": stages,
        "final": "" if config.norm_placement == "post" else norm["name"],
        "head": [f"{config.hidden_size:,} × {config.vocab_size:,}, {tied}"],
        "logits": f"T × {config.vocab_size:,}",
    }


def _stage(*branches: list[Answer], shared: list[Answer] | None = None, after: list[Answer] | None = None) -> Answer:
    return {"shared": shared or [], "branches": list(branches), "after": after or []}


def _attention_name(config: DecoderConfig) -> str:
    query, shared, _ = config.heads
    kind = "Multi-head" if query == shared else "Multi-query" if shared == 1 else "Grouped-query"
    return f"{kind} attention"


def _attention_lines(config: DecoderConfig) -> list[str]:
    query, shared, _ = config.heads
    lines = [f"q  T × {query} × {config.head_size}", f"k, v  T × {shared} × {config.head_size}"]
    if config.position == "rope":
        rope = config.rope_parameters or {}
        part = "" if config.turning_dim == config.head_size else f", {config.turning_dim} of {config.head_size}"
        kind = "" if rope.get("rope_type") == "default" else f", {rope.get('rope_type')} × {rope.get('factor'):g}"
        lines.append(f"RoPE, θ {config.rope_theta:,.0f}{part}{kind}")
    elif config.position == "alibi":
        lines.append("ALiBi: − slope · distance")
    if config.qk_norm:
        lines.append("QK-norm")
    if SLIDING in config.attention_kinds:
        count = config.attention_kinds.count(SLIDING)
        lines.append(f"window {config.sliding_window:,} in {count} of {config.num_hidden_layers} layers")
    if config.attn_logit_softcapping:
        lines.append(f"scores capped at ± {config.attn_logit_softcapping:g}")
    return lines


def _forward_name(config: DecoderConfig) -> str:
    act = {"silu": "Si", "gelu": "Ge", "gelu_new": "Ge", "gelu_pytorch_tanh": "Ge", "relu": "Re"}[config.hidden_act]
    gated = {"Si": "SwiGLU", "Ge": "GeGLU", "Re": "ReGLU"}[act]
    if config.feed_forward == "plain":
        return {"Si": "SiLU", "Ge": "GELU", "Re": "ReLU"}[act] + " feed-forward"
    return f"{gated} experts" if config.feed_forward == "experts" else f"{gated} feed-forward"


def _forward_lines(config: DecoderConfig) -> list[str]:
    inner = f"{config.inner_size:,}" if config.feed_forward == "plain" else f"2 × {config.inner_size:,}"
    lines = [f"{config.hidden_size:,} → {inner} → {config.hidden_size:,}"]
    if config.feed_forward == "experts":
        lines.append(f"{config.num_experts_per_tok} of {config.num_local_experts} for each token")
    return lines


def background(request: Any) -> Answer:
    """What the page shows once: the form, the lists, the claims that were checked, the experiments."""
    found = {name: recorded(name) for name in EXPERIMENTS}
    return {
        "fields": [asdict(field) for field in FIELDS],
        "presets": [{"name": each.name, "stated": each.stated} for each in PRESETS.values()],
        "devices": list(DEVICES),
        "dtypes": list(ITEM_BYTES),
        "claims": [asdict(claim) for claim in claims()],
        "experiments": [figures.of_experiment(name, record) for name, record in found.items() if record is not None],
    }
