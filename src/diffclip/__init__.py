"""CLIP with differential attention (DiffCLIP), and the plain CLIP that is its baseline.

Names resolve lazily: importing `diffclip` imports neither torch nor any optional group.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from diffclip import threads as threads  # before torch
from diffclip.version import __version__ as __version__

_PUBLIC = {
    "CLIPConfig": "diffclip.config",
    "VisionConfig": "diffclip.config",
    "TextConfig": "diffclip.config",
    "PreprocessConfig": "diffclip.config",
    "CLIP": "diffclip.model",
    "create_model": "diffclip.model",
    "load_weights": "diffclip.weights",
    "save_weights": "diffclip.weights",
    "register_attention": "diffclip.attention",
    "register_variant": "diffclip.config",
    "register_task": "diffclip.evaluation.run",
    "register_model_source": "diffclip.sources.registry",
    "load": "diffclip.sources.load",
    "train": "diffclip.training.run",
    "evaluate": "diffclip.evaluation.evaluate",
    "load_records": "diffclip.evaluation.records",
    "differential_attention": "diffclip.attention.dispatch",
    "InputError": "diffclip.errors",
}

if TYPE_CHECKING:
    from diffclip.attention import register_attention as register_attention
    from diffclip.attention.dispatch import differential_attention as differential_attention
    from diffclip.config import CLIPConfig as CLIPConfig
    from diffclip.config import PreprocessConfig as PreprocessConfig
    from diffclip.config import TextConfig as TextConfig
    from diffclip.config import VisionConfig as VisionConfig
    from diffclip.config import register_variant as register_variant
    from diffclip.errors import InputError as InputError
    from diffclip.evaluation.evaluate import evaluate as evaluate
    from diffclip.evaluation.records import load_records as load_records
    from diffclip.evaluation.run import register_task as register_task
    from diffclip.model import CLIP as CLIP
    from diffclip.model import create_model as create_model
    from diffclip.sources.load import load as load
    from diffclip.sources.registry import register_model_source as register_model_source
    from diffclip.training.run import train as train
    from diffclip.weights import load_weights as load_weights
    from diffclip.weights import save_weights as save_weights

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name == "attention":  # of `diffclip.attention.SelfAttention`
        return importlib.import_module("diffclip.attention")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'diffclip' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
