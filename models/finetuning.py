"""Train a checkpoint further on one's own text: `python -m models.finetuning --model DIR --data FILE --out DIR`.

Any directory that `models.load` reads. All weights are trained, or with `--lora RANK` low-rank additions to the linear
layers (Hu et al. 2021, arXiv 2106.09685), which are merged into the weights when the result is stored. Loop, data,
resuming and card are those of `python -m models.training`.
"""

import argparse
import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.pytorch_utils import Conv1D

from models.checkpoints import Loaded, load
from models.corpora import chosen, data_sets
from models.dropout import set_dropout
from models.settings import Tuning, add_options, read_options
from models.trainer import Trainer, accelerator
from models.training_run import TrainingRun, add_run_options, packed_sources, start

if TYPE_CHECKING:
    from peft import LoraModel

PROGRAM = "python -m models.finetuning --model MODEL --data DATA --out OUT"


def linear_layers(model: PreTrainedModel) -> list[str]:
    """Full names of all linear modules inside the decoder layers: of the module list that is as long as the model deep.

    GPT-2's Conv1D is a linear layer with its weight turned around. Raises ValueError when no such list is found.
    """
    depth = model.config.get_text_config().num_hidden_layers
    lists = [name for name, each in model.named_modules() if isinstance(each, nn.ModuleList) and len(each) == depth]
    names = [
        name
        for name, each in model.named_modules()
        if isinstance(each, (nn.Linear, Conv1D)) and any(name.startswith(f"{layers}.") for layers in lists)
    ]
    if not names:
        raise ValueError(f"Found no linear modules in the layers of a {type(model).__name__}; leave out --lora.")
    return names


def with_lora(model: PreTrainedModel, settings: Tuning) -> "LoraModel":
    """The model with low-rank additions, put into it in place; their weights alone are trained."""
    from peft import LoraConfig, LoraModel  # takes seconds to import

    names = linear_layers(model)
    config = LoraConfig(
        r=settings.lora,
        lora_alpha=cast("int", settings.lora_alpha * settings.lora),
        lora_dropout=settings.dropout,
        target_modules=names,
        fan_in_fan_out=isinstance(model.get_submodule(names[0]), Conv1D),
    )
    torch.manual_seed(settings.seed)
    return LoraModel(model, config, "default")


def parser() -> argparse.ArgumentParser:
    """The command line: what to train, how to run, and one option for every field of `Tuning`."""
    options = argparse.ArgumentParser(
        prog="python -m models.finetuning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--model", required=True, help="checkpoint directory, or the name of a shipped model")
    add_run_options(options)
    add_options(options, Tuning)
    return options


def prepare(args: argparse.Namespace) -> TrainingRun:
    """Model, data and trainer. Raises ValueError or FileNotFoundError for what cannot be trained."""
    args.work = args.work or args.out.with_name(f"{args.out.name}.work")
    torch.set_num_threads(args.threads)
    settings = read_options(args, Tuning).mixing(tuple(data_sets(args.data)))
    sets = chosen(args.data, tuple(settings.shares()))
    loaded = load(args.model, "cpu", "float32")
    _check(loaded, settings)
    tokenizer = cast("PreTrainedTokenizerFast", loaded.tokenizer)
    args.work.mkdir(parents=True, exist_ok=True)
    devices = accelerator(settings.precision, args.device)
    with devices.main_process_first():
        sources = packed_sources(sets, settings.shares(), tokenizer, args.work)
    model = loaded.model.requires_grad_(True)
    set_dropout(model, settings.dropout)
    adapted = with_lora(model, settings) if settings.lora else None
    trainer = Trainer(settings, model, sources, devices)
    merged = None if adapted is None else lambda: cast("PreTrainedModel", copy.deepcopy(adapted).merge_and_unload())
    return TrainingRun(PROGRAM, trainer, tokenizer, sets, args, merged, loaded.card.name)


def _check(loaded: Loaded, settings: Tuning) -> None:
    if settings.lora < 0:
        raise ValueError(f"--lora is a rank, or 0 to train all weights, not {settings.lora}.")
    context = loaded.card.context_length
    if context and settings.context_length > context:
        raise ValueError(f"{loaded.card.name} reads {context} tokens at most: --context-length must not be larger.")


def main(arguments: Sequence[str] | None = None) -> None:
    """Fine-tune, or go on, and write the checkpoint."""
    start(parser(), prepare, arguments)


if __name__ == "__main__":
    main()
