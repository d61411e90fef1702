"""The folder of a run: its recipe, its lock, and `about.json`, a list of its starts with what may change their numbers.

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
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

import torch

import diffclip
from diffclip.data.remote import shown
from diffclip.errors import InputError
from diffclip.files import cores, disk_errors, lock_file, write_text
from diffclip.training.recipe import Recipe, read_recipe, to_yaml

RECIPE_FILE, LOCK_FILE, ABOUT_FILE = "recipe.yaml", ".lock", "about.json"
METRICS_FILE, VALIDATION_FILE, TENSORBOARD_FOLDER = "metrics.jsonl", "validation.jsonl", "tensorboard"
# keys that change nothing about the numbers of a run (but for the order of sums), so that a resumed run may have
# others; whether data that has moved is the same is seen by its order (`Progress.order`)
_FREE_KEYS = {
    *("checkpoint_every", "wandb", "micro_batch", "grad_checkpointing", "compile"),
    *("attention_backend", "data.train", "data.val", "data.memory", "data.expected_samples"),
    *("data.workers", "data.cache", "data.cache_gb", "data.timeout"),
}
# what a run that was stopped before its first checkpoint may have left
_OF_A_RUN = {
    *(RECIPE_FILE, METRICS_FILE, VALIDATION_FILE, TENSORBOARD_FOLDER, ABOUT_FILE, LOCK_FILE),
    *("checkpoints", "report.html", "wandb"),
}
_PACKAGES = ("torchvision", "timm", "open_clip_torch", "lightning", "numpy", "triton")
_ENVIRONMENT = re.compile(
    r"(OMP|MKL|CUDA|CUBLAS|NCCL|GLOO|TORCH|PYTORCH|TORCHINDUCTOR|TRITON)_\w+|SLURM_(?!JWT)\w+|NVIDIA_TF32_OVERRIDE"
)


def is_started(run: Path) -> bool:
    """True if `run` holds checkpoints, also damaged ones."""
    return any((run / "checkpoints").glob("*step_*"))


def check_folder(recipe: Recipe, run: Path, resume: bool) -> None:
    """See, without writing anything, that a run of `recipe` may start in `run`, or go on there with `resume`.

    Raises:
        InputError: it holds other files; or a run, without `resume`, of another recipe, or whose checkpoints are gone.
    """
    try:
        str(run).encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{run} is no UTF-8 name, and safetensors cannot open it: choose another --run"
        ) from None
    with disk_errors(run):
        found = {path.name for path in run.iterdir()} if run.exists() else set()
    saved = any(start.get("saved") or start.get("step") for start in read_starts(run))
    if saved and not is_started(run):
        raise InputError(f"{run} has lost its checkpoints: bring them back, or start a run in another folder")
    if resume and RECIPE_FILE in found:
        change = _change(read_recipe(run / RECIPE_FILE), recipe)
        if change is not None:
            raise InputError(f"{run} was started with {change}: resume with the same recipe")
        return
    if is_started(run):
        raise InputError(f"{run} holds a run already: add --resume to go on with it, or choose another --run")
    # a run that was killed in its first moments has left its recipe, and perhaps no more
    begun = TENSORBOARD_FOLDER in found or _same_recipe(run / RECIPE_FILE, recipe)
    if found - {LOCK_FILE} and not (found <= _OF_A_RUN and begun):
        raise InputError(f"{run} holds other files: choose a new or an empty folder for --run")


def lock_folder(run: Path) -> IO[str]:
    """Keep other processes from training in `run` until this one ends, however it does, or the handle is closed.

    Raises:
        InputError: another process trains there.
    """
    handle = lock_file(run / LOCK_FILE)
    if isinstance(handle, str):
        raise InputError(f"{handle} trains in {run}: wait for it, or choose another --run")
    return handle


def _change(before: Recipe, now: Recipe) -> str | None:
    """The first key that a run's numbers depend on and that is not as it was, "lr=0.001, not 0.002". More epochs are no
    change: they extend the run. Nor is "auto", which was resolved when the run started."""
    old, new = _flat(before), _flat(now)
    for key, value in new.items():
        extended = key == "epochs" and value > old[key]
        resolved = key == "precision" and value == "auto"
        if key not in _FREE_KEYS and old[key] != value and not extended and not resolved:
            return f"{key}={old[key]}, not {value}"
    return None


def _flat(recipe: Recipe) -> dict[str, Any]:
    fields = recipe.model_dump()
    data = fields.pop("data")
    return fields | {f"data.{key}": value for key, value in data.items()}


def _same_recipe(file: Path, recipe: Recipe) -> bool:
    try:
        return file.read_text(encoding="utf-8") == to_yaml(recipe)
    except (OSError, ValueError):
        return False


def describe_start(
    recipe: Recipe, data: Mapping[str, Any], processes: Mapping[str, Any], step: int, steps: int
) -> dict[str, Any]:
    """The facts of a start that goes on after `step` of `steps`, as `about.json` keeps them; credentials are hidden."""
    facts = {
        "time": time.time(),
        "step": step,
        "steps": steps,
        "epochs": recipe.epochs,
        "batch_size": recipe.batch_size,
        "command": _command(),
        "folder": os.getcwd(),
        "versions": _versions(),
        "git": _git_state(),
        "machine": {
            "name": platform.node(),
            "system": platform.platform(),
            "cpu": cpu_name(),
            "cores": cores(),
            "threads": torch.get_num_threads(),
            "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        },
        "gpus": [
            {"name": found.name, "memory": found.total_memory}
            for found in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        ],
        "processes": dict(processes),
        "data": dict(data),
        "environment": {
            name: value for name, value in sorted(os.environ.items()) if _ENVIRONMENT.fullmatch(name)
        },
    }
    hidden: dict[str, Any] = json.loads(shown(json.dumps(facts, default=str, ensure_ascii=False)))
    return hidden


def add_start(run: Path, facts: Mapping[str, Any]) -> None:
    """Append a start to `about.json` of `run`; a file that cannot be read is replaced.

    Raises:
        InputError: no space left, or no permission.
    """
    _write_starts(run, [*read_starts(run), dict(facts)])


def note_saved(run: Path) -> None:
    """Note in `about.json` that the last start of `run` has left a checkpoint."""
    starts = read_starts(run)
    if starts and "saved" not in starts[-1]:
        starts[-1]["saved"] = True
        _write_starts(run, starts)


def end_start(run: Path, how: str, step: int) -> None:
    """Note that the last start of `run` ended after `step`, and `how`: "finished", or what stopped it, in one line."""
    starts = read_starts(run)
    if starts:
        starts[-1]["ended"] = {"time": time.time(), "step": step, "how": shown(how)}
        _write_starts(run, starts)


def read_starts(run: Path) -> list[dict[str, Any]]:
    """The starts of `run`, oldest first; none where `about.json` is missing or damaged."""
    try:
        starts = json.loads((run / ABOUT_FILE).read_text(encoding="utf-8"))["starts"]
        return [start for start in starts if isinstance(start, dict)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _write_starts(run: Path, starts: list[dict[str, Any]]) -> None:
    write_text(run / ABOUT_FILE, json.dumps({"starts": starts}, indent=1, ensure_ascii=False) + "\n")


def cpu_name() -> str:
    """The processor's name, as the system tells it."""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        if found := re.search(r"model name\s*: (.+)", text):
            return found[1].strip()
    return platform.processor() or platform.machine()


def _command() -> str:
    """The command line that this process was started with."""
    program, *words = sys.argv
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = f"python -m {spec.name.removesuffix('.__main__')}" if spec else Path(program).name
    return f"{name} {shlex.join(words)}".strip()


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
    """Commit and branch of the tree that the package is a tracked part of; None without git."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(diffclip.__file__).parent), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")
        return {
            "commit": git("rev-parse", "HEAD"),
            "dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
            "branch": git("rev-parse", "--abbrev-ref", "HEAD"),
        }
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
