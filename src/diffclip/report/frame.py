"""Read result records into one table by measure, model and seed, and test them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from diffclip.errors import InputError, unknown_name
from diffclip.evaluation.averages import AVERAGE, PANELS, SIX_TASKS, headline_metrics
from diffclip.evaluation.family import Contrast, Endpoint, Endpoints, Family
from diffclip.evaluation.records import load_records, record_files
from diffclip.evaluation.verdicts import IDENTITY, SPEC_FILE, compute_verdicts, measure_key
from diffclip.names import HEADLINE_EPSILON
from diffclip.report.labels import ASIDE, in_order, is_share, measure_label, variant_in_name
from diffclip.study.results import RUNS_FILE, read_spec, read_timing, saved_curves
from diffclip.training.run_folder import SEED, curve_of, read_lines, run_folders

BASELINE = "CLIP"


@dataclass(frozen=True)
class Results:
    """Everything that a report shows.

    Attributes:
        records: one row per record of the last checkpoint, with `measure` (one number per measure) added. Models that
            share a name have their run or file added to it, in brackets.
        verdicts: the rows of `compute_verdicts`, with `measure` and `label` added: of a study the declared family, of
            loose records a family per contrast with the headline measures of its two models.
        curves: one mapping per run as in `curves.jsonl`.
        runs: one row per run of a study; empty without one.
        spec: the study or the declared family in `folder`; None of loose records.
        timing: step times by arm, measured while the arms took turns; empty without such a measurement.
    """

    records: pd.DataFrame
    verdicts: pd.DataFrame = field(default_factory=pd.DataFrame)
    curves: list[dict[str, Any]] = field(default_factory=list)
    runs: pd.DataFrame = field(default_factory=pd.DataFrame)
    spec: Family | None = None
    folder: Path | None = None
    timing: dict[str, Any] = field(default_factory=dict)

    @property
    def models(self) -> list[str]:
        """The models in the order of figures: CLIP first."""
        names = [*self.records["model"], *(curve["arm"] for curve in self.curves)]
        return in_order(dict.fromkeys(names))

    def costs(self, metric: str) -> dict[str, float]:
        """Return a cost by model ("parameters", "step_seconds"), the median over its runs."""
        rows = self.records[(self.records["task"] == "cost") & (self.records["metric"] == metric)]
        return dict(rows.groupby("model")["value"].median())

    @property
    def has_several_seeds(self) -> bool:
        """Tell whether a model has several training seeds."""
        return len(self.records) > 0 and bool((self.records.groupby("model")["seed"].nunique() > 1).any())

    @property
    def missing(self) -> int:
        """The number of runs that the spec plans and that have not ended; 0 if no runs are listed."""
        return _count_missing(self.spec, self.runs)

    @property
    def primary(self) -> pd.Series | None:
        """The verdict of the study's primary endpoint."""
        rows = self.verdicts[self.verdicts["primary"]] if len(self.verdicts) else self.verdicts
        return rows.iloc[0] if len(rows) else None


def read_results(paths: Sequence[str | Path], against: str | None = None) -> Results:
    """Read records from files and folders, and from folders also curves, runs and the study, and test them.

    Args:
        against: of loose records the baseline of every model.

    Raises:
        InputError: a path does not exist, a file cannot be read, there is neither a record nor a step, there are two
            studies, or no model is called `against`.
    """
    sources = [Path(path) for path in paths]
    folders = [path for path in sources if path.is_dir()]
    studies = sorted({file.parent for folder in folders for file in folder.rglob(SPEC_FILE)})
    if len(studies) > 1:
        raise InputError(f"{studies[0]} and {studies[1]} are two studies: give one of them")
    curves = saved_curves(folders) + [curve_of(run) for folder in folders for run in run_folders(folder)]
    # folders without results have runs that were not evaluated
    evaluated = [path for path in sources if record_files(path)]
    records = load_records(evaluated)
    if records.empty and not curves:
        names = ", ".join(map(str, sources))
        raise InputError(
            f"{names} has no records, and no run there has made its first step: train or evaluate first"
        )
    if not studies:
        return results_of(records, curves, against)
    folder = studies[0]
    if against is not None:
        raise InputError(f"--against {against}: {folder / SPEC_FILE} declares the contrasts: change it there")
    spec, runs, frame = read_spec(folder), pd.DataFrame(read_lines(folder / RUNS_FILE)), _prepare(records)
    primary, secondary, contrasts = spec.endpoints.primary, spec.endpoints.secondary, spec.contrasts
    if primary and primary.study and frame["study"].isna().all():
        primary = None  # an endpoint of several studies, and this is one
    if secondary is None:
        secondary = tuple(_endpoints(frame, headlines(frame)))
    if not spec.all_contrasts:
        contrasts = loose_contrasts(frame["model"].unique())
    endpoints = Endpoints(primary=primary, secondary=secondary)
    spec = spec.model_copy(update={"endpoints": endpoints, "contrasts": contrasts})
    verdicts = compute_verdicts(frame, spec, finished=not _count_missing(spec, runs))
    facts = {"runs": runs, "spec": spec, "folder": folder, "timing": read_timing(folder)}
    return Results(frame, _with_labels(verdicts, frame), curves, **facts)


