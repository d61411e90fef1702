"""`diffclip evaluate`: measure models with one task or a whole suite."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from diffclip.cli.console import Device, ModelName, say, say_loading, say_skipped, show_progress
from diffclip.data.published_sets import BUILT_IN, set_folder
from diffclip.errors import DiffCLIPError, Fault, InputError, require_group, unknown_name
from diffclip.evaluation.suite import SUITES, Entry
from diffclip.files import check_writable
from diffclip.names import TASKS
from diffclip.sources.load import Loaded, load_with_origin, pick_device
from diffclip.sources.registry import MODEL_HELP, find_model, runs_in

if TYPE_CHECKING:
    from diffclip.data.workers import Progress
    from diffclip.evaluation.records import Record
    from diffclip.evaluation.results_file import ResultsFile
    from diffclip.evaluation.run import Measured

_DATA = "A folder in clip_benchmark's layout, or a set by name: scenes, scenes-mmvp, cifar10, flickr30k …"
_DATA_ROOT = "Folder that holds the sets; it is searched before the working directory."
_PROMPT = "Text for focus and faithfulness: 'a photo of a {c}', with the object's name for {c}."
_OUTPUT = (
    "Write the records to this file (JSON lines); its finished tasks are not run again. "
    "Default for suites: SUITE.jsonl"
)


def evaluate(
    models: Annotated[
        list[str] | None, typer.Argument(help=f"{MODEL_HELP} Or a folder of runs.", metavar="MODEL")
    ] = None,
    data: Annotated[str | None, typer.Option(help=_DATA)] = None,
    suite: Annotated[str | None, typer.Option(help=f"Run a suite of tasks: {', '.join(SUITES)}.")] = None,
    data_root: Annotated[Path | None, typer.Option(help=_DATA_ROOT)] = None,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Leave out sets of a suite that are not in --data-root.")
    ] = False,
    task: Annotated[
        str | None, typer.Option(help=f"{', '.join(TASKS)}; default: the task that fits the set.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split to measure; default: test.")] = None,
    draws: Annotated[
        int, typer.Option(min=1, help="How often to run each task that draws at random, with seeds 0, 1, …")
    ] = 1,
    prompt: Annotated[str | None, typer.Option(help=_PROMPT)] = None,
    output: Annotated[Path | None, typer.Option(help=_OUTPUT)] = None,
    json_lines: Annotated[bool, typer.Option("--json", help="Print records as JSON lines.")] = False,
    model_name: ModelName = None,
    image_size: Annotated[
        int | None, typer.Option(min=1, help="Image size in pixels; default: the model's.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images in a batch.")] = 64,
    workers: Annotated[int, typer.Option(min=0, help="Processes that read images ahead.")] = 0,
    device: Device = "auto",
) -> None:
    """Measure models on a set, or with a whole suite of tasks, and print a table.

    Example: diffclip evaluate runs/clip runs/diffclip --data flickr8k --data-root sets --split val

    Example: diffclip evaluate runs/demo --suite scenes --draws 3 --output results.jsonl

    Values have their 95 % interval over items and the chance level, if the metric has them. diffclip report makes
    tables and figures from the records.
    """
    require_group("report", "pandas", "scipy", "statsmodels")
    if not models:
        raise InputError(
            "there is no model to measure: name a run folder, a file of weights or a folder of runs"
        )
    if skip_missing and suite is None:
        raise InputError("--skip-missing is for suites: add --suite, or leave --skip-missing out")
    if suite is not None and data is not None:
        raise InputError("--data and --suite exclude each other: leave one out")
    if suite is None and data is None:
        raise InputError(
            f"give --data with a folder or the name of a set, or --suite with one of {', '.join(SUITES)}"
        )
    if suite is not None and suite not in SUITES:
        raise unknown_name("suite", suite, SUITES)
    if task is not None and task not in TASKS:
        raise unknown_name("task", task, TASKS)
    if suite is not None and (task is not None or split is not None):
        raise InputError(f"--suite {suite} has its own tasks and splits: leave --task and --split out")
    if data_root is not None and not data_root.is_dir():
        raise InputError(f"--data-root {data_root} is not a folder: name the one that holds the sets")
    sources = list(dict.fromkeys(run for model in models for run in runs_in(model)))
    for source in sources:
        find_model(source)
    if data is not None and data not in BUILT_IN:
        set_folder(data, data_root)
    if prompt is not None and "{c}" not in prompt:
        raise InputError(f"--prompt {prompt!r} has no place for the object's name: write {{c}} where it goes")
    say_loading(sources)
    from diffclip.evaluation.results_file import ResultsFile
    from diffclip.evaluation.run import Sets, run_entries
    from diffclip.training.logging import duration

    entries = (Entry(task, str(data), (split or "test",)),) if suite is None else SUITES[suite]
    if prompt is not None and all(entry.task not in ("focus", "faithfulness") for entry in entries):
        raise InputError(
            f"--prompt {prompt!r} is for focus and faithfulness: add --task focus, or leave it out"
        )
    if suite is not None:
        output = output or Path(f"{suite}.jsonl")
    if output is not None:
        check_writable(output)
    if suite is not None:
        entries = _select_present(suite, entries, data_root, skip_missing)
    results, sets, several = ResultsFile(output), Sets(data_root), len(entries) > 1
    if not several:
        sets.open(entries[0])  # report a wrong set before a model is loaded
    chosen_device, alone = pick_device(device), suite is None and len(sources) == 1
    records: list[Record] = []
    faults: dict[Fault, None] = {}
    failures: list[DiffCLIPError] = []
    seconds: list[float] = []
    tasks, planned = 0, len(sources) * len(entries)
    with ExitStack() as bar:

        def number_of(entry: Entry) -> int:
            return sources.index(source) * len(entries) + entries.index(entry) + 1

        def progress(entry: Entry) -> Progress:
            position = f"task {number_of(entry)} of {planned}, " if planned > 1 else ""
            return bar.enter_context(show_progress(f"{position}{loaded.label}: {entry}"))

        for source in sources:
            try:
                loaded = load_with_origin(source, model_name, image_size, only_clip=False)
            except InputError as error:
                if alone:
                    raise
                say(f"{source}: FAILED: {error}")
                failures.append(error)
                tasks += 1
                continue
            loaded.model.to(chosen_device)
            for measured in run_entries(
                loaded, entries, results, sets, range(draws), progress, batch_size, workers, prompt
            ):
                bar.close()
                tasks += 1
                records += measured.records
                faults |= dict.fromkeys(measured.faults)
                if measured.error:
                    failures.append(measured.error)
                if measured.left_out and alone:
                    raise InputError(measured.left_out)
                if not measured.reused:
                    seconds.append(measured.seconds)
                if not alone:
                    number = number_of(measured.entry)
                    left = duration(fmean(seconds or [0.0]) * (planned - number))
                    line = _describe_entry(loaded, measured)
                    say(f"{line} · task {number} of {planned}, about {left} left")
    _show(records, results, several, json_lines)
    if results.replaced:
        say(
            f"diffclip: {results.replaced} earlier results in {output} are replaced, as files, weights, settings or "
            "the version have changed: give another --output to keep both"
        )
    notes = [fault for fault in faults if fault.kind == "note"]
    skipped = [fault for fault in faults if fault.kind != "note"]
    say_skipped(f"{len(skipped)} samples, shards or masks", skipped)
    for note in notes:
        say(f"diffclip: {note}")
    if len(failures) == 1 and not several:
        raise failures[0]
    if failures:
        kind = InputError if all(isinstance(error, InputError) for error in failures) else DiffCLIPError
        hint = f"; the other results are in {output}" if records and output else ""
        raise kind(f"{len(failures)} of {tasks} tasks failed, see above{hint}")


def _show(records: Sequence[Record], results: ResultsFile, several: bool, json_lines: bool) -> None:
    """Print a table of the measured models, or all records of the file as JSON lines."""
    from diffclip.cli.evaluate_table import show_records
    from diffclip.evaluation.records import to_lines

    if json_lines:
        print(to_lines(results.records), end="")
    elif records:
        models = {(record.model, record.weights) for record in records}
        of_models = [record for record in results.records if (record.model, record.weights) in models]
        show_records(of_models if several else records, headlines_only=several)
        if results.path is not None and several:
            page = results.path.with_name(f"{results.path.stem}-report.html")
            command = shlex.join(["diffclip", "report", str(results.path), "--output", str(page)])
            print(f"Tables and figures: {command}")


def _describe_entry(loaded: Loaded, measured: Measured) -> str:
    """Describe one measured entry of a model in a line."""
    from diffclip.evaluation.records import records_table
    from diffclip.report.frame import headlines, results_of
    from diffclip.report.labels import interval, is_share, metric_label, percent

    name = loaded.label if loaded.seed is None else f"{loaded.label}, seed {loaded.seed}"
    if measured.left_out:
        return f"{name}: {measured.entry} left out: {measured.left_out}"
    if not measured.records:
        return f"{name}: {measured.entry} FAILED: {measured.error}"
    frame = results_of(records_table(measured.records)).records
    row = frame[frame["measure"] == headlines(frame)[0]].iloc[0]
    share = is_share(row)
    timing = "kept from before" if measured.reused else f"{measured.seconds:.1f} s"
    split = f", {row['split']} split" if row["split"] != "test" else ""
    draw = f", draw {measured.draw}" if measured.draw else ""
    value = f"{percent(row['value'], share)} [{interval(row['low'], row['high'], share)}]"
    return f"{name}: {measured.entry}{split}{draw}: {metric_label(row)} {value} ({timing})"


def _select_present(name: str, entries: Sequence[Entry], root: Path | None, skip: bool) -> tuple[Entry, ...]:
    """Select the entries of a suite whose sets are there; print size and download command of the missing sets."""
    from diffclip.evaluation.suite import missing_of

    missing = missing_of(entries, root)
    present = tuple(entry for entry in entries if not missing_of([entry], root))
    for dataset, instructions in missing.items():
        say(f"diffclip: missing {dataset}, {instructions}")
    if missing and not (present and skip):
        needed = f"suite {name} needs --data-root {root or 'FOLDER'} with {', '.join(missing)}"
        hint = ", or add --skip-missing to go on without" if present else ""
        raise InputError(f"{needed}: run the commands printed above{hint}")
    return present
