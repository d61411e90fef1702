"""`diffclip train`: one run of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.exceptions import TyperException

from diffclip.cli.skipped import say_skipped

if TYPE_CHECKING:
    from diffclip.training.loop import Outcome
    from diffclip.training.recipe import Recipe


class InterruptedRun(TyperException):
    """Ctrl-C during a run: the line that tells how to go on, and the exit code of an interrupt."""

    exit_code = 130


def train(
    recipe: Annotated[
        str, typer.Argument(help="A recipe's YAML file, or the name of one that comes with the package.")
    ],
    changes: Annotated[
        list[str] | None, typer.Argument(help="Changes to the recipe.", metavar="[KEY=VALUE]...")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="The run's folder; default: runs/RECIPE-MODEL-sSEED.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run's last checkpoint.")] = False,
) -> None:
    """Train a model as a recipe says, and leave its checkpoints, telemetry and report in a folder.

    Example: diffclip train recipes/flickr8k_cpu.yaml model=DiffCLIP seed=1 --run runs/diffclip-1
    """
    from diffclip.training.recipe import read_recipe

    resolved = read_recipe(recipe, changes or [])
    run = run or Path("runs") / f"{Path(recipe).stem}-{resolved.model}-s{resolved.seed}"
    try:
        train_and_report(resolved, run, resume)
    except KeyboardInterrupt:
        kept = (run / "checkpoints" / "last").exists()
        way_on = "go on with --resume" if kept else "there is no checkpoint yet, start again"
        raise InterruptedRun(f"interrupted: {way_on}") from None


def train_and_report(recipe: Recipe, run: Path, resume: bool) -> Outcome:
    """Train, write the run's own report, and tell what was skipped."""
    from diffclip.report import report_run
    from diffclip.training.loop import train as run_training

    outcome = run_training(recipe, run, resume)
    report_run(run)
    say_skipped(f"{len(outcome.skipped)} broken samples or shards", list(outcome.skipped.values()))
    print(
        f"{run}: {outcome.progress.step} steps, {outcome.progress.samples} samples; see {run / 'report.html'}"
    )
    return outcome
