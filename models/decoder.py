"""A decoder-only transformer whose variants are choices made when it is built.

`DecoderConfig` names the choices; the tables `NORMS`, `PLACEMENTS`, `POSITIONS`, `ATTENTIONS`, `FEED_FORWARDS` and
`ACTIVATIONS` turn each name into a module or function once, at construction, so that `forward` is the same few lines
for every member of the family.

Shapes: B batch, T new tokens, S keys in the cache (T included), H query heads, K key-value heads, D head size,
C hidden size, F feed-forward size, V vocabulary.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import MoeCausalLMOutputWithPast, MoeModelOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, slice_logits_to_keep
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from models import position_formulas as formulas
from models.configuration import FULL, SLIDING, DecoderConfig

Placed = tuple[Tensor, dict[str, Any]]  # embeddings (B, T, C), and what a position scheme hands on to the layers


def _seen(past_key_values: Cache | None) -> Any:
    """How many positions the cache holds; a number, or a tensor where the cache is made to be compiled."""
    return 0 if past_key_values is None else past_key_values.get_seq_length()


class RotaryPositions(nn.Module):
    """Rotary position embedding (Su et al. 2021, RoFormer, eq. 34), with dimensions i and i + D/2 as a pair.

    Where only a part of each head is turned, the other pairs have frequency 0: one rotation serves all.
    """

    name = "rotary_emb"

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        given = {"rope_theta": config.rope_theta, **(config.rope_parameters or {})}
        self.frequencies = partial(formulas.rotary_frequencies, config.head_size, config.turning_dim, given)
        self.attention_scaling = formulas.attention_scaling(given)
        self.inv_freq: Tensor
        self.register_buffer("inv_freq", self.frequencies(), persistent=False)

    @torch.no_grad()
    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines for position_ids (B, T): two tensors (B, 1, T, D), for all heads, in the dtype of x.

        The sines of the first half are negated here, once a step, and not in every layer.
        """
        signed = torch.cat((-self.inv_freq, self.inv_freq)).float()  # (D,)
        angles = position_ids[:, None, :, None] * signed  # (B, 1, T, D)
        cos, sin = angles.cos(), angles.sin()
        if self.attention_scaling != 1.0:  # once a step; what stands keeps its length
            lengths = (signed != 0) * (self.attention_scaling - 1.0) + 1.0
            cos, sin = cos * lengths, sin * lengths
        return cos.to(x.dtype), sin.to(x.dtype)

    def place(self, x: Tensor, position_ids: Tensor, past_key_values: Cache | None) -> Placed:
        """Leave the embeddings alone; the rotation is applied to queries and keys in every layer."""
        return x, {"position_embeddings": self(x, position_ids)}


class LearnedPositions(nn.Embedding):
    """One learned vector per position, added to the token's (Radford et al. 2019, GPT-2)."""

    name = "embed_positions"

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config.max_position_embeddings, config.hidden_size)

    def place(self, x: Tensor, position_ids: Tensor, past_key_values: Cache | None) -> Placed:
        """Add the position vectors to x (B, T, C); nothing is left to do in the layers."""
        return x + self(position_ids), {}


class NoPositions(nn.Module):
    """Order is known from the causal mask alone (Haviv et al. 2022, NoPos)."""

    name = "no_positions"

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.size = config.hidden_size

    def place(self, x: Tensor, position_ids: Tensor, past_key_values: Cache | None) -> Placed:
        """Leave everything alone."""
        return x, {}


class SinusoidalPositions(NoPositions):
    """Fixed waves added to the token's vector (Vaswani et al. 2017, section 3.5)."""

    name = "sinusoidal_positions"

    def place(self, x: Tensor, position_ids: Tensor, past_key_values: Cache | None) -> Placed:
        """Add the waves to x (B, T, C)."""
        return x + formulas.sinusoids(position_ids, self.size).to(x.dtype), {}


