"""Names of models: the prefixes that say which reader opens a model, and what a name stands for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diffclip.errors import InputError, near_path, unknown_name
from diffclip.files import checkpoint_of
from diffclip.plugins import find_registered

HUB_PREFIX = "hf-hub:"
"""Prefix of a model on the Hugging Face hub: `hf-hub:OWNER/NAME`."""
LIBRARIES = ("open_clip", "transformers", "timm")
"""Libraries whose models are read by name, as in `open_clip:ViT-B-16/openai`."""
MODEL_HELP = (
    "A run folder, a saved folder, a published file, hf-hub:OWNER/NAME, open_clip:NAME/PRETRAINED, "
    "transformers:FOLDER (or a name on the hub), timm:NAME (evaluate only), or a model's name (random weights)."
)
_KINDS = "give a run, a saved folder or a weights file"
_WEIGHT_SUFFIXES = (".pt", ".pth", ".safetensors")

Reader = Callable[[str], Any]
READERS: dict[str, Reader] = {}
"""The readers of `register_model_source`, by prefix without its colon."""


def register_model_source(prefix: str) -> Callable[[Reader], Reader]:
    """Make `PREFIX:NAME` a model of `diffclip.load`, `evaluate` and `classify`; decorates the reader of NAME.

    The reader returns a `CLIP`, or a triple: a module in evaluation mode with `encode_image` (for tasks with texts also
    `encode_text` and perhaps `logit_scale`), its preparation of images (a PIL image → [3, S, S]), and its tokenizer
    (a list of texts → the input of `encode_text`), None without texts.

    Raises:
        InputError: `prefix` is taken, or is not a name.
    """
    if not prefix.isidentifier() or prefix in (*LIBRARIES, *READERS):
        raise InputError(f"model source {prefix!r} is taken, or is not a name: choose another one")

    def register(read: Reader) -> Reader:
        READERS[prefix] = read
        return read

    return register


def library_of(source: str | Path) -> tuple[str, str] | None:
    """Split `PREFIX:NAME` of a library or a registered source; None for any other source."""
    prefix, colon, name = str(source).partition(":")
    return (prefix, name) if colon and prefix in (*LIBRARIES, *READERS) else None


def runs_in(source: str) -> list[str]:
    """List the runs with a checkpoint in a folder of runs; return any other source as the only item."""
    folder = Path(source)
    if not folder.is_dir() or (folder / "checkpoints").is_dir():
        return [source]
    return [str(run) for run in sorted(folder.iterdir()) if (run / "checkpoints").is_dir()] or [source]


def find_model(source: str) -> str | None:
    """Find the folder, file, hub name or model of a library that `source` stands for; None for a model's name."""
    from diffclip.config import model_names

    if source.startswith(HUB_PREFIX) or library_of(source):
        return source
    if not os.path.exists(source):
        prefix = source.partition(":")[0]
        if ":" in source and prefix.isidentifier() and find_registered(lambda: prefix in READERS):
            return source
        path = Path(source)
        plain = os.sep not in source and path.suffix not in _WEIGHT_SUFFIXES
        if plain and find_registered(lambda: source in model_names()):
            return None
        if ":" in source and os.sep not in prefix:
            known = [HUB_PREFIX, *(f"{library}:" for library in (*LIBRARIES, *READERS))]
            raise unknown_name("kind of model", f"{prefix}:", known)
        if (near := near_path(path)) or not plain:
            raise InputError(f"{source} does not exist: {f'did you mean {near!r}?' if near else _KINDS}")
        raise unknown_name(
            "model", source, model_names(), "give a folder, a file or a name such as DiffCLIP-ViT-B-16"
        )
    return str(checkpoint_of(source))
