"""How well a draft model guesses what a target model would say: the acceptance rate of speculative decoding."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from models.evaluation import IGNORED, batches, document_rows


@dataclass(frozen=True)
class Acceptance:
    """How often a target accepts a draft's token, over the positions of some text."""

    rate: float  # alpha, in [0, 1]
    positions: int

    def tokens_per_pass(self, drafted: int) -> float:
        """Tokens that one pass of the target yields when `drafted` tokens are guessed before it.

        (1 - alpha^(n + 1)) / (1 - alpha), Leviathan et al. 2023, eq. 1; it takes positions to be alike.
        """
        return float(sum(self.rate**accepted for accepted in range(drafted + 1)))


@torch.inference_mode()
def acceptance(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    length: int,
    tokens: int = 4096,
) -> Acceptance:
    """Expected acceptance rate at temperature 1 over held-out text, both models reading the true words before.

    alpha = E[sum over x of min(p(x), q(x))], p the target's and q the draft's distribution (Leviathan et al. 2023,
    arXiv 2211.17192, definition 3.2 and theorem 3.5). Each document is read from its start, up to `length` tokens, as
    in `models.evaluation.score`. Raises ValueError when the models do not share a vocabulary.
    """
    sizes = [model.config.get_text_config().vocab_size for model in (target, draft)]
    if sizes[0] != sizes[1]:
        raise ValueError(f"The draft has {sizes[1]:,} tokens and the target {sizes[0]:,}: they must share a tokenizer.")
    total, positions = 0.0, 0
    for inputs, labels in batches(document_rows(texts, tokenizer, length), tokens):
        p, q = (
            model(input_ids=inputs.to(model.device), use_cache=False).logits.float().softmax(-1)
            for model in (target, draft)
        )
        shared = torch.minimum(p, q.to(p.device)).sum(-1)  # (B, T)
        read = (labels != IGNORED).to(p.device)
        total += shared[read].double().sum().item()
        positions += int(read.sum())
    return Acceptance(total / positions, positions)
