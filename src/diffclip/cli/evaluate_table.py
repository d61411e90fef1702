"""The table of one task on one set: every headline metric of every model, compared with the first."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diffclip.evaluation.scores import Result, Score

# A pipe has no width; this one holds every column.
PIPE_WIDTH = 140


def show_results(results: list[tuple[str, str, Result]]) -> None:
    """Print the results of (label, weights, result) a model, all of one task on one set."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from diffclip.evaluation.focus_names import READING, is_share, kind_of
    from diffclip.evaluation.protocol import method_of, particulars_of

    names = _names([(label, weights) for label, weights, _ in results])
    first = results[0][2]
    found_by = [_headlines(result) for _, _, result in results]
    methods = [method_of(result.protocol) for _, _, result in results]
    metrics = list(dict.fromkeys(metric for scores in found_by for metric in scores))
    several = len(results) > 1
    found = [
        (name, particulars_of(result.protocol)) for name, (_, _, result) in zip(names, results, strict=True)
    ]
    notes = [f"{name}: {particulars}." for name, particulars in found if particulars]
    if first.task == "focus":
        notes.append(READING)
    if several:
        notes.append("p: paired test on the same items, corrected for the number of tests (Holm).")
    for name, method in zip(names[1:], methods[1:], strict=True):
        if method != methods[0]:
            notes.append(f"{name}: {method}.")
    if first.task == "focus" and len(set(methods)) > 1:
        notes.append("Models that see other patches are measured against other areas: they are not compared.")
    title = f"{first.task} on {first.dataset}, {first.split}"
    plain = dict.fromkeys(["counts", *(kind_of(metric) for metric in metrics if not is_share(metric))])
    table = Table(
        title=Text(title if several else f"{names[0]}: {title}"),
        caption=Text("\n".join([f"{methods[0]}. All but {', '.join(plain)} in %.", *notes])),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        pad_edge=False,
    )
    table.add_column("metric", no_wrap=True)
    if several:
        table.add_column("model", overflow="fold")
    for column in ("value", "95 % interval", "chance", "count"):
        table.add_column(column, justify="right", no_wrap=True)
    if several:
        table.add_column(f"minus {names[0]}", justify="right")
        table.add_column("p", justify="right", no_wrap=True)
    # elsewhere a model that takes other pictures answers the same questions
    fair = [first.task != "focus" or method == methods[0] for method in methods]
    ps = _corrected_ps(found_by, fair)
    for metric in metrics:
        having = [place for place, scores in enumerate(found_by) if metric in scores]
        for place in having:
            score, base = found_by[place][metric], found_by[0].get(metric)
            row = [_number(score, score.value), _range(score), _number(score, score.chance)]
            row += [str(score.count) if score.right is None else f"{score.right} of {score.count}"]
            cells = [metric if place == having[0] else "", *([names[place]] if several else []), *row]
            compared = (
                _against(score, base if fair[place] else None, ps.get((place, metric))) if several else []
            )
            table.add_row(*map(Text, [*cells, *compared]), end_section=several and place == having[-1])
    console = Console()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(table)


def _headlines(result: Result) -> dict[str, Score]:
    """The scores that a table shows, by metric: those of single layers and heads are for the file."""
    from diffclip.evaluation.focus_names import is_detail

    return {score.metric: score for score in result.scores if not is_detail(score.metric)}


def _names(models: list[tuple[str, str]]) -> list[str]:
    """What tells models (label, weights) apart: the label, else the run's folder too, else the whole path."""
    labels = Counter(label for label, _ in models)
    runs = [str(Path(weights).parents[1]) if "/checkpoints/" in weights else weights for _, weights in models]
    short = Counter((label, run) for (label, _), run in zip(models, runs, strict=True))
    return [
        label if labels[label] == 1 else f"{label} ({run if short[label, run] == 1 else weights})"
        for (label, weights), run in zip(models, runs, strict=True)
    ]


def _corrected_ps(found_by: list[dict[str, Score]], fair: list[bool]) -> dict[tuple[int, str], float]:
    """p against the first model by place of the model and by metric, corrected for their number; of `fair` models."""
    from diffclip.evaluation.significance import holm

    tests = {
        (place, metric): score.tested_against(base)
        for place, scores in enumerate(found_by[1:], 1)
        for metric, score in scores.items()
        for base in (found_by[0].get(metric),)
        if base is not None and fair[place] and _same_items(score, base)
    }
    found = {key: test.p for key, test in tests.items() if test is not None}
    return dict(zip(found, holm(list(found.values())), strict=True))


def _against(score: Score, base: Score | None, p: float | None) -> list[str]:
    """The cells that compare a model with the first one; empty for the first, and where that one has no such items."""
    if base is None or score is base or not _same_items(score, base):
        return ["", ""]
    return [_gain(score, base), "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"]


def _same_items(score: Score, base: Score) -> bool:
    """Whether both are of the same items: the crops of models may show other objects."""
    import numpy as np

    if score.hits is None or base.hits is None:
        return score.count == base.count
    own, other = score.clusters, base.clusters
    if own is None or other is None:
        return own is other and len(score.hits) == len(base.hits)
    return np.array_equal(own, other)


def _gain(score: Score, base: Score) -> str:
    interval = score.gain_over(base)
    difference = _signed(score, score.value - base.value)
    if interval is None:
        return difference
    return f"{difference} ({_signed(score, interval[0])} to {_signed(score, interval[1])})"


def _number(score: Score, value: float) -> str:
    """A value of a score: in % with one digit, or with two digits what is no share."""
    from diffclip.evaluation.focus_names import is_share

    return f"{100 * value:.1f}" if is_share(score.metric) else f"{value:.2f}"


def _signed(score: Score, difference: float) -> str:
    # a rounded -0.0 is 0.0 with a sign
    text = _number(score, difference)
    return (
        text.replace("-", "+", 1)
        if float(text) == 0 and text[0] == "-"
        else text
        if text[0] == "-"
        else f"+{text}"
    )


def _range(score: Score) -> str:
    return f"{_number(score, score.low)} to {_number(score, score.high)}"
