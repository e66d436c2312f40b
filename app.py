"""Start the playground: arguments and environment become settings, then the server runs until it is interrupted.

Every option can be given in the environment too: --max-new-tokens as PLAYGROUND_MAX_NEW_TOKENS, and so on.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

# Read when torch loads its threads, so set before. Threads that wait spin without end by default, which makes decoding
# ten times slower beside a browser that draws on the same cores; sleeping at once costs it a fifth. So they spin for a
# moment, about as long as the next matrix product takes to come, and then sleep.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

from playground.sessions import MIB, Limits

PREFIX = "PLAYGROUND_"
LOG_LEVELS = ("critical", "error", "warning", "info", "debug")


def whole(low: int, high: int) -> Callable[[str], int]:
    """A parser of whole numbers from `low` to `high`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low:,} to {high:,}")
        return value

    return parse


def switch(text: str) -> bool:
    """1 or 0, as the environment can say it."""
    if text not in ("0", "1"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither 0 nor 1")
    return text == "1"


def level(text: str) -> str:
    """A log level; defaults from the environment come here too, which `choices` would let pass."""
    if text not in LOG_LEVELS:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(LOG_LEVELS)}")
    return text


def parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    """All options; what the environment sets becomes the default."""
    made = argparse.ArgumentParser("app.py", description="Watch a decoder-only language model while it writes.")
    limits = Limits()
    in_space = "SPACE_ID" in environment  # Hugging Face Spaces: reached through a proxy, shown in a frame

    def option(name: str, default: Any, text: str, **more: Any) -> None:
        variable = PREFIX + name.lstrip("-").replace("-", "_").upper()
        told = environment.get(variable, default)
        made.add_argument(name, default=told, help=f"{text} [{variable}; {told}]".replace("%", "%%"), **more)

    option("--host", "0.0.0.0" if in_space else "127.0.0.1", "address to listen on")
    option("--port", "7860", "port to listen on; 0 chooses a free one", type=whole(0, 65535))
    option("--model", "storyteller", "shipped name, checkpoint directory, or hub id, with @revision if need be")
    option("--models", "", "models that visitors may choose, with commas between; by default what is shipped")
    option("--model-dir", "", "folder whose checkpoints visitors may choose, too")
    option("--allow-any-model", "0", "visitors may load any path or hub id", type=switch, nargs="?", const=True)
    option("--device-map", "", "auto spreads a model over all devices, for one that is too large for one")
    option("--models-megabytes", "0", "weights that stay loaded for others; 0: as much as fits", type=whole(0, 1 << 24))
    option("--device", None, "torch device; by default CUDA where there is one, else the CPU")
    option("--dtype", None, "float32, bfloat16 or float16; by default bfloat16 on CUDA, else float32")
    option("--threads", None, "CPU threads of the model; by default torch decides", type=whole(1, 1024))
    option("--max-new-tokens", str(limits.new_tokens), "tokens that one run may draw", type=whole(1, 100_000))
    option("--max-prompt-characters", str(limits.prompt_characters), "longest prompt", type=whole(1, 10_000_000))
    option("--max-seconds", str(int(limits.seconds)), "longest time of one run", type=whole(1, 86_400))
    option("--max-runs", str(limits.active), "runs under way at the same time", type=whole(1, 1024))
    megabytes = whole(1, 1 << 24)
    option("--session-megabytes", str(limits.session_bytes // MIB), "memory for one visitor's runs", type=megabytes)
    option("--total-megabytes", str(limits.total_bytes // MIB), "memory for all runs", type=megabytes)
    option("--root-path", "", "path below which a proxy publishes the app, such as /playground")
    ancestors = "'self' https://huggingface.co https://*.hf.space" if in_space else "'self'"
    option("--frame-ancestors", ancestors, "sites that may show the page in a frame")
    option("--log-level", "info", f"how much the server tells: {', '.join(LOG_LEVELS)}", type=level)
    return made


def limits_of(told: argparse.Namespace) -> Limits:
    """What visitors may use, from the options."""
    return Limits(
        session_bytes=told.session_megabytes * MIB,
        total_bytes=told.total_megabytes * MIB,
        new_tokens=told.max_new_tokens,
        prompt_characters=told.max_prompt_characters,
        active=told.max_runs,
        seconds=float(told.max_seconds),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, load, serve."""
    options = parser(os.environ)
    told = options.parse_args(arguments)

    import torch  # imported late: whoever mistyped an option need not wait for the page library

    from models import load
    from playground.model_store import Shelf, menu_bytes, offered
    from playground.server import Settings, make_server

    if told.threads:
        torch.set_num_threads(told.threads)
    settings = Settings(
        host=told.host,
        port=told.port,
        root_path=told.root_path.rstrip("/"),
        frame_ancestors=told.frame_ancestors,
        limits=limits_of(told),
        log_level=told.log_level,
    )
    try:
        names = tuple(each.strip() for each in told.models.split(",") if each.strip())
        shelf = Shelf(
            offered(names, Path(told.model_dir) if told.model_dir else None),
            told.allow_any_model,
            menu_bytes(told.models_megabytes),
            told.device,
            told.dtype,
        )
        settings = replace(settings, shelf=shelf)
        loaded = load(told.model, told.device, told.dtype, device_map=told.device_map or None)
        server = make_server(loaded, settings, started=lambda url: print(f"Open {url}", flush=True))
    except ValueError as error:  # a checkpoint that cannot be loaded or watched: one sentence
        sys.exit(f"app.py: {error}")
    card = loaded.card
    print(f"{card.name}: {card.parameters:,} parameters, {card.dtype} on {card.device}", flush=True)
    server.run()


if __name__ == "__main__":
    main()
