"""Train a decoder on text files: `python -m models.training --help`.

The data folder holds one folder per data set, NAME/NAME_train.txt and NAME/NAME_valid.txt (NAME_test.txt where there
is one). A run keeps its state in a working folder and goes on from there when it is started again with the same
arguments: a run that was interrupted ends with the same weights as one that was not.
"""

import argparse
import json
import math
import os
import platform
import re
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from models.card import TrainingFacts, write_card
from models.data import Mixture, Source, documents, pack, train_tokenizer
from models.decoder import DecoderConfig, DecoderForCausalLM
from models.evaluation import Score, score

MORE_PROMPTS = ("The little dog wanted", "Lily and her brother went to the river.")  # for the samples on the card


@dataclass(frozen=True)
class Settings:
    """Everything that decides which weights come out."""

    mixture: str = "tinystories=1.0"
    vocab_size: int = 4096
    hidden_size: int = 256
    num_hidden_layers: int = 8
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    intermediate_size: int = 704
    context_length: int = 512
    steps: int = 1000
    rows: int = field(default=8, metadata={"help": "rows of context_length tokens in a step"})
    accumulate: int = field(default=1, metadata={"help": "parts that the rows of a step are computed in"})
    short_until: float = field(default=0.0, metadata={"help": "part of the steps that cut every row into two (faster)"})
    learning_rate: float = 2e-3
    final_rate: float = field(default=0.0, metadata={"help": "part of the learning rate that is left at the end"})
    warmup: int = 100
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0
    seed: int = 0
    precision: str = field(
        default="auto",
        metadata={"help": "of products; weights stay float32", "choices": ("auto", "float32", "bfloat16")},
    )

    def shares(self) -> dict[str, float]:
        """Data set name -> share of the training tokens. Raises ValueError when `mixture` cannot be read."""
        try:
            parts = [part.split("=") for part in self.mixture.split(",")]
            return {name.strip(): float(share) for name, share in parts}
        except ValueError as error:
            raise ValueError(
                f"mixture must look like 'tinystories=0.9,fairytales=0.1', not {self.mixture!r}."
            ) from error


@dataclass
class History:
    """What a loss curve needs: columns of equal length."""

    train: dict[str, list[float]] = field(default_factory=lambda: {"step": [], "tokens": [], "loss": [], "rate": []})
    validation: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    seconds: float = 0.0
    plans: list[list[int]] = field(default_factory=list)  # [until step, planned steps] where the plan was changed

    def add_validation(self, name: str, step: int, result: Score) -> None:
        """Append one measurement of one data set."""
        columns = self.validation.setdefault(name, {"step": [], "loss": [], "bits_per_byte": []})
        columns["step"].append(step)
        columns["loss"].append(result.nats_per_token)
        columns["bits_per_byte"].append(result.bits_per_byte)


def learning_rate(step: int, settings: Settings) -> float:
    """Rate of step 0, 1, ...: a straight warm-up, then half a cosine down to the final rate."""
    peak = settings.learning_rate
    if step < settings.warmup:
        return peak * (step + 1) / settings.warmup
    done = min(1.0, (step - settings.warmup) / max(1, settings.steps - settings.warmup))
    low = settings.final_rate
    return peak * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * done)))


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices decay; norms and biases do not."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Products in bfloat16 where asked for or, with "auto", where the device is fast at them."""
    fast = torch.cuda.is_bf16_supported() if device.type == "cuda" else torch.cpu._is_amx_tile_supported()
    wanted = fast if precision == "auto" else precision == "bfloat16"
    return torch.autocast(device.type, dtype=torch.bfloat16) if wanted else nullcontext()