class AlibiPositions(nn.Module):
    """Attention with linear biases: -slope * distance on every score, one slope a head (Press et al. 2022, eq. 1)."""

    name = "alibi"

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.geometric_slopes = partial(formulas.alibi_slopes, config.num_attention_heads)
        self.slopes: Tensor
        self.register_buffer("slopes", self.geometric_slopes(), persistent=False)

    def place(self, x: Tensor, position_ids: Tensor, past_key_values: Cache | None) -> Placed:
        """Leave x alone; all layers get the bias (1, H, T, S) of query i and key j, slope * (j - i)."""
        new = x.shape[1]
        length = new if past_key_values is None else past_key_values.get_mask_sizes(new, 0)[0]
        key = torch.arange(length, device=x.device)  # (S,)
        query = torch.arange(new, device=x.device)[:, None] + _seen(past_key_values)  # (T, 1)
        return x, {"position_bias": (self.slopes[:, None, None] * (key - query)).to(x.dtype)[None]}


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
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """softmax(softcap(q k^T scaling) + bias + mask) v, written out: the output (B, T, H, D), the pattern (B, H, T, S).

    The mask is added, or bool with True where a query may look; without one, queries see all up to themselves.
    """
    key = key.repeat_interleave(module.num_key_value_groups, dim=1)  # (B, H, S, D)
    value = value.repeat_interleave(module.num_key_value_groups, dim=1)
    scores = query @ key.transpose(2, 3) * scaling
    if softcap is not None:  # Gemma 2, section 2
        scores = softcap * torch.tanh(scores / softcap)
    if position_bias is not None:
        scores = scores + position_bias
    if attention_mask is None:
        attention_mask = scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril(scores.shape[3] - scores.shape[2])
    if attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    else:
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
        self.scaling = config.score_scale
        self.attention_dropout = config.attention_dropout
        self.is_causal = True
        self.scores = config.score_options(layer_idx)
        self.qkv_proj = nn.Linear(config.hidden_size, sum(self.heads) * self.head_dim, bias=config.attention_bias)
        out_bias = bool(config.attention_out_bias)
        self.o_proj = ResidualLinear(self.heads[0] * self.head_dim, config.hidden_size, bias=out_bias)

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
        q, k = self.placed(qk, position_embeddings).split_with_sizes(self.heads[:2], dim=1)
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        dropout = self.attention_dropout if self.training else 0.0
        out, pattern = attend(
            self, q, k, v, attention_mask, scaling=self.scaling, dropout=dropout, **self.scores, **kwargs
        )
        return self.o_proj(out.reshape(batch * length, -1)).view_as(x), pattern

    def placed(self, qk: Tensor, position_embeddings: tuple[Tensor, Tensor] | None) -> Tensor:
        """Queries and keys (B, H + K, T, D), turned where the model turns them."""
        return qk if position_embeddings is None else apply_rotary_pos_emb(qk, None, *position_embeddings)[0]


