"""The runs of a study: their names, their changes to the training recipe, and the order in which they are done."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from diffclip.study.recipe import BASELINE, TREATED, Grid, Study
from diffclip.training.recipe import Recipe

Group = Literal["sweep", "models", "ablations"]
GROUPS: tuple[Group, ...] = ("sweep", "models", "ablations")


@dataclass(frozen=True)
class Settings:
    """What a sweep chooses."""

    lr: float
    weight_decay: float

    @property
    def change(self) -> dict[str, Any]:
        """As keys of a training recipe."""
        return {"lr": self.lr, "weight_decay": self.weight_decay}


@dataclass(frozen=True)
class Planned:
    """One run: `name` is its folder within `group`; `suite` is what it is put through, None for a sweep's run."""

    group: Group
    arm: str
    name: str
    seed: int
    change: dict[str, Any]
    suite: str | None

    def __str__(self) -> str:
        return f"{self.group}/{self.name}"


def sweep_runs(study: Study) -> list[Planned]:
    """The runs of the sweep: CLIP and DiffCLIP with each pair of settings."""
    if study.sweep is None:
        return []
    return [
        Planned(
            "sweep",
            arm,
            f"{arm}-lr{lr:g}-wd{decay:g}-s{study.sweep.seed}",
            study.sweep.seed,
            {**study.arms[arm].change, **Settings(lr, decay).change, "seed": study.sweep.seed},
            None,
        )
        for lr in study.sweep.lr
        for decay in study.sweep.weight_decay
        for arm in (BASELINE, TREATED)
    ]


def repeats(study: Study, chosen: Mapping[str, Settings]) -> dict[str, str]:
    """Arms that would repeat an earlier arm's runs, and which; CLIP and DiffCLIP are the earliest. None as long as the
    sweep has not chosen."""
    if study.sweep is not None and not chosen:
        return {}
    kept: list[tuple[str, Recipe]] = []
    found = {}
    for arm in sorted(study.arms, key=lambda name: name not in (BASELINE, TREATED)):
        model = study.model_of(arm, _settings_of(study, arm, chosen))
        earlier = next((name for name, known in kept if known == model), None)
        if earlier is None:
            kept.append((arm, model))
        else:
            found[arm] = earlier
    return found


def repeats_lines(study: Study, chosen: Mapping[str, Settings]) -> list[str]:
    """What `repeats` says, in lines for people."""
    return [
        f"{arm} is left out: with these settings it is {earlier}, whose runs it would repeat"
        for arm, earlier in repeats(study, chosen).items()
    ]


def grid_runs(study: Study, chosen: Mapping[str, Settings]) -> list[Planned]:
    """The runs of the grids, seed by seed, so that a grid cut short has whole seeds; without those that `repeats`.

    Args:
        chosen: what the sweep chose for CLIP and DiffCLIP; empty keeps the recipe's settings.
    """
    left_out = repeats(study, chosen)
    groups: tuple[tuple[Group, Grid | None], ...] = (("models", study.models), ("ablations", study.ablations))
    return [
        Planned(
            group,
            arm,
            f"{arm}-s{seed}",
            seed,
            {**_settings_of(study, arm, chosen), **own.change, "seed": seed},
            grid.suite,
        )
        for group, grid in groups
        if grid is not None
        for seed in grid.seeds
        for arm, own in grid.arms.items()
        if arm not in left_out
    ]


def _settings_of(study: Study, arm: str, chosen: Mapping[str, Settings]) -> dict[str, Any]:
    return chosen[study.tuned_as(arm)].change if chosen else {}


def all_runs(study: Study, groups: Collection[Group] = GROUPS) -> list[Planned]:
    """Every run of `groups` in order; those after the sweep as yet without what it will choose."""
    return [run for run in [*sweep_runs(study), *grid_runs(study, {})] if run.group in groups]
