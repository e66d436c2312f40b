"""Named designs of the family: what the published configurations and papers say, as data only.

`Preset.parameters` is the number of weights of the published checkpoint, tied matrices counted once; where none was
published it is None and `Preset.stated` is what the paper says.
"""

from dataclasses import dataclass, field
from typing import Any

from models.configuration import FULL, SLIDING, DecoderConfig


@dataclass(frozen=True)
class Preset:
    """A design: its switches (keys of `DecoderConfig`) and where they are published."""

    name: str
    stated: str
    parameters: int | None
    source: str
    switches: dict[str, Any] = field(repr=False)

    def config(self, **changes: Any) -> DecoderConfig:
        """The configuration, with changes to its switches."""
        return DecoderConfig(**{**self.switches, **changes})


def _shape(hidden: int, layers: int, heads: int, inner: int, vocab: int, context: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": inner,
        "vocab_size": vocab, "max_position_embeddings": context, **more,
    }  # fmt: skip


_PLAIN = {"norm": "layernorm", "feed_forward": "plain"}
_BIASES = {"attention_bias": True, "mlp_bias": True}


def _gpt(hidden: int, layers: int, heads: int, context: int) -> dict[str, Any]:
    switches = {**_PLAIN, **_BIASES, "position": "learned", "hidden_act": "gelu_new"}
    return _shape(hidden, layers, heads, 4 * hidden, 50257, context, **switches)


def _llama(hidden: int, layers: int, heads: int, inner: int, context: int, vocab: int = 32000, **more: Any) -> dict:
    return _shape(hidden, layers, heads, inner, vocab, context, **{"tie_word_embeddings": False, **more})


