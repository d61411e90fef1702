"""The numbers of the task `focus`: what they are called, what a uniform map has, and which of them say good or bad."""

from __future__ import annotations

import re

from diffclip.evaluation.focus_names import headline, is_detail, is_share
from diffclip.report.compare import Measure

FOCUS = "focus"
DETECTORS = ("relevance_auroc", "relevance_ap", "relevance_inside_over_area", "relevance_pointing")
"""How well the text-conditioned relevance finds the object, in the order that figures have them."""
SHOWN = (
    *DETECTORS,
    "attention_entropy",
    "attention_inside_over_area",
    "attention_class_token",
    "attention_background10",
)
"""What a table shows that is not folded."""
BY_LAYER = (
    "relevance_auroc",
    "attention_inside_over_area",
    "attention_entropy",
    "attention_class_token",
)
"""What is shown, and tested, layer by layer."""
OF_PAIRS = ("inside_over_area", "entropy", "top10")
"""What is shown of A1 and A2 apart."""
OF_BOTH = ("A1_minus_A2_inside", "A1_minus_A2_entropy", "A1_minus_A2_top10", "A1_A2_correlation")
"""What is of A1 and A2 together."""
LAYERED = (*BY_LAYER, *(f"{one}_{name}" for name in OF_PAIRS for one in ("A1", "A2")), *OF_BOTH)
"""What a table shows layer by layer."""
BY_HEAD = ("relevance_auroc", "attention_inside_over_area")
"""What is shown head by head, the first that there is."""
VERDICT = ("relevance_auroc", "relevance_pointing")
"""What a page says first if nothing else was measured."""

MAPS = ("relevance", "rollout", "attention", "A1", "A2")
_MEASURES = {
    "auroc": "area under ROC",
    "ap": "average precision",
    "inside": "object share",
    "inside_over_area": "object lift",
    "pointing": "pointing game",
    "entropy": "entropy",
    "effective_patches": "effective patches",
    "class_token": "class-token share",
    "top10": "top-ten share",
    "background10": "top-ten background share",
}
MEANINGS = (
    "Area under ROC and average precision: of a map as a detector of the object's patches. Object share: how much of a "
    "map lies on the object; object lift: that ÷ the object's share of the picture. Pointing game: how much of the "
    "strongest patch is object. Entropy: 100 % is spread evenly over all patches; effective patches: over so many. "
    "Top-ten share: how much is on the ten strongest patches, or on the ten strongest of the background."
)
"""What the names of measures mean."""
_MERITS = ("auroc", "ap", "inside", "inside_over_area", "pointing")
_CORRELATION = "A1_A2_correlation"
_MINUS = "A1_minus_A2_"
_PATCHES = re.compile(r"\b(\d+)×(\d+) patches\b")
_UNIFORM = {"auroc": 0.5, "inside_over_area": 1.0, "entropy": 1.0}


def focus_name(metric: str) -> str | None:
    """A headline metric of focus for readers: "area under ROC of relevance"; None if it is of another task."""
    if metric == _CORRELATION:
        return "correlation of A1 with A2"
    if metric.startswith(_MINUS):
        return f"{measure_words(metric)}, A1 − A2"
    of, _, measure = metric.partition("_")
    return f"{_MEASURES[measure]} of {of}" if of in MAPS and measure in _MEASURES else None


def measure_words(metric: str) -> str:
    """What a metric of focus measures, without the map: "object lift"."""
    kind = metric.removeprefix(_MINUS) if metric.startswith(_MINUS) else metric.partition("_")[2]
    return _MEASURES.get(kind, kind)


def is_merit(measure: Measure) -> bool:
    """Whether more of it is better; of focus, only what compares a map with the object says so."""
    return measure.task != FOCUS or (
        not measure.metric.startswith(("A1_", "A2_"))
        and headline(measure.metric).partition("_")[2] in _MERITS
    )


def is_shown(metric: str) -> bool:
    """Whether a report shows a metric anywhere, of whatever task: of most measures it shows no layers and heads."""
    if not is_detail(metric):
        return True
    return headline(metric) in (BY_HEAD if " head " in metric else LAYERED)


def is_tested(metric: str) -> bool:
    """Whether models are compared in a metric: CLIP has no A1 and A2, and layers are compared in a few measures."""
    return (not is_detail(metric) and not metric.startswith(("A1_", "A2_"))) or headline(metric) in BY_LAYER


def uniform_level(measure: Measure) -> float | None:
    """What a map has that is equal everywhere; None where that depends on the pictures.

    Half of the area under ROC, the object's share of the picture, the highest entropy; with the number of patches,
    which the protocol tells ("8×8 patches"), their effective number and the share of the ten strongest.
    """
    name = headline(measure.metric)
    if name.startswith(_MINUS) or name == _CORRELATION:
        return None
    kind = name.partition("_")[2]
    if kind in _UNIFORM:
        return _UNIFORM[kind]
    found = _PATCHES.search(measure.protocol)
    if found is None:
        return None
    patches = int(found[1]) * int(found[2])
    levels = {"effective_patches": patches, "top10": min(1.0, 10 / patches), "class_token": 1 / (patches + 1)}
    return levels.get(kind)


def decimals(metric: str) -> int:
    """Of a number that is no share."""
    return 1 if headline(metric).endswith("effective_patches") else 2


def plain(value: float, metric: str, sign: bool = False) -> str:
    """A number of `metric` without its unit: a share in points of a hundred, others as they are."""
    places, factor = (1, 100) if is_share(metric) else (decimals(metric), 1)
    text = f"{factor * value:{'+' if sign else ''}.{places}f}"
    if float(text) == 0:
        return text.lstrip("+-")
    return text.replace("-", "−")
