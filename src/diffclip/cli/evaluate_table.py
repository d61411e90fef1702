"""The table of one task on one set: every metric of every model, compared with the first."""

from __future__ import annotations

from collections import Counter
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

    from diffclip.evaluation.protocol import method_of, particulars_of

    labels = Counter(label for label, _, _ in results)
    names = [label if labels[label] == 1 else f"{label} ({weights})" for label, weights, _ in results]
    first = results[0][2]
    several = len(results) > 1
    found = [
        (name, particulars_of(result.protocol)) for name, (_, _, result) in zip(names, results, strict=True)
    ]
    notes = [f"{name}: {particulars}." for name, particulars in found if particulars]
    if several:
        notes.append("p: paired test on the same items, corrected for the number of tests (Holm).")
    title = f"{first.task} on {first.dataset}, {first.split}"
    table = Table(
        title=Text(title if several else f"{names[0]}: {title}"),
        caption=Text("\n".join([f"{method_of(first.protocol)}. All but counts in %.", *notes])),
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
    ps = _corrected_ps([result for _, _, result in results])
    for index, base in enumerate(first.scores):
        for place, (name, (_, _, result)) in enumerate(zip(names, results, strict=True)):
            score = result.scores[index]
            row = [f"{100 * score.value:.1f}", _range(score.low, score.high), f"{100 * score.chance:.1f}"]
            row += [str(score.count) if score.right is None else f"{score.right} of {score.count}"]
            cells = [score.metric if place == 0 else "", *([name] if several else []), *row]
            table.add_row(
                *map(Text, [*cells, *(_against(score, base, ps.get((place, index))) if several else [])]),
                end_section=several and place == len(results) - 1,
            )
    console = Console()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(table)


def _corrected_ps(results: list[Result]) -> dict[tuple[int, int], float]:
    """p against the first model by place of the model and of the metric, corrected for their number."""
    from diffclip.evaluation.significance import holm

    tests = {
        (place, index): score.tested_against(base)
        for place, result in enumerate(results[1:], 1)
        for index, (score, base) in enumerate(zip(result.scores, results[0].scores, strict=True))
    }
    found = {key: test.p for key, test in tests.items() if test is not None}
    return dict(zip(found, holm(list(found.values())), strict=True))


def _against(score: Score, base: Score, p: float | None) -> list[str]:
    """The cells that compare a model with the first one; empty for the first."""
    if score is base:
        return ["", ""]
    return [_gain(score, base), "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"]


def _gain(score: Score, base: Score) -> str:
    interval = score.gain_over(base)
    difference = _signed(score.value - base.value)
    return f"{difference} ({_signed(interval[0])} to {_signed(interval[1])})" if interval else difference


def _signed(fraction: float) -> str:
    # Adding 0 turns the -0.0 that rounding can leave into 0.0
    return f"{round(100 * fraction, 1) + 0.0:+.1f}"


def _range(low: float, high: float) -> str:
    return f"{100 * low:.1f} to {100 * high:.1f}"
