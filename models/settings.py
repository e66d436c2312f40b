"""What decides which weights come out of a training run, and the command line made of it."""

import argparse
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self, TypeVar

T = TypeVar("T", bound="Optimization")


def option(default: Any, about: str, choices: tuple[str, ...] | None = None) -> Any:
    """A dataclass field that the command line explains."""
    return field(default=default, metadata={"help": about, "choices": choices})


@dataclass(frozen=True, kw_only=True)
class Optimization:
    """How a model is trained, whether its weights were drawn at random or come from a checkpoint."""

    mixture: str = option("", "data sets and their shares of the tokens; left out where there is only one")
    context_length: int = option(512, "tokens in a row")
    steps: int = option(1000, "steps of the optimizer")
    rows: int = option(8, "rows of context_length tokens in a step, in all processes together")
    accumulate: int = option(1, "parts that the rows of a step are computed in, one after another")
    short_until: float = option(0.0, "part of the steps that cut every row into two (faster)")
    learning_rate: float = option(2e-3, "highest learning rate")
    schedule: str = option("cosine", "how the rate falls after the warm-up; see models/schedule.py", ("cosine", "wsd"))
    decay: float = option(0.2, "part of the steps in which the rate of schedule wsd falls")
    final_rate: float = option(0.0, "part of the learning rate that is left at the end")
    warmup: int = option(100, "steps in which the rate rises in a straight line")
    optimizer: str = option("adamw", "muon: Muon for the matrices in the layers, AdamW for the rest", ("adamw", "muon"))
    weight_decay: float = option(0.1, "of matrices only")
    beta1: float = option(0.9, "AdamW's memory of gradients")
    beta2: float = option(0.95, "AdamW's memory of squared gradients")
    clip: float = option(1.0, "largest norm of the gradient")
    dropout: float = option(0.0, "part of what layers add to the residual stream set to zero")
    repeats: float = option(0.0, "part of the rows that say their first words again and again: teaches heads to copy")
    random_repeats: float = option(
        0.0, "part of the rows that say random tokens again and again: forms induction heads"
    )
    guide: float = option(0.0, "weight of a small lesson beside each step that leads a head to induction")
    own_words: float = option(0.0, "part of the input tokens that are the model's own draws (scheduled sampling)")
    gradient_checkpointing: bool = option(False, "compute activations again in the backward pass: slower, less memory")
    compile: bool = option(False, "torch.compile: pays off in runs of more than a few minutes")
    seed: int = option(0, "of initial weights, order of rows and everything drawn")
    precision: str = option("auto", "of products; weights stay float32", ("auto", "float32", "bfloat16"))

    def shares(self) -> dict[str, float]:
        """Data set name -> share of the training tokens. Raises ValueError when `mixture` cannot be read."""
        try:
            parts = [part.split("=") for part in self.mixture.split(",")]
            return {name.strip(): float(share) for name, share in parts}
        except ValueError as error:
            raise ValueError(
                f"mixture must look like 'tinystories=0.9,fairytales=0.1', not {self.mixture!r}."
            ) from error

    def mixing(self, names: tuple[str, ...]) -> Self:
        """These settings with the mixture spelled out; it may be left out where there is just one data set.

        Raises ValueError when it is left out and there are several.
        """
        if self.mixture:
            return self
        if len(names) != 1:
            example = ",".join(f"{name}={1 / len(names):.2g}" for name in names)
            raise ValueError(f"The data holds {len(names)} data sets: name their shares with --mixture {example}")
        return replace(self, mixture=f"{names[0]}=1.0")


@dataclass(frozen=True, kw_only=True)
class Settings(Optimization):
    """A decoder trained from random weights, tokenizer included."""

    vocab_size: int = option(4096, "tokens of the byte-level BPE tokenizer")
    hidden_size: int = option(256, "numbers in the residual stream")
    num_hidden_layers: int = option(8, "layers")
    num_attention_heads: int = option(8, "query heads of a layer")
    num_key_value_heads: int = option(4, "key-value heads of a layer")
    intermediate_size: int = option(704, "width of the feed-forward layer")
    attention_dropout: float = option(0.0, "part of the attention weights set to zero")


@dataclass(frozen=True, kw_only=True)
class Tuning(Optimization):
    """A checkpoint trained further: fewer and smaller steps, all weights or low-rank additions to them."""

    context_length: int = option(256, "tokens in a row")
    steps: int = option(200, "steps of the optimizer")
    dropout: float = option(0.0, "part set to zero of whatever the model can drop")
    learning_rate: float = option(3e-4, "highest learning rate; LoRA can do with several times as much")
    warmup: int = option(20, "steps in which the rate rises in a straight line")
    weight_decay: float = option(0.0, "of matrices only")
    beta2: float = option(0.99, "AdamW's memory of squared gradients")
    lora: int = option(0, "rank of the low-rank additions (LoRA); 0 trains all weights")
    lora_alpha: float = option(2.0, "LoRA's additions are scaled by this; in the paper's terms alpha / rank")


def add_options(parser: argparse.ArgumentParser, kind: type[Optimization]) -> None:
    """One option for every field, with its default and explanation."""
    for each in fields(kind):
        name, about = "--" + each.name.replace("_", "-"), each.metadata["help"]
        if isinstance(each.default, bool):
            parser.add_argument(name, action="store_true", help=about)
        else:
            text = f"{about} (default: {each.default})" if each.default != "" else about
            parser.add_argument(
                name, type=type(each.default), default=each.default, choices=each.metadata["choices"], help=text
            )


def read_options(args: argparse.Namespace, kind: type[T]) -> T:
    """The settings that `add_options` let somebody choose."""
    return kind(**{each.name: getattr(args, each.name) for each in fields(kind)})


def command(program: str, settings: Optimization) -> str:
    """The command line that trains with these settings, on several lines; defaults are left out."""
    options = []
    for each in fields(settings):
        value = getattr(settings, each.name)
        if value != each.default:
            options.append(f"--{each.name.replace('_', '-')}" + ("" if value is True else f" {value}"))
    return " \\\n  ".join((program, *options))


def differences(ours: Optimization, theirs: Mapping[str, Any], free: tuple[str, ...]) -> list[str]:
    """Names of fields, those in `free` left out, that differ from a saved record.

    A record made before a field existed was made with the field's default.
    """
    defaults = {each.name: each.default for each in fields(ours)}
    return [
        name for name, value in asdict(ours).items() if name not in free and value != theirs.get(name, defaults[name])
    ]
