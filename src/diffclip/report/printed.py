"""The paper's printed numbers, and its gains by set and metric."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from diffclip.evaluation.averages import AVERAGE, PANELS, SIX_TASKS, headline_metric
from diffclip.report.names import percent, variant_in_name

PRINTED = {
    "linear probing": "linear-probe",
    "few-shot": "few-shot",
    "image retrieval": "image-retrieval",
    "text retrieval": "text-retrieval",
    "zero-shot": "zero-shot",
}
"""By panel of the figures: its printed table."""
_SHIFTS = ("imagenetv2", "imagenet-a", "imagenet-r", "imagenet_sketch")
Key = tuple[Any, ...]


@cache
def paper_numbers() -> dict[str, Any]:
    """Read the paper's numbers, with the place of each (`paper_numbers.json`).

    `tables` has the rows of each table by its name. The `values`, `sds` and `gains` of a row are by set, with an
    "average" (the value of the only set if no average is printed).
    """
    text = files("diffclip.report").joinpath("paper_numbers.json").read_text("utf-8")
    paper: dict[str, Any] = json.loads(text)
    for table in paper["tables"]:
        for row in table["rows"]:
            for key, average in (("values", "average"), ("sds", "average_sd"), ("gains", "average_gain")):
                if numbers := row.get(key, []):
                    numbers = [*numbers, row.get(average, numbers[0])]
                row[key] = dict(zip([*table["sets"], "average"], numbers, strict=False))
    paper["tables"] = {table["name"]: table["rows"] for table in paper["tables"]}
    return paper


def paper_key(row: Mapping[str, Any]) -> Key:
    """Return the key of `paper_gains` that a verdict's row has: task, set, metric, sets of an average, arms."""
    is_average = row["task"] == SIX_TASKS
    sets = frozenset(row["of"]) if is_average and isinstance(row["of"], tuple) else None
    if not is_average and (row["split"] != "test" or isinstance(row["corruption"], str)):
        return ()
    arms = variant_in_name(row["arm"]), variant_in_name(row["against"])
    return (row["task"], row["dataset"], row["metric"], sets, *arms)


@cache
def paper_gains() -> dict[Key, dict[str, float]]:
    """Collect the paper's gains in points: key of a measure and two models → pretraining → gain.

    The gain of an average has the sets that it is over, so that it never stands beside an average over others.
    """
    gains: dict[Key, dict[str, float]] = {}
    sets_of = {"out of domain": frozenset(_SHIFTS)}
    for panel, name in PRINTED.items():
        task, metric = PANELS[panel]
        for row in paper_numbers()["tables"][name]:
            sets_of[panel] = frozenset(row["values"].keys() - {"average"})
            for dataset, gain in row["gains"].items():
                if dataset == "average":
                    key: Key = (SIX_TASKS, panel, AVERAGE, sets_of[panel], row["model"], "CLIP")
                else:
                    key = (task, dataset, metric or headline_metric(dataset), None, row["model"], "CLIP")
                gains.setdefault(key, {})[row["pretraining"]] = gain
    for statement in paper_numbers()["statements"]:
        panel, arms = statement["panel"], (statement["model"], statement["baseline"])
        key = (SIX_TASKS, panel, AVERAGE, sets_of[panel], *arms)
        gains.setdefault(key, {}).setdefault(statement["pretraining"], statement["gain"])
    return gains


def format_gain(gain: Mapping[str, float]) -> str:
    """Write a gain as "CC3M +1.0, CC12M +0.3"."""
    return ", ".join(f"{corpus} {percent(points / 100, sign=True)}" for corpus, points in gain.items())
