"""Two studies that train small decoders on the bytes of a text: position schemes, and ways to share keys and values."""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from models.accounting import kv_bytes, parameters
from models.configuration import DecoderConfig
from models.decoder import DecoderForCausalLM

TRAINED, EVALUATED = 128, (128, 256, 512, 1024)
ROWS, RATE, WARMUP = 16, 3e-3, 30
HELD_OUT = 16  # windows of the longest length
SCHEMES = ("learned", "sinusoidal", "rope", "alibi", "none")
SCALINGS = ("linear", "ntk", "yarn")
SHAPE: dict[str, Any] = {
    "vocab_size": 256, "hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 256,
    "max_position_embeddings": EVALUATED[-1],
}  # fmt: skip
DECODED, SPEED_CONTEXT = 64, 512
Say = Callable[[str], None]


def split(text: bytes) -> tuple[Tensor, Tensor]:
    """Bytes to train on and, from the end of the text, those that are held out: (n,) and (windows, longest + 1)."""
    ids = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    count = HELD_OUT * (EVALUATED[-1] + 1)
    if len(ids) < 4 * count:
        raise ValueError(f"the text has {len(ids):,} bytes, but the study needs {4 * count:,} at least.")
    return ids[:-count], ids[-count:].view(HELD_OUT, -1)


def trained(config: DecoderConfig, ids: Tensor, steps: int) -> tuple[DecoderForCausalLM, float]:
    """A decoder after so many AdamW steps on windows of `TRAINED` bytes, and its loss over the last 50 of them.

    Seed 0 for the weights and for the windows, so that all models of a study see the same bytes in the same order.
    """
    torch.manual_seed(0)
    model = DecoderForCausalLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    generator, losses = torch.Generator().manual_seed(0), []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min((step + 1) / WARMUP, 0.5 + 0.5 * math.cos(math.pi * step / steps))
        starts = torch.randint(0, len(ids) - TRAINED - 1, (ROWS, 1), generator=generator)
        window = ids[starts + torch.arange(TRAINED + 1)]  # (rows, trained + 1)
        logits = model(window[:, :-1], use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return model.eval(), sum(losses[-50:]) / len(losses[-50:])


@torch.inference_mode()
def losses(model: DecoderForCausalLM, held_out: Tensor, length: int) -> dict[str, float]:
    """Nats per byte on the held-out text cut in windows of `length`: over all positions, and over the last 64."""
    text = held_out[:, : EVALUATED[-1] + 1]
    inputs = text[:, :-1].reshape(-1, length)  # (windows, length): the same bytes whatever the length
    targets = text[:, 1:].reshape(-1, length)
    found = torch.cat([
        cross_entropy(model(some, use_cache=False).logits.transpose(1, 2), wanted, reduction="none")
        for some, wanted in zip(inputs.split(8), targets.split(8), strict=True)
    ])  # (windows, length)  # fmt: skip
    return {"all": round(found.mean().item(), 4), "last": round(found[:, -64:].mean().item(), 4)}


def positions(text: bytes, steps: int, say: Say = lambda line: None) -> dict[str, Any]:
    """The same decoder with each position scheme, trained at length 128 and evaluated up to 1,024.

    RoPE also with its angles scaled at evaluation by length / 128, without further training. Learned positions beyond
    128 exist but were never trained.
    """
    ids, held_out = split(text)
    rows, model = [], None
    for scheme in SCHEMES:
        # Beside waves of size 1, embeddings are scaled up (Vaswani et al. 2017, section 3.4).
        scale = SHAPE["hidden_size"] ** 0.5 if scheme == "sinusoidal" else 1.0
        config = DecoderConfig(**SHAPE, position=scheme, embedding_multiplier=scale)
        made, last = trained(config, ids, steps)
        model = made if scheme == "rope" else model
        found = {str(length): losses(made, held_out, length) for length in EVALUATED}
        rows.append({"scheme": scheme, "train_loss": round(last, 4), "losses": found})
        say(str(rows[-1]))
    for scaling in SCALINGS:
        found = {str(length): losses(_scaled(model, scaling, length), held_out, length) for length in EVALUATED}
        rows.append({"scheme": f"rope, {scaling}", "train_loss": None, "losses": found})
        say(str(rows[-1]))
    return {
        "shape": {**SHAPE, "parameters": parameters(DecoderConfig(**SHAPE)).total}, "rows": rows, "steps": steps,
        "trained_length": TRAINED, "rows_per_step": ROWS, "lengths": list(EVALUATED), "held_out_bytes": 16 * 1024,
    }  # fmt: skip


def _scaled(model: Any, scaling: str, length: int) -> DecoderForCausalLM:
    """The model with the same weights, its rotary angles scaled for this length."""
    if length == TRAINED:
        return model
    rope = {"rope_type": scaling, "rope_theta": 10000.0, "factor": length / TRAINED}
    if scaling == "yarn":
        rope["original_max_position_embeddings"] = TRAINED
    scaled = DecoderForCausalLM(DecoderConfig(**SHAPE, rope_parameters=rope)).eval()
    scaled.load_state_dict(model.state_dict())
    return scaled


def heads(text: bytes, steps: int, say: Say = lambda line: None) -> dict[str, Any]:
    """Multi-head, grouped-query and multi-query attention at equal size: loss, bytes of cache, speed of decoding.

    What fewer key-value heads save in weights, the feed-forward layer gets, so that all have the same number but for
    the rounding of its width. Speed is the median of steps at a context of 512, the three in turns.
    """
    ids, held_out = split(text)
    rows, models = [], []
    query, width, inner = SHAPE["num_attention_heads"], SHAPE["hidden_size"], SHAPE["intermediate_size"]
    for name, shared in (("multi-head", query), ("grouped-query", 2), ("multi-query", 1)):
        saved = 2 * (query - shared) * (width // query) * width  # weights of k and v in one layer
        changes = {"num_key_value_heads": shared, "intermediate_size": inner + saved // (3 * width)}
        config = DecoderConfig(**{**SHAPE, **changes})
        model, last = trained(config, ids, steps)
        rows.append({
            "name": name, "key_value_heads": shared, "parameters": parameters(config).total,
            "intermediate_size": config.intermediate_size, "train_loss": round(last, 4),
            "loss": losses(model, held_out, TRAINED)["all"], "kv_bytes_per_token": kv_bytes(config, 1, 4),
        })  # fmt: skip
        models.append(model)
        say(str(rows[-1]))
    for row, milliseconds in zip(rows, _step_milliseconds(models), strict=True):
        row["milliseconds_per_token"] = milliseconds
    return {"rows": rows, "steps": steps, "context": SPEED_CONTEXT, "trained_length": TRAINED, "rows_per_step": ROWS}


@torch.inference_mode()
def _step_milliseconds(models: list[Any]) -> list[float]:
    """The median time of a decode step of each model; one step of each in turn, so that all see the same machine."""
    ids = torch.zeros(1, SPEED_CONTEXT, dtype=torch.long)
    caches = [model(ids, use_cache=True).past_key_values for model in models]
    times: list[list[float]] = [[] for _ in models]
    for _ in range(DECODED):
        for model, cache, taken in zip(models, caches, times, strict=True):
            begun = time.perf_counter()
            model(ids[:, :1], past_key_values=cache)
            taken.append(time.perf_counter() - begun)
    return [round(sorted(taken)[len(taken) // 2] * 1e3, 3) for taken in times]
