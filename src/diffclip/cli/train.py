"""`diffclip train`: one run of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.exceptions import TyperException

from diffclip.cli.skipped import say_skipped

if TYPE_CHECKING:
    from diffclip.training.distributed import Hardware
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
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the run's last checkpoint that is whole.")
    ] = False,
    devices: Annotated[
        str, typer.Option(help="Processes a node, each with its GPU; auto: all GPUs, or one on a CPU.")
    ] = "auto",
    nodes: Annotated[
        int,
        typer.Option(help="Nodes; each runs this command with MASTER_ADDR, MASTER_PORT and its NODE_RANK."),
    ] = 1,
    strategy: Annotated[
        str,
        typer.Option(help="ddp: a copy of the model a process; fsdp: shared out over them; auto: ddp."),
    ] = "auto",
    accelerator: Annotated[str, typer.Option(help="auto, cuda or cpu.")] = "auto",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the data and print what the run needs, and end there.")
    ] = False,
    gpu: Annotated[
        str | None, typer.Option(help="With --dry-run: the GPU to plan for; default: a100-80gb.")
    ] = None,
    price: Annotated[
        float | None, typer.Option(help="With --dry-run: dollars an hour and GPU; default: a usual one.")
    ] = None,
    utilisation: Annotated[
        float | None,
        typer.Option(help="With --dry-run: share of the GPU's rate that training reaches; default: 0.3."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: the plan as JSON.")] = False,
) -> None:
    """Train a model as a recipe says, and leave its checkpoints, telemetry and report in a folder.

    Example: diffclip train recipes/flickr8k_cpu.yaml model=DiffCLIP seed=1 --run runs/diffclip-1

    torchrun and srun start the processes themselves: torchrun --nproc-per-node 8 -m diffclip.cli -- train RECIPE …

    SIGTERM and SIGUSR1 save the state and end with exit code 75; --resume goes on from there.
    """
    from diffclip.errors import DiffCLIPError, InputError
    from diffclip.training.distributed import started_by_us
    from diffclip.training.recipe import read_recipe

    resolved = read_recipe(recipe, changes or [])
    run = run or Path("runs") / f"{Path(recipe).stem}-{resolved.model}-s{resolved.seed}"
    hardware = _hardware(devices, nodes, strategy, accelerator)
    planned = {"--gpu": gpu, "--price": price, "--utilisation": utilisation, "--json": as_json or None}
    alone = [name for name, value in planned.items() if value is not None]
    if alone and not dry_run:
        raise InputError(f"{', '.join(alone)} belong to --dry-run: add it, or leave them out")
    if dry_run:
        from diffclip.cli.train_plan import dry_run as show_plan

        show_plan(resolved, hardware, gpu or "a100-80gb", price, as_json, run, resume, utilisation)
        return
    try:
        train_and_report(resolved, run, resume, hardware)
    except KeyboardInterrupt:
        if started_by_us():  # the first process tells it
            return
        kept = (run / "checkpoints" / "last").exists()
        way_on = "go on with --resume" if kept else "there is no checkpoint yet, start again"
        raise InterruptedRun(f"interrupted: {way_on}") from None
    except DiffCLIPError as error:
        if started_by_us() and error.shared:
            return
        raise


def _hardware(devices: str, nodes: int, strategy: str, accelerator: str) -> Hardware:
    from diffclip.errors import InputError
    from diffclip.training.distributed import Hardware

    if devices != "auto" and not devices.isdecimal():
        raise InputError(f"--devices {devices} is no number of processes: give one, or auto")
    return Hardware("auto" if devices == "auto" else int(devices), nodes, strategy, accelerator)


def train_and_report(recipe: Recipe, run: Path, resume: bool, hardware: Hardware | None = None) -> Outcome:
    """Train, write the run's own report, and tell what was skipped; the first process tells it for all."""
    from diffclip.report import report_run
    from diffclip.training.loop import train as run_training

    outcome = run_training(recipe, run, resume, hardware)
    if hardware is not None and hardware.resolved().rank():
        return outcome
    report_run(run)
    say_skipped(f"{len(outcome.skipped)} broken samples or shards", list(outcome.skipped.values()))
    print(
        f"{run}: {outcome.progress.step} steps, {outcome.progress.samples} samples; see {run / 'report.html'}"
    )
    return outcome
