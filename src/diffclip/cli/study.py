"""`diffclip study`: a grid of runs, resumable anywhere."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.exceptions import TyperException

if TYPE_CHECKING:
    from diffclip.study.grid import Tally
    from diffclip.study.plan import Group


def study(
    recipe: Annotated[
        str, typer.Argument(help="A study's YAML file, or the name of one that comes with the package.")
    ],
    changes: Annotated[
        list[str] | None, typer.Argument(help="Changes to the study.", metavar="[KEY=VALUE]...")
    ] = None,
    data: Annotated[Path, typer.Option(help="The folder of the published sets.")] = Path("../shared/data"),
    runs: Annotated[Path | None, typer.Option(help="Where runs are trained; default: runs/STUDY.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Where finished runs are condensed to; default: benchmarks/results/STUDY."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Runs at a time; default: 1 on a CPU, on a GPU up to 14 by its cores."),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Of each run; default: 1 where several run at a time, else all cores."),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Stop in time, everything saved; the same command goes on.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="sweep, models or ablations; may be repeated. Default: all.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    keep: Annotated[bool, typer.Option("--keep", help="Keep the checkpoints of finished runs.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the data, tell what is to be done, and end there.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON.")] = False,
) -> None:
    """Train a grid of models, inits and seeds, put each through a suite, and keep what came of it in a small folder.

    Example: diffclip study study_cpu --data sets --output benchmarks/results/study_cpu --workers 2

    First the sweep, which chooses learning rate and weight decay for CLIP and for DiffCLIP; then models and ablations,
    seed by seed. What is finished is not done again, and a run that was stopped goes on from its checkpoint.

    Ctrl-C and SIGTERM save what goes on, and end with exit code 130 and 75.
    """
    from diffclip.errors import DiffCLIPError, InputError, StoppedError
    from diffclip.model_source import pick_device
    from diffclip.report.save import save_run
    from diffclip.study.grid import run_study, usual_workers
    from diffclip.study.one import Place
    from diffclip.study.ready import problems_of
    from diffclip.study.recipe import read_study

    if minutes is not None and minutes <= 0:
        raise InputError(f"--minutes {minutes:g} is no time: give more than 0, or leave it out")
    resolved = read_study(recipe, changes or [])
    groups = _groups(only)
    name = Path(recipe).stem
    chosen = pick_device(device).type
    place = Place(
        data=data,
        runs=runs or Path("runs") / name,
        output=output or Path("benchmarks/results") / name,
        device=chosen,
        side_by_side=workers or usual_workers(chosen),
        condense=save_run,
        keep=keep,
    )
    problems = problems_of(resolved, place, groups)
    if dry_run:
        from diffclip.cli.study_plan import show_plan

        show_plan(resolved, place, groups, problems, as_json)
    for problem in problems[:-1]:
        _say(f"diffclip: {problem}")
    if problems:
        raise InputError(problems[-1])
    if dry_run:
        return
    seconds = None if minutes is None else 60 * minutes
    tally = run_study(resolved, place, _say, groups=groups, threads=threads, seconds=seconds)
    if as_json:
        failures = {str(one.planned): one.failure for one in tally.failures}
        told = {"total": tally.total, "done": tally.done, "stopped": tally.stopped, "failures": failures}
        print(json.dumps({**told, "output": str(place.output)}, ensure_ascii=False))
    if tally.failures:
        kind = DiffCLIPError if any(one.ours for one in tally.failures) else InputError
        first = tally.failures[0]
        more = f"; {len(tally.failures) - 1} more failed, see above" if len(tally.failures) > 1 else ""
        raise kind(f"{first.planned} failed: {first.failure}{more} ({_progress(tally)})")
    if tally.stopped == signal.SIGINT:
        error = TyperException(f"interrupted: {_progress(tally)}")
        error.exit_code = 130
        raise error
    if isinstance(tally.stopped, int):
        raise StoppedError(f"asked to stop: {_progress(tally)}")
    if not as_json:
        print(f"{place.output}: {_progress(tally)}")


def _groups(only: list[str] | None) -> list[Group]:
    """Those that are wanted, in the order in which they are done."""
    from diffclip.errors import unknown
    from diffclip.study.plan import GROUPS

    for name in only or ():
        if name not in GROUPS:
            raise unknown("group of runs", name, GROUPS)
    return [group for group in GROUPS if not only or group in only]


def _progress(tally: Tally) -> str:
    done = f"{tally.done} of {tally.total} runs done"
    return done if tally.done == tally.total else f"{done}, the same command goes on"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
