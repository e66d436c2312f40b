"""A decoder-only transformer whose variants are choices made when it is built.

`DecoderConfig` names the choices; the tables `NORMS`, `POSITIONS`, `FEED_FORWARDS` and `ACTIVATIONS` turn each name
into a module or function once, at construction, so that `forward` is the same few lines for every member of the family.

Shapes: B batch, T new tokens, S keys in the cache (T included), H query heads, K key-value heads, D head size,
C hidden size, F feed-forward size, V vocabulary.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, slice_logits_to_keep
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs


class DecoderConfig(PreTrainedConfig):
    """The shape of a decoder and its switches; keys mean what they mean in transformers.

    norm: "rmsnorm" | "layernorm"; position: "rope" | "learned"; feed_forward: "gated" | "plain";
    hidden_act: a key of `ACTIVATIONS` ("gated" with "silu" is SwiGLU). Equal `num_attention_heads` and
    `num_key_value_heads` give multi-head attention, fewer of the latter grouped-query, one multi-query attention.
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
    position: str = "rope"
    rope_parameters: dict | None = None
    feed_forward: str = "gated"
    hidden_act: str = "silu"
    attention_bias: bool = False
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
        self.num_key_value_heads = self.heads[1]
        self.head_dim = self.head_size
        self.intermediate_size = self.inner_size
        self._check_choices()
        self._check_heads()
        super().__post_init__(**kwargs)
        if self.position != "rope":
            self.rope_parameters = None

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
        """Width of the feed-forward layer: `intermediate_size`, or four times the hidden size."""
        return self.intermediate_size or 4 * self.hidden_size

    @property
    def rope_theta(self) -> float | None:
        """Base of the rotary frequencies, None for a model without rotary positions."""
        if self.position != "rope":
            return None
        return (self.rope_parameters or {}).get("rope_theta", self.default_theta)

    def _check_counts(self) -> None:
        for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, not {getattr(self, key)}.")
        for key in ("intermediate_size", "num_key_value_heads", "head_dim"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ValueError(f"{key} must be at least 1, not {value}.")

    def _check_choices(self) -> None:
        tables: dict[str, dict[str, Any]] = {
            "norm": NORMS,
            "position": POSITIONS,
            "feed_forward": FEED_FORWARDS,
            "hidden_act": ACTIVATIONS,
        }
        for key, table in tables.items():
            if getattr(self, key) not in table:
                raise ValueError(f"{key} {getattr(self, key)!r} is unknown; choose one of {', '.join(table)}.")

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
        if self.position == "rope" and self.head_size % 2:
            raise ValueError(f"position 'rope' turns pairs of dimensions: head_dim must be even, not {self.head_size}.")


class RotaryPositions(nn.Module):
    """Rotary position embedding (Su et al. 2021, RoFormer, eq. 34), with dimensions i and i + D/2 as a pair."""

    name = "rotary_emb"

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.head_dim, self.theta = config.head_size, config.rope_theta or config.default_theta
        self.attention_scaling = 1.0
        self.inv_freq: Tensor
        self.register_buffer("inv_freq", self.frequencies(), persistent=False)

    def frequencies(self) -> Tensor:
        """Radians per position of each pair, shape (D / 2,): theta ** (-2 i / D)."""
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device="cpu") / self.head_dim
        return 1.0 / self.theta**exponents

    @torch.no_grad()
    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines for position_ids (B, T): two tensors (B, 1, T, D), for all heads, in the dtype of x.

        The sines of the first half are negated here, once a step, and not in every layer.
        """
        signed = torch.cat((-self.inv_freq, self.inv_freq)).float()  # (D,)
        angles = position_ids[:, None, :, None] * signed  # (B, 1, T, D)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    def place(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Leave the embeddings alone; the rotation is applied to queries and keys in every layer."""
        return x, self(x, position_ids)


