"""The paper's printed gains, by set and metric."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from diffclip.evaluation.averages import AVERAGE, PANELS, SIX_TASKS, headline_metric
from diffclip.report.labels import percent, variant_in_name

_SHIFTS = ("imagenetv2", "imagenet-a", "imagenet-r", "imagenet_sketch")
Key = tuple[Any, ...]


def paper_key(row: Mapping[str, Any]) -> Key:
    """Return the key of `paper_gains` that a verdict's row has: task, set, metric, sets of an average, arms."""
    is_average = row["task"] == SIX_TASKS
    sets = frozenset(row["of"]) if is_average and isinstance(row["of"], tuple) else None
    if not is_average and row["split"] != "test":
        return ()
    arms = variant_in_name(row["arm"]), variant_in_name(row["against"])
    return (row["task"], row["dataset"], row["metric"], sets, *arms)


@cache
def paper_gains() -> dict[Key, dict[str, float]]:
    """Collect the paper's gains in points (`paper_gains.json`): key of a measure and two models → pretraining → gain.

    The gain of an average has the sets that it is over, so that it never stands beside an average over others.
    """
    paper = json.loads(files("diffclip.report").joinpath("paper_gains.json").read_text("utf-8"))
    gains: dict[Key, dict[str, float]] = {}
    sets_of = {"out of domain": frozenset(_SHIFTS)}
    for panel, table in paper["tables"].items():
        task, metric = PANELS[panel]
        sets_of[panel] = frozenset(table["sets"])
        for pretraining, values in table["gains"].items():
            for dataset, gain in zip(table["sets"], values, strict=False):
                key: Key = (task, dataset, metric or headline_metric(dataset), None, "DiffCLIP", "CLIP")
                gains.setdefault(key, {})[pretraining] = gain
            # the last value is the average, except of a single set
            key = (SIX_TASKS, panel, AVERAGE, sets_of[panel], "DiffCLIP", "CLIP")
            gains.setdefault(key, {})[pretraining] = values[-1]
    for statement in paper["statements"]:
        panel, arms = statement["panel"], (statement["model"], statement["baseline"])
        key = (SIX_TASKS, panel, AVERAGE, sets_of[panel], *arms)
        gains.setdefault(key, {}).setdefault(statement["pretraining"], statement["gain"])
    return gains


def format_gain(gain: Mapping[str, float]) -> str:
    """Write a gain as "CC3M +1.0, CC12M +0.3"."""
    return ", ".join(f"{corpus} {percent(points / 100, sign=True)}" for corpus, points in gain.items())
