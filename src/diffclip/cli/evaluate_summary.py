"""The results of a suite in one table: a row a set, a column a model, and whether it differs from CLIP."""

from __future__ import annotations

from diffclip.cli.evaluate_table import PIPE_WIDTH
from diffclip.evaluation.averages import DERIVED, DROP
from diffclip.evaluation.focus_names import is_detail
from diffclip.evaluation.ledger import Ledger
from diffclip.evaluation.linear_probe import headline_metric
from diffclip.report.compare import (
    Comparison,
    Estimate,
    Measure,
    by_series,
    compare,
    corrected,
    estimate,
    measure_of,
)
from diffclip.report.metrics import chance_of, chance_text, metric_name
from diffclip.report.series import Collection, Series, collect

_MARKS = {"higher": " ▲", "lower": " ▼", "unclear": ""}
_METRICS = (
    *("acc1", "image_retrieval_recall@5", "text_retrieval_recall@5", "mean_per_pattern_accuracy"),
    *("relevance_auroc", "attention_inside"),
)


def show_summary(ledger: Ledger) -> None:
    """Print the headline metric of each task and set, and the averages."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # to compare thousands of layers and heads would take minutes, and none is shown
    records = [record for record in ledger.records if not is_detail(record.metric)]
    collection = collect([], records, ledger.outcomes)
    measures = list(dict.fromkeys(measure_of(result) for result in collection.results))
    measures = [measure for measure in measures if _is_headline(measure)]
    # a smaller drop need not be better: a model that is at chance drops least
    judged = [measure for measure in measures if measure.metric != DROP]
    told = corrected([one for one in compare(collection) if one.measure in judged])
    against = {(one.series, one.measure): one for one in told}
    table = Table(
        box=box.SIMPLE_HEAD,
        caption=Text(_legend(told)),
        caption_justify="left",
        pad_edge=False,
    )
    table.add_column("task", no_wrap=True)
    table.add_column("set", no_wrap=True)
    table.add_column("chance", justify="right", no_wrap=True)
    for series in collection.series:
        table.add_column(Text(series.label, overflow="fold"), justify="right")
    for index, measure in enumerate(measures):
        chance = chance_of(measure, collection.results)
        cells = [_cell(collection, series, measure, against) for series in collection.series]
        table.add_row(
            *map(Text, [metric_name(measure.metric), f"{measure.task}: {measure.dataset}"]),
            Text("" if chance is None else chance_text(chance)),
            *map(Text, cells),
            end_section=index + 1 < len(measures) and measures[index + 1].task != measure.task,
        )
    console = Console()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(table)


def _is_headline(measure: Measure) -> bool:
    if measure.task in DERIVED:
        return True
    if measure.task == "linear-probe":
        return measure.metric == headline_metric(measure.dataset)
    return measure.metric in _METRICS


def _cell(
    collection: Collection,
    series: Series,
    measure: Measure,
    against: dict[tuple[Series, Measure], Comparison],
) -> str:
    seeds = by_series(collection.results, measure).get(series)
    if not seeds:
        return "–"
    one = against.get((series, measure))
    return _number(estimate(seeds)) + (_MARKS[one.outcome] if one else "")


def _number(found: Estimate) -> str:
    """The value with its interval, and ± sd where there are several seeds or draws."""
    spread = "" if found.sd is None else f" ± {100 * found.sd:.1f}"
    if found.low is None or found.high is None or found.n == 2:
        return f"{100 * found.mean:.1f}{spread}"
    return f"{100 * found.mean:.1f}{spread} [{100 * found.low:.1f}, {100 * found.high:.1f}]"


def _legend(told: list[Comparison]) -> str:
    lines = ["All in %. Brackets: 95 % interval; ±: standard deviation over training seeds or draws."]
    if told:
        tests = max(one.tests for one in told)
        lines.append(f"▲ better, ▼ worse than CLIP: p < 0.05, corrected for {tests} comparisons (Holm).")
    else:
        lines.append("There is no CLIP and another model of its size among them: nothing is compared.")
    lines.append("Tables and figures: diffclip report")
    return "\n".join(lines)
