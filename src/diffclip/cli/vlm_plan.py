"""`diffclip vlm train --dry-run`: what a stage will take, as tables or JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from diffclip.cli.evaluate_table import PIPE_WIDTH
from diffclip.cli.train_plan import plan_table
from diffclip.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from diffclip.vlm.plan import StagePlan


def show_plan(plan: StagePlan, as_json: bool) -> None:
    """Print the plan.

    Raises:
        InputError: the stage does not fit on the GPU.
    """
    if as_json:
        print(json.dumps(plan.as_json(), indent=1, ensure_ascii=False))
    else:
        _show(plan)
    if plan.advice is not None:
        raise InputError(f"{plan.gpu.name}: {plan.advice}")


def _show(plan: StagePlan) -> None:
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(f"stage {plan.stage}, {plan.precision}: {plan.recipe}", highlight=False, markup=False)
    for table in (_parameters(plan), _memory(plan), _run(plan)):
        console.print(table)
    notes = []
    if not plan.samples_known:
        notes.append("The JSON is not here: the number of samples is the recipe's expected_samples.")
    how = "counted as 4 letters a token" if plan.lengths.measured else "assumed for LLaVA's own data"
    notes.append(f"Lengths of texts are {how}; memory is that of a pass with the longest.")
    for note in notes:
        typer.echo(note)


def _parameters(plan: StagePlan) -> Table:
    table = plan_table("parameters", "number", "trained")
    for part, (number, trained) in plan.parameters.items():
        table.add_row(part, f"{number:,}", f"{trained:,}" if trained else "frozen")
    table.add_section()
    totals = [sum(column) for column in zip(*plan.parameters.values(), strict=True)]
    table.add_row("total", *(f"{total:,}" for total in totals))
    return table


def _memory(plan: StagePlan) -> Table:
    from diffclip.training.gpus import GIB

    table = plan_table("memory of one process", "GiB")
    for part, number in plan.memory.items():
        if number:
            table.add_row(part, f"{number / GIB:,.2f}")
    table.add_section()
    table.add_row("total", f"{sum(plan.memory.values()) / GIB:,.1f}")
    table.add_row(
        f"{plan.gpu.name}: {'fits' if plan.fits else 'does not fit'}", f"{plan.gpu.memory / GIB:,.1f}"
    )
    return table


def _run(plan: StagePlan) -> Table:
    from diffclip.data.caption_sets import duration

    table = plan_table("run", "")
    table.add_row(
        "tokens of a sample",
        f"{plan.picture_tokens} of its picture, {plan.lengths.mean:,.0f} in all on average, "
        f"{plan.lengths.padded:,.0f} padded, {plan.lengths.longest:,.0f} at most",
    )
    table.add_row("samples", f"{plan.samples:,}" + ("" if plan.samples_known else " (expected)"))
    table.add_row(
        "batch",
        f"{plan.per_device} a GPU × {plan.devices} × {plan.passes} {'pass' if plan.passes == 1 else 'passes'} = "
        f"{plan.batch_size}",
    )
    table.add_row("steps", f"{plan.steps:,} ({plan.epochs:g} {'epoch' if plan.epochs == 1 else 'epochs'})")
    table.add_row("steps of warm-up", f"{plan.warmup:,}")
    table.add_row("operations a sample", f"{plan.flops / 1e9:,.0f} GFLOP")
    gpus = f"{plan.devices} × {plan.gpu.name}" if plan.devices > 1 else plan.gpu.name
    rate = plan.gpu.tflops(plan.precision)
    table.add_row(f"{gpus}, assumed", f"{100 * plan.utilisation:.0f} % of {rate:,.0f} TFLOP/s each")
    table.add_row("samples a second", f"{plan.samples_per_second:,.0f}")
    gpu_hours = plan.hours * plan.devices
    of_gpus = f", {gpu_hours:,.{0 if gpu_hours >= 10 else 1}f} GPU hours" if plan.devices > 1 else ""
    table.add_row("time", duration(plan.hours) + of_gpus)
    source = "" if plan.price != plan.gpu.price else f", {plan.gpu.provider}'s in {plan.gpu.month}"
    digits = 0 if plan.cost >= 10 else 2
    table.add_row("cost", f"${plan.cost:,.{digits}f} at ${plan.price:.2f} an hour{source}")
    return table
