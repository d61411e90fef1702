"""What the paper prints about the difference of two models at a task."""

from __future__ import annotations

from diffclip.report.paper import paper_numbers, paper_panels
from diffclip.report.study_pairs import NONE

PAIRS, FOCUSED, PARAMETERS, TIME = "fine-grained pairs", "where models look", "parameters", "time a step"
"""Tasks beside the six of the paper's Figure 1."""

_PRETRAINING = ("CC3M", "CC12M")


def printed_difference(treated: str, baseline: str, task: str) -> str:
    """The paper's gain in points by pretraining set, "+1.2 (CC3M), 0.0 (CC12M)"; a dash where it prints none."""
    if (treated, baseline, task) == ("DiffCLIP", "CLIP", PARAMETERS):
        return "+0.003 % (Section 1)"
    if (treated, baseline, task) == ("DiffCLIP", "CLIP", TIME):
        return "“negligible” (abstract)"
    if (treated, baseline, task) == ("DiffCLIP", "CLIP", PAIRS):
        printed = {row.model: row.printed for row in paper_numbers().pairs.rows}
        return f"{_points(printed[treated] - printed[baseline])} ({paper_numbers().pairs.pretraining})"
    gains = [
        f"{_points(gain)} ({pretraining})"
        for pretraining in _PRETRAINING
        if (gain := _gain(treated, baseline, task, pretraining)) is not None
    ]
    return ", ".join(gains) or NONE


def _gain(treated: str, baseline: str, task: str, pretraining: str) -> float | None:
    """As the text says it, or as gains over CLIP tell."""
    for one in paper_numbers().statements:
        if (one.model, one.baseline, one.panel, one.pretraining) == (treated, baseline, task, pretraining):
            return one.gain
    own = _over_clip(treated, task, pretraining)
    if baseline == "CLIP" or own is None:
        return own
    other = _over_clip(baseline, task, pretraining)
    return None if other is None else own - other


def _over_clip(model: str, task: str, pretraining: str) -> float | None:
    return paper_panels().get((model, pretraining), {}).get(task, (None, None))[1]


def _points(gain: float) -> str:
    text = f"{gain:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")
