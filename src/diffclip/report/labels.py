"""Labels of models, sets and measures for people, and the format of numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from diffclip.config import VARIANTS
from diffclip.evaluation.averages import SIX_TASKS
from diffclip.names import DATASETS, MAPS, OTHER_TASKS, TASKS, metric_of

TASK_LABELS = TASKS | OTHER_TASKS
_BARE = ("mechanics", "retrieval", "robustness", SIX_TASKS, "validation", "training", "cost")
"""Tasks that a label does not name, because the metric's own label is clear."""
ASIDE = ("training", "cost")  # tasks without an evaluation set


def in_order(models: Iterable[str]) -> list[str]:
    """Sort models: CLIP, DiffCLIP, its variants, rivals, ablations, then others as they come."""
    names = list(models)
    ranks = {name: position for position, name in enumerate(VARIANTS)}
    return sorted(
        names, key=lambda name: (ranks.get(variant_in_name(name), len(ranks)), len(name), names.index(name))
    )


def variant_in_name(model: str) -> str:
    """Find the variant in a model's name, "DiffCLIP-vision" in "DiffCLIP-vision-ViT-B-16", also after other
    words ("flickr8k_cpu-DiffCLIP") or before a rate ("CLIP@5e-4"); return the whole name if there is none."""
    fitting = [name for name in VARIANTS if re.search(rf"(^|[-_ ]){re.escape(name)}($|[-_ @])", model)]
    return max(fitting, key=len, default=model)


def metric_label(row: Mapping[str, Any]) -> str:
    """Name a record's task and metric for people, without the set: "zero-shot top-1", "text→image R@5"."""
    base, _, pattern = str(row["metric"]).partition("/")
    kind, _, k = base.partition("_retrieval_recall@")
    arrow = {"image": "text→image", "text": "image→text"}.get(kind)
    name = f"{arrow} R@{k}" if arrow and k else metric_of(base).label
    task = str(row["task"])
    if task not in _BARE:
        name = f"{TASK_LABELS.get(task, task)}{':' * (task in ('focus', 'mmvp'))} {name}"
    if pd.notna(row.get("epsilon")):
        name = f"{name}, ε={row['epsilon']:g}/255"
    return f"{name}: {pattern}" if pattern else name


def measure_label(row: Mapping[str, Any]) -> str:
    """Name a record's measure for people: "zero-shot top-1, CIFAR-10", "few-shot accuracy, mean of 9 sets"."""
    if row["task"] == SIX_TASKS:
        panel = str(row["dataset"])
        accuracy = "top-1" if panel in ("zero-shot", "out of domain") else "accuracy"
        name = f"{panel} {'R@5' if 'retrieval' in panel else accuracy}"
        sets = [_set_name(one) for one in row["of"] or ()] if isinstance(row.get("of"), (tuple, list)) else []
        if len(sets) > 2:
            return f"{name}, mean of {len(sets)} sets"
        return f"{name}, {'mean of ' * (len(sets) > 1)}{' and '.join(sets)}" if sets else name
    parts = [metric_label(row)]
    if row["task"] not in ASIDE:
        parts.append(DATASETS.get(row["dataset"], str(row["dataset"])))
        if pd.notna(row.get("corruption")):
            parts.append(f"{row['corruption']} {row['severity']}")
        if str(row["task"]).startswith("pope") and row["split"] != "overall":
            parts.append(str(row["split"]))
    if pd.notna(row.get("map")):
        parts.append(MAPS.get(row["map"], str(row["map"])))
    parts += [f"{name} {int(row[name])}" for name in ("layer", "head") if pd.notna(row.get(name))]
    return ", ".join(parts)


def _set_name(name: str) -> str:
    """Name a set of an average, which may have a split: "flickr8k, val"."""
    dataset, comma, rest = name.partition(", ")
    return DATASETS.get(dataset, dataset) + (f" ({rest})" if comma else "")


def is_share(row: Mapping[str, Any]) -> bool:
    """Tell whether a metric is a share, which is shown in percent."""
    return metric_of(row["metric"].partition("/")[0]).bounds == (0.0, 1.0)


def percent(value: float | None, share: bool = True, sign: bool = False) -> str:
    """Write a fraction as "48.3" (percent), a number that is no share as "1.25", "0.0042" or "1,629,121", or None as a
    dash."""
    if value is None or pd.isna(value):
        return "–"
    size = abs(value)
    # a difference by rounding is 0
    form = ".1f" if share else ".0f" if size >= 1000 else ".2g" if 1e-9 < size < 0.1 else ".2f"
    text = f"{100 * value if share else value:{'+' if sign else ''},{form}}"
    return text.lstrip("+-") if not text.strip("+-0.") else text.replace("-", "−")


def interval(low: float | None, high: float | None, share: bool = True, sign: bool = False) -> str:
    """Write an interval as "46.1 to 50.5"; empty if a bound is missing."""
    if pd.isna(low) or pd.isna(high):
        return ""
    return f"{percent(low, share, sign)} to {percent(high, share, sign)}"


def p_text(p: float | None) -> str:
    """Write a p-value with two digits: "0.34", "0.007", "< 0.001"; a value below 0.05 is never rounded up to it."""
    if p is None or pd.isna(p):
        return "–"
    if p < 0.001:
        return "< 0.001"
    return "0.049" if 0.0495 <= p < 0.05 else f"{p:.{1 if p < 0.0095 else 2}g}"
