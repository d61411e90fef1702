"""How much memory there is for more."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import torch

_MACHINE, _CONTAINER = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def free_memory(device: torch.device) -> int | None:
    """Bytes that `device` has left: of a GPU, or of this machine or the container. What only caches files counts as
    free. None where nothing tells."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = []
    with suppress(OSError, ValueError):
        free.append(_number(_MACHINE, r"MemAvailable:\s*(\d+) kB") * 1024)
    with suppress(OSError, ValueError):
        limit = _number(_CONTAINER / "memory.max", r"(\d+)")
        free.append(max(0, limit - _number(_CONTAINER / "memory.stat", r"(?m)^anon (\d+)")))
    return min(free, default=None)


def _number(file: Path, pattern: str) -> int:
    found = re.search(pattern, file.read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(file)
    return int(found[1])
