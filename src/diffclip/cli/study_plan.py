"""`diffclip study RECIPE --dry-run`: the runs, their time, and the difference that the study can find."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pandas as pd

from diffclip.cli.console import print_table
from diffclip.evaluation.records import RESULTS_FILE, load_records
from diffclip.evaluation.statistics import MARGIN, detectable_difference, power, residual_sd
from diffclip.report.names import measure_label
from diffclip.study.place import Place
from diffclip.study.plan import Planned, grid_runs, plan, seconds_of_runs
from diffclip.study.results import StudyFolder
from diffclip.study.spec import Group, Study
from diffclip.training.logging import duration


def show_plan(study: Study, place: Place, groups: Collection[Group], pilot: Path | None) -> None:
    """Print the runs by group and arm, the settings that the sweep chose, the estimated time left, and the power of
    the primary comparison."""
    folder = StudyFolder(place.output)
    folder.check(study)
    lines = folder.runs
    runs, chosen = plan(study, lines, groups)
    # an unfinished sweep may still choose other settings for runs of the grids that are there
    decided = study.sweep is None or bool(chosen)
    finished = [run.name for run in runs if (decided or run.group == "sweep") and run.is_finished(lines)]
    rows = [(run.group, run.arm, run.suite or "–", run.seed, run.name in finished) for run in runs]
    frame = pd.DataFrame(rows, columns=["group", "arm", "suite", "seeds", "finished"])
    table = frame.groupby(["group", "arm", "suite"], sort=False).agg(
        seeds=("seeds", _span), runs=("seeds", "size"), finished=("finished", "sum")
    )
    cells = ([str(cell) for cell in row] for row in table.reset_index().itertuples(index=False))
    print_table(("group", "arm", "suite", "seeds", "runs", "finished"), "llllrr", cells)
    for arm, settings in chosen.items():
        print(f"the sweep chose for {arm}: lr {settings['lr']:g}, weight decay {settings['weight_decay']:g}")
    if outdated := [run.name for run in runs if decided and run.name in lines and run.name not in finished]:
        names = ", ".join(outdated[:3]) + (", …" if len(outdated) > 3 else "")
        print(f"runs to train again because their settings differ: {len(outdated)} ({names})")
    remaining = [run for run in runs if run.name not in finished]
    known = lines or ({} if pilot is None else StudyFolder(pilot).runs)
    seconds = seconds_of_runs(known, remaining, place.workers)
    at_a_time = f"{place.workers} at a time on {place.device}"
    time = f"the others take about {duration(seconds)}, {at_a_time}" if seconds else "nothing is left to do"
    if remaining and seconds is None:
        time = f"no time estimate yet: it needs a finished run, or --pilot FOLDER ({at_a_time})"
    print(f"{len(finished)} of {len(runs)} runs are finished; {time}")
    _show_power(study, grid_runs(study, chosen), [place.output, *([pilot] if pilot else [])])


def _span(seeds: pd.Series[int]) -> str:
    unique = sorted(set(seeds))
    is_range = len(unique) > 4 and unique == list(range(unique[0], unique[-1] + 1))
    return f"{unique[0]} … {unique[-1]}" if is_range else ", ".join(map(str, unique))


def _show_power(study: Study, runs: Sequence[Planned], folders: Sequence[Path]) -> None:
    """Print the seed variance of the primary metric, and the difference that the planned runs of the grids can find.
    The variance is from the first values in `folders` that have two seeds of two arms."""
    primary = study.endpoints.primary
    print(f"primary: {primary.arm} − {primary.against}, {measure_label(primary.model_dump())}")
    arm_seeds, against_seeds = (
        {run.seed for run in runs if run.arm == arm} for arm in (primary.arm, primary.against)
    )
    pairs = len(arm_seeds & against_seeds)
    planned = len(runs) - len({run.arm for run in runs}) - len({run.seed for run in runs}) + 1
    for frame in (frame for folder in folders for frame in _primary_values(study, folder)):
        sd, df = residual_sd(frame) if len(frame) else (math.nan, 0.0)
        if df and sd and planned and pairs:
            error = sd * math.sqrt(2 / pairs)
            least = detectable_difference(error, planned)
            value = frame[frame["model"] == primary.against]["value"].mean()  # NaN if only a sweep ran
            share = f" ({least / value:.0%} of {primary.against}'s {100 * value:.1f})" if value > 0 else ""
            at_margin = power(primary.margin or MARGIN, error, planned)
            print(
                f"seeds vary by {100 * sd:.2f} points (residual standard deviation with {df:.0f} degrees of freedom)\n"
                f"{pairs} seeds find a difference of {100 * least:.2f} points{share} with 80 % power; power for the "
                f"margin of {100 * (primary.margin or MARGIN):g} points: {at_margin:.0%}"
            )
            return
    print("no detectable difference yet: it needs two finished seeds of two arms, or --pilot FOLDER")


def _primary_values(study: Study, folder: Path) -> Iterator[pd.DataFrame]:
    """Yield model, seed and value of the primary metric: the results, then scores of the grids, then of the sweep.

    Scores are from runs.jsonl: mean recalls on the validation images, which stand in for other images until these are
    measured. Each setting of the sweep counts as a model: its seeds show the variance before the models are trained.
    """
    primary, columns = study.endpoints.primary, ["model", "seed", "value"]
    if (folder / RESULTS_FILE).is_file():
        frame = load_records(folder)
        for key in ("task", "dataset", "metric"):
            frame = frame[frame[key] == getattr(primary, key)]
        yield frame[columns]
    if primary.metric not in ("score", "mean_recall"):
        return
    lines = [line for line in StudyFolder(folder).runs.values() if line["score"] is not None]
    names = [line["arm"] if line["group"] != "sweep" else line["run"].rpartition("-s")[0] for line in lines]
    rows = [(name, line["seed"], line["score"]) for name, line in zip(names, lines, strict=True)]
    frame = pd.DataFrame(rows, columns=columns)
    of_sweep = frame["model"].str.startswith("sweep/")
    yield frame[~of_sweep]
    yield frame[of_sweep]
