"""A training run from its options to its checkpoint: what training from scratch and fine-tuning have in common."""

import argparse
import copy
import json
import os
import platform
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from models.card import DRAFT, TEMPERATURE, Earlier, TrainingFacts, draft_text, write_card
from models.checkpoints import load
from models.corpora import DataSet, held_out_texts
from models.data import Source, pack
from models.evaluation import score
from models.head_scores import HeadScore, best, write_heads
from models.heads import PASSAGE, Inputs, measure
from models.loss_curve import draw, loss_curve
from models.settings import command
from models.speculation import Acceptance, acceptance
from models.trainer import Trainer, train

PROMPTS = ("Once upon a time", "The little dog wanted", "Lily and her brother went to the river.")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def add_run_options(options: argparse.ArgumentParser) -> None:
    """Options that say where and how to run, not which weights come out."""
    options.add_argument("--data", type=Path, required=True, help="text file, or folder of text files or data sets")
    options.add_argument("--out", type=Path, required=True, help="where the finished checkpoint goes")
    options.add_argument("--work", type=Path, help="folder for state and latest checkpoint (default: OUT.work)")
    options.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    options.add_argument("--threads", type=int, default=os.cpu_count(), help="CPU threads")
    options.add_argument("--store", choices=tuple(DTYPES), default="float32", help="how weights are stored")
    options.add_argument("--save-minutes", type=float, default=3.0, help="minutes between two saved states")
    options.add_argument("--report-seconds", type=float, default=1.0, help="least time between two progress lines")
    options.add_argument("--evaluate-every", type=int, default=200, help="steps between two measurements")
    options.add_argument("--evaluate-documents", type=int, default=50, help="documents a data set, while training")
    options.add_argument("--prompts", type=Path, help="file with the beginnings of the card's samples, one a line")
    options.add_argument("--sample-tokens", type=int, default=100, help="tokens in a sample")


def packed_sources(
    sets: Sequence[DataSet], shares: dict[str, float], tokenizer: PreTrainedTokenizerFast, work: Path
) -> list[Source]:
    """The packed training streams, kept in the working folder once made."""
    sources = []
    for each in sets:
        packed = work / f"{each.name}.npy"
        if not packed.exists():
            unfinished = work / f"{each.name}.{os.getpid()}.npy"  # several processes may make the same file
            np.save(unfinished, pack(each.texts("train"), tokenizer))
            unfinished.replace(packed)
        sources.append(Source(each.name, np.load(packed), shares[each.name]))
    return sources


