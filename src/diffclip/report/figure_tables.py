"""The numbers of two figures as tables: out of domain, and pairs by pattern."""

from __future__ import annotations

from collections.abc import Sequence

from diffclip.evaluation.averages import DROP, MEAN_OF_ALL, MEAN_OF_SHIFTS
from diffclip.report.cells import Column, own_lines
from diffclip.report.compare import Comparison, Measure, by_series
from diffclip.report.out_of_domain import accuracy_on, derived, family_comparisons, shift_families
from diffclip.report.paper import paper_panels
from diffclip.report.printed import printed_cell, printed_pairs, printed_pairs_note, source
from diffclip.report.radar import count_of, count_text, pair_measures, pair_sets
from diffclip.report.series import Collection, Series
from diffclip.report.sets import set_name
from diffclip.report.sheet import Block, Cell, Line, Sheet, Span, stem_of
from diffclip.report.sheet_notes import notes_on
from diffclip.report.told import comparisons_of


def out_of_domain_sheets(collection: Collection, paper: bool) -> list[Sheet]:
    sheets = []
    for base, corrupted, shifts in shift_families(collection):
        columns: list[Column] = [(set_name(one), accuracy_on(collection, one)) for one in (base, *shifts)]
        for head, metric in (
            ("Mean of shifts", MEAN_OF_SHIFTS),
            ("Mean of all", MEAN_OF_ALL),
            ("Drop", DROP),
        ):
            columns.append((head, derived(collection, base, corrupted, metric)))
        comparisons = family_comparisons(collection, base, corrupted, shifts)
        lines = own_lines(collection, columns, comparisons)
        notes = notes_on(collection, [measure for _, measure in columns if measure], comparisons)
        notes.append(
            "Drop: the base minus the mean of its shifts, in points; a positive difference means a larger drop."
        )
        if paper and base == "imagenet1k" and not corrupted:
            for (model, pretraining), panels in paper_panels().items():
                if "out of domain" in panels or "zero-shot" in panels:
                    cells = [Cell() for _ in columns]
                    cells[0] = printed_cell(*panels.get("zero-shot", (None, None)))
                    cells[len(shifts) + 1] = printed_cell(*panels.get("out of domain", (None, None)))
                    lines.append(Line(f"{model}, {pretraining} (paper)", cells, ours=False))
            notes.append(f"{source('Table 2, Sections 4.3, 4.5 and 4.6')} Its Figure 3 prints no values.")
        stem = stem_of(base) + ("_corrupted" if corrupted else "")
        kind = "corrupted pictures" if corrupted else "out of domain"
        sheets.append(
            Sheet(
                f"out_of_domain_{stem}",
                f"Zero-shot {kind}: {set_name(base)} (top-1 accuracy, %)",
                [Span("", [head for head, _ in columns])],
                [Block("", lines)],
                notes,
            )
        )
    return sheets


def pair_sheets(collection: Collection, paper: bool) -> list[Sheet]:
    sheets = []
    for dataset in pair_sets(collection):
        measures = pair_measures(collection, dataset)
        comparisons = comparisons_of(collection, list(measures.values()))
        shown = [
            series
            for series in collection.series
            if any(series in by_series(collection.results, one) for one in measures.values())
        ]
        # all pairs come last, beneath their patterns
        ordered = sorted(measures.items(), key=lambda item: not item[0])
        lines = []
        for name, measure in ordered:
            cells = [_pair_cell(collection, measure, series, comparisons) for series in shown]
            lines.append(Line(name or "all pairs", cells))
        notes = notes_on(collection, list(measures.values()), comparisons)
        notes.append("Cells: pairs that are right, of how many, and the percentage. Chance is 25 %.")
        if paper and dataset == "mmvp":
            lines.append(printed_pairs(shown))
            notes.append(printed_pairs_note())
        sheets.append(
            Sheet(
                f"minimal_pairs_{stem_of(dataset)}",
                f"Minimal pairs: {set_name(dataset)}",
                [Span("", [series.label for series in shown])],
                [Block("", lines)],
                notes,
                first="pattern",
            )
        )
    return sheets


def _pair_cell(
    collection: Collection, measure: Measure, series: Series, comparisons: Sequence[Comparison]
) -> Cell:
    found = count_of(collection, measure, series)
    if found is None:
        return Cell()
    right, pairs = found
    text = f"{count_text(right)} of {pairs}, {100 * right / pairs:.1f} %"
    one = next((one for one in comparisons if (one.measure, one.series) == (measure, series)), None)
    return Cell(text) if one is None else Cell(text, gain=one.difference.mean, outcome=one.outcome)