def mean_loss(model: nn.Module, rows: Tensor, halves: bool) -> Tensor:
    """Mean cross-entropy in nats of rows (B, T + 1); with `halves` each row is read as two of T / 2."""
    inputs, labels = rows[:, :-1], rows[:, 1:]
    if halves:
        inputs = inputs.reshape(2 * inputs.shape[0], -1)
    logits = model(input_ids=inputs, use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


class Trainer:
    """One training run: model, optimizer, position in the data, history."""

    def __init__(self, settings: Settings, sources: Sequence[Source], config: DecoderConfig, device: str) -> None:
        self.settings, self.device = settings, torch.device(device)
        torch.manual_seed(settings.seed)
        self.model = DecoderForCausalLM(config).train()
        nn.Module.to(self.model, self.device)
        betas = (settings.beta1, settings.beta2)
        self.optimizer = torch.optim.AdamW(parameter_groups(self.model, settings.weight_decay), lr=0.0, betas=betas)
        self.mixture = Mixture(sources, settings.context_length, settings.seed)
        self.history, self.step = History(), 0

    @property
    def tokens(self) -> int:
        """Tokens seen so far."""
        return self.step * self.settings.rows * self.settings.context_length

    def advance(self) -> float:
        """One step of the optimizer; returns its mean loss in nats per token."""
        settings, started = self.settings, time.perf_counter()
        rate = learning_rate(self.step, settings)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        rows = self.mixture.rows(self.step * settings.rows, settings.rows).to(self.device)
        halves = self.step < settings.short_until * settings.steps
        total = 0.0
        for part in rows.chunk(settings.accumulate):
            with autocast(self.device, settings.precision):
                loss = mean_loss(self.model, part, halves) * (len(part) / len(rows))
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.history.seconds += time.perf_counter() - started
        self._record(total, rate)
        return total

    def _record(self, loss: float, rate: float) -> None:
        row = {"step": self.step, "tokens": self.tokens, "loss": loss, "rate": rate}
        for key, column in self.history.train.items():
            column.append(row[key])

    def save(self, path: Path) -> None:
        """Write all that `restore` needs, in one atomic move: a kill leaves the old state or the new one."""
        state = {
            "settings": asdict(self.settings),
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
            "history": asdict(self.history),
        }
        unfinished = path.with_suffix(".part")
        torch.save(state, unfinished)
        unfinished.replace(path)

    def restore(self, path: Path) -> None:
        """Go on from a saved state. Raises ValueError when it was made with other settings.

        Only the number of steps may differ: then the rest of the schedule is that of the new number.
        """
        state = torch.load(path, map_location=self.device, weights_only=True)
        ours, theirs = asdict(self.settings), state["settings"]
        changed = [key for key in ours if key not in ("steps", "short_until") and ours[key] != theirs.get(key)]
        if changed:
            raise ValueError(f"{path.name} was made with another {', '.join(changed)}; use another working folder.")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"].cpu())
        self.history, self.step = History(**state["history"]), state["step"]
        if theirs["steps"] != ours["steps"]:
            self.history.plans.append([self.step, theirs["steps"]])


def prepare_tokenizer(settings: Settings, data: Path, work: Path) -> PreTrainedTokenizerFast:
    """The run's tokenizer: trained once, on at most 8 million characters and on less of what has a smaller share."""
    folder = work / "tokenizer"
    if not folder.exists():
        shares = settings.shares()
        most = {name: int(8e6 * share / max(shares.values())) for name, share in shares.items()}
        texts = (text for name in shares for text in _some(documents(_file(data, name, "train")), most[name]))
        train_tokenizer(texts, settings.vocab_size, settings.context_length).save_pretrained(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def _some(texts: Iterable[str], characters: int) -> Iterable[str]:
    for text in texts:
        if characters <= 0:
            return
        characters -= len(text)
        yield text


def _file(data: Path, name: str, split: str) -> Path:
    path = data / name / f"{name}_{split}.txt"
    if split == "train" and not path.is_file():
        raise FileNotFoundError(f"Data set {name} has no file {name}_{split}.txt in {path.parent}.")
    return path


def prepare_sources(settings: Settings, data: Path, work: Path, tokenizer: PreTrainedTokenizerFast) -> list[Source]:
    """The packed training streams, kept in the working folder once made."""
    sources = []
    for name, share in settings.shares().items():
        packed = work / f"{name}.npy"
        if not packed.exists():
            np.save(packed, pack(documents(_file(data, name, "train")), tokenizer))
        sources.append(Source(name, np.load(packed), share))
    return sources


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
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )


def validation_texts(settings: Settings, data: Path, most: int | None) -> dict[str, list[str]]:
    """Label -> held-out documents: every data set's validation file and, where there is one, its test file."""
    texts = {}
    for name in settings.shares():
        for split in ("valid", "test"):
            path = _file(data, name, split)
            if path.is_file():
                texts[f"{name}_{split}"] = documents(path)[:most]
    return texts


def sample(trainer: Trainer, tokenizer: PreTrainedTokenizerFast, prompt: str, tokens: int) -> str:
    """A few words from the model as it is now."""
    ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer(prompt)["input_ids"]]], device=trainer.device)
    trainer.model.eval()
    torch.manual_seed(trainer.settings.seed)
    out = trainer.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=True, temperature=0.7, top_k=0,
        pad_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    trainer.model.train()
    return str(tokenizer.decode(out[0], skip_special_tokens=True))


