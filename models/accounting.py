"""What a design costs: parameters, FLOPs, bytes and the speed that memory allows, from its configuration alone.

Every sum is a formula in the keys of `DecoderConfig`; tests hold them against `sum(p.numel())`, against
`torch.utils.flop_counter` and against `nbytes`. A multiply-add counts as two FLOPs; only matrix products are counted,
as the flop counter does. Symbols: B batch, T tokens, S keys, L layers, H query heads, K key-value heads, D head size,
C hidden size, F feed-forward size, V vocabulary, E experts, k of them chosen.
"""

from dataclasses import asdict, dataclass

from models.configuration import SLIDING, DecoderConfig

NORMS_PER_LAYER = {"pre": 2, "post": 2, "sandwich": 4, "parallel": 1, "parallel_two_norms": 2}
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}


@dataclass(frozen=True)
class Device:
    """A processor as its maker's data sheet has it: memory in bytes, bandwidth in bytes/s, dense 16-bit FLOPs/s."""

    name: str
    memory: float
    bandwidth: float
    flops: float


DEVICES = {
    device.name: device
    for device in (
        Device("NVIDIA A100 80 GB SXM", 80e9, 2.039e12, 312e12),
        Device("NVIDIA H100 SXM", 80e9, 3.35e12, 989e12),
        Device("NVIDIA H200 SXM", 141e9, 4.8e12, 989e12),
        Device("NVIDIA L4", 24e9, 0.3e12, 121e12),
        Device("NVIDIA RTX 4090", 24e9, 1.008e12, 165e12),
        Device("two channels of DDR5-4800", 64e9, 76.8e9, 1e12),
    )
}


@dataclass(frozen=True)
class Parameters:
    """Weights by part; tied matrices count once, with the embedding."""

    embedding: int
    positions: int
    attention: int
    feed_forward: int
    router: int
    norms: int
    head: int

    @property
    def total(self) -> int:
        """All of them: `sum(p.numel() for p in model.parameters())`."""
        return sum(asdict(self).values())


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of a forward pass by part; `scores` are q kT and pattern v, the part that is T^2."""

    projections: int
    scores: int
    feed_forward: int
    router: int
    head: int

    @property
    def total(self) -> int:
        """All matrix products."""
        return sum(asdict(self).values())


def _norm_size(config: DecoderConfig, size: int) -> int:
    return size * (2 if config.norm == "layernorm" and config.norm_bias else 1)


def _attention_parameters(config: DecoderConfig) -> int:
    """Of one layer: C (H + 2 K) D for q, k, v and H D C for the output, with biases."""
    width, size = config.hidden_size, config.head_size
    into = sum(config.heads) * size
    biases = into * config.attention_bias + width * bool(config.attention_out_bias)
    return width * into + config.heads[0] * size * width + biases


def _expert_parameters(config: DecoderConfig) -> int:
    """Of one feed-forward layer or expert: 2 C F, or 3 C F where it is gated, with biases."""
    width, inner, matrices = config.hidden_size, config.inner_size, 2 if config.feed_forward == "plain" else 3
    return matrices * width * inner + config.mlp_bias * ((matrices - 1) * inner + width)


def parameters(config: DecoderConfig, active: bool = False) -> Parameters:
    """Weights by part; with `active`, of the experts only those that one token goes through."""
    layers, width, experts = config.num_hidden_layers, config.hidden_size, config.num_local_experts or 1
    used = (config.num_experts_per_tok or 1) if active else experts
    final = 0 if config.norm_placement == "post" else 1
    norms = layers * NORMS_PER_LAYER[config.norm_placement] + final + config.embedding_norm
    of_heads = 2 * layers * config.qk_norm * _norm_size(config, config.head_size)
    return Parameters(
        embedding=config.vocab_size * width,
        positions=config.max_position_embeddings * width if config.position == "learned" else 0,
        attention=layers * _attention_parameters(config),
        feed_forward=layers * used * _expert_parameters(config),
        router=layers * experts * width if config.feed_forward == "experts" else 0,
        norms=norms * _norm_size(config, width) + of_heads,
        head=0 if config.tie_word_embeddings else config.vocab_size * width,
    )


def _matrix_flops(config: DecoderConfig, tokens: int, logits: int) -> dict[str, int]:
    """Products with weights, for `tokens` positions of which `logits` go through the head."""
    layers, width, size = config.num_hidden_layers, config.hidden_size, config.head_size
    matrices, chosen = 2 if config.feed_forward == "plain" else 3, config.num_experts_per_tok or 1
    router = layers * width * (config.num_local_experts or 0)
    return {
        "projections": 2 * tokens * layers * width * (sum(config.heads) + config.heads[0]) * size,
        "feed_forward": 2 * tokens * layers * chosen * matrices * width * config.inner_size,
        "router": 2 * tokens * router,
        "head": 2 * logits * width * config.vocab_size,
    }


def _pairs(config: DecoderConfig, layer: int, tokens: int) -> int:
    """Pairs of query and key that a layer's mask leaves of tokens * tokens."""
    window = config.sliding_window if config.attention_kinds[layer] == SLIDING else None
    reach = min(window or tokens, tokens)
    return reach * (reach + 1) // 2 + (tokens - reach) * reach


