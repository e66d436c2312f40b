"""What moves the weights: AdamW, or Muon for the matrices inside the layers and AdamW for the rest."""

from typing import Any

from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer
from transformers import PreTrainedModel

from models.schedule import parameter_groups
from models.settings import Optimization


class Optimizers:
    """The optimizers of one run, worked as one: a rate for all, a step of all, a state of all."""

    def __init__(self, model: PreTrainedModel, settings: Optimization) -> None:
        """Norms and biases never decay; embeddings and the output head are AdamW's in any case."""
        inner = {id(matrix) for matrix in layer_matrices(model)} if settings.optimizer == "muon" else set()
        groups = parameter_groups(model, settings.weight_decay)
        matrices = [p for p in groups[0]["params"] if id(p) in inner]
        groups[0]["params"] = [p for p in groups[0]["params"] if id(p) not in inner]
        betas = (settings.beta1, settings.beta2)
        groups = [group for group in groups if group["params"]]
        self.parts: list[Optimizer] = [AdamW(groups, lr=0.0, betas=betas)] if groups else []
        if matrices:
            # Orthogonal updates, scaled to the size that AdamW's have, so that one learning rate serves both (Jordan
            # 2024, "Muon"; Liu et al. 2025, "Muon is scalable for LLM training", arXiv 2502.16982, section 2.2).
            scaled: Any = {"adjust_lr_fn": "match_rms_adamw"}
            self.parts.append(Muon(matrices, lr=0.0, weight_decay=settings.weight_decay, **scaled))

    def set_rate(self, rate: float) -> None:
        """The learning rate of the steps to come."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = rate

    def step(self) -> None:
        """Move the weights by their gradients and forget these."""
        for part in self.parts:
            part.step()
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict[str, Any]]:
        """What `load_state_dict` needs to go on exactly."""
        return [part.state_dict() for part in self.parts]

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        """Take up a state of optimizers made for the same model and settings."""
        for part, saved in zip(self.parts, state, strict=True):
            part.load_state_dict(saved)


def layer_matrices(model: PreTrainedModel) -> list[Tensor]:
    """The trained matrices inside the layers: all but embeddings and output head, which are tables of tokens."""
    tables = [table for table in (model.get_input_embeddings(), model.get_output_embeddings()) if table is not None]
    tokens = {id(p) for table in tables if isinstance(table, nn.Module) for p in table.parameters()}
    return [p for p in model.parameters() if p.dim() == 2 and p.requires_grad and id(p) not in tokens]
