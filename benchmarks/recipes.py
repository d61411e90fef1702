"""The table of the recipes that are planned for GPUs, as Markdown: what each trains, how long, for how much.

    python -m benchmarks.recipes [--gpu a100-80gb] [--devices 8] [--document docs/scaling.md]

Printed, or put between the markers of a document. Nothing is measured: hours and cost are those of
`diffclip train RECIPE --dry-run`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import yaml

from diffclip.data.caption_sets import counted, duration
from diffclip.files import write_text
from diffclip.training.gpus import GIB
from diffclip.training.of_weights import OF_WEIGHTS
from diffclip.training.plan import UTILISATION, Plan, plan_run
from diffclip.training.recipe import Recipe, read_recipe, recipe_folders

NAMED = "DiffCLIP-ViT-B-16"
"""The model that is planned for where a recipe leaves it to its weights."""
HEAD = ["recipe", "model", "data", "epochs", "batch", "steps", "GiB a GPU"]


def table(gpu: str, devices: int) -> list[str]:
    """Lines of the table for `devices` GPUs."""
    rows = [[*HEAD, f"time on {devices} × {gpu}", "cost"]]
    for file in sorted(file for folder in recipe_folders() for file in folder.glob("*.yaml")):
        if file.stem.startswith("vlm_"):  # of `diffclip vlm train`
            continue
        of_weights = yaml.safe_load(file.read_text(encoding="utf-8")).get("model") == OF_WEIGHTS
        recipe = read_recipe(file, [f"model={NAMED}"] if of_weights else [])
        if recipe.data.expected_samples is not None:
            model = f"that of its weights, here {recipe.model}" if of_weights else recipe.model
            rows.append(row(file, model, recipe, plan_run(recipe, devices, gpu=gpu)))
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    return [lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]]


def row(file: Path, model: str, recipe: Recipe, plan: Plan) -> list[str]:
    """The cells of one recipe; `model` is what it trains, in words."""
    schedule, on = plan.schedule, plan.on_gpu
    if schedule is None or on is None or on.hours is None or on.cost is None:
        raise ValueError(f"{file} has no number of samples, which a plan of its time needs")
    return [
        f"[`{file.stem}`](../recipes/{file.name})",
        model,
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
    parser.add_argument("--document", type=Path, help="put the table between its markers")
    options = parser.parse_args()
    command = f"python -m benchmarks.recipes --gpu {options.gpu} --devices {options.devices}"
    lines = [
        f"`{command}`: planned at {100 * UTILISATION:.0f} % of the GPU's rate, prices as in the plan.",
        "",
    ]
    lines += table(options.gpu, options.devices)
    if options.document is None:
        print("\n".join(lines))
        return
    begin, end = "<!-- begin recipes -->", "<!-- end recipes -->"
    before, found, rest = options.document.read_text(encoding="utf-8").partition(begin)
    if not found or end not in rest:
        raise SystemExit(f"{options.document} has no section {begin} … {end}")
    write_text(options.document, before + "\n".join([begin, *lines, end]) + rest.partition(end)[2])


if __name__ == "__main__":
    main()
