"""What a part of the studies begins with: its packages, where it works, and what is changed in which study."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diffclip.study.recipe import Study

_IN_MEMORY = Path("/dev/shm")
_ROOM = 40e9  # bytes of checkpoints
_CACHES = 4e9  # bytes
NEEDED = {
    **{name: name for name in ("torch", "torchvision", "timm", "ftfy", "regex", "numpy", "pydantic")},
    **{name: name for name in ("safetensors", "huggingface_hub", "braceexpand", "fsspec", "rich")},
    **{name: name for name in ("lightning", "tensorboard", "threadpoolctl")},
    **{"open_clip": "open_clip_torch", "PIL": "pillow", "yaml": "pyyaml", "sklearn": "scikit-learn"},
    "diffclip": "diffclip (in src)",
}
"""Packages by what is imported of them."""


def missing_packages() -> list[str]:
    """Those that this program needs and that cannot be found."""
    return sorted(package for name, package in NEEDED.items() if importlib.util.find_spec(name) is None)


def keep_caches(work: Path) -> None:
    """Where the user's home cannot be written, or is nearly full, what is compiled and drawn is kept in `work`."""
    home = Path(os.environ.get("HOME", "/nowhere"))
    if not os.access(home, os.W_OK) or shutil.disk_usage(home).free < _CACHES:
        for name in ("XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "MPLCONFIGDIR"):
            os.environ.setdefault(name, str(work / "cache" / name.lower()))


def working_folder() -> Path:
    """In memory where there is room: a grid writes hundreds of gigabytes of checkpoints."""
    try:
        roomy = os.access(_IN_MEMORY, os.W_OK) and shutil.disk_usage(_IN_MEMORY).free > _ROOM
    except OSError:
        roomy = False
    return Path(tempfile.mkdtemp(prefix="study-", dir=_IN_MEMORY if roomy else None))


def changes_of(studies: Mapping[str, Study], changes: Sequence[str]) -> dict[str, list[str]]:
    """The changes by study: those of `STUDY:KEY=VALUE` to that one, others to all that have the key's first part.

    Raises:
        InputError: a change is to no study.
    """
    from diffclip.errors import InputError, unknown
    from diffclip.study.recipe import Study

    found: dict[str, list[str]] = {name: [] for name in studies}
    for change in changes:
        name, colon, key = change.partition("=")[0].rpartition(":")
        if colon and name not in studies:
            raise unknown("study", name, studies)
        top = key.split(".")[0]
        if top not in Study.model_fields:
            raise unknown("study key", top, Study.model_fields)
        fitting = [name] if colon else [one for one in studies if getattr(studies[one], top) is not None]
        if not fitting:
            raise InputError(f"--set {change}: no study has {top}, give one some by STUDY:{change}")
        for one in fitting:
            found[one].append(change.removeprefix(f"{name}:") if colon else change)
    return found