def write_checkpoint(trainer: Trainer, tokenizer: PreTrainedTokenizerFast, folder: Path, dtype: torch.dtype) -> None:
    """Model, generation settings, tokenizer and loss curve, as `models.load` and transformers read them."""
    folder.mkdir(parents=True, exist_ok=True)
    twin = DecoderForCausalLM(trainer.model.config)
    twin.load_state_dict(trainer.model.state_dict())
    nn.Module.to(twin, dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "loss.json").write_text(json.dumps(loss_curve(trainer)) + "\n", encoding="utf-8")


def loss_curve(trainer: Trainer, points: int = 400) -> dict[str, Any]:
    """The history, with training losses averaged so that at most `points` remain."""
    train = trainer.history.train
    width = max(1, math.ceil(len(train["step"]) / points))
    groups = range(0, len(train["step"]), width)
    thinned: dict[str, list[float]] = {
        "step": [train["step"][min(first + width, len(train["step"])) - 1] for first in groups],
        "tokens": [train["tokens"][min(first + width, len(train["step"])) - 1] for first in groups],
        "loss": [round(float(np.mean(train["loss"][first : first + width])), 4) for first in groups],
        "rate": [train["rate"][first] for first in groups],
    }
    return {
        "unit": "nats per token",
        "seed": trainer.settings.seed,
        "seconds": round(trainer.history.seconds),
        "train": thinned,
        "validation": trainer.history.validation,
    }