def results_of(
    records: pd.DataFrame, curves: Sequence[dict[str, Any]] = (), against: str | None = None
) -> Results:
    """Make `Results` from a table of loose records, as `load_records` returns it: a family per contrast."""
    frame = _prepare(records)
    contrasts = loose_contrasts(frame["model"].unique(), against)
    if not contrasts:
        return Results(frame, curves=list(curves))
    places, parts = dict[int, int](), []
    for contrast in contrasts:
        pair = frame[frame["model"].isin(contrast)]  # without what a third model lacks or has
        measures = headlines(pair)
        endpoints = Endpoints(secondary=tuple(_endpoints(pair, measures)))
        parts.append(compute_verdicts(pair, Family(endpoints=endpoints, contrasts=[contrast])))
        for measure in measures:
            places.setdefault(measure, len(places))
    verdicts = _with_labels(pd.concat(parts, ignore_index=True), frame)
    # by measure, so that the models of a measure stand together
    order = verdicts["measure"].map(places).sort_values(kind="stable").index
    return Results(frame, verdicts.loc[order].reset_index(drop=True), list(curves))


def loose_contrasts(models: Iterable[str], against: str | None = None) -> list[Contrast]:
    """Choose the contrasts of loose records: each model against the CLIP of its size; if no model has one, against the
    first model."""
    given = list(models)
    names = in_order(given)
    if against is not None and against not in names:
        raise unknown_name("model --against", against, names, None if names else "no model has records")
    if against is not None and len(names) == 1:
        raise InputError(f"--against {against}: no other model is measured, so there is nothing to compare")
    has_clip = any(variant_in_name(name) == BASELINE for name in names)
    first = against if has_clip or against else next(iter(given), None)
    pairs = [(name, first or clip_of(name, names)) for name in names]
    found = [(name, baseline) for name, baseline in pairs if baseline is not None and baseline != name]
    return found or [(name, names[0]) for name in names[1:]]


def clip_of(model: str, models: Sequence[str]) -> str | None:
    """Find the CLIP of a model's size among `models`, else the only CLIP; None if there is none.

    If there are several, or if a name contains a run or file in brackets, no other CLIP is known to be trained alike.
    """
    baselines = [name for name in models if variant_in_name(name) == BASELINE]
    own = model.replace(variant_in_name(model), BASELINE)
    alone = len(baselines) == 1 and not any(name.endswith(")") for name in (model, *baselines))
    return own if own in baselines else baselines[0] if alone else None


def _count_missing(spec: Family | None, runs: pd.DataFrame) -> int:
    if spec is None or runs.empty:
        return 0
    ended = runs[runs["group"] != "sweep"]
    return spec.count_missing(list(zip(ended["arm"], ended["seed"], strict=True)))


def _prepare(records: pd.DataFrame) -> pd.DataFrame:
    """Keep the last checkpoint of each run, number the measures and make the names of models distinct."""
    columns = list(dict.fromkeys([*records.columns, *IDENTITY, "fold"]))
    frame = records[records["value"].notna()].reindex(columns=columns)
    frame["measure"] = frame.groupby(list(IDENTITY), dropna=False, sort=False).ngroup()
    frame = _with_distinct_names(frame)
    run = ["measure", "model", "seed", "fold"]
    steps = frame.groupby(run, dropna=False)["steps"]
    frame = frame[frame["steps"].isna() | (frame["steps"] == steps.transform("max"))]
    return frame.drop_duplicates([*run, "draw"], keep="last").reset_index(drop=True)


