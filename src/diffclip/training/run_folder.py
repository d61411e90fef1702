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
from diffclip.training.recipe import Recipe, read_recipe

RECIPE_FILE, LOCK_FILE, ABOUT_FILE = "recipe.yaml", ".lock", "about.json"
METRICS_FILE, VALIDATION_FILE, TENSORBOARD_FOLDER = "metrics.jsonl", "validation.jsonl", "tensorboard"
FINISHED = "finished"
# keys that change nothing about the numbers of a run (but for the order of sums), so that a resumed run may have
# others; whether data that has moved is the same is seen by its order (`Progress.order`)
_FREE_KEYS = {
    *("checkpoint_every", "wandb", "micro_batch", "grad_checkpointing", "compile"),
    *("attention_backend", "data.train", "data.val", "data.memory", "data.expected_samples"),
    *("data.workers", "data.cache", "data.cache_gb", "data.timeout"),
}
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
    """Check, without writing anything, that a run of `recipe` may start in `run`, or continue there with `resume`.

    Raises:
        InputError: it holds other files; or a run, without `resume`, of another recipe, or whose checkpoints are gone.
    """
    with disk_errors(run):
        found = {path.name for path in run.iterdir()} if run.exists() else set()
    found = {name for name in found if not name.endswith(".tmp")}  # of a run that was killed while it wrote
    if is_started(run):
        if not resume:
            raise InputError(
                f"{run} holds a run already: add --resume to go on with it, or choose another --run"
            )
    elif any(
        start.get("step") or start.get("ended", {}).get("how") == FINISHED for start in read_starts(run)
    ):
        raise InputError(f"{run} has lost its checkpoints: bring them back, or start a run in another folder")
    if resume and RECIPE_FILE in found:
        change = _change(read_recipe(run / RECIPE_FILE), recipe)
        if change is not None:
            raise InputError(f"{run} was started with {change}: resume with the same recipe")
    elif found and not (LOCK_FILE in found and found <= _OF_A_RUN):
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
    """Name the first key that a run's numbers depend on and that has changed, "lr=0.001, not 0.002".

    More epochs are no change: they extend the run. Nor is precision "auto", which was resolved when the run started.
    """
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


def describe_start(
    recipe: Recipe, data: Mapping[str, Any], processes: Mapping[str, Any], step: int, steps: int
) -> dict[str, Any]:
    """The facts of a start that goes on after `step` of `steps`, as `about.json` keeps them; credentials are hidden."""
    gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    packages = {}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    facts = {
        "time": time.time(),
        "step": step,
        "steps": steps,
        "epochs": recipe.epochs,
        "batch_size": recipe.batch_size,
        "command": _command(),
        "folder": os.getcwd(),
        "versions": {
            "diffclip": diffclip.__version__,
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
        "environment": {
            name: os.environ[name] for name in sorted(os.environ) if _ENVIRONMENT.fullmatch(name)
        },
    }
    return hide_credentials(facts)


def hide_credentials(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Hide the credentials of addresses in `facts`, and make JSON's types of its values."""
    found: dict[str, Any] = json.loads(shown(json.dumps(facts, default=str, ensure_ascii=False)))
    return found


def add_start(run: Path, facts: Mapping[str, Any]) -> None:
    """Append a start to `about.json` of `run`; a file that cannot be read is replaced.

    Raises:
        InputError: no space left, or no permission.
    """
    _write_starts(run, [*read_starts(run), dict(facts)])


def end_start(run: Path, how: str, step: int) -> None:
    """Note that the last start of `run` ended after `step`, and `how`: `FINISHED`, or what stopped it, in one line."""
    starts = read_starts(run)
    if starts:
        starts[-1]["ended"] = {"time": time.time(), "step": step, "how": shown(how)}
        _write_starts(run, starts)


def read_starts(run: Path) -> list[dict[str, Any]]:
    """The starts of `run`, oldest first; none where `about.json` is missing or damaged."""
    try:
        starts: list[dict[str, Any]] = json.loads((run / ABOUT_FILE).read_text(encoding="utf-8"))["starts"]
        return starts
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


def _git_state() -> dict[str, str] | None:
    """The commit of the tree that the package is a tracked part of, with "-dirty" after changes; None without git."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(diffclip.__file__).parent), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")
        return {"commit": git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")}
    except (OSError, subprocess.SubprocessError):
        return None