class Interrupted:
    """While entered, SIGTERM and SIGINT become a wish that the loop sees between two steps."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> "Interrupted":
        self._before = {number: signal.signal(number, self._ask) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, *_: object) -> None:
        self.asked = True


def run(trainer: Trainer, tokenizer: PreTrainedTokenizerFast, args: argparse.Namespace) -> bool:
    """Train to the last step; True when it got there, False when it was asked to stop before."""
    texts, saved = validation_texts(trainer.settings, args.data, args.evaluate_documents), time.monotonic()
    bar = tqdm(total=trainer.settings.steps, initial=trainer.step, unit="step", mininterval=args.report_seconds)
    with Interrupted() as stop, bar:
        while trainer.step < trainer.settings.steps and not stop.asked:
            started = time.perf_counter()
            loss = trainer.advance()
            speed = trainer.settings.rows * trainer.settings.context_length / (time.perf_counter() - started)
            bar.set_postfix(loss=f"{loss:.3f}", tokens_per_second=f"{speed:.0f}", refresh=False)
            bar.update()
            if trainer.step % args.evaluate_every == 0:
                report(trainer, tokenizer, texts, args)
            if time.monotonic() - saved > 60 * args.save_minutes:
                keep(trainer, tokenizer, args.work)
                saved = time.monotonic()
    keep(trainer, tokenizer, args.work)
    return trainer.step >= trainer.settings.steps


def keep(trainer: Trainer, tokenizer: PreTrainedTokenizerFast, work: Path) -> None:
    """Save what a later start needs, and a checkpoint that can be tried already."""
    trainer.save(work / "state.pt")
    write_checkpoint(trainer, tokenizer, work / "latest", torch.float32)


def report(
    trainer: Trainer, tokenizer: PreTrainedTokenizerFast, texts: dict[str, list[str]], args: argparse.Namespace
) -> None:
    """Measure on held-out text, write it into the history and print it with a sample."""
    for name, some in texts.items():
        result = score(trainer.model, tokenizer, some, trainer.settings.context_length)
        trainer.history.add_validation(name, trainer.step, result)
        print(f"\n{name}: {result.nats_per_token:.3f} nats/token, {result.bits_per_byte:.3f} bits/byte", end="")
    print(f"\n{sample(trainer, tokenizer, args.prompt, args.sample_tokens)!r}", flush=True)


def finish(trainer: Trainer, tokenizer: PreTrainedTokenizerFast, args: argparse.Namespace) -> None:
    """Write the checkpoint, measure what was written on all held-out text, and write its card."""
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[args.store]
    write_checkpoint(trainer, tokenizer, args.out, dtype)
    stored: DecoderForCausalLM = DecoderForCausalLM.from_pretrained(args.out, dtype=torch.float32)
    texts = validation_texts(trainer.settings, args.data, None)
    scores = {name: score(stored, tokenizer, some, trainer.settings.context_length) for name, some in texts.items()}
    prompts = (args.prompt, *MORE_PROMPTS)
    facts = TrainingFacts(
        command=command(trainer.settings),
        shares=trainer.settings.shares(),
        seed=trainer.settings.seed,
        steps=trainer.step,
        plans=trainer.history.plans,
        tokens=trainer.tokens,
        hours=trainer.history.seconds / 3600,
        hardware=hardware(trainer.device),
        stored_as=args.store,
        scores=scores,
        samples={prompt: sample(trainer, tokenizer, prompt, args.sample_tokens) for prompt in prompts},
    )
    write_card(args.out, DecoderConfig.from_pretrained(args.out), stored.num_parameters(), facts)


def command(settings: Settings) -> str:
    """The command line that trains with these settings; defaults are left out."""
    changed = (option.name for option in fields(Settings) if getattr(settings, option.name) != option.default)
    options = (f"--{name.replace('_', '-')} {getattr(settings, name)}" for name in changed)
    return " \\\n  ".join(("python -m models.training --data DATA --work WORK --out OUT", *options))


def hardware(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    about = Path("/proc/cpuinfo")  # Linux; elsewhere the machine type has to do
    names = re.findall(r"model name\s*:\s*(.+)", about.read_text(encoding="utf-8")) if about.exists() else []
    threads = torch.get_num_threads()
    return f"{threads} thread{'s' if threads > 1 else ''} of a CPU ({names[0] if names else platform.machine()})"


def parser() -> argparse.ArgumentParser:
    """The command line: how to run, and one option for every field of `Settings`."""
    options = argparse.ArgumentParser(prog="python -m models.training", description=__doc__)
    options.add_argument("--data", type=Path, required=True, help="folder of the data sets (see above)")
    options.add_argument("--work", type=Path, required=True, help="folder for the state and the latest checkpoint")
    options.add_argument("--out", type=Path, required=True, help="where the finished checkpoint goes")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--threads", type=int, default=os.cpu_count(), help="CPU threads")
    options.add_argument("--store", choices=("float32", "bfloat16"), default="float32", help="how weights are stored")
    options.add_argument("--save-minutes", type=float, default=3.0)
    options.add_argument("--report-seconds", type=float, default=1.0, help="least time between two progress lines")
    options.add_argument("--evaluate-every", type=int, default=200, help="steps between two measurements")
    options.add_argument("--evaluate-documents", type=int, default=50, help="documents a data set, while training")
    options.add_argument("--prompt", default="Once upon a time", help="start of the samples")
    options.add_argument("--sample-tokens", type=int, default=100, help="tokens in a sample")
    for option in fields(Settings):
        name, kind = "--" + option.name.replace("_", "-"), type(option.default)
        about = {"help": option.metadata.get("help", " "), "choices": option.metadata.get("choices")}
        options.add_argument(name, type=kind, default=option.default, **about)
    return options


def prepare(args: argparse.Namespace) -> tuple[Trainer, PreTrainedTokenizerFast]:
    """Tokenizer, data and trainer, taken up where an earlier start left off."""
    settings = Settings(**{option.name: getattr(args, option.name) for option in fields(Settings)})
    torch.set_num_threads(args.threads)
    args.work.mkdir(parents=True, exist_ok=True)
    tokenizer = prepare_tokenizer(settings, args.data, args.work)
    sources = prepare_sources(settings, args.data, args.work, tokenizer)
    trainer = Trainer(settings, sources, decoder_config(settings, tokenizer), args.device)
    if (args.work / "state.pt").exists():
        trainer.restore(args.work / "state.pt")
    return trainer, tokenizer


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, or go on training, and write the checkpoint."""
    options = parser()
    args = options.parse_args(arguments)
    try:
        trainer, tokenizer = prepare(args)
    except (ValueError, FileNotFoundError) as error:
        options.error(str(error))
    if run(trainer, tokenizer, args):
        finish(trainer, tokenizer, args)


if __name__ == "__main__":
    main()
