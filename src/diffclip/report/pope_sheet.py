"""The paper's Table 3: accuracy, precision and recall on POPE's three files, with what it leaves out beside."""

from __future__ import annotations

from dataclasses import replace

from diffclip.evaluation.pope_names import METRICS, OVERALL, counts_of, is_blind, majority
from diffclip.evaluation.significance import compare_counts
from diffclip.report.cells import own_lines
from diffclip.report.compare import Measure
from diffclip.report.metrics import dataset_name, metric_name
from diffclip.report.paper import AnswerRow, paper_numbers
from diffclip.report.pope_data import Split, pope_comparisons, pope_sets, splits_of
from diffclip.report.printed import source
from diffclip.report.series import Collection
from diffclip.report.sheet import Block, Cell, Line, Sheet, Span, stem_of
from diffclip.report.sheet_notes import notes_on

_UNCLEAR = (
    "Unclear: answers that are not plainly yes or no, as far as the published parser takes them. "
    "A row in which the same answer is given to everything is what a model without understanding reaches."
)


def pope_sheets(collection: Collection, paper: bool = False) -> list[Sheet]:
    """A table a set; with `paper`, the rows of the paper's are among them."""
    return [_sheet(collection, dataset, paper) for dataset in pope_sets(collection)]


def _sheet(collection: Collection, dataset: str, paper: bool) -> Sheet:
    splits = splits_of(collection, dataset)
    measures = [measure for split in splits for measure in split.measures()]
    comparisons = pope_comparisons(collection, splits)
    heads = [metric_name(metric) for metric in METRICS]
    blocks = []
    for split in splits:
        lines = own_lines(collection, _columns(split.measures()), comparisons)
        if is_blind(split.place.protocol):
            lines = [_without(line) for line in lines]
        lines += [_without(line) for line in own_lines(collection, _columns(split.measures(blind=True)), ())]
        lines += _baseline(split)
        if paper:
            lines += [_printed(row) for row in paper_numbers().answers.rows if row.split == split.name]
        title = "Mean of the three" if split.name == OVERALL else split.name[:1].upper() + split.name[1:]
        blocks.append(Block(title, lines))
    notes = [*notes_on(collection, measures, comparisons), _UNCLEAR]
    notes += [_paper_note()] if paper else []
    return Sheet(
        f"pope_{stem_of(dataset)}",
        f"POPE: {dataset_name(dataset)} (%)",
        [Span("", [head[:1].upper() + head[1:] for head in heads])],
        blocks,
        notes,
    )


def _columns(measures: list[Measure]) -> list[tuple[str, Measure | None]]:
    return [(one.metric, one) for one in measures]


def _without(line: Line) -> Line:
    return replace(line, label=f"{line.label}, without the picture")


def _baseline(split: Split) -> list[Line]:
    counts = counts_of(split.place.protocol)
    if counts is None:
        return []
    answer, reached = majority(*counts)
    return [
        Line(f"always {answer}", [Cell(f"{100 * reached[metric]:.1f}") for metric in METRICS], ours=False)
    ]


def _printed(row: AnswerRow) -> Line:
    numbers = paper_numbers().answers
    gains = [""] * 3 if row.gains is None else [f" ({gain:+.2f})" for gain in row.gains]
    printed = [row.accuracy, row.precision, row.recall]
    cells = [Cell(f"{value:.2f}{gain}") for value, gain in zip(printed, gains, strict=True)]
    # F1, yes ratio, and nothing of what was unclear
    cells += [Cell(f"{row.f1:.1f}*"), Cell(f"{numbers.yes_ratio(row):.1f}*"), Cell()]
    return Line(f"{row.model}, {numbers.pretraining} (paper)", cells, ours=False)


def _paper_note() -> str:
    numbers = paper_numbers().answers
    tests = []
    for own in numbers.rows:
        base = next(row for row in numbers.rows if (row.model, row.split) == ("CLIP", own.split))
        if own.model != base.model:
            count = numbers.counts[own.split][0]
            test = compare_counts(numbers.right(own), count, numbers.right(base), count)
            tests.append(f"{own.split} {100 * test.difference:+.2f} points, p = {test.p:.2f}")
    told = (
        "Differences in accuracy by their counts (Fisher's exact test, unpaired as no answers are published): "
        f"{'; '.join(tests)}."
    )
    return f"{source(numbers.source)} * derived, not printed. {numbers.remark} {told}".replace(" -", " −")
