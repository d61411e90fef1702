"""Recipes: everything that decides a run, as a YAML file; `key=value` words change single keys.

The defaults are the paper's if it states them (Section 4), else SLIP's (AdamW betas, the start and end of the learning
rate, crops).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from diffclip.config import (
    STATISTICS,
    VARIANTS,
    Backend,
    CLIPConfig,
    Init,
    model_names,
    named_config,
    resize_config,
    variant_config,
    variant_of,
)
from diffclip.errors import InputError, explain
from diffclip.plugins import load_listed, loaded_plugins
from diffclip.training.recipe_file import Keys, find_recipe, parse, recipe_fields

OF_WEIGHTS = "of-weights"
"""The `model` of a recipe that takes the architecture from the weights to fine-tune."""


NoDecay = Literal["registers", "class_token", "positions"]
_Beta = Annotated[float, Field(ge=0, lt=1)]


# keys that do not change the numbers of a run, except for the order of sums and the random numbers of drop path and
# patch dropout: a resumed run may have other values; `RunProgress.order` tells whether data that has moved is the same
FREE_KEYS = {
    *("log_every", "wandb", "loggers", "process_timeout", "checkpoint_every"),
    *("micro_batch", "grad_checkpointing", "compile", "attention_backend"),
    *("data.train", "data.val", "data.memory", "data.expected_samples"),
    *("data.workers", "data.cache", "data.cache_gb", "data.timeout"),
}


class WeightedShards(Keys):
    """One of several sources of shards, with its weight."""

    shards: str | list[str]
    weight: PositiveFloat = 1.0  # how often an epoch shows each sample; 0.5: a random half, 2: each twice


class Wandb(Keys):
    """Where Weights & Biases logs the run."""

    project: str
    entity: str | None = None  # user or team; None: the account's default
    group: str | None = None
    name: str | None = None  # None: the name of the run's folder
    tags: list[str] = Field(default_factory=list)


class DataRecipe(Keys):
    """The images and captions, and their augmentation."""

    # shards: files, folders, brace ranges, addresses (https, s3, hf …); or several sources, with weights
    train: str | WeightedShards | list[str | WeightedShards]
    val: str | list[str] | None = None  # the validation split of the training data
    val_range: tuple[int, int] | None = None  # samples of `val` to validate on: the first, and past the last
    # endings of the members with the image and the captions, or patterns such as '*.jpg'; None: the usual ones
    image_key: str | list[str] | None = None
    text_key: str | list[str] | None = None
    # the key of captions in `.json`; or several keys, each with its share of the draws
    caption_key: str | Annotated[dict[str, PositiveFloat], Field(min_length=1)] = "caption"
    captions: Literal["lines", "whole"] = "lines"  # each line of a text is a caption, or all of it is one
    workers: NonNegativeInt = 0  # processes that read ahead; 0 reads in the training process
    scale: tuple[float, float] = (0.5, 1.0)  # least and greatest share of the image that a crop covers
    flip: float = Field(default=0.0, ge=0, le=1)  # the probability of mirroring the image
    statistics: Literal["imagenet", "openai"] = "imagenet"
    memory: bool = False  # decode all images once and keep them in memory
    # shards that a process shuffles together; None: all samples, or 16 shards if any is remote
    window: PositiveInt | None = None
    cache: str | None = None  # folder for copies of remote shards; None: the user's cache
    cache_gb: PositiveFloat | None = None  # 10^9 bytes; the least recently used copies go; None: no limit
    expected_samples: PositiveInt | None = None  # samples per epoch, for --dry-run without the shards
    timeout: PositiveFloat = 300.0  # seconds without data from workers until an error; remote: no limit

    @field_validator("train", mode="before")
    @classmethod
    def _check_sources(cls, train: object) -> object:
        for source in train if isinstance(train, list) else [train]:
            try:
                WeightedShards.model_validate({"shards": source} if isinstance(source, str) else source)
            except ValidationError as error:
                raise ValueError(
                    f"{source!r} is not a source ({explain(error)}): give a path, a range or an address of shards, or "
                    "a mapping with shards and weight"
                ) from None
        return train

    @field_validator("scale")
    @classmethod
    def _check_scale(cls, scale: tuple[float, float]) -> tuple[float, float]:
        if not 0 < scale[0] <= scale[1] <= 1:
            raise ValueError(f"{list(scale)} must be two shares, 0 < least ≤ greatest ≤ 1")
        return scale

    @model_validator(mode="after")
    def _check_val_range(self) -> DataRecipe:
        if self.val_range is not None and self.val is None:
            raise ValueError("val_range is a part of val, which is missing: give val too")
        return self


class Recipe(Keys):
    """Everything that decides a run. `model` is a named model, or a variant with `architecture` giving the sizes.

    In a file, `model` may also be `of-weights`: then the variant, sizes and statistics of `weights` are filled in.
    """

    model: str
    architecture: dict[str, Any] | None = None  # fields of CLIPConfig, sizes only
    init: Init = "matched"
    weights: str | None = None  # a saved model to start from; None: fresh values by `init`
    seed: int = Field(default=0, ge=0, lt=2**63, strict=True)
    epochs: PositiveInt
    batch_size: int = Field(gt=1)  # samples per step, over all processes
    micro_batch: PositiveInt | None = None  # samples per forward pass of a process; None: its whole share
    loss: Literal["clip", "siglip"] = "clip"
    gather_with_grad: bool = True  # "clip": gradients reach other processes' features; False: as SLIP trained
    lr: PositiveFloat = 5e-4
    lr_start: NonNegativeFloat = 1e-6  # where the warm-up starts
    lr_end: NonNegativeFloat = 1e-5  # where the cosine ends
    weight_decay: NonNegativeFloat = 0.5
    no_decay: list[NoDecay] = Field(default_factory=list)  # without weight decay, as norms and biases are
    freeze: list[str] = Field(default_factory=list)  # visual, text, or parts such as visual.blocks[:9]
    warmup_epochs: NonNegativeFloat = 1.0
    betas: tuple[_Beta, _Beta] = (0.9, 0.98)
    eps: PositiveFloat = 1e-8
    clip_grad_norm: PositiveFloat | None = None  # the greatest norm of all gradients together; None: no limit
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # auto: bf16 if the hardware computes it natively
    image_size: PositiveInt | None = None  # None: the model's own
    context_length: int | None = Field(default=None, gt=1)  # tokens of a text; None: the model's own
    attention_backend: Backend = "auto"  # auto: the fastest one that supports the inputs
    grad_checkpointing: bool = False  # recompute blocks in the backward pass
    compile: bool = False  # torch.compile, block by block
    checkpoint_every: PositiveInt | None = None  # in steps; None: every epoch. Best and last are always saved
    log_every: PositiveInt = 10  # in steps; between two records, no step waits for the device
    validate_every: PositiveInt = 1  # in epochs
    process_timeout: PositiveFloat = 1800.0  # seconds that a process waits for the others before the run ends
    wandb: Wandb | None = None  # Weights & Biases also gets the numbers; a word is the project
    loggers: list[str] = Field(default_factory=list)  # of `register_logger` in a plugin
    # files or modules of one's own; in the recipe of a run, the digest of each
    plugins: dict[str, str] = Field(default_factory=dict)
    data: DataRecipe

    @field_validator("wandb", mode="before")
    @classmethod
    def _read_project(cls, wandb: object) -> object:
        return {"project": wandb} if isinstance(wandb, str) else wandb

    def notes(self) -> list[str]:
        """Return what a user of the recipe should know, in sentences."""
        notes = []
        if self.warmup_epochs > self.epochs:
            notes.append(
                f"the warm-up of {self.warmup_epochs:g} epochs is longer than the run of {self.epochs}: the learning "
                f"rate never reaches {self.lr:g}; lower warmup_epochs"
            )
        if self.lr < max(self.lr_start, self.lr_end):
            notes.append(
                f"lr {self.lr:g} is below lr_start {self.lr_start:g} or lr_end {self.lr_end:g}, so that the learning "
                "rate goes the wrong way; lower these too"
            )
        if self.freeze and self.weights is None:
            notes.append("freeze keeps random values, as the run starts without weights; give weights")
        return notes

    def config(self) -> CLIPConfig:
        """Return the model's configuration; an unknown model or sizes that do not fit together raise `InputError`."""
        if self.architecture is None:
            config = named_config(self.model, self.image_size)
        else:
            sizes, vision = self.architecture, self.architecture.get("vision", {})
            if self.image_size is not None and isinstance(vision, dict):
                sizes = sizes | {"vision": {"image_size": self.image_size} | vision}
            config = variant_config(self.model, sizes)
            if self.image_size is not None:
                config = resize_config(config, self.image_size)
        if {"mean", "std"} & (self.architecture or {}).get("preprocess", {}).keys():
            raise InputError("architecture.preprocess has a mean or std: data.statistics decides them")
        if self.context_length is not None:
            config.text.context_length = self.context_length
        config.logit_bias = self.loss == "siglip"
        config.preprocess.mean, config.preprocess.std = STATISTICS[self.data.statistics]
        return config


