"""Recipes: everything that decides a run, as a YAML file; `key=value` words change single keys.

The defaults are the paper's where it states them (Section 4) and SLIP's where it does not (AdamW betas, the start and
end of the learning rate, crops).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

import diffclip
from diffclip.attention.dispatch import check_backend
from diffclip.config import (
    ABLATIONS,
    MODEL_NAMES,
    STATISTICS,
    VARIANTS,
    CLIPConfig,
    explain,
    name_of,
    named_config,
    variant_config,
    variant_of,
)
from diffclip.errors import InputError, unknown
from diffclip.initialisation import INITS
from diffclip.model_source import find_model

OF_WEIGHTS = "of-weights"
"""The `model` of a recipe that takes the architecture from the weights to fine-tune."""


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class WeightedShards(_Keys):
    """One source among several."""

    shards: str | list[str]
    weight: float = Field(
        default=1.0, gt=0, description="how often an epoch shows each sample: 0.5 a random half, 2 twice"
    )


class DataRecipe(_Keys):
    """The images and captions, and how they are varied."""

    train: str | WeightedShards | list[str | WeightedShards] = Field(
        description="shards: files, folders, brace ranges, addresses (https, s3, hf …); or several, with weights"
    )
    val: str | list[str] | None = Field(default=None, description="validation split of the training data")
    caption_key: str = "caption"
    workers: int = Field(
        default=0, ge=0, description="processes that read ahead; 0 reads in the training process"
    )
    scale: tuple[float, float] = Field(
        default=(0.5, 1.0), description="share of the image that a crop covers"
    )
    flip: float = Field(default=0.0, ge=0, le=1, description="probability of a mirror image")
    statistics: Literal["imagenet", "openai"] = "imagenet"
    memory: bool = Field(
        default=False,
        description="decode all images once and keep them in memory, on a GPU if it trains there",
    )
    window: int | None = Field(
        default=None,
        gt=0,
        description="shards of a process that are shuffled together; None: all samples, or 16 where shards are remote",
    )
    cache: str | None = Field(
        default=None, description="folder for copies of remote shards; None: the user's cache"
    )
    cache_gb: float | None = Field(
        default=None, gt=0, description="size of those copies, beyond which the oldest go; None: no limit"
    )
    expected_samples: int | None = Field(
        default=None, gt=0, description="what the plan of a run counts with where the shards are not there"
    )
    timeout: float = Field(
        default=300.0, gt=0, description="seconds after which data that does not come is an error"
    )

    @field_validator("scale")
    @classmethod
    def _ordered(cls, scale: tuple[float, float]) -> tuple[float, float]:
        if not 0 < scale[0] <= scale[1] <= 1:
            raise ValueError(f"{list(scale)} must be two shares, 0 < least ≤ greatest ≤ 1")
        return scale


class Recipe(_Keys):
    """Everything that decides a run. `model` is a named model, or a variant with `architecture` giving the sizes.

    In a file it may be `of-weights` too: that of `weights`, with its sizes and statistics, which then stand here.
    """

    model: str
    architecture: dict[str, Any] | None = Field(default=None, description="fields of CLIPConfig, sizes only")
    init: str = "matched"
    weights: str | None = Field(
        default=None, description="a saved model to go on from; None: fresh values by `init`"
    )
    seed: int = Field(default=0, ge=0, lt=2**63, strict=True)
    epochs: int = Field(gt=0)
    batch_size: int = Field(gt=1, description="samples a step, over all processes")
    micro_batch: int | None = Field(
        default=None,
        gt=0,
        description="samples a forward pass, a process; None: its share of the batch at once",
    )
    loss: Literal["clip", "siglip"] = "clip"
    gather_with_grad: bool = Field(
        default=True,
        description="clip: gradients flow to the other processes' features; false: as SLIP trained",
    )
    lr: float = Field(default=5e-4, gt=0)
    lr_start: float = Field(default=1e-6, ge=0, description="where the warm-up starts")
    lr_end: float = Field(default=1e-5, ge=0, description="where the cosine ends")
    weight_decay: float = Field(default=0.5, ge=0)
    warmup_epochs: float = Field(default=1.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = Field(default=1e-8, gt=0)
    clip_grad_norm: float | None = Field(default=None, gt=0)
    precision: Literal["auto", "fp32", "bf16"] = Field(
        default="auto", description="auto: bf16 where the hardware computes it natively, else fp32"
    )
    image_size: int | None = Field(default=None, gt=0, description="None: the model's own")
    attention_backend: str = "auto"
    grad_checkpointing: bool = Field(default=False, description="compute blocks again in the backward pass")
    compile: bool = Field(default=False, description="torch.compile, block by block")
    checkpoint_every: int | None = Field(
        default=None, gt=0, description="steps; None: after each epoch. The best and the last are always kept"
    )
    validate_every: int = Field(default=1, gt=0, description="epochs")
    wandb: str | None = Field(
        default=None, description="the project at Weights & Biases that is told as well"
    )
    data: DataRecipe

    @field_validator("betas")
    @classmethod
    def _decay_rates(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"{list(betas)} must be two numbers from 0 up to, not including, 1")
        return betas

    def config(self) -> CLIPConfig:
        """The model's configuration.

        Raises:
            InputError: unknown model, or sizes that do not fit together.
        """
        if self.architecture is None:
            config = named_config(self.model, self.image_size)
        else:
            config = variant_config(self.model, self.architecture)
            if self.image_size is not None:
                vision = self.architecture.get("vision", {}) | {"image_size": self.image_size}
                config = variant_config(self.model, self.architecture | {"vision": vision})
        if {"mean", "std"} & (self.architecture or {}).get("preprocess", {}).keys():
            raise InputError("architecture.preprocess has a mean or std: data.statistics decides them")
        config.logit_bias = self.loss == "siglip"
        config.preprocess.mean, config.preprocess.std = STATISTICS[self.data.statistics]
        return config


def read_recipe(source: str | Path, changes: Iterable[str] = ()) -> Recipe:
    """The recipe in a file, or the built-in one of that name, with `key=value` changes (`data.train=…` for inner keys).

    Raises:
        InputError: no such recipe, not YAML, unknown key (the nearest is offered), or a value of the wrong type.
    """
    path, changes = find_recipe(source), list(changes)
    return parse_recipe(recipe_fields(path, changes), str(path), changes)


def recipe_fields(path: Path, changes: Iterable[str] = ()) -> dict[str, Any]:
    """What the recipe in the file `path` says, laid over its `base` and with `key=value` changes, as yet unchecked.

    Raises:
        InputError: not YAML, no such base, or a word that is no change.
    """
    fields = _read_fields(path)
    if (base := fields.pop("base", None)) is not None:
        fields = _over(_base_fields(path, base), fields)
    for change in changes:
        _apply(fields, change)
    return fields


def _read_fields(path: Path) -> dict[str, Any]:
    try:
        fields = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or a date that does not exist
        raise InputError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(fields, dict):
        raise InputError(f"{path} is not a recipe: it must map keys such as model, epochs, data to values")
    return fields


def _base_fields(path: Path, base: object) -> dict[str, Any]:
    """What the recipe at `path` builds on: a file beside it, or a recipe by name. One step: a base has none itself."""
    if not isinstance(base, str):
        raise InputError(f"{path}: base is {base!r}: give the name of one recipe")
    beside = path.parent / base
    found = beside if beside.is_file() else find_recipe(base)
    fields = _read_fields(found)
    if "base" in fields:
        raise InputError(
            f"{path}: its base {base} has a base itself: build on {fields['base']}, or write the keys out"
        )
    return fields


def _over(fields: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`changes` laid over `fields`, key by key where both have keys of their own."""
    over = dict(fields)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(over.get(key), dict)
        over[key] = _over(over[key], value) if both else value
    return over


