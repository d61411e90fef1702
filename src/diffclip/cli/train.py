"""`diffclip train`: one run of a recipe."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from diffclip.cli.console import Changes, say_skipped
from diffclip.errors import InputError, require_report
from diffclip.training.stopping import LAUNCHED_BY, die_with_parent, exit_on_signals

_RECIPE = (
    "A recipe's YAML file, or the name of a built-in recipe. With --resume --run FOLDER it is optional: the run has "
    "its own."
)
_RESUME = (
    "Continue from the run's last whole checkpoint; if there is no run, start one. A larger epochs= extends the "
    "run."
)
_DEVICES = "Processes per node, with one GPU each; auto: all GPUs, or one process on a CPU."
_NODES = "Number of nodes; each runs this command with MASTER_ADDR, MASTER_PORT and its NODE_RANK."
_MAX_RESTARTS = (
    "How often the processes are started again, from the last checkpoint, after one was killed or failed with code 1, "
    "unless the run diverged."
)
_STRATEGY = "ddp: a whole model in each process; fsdp: the model is sharded; auto: ddp."
_DRY_RUN = "Open the data, time ten steps, print the plan of the run, and exit."


@exit_on_signals()
def train(
    recipe: Annotated[str | None, typer.Argument(help=_RECIPE)] = None,
    changes: Changes = None,
    run: Annotated[
        Path | None, typer.Option("--run", "-r", help="The run's folder; default: runs/RECIPE-MODEL-sSEED.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help=_RESUME)] = False,
    devices: Annotated[str, typer.Option(help=_DEVICES)] = "auto",
    nodes: Annotated[int, typer.Option(min=1, help=_NODES)] = 1,
    max_restarts: Annotated[int, typer.Option(min=0, help=_MAX_RESTARTS)] = 0,
    strategy: Annotated[Literal["auto", "ddp", "fsdp"], typer.Option(help=_STRATEGY)] = "auto",
    accelerator: Annotated[Literal["auto", "cuda", "cpu"], typer.Option(help="The device.")] = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help=_DRY_RUN)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: the plan as JSON.")] = False,
) -> None:
    """Train the model of a recipe, and write its checkpoints, log and report to a folder.

    Example: diffclip train recipes/flickr8k_cpu.yaml model=DiffCLIP seed=1 --run runs/diffclip-1

    SIGTERM, SIGUSR1 and Ctrl-C save the state and end with exit code 75; the same command with --resume continues.

    torchrun and srun may start the processes: torchrun --nproc-per-node 8 -m diffclip.cli train RECIPE -r FOLDER
    """
    if LAUNCHED_BY in os.environ:
        die_with_parent()
    from diffclip.training.recipe import read_recipe

    words = [word for word in (recipe, *(changes or [])) if word is not None]
    if words and ("=" not in words[0] or Path(words[0]).is_file()):
        source = words.pop(0)
    elif not resume or run is None:
        raise InputError("no recipe is given: name one, or give --resume --run FOLDER to go on with a run")
    elif not (run / "recipe.yaml").is_file():
        raise InputError(f"{run} has no run to resume: name a recipe to start one")
    else:
        source = str(run / "recipe.yaml")
    resolved = read_recipe(source, words)
    run = run or Path("runs") / f"{Path(source).stem}-{resolved.model}-s{resolved.seed}"
    if devices != "auto" and not (devices.isdecimal() and int(devices)):
        raise InputError(f"--devices {devices} is not a number of processes: give a number or auto")
    if as_json and not dry_run:
        raise InputError("--json belongs to --dry-run: add it, or leave it out")
    from diffclip.training.launch import Hardware, launch, launched_sizes

    hardware = Hardware("auto" if devices == "auto" else int(devices), nodes, strategy, accelerator)
    if dry_run:
        from diffclip.cli.train_plan import show_dry_run

        show_dry_run(resolved, run, resume, hardware, as_json)
        if nodes > 1 and not as_json:
            words = ["diffclip", "train", source, *words, "--run", str(run), "--resume"]
            words += ["--devices", devices, "--nodes", str(nodes), "--strategy", strategy]
            print(
                "on each node, with MASTER_ADDR the address of node 0 and NODE_RANK the node's number from 0:\n"
                f"MASTER_ADDR=… MASTER_PORT=29500 NODE_RANK=… {shlex.join(words)}"
            )
        return
    require_report()
    hardware = hardware.resolved()
    if (hardware.world > 1 or max_restarts) and launched_sizes() is None:
        launch(hardware, max_restarts)
        return
    from diffclip.training.run import train as run_training

    outcome = run_training(resolved, run, resume, hardware)
    if outcome.rank:
        return
    from diffclip.report.page import write_report

    page = write_report([run], run / "report.html", command=shlex.join(["diffclip", "report", str(run)]))
    say_skipped(f"{len(outcome.skipped)} broken samples or shards", outcome.skipped)
    print(f"{run}: {outcome.progress.step} steps, {outcome.progress.samples} samples; see {page}")
