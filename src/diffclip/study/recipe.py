"""What a study is: a training recipe, the arms that are trained with changes to it, and over which seeds.

An arm is a model with an init, or one factor changed. Learning rate and weight decay are swept first, for CLIP and for
DiffCLIP apart, with a seed that no other run has; arms without differential attention take what CLIP's sweep chose, all
others what DiffCLIP's did.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from diffclip.config import explain
from diffclip.errors import InputError, unknown
from diffclip.evaluation.suite import SUITES
from diffclip.training.recipe import Recipe, find_recipe, read_recipe, recipe_fields

BASELINE, TREATED = "CLIP", "DiffCLIP"
"""The arms that every study has: what differences are to, and what they are of."""

_SWEPT = frozenset({"lr", "weight_decay"})


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Arm(_Keys):
    """One model in one init, or with one factor changed.

    `change` holds keys of the training recipe, inner ones with dots (`architecture.vision.heads`).
    """

    change: dict[str, Any]
    factor: str | None = Field(
        default=None, description="what differs from the arm `against`, in a few words"
    )
    against: str | None = Field(default=None, description="the arm that it is one factor away from")
    settings: Literal["CLIP", "DiffCLIP"] | None = Field(
        default=None,
        description="whose sweep decides; None: DiffCLIP's with differential attention, else CLIP's",
    )


class Sweep(_Keys):
    """Every learning rate with every weight decay, for CLIP and for DiffCLIP, with one seed of its own."""

    lr: list[float] = Field(min_length=1)
    weight_decay: list[float] = Field(min_length=1)
    seed: int = Field(ge=0)


class Grid(_Keys):
    """Every arm with every seed, put through a suite of `diffclip benchmark`."""

    arms: dict[str, Arm]
    seeds: list[int] = Field(min_length=1)
    suite: str

    @model_validator(mode="after")
    def _check(self) -> Grid:
        if self.suite not in SUITES:
            raise ValueError(f"suite {self.suite!r} is none of {', '.join(SUITES)}")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds {self.seeds} have one twice")
        return self


class Drawn(_Keys):
    """The built-in scenes, drawn before anything is trained."""

    train: int = Field(gt=0)
    val: int = Field(gt=0)
    size: int = Field(gt=0)
    seed: int = Field(default=0, ge=0)


class Study(_Keys):
    """Everything that decides a study. `recipe` is that of the runs, `data` the set to train on (its train and val)."""

    title: str
    recipe: str
    change: dict[str, Any] = Field(default_factory=dict, description="of the recipe, for all runs")
    data: str
    scenes: Drawn | None = Field(
        default=None, description="draw scenes to train on; `data` then names their folder"
    )
    sweep: Sweep | None = None
    models: Grid
    ablations: Grid | None = None

    @model_validator(mode="after")
    def _check(self) -> Study:
        for needed in (BASELINE, TREATED):
            if needed not in self.models.arms:
                raise ValueError(f"models.arms has no {needed}: the comparison needs it")
        if self.ablations:
            twice = self.models.arms.keys() & self.ablations.arms.keys()
            if twice:
                raise ValueError(
                    f"{', '.join(sorted(twice))} is an arm of models and of ablations: leave one out"
                )
            for name, arm in self.ablations.arms.items():
                if arm.factor is None or arm.against is None:
                    raise ValueError(f"ablations.arms.{name} needs a factor, and an arm that it is against")
        else:  # a model may be against an ablation, and `ablations=null` leaves them all out
            for arm in self.models.arms.values():
                if arm.against not in self.models.arms:
                    arm.factor = arm.against = None
        for name, arm in self.arms.items():
            if arm.against is not None and arm.against not in self.arms:
                raise ValueError(f"arm {name} is against {arm.against!r}, which is no arm")
        if self.sweep and self.sweep.seed in {seed for grid in self.grids.values() for seed in grid.seeds}:
            raise ValueError(f"sweep.seed {self.sweep.seed} is a reported seed too: choose another")
        return self

    @property
    def grids(self) -> dict[str, Grid]:
        """The grids by group."""
        return {"models": self.models} | ({"ablations": self.ablations} if self.ablations else {})

    @property
    def arms(self) -> dict[str, Arm]:
        """All arms by name."""
        return {name: arm for grid in self.grids.values() for name, arm in grid.arms.items()}

    def is_differential(self, arm: str) -> bool:
        """Whether a tower of the arm has differential attention, of whatever kind."""
        config = self.training(self.arms[arm].change).config()
        return not config.vision.attention == config.text.attention == "softmax"

    def tuned_as(self, arm: str) -> str:
        """Whose settings the arm takes: as it says, else DiffCLIP's where a tower has differential attention."""
        return self.arms[arm].settings or (TREATED if self.is_differential(arm) else BASELINE)

    def model_of(self, arm: str, *changes: dict[str, Any]) -> Recipe:
        """What the arm trains with `changes` below its own; two arms of which this is the same are one and the same."""
        recipe = self.training(*changes, self.arms[arm].change)
        if self.is_differential(arm):
            return recipe
        # plain attention has the same init under both names
        return recipe.model_copy(update={"init": "matched"})

    def training(self, *changes: dict[str, Any]) -> Recipe:
        """The training recipe with the study's changes and then these, as yet with its own data.

        Raises:
            InputError: as `read_recipe`.
        """
        return read_recipe(
            self.recipe, words({key: one[key] for one in (self.change, *changes) for key in one})
        )


def read_study(source: str | Path, changes: Iterable[str] = ()) -> Study:
    """The study in a file, or the built-in one of that name, with `key=value` changes (`models.seeds=[0, 1]`).

    Raises:
        InputError: no such file, no study, an unknown key or model, or arms that do not fit together.
    """
    path = find_recipe(source)
    fields = recipe_fields(path, changes)
    if "models" not in fields:
        raise InputError(
            f"{path} is no study: it has no models (a recipe of one run is for `diffclip train`)"
        )
    for key in fields.keys() - Study.model_fields.keys():
        raise unknown("study key", key, Study.model_fields)
    try:
        study = Study.model_validate(fields)
    except ValidationError as error:
        raise InputError(f"{path}: {explain(error)}") from None
    for name, arm in study.arms.items():
        try:
            study.training(arm.change)
        except InputError as error:
            raise InputError(f"{path}: arm {name}: {error}") from None
    return study


def check_arms(study: Study) -> None:
    """See that no two arms are one and the same whatever a sweep chooses.

    Raises:
        InputError: two are.
    """
    kinds = []
    for name, arm in study.arms.items():
        chosen = _SWEPT - arm.change.keys()
        kinds.append((name, (study.model_of(name), chosen, study.tuned_as(name) if chosen else None)))
    for (one, kind), (other, same) in combinations(kinds, 2):
        if kind == same:
            raise InputError(f"arms {one} and {other} are one and the same: leave one out")


def to_yaml(study: Study) -> str:
    """The study with every key, as `read_study` reads it."""
    return yaml.safe_dump(study.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def words(changes: dict[str, Any]) -> list[str]:
    """`key=value` words that change a recipe so."""
    return [f"{key}={json.dumps(value)}" for key, value in changes.items()]
