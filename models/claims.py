"""Sums that texts on this architecture state, beside what they come to: where a text is wrong, the right number."""

from dataclasses import dataclass

from models.accounting import kv_bytes, parameters, prefill_flops
from models.presets import PRESETS


@dataclass(frozen=True)
class Claim:
    """What is said, what is so, and why; `right` when they agree to the digits that were given."""

    topic: str
    said: str
    found: str
    right: bool
    why: str


def _billions(number: float) -> str:
    if number < 1e9:
        return f"{number / 1e6:.4g} million"
    return f"{number / 1e9:.4g} billion"


def _size_claims() -> list[Claim]:
    stated = {"GPT-2 Large": (774e6, 1e6), "LLaMA-2 7B": (6.7e9, 1e8), "LLaMA-2 70B": (70e9, 2e9),
              "GPT-3 175B": (175e9, 1e9)}  # fmt: skip
    made = []
    for name, (said, digits) in stated.items():
        total = parameters(PRESETS[name].config()).total
        why = "The name rounds up." if name == "LLaMA-2 70B" else ""
        made.append(Claim(f"Parameters of {name}", _billions(said), f"{total:,}", abs(total - said) < digits, why))
    return made


def _rule_of_thumb() -> Claim:
    config = PRESETS["LLaMA-2 70B"].config()
    width, layers = config.hidden_size, config.num_hidden_layers
    thumb, total = 12 * layers * width**2 + config.vocab_size * width, parameters(config).total
    why = (
        "It is the sum of GPT-2: 4 C^2 in attention and 8 C^2 in the feed-forward layer. Here grouped queries save "
        f"1.75 C^2, but the feed-forward layer has {3 * config.inner_size / width:.1f} C^2, and the head is a matrix "
        "of its own."
    )
    return Claim("LLaMA-2 70B as 12 L C^2 + V C", _billions(thumb), _billions(total), False, why)


def _feed_forward() -> list[Claim]:
    config = PRESETS["LLaMA-2 7B"].config()
    block = parameters(config).feed_forward // config.num_hidden_layers
    why = "SwiGLU has three matrices (gate, up, down); the claim counts two."
    return [
        Claim("One feed-forward layer of LLaMA-2 7B", "90 million", f"{block:,}", False, why),
        Claim(
            "All feed-forward layers of LLaMA-2 7B", "2.9 billion", _billions(32 * block), False,
            "The same: three matrices in each of 32 layers.",
        ),
    ]  # fmt: skip


def _dot_product() -> Claim:
    config, tokens = PRESETS["LLaMA-2 7B"].config(), 4096
    width, layers = config.hidden_size, config.num_hidden_layers
    said, found = 2 * tokens**2 * width, prefill_flops(config, tokens).scores // layers
    needed = prefill_flops(config, tokens, masked=True).scores / layers / 1e9
    why = (
        "2 T^2 C is q kT alone; the product of pattern and values is as large. A causal kernel that leaves out what is "
        f"masked needs {needed:.0f} GFLOP for both."
    )
    return Claim(
        "Attention's T^2 part, one layer of LLaMA-2 7B at T = 4,096",
        f"2 T^2 C = {said / 1e9:.0f} GFLOP", f"4 T^2 C = {found / 1e9:.0f} GFLOP", False, why,
    )  # fmt: skip


def _caches() -> list[Claim]:
    seven, gib = PRESETS["LLaMA-2 7B"].config(), 2**30
    grouped, single = (PRESETS["LLaMA-2 7B"].config(num_key_value_heads=heads) for heads in (8, 1))
    three = kv_bytes(PRESETS["GPT-3 175B"].config(), 2048)
    return [
        Claim("KV cache of LLaMA-2 7B, 4,096 tokens, fp16", "2 GB", f"{kv_bytes(seven, 4096) / gib:g} GiB", True, ""),
        Claim("The same with 8 key-value heads", "0.5 GB", f"{kv_bytes(grouped, 4096) / gib:g} GiB", True, ""),
        Claim("The same at 32,768 tokens, 32 heads", "16 GB", f"{kv_bytes(seven, 32768) / gib:g} GiB", True, ""),
        Claim(
            "What one key-value head saves against 32", "32 times",
            f"{kv_bytes(seven, 4096) // kv_bytes(single, 4096)} times", True, "",
        ),
        Claim(
            "KV cache of GPT-3 175B, 2,048 tokens, fp16", "9.6 GB", f"{three / 1e9:.2f} GB, {three / gib:g} GiB", True,
            "9,663,676,416 bytes: cut, not rounded.",
        ),
    ]  # fmt: skip


def _designs() -> list[Claim]:
    small, large = (PRESETS[name].config().heads for name in ("LLaMA-2 7B", "LLaMA-2 70B"))
    return [
        Claim(
            "Where GPT-3 norms", "after each sum (post-norm)", "before each part (pre-norm)", False,
            "GPT-3 has the architecture of GPT-2, which moved the norms (Brown et al. 2020, section 2.1).",
        ),
        Claim(
            "Heads of LLaMA-2", "grouped-query",
            f"7B and 13B: {small[1]} for {small[0]}, multi-head; 70B: {large[1]} for {large[0]}", False,
            "Only the 34B and 70B models group their queries (Touvron et al. 2023, table 1).",
        ),
        Claim(
            "Largest vocabulary in use", "128,256", f"{PRESETS['Gemma 2B'].config().vocab_size:,} (Gemma)", False,
            "BLOOM has 250,880, Qwen2 152,064.",
        ),
    ]  # fmt: skip


def claims() -> list[Claim]:
    """All of them, in the order of the page."""
    return [*_size_claims(), _rule_of_thumb(), *_feed_forward(), _dot_product(), *_caches(), *_designs()]