def read_recipe(source: str | Path, changes: Iterable[str] = ()) -> Recipe:
    """Read the recipe in a file, or the built-in recipe of that name, with `key=value` changes (`data.train=…` for
    inner keys). A missing recipe, invalid YAML and the faults that `parse_recipe` finds raise `InputError`."""
    path, changes = find_recipe(source), list(changes)
    return parse_recipe(recipe_fields(path, changes), str(path), changes)


def parse_recipe(fields: Mapping[str, Any], source: str, changes: Iterable[str] = ()) -> Recipe:
    """Make a recipe of `fields`; `source` names their file, and `changes` are the applied `key=value` words. An unknown
    or missing key, a wrong type, an unknown model or init, and sizes that do not fit together raise `InputError`."""
    if "language_model" in fields:
        raise InputError(f"{source} has a language model: use `diffclip vlm train`")
    if "models" in fields:
        raise InputError(f"{source} is a study: use `diffclip study`")
    load_listed(fields.get("plugins") or (), Path(source))
    fields = {**fields, "plugins": loaded_plugins()}
    if fields.get("model") == OF_WEIGHTS:
        fields = _with_model_of_weights(fields, source)
    recipe = parse(Recipe, fields, source, "recipe", changes)
    if recipe.architecture is not None and recipe.model in model_names():
        raise InputError(
            f"{source}: model {recipe.model} has sizes of its own: leave architecture out (architecture=null), "
            "or give the variant alone"
        )
    if recipe.architecture is None and recipe.model in VARIANTS:
        raise InputError(
            f"{source}: model {recipe.model} has no size: give `architecture`, or write {recipe.model}-ViT-B-16"
        )
    recipe.config()
    return recipe


