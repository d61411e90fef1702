"""The recipe of a study: a training recipe, the arms that are trained with changes to it, and the seeds.

An arm is a model with an init, or one factor changed. Learning rate and weight decay are swept first, for the arms in
`sweep.arms` and with seeds that no reported run has. Every other arm takes the settings of a swept arm: the arm in its
`settings`, else DiffCLIP if one of its towers has differential attention, else CLIP.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, field_validator, model_validator

from diffclip.errors import InputError, unknown_name
from diffclip.evaluation.suite import SUITES
from diffclip.training.recipe import Recipe, read_recipe
from diffclip.training.recipe_file import Keys, find_recipe, parse, recipe_fields

Group = Literal["sweep", "models", "ablations"]
BASELINE, TREATED = "CLIP", "DiffCLIP"


class Arm(Keys):
    """One model in one init, or with one factor changed.

    `change` holds keys of the training recipe, inner ones with dots (`architecture.vision.heads`).
    """

    change: dict[str, Any]
    factor: str | None = None  # the difference to the arm `against`, in a few words
    against: str | None = None  # the arm that is one factor away
    settings: str | None = None  # the swept arm whose settings this arm takes


def _check_unique(values: list[Any]) -> list[Any]:
    if len(set(values)) < len(values):
        raise ValueError(f"{values} contains a value twice: list each value once")
    return values


class Sweep(Keys):
    """Every combination of learning rate, weight decay and seed for each arm in `arms`; the best mean score wins."""

    lr: list[PositiveFloat] = Field(min_length=1)
    weight_decay: list[NonNegativeFloat] = Field(min_length=1)
    seeds: list[NonNegativeInt] = Field(min_length=1)
    arms: list[str] = Field(default=[BASELINE, TREATED], min_length=1)

    @field_validator("*")
    @classmethod
    def _check(cls, values: list[Any]) -> list[Any]:
        return _check_unique(values)


class Grid(Keys):
    """Every arm with every seed, each evaluated with a suite of `diffclip evaluate`."""

    arms: dict[str, Arm]
    seeds: list[NonNegativeInt] = Field(min_length=1)
    suite: str

    @model_validator(mode="after")
    def _check(self) -> Grid:
        if self.suite not in SUITES:
            raise ValueError(f"there is no suite {self.suite!r}: choose from {', '.join(SUITES)}")
        _check_unique(self.seeds)
        for name in self.arms:
            if "/" in name:
                raise ValueError(f"arm {name!r} names the folder of its runs: leave out /")
        return self


class Scenes(Keys):
    """The settings of the scenes that are drawn before the first run."""

    train: int = Field(gt=0)
    val: int = Field(gt=0)
    test: int = Field(default=1, gt=0)
    size: int = Field(gt=0)
    seed: int = Field(default=0, ge=0)
    distractors: int = Field(default=0, ge=0)


class Primary(Keys):
    """The endpoint that is tested at 5 % without correction: `arm` minus `against`."""

    arm: str = TREATED
    against: str = BASELINE
    task: str = "validation"
    dataset: str = ""
    metric: str = "score"
    alone: bool = True  # False: the endpoint spans several studies, so this study's page has none


class Study(Keys):
    """Everything that decides a study.

    `recipe` is the recipe of the runs, and `data` the set that they are trained on (its splits train and val). If
    `primary.dataset` or `contrasts` are missing, they are filled in.
    """

    title: str
    recipe: str
    change: dict[str, Any] = Field(default_factory=dict, description="of the recipe, for all runs")
    data: str
    scenes: Scenes | None = Field(default=None, description="draw scenes; `data` then names their folder")
    primary: Primary = Field(default_factory=Primary)
    margin: float = Field(default=0.01, gt=0, description="of equivalence, in the unit of the metric")
    contrasts: list[tuple[str, str]] = Field(default_factory=list, description="pairs (arm, against)")
    sweep: Sweep | None = None
    models: Grid
    ablations: Grid | None = None

    @model_validator(mode="after")
    def _check(self) -> Study:
        if self.ablations:
            shared = self.models.arms.keys() & self.ablations.arms.keys()
            if shared:
                raise ValueError(
                    f"{', '.join(sorted(shared))} is an arm of models and of ablations: leave one out"
                )
        elif "ablations" in self.model_fields_set:
            # `ablations=null` removes the ablations that a model may be against
            for arm in self.models.arms.values():
                if arm.against not in self.models.arms:
                    arm.factor = arm.against = None
        for change in (self.change, *(arm.change for arm in self.arms.values())):
            if given := change.keys() & {"data", "data.train", "data.val"}:
                raise ValueError(
                    f"a change sets {', '.join(sorted(given))}: all runs of a study have the data that `data` names"
                )
        references = {f"arm {name} is against": arm.against for name, arm in self.arms.items() if arm.against}
        references |= {"primary.arm is": self.primary.arm, "primary.against is": self.primary.against}
        for number, name in enumerate(name for pair in self.contrasts for name in pair):
            references[f"contrasts[{number // 2}] has"] = name
        references |= {f"sweep.arms has {name}:": name for name in (self.sweep.arms if self.sweep else ())}
        for label, name in references.items():
            if name not in self.arms:
                raise ValueError(f"{label} {name!r}, which is not an arm: choose from {', '.join(self.arms)}")
        reported = {seed for grid in self.grids.values() for seed in grid.seeds}
        if self.sweep and reported & set(self.sweep.seeds):
            raise ValueError(
                f"sweep.seeds {self.sweep.seeds} contain a seed of models or ablations: choose others"
            )
        self.primary.dataset = self.primary.dataset or self.data
        baseline = self.primary.against
        default_pairs = [(name, baseline) for name in self.models.arms if name != baseline]
        default_pairs += [(name, arm.against) for name, arm in self.arms.items() if arm.against]
        self.contrasts = self.contrasts or list(dict.fromkeys(default_pairs))
        return self

    @property
    def grids(self) -> dict[Group, Grid]:
        """The grids by group."""
        grids: dict[Group, Grid] = {"models": self.models}
        return grids | {"ablations": self.ablations} if self.ablations else grids

    @property
    def arms(self) -> dict[str, Arm]:
        """All arms by name."""
        return {name: arm for grid in self.grids.values() for name, arm in grid.arms.items()}

    @cached_property
    def recipes(self) -> dict[str, Recipe]:
        """The training recipe of each arm, without the sweep's settings and the seed, with data in the working folder.
        `InputError` names an arm that cannot be trained."""
        data = {f"data.{split}": f"{self.data}/{split}" for split in ("train", "val")}
        recipes = {}
        for name, arm in self.arms.items():
            changes = {**data, **self.change, **arm.change}
            words = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in changes.items()]
            try:
                recipes[name] = read_recipe(self.recipe, words)
            except InputError as error:
                raise InputError(f"arm {name}: {error}") from None
        return recipes

    def tuned_as(self, arm: str) -> str:
        """Find the swept arm whose settings the arm takes: itself, the arm in its `settings`, or DiffCLIP or CLIP,
        depending on the attention of its towers."""
        if self.sweep is None or arm in self.sweep.arms:
            return arm
        config = self.recipes[arm].config()
        differential = config.vision.is_differential or config.text.is_differential
        swept_arm = self.arms[arm].settings or (TREATED if differential else BASELINE)
        if swept_arm not in self.sweep.arms:
            raise InputError(
                f"arm {arm} is not swept: add it or {swept_arm} to sweep.arms, or name a swept arm as its `settings`"
            )
        return swept_arm


def _check_primary(study: Study) -> None:
    """Raise `InputError` if the runs would not measure the primary endpoint."""
    from diffclip.report.names import METRICS

    primary, suite = study.primary, study.models.suite
    measured = [("validation", study.data), *((entry.task, entry.dataset) for entry in SUITES[suite])]
    if primary.task not in ("six-tasks", "out-of-domain") and not any(
        (task or primary.task, dataset) == (primary.task, primary.dataset) for task, dataset in measured
    ):
        raise InputError(
            f"primary: no run measures {primary.task} on {primary.dataset}: choose a task and a set of the suite "
            f"{suite!r}, or validation on {study.data}"
        )
    metric = re.sub(r"_retrieval_recall@\d+$", "", primary.metric)
    known = ["score"] if primary.task == "validation" else [*METRICS, "average", "image", "text"]
    if metric not in known:
        raise unknown_name("primary.metric", primary.metric, known)


def read_study(source: str | Path, changes: Iterable[str] = ()) -> Study:
    """Read the study in a file, or the built-in study of that name, with `key=value` changes (`models.seeds=[0, 1]`).
    A missing file or study, an unknown key or model, and arms that do not fit together raise `InputError`."""
    path = find_recipe(source, "study_")
    fields = recipe_fields(path, changes)
    if "models" not in fields:
        raise InputError(
            f"{path} is not a study, as it has no `models`: use `diffclip train` for the recipe of one run"
        )
    study = parse(Study, fields, path, "study", changes)
    try:
        for arm in study.recipes:
            study.tuned_as(arm)
        _check_primary(study)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return study
