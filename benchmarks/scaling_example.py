"""One large run in numbers: what it takes, what bounds it, and what a dead node costs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from benchmarks.scaling_model import (
    DISKS,
    GPUS_A_NODE,
    LINKS,
    checkpoint_bytes,
    collective_seconds,
    ddp_sent,
    interval,
    logits_flops,
    loss_exchange,
)
from diffclip.training.gpus import find_gpu
from diffclip.training.plan import UTILISATION, plan_run
from diffclip.training.recipe import read_recipe

# shares of the GPU's rate: what OpenCLIP's published runs reached, what the plan assumes, what is good
UTILISATIONS = (0.14, UTILISATION, 0.45)
GPUS = {"h100": "h100-infiniband", "a100-80gb": "a100-infiniband"}
# 419 unexpected interruptions in 54 days of 16,384 GPUs (arXiv:2407.21783, Section 3.3.4)
GPU_HOURS_A_FAILURE = 16384 * 54 * 24 / 419
# from a dead node to the first new step, an assumption: requeued, started, data and checkpoint opened
RESTART_SECONDS = 600.0
# of a sample in a shard with a shorter edge of 256 pixels: LAION-400M is 10 TB so (arXiv:2111.02114)
SAMPLE_BYTES = 10e12 / 413e6


def example(recipe_name: str, nodes: int, checksum: float, disk: str = "lustre") -> dict[str, Any]:
    """The run of a recipe on `nodes` nodes of 8 GPUs; checksums run at so many bytes a second."""
    recipe = read_recipe(recipe_name)
    plan = plan_run(recipe, GPUS_A_NODE, nodes, gpu="h100")
    if plan.schedule is None:
        raise ValueError(f"{recipe_name} has no data.expected_samples")
    world, parameters = plan.world, sum(plan.parameters.values())
    embed = recipe.config().embed_dim
    exchange = loss_exchange(recipe.loss, recipe.gather_with_grad, world, recipe.batch_size, embed)
    sent, flops = ddp_sent(parameters, world), plan.flops
    every = recipe.checkpoint_every or plan.schedule.steps_per_epoch
    told: dict[str, Any] = {
        "recipe": recipe_name,
        "plan": plan.as_json(),
        "exchange": asdict(exchange),
        "ddp_sent": sent,
        "failure_gpu_hours": GPU_HOURS_A_FAILURE,
        "restart_seconds": RESTART_SECONDS,
        "sample_bytes": SAMPLE_BYTES,
        "checkpoint_every": every,
        "workers": recipe.data.workers,
        "gpus": {},
    }
    size = checkpoint_bytes(parameters)
    told["checkpoint"] = {"bytes": size, "disk": disk, "seconds": size / DISKS[disk].rate + size / checksum}
    for name, key in GPUS.items():
        gpu, link = find_gpu(name), LINKS[key]
        rate = gpu.tflops("bf16") * 1e12 * UTILISATION
        step = plan.share * flops.training / rate
        told["gpus"][name] = {
            "link": link.name,
            "step_seconds": step,
            "backward_seconds": plan.share * flops.backward / rate,
            "exchange_seconds": collective_seconds(exchange.all, world, link, 5),
            "logits_seconds": logits_flops(plan.share, plan.batch_size, embed) / (gpu.tflops("fp32") * 1e12),
            "ddp_seconds": collective_seconds(sent, world, link, 2),
            "samples_a_node": plan.share * GPUS_A_NODE / step,
            "hours": {
                share: plan.schedule.steps * step * UTILISATION / share / 3600 for share in UTILISATIONS
            },
            "failures": _failures(plan.schedule.steps, step, world, every, told),
        }
    return told


def _failures(steps: int, step: float, world: int, every: int, told: dict[str, Any]) -> dict[str, float]:
    """How often a GPU or a node fails in the run, and the shares of time that checkpoints and failures take."""
    between = GPU_HOURS_A_FAILURE * 3600 / world
    cost = told["checkpoint"]["seconds"]
    return {
        "hours_between": between / 3600,
        "expected": steps * step / between,
        "lost_seconds": every * step / 2 + RESTART_SECONDS,
        "lost_share": (every * step / 2 + RESTART_SECONDS) / between,
        "checkpoint_share": cost / (every * step),
        "best_every": interval(cost, between) / step,
    }