def _with_model_of_weights(fields: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Fill in the variant and sizes of the `weights`, and the statistics of their images unless given: the resolved
    recipe names the architecture explicitly."""
    from diffclip.sources.load import read_config  # imports torchvision, which few recipes need

    weights = fields.get("weights")
    if not isinstance(weights, str):
        raise InputError(f"{source}: model {OF_WEIGHTS} needs weights: give a saved model, weights=FOLDER")
    if fields.get("architecture") is not None:
        raise InputError(f"{source}: model {OF_WEIGHTS} has sizes of its own: leave architecture out")
    config = read_config(weights)
    filled = {**fields, **model_fields(config, weights)}
    data = fields.get("data")
    if isinstance(data, Mapping) and "statistics" not in data:
        used = (config.preprocess.mean, config.preprocess.std)
        names = [name for name, known in STATISTICS.items() if known == used]
        if not names:
            raise InputError(
                f"{weights} was trained with mean {used[0]} and std {used[1]}: a recipe takes weights with those of "
                f"{' or '.join(STATISTICS)}"
            )
        filled["data"] = {**data, "statistics": names[0]}
    return filled


def model_fields(config: CLIPConfig, weights: str) -> dict[str, Any]:
    """Return `model` and `architecture` of a recipe for the `config` of `weights`. If no model that a recipe can name
    has these attentions, λ_init and parts, raise `InputError`."""
    variant = variant_of(config)
    if variant == "custom":
        parts = config.differential.model_dump(exclude_defaults=True)
        raise InputError(
            f"{weights} has {config.vision.attention} and {config.text.attention} attention with "
            + ", ".join(f"{key} {value}" for key, value in {"λ_init": config.lambda_init, **parts}.items())
            + ": a recipe cannot name this model, use weights of a named one"
        )
    # fields that the variant, the loss and data.statistics decide
    decided: Any = dict.fromkeys(("lambda_init", "differential", "logit_bias", "tokenizer"), True)
    decided |= {"vision": {"attention", "registers"}, "text": {"attention"}, "preprocess": {"mean", "std"}}
    return {"model": variant, "architecture": config.model_dump(mode="json", exclude=decided)}
