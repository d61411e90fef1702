"""`diffclip vlm train`: one stage of a recipe, or what it would take."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from diffclip.cli.train import InterruptedRun


def train(
    recipe: Annotated[
        str, typer.Argument(help="A recipe's YAML file, or the name of one that comes with the package.")
    ],
    stage: Annotated[int, typer.Option(help="1 trains the connector, 2 connector and language model.")],
    changes: Annotated[
        list[str] | None, typer.Argument(help="Changes to the recipe.", metavar="[KEY=VALUE]...")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="The run's folder; default: runs/RECIPE-stageN-sSEED.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the run's last checkpoint that is whole.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print what the run takes, and end there; needs no data, no weights."),
    ] = False,
    gpu: Annotated[
        str | None, typer.Option(help="With --dry-run: the GPU to plan for; default: a100-80gb.")
    ] = None,
    devices: Annotated[int | None, typer.Option(help="With --dry-run: how many of them; default: 1.")] = None,
    price: Annotated[
        float | None, typer.Option(help="With --dry-run: dollars an hour and GPU; default: a usual one.")
    ] = None,
    utilisation: Annotated[
        float | None,
        typer.Option(help="With --dry-run: share of the GPU's rate that training reaches; default: 0.3."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: the plan as JSON.")] = False,
) -> None:
    """Teach a language model to see through a frozen vision tower, in two stages that are a run each.

    Example: diffclip vlm train --stage 1 vlm_qwen05b_stage1 --run runs/vlm-stage1

    On several GPUs: torchrun --nproc-per-node 4 -m diffclip.cli -- vlm train --stage 1 RECIPE … (or accelerate launch)

    SIGTERM and SIGUSR1 save the state and end with exit code 75; --resume goes on from there.
    """
    from diffclip.errors import DiffCLIPError, InputError, require_group

    require_group("vlm", "transformers", "accelerate")
    planned = {"--gpu": gpu, "--devices": devices, "--price": price, "--utilisation": utilisation}
    alone = [name for name, value in planned.items() if value is not None] + ["--json"] * as_json
    if alone and not dry_run:
        raise InputError(f"{', '.join(alone)} belong to --dry-run: add it, or leave them out")
    from diffclip.vlm.recipe import read_vlm_recipe

    resolved = read_vlm_recipe(recipe, changes or [])
    resolved.stage(stage)
    run = run or Path("runs") / f"{Path(recipe).stem}-stage{stage}-s{resolved.seed}"
    if dry_run:
        from diffclip.cli.vlm_plan import show_plan
        from diffclip.training.plan import UTILISATION
        from diffclip.vlm.plan import plan_stage

        share = UTILISATION if utilisation is None else utilisation
        plan = plan_stage(
            resolved, stage, 1 if devices is None else devices, gpu or "a100-80gb", price, share
        )
        show_plan(plan, as_json)
        return
    from diffclip.vlm.train import train_stage

    first = os.environ.get("RANK", "0") == "0"
    try:
        outcome = train_stage(resolved, stage, run, resume)
    except KeyboardInterrupt:
        if not first:
            raise typer.Exit(InterruptedRun.exit_code) from None
        from diffclip.vlm.run import last_checkpoint

        way_on = "go on with --resume" if last_checkpoint(run) else "there is no checkpoint yet, start again"
        raise InterruptedRun(f"interrupted: {way_on}") from None
    except DiffCLIPError as error:
        if error.shared and not first:
            raise typer.Exit(error.exit_code) from None
        raise
    if first and outcome.steps:
        print(f"{run}: {outcome.steps} steps; the model is {outcome.model}")
