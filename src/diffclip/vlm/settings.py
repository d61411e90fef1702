"""Recipes of `diffclip vlm train`: YAML with `base` and changes, as in `diffclip.training.recipe_file`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field

from diffclip.errors import InputError
from diffclip.training.recipe_file import Keys, find_recipe, parse, recipe_fields

STAGES = (1, 2)


class StageRecipe(Keys):
    """Data and training settings of one stage. If both stages of LLaVA use the same value, it is the default."""

    json_file: str = Field(alias="json", description="conversations in LLaVA's JSON")
    images: str = Field(description="folder that the images' paths start from")
    image_prefix: str | None = Field(default=None, description="keep only samples whose image path starts so")
    start: str | None = Field(default=None, description="stage 2: a run of stage 1, or a saved model")
    lr: float = Field(gt=0)
    batch_size: int = Field(gt=0, description="samples of a step, over all GPUs")
    per_device_batch_size: int = Field(gt=0, description="samples of a pass on one GPU")
    epochs: float = Field(default=1, gt=0)
    warmup_ratio: float = Field(default=0.03, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    save_every: int = Field(default=500, gt=0, description="steps")

    def passes(self, world: int) -> int:
        """Return the number of passes per step (gradient accumulation) on each of `world` processes."""
        at_once = self.per_device_batch_size * world
        if self.batch_size % at_once:
            raise InputError(
                f"batch_size {self.batch_size} does not divide by per_device_batch_size {self.per_device_batch_size} × "
                f"{world} processes: change one of them"
            )
        return self.batch_size // at_once


class VLMRecipe(Keys):
    """All settings. Each stage is a run of its own, and a recipe may have one stage or both."""

    vision: str = Field(description="a run or saved folder, a published file, hf-hub:OWNER/NAME")
    language_model: str = Field(description="a folder, or OWNER/NAME on the Hugging Face hub")
    seed: int = Field(default=0, ge=0, lt=2**32, strict=True)
    max_length: int = Field(default=2048, gt=1, description="tokens of a sample, its image's included")
    precision: Literal["auto", "bf16", "fp32"] = "auto"  # auto: bf16 if the hardware computes it natively
    gradient_checkpointing: bool = False
    workers: int = Field(default=0, ge=0, description="processes on each GPU that load samples")
    stage1: StageRecipe | None = None
    stage2: StageRecipe | None = None

    def stage(self, number: int) -> StageRecipe:
        """Return the settings of stage 1 or 2; raise `InputError` if the recipe does not have it."""
        part = self.stage1 if number == 1 else self.stage2
        if part is None:
            raise InputError(
                f"the recipe has no stage{number}: choose --stage {3 - number}, or another recipe"
            )
        return part

    def only(self, stage: int) -> VLMRecipe:
        """Return the recipe without the other stage, as recipe.yaml in the run folder has it."""
        return self.model_copy(update={f"stage{3 - stage}": None})


def read_vlm_recipe(source: str | Path, changes: Iterable[str] = ()) -> VLMRecipe:
    """Read the recipe in a file, or the built-in recipe of that name, with changes such as `stage1.lr=1e-3`. A missing
    recipe, invalid YAML, an unknown or missing key, and a wrong value raise `InputError`."""
    path = find_recipe(source, "vlm_")
    fields = recipe_fields(path, changes)
    if "model" in fields and "vision" not in fields:
        raise InputError(f"{path} is a recipe of `diffclip train`: give one with vision and language_model")
    recipe = parse(VLMRecipe, fields, path, "recipe", changes)
    if recipe.stage1 is not None and recipe.stage1.start is not None:
        raise InputError(f"{path}: stage1.start is {recipe.stage1.start!r}: only stage 2 starts from a model")
    return recipe
