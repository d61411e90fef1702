"""The paper's tables with our numbers: 1 and 2 by set, 4 and 5 with standard deviations, and one for each figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from diffclip.data.shifts import base_of
from diffclip.evaluation.averages import AVERAGE, PANELS, SIX_TASKS
from diffclip.evaluation.linear_probe import tuned_per_class
from diffclip.report.cells import Column, own_lines
from diffclip.report.compare import Measure, by_series, estimate
from diffclip.report.figure_tables import out_of_domain_sheets, pair_sheets
from diffclip.report.out_of_domain import accuracy_on, shift_families
from diffclip.report.paper import paper_numbers, paper_panels
from diffclip.report.printed import PRINTED, printed_cell, printed_lines, source
from diffclip.report.series import Collection, Series
from diffclip.report.sets import in_order, set_name, sets_of, widest
from diffclip.report.sheet import Block, Cell, Line, Sheet, Span
from diffclip.report.sheet_notes import notes_on, repeated_over
from diffclip.report.six_tasks import panel_name, six_task_measures, six_tasks_title
from diffclip.report.told import comparisons_of


def paper_sheets(collection: Collection, paper: bool = False) -> list[Sheet]:
    """Every table that there are results for; with `paper`, what the paper prints is added to those it has."""
    sheets = [
        _six_tasks(collection, paper),
        _classification(collection, paper),
        _retrieval(collection, paper),
        _zero_shot(collection),
        *out_of_domain_sheets(collection, paper),
        *pair_sheets(collection, paper),
        _repeated(collection, "linear-probe", "Linear probing", "linear_probe_spread", paper),
        _repeated(collection, "few-shot", "Few-shot", "few_shot_spread", paper),
    ]
    return [_without_empty_rows(sheet) for sheet in sheets if sheet is not None]


def _without_empty_rows(sheet: Sheet) -> Sheet:
    """Without rows of the paper that have nothing to say about these sets, and their note if none is left."""
    blocks = [
        Block(
            block.title, [line for line in block.lines if line.ours or any(map(_says_something, line.cells))]
        )
        for block in sheet.blocks
    ]
    printed = any(not line.ours for block in blocks for line in block.lines)
    notes = [note for note in sheet.notes if printed or not note.startswith(PRINTED)]
    return replace(sheet, blocks=blocks, notes=notes)


def _says_something(cell: Cell) -> bool:
    return cell.text != Cell().text or cell.gain is not None


def _six_tasks(collection: Collection, paper: bool) -> Sheet | None:
    measures = six_task_measures(collection)
    if not measures:
        return None
    columns: list[Column] = [(panel_name(name, one), one) for name, one in measures.items()]
    comparisons = comparisons_of(collection, list(measures.values()))
    lines = own_lines(collection, columns, comparisons)
    if paper:
        # what is not about ImageNet stands beside nothing that the paper has
        shown = [
            name if name not in PANELS[-2:] or _of_imagenet(one) else "" for name, one in measures.items()
        ]
        for (model, pretraining), panels in paper_panels().items():
            cells = [printed_cell(*panels.get(name, (None, None))) for name in shown]
            lines.append(Line(f"{model}, {pretraining} (paper)", cells, ours=False))
    notes = notes_on(collection, list(measures.values()), comparisons)
    if paper:
        notes.append(
            f"{source('Tables 1 and 2, Sections 4.3, 4.5 and 4.6')} A gain without a value: "
            "the text gives the gain only. The paper averages over its own sets."
        )
    return Sheet(
        "six_tasks",
        f"{six_tasks_title(measures)} (%)",
        [Span("", _heads(columns))],
        [Block("", lines)],
        notes,
    )


def _classification(collection: Collection, paper: bool) -> Sheet | None:
    sets = in_order([one for task in ("linear-probe", "few-shot") for one in _sets(collection, task)])
    if not sets:
        return None
    parts: list[tuple[str, str, list[Column]]] = []
    for task, title in (("linear-probe", "Linear probing"), ("few-shot", "Few-shot")):
        if _sets(collection, task):
            parts.append((task, title, _columns(collection, task, sets, _average(collection, title))))
    every = [measure for _, _, columns in parts for _, measure in columns if measure]
    comparisons = comparisons_of(collection, every)
    blocks = []
    for task, title, columns in parts:
        lines = own_lines(collection, columns, comparisons)
        if paper:
            lines += printed_lines(paper_numbers().table(task), sets)
        blocks.append(Block(title, lines))
    notes = notes_on(collection, every, comparisons)
    notes += [source("Table 1")] if paper else []
    heads = _heads(parts[0][2])
    return Sheet(
        "classification",
        "Linear probing and few-shot classification (%)",
        [Span("", heads)],
        blocks,
        notes,
    )


def _retrieval(collection: Collection, paper: bool) -> Sheet | None:
    sets = [one for one in in_order(_sets(collection, "retrieval")) if "+" not in one]
    if not sets:
        return None
    spans, columns, tables = [], [], []
    for direction, panel in (("image", "Image retrieval"), ("text", "Text retrieval")):
        own = _columns(collection, "retrieval", sets, _average(collection, panel), direction)
        spans.append(Span(f"{panel} (R@5)", _heads(own)))
        columns += own
        tables.append((paper_numbers().table(f"{direction}-retrieval"), sets))
    imagenet = accuracy_on(collection, "imagenet1k")
    if imagenet:
        spans.append(Span("Zero-shot", [set_name("imagenet1k")]))
        columns.append((set_name("imagenet1k"), imagenet))
        tables.append((paper_numbers().table("zero-shot"), ["imagenet1k"]))
    comparisons = comparisons_of(collection, [measure for _, measure in columns if measure])
    lines = own_lines(collection, columns, comparisons)
    if paper:
        parts = [printed_lines(table, own) for table, own in tables]
        lines += [
            Line(rows[0].label, [cell for row in rows for cell in row.cells], ours=False)
            for rows in zip(*parts, strict=True)
        ]
    notes = notes_on(collection, [measure for _, measure in columns if measure], comparisons)
    if paper:
        notes.append(source("Table 2"))
        if any(measure and measure.split != "test" for _, measure in columns):
            notes.append("They are of test splits.")
    return Sheet(
        "retrieval",
        f"Zero-shot retrieval (recall at 5, %){' and ImageNet (top-1 accuracy, %)' if imagenet else ''}",
        spans,
        [Block("", lines)],
        notes,
    )


def _zero_shot(collection: Collection) -> Sheet | None:
    shifts = {shift for _, _, own in shift_families(collection) for shift in own}
    sets = [one for one in in_order(_sets(collection, "zero-shot")) if one not in shifts]
    if len(sets) < 2:
        return None
    columns: list[Column] = [(set_name(one), accuracy_on(collection, one)) for one in sets]
    comparisons = comparisons_of(collection, [measure for _, measure in columns if measure])
    return Sheet(
        "zero_shot",
        "Zero-shot classification (top-1 accuracy, %)",
        [Span("", _heads(columns))],
        [Block("", own_lines(collection, columns, comparisons))],
        notes_on(collection, [measure for _, measure in columns if measure], comparisons),
    )


def _repeated(collection: Collection, task: str, title: str, name: str, paper: bool) -> Sheet | None:
    """Mean ± standard deviation by set, where something was measured more than once."""
    sets = in_order(_sets(collection, task))
    columns = _columns(collection, task, sets, _average(collection, title))
    measures = [measure for _, measure in columns if measure]
    over = repeated_over(
        [estimate(seeds) for one in measures for seeds in by_series(collection.results, one).values()]
    )
    if not over:
        return None
    lines = []
    for series in collection.series:
        cells = [_spread_cell(collection, measure, series) for _, measure in columns]
        if any(cell.text != "–" for cell in cells):
            lines.append(Line(series.label, cells))
    notes = [f"Mean ± standard deviation over {over}.", *notes_on(collection, measures, ())]
    if paper:
        table = paper_numbers().table(f"{task}-seeds")
        lines += printed_lines(table, sets)
        if table:
            notes.append(source(table.source))
    return Sheet(
        name,
        f"{title}: mean ± standard deviation (%)",
        [Span("", _heads(columns))],
        [Block("", lines)],
        notes,
    )


def _of_imagenet(measure: Measure) -> bool:
    return all("imagenet1k" in (dataset, base_of(dataset)) for dataset, _ in sets_of(measure))


def _sets(collection: Collection, task: str) -> list[str]:
    return [
        one.record.dataset
        for one in collection.results
        if one.record.task == task and one.record.value is not None
    ]


def _heads(columns: Sequence[Column]) -> list[str]:
    return [head for head, _ in columns]


def _columns(
    collection: Collection, task: str, sets: Sequence[str], average: Measure | None, direction: str = ""
) -> list[Column]:
    """A column a set, of the metric that the paper has of it, and one of their average."""

    def fits(dataset: str) -> Callable[[Measure], bool]:
        metric = "acc1"
        if direction:
            metric = f"{direction}_retrieval_recall@5"
        elif task == "linear-probe" and tuned_per_class(dataset):
            metric = "mean_per_class_recall"
        return lambda one: (one.task, one.dataset, one.metric) == (task, dataset, metric)

    found = {dataset: widest(collection, fits(dataset)) for dataset in sets}
    columns: list[Column] = [(set_name(dataset), one[0] if one else None) for dataset, one in found.items()]
    return [*columns, ("Avg.", average)] if len(sets) > 1 else columns


def _average(collection: Collection, panel: str) -> Measure | None:
    found = widest(
        collection,
        lambda one: (one.task, one.dataset, one.metric) == (SIX_TASKS, panel.lower(), AVERAGE),
    )
    return found[0] if found else None


def _spread_cell(collection: Collection, measure: Measure | None, series: Series) -> Cell:
    if measure is None:
        return Cell()
    seeds = by_series(collection.results, measure).get(series)
    if not seeds:
        return Cell()
    mean = estimate(seeds)
    return Cell(f"{100 * mean.mean:.1f}", sd=mean.sd)
