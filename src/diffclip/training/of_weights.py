"""`model: of-weights`: what a recipe leaves to the weights that it goes on from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from diffclip.config import MODEL_NAMES, STATISTICS, CLIPConfig, name_of, named_config, variant_of
from diffclip.errors import InputError
from diffclip.model_source import find_model

OF_WEIGHTS = "of-weights"


def filled_in(fields: Mapping[str, Any], source: str) -> dict[str, Any]:
    """`fields` of a recipe with the model and sizes of its `weights`, and the statistics of its pictures unless given.

    The rest of the program sees what it was, not that it was left to the weights.

    Raises:
        InputError: no weights, none that can be read, sizes that are given as well, or a model that no recipe can name.
    """
    weights = fields.get("weights")
    if not isinstance(weights, str):
        raise InputError(
            f"{source}: model {OF_WEIGHTS} needs weights: give a saved model (weights=FOLDER), or a model's name"
        )
    if fields.get("architecture") is not None:
        raise InputError(f"{source}: model {OF_WEIGHTS} brings its sizes: leave architecture out")
    config = _config_of(weights, source)
    filled = {**fields, **model_fields(config, weights)}
    data = fields.get("data")
    if isinstance(data, Mapping) and "statistics" not in data:
        filled["data"] = {**data, "statistics": _statistics_of(config, weights)}
    return filled


def _config_of(weights: str, source: str) -> CLIPConfig:
    from diffclip.loading import HUB_PREFIX, read_config  # with all of torchvision, which few recipes need

    if not weights.startswith(HUB_PREFIX) and not os.path.exists(weights):
        raise InputError(
            f"{source}: the model is that of its weights, and {weights} does not exist: give a run or saved folder, "
            "a weights file or hf-hub:OWNER/NAME, or name the model (to resume a run, give its own recipe.yaml)"
        )
    return read_config(find_model(weights) or weights)


def model_fields(config: CLIPConfig, weights: str) -> dict[str, Any]:
    """`model` and `architecture` of a recipe for `config`: a name alone where there is one that says it all.

    Raises:
        InputError: it mixes attentions, has a λ_init or lacks parts as no model does that a recipe can name.
    """
    variant, name = variant_of(config), name_of(config)
    if variant == "custom":
        raise InputError(
            f"{weights} has {config.vision.attention} and {config.text.attention} attention with λ_init "
            f"{config.lambda_init}{_parts(config)}: no model that a recipe can train is that"
        )
    sizes = _sizes(config)
    if name in MODEL_NAMES:
        named = named_config(name)
        named.vision.norm_eps = config.vision.norm_eps  # it goes with the weights
        if _sizes(named) == sizes:
            return {"model": name, "architecture": None}
    return {"model": variant, "architecture": sizes}


def _parts(config: CLIPConfig) -> str:
    settings = config.differential.model_dump(exclude_defaults=True)
    return "".join(f", {key} {value}" for key, value in settings.items())


def _sizes(config: CLIPConfig) -> dict[str, Any]:
    """`config` without what the variant, the loss and `data.statistics` decide."""
    decided: Any = {
        **dict.fromkeys(("lambda_init", "differential", "logit_bias", "tokenizer"), True),
        **{tower: {"attention"} for tower in ("vision", "text")},
        "preprocess": {"mean", "std"},
    }
    return config.model_dump(mode="json", exclude=decided)


def _statistics_of(config: CLIPConfig, weights: str) -> str:
    used = (config.preprocess.mean, config.preprocess.std)
    for name, known in STATISTICS.items():
        if known == used:
            return name
    raise InputError(
        f"{weights} was trained with mean {used[0]} and std {used[1]}: recipes have those of "
        f"{' and '.join(STATISTICS)} alone"
    )