class NormedAttention(DecoderAttention):
    """Attention that norms each query and key before it is turned (Henry et al. 2020; as in Qwen 3)."""

    def __init__(self, config: DecoderConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.q_norm, self.k_norm = (NORMS[config.norm](config, self.head_dim) for _ in range(2))

    def placed(self, qk: Tensor, position_embeddings: tuple[Tensor, Tensor] | None) -> Tensor:
        """Queries and keys (B, H + K, T, D), each normed over D, then turned."""
        q, k = qk.split_with_sizes(self.heads[:2], dim=1)
        return super().placed(torch.cat((self.q_norm(q), self.k_norm(k)), dim=1), position_embeddings)


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


class TopKRouter(nn.Linear):
    """Chooses each token's experts: the k likeliest, their shares made to sum to 1 (Mixtral 2024, section 2.1)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config.hidden_size, config.num_local_experts or 1, bias=False)
        self.chosen = config.num_experts_per_tok or 1

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """x (B T, C) -> logits (B T, E), and of the chosen experts their shares and numbers, (B T, k) each."""
        logits = super().forward(x)
        shares, experts = logits.softmax(-1, dtype=torch.float32).topk(self.chosen, dim=-1)
        return logits, (shares / shares.sum(-1, keepdim=True)).to(x.dtype), experts


class ExpertsFeedForward(nn.Module):
    """A mixture of gated feed-forward layers: each token goes through those that its router chose."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.act, self.experts = ACTIVATIONS[config.hidden_act], config.num_local_experts or 1
        self.gate = TopKRouter(config)
        self.gate_up_proj = nn.Parameter(torch.empty(self.experts, 2 * config.inner_size, config.hidden_size))
        self.down_proj = nn.Parameter(torch.empty(self.experts, config.hidden_size, config.inner_size))

    def forward(self, x: Tensor) -> Tensor:
        """Every position for itself, (B, T, C) -> (B, T, C)."""
        flat = x.flatten(0, 1)  # (B T, C)
        _, shares, chosen = self.gate(flat)
        out = torch.zeros_like(flat)
        for expert in range(self.experts):
            token, rank = torch.where(chosen == expert)
            gate, up = F.linear(flat[token], self.gate_up_proj[expert]).chunk(2, dim=-1)  # (tokens, F) each
            mixed = F.linear(self.act(gate) * up, self.down_proj[expert])
            out = out.index_add(0, token, mixed * shares[token, rank, None])
        return out.view_as(x)


NORMS: dict[str, Callable[[DecoderConfig, int], nn.Module]] = {
    "rmsnorm": lambda config, size: RMSNorm(size, eps=config.norm_eps),
    "layernorm": lambda config, size: nn.LayerNorm(size, eps=config.norm_eps, bias=config.norm_bias),
}
POSITIONS: dict[str, Callable[[DecoderConfig], nn.Module]] = {
    "rope": RotaryPositions,
    "learned": LearnedPositions,
    "sinusoidal": SinusoidalPositions,
    "alibi": AlibiPositions,
    "none": NoPositions,
}
ATTENTIONS: dict[bool, type[DecoderAttention]] = {False: DecoderAttention, True: NormedAttention}
FEED_FORWARDS: dict[str, type[nn.Module]] = {
    "gated": GatedFeedForward,
    "plain": PlainFeedForward,
    "experts": ExpertsFeedForward,
}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}
MASKS: dict[str, Callable[..., Any]] = {FULL: create_causal_mask, SLIDING: create_sliding_window_causal_mask}


class DecoderLayer(GradientCheckpointingLayer):
    """Attention, then feed-forward, each normed before and added to the residual stream after (pre-norm, GPT-2)."""

    norms: ClassVar[tuple[str, ...]] = ("input_layernorm", "post_attention_layernorm")
    input_layernorm: nn.Module
    post_attention_layernorm: nn.Module
    pre_feedforward_layernorm: nn.Module
    post_feedforward_layernorm: nn.Module

    def __init__(self, config: DecoderConfig, layer_idx: int) -> None:
        super().__init__()
        for name in self.norms:
            self.add_module(name, NORMS[config.norm](config, config.hidden_size))
        self.self_attn = ATTENTIONS[config.qk_norm](config, layer_idx)
        self.mlp = FEED_FORWARDS[config.feed_forward](config)
        self.residual_dropout = config.residual_dropout

    def forward(self, x: Tensor, attend: Callable, **kwargs: Any) -> Tensor:
        """One layer of the residual stream, (B, T, C) -> (B, T, C)."""
        x = x + self._drop(self.self_attn(self.input_layernorm(x), attend, **kwargs)[0])
        return x + self._drop(self.mlp(self.post_attention_layernorm(x)))

    def _drop(self, x: Tensor) -> Tensor:
        """Dropout of what is added to the residual stream (Vaswani et al. 2017, section 5.4)."""
        return F.dropout(x, self.residual_dropout, self.training) if self.residual_dropout else x


