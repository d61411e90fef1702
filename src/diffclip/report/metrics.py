"""What metrics are called, how their numbers are written, and what chance would reach."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from diffclip.data.shifts import base_of, shift_name
from diffclip.evaluation.averages import (
    AVERAGE,
    DERIVED,
    DROP,
    MEAN_OF_ALL,
    MEAN_OF_SHIFTS,
    PANELS,
    SIX_TASKS,
)
from diffclip.evaluation.focus_names import is_share
from diffclip.evaluation.metrics import chance_at
from diffclip.evaluation.mmvp import CHANCE
from diffclip.evaluation.pope_names import POPE
from diffclip.evaluation.significance import ALPHA
from diffclip.report.compare import Comparison, Estimate, Measure, measure_of
from diffclip.report.focus_metrics import FOCUS, VERDICT, focus_name, is_merit, plain, uniform_level
from diffclip.report.pope_metrics import majority_level, pope_name, told_first
from diffclip.report.series import Result
from diffclip.report.sets import set_name, sets_of

VALIDATION_ORDER = ("image_retrieval_recall@5", "text_retrieval_recall@5")
HEADLINES = ("acc1", "image_retrieval_recall@5", "text_retrieval_recall@5", *VERDICT)
_NAMES = {
    "acc1": "top-1 accuracy",
    "acc5": "top-5 accuracy",
    "mean_per_class_recall": "mean per-class recall",
    "mean_per_pattern_accuracy": "mean over patterns",
    "pair_accuracy": "right pairs",
    "statement_accuracy": "right statements",
    "f1": "F1",
    "unclear_ratio": "unclear answers",
    MEAN_OF_SHIFTS: "mean of the shifts",
    MEAN_OF_ALL: "mean of base and shifts",
    DROP: "drop from base to shifts",
}
_OF_PAIRS = ("pair_accuracy", "mean_per_pattern_accuracy")
_BY_TASK = {"linear-probe": "linear probe", "few-shot": "few-shot"}
"""Tasks with metrics of the same names as zero-shot's."""
_DIRECTIONS = {"image": "text→image", "text": "image→text"}
_CLASSES = re.compile(r"\b(\d+) classes\b")
_RECALL = re.compile(r"(image|text)_retrieval_recall@(\d+)")


def metric_name(metric: str) -> str:
    """A metric's name for readers: "text→image R@5" for `image_retrieval_recall@5`."""
    found = _RECALL.fullmatch(metric)
    if found:
        return f"{_DIRECTIONS[found[1]]} R@{found[2]}"
    whole, _, pattern = metric.partition("/")
    name = _NAMES.get(whole) or focus_name(whole) or whole.replace("_", " ")
    return f"{name}: {pattern}" if pattern else name


def measure_name(measure: Measure) -> str:
    """What was measured, without where: "linear probing" for that average, "few-shot top-1 accuracy"."""
    if measure.task == SIX_TASKS:
        return measure.dataset if measure.metric == AVERAGE else f"{measure.dataset}, {measure.metric}"
    name = metric_name(measure.metric)
    if measure.task == POPE:
        return pope_name(measure, name)
    return f"{_BY_TASK[measure.task]} {name}" if measure.task in _BY_TASK else name


def place_of(measure: Measure) -> str | None:
    """On which set and split: "scenes (test)"; None for an average over several sets, which its own name tells."""
    sets = sets_of(measure) if measure.task == SIX_TASKS else [(measure.dataset, measure.split)]
    return f"{dataset_name(sets[0][0])} ({sets[0][1]})" if len(sets) == 1 else None


def dataset_name(dataset: str) -> str:
    """A set's name for readers, with its base where it is a shift: "ImageNet A", "CIFAR-10 noise 3"."""
    base = base_of(dataset)
    return set_name(dataset) if base is None else f"{set_name(base)} {shift_name(dataset)}"


def headline_measures(measures: Sequence[Measure]) -> list[Measure]:
    """The few measures that tell the story.

    The headline metrics of each task and set, or the first one where it has none of them. Where the averages over six
    tasks are fewer, these and the pairs of MMVP instead. Where a model looks is a story of its own, told here only
    if there is no other, and then by what is better or worse.
    """
    measures = [one for one in measures if one.task != FOCUS] or measures
    if not worth_averaging(measures):
        return _of_each_set(measures)
    pairs = [one for one in measures if one.metric in _OF_PAIRS]
    told = _averages(measures)
    for group in dict.fromkeys(one._replace(metric="") for one in pairs):
        own = [one for one in pairs if one._replace(metric="") == group]
        # of as many pairs a pattern both are one number, and outcomes of items are those of pairs
        told.append(min(own, key=lambda one: _OF_PAIRS.index(one.metric)))
    return told


def worth_averaging(measures: Sequence[Measure]) -> bool:
    """Whether the averages over six tasks are there, and fewer than what they stand for."""
    measures = [one for one in measures if one.task != FOCUS]
    return 0 < len(_averages(measures)) < len(_of_each_set(measures))


