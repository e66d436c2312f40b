"""What training makes smaller: the loss of predicting the next token, given true words or partly the model's own."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from models.guidance import lesson


class Objective(nn.Module):
    """Mean cross-entropy of a model over rows, as a module.

    What wraps modules (mixed precision, several processes) wraps this one and leaves the model inside as it is, so that
    measuring, sampling and saving need not unwrap anything.
    """

    def __init__(self, model: PreTrainedModel, own_words: float = 0.0, compiled: bool = False) -> None:
        super().__init__()
        self.model, self.own_words = model, own_words
        config = model.config.get_text_config()
        last = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
        self.borders = [token for token in (config.bos_token_id, *last) if token is not None]
        self.loss: Callable[[Tensor, Tensor], Tensor] = (
            torch.compile(self._loss, dynamic=False) if compiled else self._loss
        )

    def forward(self, rows: Tensor, halves: bool, repeated: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Nats per token of rows (B, T + 1), a scalar; with `halves` each row is read as two of T / 2.

        And the cost of the lesson on repeated rows (see `models.guidance`), 0 without them.
        """
        inputs, labels = rows[:, :-1], rows[:, 1:]
        if halves:
            inputs = inputs.reshape(2 * inputs.shape[0], -1)
        if self.own_words:
            inputs = self.mixed(inputs)
        taught = rows.new_zeros((), dtype=torch.float32) if repeated is None else lesson(self.model, repeated)
        return self.loss(inputs, labels), taught

    def _loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        logits = self.model(input_ids=inputs, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())

    @torch.no_grad()
    def mixed(self, inputs: Tensor) -> Tensor:
        """inputs (B, T) with some tokens replaced by what the model draws in their place; borders of documents stay.

        Scheduled sampling (Bengio et al. 2015, arXiv 1506.03099) in two passes, as a transformer needs it (Mihaylova
        and Martins 2019, arXiv 1906.07651): the first, without gradient, reads true words and draws every next one.
        """
        logits = self.model(input_ids=inputs[:, :-1], use_cache=False).logits.float()
        draws = torch.multinomial(logits.flatten(0, 1).softmax(-1), 1).view_as(inputs[:, 1:])
        replaced = torch.rand(draws.shape, device=draws.device) < self.own_words
        replaced &= ~torch.isin(inputs[:, 1:], inputs.new_tensor(self.borders))
        return torch.cat((inputs[:, :1], torch.where(replaced, draws, inputs[:, 1:])), dim=1)