class PostNormLayer(DecoderLayer):
    """The residual stream itself is normed after each sum (Vaswani et al. 2017, section 3.1; GPT)."""

    norms = ("post_attention_layernorm", "post_feedforward_layernorm")

    def forward(self, x: Tensor, attend: Callable, **kwargs: Any) -> Tensor:
        """One layer, (B, T, C) -> (B, T, C)."""
        x = self.post_attention_layernorm(x + self._drop(self.self_attn(x, attend, **kwargs)[0]))
        return self.post_feedforward_layernorm(x + self._drop(self.mlp(x)))


class SandwichLayer(DecoderLayer):
    """Input and output of attention and of feed-forward are normed (Gemma 2, section 2)."""

    norms = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")

    def forward(self, x: Tensor, attend: Callable, **kwargs: Any) -> Tensor:
        """One layer, (B, T, C) -> (B, T, C)."""
        mixed = self.self_attn(self.input_layernorm(x), attend, **kwargs)[0]
        x = x + self._drop(self.post_attention_layernorm(mixed))
        return x + self._drop(self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x))))


class ParallelLayer(DecoderLayer):
    """Attention and feed-forward read the same normed stream side by side (PaLM, section 2; Falcon 7B)."""

    norms = ("input_layernorm",)

    def forward(self, x: Tensor, attend: Callable, **kwargs: Any) -> Tensor:
        """One layer, (B, T, C) -> (B, T, C)."""
        read = self.input_layernorm(x)
        return x + self._drop(self.self_attn(read, attend, **kwargs)[0]) + self._drop(self.mlp(read))


class ParallelTwoNormsLayer(DecoderLayer):
    """As `ParallelLayer`, each with a norm of its own (GPT-NeoX, section 2.1; Falcon 40B)."""

    def forward(self, x: Tensor, attend: Callable, **kwargs: Any) -> Tensor:
        """One layer, (B, T, C) -> (B, T, C)."""
        mixed = self.self_attn(self.input_layernorm(x), attend, **kwargs)[0]
        return x + self._drop(mixed) + self._drop(self.mlp(self.post_attention_layernorm(x)))


PLACEMENTS: dict[str, type[DecoderLayer]] = {
    "pre": DecoderLayer,
    "post": PostNormLayer,
    "sandwich": SandwichLayer,
    "parallel": ParallelLayer,
    "parallel_two_norms": ParallelTwoNormsLayer,
}


class DecoderPreTrainedModel(PreTrainedModel):
    """What transformers wants to know of the family: features, module names, initial weights."""

    config_class = DecoderConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = [layer.__name__ for layer in PLACEMENTS.values()]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _supports_sdpa = True
    _supports_flash_attn = property(lambda self: self.config.position != "alibi")  # neither takes a bias
    _supports_flex_attn = property(lambda self: self.config.position != "alibi")
    _supports_attention_backend = True
    _can_compile_fullgraph = property(lambda self: self.config.feed_forward != "experts")
    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": DecoderLayer,
        "attentions": DecoderAttention,
        "router_logits": OutputRecorder(TopKRouter, index=0),
    }

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        deep = self.config.initializer_range / (2 * self.config.num_hidden_layers) ** 0.5
        if isinstance(module, ResidualLinear):
            init.normal_(module.weight, mean=0.0, std=deep)
        elif isinstance(module, ExpertsFeedForward):
            init.normal_(module.gate_up_proj, mean=0.0, std=self.config.initializer_range)
            init.normal_(module.down_proj, mean=0.0, std=deep)
        # Buffers are not stored in checkpoints, so loading leaves them unset: fill them again.
        elif isinstance(module, RotaryPositions):
            init.copy_(module.inv_freq, module.frequencies())
        elif isinstance(module, AlibiPositions):
            init.copy_(module.slopes, module.geometric_slopes())


