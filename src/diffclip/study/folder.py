"""The folder of a study: run folders condensed, in groups; what is finished there is not done again.

FOLDER/study.yaml                 the study as resolved
FOLDER/sweep/ARM-lrLR-wdWD-sSEED  recipe.yaml, metrics.jsonl, validation.jsonl, cost.json
FOLDER/models/ARM-sSEED           the same, and results.jsonl
FOLDER/ablations/ARM-sSEED        the same, and results.jsonl

A run that diverged is finished too: its cost.json tells the step, and it has no results.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from diffclip.errors import InputError
from diffclip.files import disk_errors, write_text
from diffclip.study.plan import GROUPS, Planned
from diffclip.study.recipe import Study, to_yaml
from diffclip.training.recipe import Recipe
from diffclip.training.run_folder import recipe_change

STUDY_FILE, COST_FILE = "study.yaml", "cost.json"

_OF_DATA = re.compile(r"(data|scenes|change\.data)(\.|$)")


def claim_study(study: Study, folder: Path) -> None:
    """Make `folder` this study's, or see that it is; remains of runs that a kill cut off go.

    Raises:
        InputError: as `check_study_folder`, or it cannot be written.
    """
    check_study_folder(study, folder)
    write_text(folder / STUDY_FILE, to_yaml(study))
    for group in GROUPS:
        for half in (folder / group).glob(".*.tmp"):
            with disk_errors(half):
                shutil.rmtree(half)


def check_study_folder(study: Study, folder: Path) -> None:
    """See, without writing anything, that `folder` is this study's, or nobody's.

    Raises:
        InputError: it holds another study; a key that differs is named, one of the data before others.
    """
    file = folder / STUDY_FILE
    with disk_errors(file):
        if not file.is_file():
            return
        try:
            before = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (yaml.YAMLError, ValueError):
            before = None
    if not isinstance(before, dict):
        raise InputError(f"{file} cannot be read: remove it, runs that fit the study stay finished")
    now = yaml.safe_load(to_yaml(study))
    different = sorted(_differences(before, now), key=lambda one: not _OF_DATA.match(one[0]))
    if different:
        key, old, new = different[0]
        way_out = (
            f"choose another --output, or remove {file} to go on there, where runs that fit stay finished"
        )
        # neither recipe nor checkpoint of a run tells what set lies where its data is
        if _OF_DATA.match(key):
            way_out = "choose another --output and other --runs, as its runs were trained on other data"
        raise InputError(f"{folder} holds a study with {key}={_told(old)}, not {_told(new)}: {way_out}")


def _differences(before: Any, now: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The keys, with dots, that two studies do not have in common, and both values."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in {**now, **before}:
            inner = f"{key}.{name}" if key else str(name)
            yield from _differences(before.get(name), now.get(name), inner)
    elif before != now:
        yield key, before, now


def _told(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_cost(run: Path) -> dict[str, Any] | None:
    """What a condensed run cost, see `measure.cost_of`; None where the folder has none or holds something else."""
    try:
        cost = json.loads((run / COST_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return cost if isinstance(cost, dict) else None


def diverged_at(run: Path) -> int | None:
    """The step where a condensed run diverged; None for one that ended well, and where there is none."""
    step = (read_cost(run) or {}).get("diverged")
    return step if isinstance(step, int) else None


def data_of(study: Study) -> dict[str, Any]:
    """What `cost.json` says of the data that a run was trained on."""
    drawn = study.scenes
    return {"data": study.data, "scenes": None if drawn is None else drawn.model_dump(mode="json")}


def is_finished(study: Study, planned: Planned, folder: Path) -> bool:
    """Whether the run lies in the study's `folder`, trained as planned and put through the planned suite, or diverged
    as planned."""
    return read_cost(folder / str(planned)) is not None and misfit(study, planned, folder) is None


def misfit(study: Study, planned: Planned, folder: Path) -> str | None:
    """How the run of that name in the study's `folder` differs from the planned one, in a few words ("started with
    lr=0.001, not 0.002"); None where it does not, or there is none."""
    run = folder / str(planned)
    cost = read_cost(run)
    if cost is None:
        return None
    other = other_recipe(study.training(planned.change), run)
    if other is not None:
        return other
    for key, now in data_of(study).items():
        if cost.get(key, now) != now:
            return f"trained on {key} {_told(cost[key])}, not {_told(now)}"
    if "diverged" not in cost and cost.get("suite") != planned.suite:
        return f"put through the suite {cost.get('suite')}, not {planned.suite}"
    return None


def other_recipe(recipe: Recipe, run: Path) -> str | None:
    """How the recipe in the folder `run` differs from `recipe`, in a few words; None where they are one."""
    try:
        change = recipe_change(recipe, run)
    except InputError as error:
        return f"of a recipe that cannot be compared ({error})"
    return None if change is None else f"started with {change}"
