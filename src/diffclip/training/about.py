"""Collect the facts about a start of a run that may affect its numbers; `about.json` keeps them."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from diffclip.errors import hide_secrets
from diffclip.files import cores
from diffclip.version import __version__

_PACKAGES = ("torchvision", "timm", "open_clip_torch", "lightning", "numpy", "triton")


def describe_start(
    data: Mapping[str, Any], processes: Mapping[str, Any], step: int, steps: int
) -> dict[str, Any]:
    """Collect the facts for `about.json` about a start after `step` of `steps`; credentials are hidden."""
    gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    packages, program = {}, Path(sys.argv[0]).name
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    facts = {
        "time": time.time(),
        "step": step,
        "steps": steps,
        "command": shlex.join(["diffclip" if program == "__main__.py" else program, *sys.argv[1:]]),
        "folder": os.getcwd(),
        "versions": {
            "diffclip": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            **packages,
        },
        "git": _git_state(),
        "machine": {
            "name": platform.node(),
            "system": platform.platform(),
            "cpu": cpu_name(),
            "cores": cores(),
            "threads": torch.get_num_threads(),
            "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        },
        "gpus": [{"name": gpu.name, "memory": gpu.total_memory} for gpu in gpus],
        "processes": processes,
        "data": data,
    }
    return hide_credentials(facts)


def hide_credentials(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Hide the credentials in addresses in `facts`, and convert all values to JSON types."""
    return json.loads(hide_secrets(json.dumps(facts, default=str, ensure_ascii=False)))


def cpu_name() -> str:
    """Return the processor's name as the operating system gives it."""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        if match := re.search(r"model name\s*: (.+)", text):
            return match[1].strip()
    return platform.processor() or platform.machine()


def _git_state() -> dict[str, str] | None:
    """Return the commit of the package's git repository ("-dirty" after changes); None if untracked or without git."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return {"commit": git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")}
    except (OSError, subprocess.SubprocessError):
        return None
