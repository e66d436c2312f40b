"""The switches of the decoder family: what can be chosen, what follows, and which choices exclude each other."""

from typing import Any, ClassVar

from transformers import PreTrainedConfig

CHOICES: dict[str, tuple[str, ...]] = {
    "norm": ("rmsnorm", "layernorm"),
    "norm_placement": ("pre", "post", "sandwich", "parallel", "parallel_two_norms"),
    "position": ("rope", "learned", "sinusoidal", "alibi", "none"),
    "feed_forward": ("gated", "plain", "experts"),
    "hidden_act": ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu"),
}
"""The values of every switch that is a name; `models.decoder` has one module or function for each."""
ROPE_KEYS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "ntk": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
"""Ways to scale rotary angles, and what each must be given in `rope_parameters`."""
FULL, SLIDING = "full_attention", "sliding_attention"


class DecoderConfig(PreTrainedConfig):
    """The shape of a decoder and its switches; keys mean what they mean in transformers.

    Switches with names are listed in `CHOICES`, the scalings of RoPE in `ROPE_KEYS`. "gated" with "silu" is SwiGLU,
    with "gelu" GeGLU; "experts" are gated too. Equal `num_attention_heads` and `num_key_value_heads` give multi-head
    attention, fewer of the latter grouped-query, one multi-query attention. With `sliding_window` every layer looks
    back that many positions, itself included, unless `layer_types` says "full_attention" for it. `rope_parameters` may
    hold `rope_theta`, `rope_type`, its `factor` and `partial_rotary_factor`, the share of a head that is turned.
    Raises ValueError, naming the keys, for a combination that cannot be built.
    """

    model_type = "decoder"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]
    attribute_map: ClassVar[dict[str, str]] = dict.fromkeys(
        ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"), "norm_eps"
    )
    default_theta = 10000.0

    vocab_size: int = 4096
    hidden_size: int = 256
    intermediate_size: int | None = None
    num_hidden_layers: int = 8
    num_attention_heads: int = 8
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 512
    norm: str = "rmsnorm"
    norm_eps: float = 1e-5
    norm_bias: bool = True
    norm_placement: str = "pre"
    qk_norm: bool = False
    embedding_norm: bool = False
    embedding_multiplier: float = 1.0
    position: str = "rope"
    rope_parameters: dict | None = None
    sliding_window: int | None = None
    layer_types: list[str] | None = None
    query_pre_attn_scalar: float | None = None
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    feed_forward: str = "gated"
    hidden_act: str = "silu"
    num_local_experts: int | None = None
    num_experts_per_tok: int | None = None
    attention_bias: bool = False
    attention_out_bias: bool | None = None
    mlp_bias: bool = False
    attention_dropout: float = 0.0
    residual_dropout: float = 0.0
    tie_word_embeddings: bool = True
    initializer_range: float = 0.02
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        self._check_counts()
        self._check_choices()
        self.num_key_value_heads = self.heads[1]
        self.head_dim = self.head_size
        self.intermediate_size = self.inner_size
        if self.attention_out_bias is None:
            self.attention_out_bias = self.attention_bias
        self._check_heads()
        self._check_windows()
        self._check_experts()
        self._check_positions(kwargs)
        super().__post_init__(**kwargs)
        if self.position != "rope":
            self.rope_parameters = None
        else:
            self._check_rotation()

    @property
    def heads(self) -> tuple[int, int, int]:
        """How many query, key and value heads a layer has."""
        shared = self.num_key_value_heads or self.num_attention_heads
        return self.num_attention_heads, shared, shared

    @property
    def head_size(self) -> int:
        """Dimensions of one head: `head_dim`, or an equal part of the hidden size."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def inner_size(self) -> int:
        """Width of the feed-forward layer, of one expert: `intermediate_size`, or four times the hidden size."""
        return self.intermediate_size or 4 * self.hidden_size

    @property
    def score_scale(self) -> float:
        """The factor on q kT: 1 / sqrt(D), or of `query_pre_attn_scalar` in place of D (Gemma 2)."""
        return float((self.query_pre_attn_scalar or self.head_size) ** -0.5)

    def score_options(self, layer: int) -> dict[str, Any]:
        """What the attention function of a layer is told beside its scale: soft-cap and window, where it has them."""
        window = self.sliding_window if self.attention_kinds[layer] == SLIDING else None
        options = {"softcap": self.attn_logit_softcapping, "sliding_window": window}
        return {name: value for name, value in options.items() if value is not None}

    @property
    def attention_kinds(self) -> tuple[str, ...]:
        """Of each layer, whether it sees everything before it or a window."""
        return tuple(self.layer_types or (FULL,) * self.num_hidden_layers)

    @property
    def rope_theta(self) -> float | None:
        """Base of the rotary frequencies, None for a model without rotary positions."""
        if self.position != "rope":
            return None
        return (self.rope_parameters or {}).get("rope_theta", self.default_theta)

    @property
    def alibi(self) -> bool:
        """Whether scores get linear biases; the name that other families of transformers have for it."""
        return self.position == "alibi"

    @property
    def turning_dim(self) -> int:
        """How many dimensions of a head are turned, an even number; 0 without rotary positions."""
        if self.position != "rope":
            return 0
        return int(self.head_size * (self.rope_parameters or {}).get("partial_rotary_factor", 1.0))

    def _check_counts(self) -> None:
        for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, not {getattr(self, key)}.")
        for key in (
            "intermediate_size", "num_key_value_heads", "head_dim", "sliding_window", "num_local_experts",
            "num_experts_per_tok",
        ):  # fmt: skip
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ValueError(f"{key} must be at least 1, not {value}.")
        for key in ("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise ValueError(f"{key} must be above 0, not {value}; leave it out for none.")

    def _check_choices(self) -> None:
        for key, names in CHOICES.items():
            if getattr(self, key) not in names:
                raise ValueError(f"{key} {getattr(self, key)!r} is unknown; choose one of {', '.join(names)}.")

    def _check_heads(self) -> None:
        query, shared, _ = self.heads
        if query % shared:
            raise ValueError(
                f"num_attention_heads ({query}) must be a multiple of num_key_value_heads ({shared}), "
                "so that every query head has its key-value head."
            )
        if self.head_size * query != self.hidden_size and self.hidden_size % query:
            raise ValueError(
                f"hidden_size ({self.hidden_size}) is not a multiple of num_attention_heads ({query}); "
                "set head_dim as well."
            )

    def _check_windows(self) -> None:
        if self.layer_types is None:
            self.layer_types = [SLIDING] * self.num_hidden_layers if self.sliding_window else None
            return
        if len(self.layer_types) != self.num_hidden_layers:
            raise ValueError(
                f"layer_types names {len(self.layer_types)} layers, but num_hidden_layers is {self.num_hidden_layers}."
            )
        unknown = sorted(set(self.layer_types) - {FULL, SLIDING})
        if unknown:
            raise ValueError(f"layer_types {unknown[0]!r} is unknown; choose {FULL} or {SLIDING} for each layer.")
        if SLIDING in self.layer_types and self.sliding_window is None:
            raise ValueError(f"layer_types asks for {SLIDING}, so sliding_window must say how many positions it sees.")

    def _check_experts(self) -> None:
        chosen, all_of_them = self.num_experts_per_tok, self.num_local_experts
        if self.feed_forward != "experts":
            if chosen or all_of_them:
                raise ValueError(
                    f"num_local_experts and num_experts_per_tok need feed_forward 'experts', not {self.feed_forward!r}."
                )
            return
        self.num_local_experts = all_of_them = all_of_them or 8
        self.num_experts_per_tok = chosen = chosen or min(2, all_of_them)
        if chosen > all_of_them:
            raise ValueError(f"num_experts_per_tok ({chosen}) must be at most num_local_experts ({all_of_them}).")
        if self.mlp_bias:
            raise ValueError("mlp_bias is for feed_forward 'gated' and 'plain': experts have no biases.")

    def _check_positions(self, given: dict[str, Any]) -> None:
        rotary = [key for key in ("rope_theta", "partial_rotary_factor", "rope_scaling") if given.get(key) is not None]
        rotary += ["rope_parameters"] if self.rope_parameters else []
        if rotary and self.position != "rope":
            raise ValueError(f"{rotary[0]} is for position 'rope', not {self.position!r}.")
        if self.position == "sinusoidal" and self.hidden_size % 2:
            raise ValueError(
                f"position 'sinusoidal' pairs dimensions: hidden_size must be even, not {self.hidden_size}."
            )
        if self.position == "alibi" and self.layer_types and SLIDING in self.layer_types:
            raise ValueError(
                "position 'alibi' has one bias for all layers, so it cannot be joined with sliding_window."
            )

    def _check_rotation(self) -> None:
        parameters = self.rope_parameters or {}
        kind, part = parameters.get("rope_type", "default"), parameters.get("partial_rotary_factor", 1.0)
        if kind not in ROPE_KEYS:
            raise ValueError(f"rope_type {kind!r} is unknown; choose one of {', '.join(ROPE_KEYS)}.")
        missing = [key for key in ROPE_KEYS[kind] if parameters.get(key) is None]
        if missing:
            raise ValueError(f"rope_type {kind!r} needs {missing[0]} in rope_parameters.")
        if ROPE_KEYS[kind] and parameters["factor"] < 1:
            raise ValueError(f"factor in rope_parameters must be at least 1, not {parameters['factor']}.")
        if not 0 < part <= 1:
            raise ValueError(f"partial_rotary_factor must be above 0 and at most 1, not {part}.")
        if kind == "ntk" and self.turning_dim <= 2:
            raise ValueError(f"rope_type 'ntk' needs more than 2 turning dimensions, not {self.turning_dim}.")
        if self.turning_dim % 2 or self.head_size % 2 or not self.turning_dim:
            raise ValueError(
                f"position 'rope' turns pairs of dimensions: head_dim must be even, not {self.head_size}"
                + (f", and so must be the part that turns, {self.turning_dim}." if part < 1 else ".")
            )

    def _validate_ntk_rope_parameters(self, parameters: dict[str, Any], ignore_keys: set[str] | None = None) -> None:
        """What transformers calls for this rope_type; it has one of its own for each type that it knows."""
        self._check_received_keys("ntk", set(parameters), {"rope_type", "factor"}, {"rope_theta"}, ignore_keys)
