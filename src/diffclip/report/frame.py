"""Read result records into one table by measure, model and seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from diffclip.errors import InputError
from diffclip.evaluation.averages import AVERAGE, PANELS, SIX_TASKS, headline_metric
from diffclip.evaluation.records import MEASURE, RESULTS_FILE, load_records
from diffclip.evaluation.statistics import MARGIN
from diffclip.report.names import ASIDE, in_order, measure_label
from diffclip.study.results import RUNS_FILE, STUDY_FILE, read_study_file, read_timing, saved_curves
from diffclip.training.run_folder import SEED, curve_of, read_lines, run_folders

_HEADLINES = {
    "retrieval": ("image_retrieval_recall@5", "text_retrieval_recall@5"),
    "mmvp": ("pair_accuracy",),
}
"""By task the metrics in the first table; other tasks show the first recorded one, linear probes `headline_metric`."""
BY_LAYER = {
    "focus": ("auroc", "inside_over_area", "entropy", "map_correlation"),
    "mechanics": ("sink_ratio", "sink_value_norm", "negative_weight", "map_correlation", "gradient_cosine"),
}
"""By task the measures that a report shows layer by layer."""
HEADLINE_EPSILON = 1.0  # the size of an attack, in 255ths, that the first table shows


@dataclass(frozen=True)
class Results:
    """Everything that a report shows.

    Attributes:
        records: one row per record of the last checkpoint, with `measure` (one number per measure) added. Models that
            share a name have their run or file added to it, in brackets.
        curves: one mapping per run as in `curves.jsonl`.
        runs: one row per run of a study; empty without one.
        study: the resolved study, None without one.
        timing: step times by arm, measured while the arms take turns.
    """

    records: pd.DataFrame
    curves: list[dict[str, Any]] = field(default_factory=list)
    runs: pd.DataFrame = field(default_factory=pd.DataFrame)
    study: dict[str, Any] | None = None
    timing: dict[str, Any] = field(default_factory=dict)

    @property
    def models(self) -> list[str]:
        """The models in the order of figures: CLIP first."""
        names = [*self.records["model"], *(curve["arm"] for curve in self.curves)]
        return in_order(dict.fromkeys(names))

    @property
    def parameters(self) -> dict[str, float]:
        """The parameters of each model whose cost was recorded."""
        rows = self.records[(self.records["task"] == "cost") & (self.records["metric"] == "parameters")]
        return dict(zip(rows["model"], rows["value"], strict=True))

    @property
    def margin(self) -> float:
        """The margin of equivalence that the study declares, else one point."""
        return float(
            (self.study or {"endpoints": {"primary": {}}})["endpoints"]["primary"].get("margin") or MARGIN
        )

    @property
    def seeds(self) -> int:
        """The largest number of training seeds of a model."""
        return 0 if self.records.empty else int(self.records.groupby("model")["seed"].nunique().max())


def read_results(paths: Sequence[str | Path]) -> Results:
    """Read records from files and folders, and from folders also curves, runs and the study.

    Raises:
        InputError: a path does not exist, a file cannot be read, there is neither a record nor a step, or there are two
            studies.
    """
    sources = [Path(path) for path in paths]
    folders = [path for path in sources if path.is_dir()]
    studies = sorted({file.parent for folder in folders for file in folder.rglob(STUDY_FILE)})
    if len(studies) > 1:
        raise InputError(f"{studies[0]} and {studies[1]} are two studies: give one of them")
    curves = saved_curves(folders) + [curve_of(run) for folder in folders for run in run_folders(folder)]
    # folders without results have runs that were not evaluated
    evaluated = [path for path in sources if not path.is_dir() or next(path.rglob(RESULTS_FILE), None)]
    records = load_records(evaluated)
    if records.empty and not curves:
        names = ", ".join(map(str, sources))
        raise InputError(
            f"{names} has no records, and no run there has made its first step: train or evaluate first"
        )
    results = results_of(records, curves)
    if not studies:
        return results
    study = studies[0]
    runs = pd.DataFrame(read_lines(study / RUNS_FILE))
    return replace(results, runs=runs, study=read_study_file(study), timing=read_timing(study))


def results_of(records: pd.DataFrame, curves: Sequence[dict[str, Any]] = ()) -> Results:
    """Make `Results` from a table of records, as `load_records` returns it."""
    frame = records[records["value"].notna()].copy()
    frame["measure"] = frame.groupby(list(MEASURE), dropna=False, sort=False).ngroup()
    frame = _with_distinct_names(frame)
    steps = frame.groupby(["measure", "model", "seed"], dropna=False)["steps"]
    frame = frame[frame["steps"].isna() | (frame["steps"] == steps.transform("max"))]
    frame = frame.drop_duplicates(["measure", "model", "seed", "draw"], keep="last")
    return Results(frame.reset_index(drop=True), list(curves))


def values_of(records: pd.DataFrame) -> pd.DataFrame:
    """Average draws: one row per (measure, model, seed) with value, low, high, count, chance. Unknown seeds are −1."""
    frame = records.assign(seed=records["seed"].fillna(-1).astype(int))
    return (
        frame.groupby(["measure", "model", "seed"], sort=False)
        .agg({"value": "mean", "low": "mean", "high": "mean", "count": "first", "chance": "first"})
        .reset_index()
    )


def measures_of(records: pd.DataFrame) -> pd.DataFrame:
    """Make a table of the measures, indexed by `measure`: their fields and `label`, in the order of the records."""
    columns = [*MEASURE, "chance"]
    measures = records.groupby("measure", sort=False)[columns].first()
    # `first` skips missing values, which is right for chance; the other fields are equal within a measure
    measures = measures.assign(label=[measure_label(row) for row in measures.to_dict("records")])
    for name, words in (("split", ", {}"), ("templates", ", {:.0f} templates")):
        several = measures.groupby("label")[name].transform(lambda own: own.nunique(dropna=False)) > 1
        unclear = several & measures[name].notna()
        measures["label"] = measures["label"].mask(
            unclear, measures["label"] + measures[name].map(words.format, "ignore")
        )
    return measures


def headlines(records: pd.DataFrame) -> list[int]:
    """Choose the measures of the first table and of the forest plot: at least one per measured task.

    If all models of a task have an average over the same sets, it replaces the single sets. Of several maps, the first
    recorded one is chosen. Measures on corrupted images are chosen only if there are no others.
    """
    frame = records[records["layer"].isna() & records["head"].isna() & ~records["task"].isin(ASIDE)]
    frame = frame[frame["corruption"].isna() | frame["corruption"].notna().all()]
    averages = frame[(frame["task"] == SIX_TASKS) & (frame["metric"] == AVERAGE)]
    chosen, averaged = [], [SIX_TASKS]
    for panel, (task, _) in PANELS.items():
        models = averages[averages["dataset"] == panel].groupby("measure")["model"].agg(set)
        measured = set(frame.loc[frame["task"] == task, "model"])
        # models whose averages are over different sets can only be compared on single sets
        if len(models) and measured <= models[best := models.map(len).idxmax()]:
            chosen.append(int(best))
            averaged.append(task)
    rest = frame[~frame["task"].isin(averaged)]
    # blind POPE is a baseline: it comes last, so that it is not the headline, whichever file came first
    rest = rest.sort_values("task", key=lambda tasks: tasks == "pope-blind", kind="stable")
    for (task, dataset), rows in rest.groupby(["task", "dataset"], sort=False):
        metrics = list(_HEADLINES.get(str(task), rows["metric"].iloc[:1]))
        if task == "linear-probe":
            metrics = [headline_metric(str(dataset))]
        maps = rows["map"].fillna("")
        rows = rows[maps == maps.iloc[0]]
        if rows["epsilon"].eq(HEADLINE_EPSILON).any():
            rows = rows[rows["epsilon"] == HEADLINE_EPSILON]
        if rows["split"].eq("overall").any():
            rows = rows[rows["split"].str.startswith("overall")]
        rows = rows[rows["metric"].isin(metrics)] if rows["metric"].isin(metrics).any() else rows[:1]
        chosen += [int(measure) for measure in rows["measure"].unique()]
    return chosen


def _with_distinct_names(frame: pd.DataFrame) -> pd.DataFrame:
    """Add the name of the run or file to models that share a name, a measure and a seed. For a model with several
    seeds it is the run's name without the seed, if that makes the names different."""
    run = frame["weights"].map(_run_of)
    setting = run.map(lambda path: path.with_name(SEED.sub("", path.name)) if path.name else path)
    keys = [frame[name] for name in ("measure", "model", "seed", "draw")]

    def models_of_several(by: list[pd.Series]) -> set[str]:
        twice = run.groupby(by, dropna=False).transform("nunique") > 1
        return set(frame.loc[twice, "model"])

    unclear = models_of_several([*keys, setting.map(str)])
    for model in models_of_several(keys):
        is_model = frame["model"] == model
        paths = setting if frame.loc[is_model, "seed"].nunique() > 1 and model not in unclear else run
        names = _short_names(paths[is_model].unique())
        frame.loc[is_model, "model"] = [f"{model} ({names[path]})" for path in paths[is_model]]
    return frame


def _run_of(weights: str) -> Path:
    """Return the run folder of a checkpoint, "runs/CLIP-s0" of "runs/CLIP-s0/checkpoints/best", else the path."""
    path = Path(weights)
    folders = [parent.parent for parent in path.parents if parent.name == "checkpoints"]
    return folders[0] if folders and folders[0].name and not path.suffix else path


def _short_names(runs: Iterable[Path]) -> dict[Path, str]:
    """Name each run by its last folder, and by as many parent folders as make all names different."""
    paths, length = list(runs), 1
    while len({path.parts[-length:] for path in paths}) < len(paths):
        length += 1
    return {path: "/".join(path.parts[-length:]) for path in paths}