def parse_recipe(fields: Mapping[str, Any], source: str, changes: Iterable[str] = ()) -> Recipe:
    """The recipe that `fields` describe; `source` names their file, and `changes` are the words that changed some.

    Raises:
        InputError: unknown key, missing key, wrong type, unknown model or init, or sizes that do not fit together.
    """
    if "language_model" in fields:
        raise InputError(f"{source} is a recipe of `diffclip vlm train`: it has a language model")
    if "models" in fields:
        raise InputError(f"{source} is a study: it has models, for `diffclip study`")
    _check_keys(fields)
    if isinstance(fields.get("data"), Mapping):
        _check_sources(fields["data"].get("train"))
    if fields.get("model") == OF_WEIGHTS:
        fields = _with_model_of_weights(fields, source)
    try:
        recipe = Recipe.model_validate(fields)
    except ValidationError as error:
        key = ".".join(str(part) for part in error.errors()[0]["loc"])
        blamed = (change for change in changes if f"{key}.".startswith(f"{change.partition('=')[0]}."))
        raise InputError(f"{next(blamed, source)}: {explain(error)}") from None
    if recipe.init not in INITS:
        raise unknown("init", recipe.init, INITS)
    check_backend(recipe.attention_backend)
    if recipe.architecture is not None and recipe.model in MODEL_NAMES:
        raise InputError(
            f"{source}: model {recipe.model} brings its sizes: leave architecture out (architecture=null), "
            "or give the variant alone"
        )
    if recipe.architecture is None and recipe.model in VARIANTS:
        raise InputError(
            f"{source}: model {recipe.model} has no size: write {recipe.model}-ViT-B-16, or give `architecture`"
        )
    if recipe.architecture is None and recipe.model in ABLATIONS:
        raise InputError(f"{source}: model {recipe.model} has no size: give `architecture`")
    recipe.config()
    return recipe