def chance_of(measure: Measure, results: Sequence[Result]) -> float | None:
    """What random answers reach in `measure`, or None where the records do not say.

    Retrieval: from the numbers of captions and pictures, which its two directions average over (captions
    spread evenly over pictures). Classification: from the number of classes, which the protocol names ("10
    classes"; few-shot's is that of an episode). MMVP: 25 % of the pairs, half of the statements. Focus: a uniform
    map. POPE: the more frequent answer, always given.
    """
    if _is_derived(measure):
        return None
    if measure.task == FOCUS:
        return uniform_level(measure)
    if measure.task == POPE:
        return majority_level(measure)
    found = _RECALL.fullmatch(measure.metric)
    if found:
        captions, pictures = (
            _count(measure, "image", found[2], results),
            _count(measure, "text", found[2], results),
        )
        return recall_chance(measure.metric, pictures or 0, captions or 0)
    if measure.metric == "statement_accuracy":
        return 0.5
    if measure.metric.partition("/")[0] in _OF_PAIRS:
        return CHANCE
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
    return "–" if value is None or math.isnan(value) else f"{100 * value:.1f} %".replace("-", "−")


def chance_text(chance: float | None) -> str:
    """A chance level as "0.5 %", of two significant digits, or a dash."""
    return "–" if chance is None else f"{100 * chance:.{2 if chance < 0.995 else 3}g} %"


def amount(metric: str, value: float | None) -> str:
    """A value of `metric`: "81.2 %", or as it is where it is no share, "1.43"; or a dash."""
    if is_share(metric) or value is None or math.isnan(value):
        return percentage(value)
    return plain(value, metric)


def level_text(measure: Measure, level: float | None) -> str:
    """What chance reaches in `measure`, or a uniform map has: "0.5 %", "64", or a dash."""
    return chance_text(level) if level is None or is_share(measure.metric) else f"{level:g}"


def level_name(measure: Measure) -> str:
    """What `chance_of` a measure is: "chance", or "uniform"."""
    return "uniform" if measure.task == FOCUS else "chance"


def points(estimate_: Estimate, metric: str = "") -> str:
    """A difference in `metric`, of shares in percentage points, with its interval, or its range for two seeds."""
    text = plain(estimate_.mean, metric, sign=True)
    if estimate_.low is None or estimate_.high is None:
        return text
    between = " to " if estimate_.n == 2 else ", "
    low, high = (plain(bound, metric, sign=True) for bound in (estimate_.low, estimate_.high))
    return f"{text} [{low}{between}{high}]"


def signed(fraction: float) -> str:
    """A difference in points with its sign: "+0.3", "−1.2", "0.0"."""
    return plain(fraction, "", sign=True)


def tested_points(one: Comparison) -> str:
    """A difference as `points` with its p, corrected where others are shown with it: "−1.4 [−2.4, −0.5], p 0.02"."""
    text = points(one.difference, one.measure.metric)
    return text + (f", {p_text(one.shown_p)}" if one.shown_p is not None else "")


def p_text(p: float) -> str:
    """A p of at most two digits: "p 0.34", "p 0.007", "p < 0.001"; one below 5 % is not rounded up to it."""
    if p < 0.001:
        return "p < 0.001"
    if 0.0495 <= p < ALPHA:
        return "p 0.049"
    return f"p {p:.{1 if p < 0.0095 else 2}g}"


def correction(comparisons: Sequence[Comparison], where: str = "") -> str | None:
    """How the p of these comparisons came about, as a sentence; None where none was tested."""
    tested = [one for one in comparisons if one.shown_p is not None]
    if not tested:
        return None
    tests = max(one.tests for one in tested)
    ways = {
        "items": "a paired test on the outcomes of the items",
        "intervals": "both intervals as if normal, where the outcomes of the items are not known",
        "seeds": "a paired t-test over seeds",
    }
    used = [text for basis, text in ways.items() if any(one.basis == basis for one in tested)]
    many = f"; corrected for {tests} comparisons{where} (Holm)" if tests > 1 else ""
    return f"p is from {' or '.join(used)}{many}."


def _is_derived(measure: Measure) -> bool:
    return measure.task in DERIVED


def _averages(measures: Sequence[Measure]) -> list[Measure]:
    own = [one for one in measures if one.task == SIX_TASKS]
    return sorted(own, key=lambda one: PANELS.index(one.dataset) if one.dataset in PANELS else len(PANELS))


def _of_each_set(measures: Sequence[Measure]) -> list[Measure]:
    chosen = []
    measures = [measure for measure in measures if not _is_derived(measure) and is_merit(measure)]
    measures = told_first(measures)
    for group in dict.fromkeys(measure._replace(metric="") for measure in measures):
        own = [measure for measure in measures if measure._replace(metric="") == group]
        chosen += [measure for measure in own if measure.metric in HEADLINES] or own[:1]
    return chosen


def _count(measure: Measure, direction: str, k: str, results: Sequence[Result]) -> int | None:
    other = measure._replace(metric=f"{direction}_retrieval_recall@{k}")
    return next((result.record.count for result in results if measure_of(result) == other), None)
