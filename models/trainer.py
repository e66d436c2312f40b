"""One loop for all training: steps of the optimizer over packed rows, with exact resume, through accelerate."""

import math
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from models.data import Mixture, Source
from models.guidance import lesson_rows
from models.layout import usual_order
from models.loss_curve import History
from models.objective import Objective
from models.optimizers import Optimizers
from models.schedule import learning_rate
from models.settings import Optimization, differences
from models.throughput import measured_peak, training_flops_per_token

LESSON = 4  # keeps the random numbers of lessons apart from all others

# Settings that may be others after an interruption: they change how a run goes on, not what was done.
TOLD = ("steps", "decay", "short_until", "repeats", "random_repeats", "guide", "dropout")  # the card must tell of these
FREE = (*TOLD, "compile", "gradient_checkpointing")


def accelerator(precision: str, device: str) -> Accelerator:
    """Devices and processes as `accelerate launch` or a plain start gives them; device "cpu" keeps off any other.

    precision "auto" computes products in bfloat16 where the device is fast at them.
    """
    on_cuda = device != "cpu" and torch.cuda.is_available()
    fast = torch.cuda.is_bf16_supported() if on_cuda else _cpu_is_fast_in_bfloat16()
    wanted = fast if precision == "auto" else precision == "bfloat16"
    AcceleratorState._reset_state()  # a program may train twice, with another precision
    return Accelerator(mixed_precision="bf16" if wanted else "no", cpu=device == "cpu")


def _cpu_is_fast_in_bfloat16() -> bool:
    """Whether the CPU has products of bfloat16 in hardware: as tiles (AMX) or as vectors (AVX-512 BF16)."""
    return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()


class Trainer:
    """One training run: model, optimizer, position in the data, history."""

    def __init__(
        self, settings: Optimization, model: PreTrainedModel, sources: Sequence[Source], accelerator: Accelerator
    ) -> None:
        """Every process gets an equal part of a step's rows.

        Raises ValueError when the rows cannot be shared out evenly or a source is too short.
        """
        if settings.rows % accelerator.num_processes:
            raise ValueError(f"{settings.rows} rows cannot be shared evenly by {accelerator.num_processes} processes.")
        self.settings, self.accelerator = settings, accelerator
        self.model = model.train()
        usual_order(model)
        if settings.gradient_checkpointing:
            model.activation_checkpointing_enable()
        if settings.compile and accelerator.device.type == "cpu":
            # Written out and compiled, attention over rows of 256 is quicker than the CPU's fused kernel, which is slow
            # in its backward pass (docs/storyteller.md).
            model.set_attn_implementation("eager")
        objective = Objective(model, settings.own_words, settings.compile)
        self.objective = accelerator.prepare(objective)
        self.optimizer = Optimizers(model, settings)
        self.mixture = Mixture(
            sources, settings.context_length, settings.seed, settings.repeats, settings.random_repeats
        )
        self.history, self.step, self.last_seconds = History(), 0, math.inf
        self.flops_per_token = training_flops_per_token(model, settings.context_length)

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        found = self.accelerator.device  # of several processes on a CPU each gets a number, which names no device
        return torch.device("cpu") if found.type == "cpu" else found

    @property
    def tokens(self) -> int:
        """Tokens seen so far, in all processes."""
        return self.step * self.settings.rows * self.settings.context_length

    def advance(self) -> float:
        """One step of the optimizer; returns its mean loss in nats per token."""
        settings, started = self.settings, time.perf_counter()
        rate = learning_rate(self.step, settings)
        self.optimizer.set_rate(rate)
        self._seed()
        rows, total = self._rows().to(self.device), torch.zeros((), device=self.device)
        halves = self.step < settings.short_until * settings.steps
        parts = rows.chunk(settings.accumulate)
        for number, part in enumerate(parts, 1):
            last = number == len(parts)  # gradients of the processes are averaged once, after the last part
            with nullcontext() if last else self.accelerator.no_sync(self.objective):
                loss, taught = self.objective(part, halves, self._lesson() if last else None)
                loss = loss * (len(part) / len(rows))
                self.accelerator.backward(loss + settings.guide * taught)
            total += loss.detach()
        self.accelerator.clip_grad_norm_(self.model.parameters(), settings.clip)
        self.optimizer.step()
        mean = self.accelerator.reduce(total, "mean").item()
        self.step += 1
        self.last_seconds = time.perf_counter() - started
        self.history.seconds += self.last_seconds
        self._record(mean, rate)
        return mean

    def _rows(self) -> Tensor:
        """This process' part of the step's rows, (rows / processes, T + 1): a function of seed, step and process."""
        share = self.settings.rows // self.accelerator.num_processes
        return self.mixture.rows(self.step * self.settings.rows + self.accelerator.process_index * share, share)

    def _lesson(self) -> Tensor | None:
        """This process' rows of the step's lesson in induction, where one is asked for."""
        if not self.settings.guide:
            return None
        generator = np.random.default_rng([self.settings.seed, self.step, self.accelerator.process_index, LESSON])
        vocab_size = self.model.config.get_text_config().vocab_size
        return lesson_rows(generator, vocab_size, self.settings.context_length).to(self.device)

    def _seed(self) -> None:
        """Random numbers (dropout, own words) start anew in every step, so resuming needs no state of generators."""
        parts = np.random.SeedSequence([self.settings.seed, self.step, self.accelerator.process_index])
        torch.manual_seed(int(parts.generate_state(1)[0]))

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
            "history": asdict(self.history),
        }
        unfinished = path.with_suffix(".part")
        torch.save(state, unfinished)
        unfinished.replace(path)

    def restore(self, path: Path) -> None:
        """Go on from a saved state. Raises ValueError when it was made with other settings.

        Only those in `FREE` may differ. With another number of steps the rest of the schedule is that of the new one.
        """
        state = torch.load(path, map_location=self.device, weights_only=True)
        changed = differences(self.settings, state["settings"], FREE)
        if changed:
            raise ValueError(f"{path.name} was made with another {', '.join(changed)}; use another working folder.")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.history, self.step = History(**state["history"]), state["step"]
        for name in TOLD:
            before = state["settings"].get(name, 0)
            if before != getattr(self.settings, name):
                self.history.changes.append([self.step, name, before])

    def agreed(self, wish: bool) -> bool:
        """Whether any process has the wish: all must stop at the same step."""
        if self.accelerator.num_processes == 1:
            return wish
        return bool(self.accelerator.reduce(torch.tensor(float(wish), device=self.device), "sum").item())


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


