"""Small models with their preprocessing and tokenizers, and helpers that run tasks on them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tiny import WORDED

from diffclip import CLIP
from diffclip.config import variant_config
from diffclip.evaluation.embed import Setting
from diffclip.evaluation.results_file import ResultsFile
from diffclip.evaluation.run import Measured, Sets, run_entries
from diffclip.evaluation.scores import Score
from diffclip.evaluation.suite import Entry
from diffclip.preprocess import EvalTransform
from diffclip.sources.load import Loaded
from diffclip.tokenizer import Tokenizer


def subject(variant: str = "DiffCLIP", seed: int = 0, spread: float = 1.0, **vision: Any) -> Loaded:
    """A model with vision query, key and value weights times `spread`; `vision` has sizes of its tower."""
    model = CLIP(variant_config(variant, WORDED | {"vision": WORDED["vision"] | vision}), seed=seed).eval()
    with torch.no_grad():
        for layer in model.attention_layers()["visual"]:
            (layer.part_qkv if hasattr(layer, "part_qkv") else layer.qkv).weight.mul_(spread)
    config = model.config
    preprocess = EvalTransform(config.vision.image_size, config.preprocess)
    return Loaded(model, preprocess, Tokenizer(config.text), variant, f"{variant} seed {seed}", seed)


def setting(loaded: Loaded, data: Any, **changes: Any) -> Setting:
    return replace(Setting(loaded.model, loaded.preprocess, loaded.tokenizer, data), **changes)


def run(loaded: Loaded, *entries: Entry, file: Path | None = None, **how: Any) -> list[Measured]:
    return list(run_entries(loaded, entries, ResultsFile(file), Sets(), **how))


def scores_of(
    task: Callable[[Setting], Sequence[Score]], loaded: Loaded, data: Any, **changes: Any
) -> dict[str, Score]:
    """Return the scores of a task under names such as "A1 entropy" and, of layer 1 and head 2, "A1 entropy/1.2"."""
    scores = {}
    for score in task(setting(loaded, data, **changes)):
        map_name, layer, head = (score.facts.get(name) for name in ("map", "layer", "head"))
        name = f"{map_name} {score.metric}" if map_name else score.metric
        name += (f"/{layer}" if layer else "") + (f".{head}" if head else "")
        assert name not in scores
        scores[name] = score
    return scores
