"""Result records as one table: measures, arms, seeds, and the names that people read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from diffclip.config import ABLATIONS, VARIANTS
from diffclip.errors import InputError
from diffclip.evaluation.averages import PANELS, headline_metric
from diffclip.evaluation.records import MEASURE, RESULTS_FILE, load_records
from diffclip.evaluation.statistics import MARGIN
from diffclip.study.runs import (
    RUNS_FILE,
    STUDY_FILE,
    curve_of,
    read_lines,
    read_study,
    read_timing,
    run_folders,
    saved_curves,
)

DATASETS = {
    "caltech101": "Caltech-101",
    "dtd": "DTD",
    "pets": "Pets",
    "flowers": "Flowers",
    "sun397": "SUN397",
    "fgvc_aircraft": "Aircraft",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "food101": "Food-101",
    "flickr30k": "Flickr30k",
    "flickr8k": "Flickr8k",
    "mscoco_captions": "COCO",
    "imagenet1k": "ImageNet",
    "imagenetv2": "ImageNet-V2",
    "imagenet-a": "ImageNet-A",
    "imagenet-r": "ImageNet-R",
    "imagenet_sketch": "ImageNet-Sketch",
    "oxford_pets3": "Oxford Pets (masks)",
    "mmvp": "MMVP-VLM",
    "scenes-mmvp": "scenes (pairs)",
    "sugarcrepe": "COCO val2017",
    "scenes-sugarcrepe": "scenes",
    "scenes-segmentation": "scenes",
    "coco_mini": "COCO (80 images)",
}
METRICS = {
    "acc1": "top-1",
    "acc5": "top-5",
    "mean_per_class_recall": "mean per class",
    "pair_accuracy": "right pairs",
    "mean_per_pattern_accuracy": "right pairs, mean over patterns",
    "statement_accuracy": "right statements",
    "group_match": "right matchings of a pair",
    "mean_of_shifts": "mean of the shifts",
    "mean_of_all": "mean of base and shifts",
    "drop": "drop from base to shifts",
    "score": "validation score",
    "mean_recall": "mean recall",
    "f1": "F1",
    "yes_ratio": "answers yes",
    "auroc": "area under ROC",
    "ap": "average precision",
    "inside": "share on the object",
    "inside_over_area": "lift on the object",
    "pointing": "pointing game",
    "deletion_auc": "deletion (lower is better)",
    "insertion_auc": "insertion",
    "class_token": "share of the class token",
    "top10": "share of the ten strongest patches",
    "background10": "share of the ten strongest background patches",
    "adversarial_accuracy": "accuracy under attack",
    "noise_accuracy": "accuracy under noise",
    "attack_success": "success of the attack",
    "local_lipschitz": "local Lipschitz estimate",
    "mean_iou": "mean IoU",
    "pixel_accuracy": "right pixels",
    "sink_ratio": "sink ratio",
    "sink_value_norm": "value norm at the sink",
    "high_norm_share": "share of high-norm tokens",
    "negative_weight": "share of negative weight",
    "gradient_cosine": "cosine of the gradients of A1 and A2",
    "lambda": "λ",
    "map_correlation": "correlation of A1 and A2",
    "step_seconds": "seconds a step",
    "peak_memory": "peak memory (bytes)",
}
MAPS = {"A1_minus_A2": "A1 − A2"}
_TASKS = {
    "linear-probe": "linear probe",
    "mmvp": "minimal pairs",
    "pope": "POPE",
    "pope-blind": "blind POPE",
    "sugarcrepe": "SugarCrepe",
    "out-of-domain": "out of domain",
}
_BARE = ("mechanics", "retrieval", "robustness", "six-tasks", "validation", "training", "cost")
"""Tasks that the metric's own label names already."""

