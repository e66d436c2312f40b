"""Where a model runs and in which type of number, and how much room there is for it."""

import gc
import os
from pathlib import Path

import psutil
import torch

from models.errors import CheckpointError, NoRoomError

GIB = 1 << 30
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SLACK_BYTES = 256 << 20
"""Left free when a model is loaded: the rest of the program needs some too."""
CGROUP = Path("/sys/fs/cgroup")


def available() -> tuple[str, ...]:
    """The devices of this machine by name, as `choose_device` takes them."""
    return ("cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count())))


def choose_device(device: str | torch.device | None) -> torch.device:
    """The device of that name; None and "auto" take the first CUDA device, else the CPU. Raises CheckpointError."""
    if device is None or device == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise CheckpointError(_no_device(device)) from error
    chosen = torch.device("cuda", 0) if chosen == torch.device("cuda") else chosen
    if str(chosen) not in available():
        raise CheckpointError(_no_device(device))
    return chosen


def _no_device(device: object) -> str:
    return f"The device {str(device)!r} cannot be used here; this machine has {', '.join(available())}."


def choose_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """The type of that name; None and "auto" take bfloat16 on CUDA, else float32. Raises CheckpointError."""
    if dtype is None or dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    kind = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if kind is None or kind not in DTYPES.values():
        raise CheckpointError(f"The dtype {str(dtype)!r} is not one of {', '.join(DTYPES)}.")
    return kind


def device_words(device: torch.device) -> str:
    """A device with the name of its maker where it has one."""
    return f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else str(device)


def free_bytes(device: torch.device) -> int:
    """Memory that can still be taken on a device: of a GPU, of this machine, or of the container it runs in."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(psutil.virtual_memory().available, _container_bytes())


def _container_bytes() -> int:
    """What the container's limit leaves (cgroup v2); no limit is a very large number."""
    try:
        most, used = ((CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return 1 << 62
    return 1 << 62 if most == "max" else max(int(most) - int(used), 0)


def vet_memory(name: str, needed: int, device: torch.device) -> None:
    """Refuse what cannot fit before it is read. Raises NoRoomError with both numbers."""
    free = free_bytes(device)
    if needed + SLACK_BYTES > free:
        raise NoRoomError(
            f"{name} needs {needed / GIB:,.2f} GiB for its weights, and {free / GIB:,.2f} GiB are free on {device}: "
            "take a smaller type of number, another device, or free some memory."
        )


def give_back_memory() -> None:
    """Hand what is no longer used back to the system, so that others (and the next model) can have it."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if os.name == "posix":
        _trim()


def _trim() -> None:
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc keeps freed pages unless told
    if trim is not None:
        trim(0)
