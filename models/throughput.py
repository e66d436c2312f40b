"""How much of a device training uses: floating-point operations of the model against those the device can do."""

import time

import torch
from torch import nn
from transformers import PreTrainedModel


def training_flops_per_token(model: PreTrainedModel, length: int) -> float:
    """Operations of one training token in rows of `length` tokens: 6 N + 12 L H D T.

    Chowdhery et al. 2022 (PaLM), appendix B. N counts the weights that take part in products: an embedding table only
    where it is the output head, too. Frozen weights (LoRA) need no gradient of their own, so they count 4 instead of 6.
    The attention term is that of full rows; that half of it is masked is not subtracted, as in the paper.
    """
    config, embedding = model.config.get_text_config(), model.get_input_embeddings()
    head = model.get_output_embeddings()
    tied = isinstance(head, nn.Module) and head.weight is embedding.weight
    read_only = set() if tied else {id(parameter) for parameter in embedding.parameters()}
    used = [parameter for parameter in model.parameters() if id(parameter) not in read_only]
    products = sum(parameter.numel() * (6 if parameter.requires_grad else 4) for parameter in used)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return products + 12.0 * config.num_hidden_layers * config.num_attention_heads * size * length


def measured_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations a second of a large matrix product, the best of a few: measured here, not looked up.

    So utilisation is relative to what this device does now, with these threads and beside its other work.
    """
    side = 4096 if device.type == "cuda" else 768
    a, b = (torch.ones(side, side, device=device, dtype=dtype) for _ in range(2))
    best = float("inf")
    for _ in range(5):
        _wait(device)
        started = time.perf_counter()
        a @ b
        _wait(device)
        best = min(best, time.perf_counter() - started)
    return 2.0 * side**3 / best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
