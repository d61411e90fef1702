"""`diffclip evaluate`: a task or a whole suite, of some models or of each checkpoint of a run as it appears."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffclip.model_source import MODEL_HELP, find_model, pick_device

if TYPE_CHECKING:
    from diffclip.evaluation.suite import Entry


def evaluate(
    models: Annotated[list[str] | None, typer.Argument(help=MODEL_HELP, metavar="MODEL...")] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="A folder in clip_benchmark's layout, or the name of a set: built in (scenes, scenes-shapes, "
            "scenes-mmvp …) or published (cifar10, imagenet1k, flickr30k …) in --data-root.",
        ),
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(help="Many tasks and sets instead of one.", metavar="scenes|brief|quick|study|paper"),
    ] = None,
    data_root: Annotated[
        Path | None, typer.Option(help="The folder in which published sets lie, each in one of its name.")
    ] = None,
    skip_missing: Annotated[
        bool,
        typer.Option("--skip-missing", help="Leave out the sets of a suite that are not in --data-root."),
    ] = False,
    task: Annotated[
        str | None,
        typer.Option(
            help="zero-shot, linear-probe or few-shot for classes, retrieval for captions, mmvp for its folder of "
            "pairs, focus for pictures with masks; default: zero-shot, retrieval or mmvp, as the set is."
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Which split of the set to test on; default: test.")
    ] = None,
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
    seeds: Annotated[
        int, typer.Option(min=1, help="Draw that often, with --seed and the following: mean ± sd.")
    ] = 1,
    watch: Annotated[
        Path | None,
        typer.Option(help="Measure each checkpoint of this run as it appears, until the run is finished."),
    ] = None,
    probe: Annotated[
        str | None,
        typer.Option(
            help="How linear-probe fits: torch (as lgssl, the default) or sklearn.", metavar="torch|sklearn"
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            help="The text that focus asks about, with {c} for what a mask shows, instead of the set's.",
            metavar='"a photo of a {c}"',
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Write the records to this file, as JSON lines, and the outcome of every item beside it. A suite that "
            "was stopped goes on from there. Default for suites: SUITE.jsonl"
        ),
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
    """Measure models on a set: zero-shot, linear probe or few-shot classification, retrieval, minimal pairs (mmvp), and
    how much of what they look at lies on the object (focus).

    Example: diffclip evaluate runs/clip runs/diffclip --data flickr8k --data-root sets --split val

    Example: diffclip evaluate runs/clip runs/diffclip --data sets/cifar10 --task linear-probe --output results.jsonl

    Example: diffclip evaluate runs/clip runs/diffclip --data scenes --task focus --output focus.jsonl

    Example: diffclip evaluate runs/clip runs/diffclip --suite scenes --seeds 3 --output results.jsonl

    Example: diffclip evaluate --watch runs/clip --suite quick --data-root sets

    Every number comes with its 95 % interval and the chance level.

    Several models are also compared on the same items, with the first one, and in a suite with the CLIP among them
    (paired tests; p corrected for the number of tests). diffclip report makes tables and figures from the records.

    linear-probe and few-shot learn from the set's split train; features are kept in the user's cache folder.
    """
    from diffclip.cli.evaluate_run import Request, carry_out
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
    _check_probe(probe, entries)
    _check_prompt(prompt, task)
    if suite is not None and output is None:
        output = Path(f"{suite}.jsonl")
    if output is not None:
        check_writable(output)
    for model in models or ():
        find_model(model)
    carry_out(
        Request(
            models=models or [],
            watch=watch,
            entries=entries,
            suite=suite,
            root=data_root,
            skip_missing=skip_missing,
            draws=range(seed, seed + seeds),
            probe=probe or "torch",
            prompt=prompt,
            output=output,
            json_lines=json_lines,
            model_name=model_name,
            image_size=image_size,
            batch_size=batch_size,
            workers=workers,
            device=pick_device(device),
        )
    )


def _entries(
    name: str | None, data: str | None, task: str | None, split: str | None, corrupt: str | None
) -> tuple[Entry, ...]:
    """What is to be measured."""
    from diffclip.errors import InputError, unknown
    from diffclip.evaluation.corruptions import check
    from diffclip.evaluation.suite import Entry, suite
    from diffclip.evaluation.tasks import TASKS

    if (name is None) == (data is None):
        raise InputError(
            "give --data with a folder or the name of a set, or --suite with scenes, brief, quick, study or paper"
        )
    if name is not None:
        if task is not None or corrupt is not None or split is not None:
            raise InputError(
                f"--suite {name} has its own tasks, splits and corruptions: leave --task, --split and --corrupt out"
            )
        return suite(name)
    if task is not None and task not in TASKS:
        raise unknown("task", task, TASKS)
    change, severity = "noise", 0
    if corrupt is not None:
        change, _, level = corrupt.partition(":")
        if not level.isdecimal():
            raise InputError(f"--corrupt {corrupt} has no severity: write, say, noise:3")
        severity = int(level)
    check(change, severity, 0)
    return (Entry(task, str(data), (split or "test",), change, severity),)


def _check_probe(probe: str | None, entries: tuple[Entry, ...]) -> None:
    from diffclip.errors import InputError
    from diffclip.evaluation.linear_probe import check_solver

    if probe is None:
        return
    if not any(entry.task == "linear-probe" for entry in entries):
        raise InputError(f"--probe {probe} says how a linear probe fits: add --task linear-probe")
    check_solver(probe)


def _check_prompt(prompt: str | None, task: str | None) -> None:
    from diffclip.errors import InputError

    if prompt is None:
        return
    if task != "focus":
        raise InputError(f"--prompt {prompt!r} is what focus asks about: add --task focus, or leave it out")
    if not prompt.strip():
        raise InputError("--prompt is empty: write, say, 'a photo of a {c}'")
