"""`diffclip evaluate`: zero-shot classification and retrieval, of one model or several on one set."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffclip.cli.loading import MODEL_HELP, find_model, load_for_use, pick_device
from diffclip.cli.skipped import say_skipped

if TYPE_CHECKING:
    import torch

    from diffclip.cli.loading import Loaded
    from diffclip.data.catalog import EvaluationSet
    from diffclip.evaluation.scores import Result, Score

# A pipe has no width; this one holds every column.
_PIPE_WIDTH = 140


def evaluate(
    models: Annotated[list[str], typer.Argument(help=MODEL_HELP, metavar="MODEL...")],
    data: Annotated[
        str, typer.Option(help="A folder in clip_benchmark's layout, or the name of a set (scenes).")
    ],
    task: Annotated[
        str | None, typer.Option(help="zero-shot or retrieval; default: what the set is for.")
    ] = None,
    split: Annotated[str, typer.Option(help="Which split of the set.")] = "test",
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
    """Measure models on a set: zero-shot accuracy, or recall of retrieval in both directions.

    Example: diffclip evaluate runs/clip runs/diffclip --data flickr8k --split val --output results.jsonl

    Every number comes with its 95 % interval and the chance level.

    Several models are also compared with the first on the same pictures (paired bootstrap).
    """
    from diffclip.data.catalog import open_set
    from diffclip.errors import unknown
    from diffclip.evaluation.records import to_lines, write_records
    from diffclip.evaluation.tasks import TASKS, pick_task
    from diffclip.files import check_writable

    if task is not None and task not in TASKS:
        raise unknown("task", task, TASKS)
    if output is not None:
        check_writable(output)
    for model in models:
        find_model(model)
    place = pick_device(device)
    opened = open_set(data, split)
    task = pick_task(task, opened)
    results, records = [], []
    for model in models:
        loaded = load_for_use(model, model_name, image_size)
        result = _run(task, loaded, opened, place, batch_size, workers)
        results.append((loaded.label, loaded.weights, result))
        records += result.records(loaded.label, loaded.weights, loaded.seed)
    if output is not None:
        write_records(output, records)
    if json_lines:
        print(to_lines(records), end="")
    else:
        _show(results)
    say_skipped(f"{len(opened.faults)} broken samples or shards", opened.faults)


def _run(
    task: str, loaded: Loaded, data: EvaluationSet, place: torch.device, batch_size: int, workers: int
) -> Result:
    from diffclip.cli.progress import showing_progress
    from diffclip.evaluation.tasks import Setting, run_task

    loaded.model.to(place)
    with showing_progress(loaded.label, {"pictures": len(data)}) as progress:
        setting = Setting(
            loaded.model, loaded.preprocess, loaded.tokenizer, data, batch_size, workers, progress
        )
        return run_task(task, setting)


def _show(results: list[tuple[str, str, Result]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    labels = Counter(label for label, _, _ in results)
    names = [label if labels[label] == 1 else f"{label} ({weights})" for label, weights, _ in results]
    first = results[0][2]
    several = len(results) > 1
    title = f"{first.task} on {first.dataset}, {first.split}"
    table = Table(
        title=Text(title if several else f"{names[0]}: {title}"),
        caption=Text(f"{first.protocol}. All but counts in %."),
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
    for index, base in enumerate(first.scores):
        for place, (name, (_, _, result)) in enumerate(zip(names, results, strict=True)):
            score = result.scores[index]
            row = [f"{100 * score.value:.1f}", _range(score.low, score.high), f"{100 * score.chance:.1f}"]
            row += [str(score.count)]
            cells = [score.metric if place == 0 else "", *([name] if several else []), *row]
            table.add_row(
                *map(Text, [*cells, *([_gain(score, base) if place else ""] if several else [])]),
                end_section=several and place == len(results) - 1,
            )
    console = Console()
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    console.print(table)


def _gain(score: Score, base: Score) -> str:
    interval = score.gain_over(base)
    difference = _signed(score.value - base.value)
    return f"{difference} ({_signed(interval[0])} to {_signed(interval[1])})" if interval else difference


def _signed(fraction: float) -> str:
    # Adding 0 turns the -0.0 that rounding can leave into 0.0
    return f"{round(100 * fraction, 1) + 0.0:+.1f}"


def _range(low: float, high: float) -> str:
    return f"{100 * low:.1f} to {100 * high:.1f}"