HEADLINES = {
    "six-tasks": ("average",),
    "retrieval": ("image_retrieval_recall@5", "text_retrieval_recall@5"),
    "zero-shot": ("acc1",),
    "few-shot": ("acc1",),
    "mmvp": ("pair_accuracy",),
    "focus": ("auroc",),
    "faithfulness": ("insertion_auc",),
    "mechanics": ("sink_ratio",),
    "robustness": ("adversarial_accuracy",),
    "segmentation": ("mean_iou",),
    "sugarcrepe": ("average",),
    "pope": ("accuracy",),
    "pope-blind": ("accuracy",),
    "out-of-domain": ("mean_of_shifts",),
    "validation": ("score",),
}
"""The metrics of a task that the first table shows; of other tasks the first that is recorded."""
_MAPS_FIRST = {
    "focus": ("own minus other text", "relevance", "relevance, norm in the graph"),
    "faithfulness": ("relevance",),
    "segmentation": ("attention",),
    "mechanics": ("attention",),
}
"""The map that stands for a task: the first that was measured."""
HEADLINE_EPSILON = 1.0
"""The size of an attack, in 255ths, that the first table shows."""
_ASIDE = ("training", "cost")
_AVERAGED = ("linear-probe", "few-shot", "retrieval", "retrieval", "zero-shot", "out-of-domain")
"""The tasks whose sets the averages of `PANELS` are over."""
_NOT_SHARES = (
    *("inside_over_area", "effective_patches", "lambda", "local_lipschitz", "map_correlation"),
    *("gradient_cosine", "sink_ratio", "sink_value_norm"),
)
_LOWER_IS_BETTER = ("attack_success", "background10", "deletion_auc", "drop", "local_lipschitz")
_DESCRIBING = (
    *("class_token", "effective_patches", "entropy", "map_correlation", "top10", "yes_ratio"),
    *("gradient_cosine", "high_norm_share", "negative_weight", "sink_ratio", "sink_value_norm"),
)
"""Measures that say what a model does: neither end is better."""
_ORDER = (*VARIANTS, *ABLATIONS)