class DecoderModel(DecoderPreTrainedModel):
    """Embeddings, positions, layers and the final norm."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.embedding_multiplier = config.embedding_multiplier
        self.embed_norm = NORMS[config.norm](config, config.hidden_size) if config.embedding_norm else None
        positions: Any = POSITIONS[config.position](config)
        self.positions_name = positions.name  # its own, so that there is a `rotary_emb` only where there is a rotation
        self.add_module(self.positions_name, positions)
        layer = PLACEMENTS[config.norm_placement]
        self.layers = nn.ModuleList(layer(config, index) for index in range(config.num_hidden_layers))
        self.attention_kinds, self.kinds_once = config.attention_kinds, tuple(dict.fromkeys(config.attention_kinds))
        self.instead = {"sdpa": "eager"} if config.attn_logit_softcapping else {}  # the fused kernel knows no soft-cap
        normed = config.norm_placement == "post"  # the stream leaves the last layer normed
        self.norm = nn.Identity() if normed else NORMS[config.norm](config, config.hidden_size)
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
    ) -> MoeModelOutputWithPast:
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
        given = {"attention_mask": attention_mask, "past_key_values": past_key_values, "position_ids": position_ids}
        masks = {kind: self._mask(kind, x, given) for kind in self.kinds_once}
        x, handed_on = getattr(self, self.positions_name).place(self._enter(x), position_ids, past_key_values)
        told = {kind: {**kwargs, **given, **handed_on, "attention_mask": mask} for kind, mask in masks.items()}
        name = self.config._attn_implementation
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.instead.get(name, name), eager_attention_forward)
        for layer, kind in zip(self.layers, self.attention_kinds, strict=True):
            x = layer(x, attend, **told[kind])
        return MoeModelOutputWithPast(last_hidden_state=self.norm(x), past_key_values=past_key_values)

    def _enter(self, x: Tensor) -> Tensor:
        """Token embeddings (B, T, C) as they enter the residual stream: scaled (Gemma) or normed (BLOOM) or neither."""
        if self.embedding_multiplier != 1.0:
            x = x * torch.tensor(self.embedding_multiplier, dtype=x.dtype)
        return x if self.embed_norm is None else self.embed_norm(x)

    @staticmethod
    def _positions(x: Tensor, past_key_values: Cache | None) -> Tensor:
        """Positions (1, T) that follow on what the cache holds."""
        seen = _seen(past_key_values)
        return torch.arange(seen, seen + x.shape[1], device=x.device).unsqueeze(0)

    def _mask(self, kind: str, x: Tensor, given: dict[str, Any]) -> Any:
        """The causal mask in the form that the attention function wants; None means that nothing is hidden.

        One new token sees everything in a cache that holds just what came before it: no mask to build, until a window
        is full. A cache of fixed length (it calls itself compileable) also holds places not written yet.
        """
        past, mask = given["past_key_values"], given["attention_mask"]
        plain = x.shape[1] == 1 and mask is None and not getattr(past, "is_compileable", False)
        if plain and (kind == FULL or _seen(past) < self.config.sliding_window):
            return None
        return MASKS[kind](config=self.config, inputs_embeds=x, **given)


class DecoderForCausalLM(DecoderPreTrainedModel, GenerationMixin):
    """The decoder with a head that turns hidden states into logits."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.model = DecoderModel(config)
        self.vocab_size, self.softcap = config.vocab_size, config.final_logit_softcapping
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
    ) -> MoeCausalLMOutputWithPast:
        """As `DecoderModel.forward`, plus logits (B, T or logits_to_keep, V) and, with labels (B, T), the mean loss.

        The loss is in nats per token.
        """
        outputs = self.model(
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache, **kwargs
        )
        logits = self.lm_head(slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep))
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.vocab_size, **kwargs)
        return MoeCausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            router_logits=outputs.router_logits,
        )
