"""`diffclip train RECIPE --dry-run`: what a run will take, and whether it could start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from diffclip.cli.console import table_console
from diffclip.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from diffclip.training.distributed import Hardware
    from diffclip.training.plan import OnGPU, Plan
    from diffclip.training.recipe import Recipe


def dry_run(
    recipe: Recipe,
    hardware: Hardware,
    gpu: str | None = None,
    price: float | None = None,
    as_json: bool = False,
    run: Path | None = None,
    resume: bool = False,
    utilisation: float | None = None,
) -> None:
    """Print the plan of a run on `hardware`, whose GPUs need not be here, after a look at its data; nothing is written.

    Raises:
        InputError: the run could not start; all reasons but the last have been told on stderr.
    """
    from diffclip.training.plan import UTILISATION, plan_run
    from diffclip.training.ready import check_ready

    devices, nodes = hardware.devices, hardware.nodes
    if devices == "auto":
        devices = int(hardware.resolved().devices)
    if devices < 1 or nodes < 1:
        raise InputError(f"{devices} devices on {nodes} nodes: both must be at least 1")
    ready = check_ready(recipe, run, resume, devices * nodes)
    share = UTILISATION if utilisation is None else utilisation
    plan = plan_run(recipe, devices, nodes, hardware.strategy, gpu, price, ready.samples, share)
    if plan.on_gpu is not None and not plan.on_gpu.fits:
        ready.problems.insert(0, f"{plan.on_gpu.gpu.name}: {plan.on_gpu.advice}")
    if as_json:
        found = {"found": ready.found, "notes": ready.notes, "problems": ready.problems}
        print(json.dumps(plan.as_json() | {"data": found}, indent=1, ensure_ascii=False))
    else:
        show_plan(plan)
        for line in (*ready.found, *ready.notes):
            typer.echo(line)
    for problem in ready.problems[:-1]:
        typer.echo(f"diffclip: {problem}", err=True)
    if ready.problems:
        raise InputError(ready.problems[-1])


def show_plan(plan: Plan) -> None:
    """The plan as tables: the model, the memory of one process, and the run."""
    console = table_console()
    processes = "1 process" if plan.world == 1 else f"{plan.world} processes ({plan.strategy})"
    parts = "" if plan.passes == 1 else f" in {plan.passes} passes of {plan.pass_size:,}"
    console.print(
        f"{plan.model}, {plan.precision}, batch {plan.batch_size:,}: {processes}, {plan.share:,} samples each{parts}",
        highlight=False,
    )
    for table in (_parameters(plan), _operations(plan), _memory(plan), _run(plan)):
        console.print(table)
    if plan.on_gpu is not None and plan.on_gpu.advice and plan.on_gpu.fits:
        console.print(plan.on_gpu.advice, highlight=False, markup=False)


def _parameters(plan: Plan) -> Table:
    table = plan_table("parameters", "number", "share")
    total = sum(plan.parameters.values())
    for part, number in plan.parameters.items():
        if number:
            table.add_row(part, f"{number:,}", f"{100 * number / total:.3g} %")
    table.add_section()
    table.add_row("total", f"{total:,}", "")
    return table


def _operations(plan: Plan) -> Table:
    table = plan_table("operations a sample", "GFLOP")
    flops = plan.flops
    rows = {
        "vision tower, forward": flops.vision,
        "text tower, forward": flops.text,
        "backward": flops.backward,
        "features first, for batches in parts": flops.features_first,
        "loss": flops.loss,
    }
    for part, number in rows.items():
        if number:
            table.add_row(part, f"{number / 1e9:,.2f}")
    table.add_section()
    table.add_row("training", f"{flops.training / 1e9:,.2f}")
    return table


def _memory(plan: Plan) -> Table:
    from diffclip.training.gpus import GIB

    table = plan_table("memory of one process", "GiB")
    for part, number in plan.memory.items():
        if number:
            table.add_row(part, f"{number / GIB:,.2f}")
    table.add_section()
    total = f"{sum(plan.memory.values()) / GIB:,.1f}"
    table.add_row("total", total)
    if plan.on_gpu is not None:
        fit = "fits" if plan.on_gpu.fits else "does not fit"
        table.add_row(f"{plan.on_gpu.gpu.name}: {fit}", f"{plan.on_gpu.gpu.memory / GIB:,.1f}")
    return table


def _run(plan: Plan) -> Table:
    table = plan_table("run", "")
    if plan.schedule is not None:
        schedule = plan.schedule
        table.add_row("samples an epoch", f"{schedule.samples_per_epoch:,} ({schedule.dropped:,} left out)")
        table.add_row(
            "steps", f"{schedule.epochs} epochs × {schedule.steps_per_epoch:,} = {schedule.steps:,}"
        )
        table.add_row("steps of warm-up", f"{schedule.warmup_steps:,}")
        table.add_row("samples in all", f"{schedule.samples:,}")
    if plan.on_gpu is not None:
        _time(plan.on_gpu, plan, table)
    return table


def _time(on: OnGPU, plan: Plan, table: Table) -> None:
    from diffclip.data.caption_sets import duration

    gpus = f"{plan.world} × {on.gpu.name}" if plan.world > 1 else on.gpu.name
    rate = on.gpu.tflops(plan.precision)
    table.add_row(f"{gpus}, assumed", f"{100 * on.utilisation:.0f} % of {rate:,.0f} TFLOP/s each")
    each = f" ({on.samples_per_second / plan.world:,.0f} a process)" if plan.world > 1 else ""
    table.add_row("samples a second", f"{on.samples_per_second:,.0f}{each}")
    if on.hours is not None and on.gpu_hours is not None and on.cost is not None:
        of_gpus = f", {on.gpu_hours:,.0f} GPU hours" if plan.world > 1 else ""
        table.add_row("time", duration(on.hours) + of_gpus)
        own = on.price != on.gpu.price
        source = "" if own else f", {on.gpu.provider}'s in {on.gpu.month}"
        table.add_row("cost", f"${on.cost:,.{0 if on.cost >= 10 else 2}f} at ${on.price:.2f} an hour{source}")


def plan_table(title: str, *columns: str) -> Table:
    """An empty table of a plan; the numbers of its `columns` stand on the right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(title)
    for column in columns:
        table.add_column(column, justify="right")
    return table
