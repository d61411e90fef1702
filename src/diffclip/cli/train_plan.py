"""`diffclip train RECIPE --dry-run`: open the data of a run, and show its plan."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from diffclip.cli.console import print_table, say
from diffclip.errors import DiffCLIPError, InputError, require_group
from diffclip.files import printable
from diffclip.training.launch import Hardware
from diffclip.training.logging import duration
from diffclip.training.plan import RunPlan, plan_run
from diffclip.training.recipe import Recipe
from diffclip.training.run import build_model, load_initial_weights, open_training_data, open_validation_data
from diffclip.training.run_folder import check_folder, is_started


def show_dry_run(recipe: Recipe, run: Path, resume: bool, hardware: Hardware, as_json: bool) -> None:
    """Open the data of a run, and print its plan for devices like those of this machine. Write nothing.

    If the run cannot start, raise the last reason as `InputError`, and print the other reasons on stderr.
    """
    devices = hardware.devices
    if devices == "auto":  # count the devices of this node; the plan may be for many nodes
        devices = replace(hardware, nodes=1).resolved().devices
    world = int(devices) * hardware.nodes
    samples, findings, problems = None, recipe.notes(), list[str]()
    with _noting(problems):
        require_group("train", "lightning")
    with _noting(problems, "training data: "):
        data = recipe.data.model_copy(update={"workers": 0, "memory": False})
        with closing(open_training_data(recipe.model_copy(update={"data": data}), 0, world)) as loader:
            samples = loader.samples
        findings.append(
            f"training data: {samples:,} samples per epoch in {loader.batches_per_epoch:,} batches, "
            f"{loader.dropped:,} left out of each"
        )
        findings += [f"training data: {fault}" for fault in loader.faults[:3]]
    with _noting(problems):
        validation = open_validation_data(recipe)
        if validation is None:
            findings.append("validation data: none, so that no checkpoint is kept as the best (data.val)")
        else:
            captions = sum(map(len, validation.captions))
            findings.append(f"validation data: {len(validation):,} images with {captions:,} captions")
            findings += [f"validation data: {fault}" for fault in validation.faults[:3]]
    with _noting(problems):
        if recipe.weights and not is_started(run):  # a run that goes on does not read them
            load_initial_weights(build_model(recipe), recipe.weights)
    with _noting(problems):
        check_folder(recipe, run, resume)
    with _noting(problems):
        plan = plan_run(recipe, world, hardware.strategy, samples)
        if as_json:
            print(json.dumps(plan | {"data": {"found": findings, "problems": problems}}, indent=1))
        else:
            _show_plan(plan)
            print(*map(printable, findings), sep="\n")
    for problem in problems[:-1]:
        say(f"diffclip: {problem}")
    if problems:
        raise InputError(problems[-1])


@contextmanager
def _noting(problems: list[str], subject: str = "") -> Iterator[None]:
    """Add the error of the block to `problems` instead of raising it."""
    try:
        yield
    except DiffCLIPError as error:
        problems.append(f"{subject}{error}")


def _show_plan(plan: RunPlan) -> None:
    """Print the plan as one table: parameters, operations per sample, steps, memory and time."""
    device, world = plan["device"], plan["world"]
    passes = -(-plan["share"] // plan["pass_size"])
    print(
        f"{plan['model']}, {plan['precision']}, batch {plan['batch_size']:,}: "
        + ("1 process" if world == 1 else f"{world} processes ({plan['strategy']})")
        + f", {plan['share']:,} samples each"
        + (f" in {passes} passes of {plan['pass_size']:,}" if passes > 1 else "")
    )
    rows: list[tuple[str, str] | None] = []
    for title, name, unit, digits in (
        ("parameters", "parameters", 1, 0),
        ("GFLOP per sample, forward", "flops", 1e9, 2),
    ):
        rows.append((title, ""))
        rows += [(f"  {part}", f"{value / unit:,.{digits}f}") for part, value in plan[name].items()]
        rows.append(None)
    if plan["steps"] is not None:
        rows.append(("samples per epoch", f"{plan['samples_per_epoch']:,}"))
        epochs = plan["steps"] // plan["steps_per_epoch"]
        rows.append(("steps", f"{epochs} epochs × {plan['steps_per_epoch']:,} = {plan['steps']:,}"))
    if plan["memory"] is not None:
        rows.append(("memory of one process", f"{plan['memory'] / 2**30:,.1f} GiB"))
    devices = device if world == 1 else f"{world} × {device}"
    rows.append((f"{devices}, ten timed steps", f"{plan['samples_per_second']:,.0f} samples per second"))
    if plan["hours"] is not None:
        rows.append(("time", duration(3600 * plan["hours"])))
    print_table(("", "value"), "lr", rows)
