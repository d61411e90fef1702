"""`diffclip study SPEC --dry-run`: the runs, their time, and the difference that the study can find."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import pandas as pd

from diffclip.cli.console import print_table
from diffclip.evaluation.records import TABLE_FILE, read_records
from diffclip.evaluation.statistics import detectable, run_sd
from diffclip.names import Group
from diffclip.report.labels import measure_label
from diffclip.study.grid import Planned, grid_runs, plan, seconds_of_runs, sweep_doubts
from diffclip.study.results import StudyFolder
from diffclip.study.site import Site
from diffclip.study.spec import Study
from diffclip.training.logging import duration


def show_plan(study: Study, site: Site, groups: Collection[Group], pilot: Path | None) -> None:
    """Print the runs by group and arm, the settings that the sweep chose, the estimated time left, and the power of
    the primary comparison."""
    folder = StudyFolder(site.output)
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
    doubts = sweep_doubts(study, lines, chosen)
    for arm, settings in chosen.items():
        print(f"the sweep chose for {arm}: lr {settings['lr']:g}, weight decay {settings['weight_decay']:g}")
        for doubt in doubts[arm]:
            print(f"  {doubt}")
    if outdated := [run.name for run in runs if decided and run.name in lines and run.name not in finished]:
        names = ", ".join(outdated[:3]) + (", …" if len(outdated) > 3 else "")
        print(f"runs to train again because their settings differ: {len(outdated)} ({names})")
    remaining = [run for run in runs if run.name not in finished]
    known = lines or ({} if pilot is None else StudyFolder(pilot).runs)
    seconds = seconds_of_runs(known, remaining, site.workers)
    at_a_time = f"{site.workers} at a time on {site.device}"
    if site.cluster:
        at_a_time = f"{len(remaining)} jobs of SLURM, at most {min(site.workers, len(remaining))} at a time"
    time = "nothing is left to do"
    if seconds:
        used = {(line["device"], line["threads"]) for line in known.values() if "device" in line}
        devices = "; ".join(f"{device}, {threads} threads" for device, threads in sorted(used))
        time = f"the others take about {duration(seconds)}, {at_a_time} (at the speed of {devices})"
    elif remaining:
        time = f"no time estimate yet: it needs a finished run, or --pilot FOLDER ({at_a_time})"
    print(f"{len(finished)} of {len(runs)} runs are finished; {time}")
    for note in dict.fromkeys(note for run in runs for note in run.recipe.notes()):
        print(note)
    _show_power(study, grid_runs(study, chosen), [site.output, *([pilot] if pilot else [])])


def _span(seeds: pd.Series[int]) -> str:
    unique = sorted(set(seeds))
    is_range = len(unique) > 4 and unique == list(range(unique[0], unique[-1] + 1))
    return f"{unique[0]} … {unique[-1]}" if is_range else ", ".join(map(str, unique))


def _show_power(study: Study, runs: Sequence[Planned], folders: Sequence[Path]) -> None:
    """Print how much runs vary in the primary metric, and the differences that the planned runs can find. The variance
    is that of the first results in `folders` with two runs of an arm."""
    primary, secondary = study.endpoints.primary, study.endpoints.secondary
    print(f"primary: {primary.arm} − {primary.against}, {measure_label(primary.model_dump())}")
    # an arm at its chosen rates has as many runs as at one rate
    seeds = [
        {run.seed for run in runs if arm in (run.arm, run.arm.partition("@")[0])}
        for arm in (primary.arm, primary.against)
    ]
    paired = study.test == "paired" or (study.test is None and seeds[0] == seeds[1])
    count = len(seeds[0] & seeds[1]) if paired else min(map(len, seeds))
    if study.unit == "fold" and study.folds:
        count = study.folds
    arms = len({name for pair in study.all_contrasts for name in pair})
    for file in (folder / TABLE_FILE for folder in folders if (folder / TABLE_FILE).is_file()):
        records = primary.select(read_records(file))
        frame = pd.DataFrame([record.model_dump(include={"model", "seed", "value"}) for record in records])
        sd, df = run_sd(frame) if records else (0.0, 0)
        if not df or not sd or count < 2:
            continue
        groups = arms if study.pooled else 2
        test_df = (groups - 1 if paired else groups) * (count - 1)
        least = detectable(sd, count, test_df)
        value = frame[frame["model"] == primary.against]["value"].mean()  # NaN without a run
        share = f" ({least / value:.0%} of {primary.against}'s {100 * value:.1f})" if value > 0 else ""
        print(f"runs vary by {100 * sd:.2f} points (standard deviation within arms, {df} degrees of freedom)")
        text = f"{count} runs of each arm find a difference of {100 * least:.2f} points{share}"
        if secondary:
            rows = len(study.all_contrasts) * len(study.measures) - 1
            corrected = detectable(sd, count, test_df, max(rows, 1))
            text += f", and of {100 * corrected:.2f} points in a secondary comparison, one of {rows}"
        pairs = "; pairs of runs that rise and fall together find smaller ones" if paired else ""
        print(f"{text}, with 80 % power{pairs}")
        return
    print("no detectable difference yet: it needs two finished runs of an arm, or --pilot FOLDER")