def _endpoints(frame: pd.DataFrame, measures: Sequence[int]) -> list[Endpoint]:
    """Make endpoints of measures, without a margin."""
    fields = frame.drop_duplicates("measure").set_index("measure")
    keys = [measure_key(fields.loc[measure]) for measure in measures]
    return [Endpoint(**dict(zip(IDENTITY, key, strict=True))) for key in keys]


def _with_labels(verdicts: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """Add the number and the label of each row's measure; −1 for a measure that is derived from several studies."""
    fields = measures_of(frame)
    numbers = {measure_key(row): measure for measure, row in fields.to_dict("index").items()}
    rows = verdicts.to_dict("records")
    found = [numbers.get(measure_key(row), -1) for row in rows]
    names = fields["label"].to_dict()
    labels = [names.get(measure) or _own_label(row) for measure, row in zip(found, rows, strict=True)]
    return verdicts.assign(measure=found, label=labels, share=[is_share(row) for row in rows])


def _own_label(row: dict[str, Any]) -> str:
    """Name a measure that has no records of its own: "mean recall, Flickr8k, k16 − k0"."""
    return measure_label(row) + (f", {row['study']}".replace(" - ", " − ") if pd.notna(row["study"]) else "")


def values_of(records: pd.DataFrame) -> pd.DataFrame:
    """Average draws: one row per (measure, model, seed, fold) with value, low, high, count, chance. Unknown seeds and
    folds are −1."""
    runs = {name: records[name].fillna(-1).astype(int) for name in ("seed", "fold")}
    return (
        records.assign(**runs)
        .groupby(["measure", "model", "seed", "fold"], sort=False)
        .agg({"value": "mean", "low": "mean", "high": "mean", "count": "first", "chance": "first"})
        .reset_index()
    )


def measures_of(records: pd.DataFrame) -> pd.DataFrame:
    """Make a table of the measures, indexed by `measure`: their fields and `label`, in the order of the records."""
    # `first` skips missing values, which is right for chance; the other fields are equal within a measure
    measures = records.groupby("measure", sort=False)[[*IDENTITY, "chance"]].first()
    measures = measures.assign(label=[measure_label(row) for row in measures.to_dict("records")])
    for name, words in (("split", ", {}"), ("templates", ", {:.0f} templates"), ("study", ", {}")):
        several = measures.groupby("label")[name].transform(lambda own: own.nunique(dropna=False)) > 1
        endings = measures[name].astype(object).map(words.format, "ignore").where(several).fillna("")
        measures["label"] = measures["label"] + endings
    return measures


def headlines(records: pd.DataFrame) -> list[int]:
    """Choose the measures of the first table and of the forest plot: at least one per measured task.

    If all models of a task have an average over the same sets, it replaces the single sets. Of several maps, the first
    recorded one is chosen.
    """
    frame = records[records["layer"].isna() & records["head"].isna() & ~records["task"].isin(ASIDE)]
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
        metrics = headline_metrics(str(task), str(dataset)) or (rows["metric"].iloc[0],)
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
    setting = run.map(lambda path: path.parent / SEED.sub("", path.name))
    keys = [frame[name] for name in ("measure", "model", "seed", "draw")]

    def models_of_several(by: list[pd.Series]) -> set[str]:
        twice = run.groupby(by, dropna=False).transform("nunique") > 1
        return set(frame.loc[twice, "model"])

    unclear = models_of_several([*keys, setting.map(str)])
    for model in models_of_several(keys):
        is_model = frame["model"] == model
        without_seed = frame.loc[is_model, "seed"].nunique() > 1 and model not in unclear
        paths = (setting if without_seed else run)[is_model]
        length = 1  # as many parent folders as make all names different
        while len({path.parts[-length:] for path in paths}) < paths.nunique():
            length += 1
        frame.loc[is_model, "model"] = [f"{model} ({'/'.join(path.parts[-length:])})" for path in paths]
    return frame


def _run_of(weights: str) -> Path:
    """Return the run folder of a checkpoint, "runs/CLIP-s0" of "runs/CLIP-s0/checkpoints/best", else the path."""
    path = Path(weights)
    run = next((parent.parent for parent in path.parents if parent.name == "checkpoints"), path)
    return run if run.name and not path.suffix else path
