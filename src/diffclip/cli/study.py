"""`diffclip study`: train and evaluate a grid of runs, which can be stopped and resumed at any point."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path
from typing import Annotated, Literal

import typer

from diffclip.cli.console import Changes, say
from diffclip.errors import DiffCLIPError, InputError, StoppedError, require_group, unknown_name
from diffclip.names import GROUPS
from diffclip.sources.load import pick_device

_OUTPUT = "Folder of the results; default: that of a spec.yaml, else results/STUDY."
_WORKERS = (
    "Runs at a time; default: 1 on a CPU, on GPUs what their memory and the cores allow, on a cluster 256. Runs are "
    "spread over the GPUs in CUDA_VISIBLE_DEVICES."
)
_THREADS = "CPU threads of each run; default: the cores divided by the runs at a time."
_ONLY = "Group of runs: sweep, models or ablations; may be repeated. Default: all."
_CLUSTER = "Make every run a job of this cluster's queue, which goes on if this command ends."
_SLURM = "With --cluster slurm: options of the jobs, as partition=main,gpus_per_node=1,timeout_min=240."
_DRY_RUN = "Check the data, print runs, hours and detectable difference; train nothing."
_PILOT = "With --dry-run: the results of another study, to estimate time and variance from."


def study(
    recipe: Annotated[
        str, typer.Argument(help="A study's YAML file, or the name of a built-in study.", metavar="SPEC")
    ],
    changes: Changes = None,
    data: Annotated[Path, typer.Option(help="Folder of the published sets.")] = Path("sets"),
    runs: Annotated[Path | None, typer.Option(help="Folder of the runs; default: runs/STUDY.")] = None,
    output: Annotated[Path | None, typer.Option(help=_OUTPUT)] = None,
    workers: Annotated[int | None, typer.Option(min=1, help=_WORKERS)] = None,
    threads: Annotated[int | None, typer.Option(min=1, help=_THREADS)] = None,
    only: Annotated[list[str] | None, typer.Option(help=_ONLY)] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="The device.")] = "auto",
    cluster: Annotated[Literal["slurm"] | None, typer.Option(help=_CLUSTER)] = None,
    slurm: Annotated[str | None, typer.Option(help=_SLURM)] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the checkpoints of finished runs.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=_DRY_RUN)] = False,
    pilot: Annotated[Path | None, typer.Option(help=_PILOT)] = None,
) -> None:
    """Train a grid of models, inits and seeds, evaluate each with a suite, and collect the results in a small folder.

    Example: diffclip study study_cpu --data sets-80 --output results/study_cpu --workers 2

    The sweep runs first and chooses learning rate and weight decay; models and ablations follow, seed by seed. Finished
    runs are not repeated, and a stopped run continues from its checkpoint.

    Ctrl-C (exit code 130) and SIGTERM (exit code 75) save the current runs. Jobs of a cluster go on: the same command
    finds them, queues lost ones again, and collects the results.
    """
    from diffclip.training.recipe_file import find_recipe

    path = find_recipe(recipe, "study_")
    if pilot is not None and not dry_run:
        raise InputError("--pilot is for --dry-run: add --dry-run, or leave --pilot out")
    for group in only or ():
        if group not in GROUPS:
            raise unknown_name("group of runs", group, GROUPS)
    if slurm is not None and cluster is None:
        raise InputError("--slurm is for jobs of a cluster: add --cluster slurm, or leave --slurm out")
    import torch

    from diffclip.evaluation.verdicts import SPEC_FILE
    from diffclip.study.executors import Local, Slurm, parse_options
    from diffclip.study.results import RUNS_FILE
    from diffclip.study.runs import run_study
    from diffclip.study.site import Site, check_site, entries_of, unavailable_sets, usual_workers
    from diffclip.study.spec import read_study

    if pilot is not None and not (pilot / RUNS_FILE).is_file():
        raise InputError(f"--pilot {pilot} has no {RUNS_FILE}: give the results of a study")
    resolved = read_study(recipe, changes or [])
    groups = [group for group in GROUPS if not only or group in only]
    for group in only or ():
        if group not in (*resolved.grids, *(["sweep"] if resolved.sweep else ())):
            raise InputError(f"--only {group}: {path} has no {group}, leave it out")
    name = path.resolve().parent.name if path.name == SPEC_FILE else path.stem
    job_options = parse_options(slurm or "")
    if cluster is None:
        chosen = pick_device(device).type
        at_a_time = workers or usual_workers(chosen, resolved.recipes.values())
        threads = threads or max(1, torch.get_num_threads() // at_a_time)
    else:  # this machine's devices are not those of the nodes
        has_gpus = any("gpu" in f"{key}={value}" for key, value in job_options.items())
        chosen = ("cuda" if has_gpus else "cpu") if device == "auto" else device
        at_a_time = workers or 256
        threads = threads or int(job_options.get("cpus_per_task", 1))
    site = Site(
        data=data,
        runs=runs or Path("runs") / name,
        output=output or (path.parent if path.name == SPEC_FILE else Path("results") / name),
        device=chosen,
        workers=at_a_time,
        threads=threads,
        keep=keep,
        cluster=cluster is not None,
    )
    if dry_run:
        require_group("report", "pandas", "scipy", "statsmodels")
        from diffclip.cli.study_plan import show_plan

        show_plan(resolved, site, groups, pilot)
    check_site(resolved, site, groups)
    for name in unavailable_sets(resolved, site, entries_of(resolved, groups)):
        say(
            f"diffclip: {name} is not in {site.data}, and no command downloads it: runs are measured without it"
        )
    if dry_run:
        return
    executor = Slurm(site.runs, job_options, at_a_time) if cluster else Local(at_a_time, chosen)
    tally = run_study(resolved, site, say, groups, executor)
    progress = f"{tally.done} of {tally.total} runs done"
    progress += "" if tally.done == tally.total else ", the same command goes on"
    if tally.failures:
        kind = DiffCLIPError if any(ended.code == 1 for ended in tally.failures.values()) else InputError
        first, ended = next(iter(tally.failures.items()))
        suffix = f"; {len(tally.failures) - 1} more failed, see above" if len(tally.failures) > 1 else ""
        raise kind(f"{first} failed: {ended.line}{suffix} ({progress})")
    if tally.signal == signal.SIGINT:
        error = StoppedError(f"interrupted: {progress}")
        error.exit_code = 130  # of Ctrl-C
        raise error
    if tally.signal:
        raise StoppedError(f"asked to stop: {progress}")
    print(f"{site.output}: {progress}")
    print(shlex.join(["diffclip", "report", str(site.output)]))
