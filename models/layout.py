"""How weight matrices lie in a CPU's memory, so that products with the vector of one token are quick.

Decoding multiplies every matrix by one vector. Where the outputs are the longer side, reading along the outputs (adding
up columns) can be several times as fast as reading along the inputs (many short dot products), although both read the
same bytes: it depends on the library behind torch and on the processor, so `faster_along_outputs` tries it once. Names,
shapes and values of the weights stay what they are; only their strides change, and `state_dict` gives the usual ones.
"""

from functools import cache
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

GAIN = 1.25  # how much faster it must be: whoever gains less keeps the usual order
OUT_FEATURES, IN_FEATURES = 2048, 512
PROBES, ROUNDS = 8, 5  # together larger than most caches, as the weights of a model are


@torch.no_grad()
def arrange(model: nn.Module) -> None:
    """Lay the matrices of linear layers out along their longer side, where this processor gains by it.

    Weights that are not in the CPU's memory, and quantized ones, stay as they are.
    """
    arranged = False
    for module in model.modules():
        if not isinstance(module, nn.Linear | Conv1D):
            continue
        weight = module.weight
        if weight.device.type != "cpu" or not weight.is_floating_point() or weight.dim() != 2:
            continue
        by_output = weight if isinstance(module, nn.Linear) else weight.t()  # (outputs, inputs)
        outputs, inputs = by_output.shape
        if faster_along_outputs(weight.dtype):
            laid = along_outputs(by_output) if outputs > inputs else by_output.contiguous()
            weight.data = laid if isinstance(module, nn.Linear) else laid.t()
            arranged = True
    if arranged:
        model.register_state_dict_post_hook(_in_usual_order)


def is_arranged(model: nn.Module) -> bool:
    """Whether matrices of the model lie along their outputs. Such products take one thread, however many there are."""
    return any(isinstance(module, nn.Linear) and lies_along_outputs(module.weight) for module in model.modules())


def lies_along_outputs(matrix: Tensor) -> bool:
    """Whether the numbers of a column (outputs, inputs) are neighbours."""
    return not matrix.is_contiguous() and matrix.t().is_contiguous()


def _in_usual_order(_: nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any]) -> None:
    """What is written down lies as everybody expects; one tensor under two names (tied weights) stays one."""
    usual: dict[int, Tensor] = {}
    for name, tensor in state.items():
        if isinstance(tensor, Tensor) and not tensor.is_contiguous():
            where = tensor.data_ptr()
            usual[where] = usual[where] if where in usual else tensor.contiguous()
            state[name] = usual[where]


@torch.no_grad()
def usual_order(model: nn.Module) -> None:
    """Undo `arrange`, for training: gradients lie in the usual order, and optimizers read both side by side."""
    for parameter in model.parameters():
        parameter.data = parameter.data.contiguous()


def along_outputs(matrix: Tensor) -> Tensor:
    """The same matrix (outputs, inputs) with the numbers of one column, and so of one input, side by side."""
    return matrix.t().contiguous().t()


@cache
def faster_along_outputs(dtype: torch.dtype) -> bool:
    """Whether this processor multiplies a tall matrix that lies along its outputs with a vector clearly faster."""
    usual = [torch.ones(OUT_FEATURES, IN_FEATURES, dtype=dtype) for _ in range(PROBES)]
    other = [along_outputs(matrix) for matrix in usual]
    vector = torch.ones(1, 1, IN_FEATURES, dtype=dtype)
    return _seconds(usual, vector) > GAIN * _seconds(other, vector)


def _seconds(matrices: list[Tensor], vector: Tensor) -> float:
    """The least time that a round of all products took; the first one is practice."""
    times = []
    for _ in range(1 + ROUNDS):
        started = perf_counter()
        for matrix in matrices:
            F.linear(vector, matrix)
        times.append(perf_counter() - started)
    return min(times[1:])
