"""Small models with their preprocessing and tokenizers, and helpers that run tasks on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tiny import WORDED

from diffclip import CLIP
from diffclip.config import variant_config
from diffclip.data.transforms import EvalTransform
from diffclip.evaluation.embed import Setting
from diffclip.evaluation.results_file import ResultsFile
from diffclip.evaluation.run import Measured, Sets, run_entries
from diffclip.evaluation.suite import Entry
from diffclip.model_source import Loaded
from diffclip.tokenizer import Tokenizer


def subject(variant: str = "DiffCLIP", seed: int = 0, spread: float = 1.0, **vision: Any) -> Loaded:
    """A model with vision query, key and value weights times `spread`; `vision` has sizes of its tower."""
    model = CLIP(variant_config(variant, WORDED | {"vision": WORDED["vision"] | vision}), seed=seed).eval()
    with torch.no_grad():
        for layer in model.attention_layers()["visual"]:
            layer.qkv.weight.mul_(spread)
    config = model.config
    preprocess = EvalTransform(config.vision.image_size, config.preprocess)
    return Loaded(model, preprocess, Tokenizer(config.text), variant, f"{variant} seed {seed}", seed)


def setting(one: Loaded, data: Any, **changes: Any) -> Setting:
    return replace(Setting(one.model, one.preprocess, one.tokenizer, data), **changes)


def run(one: Loaded, *entries: Entry, file: Path | None = None, **how: Any) -> list[Measured]:
    return list(run_entries(one, entries, ResultsFile(file), Sets(), **how))
