"""What several real processes exchange, keep and write: `measure` starts them, and each runs this file.

They meet over gloo on this machine's loopback. Bytes on the wire are Linux' own counts (scaling_wire.py), so that they
hold what the library really sends; times are those of processes that share a few cores.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.scaling_checkpoints import checkpoints
from benchmarks.scaling_sizes import Sizes, made_batch
from benchmarks.scaling_wire import counted, wire_bytes
from diffclip.model import CLIP
from diffclip.training import distributed
from diffclip.training.accumulate import backward_in_parts, backward_whole
from diffclip.training.losses import accuracy_within, make_criterion
from diffclip.training.optimiser import make_optimiser, small_parameters
from diffclip.training.recipe import Recipe

CASES = {"clip": ("clip", True), "clip, no gathered gradients": ("clip", False), "siglip": ("siglip", True)}
_SETTLE = 0.1  # seconds until what was sent last has been counted


def measure(world: int, sizes: Sizes, folder: Path) -> dict[str, Any]:
    """What `world` processes found; mean over them where each has its own number."""
    output = folder / f"found-{world}.json"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world)]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    command += ["-m", "benchmarks.scaling_processes", json.dumps(asdict(sizes)), str(output)]
    root = Path(__file__).resolve().parents[1]
    paths = [str(root), str(root / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"{world} processes failed: {done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return found


def main() -> None:
    sizes, output = Sizes(**json.loads(sys.argv[1])), Path(sys.argv[2])
    torch.set_num_threads(1)
    hardware = distributed.Hardware(accelerator="cpu").resolved()
    plain = distributed.make_fabric(hardware, "fp32")
    plain.launch()
    world, rank = plain.world_size, plain.global_rank
    if world == 1:
        dist.init_process_group("gloo", init_method=f"file://{output}.meet", rank=0, world_size=1)
    told: dict[str, Any] = {"world": world, "losses": losses(sizes, rank, world)}
    if world > 1:
        told["transfers"] = transfers(sizes, world)
    told["steps"] = {"ddp" if world > 1 else "one process": step(plain, sizes, sizes.recipe())}
    fabric = plain
    if world > 1:
        hardware = distributed.Hardware(strategy="fsdp", accelerator="cpu").resolved()
        fabric = distributed.make_fabric(hardware, "fp32")
        fabric.launch()
        told["steps"]["fsdp"] = step(fabric, sizes, sizes.recipe())
        if world == 2:
            told["steps"]["fsdp, in parts"] = step(fabric, sizes, sizes.recipe(), sizes.parts)
    else:
        told["features"] = features_in_bf16(hardware, sizes)
    if sizes.folder:
        told["checkpoint"] = checkpoints(fabric, sizes)
    if rank == 0:
        output.write_text(json.dumps(told), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def losses(sizes: Sizes, rank: int, world: int) -> dict[str, Any]:
    """Bytes sent and kept, and seconds, of a step's loss for each of CASES."""
    return {name: _loss(sizes, rank, world, *case) for name, case in CASES.items()}


def _loss(sizes: Sizes, rank: int, world: int, kind: str, with_grad: bool) -> dict[str, Any]:
    criterion = make_criterion(kind, with_grad, rank, world)
    generator = torch.Generator().manual_seed(rank)
    share = sizes.batch // world
    made = [torch.randn(share, sizes.embed, generator=generator) for _ in range(2)]
    images, texts = (torch.nn.functional.normalize(one).requires_grad_() for one in made)
    scalars = {"logit_scale": torch.tensor(10.0, requires_grad=True)}
    if kind == "siglip":
        scalars["logit_bias"] = torch.tensor(-10.0, requires_grad=True)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.ndim:
            kept[int(tensor.untyped_storage()._cdata)] = tensor.untyped_storage().nbytes()
        return tensor

    def forward() -> Tensor:
        return criterion(image_features=images, text_features=texts, **scalars)

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = forward()
    loss.backward()  # type: ignore[no-untyped-call]
    forwards, backwards, wires = [], [], []
    for _ in range(sizes.repeats):
        out, sent_forward, took_forward = _counted(forward)
        _, sent_backward, took_backward = _counted(out.backward)
        forwards.append(took_forward)
        backwards.append(took_backward)
        wires.append((sent_forward, sent_backward))
    accuracy = _counted(lambda: accuracy_within(images, texts, rank, world))[1]
    sent = [_mean(statistics.median(one)) for one in zip(*wires, strict=True)]
    return {
        "share": share,
        "saved": sum(kept.values()),
        "sent_forward": sent[0],
        "sent_backward": sent[1],
        "sent_accuracy": _mean(accuracy),
        "seconds_forward": statistics.median(forwards),
        "seconds_backward": statistics.median(backwards),
    }