def find_recipe(source: str | Path) -> Path:
    """The file that `source` means: a path, or the name of a recipe that comes with the package.

    Raises:
        InputError: there is none; the nearest name is offered.
    """
    path = Path(source)
    if path.is_file():
        return path
    if path.is_dir():
        raise InputError(f"{source} is a folder: give a recipe's YAML file or name")
    names = {file.stem: file for folder in recipe_folders() for file in sorted(folder.glob("**/*.yaml"))}
    if path.stem in names and path.suffix in ("", ".yaml") and path.parent in (Path("."), Path("recipes")):
        return names[path.stem]
    raise unknown("recipe", source, names)


def recipe_folders() -> list[Path]:
    """Where recipes lie: in an installed package, or beside the sources."""
    package = Path(diffclip.__file__).parent
    return [folder for folder in (package / "recipes", package.parents[1] / "recipes") if folder.is_dir()]


def to_yaml(recipe: Recipe) -> str:
    """The recipe with every key, as `read_recipe` reads it."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _apply(fields: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise InputError(f"{change!r} is no change to a recipe: write key=value, for example epochs=3")
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        value = text
    *outer, last = key.split(".")
    for part in outer:
        if fields.get(part) is None:
            fields[part] = {}
        if not isinstance(fields[part], dict):
            raise InputError(f"{change!r}: {part} is {fields[part]!r}, which has no keys of its own")
        fields = fields[part]
    fields[last] = value


def _check_sources(train: object) -> None:
    """Raise `InputError` for a source of training data that is none, in the words of the recipe."""
    for number, source in enumerate(train if isinstance(train, list) else [train]):
        where = f"data.train[{number}]" if isinstance(train, list) else "data.train"
        if isinstance(source, Mapping):
            for key in source.keys() - WeightedShards.model_fields.keys():
                raise unknown(f"key of {where}", key, WeightedShards.model_fields)
            weight = source.get("weight", 1.0)
            usable = isinstance(weight, int | float) and 0 < weight < math.inf
            if "shards" not in source or not usable:
                raise InputError(f"{where} is {dict(source)}: give shards, and a weight above 0 if any")
        elif not isinstance(source, str):
            raise InputError(f"{where} is {source!r}: give shards by a path, a range or an address")


def _check_keys(fields: Mapping[str, Any]) -> None:
    inner = [f"data.{key}" for key in DataRecipe.model_fields]
    known = [*Recipe.model_fields, *inner]
    given = [str(key) for key in fields]
    if isinstance(fields.get("data"), dict):
        given += [f"data.{key}" for key in fields["data"]]
    for key in given:
        if key not in known:
            raise unknown("recipe key", key, known)


def _with_model_of_weights(fields: Mapping[str, Any], source: str) -> dict[str, Any]:
    """`fields` with the model and sizes of its `weights`, and the statistics of its images unless given: the resolved
    recipe names the architecture explicitly."""
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
