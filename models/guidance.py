"""A lesson in induction beside each step of training: rows of repeated random tokens, and where a head should look.

Repetition alone forms induction heads only after millions of tokens (Olsson et al. 2022, arXiv 2209.11895, see a sudden
change after billions): as long as no head looks at the right place, nothing rewards copying from there. So the lesson
rewards looking, too: of all heads in the upper half of the layers the one that does best already is drawn further
towards the token that came after the same token before (as guided attention does for alignments, Tachibana et al. 2017,
arXiv 1710.08969, section 4). It costs one small batch a step and can be left out once the heads are there.
docs/storyteller.md has the experiments.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

ROWS = 4
PERIODS = (8, 48)  # fewest and most random tokens before they come again
UNSEEN = 1e-6  # attention below which a head is not blamed any further


def lesson_rows(generator: np.random.Generator, vocab_size: int, context: int) -> Tensor:
    """Random tokens said twice, (ROWS, 2 period), no longer than the context."""
    most = max(1, min(PERIODS[1], context // 2))
    period = int(generator.integers(min(PERIODS[0], most), most + 1))
    once = torch.from_numpy(generator.integers(vocab_size, size=(ROWS, period)))
    return torch.cat((once, once), dim=1)


def lesson(model: PreTrainedModel, rows: Tensor) -> Tensor:
    """What the second saying of rows (B, 2 period) costs: nats per token, plus nats of attention of the best head.

    The second is -log of the attention that a token pays to the one after its first occurrence, averaged over rows and
    queries, of the head in the upper half of the layers where that is smallest.
    """
    period = rows.shape[1] // 2
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")  # the only one that gives the patterns
    try:
        found = model(input_ids=rows, use_cache=False, output_attentions=True)
    finally:
        model.set_attn_implementation(before)
    surprise = F.cross_entropy(found.logits[:, period:-1].flatten(0, 1).float(), rows[:, period + 1 :].flatten())
    return surprise + _looking(found.attentions[len(found.attentions) // 2 :], period)


def _looking(patterns: tuple[Tensor, ...], period: int) -> Tensor:
    """patterns, one (B, H, T, T) a layer, rows = queries -> scalar."""
    # The query at t looks at t - period + 1; the first of this diagonal still belongs to the first saying.
    targets = [pattern.diagonal(1 - period, dim1=2, dim2=3)[:, :, 1:] for pattern in patterns]  # (B, H, period)
    costs = torch.stack([-target.float().clamp_min(UNSEEN).log().mean(dim=(0, 2)) for target in targets])  # (L, H)
    return costs.min()