def prefill_flops(config: DecoderConfig, tokens: int, logits: int | None = None, masked: bool = False) -> Flops:
    """FLOPs of one pass over `tokens` positions of an empty cache.

    Args:
        config: the design.
        tokens: T.
        logits: how many positions go through the head; all when None, 1 when only the next token is wanted.
        masked: count of q kT and pattern v only the pairs that the mask leaves, about half, in place of all T * T
            that a plain matrix product works out.
    """
    layers = range(config.num_hidden_layers)
    pairs = sum(_pairs(config, layer, tokens) if masked else tokens * tokens for layer in layers)
    scores = 4 * pairs * config.heads[0] * config.head_size  # 2 for q kT, 2 for pattern v
    return Flops(scores=scores, **_matrix_flops(config, tokens, tokens if logits is None else logits))


def _seen(config: DecoderConfig, layer: int, length: int) -> int:
    """How many of `length` positions the last one sees in a layer, itself included."""
    window = config.sliding_window if config.attention_kinds[layer] == SLIDING else None
    return min(window or length, length)


def decode_flops(config: DecoderConfig, length: int, masked: bool = True) -> Flops:
    """FLOPs of one new token, the `length`-th; unless `masked`, layers with a window work all keys out."""
    layers = range(config.num_hidden_layers)
    keys = sum(_seen(config, layer, length) if masked else length for layer in layers)
    scores = 4 * keys * config.heads[0] * config.head_size
    return Flops(scores=scores, **_matrix_flops(config, 1, 1))


def kv_bytes(config: DecoderConfig, length: int, item_bytes: int = 2, batch: int = 1, trimmed: bool = False) -> int:
    """Bytes of keys and values: 2 L K D length item_bytes batch.

    With `trimmed`, layers with a window keep no more positions than it holds.
    """
    layers = range(config.num_hidden_layers)
    kept = sum(_seen(config, layer, length) if trimmed else length for layer in layers)
    return 2 * kept * config.heads[1] * config.head_size * item_bytes * batch


def weight_bytes(config: DecoderConfig, item_bytes: int = 2) -> int:
    """Bytes of all weights."""
    return parameters(config).total * item_bytes


def bytes_read(config: DecoderConfig, length: int, item_bytes: int = 2, kv_item_bytes: int | None = None) -> int:
    """Bytes that one decode step must read: the weights that the token goes through, and the cache that it sees.

    Of the embedding and of learned positions one row each, but a tied embedding whole, as it is the head. For one
    sequence; activations are left out: they are thousands of times smaller.
    """
    found = parameters(config, active=True)
    rows = config.hidden_size * (1 + (config.position == "learned"))
    table = found.embedding if config.tie_word_embeddings else 0
    weights = found.total - found.embedding - found.positions + rows + table
    cache = kv_bytes(config, length, kv_item_bytes or item_bytes, trimmed=True)
    return weights * item_bytes + cache


def intensity(config: DecoderConfig, length: int, item_bytes: int = 2) -> float:
    """FLOPs per byte read in a decode step; below `flops / bandwidth` of a device, memory is what bounds its speed."""
    return decode_flops(config, length).total / bytes_read(config, length, item_bytes)


def tokens_per_second(config: DecoderConfig, device: Device, length: int, item_bytes: int = 2) -> float:
    """The most tokens/s of one sequence on a device: its bandwidth over the bytes of a step, or its FLOPs if fewer."""
    by_memory = device.bandwidth / bytes_read(config, length, item_bytes)
    return min(by_memory, device.flops / decode_flops(config, length).total)


def activation_bytes(config: DecoderConfig, tokens: int, item_bytes: int = 2, fused: bool = True) -> int:
    """An estimate of what a training step keeps of one sequence for the backward pass, without checkpointing.

    Counted per layer and token, in numbers: what enters each norm and each matrix, the three factors of a gated layer,
    q, k, v and what they mix to; unless the attention kernel is `fused`, the pattern too, H T a token. At the end the
    logits with their log-probabilities in float32. The method is that of Korthikanti et al. 2022, section 4.
    """
    width, size, inner = config.hidden_size, config.head_size, config.inner_size
    norms, chosen = NORMS_PER_LAYER[config.norm_placement], config.num_experts_per_tok or 1
    attention = width + sum(config.heads) * size + config.heads[0] * size
    attention += 0 if fused else config.heads[0] * tokens
    gated = 0 if config.feed_forward == "plain" else 2
    per_token = norms * width + attention + width + chosen * (2 + gated) * inner
    layers = config.num_hidden_layers * per_token * item_bytes
    ends = 2 * width * item_bytes + config.vocab_size * (item_bytes + 4)
    return tokens * (layers + ends)