class TrainingRun:
    """A trainer with its tokenizer, its texts and its folders."""

    def __init__(
        self,
        program: str,
        trainer: Trainer,
        tokenizer: PreTrainedTokenizerFast,
        sets: Sequence[DataSet],
        args: argparse.Namespace,
        finished: Callable[[], PreTrainedModel] | None = None,
        base: str | None = None,
        earlier: Earlier | None = None,
    ) -> None:
        """`finished` gives a copy of the model as it is to be stored; by default a plain copy.

        program: the command line without settings, for the card; base: the checkpoint that is fine-tuned; earlier: the
        training that the weights at the start come from.
        """
        self.program, self.trainer, self.tokenizer, self.sets, self.args = program, trainer, tokenizer, sets, args
        self.finished = finished or (lambda: copy.deepcopy(trainer.model))
        self.base, self.earlier = base, earlier
        self.prompts = args.prompts.read_text(encoding="utf-8").splitlines() if args.prompts else list(PROMPTS)
        self.some_texts = held_out_texts(sets, args.evaluate_documents)

    def train(self) -> None:
        """Take up an earlier start, train to the end, and write the checkpoint; leave early when asked to stop."""
        if (self.args.work / "state.pt").exists():
            self.trainer.restore(self.args.work / "state.pt")
        transformers_logging.disable_progress_bar()  # one for every saved file would tear the progress line
        args = self.args
        ended = train(self.trainer, self.report, self.keep, args.evaluate_every, args.save_minutes, args.report_seconds)
        if ended and self.trainer.accelerator.is_main_process:
            self.finish()

    def report(self) -> None:
        """Measure on held-out text and look at the heads, write it into the history and print it with a sample."""
        trainer, history = self.trainer, self.trainer.history
        for name, some in self.some_texts.items():
            result = score(trainer.model, self.tokenizer, some, trainer.settings.context_length)
            history.add_validation(name, trainer.step, result)
            print(f"\n{name}: {result.nats_per_token:.3f} nats/token, {result.bits_per_byte:.3f} bits/byte", end="")
        scores, _ = self._heads(trainer.model, self.some_texts)
        heads = {each.kind: round(each.score, 4) for each in best(scores, per_kind=1)}
        history.add_heads(trainer.step, heads)
        print("\nbest heads: " + ", ".join(f"{kind} {value:.2f}" for kind, value in heads.items()), end="")
        print(f"\n{self.sample(trainer.model, self.prompts[0], trainer.settings.seed)!r}", flush=True)

    def keep(self) -> None:
        """Save what a later start needs, and a checkpoint that can be tried already."""
        self.trainer.save(self.args.work / "state.pt")
        self.write_checkpoint(self.args.work / "latest", torch.float32)

    def finish(self) -> None:
        """Write the checkpoint, measure what was written on all held-out text, and write its card."""
        trainer, settings, out = self.trainer, self.trainer.settings, self.args.out
        self.write_checkpoint(out, DTYPES[self.args.store])
        stored = load(out, trainer.device, torch.float32)
        texts, length = held_out_texts(self.sets), settings.context_length
        scores = {name: score(stored.model, self.tokenizer, some, length) for name, some in texts.items()}
        heads, inputs = self._heads(stored.model, texts)
        write_heads(out, heads, vars(inputs))
        facts = TrainingFacts(
            base=self.base,
            earlier=self.earlier,
            command=command(self.program, settings),
            settings=asdict(settings),
            shares=settings.shares(),
            steps=trainer.step,
            changes=trainer.history.changes,
            tokens=trainer.tokens,
            hours=trainer.history.seconds / 3600,
            hardware=hardware(trainer.device, trainer.accelerator.num_processes),
            stored_as=self.args.store,
            scores=scores,
            length=length,
            heads_measured=vars(inputs),
            draft=self._draft(stored.model, texts),
            samples=[(seed, self.sample(stored.model, prompt, seed)) for seed, prompt in enumerate(self.prompts)],
        )
        write_card(out, load(out, trainer.device, torch.float32).card, facts)

    def _heads(self, model: PreTrainedModel, texts: dict[str, list[str]]) -> tuple[tuple[HeadScore, ...], Inputs]:
        """Scores of a model's heads, and what they were measured on: the first held-out text, if there is one."""
        label, some = next(iter(texts.items()), (Inputs.text, [PASSAGE]))
        inputs = Inputs(text=label).fitting(model)
        return measure(model, self.tokenizer, some, inputs), inputs

    def _draft(self, stored: PreTrainedModel, texts: dict[str, list[str]]) -> tuple[str, int, Acceptance] | None:
        """How well a draft model that lies in the checkpoint already guesses for it."""
        folder = self.args.out / DRAFT
        if not folder.is_dir() or not texts:
            return None
        draft, label = load(folder, stored.device, torch.float32), draft_text(texts)
        length = self.trainer.settings.context_length
        accepted = acceptance(stored, draft.model, self.tokenizer, texts[label], length)
        return label, draft.card.parameters, accepted

    def write_checkpoint(self, folder: Path, dtype: torch.dtype) -> None:
        """Model, generation settings, tokenizer and loss curve, as `models.load` and transformers read them."""
        folder.mkdir(parents=True, exist_ok=True)
        nn.Module.to(self.finished(), dtype).save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        curve = loss_curve(self.trainer.history, self.trainer.settings.seed)
        (folder / "loss.json").write_text(json.dumps(curve) + "\n", encoding="utf-8")
        draw(curve, folder / "loss.png")

    def sample(self, model: PreTrainedModel, prompt: str, seed: int) -> str:
        """A few words from a model, its prompt first."""
        start = self.tokenizer.bos_token_id
        ids = [*([] if start is None else [start]), *self.tokenizer(prompt, add_special_tokens=False)["input_ids"]]
        given = torch.tensor([ids], device=model.device)
        was_training = model.training
        model.eval()
        torch.manual_seed(seed)
        generate: Any = model.generate
        out = generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=self.args.sample_tokens, do_sample=True,
            temperature=TEMPERATURE, top_k=0, pad_token_id=self.tokenizer.eos_token_id,
        )  # fmt: skip
        model.train(was_training)
        return str(self.tokenizer.decode(out[0], skip_special_tokens=True))


def hardware(device: torch.device, processes: int) -> str:
    """The device in words."""
    several = f"{processes} x " if processes > 1 else ""
    if device.type == "cuda":
        return several + torch.cuda.get_device_name(device)
    about = Path("/proc/cpuinfo")  # Linux; elsewhere the machine type has to do
    names = re.findall(r"model name\s*:\s*(.+)", about.read_text(encoding="utf-8")) if about.exists() else []
    threads = torch.get_num_threads()
    cpu = names[0] if names else platform.machine()
    return f"{several}{threads} thread{'s' if threads > 1 else ''} of a CPU ({cpu})"


def start(
    options: argparse.ArgumentParser,
    prepare: Callable[[argparse.Namespace], TrainingRun],
    arguments: Sequence[str] | None,
) -> None:
    """Train as the command line asks; what cannot be trained is told in one sentence, as a wrong option is."""
    args = options.parse_args(arguments)
    try:
        run = prepare(args)
    except (ValueError, FileNotFoundError) as error:
        options.error(str(error))
    run.train()