@dataclass(frozen=True)
class Results:
    """Everything that a report shows.

    Attributes:
        records: a row a record of the last checkpoint, with `measure` (a number a measure) added. Models that share
            a name have their weights in it.
        curves: a mapping a run as in `curves.jsonl`.
        runs: a row a run of a study; empty without one.
        study: the resolved study, None without one.
        timing: step times of the arms in turns, by arm.
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
    def margin(self) -> float:
        """The margin of equivalence that the study declares, else one point."""
        return float((self.study or {}).get("margin", MARGIN))

    @property
    def seeds(self) -> int:
        """The largest number of training seeds of a model."""
        return 0 if self.records.empty else int(self.records.groupby("model")["seed"].nunique().max())


def read_results(paths: Sequence[str | Path]) -> Results:
    """Read records, and beside them curves, runs and the study, from files and folders.

    Raises:
        InputError: a path does not exist, a file cannot be read, or there is neither a record nor a step.
    """
    sources = [Path(path) for path in paths]
    for path in sources:
        if not path.exists():
            raise InputError(
                f"{path} does not exist: give run folders, result files (.jsonl) or folders of either"
            )
    folders = [path for path in sources if path.is_dir()]
    curves = saved_curves(folders) + [curve_of(run) for folder in folders for run in run_folders(folder)]
    records = load_records(
        [path for path in sources if path.is_file() or next(path.rglob(RESULTS_FILE), None)]
    )
    if records.empty and not curves:
        named = ", ".join(map(str, sources))
        raise InputError(
            f"{named} has no records, and no run there has made its first step: train or evaluate first"
        )
    found = results_of(records, curves)
    study = next((folder for folder in folders if (folder / STUDY_FILE).is_file()), None)
    if study is None:
        return found
    runs = pd.DataFrame(read_lines(study / RUNS_FILE))
    return replace(found, runs=runs, study=read_study(study), timing=read_timing(study))


def results_of(records: pd.DataFrame, curves: Sequence[dict[str, Any]] = ()) -> Results:
    """Sort a table of records, as `load_records` returns it, into `Results`."""
    frame = records[records["value"].notna()].copy()
    frame["measure"] = frame.groupby(list(MEASURE), dropna=False, sort=False).ngroup()
    frame = _told_apart(frame)
    steps = frame.groupby(["measure", "model", "seed"], dropna=False)["steps"]
    frame = frame[frame["steps"].isna() | (frame["steps"] == steps.transform("max"))]
    frame = frame.drop_duplicates(["measure", "model", "seed", "draw"], keep="last")
    return Results(frame.reset_index(drop=True), list(curves))


def values_of(records: pd.DataFrame) -> pd.DataFrame:
    """Average draws: a row a (measure, model, seed) with value, low, high, count, chance."""
    frame = records.assign(seed=records["seed"].fillna(-1).astype(int))
    return (
        frame.groupby(["measure", "model", "seed"], sort=False)
        .agg({"value": "mean", "low": "mean", "high": "mean", "count": "first", "chance": "first"})
        .reset_index()
    )


def measures_of(records: pd.DataFrame) -> pd.DataFrame:
    """List the measures, indexed by `measure`: their fields and `label`, in the order of the records."""
    columns = [*MEASURE, "chance"]
    found = records.groupby("measure", sort=False)[columns].first()
    # `first` skips missing values, which is right for chance, and the other fields are the same throughout
    found = found.assign(label=[measure_label(row) for row in found.to_dict("records")])
    for name, words in (("split", ", {}"), ("templates", ", {:.0f} templates")):
        several = found.groupby("label")[name].transform(lambda own: own.nunique(dropna=False)) > 1
        unclear = several & found[name].notna()
        found["label"] = found["label"].mask(
            unclear, found["label"] + found[name].map(words.format, "ignore")
        )
    return found


def headlines(records: pd.DataFrame) -> list[int]:
    """Choose the measures of the first table and of the forest plot: every task that was measured has one.

    Where every model has the same average over sets, it stands for them. Corrupted images are shown where there are no
    others.
    """
    frame = records[records["layer"].isna() & records["head"].isna() & ~records["task"].isin(_ASIDE)]
    frame = frame[frame["corruption"].isna() | frame["corruption"].notna().all()]
    averages = frame[(frame["task"] == "six-tasks") & (frame["metric"] == "average")]
    chosen, averaged = [], ["six-tasks"]
    for panel, task in zip(PANELS, _AVERAGED, strict=True):
        models = averages[averages["dataset"] == panel].groupby("measure")["model"].agg(set)
        measured = set(frame.loc[frame["task"] == task, "model"])
        # models with averages over other sets share at most single sets
        if len(models) and measured <= models[best := models.map(len).idxmax()]:
            chosen.append(int(best))
            averaged.append(task)
    rest = frame[~frame["task"].isin(averaged)]
    # a baseline is no page's headline, whichever file came first
    rest = rest.sort_values("task", key=lambda tasks: tasks == "pope-blind", kind="stable")
    for (task, dataset), own in rest.groupby(["task", "dataset"], sort=False):
        wanted = list(HEADLINES.get(str(task), own["metric"].iloc[:1]))
        if task == "linear-probe":
            wanted = [headline_metric(str(dataset))]
        maps = [name for name in _MAPS_FIRST.get(str(task), ()) if own["map"].eq(name).any()]
        own = own[own["map"] == maps[0]] if maps else own
        if own["epsilon"].eq(HEADLINE_EPSILON).any():
            own = own[own["epsilon"] == HEADLINE_EPSILON]
        if own["split"].eq("overall").any():
            own = own[own["split"].str.startswith("overall")]
        own = own[own["metric"].isin(wanted)] if own["metric"].isin(wanted).any() else own[:1]
        chosen += [int(measure) for measure in own["measure"].unique()]
    return chosen


def in_order(models: Iterable[str]) -> list[str]:
    """Sort models: CLIP, DiffCLIP, its variants, ablations, then others as they come."""
    names = list(models)
    ranks = {name: position for position, name in enumerate(_ORDER)}
    return sorted(
        names, key=lambda name: (ranks.get(variant_of(name), len(ranks)), len(name), names.index(name))
    )


def variant_of(model: str) -> str:
    """Find the variant or ablation in a model's name: "DiffCLIP-vision" of "DiffCLIP-vision-ViT-B-16"."""
    fitting = [name for name in _ORDER if model == name or model.startswith((f"{name}-", f"{name} "))]
    return max(fitting, key=len, default=model)


def metric_label(row: Mapping[str, Any]) -> str:
    """Name a record's task and metric for people, without the set: "zero-shot top-1", "text→image R@5"."""
    metric = str(row["metric"])
    base, _, pattern = metric.partition("/")
    kind, found, k = base.partition("_retrieval_recall@")
    if found:
        name = f"{'text→image' if kind == 'image' else 'image→text'} R@{k}"
    else:
        name = METRICS.get(base, base.replace("_", " "))
    task = str(row["task"])
    if task == "six-tasks":
        name = "" if base == "average" else name
    elif task == "focus":
        name = f"focus: {name}"
    elif task not in _BARE:
        name = f"{_TASKS.get(task, task)} {name}"
    if _has(row, "epsilon"):
        name = f"{name}, ε={row['epsilon']:g}/255"
    return f"{name}: {pattern}" if pattern else name


