"""The learning rate as a function of the step, and which weights decay."""

import math
from typing import Any

from torch import nn

from models.settings import Optimization


def learning_rate(step: int, settings: Optimization) -> float:
    """Rate of step 0, 1, ...: a straight warm-up, then what the schedule says, down to the final rate.

    cosine: half a cosine from the warm-up to the last step (Loshchilov and Hutter 2017, SGDR, eq. 5, one cycle).
    wsd: warm-up, stable, decay (Hu et al. 2024, MiniCPM, section 4): the highest rate, then over the last `decay` of
    the steps a straight line down (Haegele et al. 2024, arXiv 2405.18392, section 3). A run can be prolonged from any
    state that was saved before the fall.
    """
    peak, low = settings.learning_rate, settings.final_rate
    if step < settings.warmup:
        return peak * (step + 1) / settings.warmup
    return peak * (low + (1 - low) * SHAPES[settings.schedule](step, settings))


def _cosine(step: int, settings: Optimization) -> float:
    done = min(1.0, (step - settings.warmup) / max(1, settings.steps - settings.warmup))
    return 0.5 * (1 + math.cos(math.pi * done))


def _stable_then_straight(step: int, settings: Optimization) -> float:
    falling = max(1.0, settings.decay * settings.steps)
    return min(1.0, max(0.0, (settings.steps - step) / falling))


SHAPES = {"cosine": _cosine, "wsd": _stable_then_straight}


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """What is trained, for AdamW: matrices decay; norms and biases do not."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
