"""`diffclip evaluate`: a task or a whole suite, of some models or of each checkpoint of a run as it appears."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffclip.model_source import MODEL_HELP, find_model, pick_device, runs_in

if TYPE_CHECKING:
    from diffclip.errors import Fault
    from diffclip.evaluation.embed import Progress
    from diffclip.evaluation.run import Measured
    from diffclip.evaluation.suite import Entry


def evaluate(
    models: Annotated[
        list[str] | None, typer.Argument(help=f"{MODEL_HELP} Or a folder of runs.", metavar="MODEL...")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="A folder in clip_benchmark's layout, or the name of a set: built in (scenes, scenes-shapes, "
            "scenes-mmvp …) or published (cifar10, imagenet1k, flickr30k …) in --data-root."
        ),
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(help="Run a whole suite of tasks.", metavar="scenes|brief|quick|study|paper"),
    ] = None,
    data_root: Annotated[
        Path | None, typer.Option(help="Folder of published sets, each in a folder of its name.")
    ] = None,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Leave out sets of a suite that are not in --data-root.")
    ] = False,
    task: Annotated[
        str | None,
        typer.Option(
            help="zero-shot, linear-probe, few-shot, retrieval, mmvp or focus; default: zero-shot, retrieval or "
            "mmvp, as the set is."
        ),
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split to test on; default: test.")] = None,
    corrupt: Annotated[
        str | None,
        typer.Option(
            help="Corrupt the images first: noise, blur, jpeg or contrast, with severity 1 to 5.",
            metavar="NAME:SEVERITY",
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            min=0, help="Seed of few-shot's episodes and of the images that a linear probe holds out."
        ),
    ] = 0,
    seeds: Annotated[
        int,
        typer.Option(min=1, help="Repeat tasks that draw at random with this many seeds, from --seed on."),
    ] = 1,
    watch: Annotated[
        Path | None,
        typer.Option(help="Measure each checkpoint of this run as it appears, until the run is finished."),
    ] = None,
    probe: Annotated[
        str | None,
        typer.Option(help="Solver of the linear probe; default: torch, as lgssl.", metavar="torch|sklearn"),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            help="Text that focus asks about, with {c} for the name of the masked object.",
            metavar='"a photo of a {c}"',
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Write the records to this file (JSON lines); tasks that it holds already are not run again. "
            "Default for suites: SUITE.jsonl"
        ),
    ] = None,
    json_lines: Annotated[
        bool, typer.Option("--json", help="Print records, one a line, instead of a table.")
    ] = False,
    model_name: Annotated[
        str | None, typer.Option(help="Model in a published file whose names and shapes fit several.")
    ] = None,
    image_size: Annotated[int | None, typer.Option(min=1, help="Evaluate at another image size.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images at once.")] = 64,
    workers: Annotated[int, typer.Option(min=0, help="Processes that read images ahead.")] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto prefers CUDA.")] = "auto",
) -> None:
    """Measure models on a set: zero-shot, linear probe or few-shot classification, retrieval, minimal pairs (mmvp), and
    how much of what they look at lies on the object (focus).

    Example: diffclip evaluate runs/clip runs/diffclip --data flickr8k --data-root sets --split val

    Example: diffclip evaluate runs/demo --suite scenes --seeds 3 --output results.jsonl

    Example: diffclip evaluate --watch runs/clip --suite quick --data-root sets

    Every number has its 95 % interval over items and the chance level. diffclip report makes tables and figures from
    the records.
    """
    from diffclip.errors import InputError
    from diffclip.files import check_writable

    if (watch is None) == (not models):
        raise InputError(
            "nothing to measure: give models, or one run with --watch RUN"
            if watch is None
            else "--watch RUN measures that run's checkpoints: leave the models out"
        )
    if skip_missing and suite is None:
        raise InputError("--skip-missing leaves sets of a suite out: add --suite, or leave it out")
    entries = _entries(suite, data, task, split, corrupt)
    _check_options(entries, probe, prompt)
    if suite is not None and output is None:
        output = Path(f"{suite}.jsonl")
    if output is not None:
        check_writable(output)
    sources = [run for model in models or () for run in runs_in(model)]
    for source in sources:
        find_model(source)
    if suite is not None:
        entries = _present(suite, entries, data_root, skip_missing)
    settings = {"batch_size": batch_size, "workers": workers, "probe": probe or "torch", "prompt": prompt}
    _run(
        sources if watch is None else _checkpoints(watch),
        entries,
        output,
        data_root,
        range(seed, seed + seeds),
        settings,
        {"model_name": model_name, "image_size": image_size},
        device,
        json_lines,
        alone=suite is None and watch is None and len(sources) == 1,
    )


def _run(
    sources: Sequence[str] | Iterator[str],
    entries: Sequence[Entry],
    output: Path | None,
    root: Path | None,
    draws: Sequence[int],
    settings: dict[str, Any],
    loading: dict[str, Any],
    device: str,
    json_lines: bool,
    alone: bool,
) -> None:
    """Measure, write and show; a failed model or task is told, and raised when all others are done."""
    from diffclip.cli.evaluate_table import show_records
    from diffclip.cli.progress import showing_progress
    from diffclip.errors import DiffCLIPError, InputError
    from diffclip.evaluation.records import Record, to_lines
    from diffclip.evaluation.results_file import ResultsFile
    from diffclip.evaluation.run import Sets, run_entries
    from diffclip.model_source import load_for_use

    sets, results = Sets(root), ResultsFile(output)
    place = pick_device(device)
    if len(entries) == 1:
        sets.open(entries[0])  # a wrong set is told before a model is loaded
    done: list[Record] = []
    tasks = 0
    failures: list[tuple[str, bool]] = []
    faults: list[Fault] = []
    for source in sources:
        try:
            loaded = load_for_use(source, **loading)
        except InputError as error:
            if alone:
                raise
            print(f"{source}: FAILED: {error}", file=sys.stderr, flush=True)
            failures.append((str(error), False))
            tasks += 1
            continue
        loaded.model.to(place)
        with ExitStack() as shown:

            def progress(
                entry: Entry, items: int, name: str = loaded.label, shown: ExitStack = shown
            ) -> Progress:
                shown.close()
                return shown.enter_context(showing_progress(f"{name}: {entry}", {"images": items}))

            for measured in run_entries(loaded, entries, results, sets, draws, progress, **settings):
                shown.close()
                tasks += 1
                done += measured.records
                faults += [fault for fault in measured.faults if fault not in faults]
                if measured.failure:
                    failures.append((measured.failure, measured.ours))
                if not alone:
                    print(
                        f"{_name(loaded.label, loaded.seed)}: {_line(measured)}", file=sys.stderr, flush=True
                    )
    if done:
        results.write()
    if json_lines:
        print(to_lines(results.records), end="")
    elif done:
        several = len(entries) > 1
        models = {(record.model, record.weights) for record in done}
        shown_records = (
            [one for one in results.records if (one.model, one.weights) in models] if several else done
        )
        show_records(shown_records, results.outcomes, headlines_only=several)
        if output is not None and several:
            print(f"Tables and figures: diffclip report {output} --output {output.with_suffix('.html')}")
    _tell_skipped([fault for fault in faults if fault.kind != "note"])
    for fault in (one for one in faults if one.kind == "note"):
        print(f"diffclip: {fault}", file=sys.stderr)
    if failures:
        kind = DiffCLIPError if any(ours for _, ours in failures) else InputError
        if len(failures) == len(entries) == 1:
            raise kind(failures[0][0])
        kept = f"; the other results are in {output}" if done and output else ""
        raise kind(f"{len(failures)} of {tasks} tasks failed, see above{kept}")


def _tell_skipped(faults: Sequence[Fault]) -> None:
    from diffclip.cli.skipped import say_skipped

    say_skipped(f"{len(faults)} samples, shards or masks", faults)


def _name(label: str, seed: int | None) -> str:
    return label if seed is None else f"{label}, seed {seed}"


def _line(measured: Measured) -> str:
    """Tell one entry in a line."""
    if not measured.records:
        return f"{measured.entry} FAILED: {measured.failure}"
    from diffclip.report.frame import interval, is_share, metric_label, percent

    row = measured.records[0].model_dump()
    share = is_share(row)
    how = "kept from before" if measured.reused else f"{measured.seconds:.1f} s"
    split = f", {row['split']} split" if row["split"] != "test" else ""
    draw = f", draw {measured.draw}" if measured.draw else ""
    value = f"{percent(row['value'], share)} [{interval(row['low'], row['high'], share)}]"
    return f"{measured.entry}{split}{draw}: {metric_label(row)} {value} ({how})"


def _entries(
    name: str | None, data: str | None, task: str | None, split: str | None, corrupt: str | None
) -> tuple[Entry, ...]:
    from diffclip.errors import InputError, unknown
    from diffclip.evaluation.corruptions import check
    from diffclip.evaluation.suite import SUITES, Entry, suite
    from diffclip.evaluation.tasks import TASKS

    if (name is None) == (data is None):
        raise InputError(
            f"give --data with a folder or the name of a set, or --suite with one of {', '.join(SUITES)}"
        )
    if name is not None:
        if task is not None or corrupt is not None or split is not None:
            raise InputError(
                f"--suite {name} has its own tasks, splits and corruptions: leave --task, --split and --corrupt out"
            )
        return suite(name)
    if task is not None and task not in TASKS:
        raise unknown("task", task, TASKS)
    splits = (split or "test",)
    if corrupt is None:
        return (Entry(task, str(data), splits),)
    change, _, severity = corrupt.partition(":")
    if not severity.isdecimal():
        raise InputError(f"--corrupt {corrupt} has no severity: write, say, noise:3")
    check(change, int(severity))
    return (Entry(task, str(data), splits, change if int(severity) else None, int(severity)),)


def _check_options(entries: Sequence[Entry], probe: str | None, prompt: str | None) -> None:
    from diffclip.errors import InputError
    from diffclip.evaluation.linear_probe import check_solver

    tasks = {entry.task for entry in entries}
    if probe is not None:
        if "linear-probe" not in tasks:
            raise InputError(f"--probe {probe} says how a linear probe fits: add --task linear-probe")
        check_solver(probe)
    if prompt is not None and tasks != {"focus"}:
        raise InputError(f"--prompt {prompt!r} is what focus asks about: add --task focus, or leave it out")
    if prompt is not None and not prompt.strip():
        raise InputError("--prompt is empty: write, say, 'a photo of a {c}'")


def _present(name: str, entries: Sequence[Entry], root: Path | None, skip: bool) -> tuple[Entry, ...]:
    """Select the entries of a suite whose sets are there; tell size and download command of the others."""
    from diffclip.errors import InputError
    from diffclip.evaluation.suite import missing_of

    missing = missing_of(entries, root)
    left = tuple(entry for entry in entries if entry.dataset not in missing)
    for one in missing.values():
        print(f"diffclip: missing {one.name}, {one.size} to download: {one.command}", file=sys.stderr)
    if missing and not (left and skip):
        where = f"in {root}" if root else "without --data-root FOLDER"
        way = ", or add --skip-missing to go on without" if left else ""
        sets = len({entry.dataset for entry in entries})
        raise InputError(
            f"{len(missing)} of the {sets} sets of the suite {name} are missing {where}: get them as named above{way}"
        )
    return left


def _checkpoints(run: Path) -> Iterator[str]:
    """Yield the checkpoints of the watched run as they appear; one that is replaced meanwhile is left out."""
    from diffclip.training.checkpoint import checkpoints_of

    told = False

    def waiting() -> None:
        nonlocal told
        if not told:
            print(
                f"diffclip: waiting for checkpoints of {run}; Ctrl-C ends this", file=sys.stderr, flush=True
            )
        told = True

    for folder in checkpoints_of(run, waiting):
        if folder.exists():
            yield str(folder)
