"""The spec of a study: a training recipe, the arms that are trained with changes to it, the seeds, and what is tested.

docs/study.md describes every key. An arm is a model with an init, or one factor changed. Its learning rate is that of
the recipe, or chosen by a sweep, or each of the rates in the `lr` of its grid.

A sweep chooses learning rate and weight decay for the arms in `sweep.arms`, with seeds that no reported run has. Every
other arm takes the settings of a swept arm: the arm in its `settings`, else DiffCLIP if one of its towers has
differential attention, else CLIP. With a list `lr`, an arm has a run at each rate (`CLIP@5e-4`), and rows of the arm
itself (`CLIP`) are at the rate that was best in the other folds or seeds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from diffclip.errors import InputError, unknown_name
from diffclip.evaluation.family import Endpoints, Family, Primary
from diffclip.evaluation.suite import SUITES
from diffclip.names import METRICS, Group, metric_of
from diffclip.plugins import load_listed
from diffclip.training.recipe import Recipe, read_recipe
from diffclip.training.recipe_file import Keys, find_recipe, parse, recipe_fields

BASELINE, TREATED = "CLIP", "DiffCLIP"
_PLACES = {
    "primary": "`endpoints.primary`",
    "secondary": "`endpoints.secondary`",
    "margin": "`endpoints.primary.margin`, and a margin for each of `endpoints.secondary`",
    "arms": "`models.arms`, and for factors `ablations.arms`",
    **dict.fromkeys(("seed", "seeds"), "`models.seeds`, and for the sweep `sweep.seeds`"),
    **dict.fromkeys(("arm", "against"), "`endpoints.primary`, and pairs of arms into `contrasts`"),
    "suite": "`models.suite`",
}


class Part(Keys):
    """A part of a spec. A key that belongs elsewhere is an error that tells its place."""

    @model_validator(mode="before")
    @classmethod
    def _find_misplaced(cls, fields: Any) -> Any:
        for key in fields if isinstance(fields, Mapping) else ():
            outer = str(key).partition(".")[0]
            if outer not in cls.model_fields and outer in _PLACES:
                raise ValueError(f"{key} stands in the wrong place: write it into {_PLACES[outer]}")
            if outer not in cls.model_fields and outer in Recipe.model_fields:
                raise ValueError(
                    f"{key} is a key of the training recipe: write it into `change` (change.{key}=… for all runs), or "
                    "into the `change` of an arm"
                )
        return fields


class Arm(Part):
    """One model in one init, or with one factor changed.

    `change` holds keys of the training recipe, inner ones with dots (`architecture.vision.heads`). `against` is the arm
    that is one factor away, and `settings` the swept arm whose settings this arm takes.
    """

    change: dict[str, Any]
    against: str | None = None
    settings: str | None = None


def _check_unique(values: list[Any]) -> list[Any]:
    if len(set(values)) < len(values):
        raise ValueError(f"{values} contains a value twice: list each value once")
    return values


Rates = Annotated[list[PositiveFloat], AfterValidator(_check_unique)]
Seeds = Annotated[list[NonNegativeInt], Field(min_length=1), AfterValidator(_check_unique)]


class Sweep(Part):
    """Every combination of learning rate, weight decay and seed for each arm in `arms`; the best mean score wins."""

    lr: Annotated[Rates, Field(min_length=1)]
    weight_decay: Annotated[list[NonNegativeFloat], Field(min_length=1), AfterValidator(_check_unique)]
    seeds: Seeds
    arms: Annotated[list[str], Field(min_length=1), AfterValidator(_check_unique)] = Field(
        default_factory=lambda: [BASELINE, TREATED]
    )


class Grid(Part):
    """Every arm with every seed and at every learning rate in `lr`, evaluated with a suite of `diffclip evaluate`.

    An arm with an `lr` in its `change` has that rate alone.
    """

    arms: dict[str, Arm]
    seeds: Seeds
    suite: str
    lr: Rates = Field(default_factory=list)

    @field_validator("suite")
    @classmethod
    def _check_suite(cls, suite: str) -> str:
        if suite not in SUITES:
            raise ValueError(f"there is no suite {suite!r}: choose from {', '.join(SUITES)}")
        return suite

    @field_validator("arms")
    @classmethod
    def _check_names(cls, arms: dict[str, Arm]) -> dict[str, Arm]:
        for name in arms:
            if "/" in name or "@" in name:
                raise ValueError(f"arm {name!r} names the folder of its runs: leave out / and @")
        return arms

    def rates(self, arm: str) -> dict[str, float]:
        """Return the learning rates of an arm by the name of the arm at that rate; empty if it has a single rate."""
        rates = [] if "lr" in self.arms[arm].change else self.lr
        # 5e-4, not 0.0005
        return {f"{arm}@{np.format_float_scientific(rate, trim='-', exp_digits=1)}": rate for rate in rates}


class Scenes(Part):
    """The settings of the scenes that are drawn before the first run."""

    train: PositiveInt
    val: PositiveInt
    test: PositiveInt = 1
    size: int = Field(ge=16)
    seed: NonNegativeInt = 0
    distractors: int = Field(default=0, ge=0, le=64)


class StudyEndpoints(Part, Endpoints):
    """The endpoints of a study, which always has a primary one."""

    primary: Primary


class Study(Part, Family):
    """Everything that decides a study: its runs, and the family that it compares.

    `recipe` is the recipe of the runs, and `data` the set that they are trained on (its splits train and val). If the
    primary endpoint or `contrasts` are missing, they are filled in.
    """

    title: str
    endpoints: StudyEndpoints
    plugins: list[str] = Field(default_factory=list)  # files or modules of one's own, for all runs
    recipe: str
    change: dict[str, Any] = Field(default_factory=dict)  # of the recipe, for all runs
    data: str
    scenes: Scenes | None = None  # draw scenes; `data` then names their folder
    folds: int | None = Field(default=None, ge=2)  # each run is measured on the fold it was not trained on
    sweep: Sweep | None = None
    models: Grid
    ablations: Grid | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill_primary(cls, fields: Any) -> Any:
        """Fill in the primary endpoint: the validation score of DiffCLIP minus CLIP."""
        given = fields.get("endpoints") or {} if isinstance(fields, Mapping) else None
        primary = given.get("primary") or {} if isinstance(given, Mapping) else None
        if not isinstance(given, Mapping) or not isinstance(primary, Mapping):
            return fields
        default = {"arm": TREATED, "against": BASELINE, "dataset": str(fields.get("data"))}
        default |= {"task": "validation", "metric": "score"}
        return {**fields, "endpoints": {**given, "primary": {**default, **primary}}}

    @model_validator(mode="after")
    def _check(self) -> Study:
        ablations = self.ablations.arms if self.ablations else {}
        if shared := self.models.arms.keys() & ablations:
            raise ValueError(
                f"{', '.join(sorted(shared))} is an arm of models and of ablations: leave one out"
            )
        if self.ablations is None and "ablations" in self.model_fields_set:
            # `ablations=null` removes arms that a model may be against, and their contrasts
            for arm in self.models.arms.values():
                arm.against = arm.against if arm.against in self.models.arms else None
            self.contrasts = [pair for pair in self.contrasts if self._names.keys() >= set(pair)]
        for change in (self.change, *(arm.change for arm in self.arms.values())):
            # with a seed of its own, all runs of an arm would be one run
            if given := change.keys() & {"data", "data.train", "data.val", "seed"}:
                raise ValueError(
                    f"a change sets {', '.join(sorted(given))}: all runs of a study have the data that `data` names, "
                    "and the seeds of `models.seeds`"
                )
        self._check_references()
        reported = {seed for grid in self.grids.values() for seed in grid.seeds}
        if self.sweep and reported & set(self.sweep.seeds):
            raise ValueError(
                f"sweep.seeds {self.sweep.seeds} contain a seed of models or ablations: choose others"
            )
        if self.folds is None and self.unit == "fold":
            raise ValueError("unit is fold, and there are no folds: give folds, or unit=seed")
        if self.folds is not None and (self.scenes is not None or self.sweep is not None):
            raise ValueError(
                "a study with folds has no scenes and no sweep: give the learning rates as models.lr, which are chosen "
                "between on the other folds"
            )
        if self.sweep is not None and any(grid.lr for grid in self.grids.values()):
            raise ValueError("a study has a sweep or a list lr in its grids, not both: leave one out")
        metric = self.endpoints.primary.metric
        if metric_of(metric).better == 0 and any(grid.lr for grid in self.grids.values()):
            raise ValueError(
                f"models.lr is a list, and no rate can be chosen by {metric} of endpoints.primary, which is neither "
                "better high nor low"
            )
        if not self.contrasts:
            baseline = self.endpoints.primary.against
            pairs = [(name, baseline) for name in self.models.arms if name != baseline]
            pairs += [(name, arm.against) for name, arm in self.arms.items() if arm.against]
            self.contrasts = list(dict.fromkeys(pairs))
        self._check_contrasts()
        return self

    def count_missing(self, ended: Collection[tuple[str, int]]) -> int:
        # an arm that runs at several rates has them in its name: CLIP@5e-4
        named = {arm.partition("@")[0] for contrast in self.all_contrasts for arm in contrast}
        planned = {
            (name, seed)
            for grid in self.grids.values()
            for arm in named & grid.arms.keys()
            for name in grid.rates(arm) or [arm]
            for seed in self.run_seeds(grid)
        }
        return len(planned - set(ended))

    def run_seeds(self, grid: Grid) -> list[int]:
        """Return the seeds of an arm's runs in order: with K folds, seed s has K runs, with the seeds K·s + fold."""
        folds = self.folds or 1
        return [seed * folds + fold for seed in grid.seeds for fold in range(folds)]

    def _check_references(self) -> None:
        """Raise `ValueError` for a name that is no arm, nor an arm at one of its rates."""
        primary = self.endpoints.primary
        references = [(f"arm {name} is against", arm.against) for name, arm in self.arms.items()]
        references += [(f"endpoints.primary.{key} is", getattr(primary, key)) for key in ("arm", "against")]
        references += [(f"contrasts[{i}] has", arm) for i, pair in enumerate(self.contrasts) for arm in pair]
        references += [("sweep.arms has", name) for name in (self.sweep.arms if self.sweep else ())]
        for label, name in references:
            if name is not None and name not in self._names:
                known = ", ".join(self._names)
                raise ValueError(f"{label} {name!r}, which is not an arm: choose from {known}")

    @property
    def _names(self) -> dict[str, None]:
        """The names of the arms, and of arms at one of their rates."""
        rated = [name for grid in self.grids.values() for arm in grid.arms for name in grid.rates(arm)]
        return dict.fromkeys([*self.arms, *rated])

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
        data: dict[str, Any] = {f"data.{split}": f"{self.data}/{split}" for split in ("train", "val")}
        if self.folds is not None:
            data["data.val"] = None
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


