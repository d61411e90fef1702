"""Samples a second of a whole training step (forward, loss, backward, AdamW) and of inference, by model and backend.

    python -m benchmarks.training [--device cpu|cuda] [--batch 256 1024] [--model-size ViT-B-16] [--compile blocks]
                                  [--shards FOLDER] [--workers 2]

Models take turns in each round, and are given as ratios to our CLIP in the same section. Their batch is made up and
lies on the device. In the last section our loader feeds CLIP and DiffCLIP, from shards that are given or made up: the
share of the time that goes into waiting for data. Memory is the peak of a step on a GPU; on a CPU, what a forward pass
keeps for the backward pass. Writes training_DEVICE_PRECISION.json.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import tables
from benchmarks.about import about, add_common_options, parser_of, write_json
from benchmarks.fed import FED, feed, make_up
from benchmarks.models import OURS, REFERENCE, SDPA, compile_model, make_models
from benchmarks.steps import Batch, Steps, make_batch
from diffclip.benchmarking.timing import reason, summary

_TURN = 2  # timed steps in a turn, after one that warms up


def turn(
    steps: Steps, kind: str, batch: Batch, device: torch.device, timed: int = _TURN
) -> tuple[float, int]:
    """Milliseconds of a step, and the peak bytes of this model alone (0 on a CPU)."""
    cuda = device.type == "cuda"
    if cuda:
        free, total = torch.cuda.mem_get_info(device)
        if free < 0.3 * total:
            torch.cuda.empty_cache()  # what another model's step left behind in other sizes
    steps(kind, batch)
    before = torch.cuda.memory_allocated(device) if cuda else 0
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    for _ in range(timed):
        steps(kind, batch)
    if cuda:
        torch.cuda.synchronize(device)
    took = 1000 * (time.perf_counter() - started) / timed
    if not cuda:
        return took, 0
    own = steps.resident() + sum(x.numel() * x.element_size() for x in batch)
    return took, torch.cuda.max_memory_allocated(device) - before + own


def section(
    models: dict[str, Steps],
    kind: str,
    batch: Batch,
    device: torch.device,
    rounds: int,
    left: Callable[[], float],
) -> dict[str, dict[str, Any]]:
    """A row for each model; one that fails, or that no time is left for, says why. `left` is in seconds."""
    rows: dict[str, dict[str, Any]] = {}
    for name, steps in models.items():
        rows[name] = _tried(lambda steps=steps: _warm_up(steps, kind, batch, device, left), steps)
        if kind == "training" and device.type == "cpu" and "why" not in rows[name]:
            rows[name]["kept_bytes"] = steps.kept(batch)
    seconds = left() / 2  # the sections after this one want theirs
    started = time.perf_counter()
    taken: dict[str, list[float]] = {name: [] for name, row in rows.items() if "why" not in row}
    for done in range(rounds):
        if done > 2 and time.perf_counter() - started > seconds:
            break
        for name in list(taken):
            result = _tried(lambda name=name: _timed(models[name], kind, batch, device), models[name])
            if "why" in result:
                rows[name] = result
                del taken[name]
            else:
                taken[name].append(result["ms"])
                rows[name]["peak_bytes"] = result["peak_bytes"]
    for name, times in taken.items():
        rows[name] |= _rates(times, len(batch[0]))
    return rows


def _warm_up(
    steps: Steps, kind: str, batch: Batch, device: torch.device, left: Callable[[], float]
) -> dict[str, Any]:
    if left() < 0:
        return {"why": "no time was left"}
    started = time.perf_counter()
    turn(steps, kind, batch, device, timed=1)
    return {"first_s": time.perf_counter() - started}


def _timed(steps: Steps, kind: str, batch: Batch, device: torch.device) -> dict[str, Any]:
    took, peak = turn(steps, kind, batch, device)
    return {"ms": took, "peak_bytes": peak}


def fed_section(
    models: dict[str, Steps], device: torch.device, options: argparse.Namespace, batch: int, deadline: float
) -> dict[str, dict[str, Any]]:
    """A row for each model that our loader feeds; in the order given they share the time until `deadline`."""
    rows = {}
    with tempfile.TemporaryDirectory() as scratch:
        shards = options.shards or Path(scratch)
        try:
            if options.shards is None:
                make_up(shards, batch, options.workers)
        except Exception as error:  # what the loader needs may not be installed where the models run
            return {name: {"why": reason(error)} for name in models}
        for left, (name, steps) in zip(range(len(models), 0, -1), models.items(), strict=True):
            now = time.perf_counter()
            end = now + (deadline - now) / left
            rows[name] = _tried(lambda steps=steps, end=end: _fed(steps, shards, options, batch, end), steps)
    return rows


def _fed(steps: Steps, shards: Path, options: argparse.Namespace, batch: int, end: float) -> dict[str, Any]:
    if end < time.perf_counter():
        return {"why": "no time was left"}
    return feed(
        lambda found: steps("training", found),
        shards,
        options.model_size,
        batch,
        options.workers,
        torch.device(options.device),
        lambda: end - time.perf_counter(),
    )


def _tried(work: Callable[[], dict[str, Any]], steps: Steps) -> dict[str, Any]:
    try:
        return work()
    except Exception as error:  # a model that fails must not take the others along
        why = reason(error)
    steps.optimizer.zero_grad()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return {"why": why}


def _rates(times: list[float], batch: int) -> dict[str, float]:
    """Samples a second from milliseconds a step: median and quartiles."""
    found = summary(times)
    return {
        "samples_per_second": 1000 * batch / found["median_ms"],
        "low": 1000 * batch / found["high_ms"],
        "high": 1000 * batch / found["low_ms"],
        "samples": found["samples"],
    }


def main() -> None:
    parser = parser_of(__doc__)
    add_common_options(parser, seconds=240.0)
    parser.add_argument("--model-size", help="default: ViT-B-16 on a GPU, the Flickr8k recipe's on a CPU")
    parser.add_argument("--batch", type=int, nargs="+", help="default: 256 1024 on a GPU, 128 on a CPU")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--compile", choices=["blocks", "whole"], help="measure compiled as well")
    parser.add_argument("--rounds", type=int, default=10, help="at most, a section")
    parser.add_argument("--shards", type=Path, help="a folder of .tar to feed steps from; default: made up")
    parser.add_argument(
        "--workers", type=int, help="that read shards; default: 1 on a CPU, up to 12 on a GPU"
    )
    parser.add_argument("--models", nargs="+", help="names of the models to compare; default: all")
    parser.add_argument("--no-fed", action="store_true", help="leave out the steps that the loader feeds")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    cuda = device.type == "cuda"
    size = options.model_size = options.model_size or ("ViT-B-16" if cuda else None)
    if options.workers is None:
        options.workers = min(12, max(1, (os.cpu_count() or 1) - 2)) if cuda else 1
    sizes = options.batch or ([256, 1024] if cuda else [128])
    deadline = time.perf_counter() + options.seconds
    # the rest is for the steps that the loader feeds
    measured = deadline - (0.0 if options.no_fed else min(0.15 * options.seconds, 40.0))

    models, absent = {}, {}
    for name, model in make_models(size):
        if options.models and name not in options.models:
            continue
        if isinstance(model, str):
            absent[name] = {"why": model}
        else:
            models[name] = Steps(model, device, options.precision)
    plan = [("training", sizes[0], False)]
    if options.compile:
        plan = [] if cuda else plan  # on a GPU only compiled steps are of interest, and its time is short
        plan += [("training", batch, True) for batch in sizes] + [("inference", sizes[0], True)]
    else:
        plan += [("training", batch, False) for batch in sizes[1:]] + [("inference", sizes[0], False)]
    named = {"size": size or "flickr8k_cpu", "precision": options.precision}
    result: dict[str, Any] = {"about": about("training", options) | named, "sections": []}
    file = options.output / f"training_{device.type}_{options.precision}.json"
    for index, (kind, batch, compiled) in enumerate(plan):
        if compiled and (index == 0 or not plan[index - 1][2]):
            for steps in models.values():
                compile_model(steps.model, options.compile)
        now = time.perf_counter()
        # what is compiled is what matters: it may use all the time that is left
        end = measured if compiled else now + (measured - now) / (len(plan) - index)
        made_up = make_batch(size, batch, device)
        # no target names "sdpa", and compiling it takes time from those that have one
        chosen = {name: steps for name, steps in models.items() if not compiled or name != SDPA}
        rows = section(
            chosen, kind, made_up, device, options.rounds, lambda end=end: end - time.perf_counter()
        )
        entry = {"kind": kind, "batch": batch, "compiled": options.compile if compiled else None}
        result["sections"].append(entry | {"rows": rows | absent})
        write_json(file, result)  # after every section: a run that is stopped leaves what it has
        _show(result, device.type)
    if not options.no_fed:
        chosen = {name: steps for name, steps in models.items() if name in (REFERENCE, OURS)}
        entry = {"kind": FED, "batch": sizes[0], "compiled": options.compile, "workers": options.workers}
        result["sections"].append(entry | {"rows": fed_section(chosen, device, options, sizes[0], deadline)})
        write_json(file, result)
        _show(result, device.type)
    print(f"written to {file}", flush=True)


def _show(result: dict[str, Any], device: str) -> None:
    shown = result | {"sections": result["sections"][-1:]}
    print("\n".join(tables.training({f"training_{device}_": shown}, device)), flush=True)


if __name__ == "__main__":
    main()
