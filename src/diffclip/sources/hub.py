"""Fetch models from the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub

from diffclip.errors import explain_errors
from diffclip.sources.registry import HUB_PREFIX
from diffclip.weights import CONFIG_FILE, PUBLISHED_FILE, WEIGHTS_FILE


def locate(source: str | Path, cache_dir: str | None = None) -> Path:
    """Return `source` as a path; a name on the hub is fetched or found in the hub's cache first."""
    if not str(source).startswith(HUB_PREFIX):
        return Path(source)
    repository, _, revision = str(source).removeprefix(HUB_PREFIX).partition("@")
    with explain_errors(f"{source} cannot be fetched", "check the name and the connection"):
        return Path(
            huggingface_hub.snapshot_download(
                repository,
                revision=revision or None,
                cache_dir=cache_dir,
                allow_patterns=[CONFIG_FILE, WEIGHTS_FILE, PUBLISHED_FILE],
            )
        )


def check_reachable(repository: str, source: str, *files: str) -> None:
    """Raise `InputError` if none of `files` is in the hub's cache and one attempt does not reach the repository.

    `source` is its name in the message. Libraries that read from the hub try many times, and are silent meanwhile.
    """
    if any(isinstance(huggingface_hub.try_to_load_from_cache(repository, file), str) for file in files):
        return
    with explain_errors(f"{source} cannot be fetched", "check the name and the connection"):
        huggingface_hub.HfApi().model_info(repository, timeout=10)