def train(
    trainer: Trainer,
    report: Callable[[], None],
    keep: Callable[[], None],
    evaluate_every: int,
    save_minutes: float,
    report_seconds: float = 1.0,
) -> bool:
    """Train to the last step; True when it got there, False when it was asked to stop before.

    The first process calls `report` every so many steps and `keep` every so many minutes and at the end. Its progress
    line shows loss, tokens a second, the time left, and model FLOPs utilisation: the operations that the model needs
    (see `training_flops_per_token`) as a part of what a large matrix product reaches on this device.
    """
    settings, first, saved = trainer.settings, trainer.accelerator.is_main_process, time.monotonic()
    dtype = torch.bfloat16 if trainer.accelerator.mixed_precision == "bf16" else torch.float32
    peak = measured_peak(trainer.device, dtype) * trainer.accelerator.num_processes
    bar = tqdm(total=settings.steps, initial=trainer.step, unit="step", mininterval=report_seconds, disable=not first)
    with Interrupted() as stop, bar:
        while trainer.step < settings.steps and not trainer.agreed(stop.asked):
            loss = trainer.advance()
            bar.set_postfix_str(progress(trainer, loss, peak), refresh=False)
            bar.update()
            if first and trainer.step % evaluate_every == 0:
                report()
            if first and time.monotonic() - saved > 60 * save_minutes:
                keep()
                saved = time.monotonic()
    if first:
        keep()
    return trainer.step >= settings.steps


def progress(trainer: Trainer, loss: float, peak: float) -> str:
    """Loss, tokens a second (measured over the last step) and model FLOPs utilisation, for the progress line."""
    speed = trainer.settings.rows * trainer.settings.context_length / trainer.last_seconds
    return f"loss={loss:.3f}, {speed:,.0f} tokens/s, MFU={speed * trainer.flops_per_token / peak:.0%}"