class LearnedPositions(nn.Embedding):
    """One learned vector per position, added to the token's (Radford et al. 2019, GPT-2)."""

    name = "embed_positions"

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config.max_position_embeddings, config.hidden_size)

    def place(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Add the position vectors to x (B, T, C); nothing is left to do in the layers."""
        return x + self(position_ids), None


def apply_rotary_pos_emb(q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor | None]:
    """Turn q (B, H, T, D) and k (B, K, T, D) by what `RotaryPositions` made, cos and signed sin (B, 1, T, D).

    k is None where q holds the queries and, behind them, the keys: one pass turns both.
    """
    return _turn(q, cos, sin), None if k is None else _turn(k, cos, sin)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Dimension i of x (..., D) meets i + D / 2."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)


def eager_attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """softmax(q k^T scaling + mask) v, written out: returns the output (B, T, H, D) and the pattern (B, H, T, S)."""
    key = key.repeat_interleave(module.num_key_value_groups, dim=1)  # (B, H, S, D)
    value = value.repeat_interleave(module.num_key_value_groups, dim=1)
    scores = query @ key.transpose(2, 3) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    pattern = scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype)
    out = F.dropout(pattern, dropout, module.training) @ value
    return out.transpose(1, 2).contiguous(), pattern


class RMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x^2) + eps) * w (Zhang and Sennrich 2019, eq. 4)."""

    eps: float

    def forward(self, x: Tensor) -> Tensor:
        """x (..., C) -> (..., C).

        On a CPU `F.rms_norm` is six kernels. The one row of a decode step needs two, a dot product and a scaled
        product, and a square root that Python takes at no cost: a quarter of the time, 17 times a step.
        """
        weight = self.weight
        if x.numel() != weight.numel() or not _plain_float32_on_cpu(x):
            return super().forward(x)
        row = x.reshape(-1)  # (C,)
        scale = (float(torch.dot(row, row)) / row.numel() + self.eps) ** -0.5
        return torch.addcmul(ZERO, x, weight, value=scale)


ZERO = torch.zeros(())


def _plain_float32_on_cpu(x: Tensor) -> bool:
    """Whether neither gradients nor a compiler want to see what is done to x, and its numbers are Python's."""
    return x.is_cpu and x.dtype is torch.float32 and not torch.is_grad_enabled() and not torch.compiler.is_compiling()


class ResidualLinear(nn.Linear):
    """A projection that writes to the residual stream: its initial weights shrink with depth (GPT-2, section 2.3)."""


class DecoderAttention(nn.Module):
    """Causal self-attention with one projection for queries, keys and values."""

    def __init__(self, config: DecoderConfig, layer_idx: int) -> None:
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.head_dim, self.heads = config.head_size, config.heads
        self.num_key_value_groups = self.heads[0] // self.heads[1]
        self.scaling = self.head_dim**-0.5
        self.attention_dropout = config.attention_dropout
        self.is_causal = True
        self.qkv_proj = nn.Linear(config.hidden_size, sum(self.heads) * self.head_dim, bias=config.attention_bias)
        self.o_proj = ResidualLinear(self.heads[0] * self.head_dim, config.hidden_size, bias=config.attention_bias)

    def forward(
        self,
        x: Tensor,
        attend: Callable,
        attention_mask: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """From x (B, T, C), what the layer adds to the residual stream (B, T, C), and the pattern if `attend` gives it.

        A cache, where there is one, gets the new keys and values and answers with all of them (B, K, S, D).
        """
        batch, length, _ = x.shape
        flat = x.flatten(0, 1)  # (B T, C): torch takes a shorter way to a product of two matrices
        qkv = self.qkv_proj(flat).view(batch, length, -1, self.head_dim).transpose(1, 2)  # (B, H + 2K, T, D)
        qk, v = qkv.split_with_sizes((self.heads[0] + self.heads[1], self.heads[2]), dim=1)  # turned; not turned
        if position_embeddings is not None:
            qk, _ = apply_rotary_pos_emb(qk, None, *position_embeddings)
        q, k = qk.split_with_sizes(self.heads[:2], dim=1)
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        dropout = self.attention_dropout if self.training else 0.0
        out, pattern = attend(self, q, k, v, attention_mask, scaling=self.scaling, dropout=dropout, **kwargs)
        return self.o_proj(out.reshape(batch * length, -1)).view_as(x), pattern


class PlainFeedForward(nn.Module):
    """act(x W1) W2 (Vaswani et al. 2017, eq. 2)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.act = ACTIVATIONS[config.hidden_act]
        self.up_proj = nn.Linear(config.hidden_size, config.inner_size, bias=config.mlp_bias)
        self.down_proj = ResidualLinear(config.inner_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Every position for itself, (B, T, C) -> (B, T, C)."""
        return self.down_proj(self.act(self.up_proj(x)))


class GatedFeedForward(nn.Module):
    """(act(x Wg) * x Wu) Wd (Shazeer 2020, eq. 6), with gate and up in one projection."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.act = ACTIVATIONS[config.hidden_act]
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.inner_size, bias=config.mlp_bias)
        self.down_proj = ResidualLinear(config.inner_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Every position for itself, (B, T, C) -> (B, T, C)."""
        gate, up = self.gate_up_proj(x.flatten(0, 1)).chunk(2, dim=-1)  # (B T, F) each
        return self.down_proj(self.act(gate) * up).view_as(x)


NORMS: dict[str, Callable[[DecoderConfig], nn.Module]] = {
    "rmsnorm": lambda config: RMSNorm(config.hidden_size, eps=config.norm_eps),
    "layernorm": lambda config: nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=config.norm_bias),
}
POSITIONS: dict[str, type[RotaryPositions] | type[LearnedPositions]] = {
    "rope": RotaryPositions,
    "learned": LearnedPositions,
}
FEED_FORWARDS: dict[str, type[nn.Module]] = {"gated": GatedFeedForward, "plain": PlainFeedForward}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


class DecoderLayer(GradientCheckpointingLayer):
    """Attention, then feed-forward, each normed before and added to the residual stream after."""

    def __init__(self, config: DecoderConfig, layer_idx: int) -> None:
        super().__init__()
        self.input_layernorm = NORMS[config.norm](config)
        self.self_attn = DecoderAttention(config, layer_idx)
        self.post_attention_layernorm = NORMS[config.norm](config)
        self.mlp = FEED_FORWARDS[config.feed_forward](config)
        self.residual_dropout = config.residual_dropout

    def forward(self, x: Tensor, attend: Callable, **kwargs: Any) -> Tensor:
        """One layer of the residual stream, (B, T, C) -> (B, T, C)."""
        x = x + self._drop(self.self_attn(self.input_layernorm(x), attend, **kwargs)[0])
        return x + self._drop(self.mlp(self.post_attention_layernorm(x)))

    def _drop(self, x: Tensor) -> Tensor:
        """Dropout of what is added to the residual stream (Vaswani et al. 2017, section 5.4)."""
        return F.dropout(x, self.residual_dropout, self.training) if self.residual_dropout else x


class DecoderPreTrainedModel(PreTrainedModel):
    """What transformers wants to know of the family: features, module names, initial weights."""

    config_class = DecoderConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["DecoderLayer"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": DecoderLayer, "attentions": DecoderAttention}  # noqa: RUF012

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, ResidualLinear):
            depth = 2 * self.config.num_hidden_layers
            init.normal_(module.weight, mean=0.0, std=self.config.initializer_range / depth**0.5)
        elif isinstance(module, RotaryPositions):
            # The buffer is not stored in checkpoints, so loading leaves it unset: fill it again.
            init.copy_(module.inv_freq, module.frequencies())


class DecoderModel(DecoderPreTrainedModel):
    """Embeddings, positions, layers and the final norm."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        # Registered under the scheme's own name, so that readers find `rotary_emb` only where there is a rotation.
        self.positions_name = POSITIONS[config.position].name
        self.add_module(self.positions_name, POSITIONS[config.position](config))
        self.layers = nn.ModuleList(DecoderLayer(config, index) for index in range(config.num_hidden_layers))
        self.norm = NORMS[config.norm](config)
        self.gradient_checkpointing = False
        self.post_init()

    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """input_ids (B, T) or inputs_embeds (B, T, C) -> last_hidden_state (B, T, C) after the final norm.

        attention_mask: (B, S) with 0 for padding, or (B, 1, T, S). Raises ValueError unless exactly one input is given.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give exactly one of input_ids and inputs_embeds.")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if past_key_values is None and (self.config.use_cache if use_cache is None else use_cache):
            past_key_values = DynamicCache()
        if position_ids is None:
            position_ids = self._positions(x, past_key_values)
        mask = self._mask(x, attention_mask, past_key_values, position_ids)
        x, position_embeddings = getattr(self, self.positions_name).place(x, position_ids)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        for layer in self.layers:
            x = layer(
                x,
                attend,
                attention_mask=mask,
                position_embeddings=position_embeddings,
                past_key_values=past_key_values,
                position_ids=position_ids,
                **kwargs,
            )
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x), past_key_values=past_key_values)

    @staticmethod
    def _positions(x: Tensor, past_key_values: Cache | None) -> Tensor:
        """Positions (1, T) that follow on what the cache holds."""
        seen = past_key_values.get_seq_length() if past_key_values is not None else 0
        return torch.arange(seen, seen + x.shape[1], device=x.device).unsqueeze(0)

    def _mask(
        self, x: Tensor, attention_mask: Tensor | None, past_key_values: Cache | None, position_ids: Tensor
    ) -> Any:
        """The causal mask in the form that the attention function wants; None means that nothing is hidden.

        One new token sees everything in a cache that holds just what came before it: no mask to build. A cache of
        fixed length (it calls itself compileable) also holds places not written yet, which must be masked.
        """
        if x.shape[1] == 1 and attention_mask is None and not getattr(past_key_values, "is_compileable", False):
            return None
        return create_causal_mask(
            config=self.config,
            inputs_embeds=x,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            position_ids=position_ids,
        )


class DecoderForCausalLM(DecoderPreTrainedModel, GenerationMixin):
    """The decoder with a head that turns hidden states into logits."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.model = DecoderModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """As `DecoderModel.forward`, plus logits (B, T or logits_to_keep, V) and, with labels (B, T), the mean loss.

        The loss is in nats per token.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        logits = self.lm_head(slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
