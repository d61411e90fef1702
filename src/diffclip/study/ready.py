"""Whether a study could be done: its data is there, the sets of its suites are, and its folders are its own."""

from __future__ import annotations

from collections.abc import Collection

from diffclip.data.evaluation_sets import BUILT_IN, draw_built_in
from diffclip.data.published_sets import PUBLISHED
from diffclip.errors import DiffCLIPError, require_group
from diffclip.evaluation.missing import missing_of
from diffclip.evaluation.suite import Entry, suite
from diffclip.files import check_writable
from diffclip.study.folder import STUDY_FILE, check_study_folder
from diffclip.study.one import Place
from diffclip.study.plan import GROUPS, Group, all_runs
from diffclip.study.recipe import Study, check_arms
from diffclip.training.data import open_training_data, open_validation_data


def problems_of(study: Study, place: Place, groups: Collection[Group] = GROUPS) -> list[str]:
    """What keeps the runs of `groups` from being done, in lines for people; nothing is written or drawn."""
    problems = []
    for check in (_tools, _arms, _folders, _data, _suites):
        try:
            problems += check(study, place, groups)
        except DiffCLIPError as error:
            problems.append(str(error))
    return problems


def draw_for_suites(study: Study, groups: Collection[Group], workers: int) -> None:
    """Draw the built-in sets, if a suite has some, with so many processes: before several want them at once.

    Raises:
        InputError: they cannot be written.
    """
    if any(entry.dataset in BUILT_IN for entry in _entries(study, groups)):
        draw_built_in(workers)


def _tools(study: Study, place: Place, groups: Collection[Group]) -> list[str]:
    require_group("train", "lightning", "tensorboard")
    return []


def _arms(study: Study, place: Place, groups: Collection[Group]) -> list[str]:
    check_arms(study)
    return []


def _folders(study: Study, place: Place, groups: Collection[Group]) -> list[str]:
    check_writable(place.runs / ".lock")
    check_study_folder(study, place.output)
    check_writable(place.output / STUDY_FILE)
    return []


def _data(study: Study, place: Place, groups: Collection[Group]) -> list[str]:
    """Scenes that are still to be drawn are no trouble."""
    if study.scenes is not None:
        return []
    recipe = place.recipe(study, all_runs(study)[0])
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"workers": 0})})
    found = []
    for what, opens in (("training", open_training_data), ("validation", open_validation_data)):
        try:
            opens(recipe)
        except DiffCLIPError as error:
            found.append(f"{what} data: {error}")
    return found


def _suites(study: Study, place: Place, groups: Collection[Group]) -> list[str]:
    entries = _entries(study, groups)
    missing = missing_of(entries, place.data)
    found = [
        f"missing in {place.data}: {one.name}, {one.size} to download: {one.command}"
        for one in missing.values()
    ]
    own = {entry.dataset for entry in entries} - BUILT_IN.keys() - PUBLISHED.keys()
    return found + [
        f"missing in {place.data}: {name}, a folder in clip_benchmark's layout; or do without it: "
        + " ".join(f"{group}.suite=quick" for group in _groups_with(study, groups, name))
        for name in sorted(own)
        if not (place.data / name).is_dir()
    ]


def _groups_with(study: Study, groups: Collection[Group], dataset: str) -> list[str]:
    """Those of `groups` whose suite has the set."""
    return [
        group
        for group, grid in study.grids.items()
        if group in groups and any(entry.dataset == dataset for entry in suite(grid.suite))
    ]


def _entries(study: Study, groups: Collection[Group]) -> list[Entry]:
    names = dict.fromkeys(run.suite for run in all_runs(study, groups) if run.suite is not None)
    return [entry for name in names for entry in suite(name)]
