"""POPE as a section of a page and of a Markdown file: whether models answer at all, the paper's table, intervals."""

from __future__ import annotations

import html
import statistics
from collections.abc import Sequence

from diffclip.evaluation.pope_names import is_blind
from diffclip.report.compare import by_series
from diffclip.report.metrics import dataset_name, p_text, signed
from diffclip.report.paired import PairedDifference
from diffclip.report.pope_data import Split, pope_comparisons, pope_sets, seen_gains, splits_of
from diffclip.report.pope_sheet import pope_sheets
from diffclip.report.pope_words import heedless, paper_line, vague
from diffclip.report.series import Collection
from diffclip.report.sheet import sheet_html, sheet_markdown
from diffclip.report.tables import Table, head_of, table_of, title_of, to_html, to_markdown
from diffclip.report.verdict import spelled_out

_INTRO = (
    "Yes/no questions about what is in a picture, asked of language models that see through these vision towers. Half "
    "of them ask for something that is not there: always yes is right about half of them, with full recall. Read "
    "accuracy beside the yes ratio, and beside what a model answers without the picture."
)
_MORE = "Intervals, differences, and without the picture"
"""What is folded."""


def pope_html(collection: Collection, paper: bool = False) -> str:
    """The section's HTML without its heading; empty where nothing was asked."""
    sheets = pope_sheets(collection, paper)
    if not sheets:
        return ""
    warnings = "".join(f"<li><strong>{html.escape(line)}</strong></li>" for line in _warnings(collection))
    lines = "".join(f"<li>{html.escape(line)}</li>" for line in _findings(collection))
    tables = "".join(map(to_html, _tables(collection, every_seed=False)))
    return (
        f"<p>{html.escape(_INTRO)}</p>"
        + (f'<ul class="findings">{warnings}{lines}</ul>' if warnings or lines else "")
        + "".join(map(sheet_html, sheets))
        + f"<details><summary>{_MORE}</summary>{tables}</details>"
    )


def pope_markdown(collection: Collection, paper: bool = False) -> list[str]:
    """The section's paragraphs; none where nothing was asked."""
    sheets = pope_sheets(collection, paper)
    if not sheets:
        return []
    lines = [f"- **{line}**\n" for line in _warnings(collection)] + [
        f"- {line}\n" for line in _findings(collection)
    ]
    return [
        f"{_INTRO}\n",
        *(["".join(lines)] if lines else []),
        *map(sheet_markdown, sheets),
        f"<details>\n<summary>{_MORE}</summary>\n",
        *map(to_markdown, _tables(collection, every_seed=True)),
        "</details>\n",
    ]


def _tables(collection: Collection, every_seed: bool) -> list[Table]:
    tables = []
    for dataset in pope_sets(collection):
        splits = splits_of(collection, dataset)
        told = pope_comparisons(collection, splits)
        for split in splits:
            for blind in (False, True):
                found = {one: by_series(collection.results, one) for one in split.measures(blind)}
                own = [one for one in told if one.measure in found]
                if found:
                    heads = [head_of(measure, series) for measure, series in found.items()]
                    title = title_of(next(iter(found)))
                    tables.append(table_of(collection, found, own, title, heads, every_seed))
    return tables


def notice(collection: Collection) -> str:
    """A sentence beside the first numbers of a page where models do not answer; empty where all do."""
    names = [
        name
        for dataset in pope_sets(collection)
        for name in _heedless(collection, splits_of(collection, dataset))
    ]
    if not names:
        return ""
    return (
        f"Nearly all answers to POPE's questions are the same ({', '.join(dict.fromkeys(names))}): such a model is not "
        "answering, and its accuracy there says nothing."
    )


def _warnings(collection: Collection) -> list[str]:
    """Models that do not answer, or not plainly, with the picture before them."""
    lines, vaguely = [], []
    for dataset in pope_sets(collection):
        splits, place = splits_of(collection, dataset), dataset_name(dataset)
        lines += [line for line in _heedless(collection, splits, f" on {place}").values()]
        for name, ratios in _ratios(collection, splits, "unclear_ratio").items():
            line = vague(f"{name} on {place}", ratios)
            vaguely += [line] if line else []
    return [*lines, *([paper_line()] if lines else []), *vaguely]


def _heedless(collection: Collection, splits: Sequence[Split], where: str = "") -> dict[str, str]:
    """The models that do not answer, each with what is to be said of it."""
    told = {
        name: heedless(name + where, ratios)
        for name, ratios in _ratios(collection, splits, "yes_ratio").items()
    }
    return {name: line for name, line in told.items() if line}


def _ratios(collection: Collection, splits: Sequence[Split], metric: str) -> dict[str, dict[str, float]]:
    """By model and training seed, the ratio in each split that was asked with the picture."""
    found: dict[str, dict[str, float]] = {}
    for split in splits:
        if is_blind(split.place.protocol):
            continue
        for series, seeds in by_series(collection.results, split.place._replace(metric=metric)).items():
            for seed, one in seeds.items():
                name = series.label if len(seeds) == 1 else f"{series.label} (seed {seed})"
                found.setdefault(name, {})[split.name] = one.value
    return found


def _findings(collection: Collection) -> list[str]:
    """A line a comparison in accuracy, and one a model of what the picture adds to it."""
    found = []
    for dataset in pope_sets(collection):
        splits = splits_of(collection, dataset)
        told = [one for one in pope_comparisons(collection, splits) if one.measure.metric == "accuracy"]
        told.sort(key=lambda one: [split.name for split in splits].index(one.measure.split))
        found += [spelled_out(one, collection) for one in told] + _worth(collection, splits)
    return found


def _worth(collection: Collection, splits: Sequence[Split]) -> list[str]:
    """Accuracy with the picture minus without, of the last split: the mean of all where there is one."""
    split = splits[-1]
    return [
        f"{series.label} on {dataset_name(split.place.dataset)} ({split.name}): the picture adds "
        f"{_gain(list(seeds.values()))}."
        for series, seeds in seen_gains(collection, split).items()
        if seeds
    ]


def _gain(found: Sequence[PairedDifference]) -> str:
    if len(found) > 1:
        means = [one.mean for one in found]
        ends = f"{signed(min(means))} to {signed(max(means))}"
        return f"{signed(statistics.fmean(means))} points to accuracy, mean of {len(found)} training seeds ({ends})"
    one = found[0]
    ends = "" if one.low is None or one.high is None else f" [{signed(one.low)}, {signed(one.high)}]"
    return f"{signed(one.mean)} points to accuracy{ends}{'' if one.p is None else f', {p_text(one.p)}'}"
