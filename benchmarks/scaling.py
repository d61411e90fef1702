"""How training goes from one GPU to hundreds: what is exchanged, kept, read and written, by model and by measurement.

    python -m benchmarks.scaling [--seconds 90] [--output benchmarks/results]

Arithmetic (scaling_model.py, and the plan of a run) gives the numbers for hundreds of GPUs; real processes on this
machine, 1, 2 and 4, check it where they can: bytes on the wire, bytes kept, bytes written. Writes scaling.json, from
which `python -m benchmarks.scaling_tables` makes the tables of docs/scaling.md.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.about import about, add_common_options, write_json
from benchmarks.scaling_data import indexes, orders, same_samples
from benchmarks.scaling_example import example
from benchmarks.scaling_model import (
    DISKS,
    LINKS,
    checkpoint_bytes,
    collective_seconds,
    ddp_sent,
    fsdp_sent,
    logits_flops,
    loss_exchange,
    loss_saved,
)
from benchmarks.scaling_processes import CASES, measure
from benchmarks.scaling_sizes import Sizes
from diffclip.config import named_config
from diffclip.training.distributed import blocks_of
from diffclip.training.flops import count_flops
from diffclip.training.gpus import find_gpu
from diffclip.training.memory import loss_memory, measure_pass, state_memory
from diffclip.training.plan import UTILISATION
from diffclip.training.recipe import read_recipe
from diffclip.training.weightless import weightless

GPU = "h100"


@dataclass(frozen=True)
class Scope:
    """What is computed and measured; smaller in tests."""

    worlds: tuple[int, ...] = (1, 8, 32, 128, 512)
    batches: tuple[int, ...] = (4096, 16384, 65536)
    models: tuple[str, ...] = ("ViT-B-16", "ViT-L-14", "ViT-H-14")
    sharded: tuple[int, ...] = (8, 64, 256, 512)
    processes: tuple[int, ...] = (1, 2, 4)
    whole: tuple[int, ...] = (3_000_000, 12_000_000)
    windowed: tuple[int, ...] = (3_000_000, 12_000_000, 413_000_000)
    shards: int = 1000
    a_shard: int = 100
    in_parts: str = "cc12m_vitb16"
    recipe: str = "laion_vitl14"
    nodes: int = 32


def models(names: tuple[str, ...], batch: int) -> dict[str, dict[str, Any]]:
    """Parameters and operations of DiffCLIP by size, and its samples a second by GPU as the plan has them."""
    found = {}
    for name in names:
        config = named_config(f"DiffCLIP-{name}")
        flops = count_flops(config, batch)
        with weightless(config, "auto") as model:
            parameters = sum(p.numel() for p in model.parameters())
            blocks = sum(p.numel() for block in blocks_of(model) for p in block.parameters())
        found[name] = {
            "parameters": parameters,
            "in_blocks": blocks,
            "embed": config.embed_dim,
            "flops": flops.training - flops.loss,
            "backward_flops": flops.backward,
            "samples_per_second": {gpu: _rate(gpu) / flops.training for gpu in ("h100", "a100-80gb")},
        }
    return found


def loss_rows(scope: Scope, model: dict[str, Any]) -> list[dict[str, Any]]:
    """The gathered loss of `model` by GPUs and batch: bytes, operations, and seconds beside those of the step."""
    rows, embed, fp32 = [], model["embed"], find_gpu(GPU).tflops("fp32") * 1e12
    for batch in scope.batches:
        for world in scope.worlds:
            share, flops = batch // world, logits_flops(batch // world, batch, embed)
            cases = {
                name: asdict(loss_exchange(kind, with_grad, world, batch, embed))
                for name, (kind, with_grad) in CASES.items()
            }
            step = share * model["flops"] / _rate(GPU)
            received = loss_exchange("clip", True, world, batch, embed)
            # both towers' features each way, and both together for the accuracy
            times = 5 if world > 1 else 0
            seconds = {
                key: collective_seconds(received.all, world, link, times) for key, link in LINKS.items()
            }
            memory = {kind: loss_memory(kind, share, world, embed) for kind in ("clip", "siglip")}
            row = {"world": world, "batch": batch, "share": share, "cases": cases, "logits_flops": flops}
            row |= {"step_seconds": step, "logits_seconds": flops / fp32, "seconds": seconds}
            row |= {"memory": {kind: {"features": f, "logits": n} for kind, (f, n) in memory.items()}}
            rows.append(row | {"whole_logits": memory["clip"][1] * world})
    return rows


def in_parts(name: str, worlds: tuple[int, ...], flops: dict[str, Any]) -> dict[str, Any]:
    """What a process keeps for its backward pass with its share of the batch at once, and with the `micro_batch` of a
    recipe; logits and features are the same either way. `again` is the share of operations that parts add."""
    recipe = read_recipe(name)
    part = recipe.micro_batch or recipe.batch_size
    a_sample = measure_pass(recipe, part).activations / part
    shares = {world: recipe.batch_size // world for world in worlds}
    return {
        "recipe": name,
        "micro_batch": part,
        "batch": recipe.batch_size,
        "again": (flops["flops"] - flops["backward_flops"]) / flops["flops"],
        "rows": [
            {
                "world": world,
                "share": share,
                "whole": a_sample * share,
                "in_parts": a_sample * min(part, share),
            }
            for world, share in shares.items()
        ],
    }


def gradient_rows(scope: Scope, name: str, model: dict[str, Any]) -> list[dict[str, Any]]:
    """DDP and FSDP of a model by GPUs: bytes sent, least seconds by link, and bytes of what a process holds."""
    rows, config = [], named_config(f"DiffCLIP-{name}")
    for world in scope.sharded:
        blocks, everything = model["in_blocks"], model["parameters"]
        ddp, fsdp = ddp_sent(everything, world), fsdp_sent(blocks, everything - blocks, world)
        held = {kind: asdict(state_memory(config, world, kind == "fsdp", False)) for kind in ("ddp", "fsdp")}
        rows.append(
            {
                "world": world,
                "sent": {"ddp": ddp, "fsdp gathered": fsdp.gathered, "fsdp reduced": fsdp.reduced},
                "seconds": {
                    key: {
                        "ddp": collective_seconds(ddp, world, link, 2),
                        "fsdp": collective_seconds(fsdp.sent, world, link),
                    }
                    for key, link in LINKS.items()
                },
                "held": {kind: sum(parts.values()) for kind, parts in held.items()},
            }
        )
    return rows


def checks(found: dict[int, dict[str, Any]], sizes: Sizes) -> dict[str, Any]:
    """What the model says of each thing that the processes have measured."""
    told: dict[str, Any] = {"losses": [], "transfers": [], "steps": []}
    for world, one in found.items():
        for name, row in one["losses"].items():
            kind, with_grad = CASES[name]
            exchange = loss_exchange(kind, with_grad, world, sizes.batch, sizes.embed)
            said = {f"sent_{key}": value for key, value in asdict(exchange).items()}
            said["saved"] = loss_saved(kind, with_grad, row["share"], world, sizes.embed)
            told["losses"].append({"world": world, "case": name, "model": said, "measured": row})
        rows = one.get("transfers", [])
        for row in rows:
            # a straight line through the smallest and the largest but one
            low, high = rows[0], rows[-2]
            rate = (high["sent"] - low["sent"]) / max(high["seconds"] - low["seconds"], 1e-9)
            seconds = low["seconds"] + (row["sent"] - low["sent"]) / rate
            told["transfers"].append({"world": world, "model": seconds, "fitted": row in (low, high)} | row)
        for strategy, row in one["steps"].items():
            told["steps"].append(
                {
                    "world": world,
                    "strategy": strategy,
                    "model": _step(world, strategy, row, sizes),
                    "measured": row,
                }
            )
    return told


def _step(world: int, strategy: str, row: dict[str, Any], sizes: Sizes) -> dict[str, float]:
    whole, blocks = row["parameters"], row["in_blocks"]
    if not strategy.startswith("fsdp"):
        held = 4 * whole
        return {"sent": ddp_sent(whole, world), "weights": held, "gradients": held, "optimiser": 2 * held}
    parts = sizes.parts if "parts" in strategy else 1
    sent = fsdp_sent(blocks, whole - blocks, world, parts)
    held = 4 * (whole - row["small"]) / world + 4 * row["small"]
    told = {"sent": sent.sent, "weights": held, "gradients": held, "optimiser": 2 * held}
    # gloo brings gradients together with an all-reduce and keeps a part of it
    return told | {"sent_by_gloo": sent.gathered + 2 * sent.reduced}


def checkpoint_rows(known: dict[str, dict[str, Any]], checksum: float) -> dict[str, Any]:
    """Bytes of a checkpoint by model, and seconds by disk with a checksum of so many bytes a second."""
    rows = {}
    for name, model in known.items():
        size = checkpoint_bytes(model["parameters"])
        rows[name] = {
            "bytes": size,
            "checksum_seconds": size / checksum,
            "seconds": {key: size / disk.rate + size / checksum for key, disk in DISKS.items()},
        }
    return rows


def _rate(gpu: str) -> float:
    return find_gpu(gpu).tflops("bf16") * 1e12 * UTILISATION


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common_options(parser, seconds=90)
    options = parser.parse_args()
    run(options, Scope(), Sizes())


def run(options: argparse.Namespace, scope: Scope, sizes: Sizes) -> None:
    """Measure and compute within `scope` and write scaling.json."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    result: dict[str, Any] = {"about": about("scaling", options) | {"gpu": GPU, "utilisation": UTILISATION}}
    result["about"]["note"] = "bytes are exact; times are of processes that share a few cores: indicative"
    found: dict[int, dict[str, Any]] = {}
    # a launch takes some seconds; the rest of the time goes into repeats
    sizes = replace(sizes, repeats=max(1, min(sizes.repeats, round(options.seconds / 18))))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for world in scope.processes:
            given = replace(sizes, folder=place if world <= 2 else "", earlier=[1] if world == 2 else [])
            found[world] = measure(world, given, folder)
        shards = folder / "shards"
        shards.mkdir()
        result["index"] = indexes(
            shards, scope.shards, scope.a_shard, batch=min(256, scope.shards * scope.a_shard // 4)
        )
    result["checks"] = checks(found, sizes)
    result["features_in_bf16"] = found[1]["features"]
    result["checkpoints_measured"] = {w: one["checkpoint"] for w, one in found.items() if "checkpoint" in one}
    result["orders"] = orders(scope.whole, scope.windowed, 8, 4096 if min(scope.whole) >= 8192 else 16)
    result["same_samples"] = same_samples(scope.shards * scope.a_shard, 64)
    known = models(scope.models, scope.batches[0])
    result["models"] = known
    result["loss"] = loss_rows(scope, next(iter(known.values())))
    result["in_parts"] = in_parts(scope.in_parts, scope.worlds[:3], next(iter(known.values())))
    result["gradients"] = {name: gradient_rows(scope, name, model) for name, model in known.items()}
    checksum = found[1]["checkpoint"]["plain"]["checksum"]
    result["checkpoints"] = checkpoint_rows(known, checksum)
    result["links"] = {key: asdict(link) for key, link in LINKS.items()}
    result["disks"] = {key: asdict(disk) for key, disk in DISKS.items()}
    result["example"] = example(scope.recipe, scope.nodes, checksum)
    result["about"]["took_seconds"] = time.perf_counter() - started
    write_json(options.output / "scaling.json", result)
    print(f"{options.output / 'scaling.json'}: {result['about']['took_seconds']:.0f} s")


if __name__ == "__main__":
    main()
