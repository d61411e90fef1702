"""The plan of `diffclip vlm train --dry-run` as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diffclip.vlm.plan import StagePlan
    from diffclip.vlm.recipe import VLMRecipe

_PIPE_WIDTH = 120


def show_plan(plan: StagePlan, recipe: VLMRecipe) -> None:
    """Print the plan."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    print(
        f"stage {plan.stage}, {recipe.precision}: {recipe.connector} connector, {recipe.vision} and "
        f"{recipe.language_model}"
    )
    gib = 2**30
    parameters = [
        (part, f"{count:,}", f"{trained:,}" if trained else "frozen")
        for part, (count, trained) in plan.parameters.items()
    ]
    totals = [f"{sum(column):,}" for column in zip(*plan.parameters.values(), strict=True)]
    memory = [(part, f"{size / gib:,.2f}") for part, size in plan.memory.items() if size]
    fit = "fits" if plan.fits else "does not fit"
    mean, padded, longest = plan.tokens
    passes = f"{plan.passes} {'pass' if plan.passes == 1 else 'passes'}"
    run = [
        (
            "tokens of a sample",
            f"{plan.image_tokens} of its image, {mean:,.0f} in all on average, {padded:,.0f} with padding, "
            f"at most {longest:,.0f}",
        ),
        ("samples", f"{plan.samples:,}" + ("" if plan.is_counted else " (expected)")),
        ("batch", f"{plan.per_device} a GPU × {plan.devices} × {passes} = {plan.batch_size}"),
        ("steps", f"{plan.steps:,} ({plan.epochs:g} {'epoch' if plan.epochs == 1 else 'epochs'})"),
        ("warm-up steps", f"{plan.warmup_steps:,}"),
        ("operations a sample", f"{plan.flops / 1e9:,.0f} GFLOP"),
        (
            f"{plan.devices} × {plan.gpu.name}, assumed",
            f"{100 * plan.utilization:.0f} % of {plan.gpu.tflops(recipe.precision):,.0f} TFLOP/s each",
        ),
        ("samples a second", f"{plan.samples_per_second:,.0f}"),
        ("hours", f"{plan.hours:,.2f}"),
    ]
    tables = (
        (("parameters", "number", "trained"), [*parameters, ("total", *totals)]),
        (
            ("memory of one process", "GiB"),
            [
                *memory,
                ("total", f"{plan.memory_needed / gib:,.1f}"),
                (f"{plan.gpu.name}: {fit}", f"{plan.gpu.memory / gib:,.1f}"),
            ],
        ),
        (("run", ""), run),
    )
    for (title, *columns), rows in tables:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column(title)
        for column in columns:
            table.add_column(column, justify="right")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    if not plan.is_counted:
        print("The JSON is not here: the number of samples is the recipe's expected_samples.")
    lengths = "estimated from 4 letters a token" if plan.is_counted else "assumed as in LLaVA's own data"
    print(f"Lengths of texts are {lengths}; the memory is for a pass of the longest samples.")
