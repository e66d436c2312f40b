"""How much of what a model computes is dropped in training, whatever its configuration said."""

from torch import nn


def set_dropout(model: nn.Module, part: float, named: str = "dropout") -> None:
    """Drop this part in numbers whose name ends with `named`: by default in all, and in dropout modules, too."""
    for module in model.modules():
        if isinstance(module, nn.Dropout) and named == "dropout":
            module.p = part
        for name, value in vars(module).items():
            if name.endswith(named) and isinstance(value, float):
                setattr(module, name, part)