def _check_endpoints(study: Study) -> None:
    """Raise `InputError` if the runs would not measure an endpoint."""
    suite, secondary = study.models.suite, study.endpoints.secondary or ()
    measured = {(entry.task, entry.dataset) for entry in SUITES[suite]}
    if study.folds is None:
        measured.add(("validation", study.data))
    for key, endpoint in [("primary", study.endpoints.primary), *(("secondary", one) for one in secondary)]:
        derived = endpoint.task in ("six-tasks", "out-of-domain", "cost", "training")
        if not derived and not {(endpoint.task, endpoint.dataset), (None, endpoint.dataset)} & measured:
            raise InputError(
                f"endpoints.{key}: no run measures {endpoint.task} on {endpoint.dataset}: choose a task and a set of "
                f"the suite {suite!r}" + ("" if study.folds else f", or validation on {study.data}")
            )
        metric = re.sub(r"_retrieval_recall@\d+$|/.*$", "", endpoint.metric)
        known = ["score"] if endpoint.task == "validation" else [*METRICS, "average", "image", "text"]
        # SugarCrepe's metrics are the names of its files
        if endpoint.task != "sugarcrepe" and metric not in known:
            raise unknown_name(f"endpoints.{key}.metric", endpoint.metric, known)


def read_study(source: str | Path, changes: Iterable[str] = ()) -> Study:
    """Read the study in a file, or the built-in study of that name, with `key=value` changes (`models.seeds=[0, 1]`).
    A missing file or study, an unknown key or model, and arms that do not fit together raise `InputError`."""
    path = find_recipe(source, "study_")
    fields = recipe_fields(path, changes)
    if "models" not in fields:
        raise InputError(
            f"{path} is not a study, as it has no `models`: use `diffclip train` for the recipe of one run, and "
            "`diffclip report` for comparisons alone"
        )
    load_listed(fields.get("plugins") or (), path)
    study = parse(Study, fields, path, "study", changes)
    try:
        for arm in study.recipes:
            study.tuned_as(arm)
        _check_endpoints(study)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return study