def _llama3(hidden: int, layers: int, heads: int, inner: int, factor: float | None = None, **more: Any) -> dict:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 500000.0}
    if factor:
        rope |= {
            "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }  # fmt: skip
    context = 131072 if factor else 8192
    shape = {"num_key_value_heads": 8, "rope_parameters": rope, **more}
    return _llama(hidden, layers, heads, inner, context, 128256, **shape)


def _qwen2(hidden: int, layers: int, heads: int, shared: int, inner: int, vocab: int, tied: bool) -> dict[str, Any]:
    biases = {"attention_bias": True, "attention_out_bias": False, "norm_eps": 1e-6, "rope_theta": 1e6}
    return _shape(
        hidden, layers, heads, inner, vocab, 131072, num_key_value_heads=shared, tie_word_embeddings=tied, **biases
    )


def _gemma(hidden: int, layers: int, heads: int, shared: int, inner: int, size: int = 256, **more: Any) -> dict:
    switches = {
        "num_key_value_heads": shared, "head_dim": size, "hidden_act": "gelu_pytorch_tanh", "norm_eps": 1e-6,
        "embedding_multiplier": hidden**0.5,
    }  # fmt: skip
    return _shape(hidden, layers, heads, inner, 256000, 8192, **{**switches, **more})


def _gemma2(hidden: int, layers: int, heads: int, shared: int, inner: int, size: int, scale: float) -> dict[str, Any]:
    return _gemma(
        hidden, layers, heads, shared, inner, size,
        norm_placement="sandwich", query_pre_attn_scalar=scale, attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0, sliding_window=4096,
        layer_types=[FULL if layer % 2 else SLIDING for layer in range(layers)],
    )  # fmt: skip


def _bloom(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    switches = {**_PLAIN, **_BIASES, "position": "alibi", "hidden_act": "gelu_new", "embedding_norm": True}
    return _shape(hidden, layers, heads, 4 * hidden, 250880, 2048, **switches)


def _mpt(hidden: int, layers: int, heads: int, context: int) -> dict[str, Any]:
    switches = {**_PLAIN, "norm_bias": False, "position": "alibi", "hidden_act": "gelu"}
    return _shape(hidden, layers, heads, 4 * hidden, 50432, context, **switches)


_FALCON = {**_PLAIN, "hidden_act": "gelu", "head_dim": 64}
_NEOX = {
    **_PLAIN, **_BIASES, "norm_placement": "parallel_two_norms", "hidden_act": "gelu", "partial_rotary_factor": 0.25,
    "tie_word_embeddings": False,
}  # fmt: skip
_EXPERTS: dict[str, Any] = {
    "num_key_value_heads": 8, "rope_theta": 1e6, "feed_forward": "experts", "num_local_experts": 8,
    "num_experts_per_tok": 2,
}  # fmt: skip

GPT2_PAPER = "Radford et al. 2019, table 2; hub openai-community/gpt2*"
GPT3_PAPER = "Brown et al. 2020, arXiv 2005.14165, table 2.1 (its banded layers are taken as full ones)"
LLAMA_PAPER = "Touvron et al. 2023, arXiv 2302.13971, table 2"
LLAMA2_PAPER = "Touvron et al. 2023, arXiv 2307.09288, table 1; hub meta-llama/Llama-2-*"
LLAMA3_PAPER = "Llama Team 2024, arXiv 2407.21783, table 3; hub meta-llama"
QWEN2_PAPER = "Yang et al. 2024, arXiv 2407.10671, table 1; hub Qwen/Qwen2-*"
GEMMA_PAPER = "Gemma Team 2024, arXiv 2403.08295, table 1; hub google/gemma-*"
GEMMA2_PAPER = "Gemma Team 2024, arXiv 2408.00118, table 1; hub google/gemma-2-*"
FALCON_PAPER = "Almazrouei et al. 2023, arXiv 2311.16867; hub tiiuae/falcon-*"
MPT_PAPER = "MosaicML 2023, blog posts on MPT-7B and MPT-30B; hub mosaicml/mpt-*"
BLOOM_PAPER = "Le Scao et al. 2022, arXiv 2211.05100, table 3; hub bigscience/bloom*"
MISTRAL_PAPER = "Jiang et al. 2023, arXiv 2310.06825, table 1; hub mistralai/Mistral-7B-v0.1"
MIXTRAL_PAPER = "Jiang et al. 2024, arXiv 2401.04088, table 1; hub mistralai/Mixtral-*"
NEOX_PAPER = "Black et al. 2022, arXiv 2204.06745; hub EleutherAI/gpt-neox-20b"

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("GPT-2 small", "124M", 124_439_808, GPT2_PAPER, _gpt(768, 12, 12, 1024)),
        Preset("GPT-2 medium", "355M", 354_823_168, GPT2_PAPER, _gpt(1024, 24, 16, 1024)),
        Preset("GPT-2 Large", "774M", 774_030_080, GPT2_PAPER, _gpt(1280, 36, 20, 1024)),
        Preset("GPT-2 XL", "1.5B", 1_557_611_200, GPT2_PAPER, _gpt(1600, 48, 25, 1024)),
        Preset("GPT-3 175B", "175B", None, GPT3_PAPER, _gpt(12288, 96, 96, 2048)),
        Preset("LLaMA 7B", "6.7B", 6_738_415_616, LLAMA_PAPER, _llama(4096, 32, 32, 11008, 2048, norm_eps=1e-6)),
        Preset("LLaMA 13B", "13.0B", 13_015_864_320, LLAMA_PAPER, _llama(5120, 40, 40, 13824, 2048, norm_eps=1e-6)),
        Preset("LLaMA 33B", "32.5B", 32_528_943_616, LLAMA_PAPER, _llama(6656, 60, 52, 17920, 2048, norm_eps=1e-6)),
        Preset("LLaMA 65B", "65.2B", 65_285_660_672, LLAMA_PAPER, _llama(8192, 80, 64, 22016, 2048, norm_eps=1e-6)),
        Preset("LLaMA-2 7B", "7B", 6_738_415_616, LLAMA2_PAPER, _llama(4096, 32, 32, 11008, 4096)),
        Preset("LLaMA-2 13B", "13B", 13_015_864_320, LLAMA2_PAPER, _llama(5120, 40, 40, 13824, 4096)),
        Preset(
            "LLaMA-2 70B", "70B", 68_976_648_192, LLAMA2_PAPER,
            _llama(8192, 80, 64, 28672, 4096, num_key_value_heads=8),
        ),
        Preset("LLaMA-3 8B", "8B", 8_030_261_248, LLAMA3_PAPER, _llama3(4096, 32, 32, 14336)),
        Preset("LLaMA-3 70B", "70B", 70_553_706_496, LLAMA3_PAPER, _llama3(8192, 80, 64, 28672)),
        Preset("LLaMA-3.1 405B", "405B", 405_853_388_800, LLAMA3_PAPER, _llama3(16384, 126, 128, 53248, 8.0)),
        Preset(
            "LLaMA-3.2 1B", "1B", 1_235_814_400, "Meta 2024; hub meta-llama/Llama-3.2-1B",
            _llama3(2048, 16, 32, 8192, 32.0, tie_word_embeddings=True),
        ),
        Preset(
            "Mistral 7B", "7B", 7_241_732_096, MISTRAL_PAPER,
            _llama(4096, 32, 32, 14336, 32768, num_key_value_heads=8, sliding_window=4096),
        ),
        Preset("Mixtral 8x7B", "47B", 46_702_792_704, MIXTRAL_PAPER, _llama(4096, 32, 32, 14336, 32768, **_EXPERTS)),
        Preset(
            "Mixtral 8x22B", "141B", 140_630_071_296, MIXTRAL_PAPER,
            _llama(6144, 56, 48, 16384, 65536, 32768, **_EXPERTS),
        ),
        Preset("Qwen2 0.5B", "0.5B", 494_032_768, QWEN2_PAPER, _qwen2(896, 24, 14, 2, 4864, 151936, tied=True)),
        Preset("Qwen2 1.5B", "1.5B", 1_543_714_304, QWEN2_PAPER, _qwen2(1536, 28, 12, 2, 8960, 151936, tied=True)),
        Preset("Qwen2 7B", "7B", 7_615_616_512, QWEN2_PAPER, _qwen2(3584, 28, 28, 4, 18944, 152064, tied=False)),
        Preset("Qwen2 72B", "72B", 72_706_203_648, QWEN2_PAPER, _qwen2(8192, 80, 64, 8, 29568, 152064, tied=False)),
        Preset("Gemma 2B", "2B", 2_506_172_416, GEMMA_PAPER, _gemma(2048, 18, 8, 1, 16384)),
        Preset("Gemma 7B", "7B", 8_537_680_896, GEMMA_PAPER, _gemma(3072, 28, 16, 16, 24576)),
        Preset("Gemma 2 2B", "2B", 2_614_341_888, GEMMA2_PAPER, _gemma2(2304, 26, 8, 4, 9216, 256, 256.0)),
        Preset("Gemma 2 9B", "9B", 9_241_705_984, GEMMA2_PAPER, _gemma2(3584, 42, 16, 8, 14336, 256, 256.0)),
        Preset("Gemma 2 27B", "27B", 27_227_128_320, GEMMA2_PAPER, _gemma2(4608, 46, 32, 16, 36864, 128, 144.0)),
        Preset(
            "Falcon 7B", "7B", 6_921_720_704, FALCON_PAPER,
            _shape(4544, 32, 71, 18176, 65024, 2048, num_key_value_heads=1, norm_placement="parallel", **_FALCON),
        ),
        Preset(
            "Falcon 40B", "40B", 41_303_293_952, FALCON_PAPER,
            _shape(
                8192, 60, 128, 32768, 65024, 2048, num_key_value_heads=8, norm_placement="parallel_two_norms", **_FALCON
            ),
        ),
        Preset("MPT 7B", "7B", 6_649_286_656, MPT_PAPER, _mpt(4096, 32, 32, 2048)),
        Preset("MPT 30B", "30B", None, MPT_PAPER, _mpt(7168, 48, 64, 8192)),
        Preset("BLOOM 560M", "560M", 559_214_592, BLOOM_PAPER, _bloom(1024, 24, 16)),
        Preset("BLOOM 7B", "7.1B", 7_069_016_064, BLOOM_PAPER, _bloom(4096, 30, 32)),
        Preset("BLOOM 176B", "176B", 176_247_271_424, BLOOM_PAPER, _bloom(14336, 70, 112)),
        Preset("GPT-NeoX 20B", "20B", 20_554_567_680, NEOX_PAPER, _shape(6144, 44, 64, 24576, 50432, 2048, **_NEOX)),
    )
}  # fmt: skip
