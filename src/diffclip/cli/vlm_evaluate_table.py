"""The answers to yes/no questions in a table: a block a split, a row a model, beside the majority answer."""

from __future__ import annotations

from collections.abc import Sequence

from diffclip.cli.evaluate_table import PIPE_WIDTH
from diffclip.evaluation.pope_names import METRICS, counts_of, is_blind, majority
from diffclip.evaluation.protocol import method_of
from diffclip.evaluation.scores import Result, Score
from diffclip.evaluation.significance import holm
from diffclip.report.metrics import metric_name
from diffclip.report.pope_words import heedless, paper_line, vague

Found = Sequence[tuple[str, Sequence[Result]]]
"""What a reader calls each model, and its results by split."""


def show_answers(found: Found) -> None:
    """Print the results of models on the same questions; several are compared with the first in accuracy."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    first = found[0][1]
    several = len(found) > 1
    blind = is_blind(first[0].protocol)
    title = f"POPE on {first[0].dataset}{', asked without the pictures' if blind else ''}"
    notes = [f"{result.split}: {method_of(result.protocol)}." for result in first[:1]] + [
        "All in %. Intervals: of the accuracy, pictures drawn with all their questions. "
        "Unclear: neither yes nor no in plain words."
    ]
    if several:
        notes.append("p: paired test on the same questions, corrected for the number of tests (Holm).")
    table = Table(
        title=Text(title if several else f"{found[0][0]}: {title}"),
        caption=Text("\n".join(notes)),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        pad_edge=False,
    )
    table.add_column("split", no_wrap=True)
    table.add_column("answers of", overflow="fold")
    for head in ("accuracy", "95 % interval", *map(metric_name, METRICS[1:-1]), "unclear"):
        table.add_column(head, justify="right", no_wrap=True)
    if several:
        table.add_column(Text(f"accuracy minus {found[0][0]}"), justify="right")
        table.add_column("p", justify="right", no_wrap=True)
    ps = _corrected_ps(found)
    for place, base in enumerate(first):
        for row, (name, results) in enumerate(found):
            scores = {one.metric: one for one in results[place].scores}
            cells = [base.split if not row else "", name if several else "the model", *_cells(scores)]
            compared = _against(scores["accuracy"], base.scores[0], ps.get((row, place))) if several else []
            table.add_row(*map(Text, [*cells, *compared]))
        baseline = _majority(base)
        table.add_row(*map(Text, ["", *baseline, *[""] * (2 * several)]), style="dim", end_section=True)
    console = Console()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(table)
    # without the picture there is nothing to answer by
    for line in [] if blind else _warnings(found):
        console.print(Text(line), soft_wrap=True)


def _cells(scores: dict[str, Score]) -> list[str]:
    accuracy = scores["accuracy"]
    rest = [f"{100 * scores[metric].value:.1f}" for metric in METRICS[1:]]
    return [f"{100 * accuracy.value:.1f}", f"{100 * accuracy.low:.1f} to {100 * accuracy.high:.1f}", *rest]


def _majority(result: Result) -> list[str]:
    counts = counts_of(result.protocol)
    if counts is None:
        return ["majority", *[""] * (len(METRICS) + 1)]
    answer, _ = majority(*counts)
    chances = {one.metric: one.chance for one in result.scores}
    return [
        f"always {answer}",
        f"{100 * chances['accuracy']:.1f}",
        "",
        *(f"{100 * chances[metric]:.1f}" for metric in METRICS[1:]),
    ]


def _corrected_ps(found: Found) -> dict[tuple[int, int], float]:
    """p in accuracy by place of the model and of the split, corrected for their number."""
    ps = {}
    for row, (_, results) in enumerate(found[1:], 1):
        for place, (own, base) in enumerate(zip(results, found[0][1], strict=True)):
            test = own.scores[0].tested_against(base.scores[0])
            if test is not None:
                ps[row, place] = test.p
    return dict(zip(ps, holm(list(ps.values())), strict=True))


def _against(score: Score, base: Score, p: float | None) -> list[str]:
    if score is base:
        return ["", ""]
    interval = score.gain_over(base)
    ends = f" [{100 * interval[0]:+.1f}, {100 * interval[1]:+.1f}]" if interval else ""
    shown = "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"
    return [f"{100 * (score.value - base.value):+.1f}{ends}", shown]


def _warnings(found: Found) -> list[str]:
    lines = [line for line in (heedless(name, _values(own, "yes_ratio")) for name, own in found) if line]
    unclear = (vague(name, _values(own, "unclear_ratio")) for name, own in found)
    return [*lines, *([paper_line()] if lines else []), *(line for line in unclear if line)]


def _values(results: Sequence[Result], metric: str) -> dict[str, float]:
    """One metric by split."""
    return {result.split: one.value for result in results for one in result.scores if one.metric == metric}