def measure_label(row: Mapping[str, Any]) -> str:
    """Name a record's measure for people: "zero-shot top-1, CIFAR-10", "Out of domain"."""
    if row["task"] == "six-tasks":
        return ", ".join(filter(None, (capitalized(row["dataset"]), metric_label(row))))
    parts = [metric_label(row)]
    if row["task"] not in _ASIDE:
        parts.append(DATASETS.get(row["dataset"], str(row["dataset"])))
        if _has(row, "corruption"):
            parts.append(f"{row['corruption']} {row['severity']}")
        if str(row["task"]).startswith("pope") and row["split"] != "overall":
            parts.append(str(row["split"]))
    if _has(row, "map"):
        parts.append(MAPS.get(row["map"], str(row["map"])))
    parts += [f"{name} {int(row[name])}" for name in ("layer", "head") if _has(row, name)]
    return ", ".join(parts)


def capitalized(name: str) -> str:
    """Capitalize the first letter, and leave all others as they are."""
    return name[:1].upper() + name[1:]


def is_share(row: Mapping[str, Any]) -> bool:
    """Tell whether a metric is a share, which is shown in percent."""
    return row["task"] != "cost" and row["metric"] not in _NOT_SHARES


def direction(metric: str) -> int:
    """Return 1 if a larger value of a metric is better, −1 if a smaller one is, 0 if neither is."""
    return 0 if metric in _DESCRIBING else -1 if metric in _LOWER_IS_BETTER else 1


def percent(value: float | None, share: bool = True, sign: bool = False) -> str:
    """Write a fraction as "48.3" (percent), or a number that is no share as it is; a dash for None."""
    if value is None or pd.isna(value):
        return "–"
    text = f"{100 * value if share else value:{'+' if sign else ''}.{1 if share else 2}f}"
    return text.lstrip("+-") if float(text) == 0 else text.replace("-", "−")


def interval(low: float | None, high: float | None, share: bool = True, sign: bool = False) -> str:
    """Write an interval as "46.1 to 50.5"; empty where a bound is missing."""
    if low is None or high is None or pd.isna(low) or pd.isna(high):
        return ""
    return f"{percent(low, share, sign)} to {percent(high, share, sign)}"


def p_text(p: float | None) -> str:
    """Write a p-value with two digits: "0.34", "0.007", "< 0.001"; a value below 0.05 is never rounded up to it."""
    if p is None or pd.isna(p):
        return "–"
    if p < 0.001:
        return "< 0.001"
    return "0.049" if 0.0495 <= p < 0.05 else f"{p:.{1 if p < 0.0095 else 2}g}"


def _has(row: Mapping[str, Any], name: str) -> bool:
    value = row.get(name)
    return value is not None and not pd.isna(value)


def _told_apart(frame: pd.DataFrame) -> pd.DataFrame:
    """Add the name of their run or file to models that share a name, a measure and a seed."""
    run = frame["weights"].map(run_of)
    keys = [frame[name] for name in ("measure", "model", "seed", "draw")]
    twice = run.groupby(keys, dropna=False).transform("nunique") > 1
    shared = frame["model"].isin(frame.loc[twice, "model"].unique())
    for model, own in run[shared].groupby(frame["model"]):
        names = _short(own.unique())
        frame.loc[own.index, "model"] = [f"{model} ({names[one]})" for one in own]
    return frame


def run_of(weights: str) -> Path:
    """Return the run's folder of weights, "runs/CLIP-s0" of "runs/CLIP-s0/checkpoints/best"; a file is itself."""
    path = Path(weights)
    folders = [parent.parent for parent in path.parents if parent.name == "checkpoints"]
    return folders[0] if folders and folders[0].name and not path.suffix else path


def _short(runs: Iterable[Path]) -> dict[Path, str]:
    """Name each run by its last folder, and by as many before it as tell all of them apart."""
    paths, length = list(runs), 1
    while len({path.parts[-length:] for path in paths}) < len(paths):
        length += 1
    return {path: "/".join(path.parts[-length:]) for path in paths}