def transfers(sizes: Sizes, world: int) -> list[dict[str, float]]:
    """Least seconds and bytes sent of all-gathers, by the size of one process's part."""
    found = []
    for size in sizes.transfers:
        part = torch.ones(size // 4)
        parts = [torch.empty_like(part) for _ in range(world)]
        gather = partial(dist.all_gather, parts, part)
        gather()
        times = [_counted(gather) for _ in range(2 * sizes.repeats + 1)]
        seconds = min(took for _, _, took in times)
        found.append({"part": size, "sent": _mean(times[-1][1]), "seconds": seconds})
    return found


def step(fabric: Any, sizes: Sizes, recipe: Recipe, parts: int = 1) -> dict[str, Any]:
    """Bytes sent in a step, with a loss that exchanges nothing, and the bytes of what the process holds."""
    model = CLIP(recipe.config(), seed=0)
    wrapped = fabric.setup_module(model)
    optimiser = make_optimiser(model, recipe)
    fabric.setup_optimizers(optimiser)
    images, tokens = made_batch(model, max(1, sizes.step_batch // fabric.world_size) * parts)
    criterion = make_criterion("clip", True)
    backward = partial(backward_whole, wrapped, criterion, images, tokens, fabric.backward)
    if parts > 1:
        without_sync = partial(fabric.no_backward_sync, wrapped)
        size = len(images) // parts
        backward = partial(
            backward_in_parts, wrapped, criterion, images, tokens, fabric.backward, size, without_sync
        )

    def whole_step() -> None:
        backward()
        distributed.average_small(fabric, model)

    for last in (False, False, True):  # the first two place buffers and buckets
        _, sent, took = _counted(whole_step)
        gradients = _bytes(p.grad for p in model.parameters() if p.grad is not None)
        optimiser.step()
        if not last:
            optimiser.zero_grad()
    blocks = sum(_numel(p) for block in distributed.blocks_of(model) for p in block.parameters())
    return {
        "sent": _mean(sent),
        "seconds": took,
        "parameters": sum(map(_numel, model.parameters())),
        "in_blocks": blocks,
        "small": sum(map(_numel, small_parameters(model))),
        "weights": _mean(_bytes(model.parameters())),
        "gradients": _mean(gradients),
        "optimiser": _mean(_bytes(value for state in optimiser.state.values() for value in state.values())),
    }


def features_in_bf16(hardware: distributed.Hardware, sizes: Sizes) -> str:
    """The type in which the loss of a bf16 run finds its features."""
    fabric = distributed.make_fabric(hardware, "bf16")
    model = fabric.setup_module(CLIP(sizes.recipe().config(), seed=0))
    with torch.no_grad():
        out = model(*made_batch(model.module, 2))
    return str(out["image_features"].dtype).removeprefix("torch.")


def _counted(work: Callable[[], Any]) -> tuple[Any, int, float]:
    """What `work` returns, the bytes this process has sent meanwhile, and the seconds it took."""
    alone = dist.get_world_size() == 1 or not counted()
    dist.barrier()
    if not alone:
        time.sleep(_SETTLE)
    before = (0, 0) if alone else wire_bytes()
    started = time.perf_counter()
    result = work()
    took = time.perf_counter() - started
    if not alone:
        time.sleep(_SETTLE)
    after = (0, 0) if alone else wire_bytes()
    return result, after[0] - before[0], took


def _mean(value: float) -> float:
    """The mean of every process's number."""
    told = torch.tensor(float(value), dtype=torch.float64)
    dist.all_reduce(told)
    return float(told) / dist.get_world_size()


def _numel(parameter: Tensor) -> int:
    return parameter.numel()


def _bytes(tensors: Any) -> int:
    local = [one.to_local() if hasattr(one, "to_local") else one for one in tensors]
    return sum(one.numel() * one.element_size() for one in local if one.ndim)


if __name__ == "__main__":
    main()
