"""How a run came about: `RUN/about.json`, a list of its starts with what may have changed their numbers or their speed.

{"starts": [{"time", "step", "command", …, "ended": {"time", "step", "how"}}, …]}
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import diffclip
from diffclip.files import write_text
from diffclip.training.recipe import Recipe

ABOUT_FILE = "about.json"

_PACKAGES = ("torchvision", "timm", "open_clip_torch", "lightning", "numpy", "triton", "webdataset")
# what changes numbers or speed, but for what torch sets itself
_ENVIRONMENT = re.compile(
    r"(?!PYTORCH_NVML_BASED_CUDA_CHECK|\w+_CACHE_DIR)"
    r"((OMP|MKL|OPENBLAS)_NUM_THREADS|CUDA_VISIBLE_DEVICES|CUDA_LAUNCH_BLOCKING|CUBLAS_WORKSPACE_CONFIG"
    r"|NVIDIA_TF32_OVERRIDE|PYTHONHASHSEED|(NCCL|GLOO|TORCH|PYTORCH|TORCHINDUCTOR|TRITON)_\w+)"
)
_JOB = ("SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_ARRAY_TASK_ID", "SLURM_NODELIST", "SLURM_RESTART_COUNT")
_SOURCE = ("spec", "shards", "samples", "weight")

_HIDDEN = "***"
_ADDRESS = re.compile(r"\b\w[\w+.-]*://\S+")
_SECRET = r"[\w.-]*(?:secret|token|passw(?:or)?d|pwd|credentials?|api[-_]?key|access[-_]?key(?:[-_]?id)?)"
_SECRETS = (
    # NAME=VALUE, NAME: VALUE, --name VALUE
    re.compile(
        rf"(?i)((?:(?<![\w.-]){_SECRET}\s*[=:]|(?<!\S)--?{_SECRET})\s*(?:bearer\s+|basic\s+)?[\"']?)[^\s\"'&]+"
    ),
    re.compile(r"(?i)(authorization\s*[:=]\s*(?:bearer\s+|basic\s+)?)[^\s\"']+"),
    re.compile(r"((?<!\S)(?:-u|--user)[\s=]+[\"']?[^\s\"':]+:)[^\s\"']+"),
)


def describe_start(
    recipe: Recipe, corpus_facts: Mapping[str, Any], hardware_facts: Mapping[str, Any], step: int
) -> dict[str, Any]:
    """What there is to know about a start that goes on after `step`, to be called in the first process.

    Args:
        recipe: as resolved.
        corpus_facts: `fingerprint`, `samples`, `per_epoch`, `dropped`, `steps_per_epoch`, and `sources`, each
            (spec, shards, samples, weight).
        hardware_facts: `world` (processes), `nodes`, `strategy`, `precision`; `hosts`, the names of all machines.
        step: steps that were done before.

    Credentials in addresses and in the command are hidden. What cannot be found out is None.
    """
    data = dict(corpus_facts)
    if data.get("sources"):
        data["sources"] = [_source(source) for source in data["sources"]]
    per_epoch = data.get("steps_per_epoch")
    return {
        "time": time.time(),
        "step": step,
        "steps": recipe.epochs * per_epoch if per_epoch else None,
        "epochs": recipe.epochs,
        "batch_size": recipe.batch_size,
        "command": _command(),
        "folder": os.getcwd(),
        "versions": _versions(),
        "git": _git_state(),
        "machine": _machine(),
        "gpus": _gpus(),
        "processes": dict(hardware_facts),
        "data": without_credentials(data),
        "environment": {
            name: without_credentials(value)
            for name, value in sorted(os.environ.items())
            if _ENVIRONMENT.fullmatch(name)
        },
        "job": {name: os.environ[name] for name in _JOB if name in os.environ} or None,
    }


def add_start(run: Path, facts: Mapping[str, Any]) -> None:
    """Append a start to `about.json` of `run`; a file that cannot be read is replaced.

    Raises:
        InputError: no space left, or no permission.
    """
    _write(run, [*read_starts(run), dict(facts)])


def end_start(run: Path, how: str, step: int) -> None:
    """Note that the last start of `run` ended after `step`, and `how`: "finished", or what stopped it, in one line.

    Raises:
        InputError: no space left, or no permission.
    """
    starts = read_starts(run)
    if starts:
        starts[-1]["ended"] = {"time": time.time(), "step": step, "how": without_credentials(how)}
        _write(run, starts)


def read_starts(run: Path) -> list[dict[str, Any]]:
    """The starts of `run`, oldest first; none where `about.json` is missing or damaged."""
    try:
        about = json.loads((run / ABOUT_FILE).read_text(encoding="utf-8"))
        starts = about["starts"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [start for start in starts if isinstance(start, dict)] if isinstance(starts, list) else []


def without_credentials(value: Any) -> Any:
    """`value` (text, or lists and mappings of it) without names, passwords and keys in addresses and options.

    Of an address go the part before "@" and the values of the query, wherever it stands in a text.
    """
    if isinstance(value, str):
        text = _ADDRESS.sub(_bare_address, value)
        for pattern in _SECRETS:
            text = pattern.sub(rf"\g<1>{_HIDDEN}", text)
        return text
    if isinstance(value, Mapping):
        return {key: without_credentials(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [without_credentials(entry) for entry in value]
    return value


def _bare_address(match: re.Match[str]) -> str:
    address = re.sub(r"(://)[^/\s]+@", rf"\1{_HIDDEN}@", match[0])
    return re.sub(r"([?&][^=&\s]+=)[^&\s#'\"]+", rf"\1{_HIDDEN}", address)


def _write(run: Path, starts: list[dict[str, Any]]) -> None:
    content = json.dumps({"starts": starts}, indent=1, ensure_ascii=False, default=str)
    write_text(run / ABOUT_FILE, content + "\n")


def _source(source: Any) -> dict[str, Any]:
    """A source of the data by names; its shards are a number."""
    named = dict(source) if isinstance(source, Mapping) else dict(zip(_SOURCE, source, strict=False))
    shards = named.get("shards")
    if isinstance(shards, Iterable) and not isinstance(shards, str):
        named["shards"] = len(list(shards))
    return named


def _command() -> str:
    """The command line that this process was started with."""
    program, *words = sys.argv
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = f"python -m {spec.name.removesuffix('.__main__')}" if spec else Path(program).name
    return str(without_credentials(" ".join([name, shlex.join(words)]).strip()))


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {
        "diffclip": diffclip.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _git_state() -> dict[str, Any] | None:
    """Of the tree that the package lies in, if it is a tracked part of it; None without git."""
    package = Path(diffclip.__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(package), *words],
            check=True,
            capture_output=True,
            text=True,
            timeout=20,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        ).stdout.strip()

    try:
        # an environment within another project's tree is no part of that project
        git("ls-files", "--error-unmatch", "__init__.py")
        return {
            "commit": git("rev-parse", "HEAD"),
            "dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
            "branch": git("rev-parse", "--abbrev-ref", "HEAD"),
        }
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None


def _machine() -> dict[str, Any]:
    try:
        usable = len(os.sched_getaffinity(0))
    except AttributeError:
        usable = os.cpu_count() or 1
    return {
        "name": platform.node(),
        "system": platform.platform(),
        "cpu": cpu_name(),
        "cores": usable,
        "threads": torch.get_num_threads(),
        "memory": _memory(),
    }


def cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _memory() -> int | None:
    """Bytes that this machine has, or that the container may use."""
    limits = []
    with suppress(OSError, ValueError, AttributeError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError, ValueError):
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="utf-8")))
    return min(limits, default=None)


def _gpus() -> list[dict[str, Any]]:
    """The GPUs that this process sees."""
    driver = None
    with suppress(OSError):
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
        found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text)
        driver = found[1] if found else None
    gpus = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            gpus.append({"name": properties.name, "memory": properties.total_memory, "driver": driver})
    return gpus
