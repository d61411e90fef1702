"""The table of the recipes that are planned for GPUs, as Markdown: what each trains, how long, for how much.

    python -m benchmarks.recipes [--gpu a100-80gb] [--devices 8]

Nothing is measured: hours and cost are those of `diffclip train RECIPE --dry-run`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from diffclip.data.caption_sets import counted, duration
from diffclip.training.gpus import GIB
from diffclip.training.plan import UTILISATION, Plan, plan_run
from diffclip.training.recipe import Recipe, read_recipe, recipe_folders

HEAD = ["recipe", "model", "data", "epochs", "batch", "steps", "GiB a GPU"]


def table(gpu: str, devices: int) -> list[str]:
    """Lines of the table for `devices` GPUs."""
    rows = [[*HEAD, f"time on {devices} × {gpu}", "cost"]]
    for file in sorted(file for folder in recipe_folders() for file in folder.glob("*.yaml")):
        recipe = read_recipe(file)
        if recipe.data.expected_samples is not None:
            rows.append(row(file, recipe, plan_run(recipe, devices, gpu=gpu)))
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    return [lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]]


def row(file: Path, recipe: Recipe, plan: Plan) -> list[str]:
    """The cells of one recipe."""
    schedule, on = plan.schedule, plan.on_gpu
    if schedule is None or on is None or on.hours is None or on.cost is None:
        raise ValueError(f"{file} has no number of samples, which a plan of its time needs")
    return [
        f"[`{file.stem}`](../recipes/{file.name})",
        recipe.model,
        f"{Path(str(recipe.data.train)).parent.name}, {counted(schedule.samples_per_epoch)}",
        str(recipe.epochs),
        f"{recipe.batch_size:,}",
        f"{schedule.steps:,}",
        f"{sum(plan.memory.values()) / GIB:.0f}" + ("" if on.fits else " (does not fit)"),
        duration(on.hours),
        f"${on.cost:,.{0 if on.cost >= 10 else 2}f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu", default="a100-80gb")
    parser.add_argument("--devices", type=int, default=8)
    options = parser.parse_args()
    command = f"python -m benchmarks.recipes --gpu {options.gpu} --devices {options.devices}"
    print(f"`{command}`: planned at {100 * UTILISATION:.0f} % of the GPU's rate, prices as in the plan.\n")
    print("\n".join(table(options.gpu, options.devices)))


if __name__ == "__main__":
    main()
