"""What metrics are called, how their numbers are written, and what chance would reach."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from diffclip.evaluation.metrics import chance_at
from diffclip.report.compare import Estimate, Measure, measure_of
from diffclip.report.series import Result

VALIDATION_ORDER = ("image_retrieval_recall@5", "text_retrieval_recall@5")
HEADLINES = ("acc1", "image_retrieval_recall@5", "text_retrieval_recall@5")
_NAMES = {
    "acc1": "top-1 accuracy",
    "acc5": "top-5 accuracy",
    "mean_per_class_recall": "mean per-class recall",
}
_DIRECTIONS = {"image": "text→image", "text": "image→text"}
_CLASSES = re.compile(r"\b(\d+) classes\b")
_RECALL = re.compile(r"(image|text)_retrieval_recall@(\d+)")


def metric_name(metric: str) -> str:
    """A metric's name for readers: "text→image R@5" for `image_retrieval_recall@5`."""
    found = _RECALL.fullmatch(metric)
    if found:
        return f"{_DIRECTIONS[found[1]]} R@{found[2]}"
    return _NAMES.get(metric, metric.replace("_", " "))


def headline_measures(measures: Sequence[Measure]) -> list[Measure]:
    """The few measures that tell the story: the headline metrics of each task, or its first one."""
    chosen = []
    for group in dict.fromkeys(measure._replace(metric="") for measure in measures):
        own = [measure for measure in measures if measure._replace(metric="") == group]
        chosen += [measure for measure in own if measure.metric in HEADLINES] or own[:1]
    return chosen


def chance_of(measure: Measure, results: Sequence[Result]) -> float | None:
    """What random answers reach in `measure`, or None where the records do not say.

    Retrieval: from the numbers of captions and pictures, which its two directions average over (captions
    spread evenly over pictures). Classification: from the number of classes, which the protocol names ("10
    classes").
    """
    found = _RECALL.fullmatch(measure.metric)
    if found:
        captions, pictures = (
            _count(measure, "image", found[2], results),
            _count(measure, "text", found[2], results),
        )
        return recall_chance(measure.metric, pictures or 0, captions or 0)
    classes = _CLASSES.search(measure.protocol)
    tops = {"acc1": 1, "acc5": 5, "mean_per_class_recall": 1}
    if not classes or measure.metric not in tops:
        return None
    return chance_at(tops[measure.metric], int(classes[1]))


def recall_chance(metric: str, pictures: int, captions: int) -> float | None:
    """What a random order reaches in a recall, captions spread evenly over pictures; None if it is none."""
    found = _RECALL.fullmatch(metric)
    if not found or not 0 < pictures <= captions:
        return None
    if found[1] == "image":
        return chance_at(int(found[2]), pictures)
    return chance_at(int(found[2]), captions, round(captions / pictures))


def percentage(value: float | None) -> str:
    """A fraction as "81.2 %", or a dash."""
    return "–" if value is None or math.isnan(value) else f"{100 * value:.1f} %"


def chance_text(chance: float | None) -> str:
    """A chance level as "0.5 %", of two significant digits, or a dash."""
    return "–" if chance is None else f"{100 * chance:.2g} %"


def points(estimate_: Estimate) -> str:
    """A difference in percentage points with its interval, or its range for two seeds."""
    text = f"{100 * estimate_.mean:+.1f}"
    if estimate_.low is None or estimate_.high is None:
        return text.replace("-", "−")
    between = " to " if estimate_.n == 2 else ", "
    return f"{text} [{100 * estimate_.low:+.1f}{between}{100 * estimate_.high:+.1f}]".replace("-", "−")


def _count(measure: Measure, direction: str, k: str, results: Sequence[Result]) -> int | None:
    other = measure._replace(metric=f"{direction}_retrieval_recall@{k}")
    return next((result.record.count for result in results if measure_of(result) == other), None)
