"""`diffclip evaluate`: one task, such as zero-shot or a linear probe, of one model or several on one set."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffclip.cli.loading import MODEL_HELP, find_model, load_for_use, pick_device
from diffclip.cli.skipped import say_skipped

if TYPE_CHECKING:
    from diffclip.evaluation.scores import Result, Score
    from diffclip.evaluation.tasks import Setting

# A pipe has no width; this one holds every column.
_PIPE_WIDTH = 140


def evaluate(
    models: Annotated[list[str], typer.Argument(help=MODEL_HELP, metavar="MODEL...")],
    data: Annotated[
        str,
        typer.Option(
            help="A folder in clip_benchmark's layout, or the name of a set (scenes, scenes-shapes, scenes-mmvp …)."
        ),
    ],
    task: Annotated[
        str | None,
        typer.Option(
            help="zero-shot, linear-probe or few-shot for classes, retrieval for captions, mmvp for its folder of "
            "pairs; default: zero-shot, retrieval or mmvp, as the set is."
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="Which split of the set to test on.")] = "test",
    corrupt: Annotated[
        str | None,
        typer.Option(
            help="Corrupt the pictures first: noise, blur, jpeg or contrast, with severity 1 to 5.",
            metavar="NAME:SEVERITY",
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            min=0,
            help="Of few-shot's episodes, of noise, and of what linear-probe holds out of a set without val.",
        ),
    ] = 0,
    probe: Annotated[
        str | None,
        typer.Option(
            help="How linear-probe fits: torch (as lgssl, the default) or sklearn.", metavar="torch|sklearn"
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the records to this file, as JSON lines.")
    ] = None,
    json_lines: Annotated[
        bool, typer.Option("--json", help="Print the records instead, one a line.")
    ] = False,
    model_name: Annotated[
        str | None, typer.Option(help="What a published file holds, if it cannot tell.")
    ] = None,
    image_size: Annotated[int | None, typer.Option(min=1, help="Evaluate at another picture size.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures at once.")] = 64,
    workers: Annotated[int, typer.Option(min=0, help="Processes that read pictures ahead.")] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto prefers CUDA.")] = "auto",
) -> None:
    """Measure models on a set: zero-shot, linear probe or few-shot classification, retrieval, minimal pairs (mmvp).

    Example: diffclip evaluate runs/clip runs/diffclip --data flickr8k --split val --output results.jsonl

    Example: diffclip evaluate runs/clip runs/diffclip --data sets/cifar10 --task linear-probe

    Every number comes with its 95 % interval and the chance level.

    Several models are also compared with the first on the same items (paired bootstrap; p corrected for the number
    of tests).

    linear-probe and few-shot learn from the set's split train; features are kept in the user's cache folder.
    """
    from diffclip.errors import InputError, unknown
    from diffclip.evaluation.corruptions import check, corrupted
    from diffclip.evaluation.linear_probe import check_solver
    from diffclip.evaluation.mmvp import PairSet
    from diffclip.evaluation.records import to_lines, write_records
    from diffclip.evaluation.tasks import TASKS, Setting, open_for, pick_task
    from diffclip.files import check_writable

    if task is not None and task not in TASKS:
        raise unknown("task", task, TASKS)
    if probe is not None:
        if task != "linear-probe":
            raise InputError(f"--probe {probe} says how a linear probe fits: add --task linear-probe")
        check_solver(probe)
    change, severity = "noise", 0
    if corrupt is not None:
        change, _, level = corrupt.partition(":")
        if not level.isdecimal():
            raise InputError(f"--corrupt {corrupt} has no severity: write, say, noise:3")
        severity = int(level)
    check(change, severity, seed)
    if output is not None:
        check_writable(output)
    for model in models:
        find_model(model)
    place = pick_device(device)
    opened = open_for(task, data, split)
    task = pick_task(task, opened)
    results, records = [], []
    for model in models:
        loaded = load_for_use(model, model_name, image_size)
        loaded.model.to(place)
        setting = Setting(
            loaded.model,
            corrupted(loaded.preprocess, change, severity, seed),
            loaded.tokenizer,
            opened,
            batch_size,
            workers,
            seed=seed,
            probe=probe or "torch",
        )
        result = _run(task, loaded.label, setting)
        results.append((loaded.label, loaded.weights, result))
        records += result.records(loaded.label, loaded.weights, loaded.seed)
    if output is not None:
        write_records(output, records)
    if json_lines:
        print(to_lines(records), end="")
    else:
        _show(results)
    if not isinstance(opened, PairSet):
        say_skipped(f"{len(opened.faults)} broken samples or shards", opened.faults)


def _run(task: str, label: str, setting: Setting) -> Result:
    from diffclip.cli.progress import showing_progress
    from diffclip.evaluation.tasks import run_task

    with showing_progress(label, {"pictures": len(setting.data)}) as progress:
        return run_task(task, replace(setting, progress=progress))


def _show(results: list[tuple[str, str, Result]]) -> None:
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
        console.width = _PIPE_WIDTH
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
