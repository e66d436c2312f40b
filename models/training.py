"""Train a decoder on text, from random weights: `python -m models.training --help`.

A run keeps its state in a working folder and goes on from there when it is started again with the same arguments: a run
that was interrupted ends with the same weights as one that was not. Several GPUs or processes: `accelerate launch -m
models.training ...`; the rows of a step, and so the mixture, stay the same.

DATA is a text file, a folder of .txt files, or a folder with one folder per data set, NAME/NAME_train.txt with
NAME_valid.txt and NAME_test.txt where there are any; documents end at lines `<|endoftext|>`.
"""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from models.card import Earlier
from models.checkpoints import Loaded, load
from models.corpora import DataSet, chosen, data_sets
from models.data import train_tokenizer
from models.decoder import DecoderConfig, DecoderForCausalLM
from models.dropout import set_dropout
from models.settings import Optimization, Settings, add_options, read_options
from models.trainer import Trainer, accelerator
from models.training_run import TrainingRun, add_run_options, packed_sources, start

PROGRAM = "python -m models.training --data DATA --work WORK --out OUT"
TOKENIZER_CHARACTERS = 8e6
FREE = ("attention_dropout",)  # may be another than that of the weights to start from
SHAPE = tuple(each.name for each in fields(Settings) if each not in fields(Optimization) and each.name not in FREE)


def prepare_tokenizer(
    settings: Settings, sets: Sequence[DataSet], work: Path, given: Path | None = None
) -> PreTrainedTokenizerFast:
    """The run's tokenizer: trained once, on at most 8 million characters and on less of what has a smaller share.

    Or the one in the folder `given`. Raises ValueError when there is none or it is of another size than the settings'.
    """
    if given is not None:
        if not (given / "tokenizer.json").is_file():
            raise ValueError(f"There is no tokenizer.json in {given}.")
        taken = PreTrainedTokenizerFast.from_pretrained(given)
        if len(taken) != settings.vocab_size:
            raise ValueError(f"The tokenizer in {given} has {len(taken)} tokens: set --vocab-size {len(taken)}.")
        return taken
    folder = work / "tokenizer"
    if not (folder / "tokenizer.json").exists():
        shares = settings.shares()
        most = {name: int(TOKENIZER_CHARACTERS * share / max(shares.values())) for name, share in shares.items()}
        texts = (text for each in sets for text in _some(each.texts("train"), most[each.name]))
        train_tokenizer(texts, settings.vocab_size, settings.context_length).save_pretrained(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def _some(texts: Iterable[str], characters: int) -> Iterable[str]:
    for text in texts:
        if characters <= 0:
            return
        characters -= len(text)
        yield text


def decoder_config(settings: Settings, tokenizer: PreTrainedTokenizerFast) -> DecoderConfig:
    """The shape of the model that the settings ask for."""
    return DecoderConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_hidden_layers=settings.num_hidden_layers,
        num_attention_heads=settings.num_attention_heads,
        num_key_value_heads=settings.num_key_value_heads,
        max_position_embeddings=settings.context_length,
        attention_dropout=settings.attention_dropout,
        residual_dropout=settings.dropout,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )


def new_model(settings: Settings, tokenizer: PreTrainedTokenizerFast) -> DecoderForCausalLM:
    """A decoder with random weights, a function of the seed. Raises ValueError for a shape that cannot be built."""
    torch.manual_seed(settings.seed)
    return DecoderForCausalLM(decoder_config(settings, tokenizer))


def shaped_like(settings: Settings, earlier: Loaded) -> Settings:
    """The settings with the shape of the decoder that training starts from.

    Raises ValueError when that is not one of ours or reads shorter rows.
    """
    config = earlier.model.config
    if not isinstance(config, DecoderConfig):
        raise ValueError(
            f"--init takes a decoder trained here; use python -m models.finetuning for {config.model_type}."
        )
    if settings.context_length > config.max_position_embeddings:
        raise ValueError(
            f"{earlier.card.name} reads {config.max_position_embeddings} tokens: --context-length is larger."
        )
    return replace(settings, **{name: getattr(config, name) for name in SHAPE})


def parser() -> argparse.ArgumentParser:
    """The command line: how to run, and one option for every field of `Settings`."""
    options = argparse.ArgumentParser(
        prog="python -m models.training", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_run_options(options)
    options.add_argument("--tokenizer", type=Path, help="folder of a tokenizer to take over, for a draft of a model")
    options.add_argument("--init", help="checkpoint of a decoder whose weights, shape and tokenizer to start from")
    add_options(options, Settings)
    return options


def prepare(args: argparse.Namespace) -> TrainingRun:
    """Tokenizer, data and trainer. Raises ValueError or FileNotFoundError for what cannot be trained."""
    args.work = args.work or args.out.with_name(f"{args.out.name}.work")
    torch.set_num_threads(args.threads)
    settings = read_options(args, Settings).mixing(tuple(data_sets(args.data)))
    sets = chosen(args.data, tuple(settings.shares()))
    args.work.mkdir(parents=True, exist_ok=True)
    earlier = load(args.init, "cpu", "float32") if args.init else None
    if earlier is not None:
        settings = shaped_like(settings, earlier)
    devices = accelerator(settings.precision, args.device)
    with devices.main_process_first():
        given = args.tokenizer if earlier is None else earlier.card.directory
        tokenizer = prepare_tokenizer(settings, sets, args.work, given)
        sources = packed_sources(sets, settings.shares(), tokenizer, args.work)
    model = new_model(settings, tokenizer) if earlier is None else earlier.model.requires_grad_(True)
    set_dropout(model, settings.dropout, "residual_dropout")  # that of an earlier checkpoint's config does not hold
    set_dropout(model, settings.attention_dropout, "attention_dropout")
    trainer = Trainer(settings, model, sources, devices)
    start_from = None if earlier is None else Earlier.of(earlier.card)
    program = PROGRAM if start_from is None else f"{PROGRAM} --init {start_from.name}"
    program += f" --tokenizer {args.tokenizer.name}" if args.tokenizer and earlier is None else ""
    return TrainingRun(program, trainer, tokenizer, sets, args, earlier=start_from)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, or go on training, and write the checkpoint."""
    start(parser(), prepare, arguments)


if __name__ == "__main__":
    main()
