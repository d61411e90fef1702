"""Samples a second of a whole training step (forward, loss, backward, AdamW) and of inference, by model and backend.

    python -m benchmarks.training [--device cpu|cuda] [--batch 256 1024] [--model-size ViT-B-16] [--compile blocks]

Models take turns in each round, and are given as ratios to our CLIP in the same section. The batch is made up and lies
on the device: no time goes into waiting for data. Writes training_DEVICE_PRECISION.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.about import about, add_common_options, write_json
from benchmarks.models import REFERENCE, SDPA, compile_model, config_of, make_models
from diffclip.benchmarking.timing import reason, summary
from diffclip.training.optimiser import make_optimiser
from diffclip.training.recipe import read_recipe

Batch = tuple[Tensor, Tensor]
_TURN = 2  # timed steps in a turn, after one that warms up


class Steps:
    """One model with its optimiser; calling it takes one step of `kind` on `batch`."""

    def __init__(self, model: nn.Module, device: torch.device, precision: str) -> None:
        self.model = model.to(device)
        # a rate so small that a made-up batch cannot make the weights infinite
        self.optimiser = make_optimiser(self.model, read_recipe("flickr8k_cpu", ["lr=1e-6"]))
        self.autocast = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")

    def __call__(self, kind: str, batch: Batch) -> None:
        self.model.train(kind == "training")
        if kind == "inference":
            with torch.no_grad(), self.autocast:
                self.model(*batch)
            return
        with self.autocast:
            loss = clip_loss(**self.model(*batch))
        loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad()

    def resident(self) -> int:
        """Bytes of weights and of the optimiser's state."""
        state = [
            x for entry in self.optimiser.state.values() for x in entry.values() if isinstance(x, Tensor)
        ]
        tensors = [*self.model.parameters(), *self.model.buffers(), *state]
        return sum(x.numel() * x.element_size() for x in tensors)


def clip_loss(image_features: Tensor, text_features: Tensor, logit_scale: Tensor) -> Tensor:
    """OpenCLIP's loss on one device, which is used where it is installed."""
    try:
        from open_clip.loss import ClipLoss
    except ImportError:
        logits = logit_scale * image_features @ text_features.T
        own = torch.arange(len(logits), device=logits.device)
        return (nn.functional.cross_entropy(logits, own) + nn.functional.cross_entropy(logits.T, own)) / 2
    loss: Tensor = ClipLoss()(image_features, text_features, logit_scale)
    return loss


def make_batch(size: str | None, batch: int, device: torch.device) -> Batch:
    """Random pictures and captions that end half-way."""
    config = config_of("CLIP", size)
    vision, text = config.vision, config.text
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, vision.image_size, vision.image_size, generator=generator)
    tokens = torch.randint(1, text.vocab_size - 2, (batch, text.context_length), generator=generator)
    tokens[:, text.context_length // 2 :] = 0
    tokens[:, text.context_length // 2] = text.vocab_size - 1
    return images.to(device), tokens.to(device)


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


def _tried(work: Callable[[], dict[str, Any]], steps: Steps) -> dict[str, Any]:
    try:
        return work()
    except Exception as error:  # a model that fails must not take the others along
        why = reason(error)
    steps.optimiser.zero_grad()
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common_options(parser, seconds=240.0)
    parser.add_argument("--model-size", help="default: ViT-B-16 on a GPU, the Flickr8k recipe's on a CPU")
    parser.add_argument("--batch", type=int, nargs="+", help="default: 256 1024 on a GPU, 128 on a CPU")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--compile", choices=["blocks", "whole"], help="measure compiled as well")
    parser.add_argument("--rounds", type=int, default=10, help="at most, a section")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    cuda = device.type == "cuda"
    size = options.model_size or ("ViT-B-16" if cuda else None)
    sizes = options.batch or ([256, 1024] if cuda else [128])
    deadline = time.perf_counter() + options.seconds

    models, absent = {}, {}
    for name, model in make_models(size):
        if isinstance(model, str):
            absent[name] = {"why": model}
        else:
            models[name] = Steps(model, device, options.precision)
    plan = [("training", sizes[0], False)]
    if options.compile:
        plan += [("training", batch, True) for batch in sizes] + [("inference", sizes[0], True)]
    else:
        plan += [("training", batch, False) for batch in sizes[1:]] + [("inference", sizes[0], False)]
    named = {"size": size or "flickr8k_cpu", "precision": options.precision}
    result: dict[str, Any] = {
        "about": about("training", options) | named | {"data_wait": 0.0},
        "sections": [],
    }
    file = options.output / f"training_{device.type}_{options.precision}.json"
    for index, (kind, batch, compiled) in enumerate(plan):
        if compiled and not plan[index - 1][2]:
            for steps in models.values():
                compile_model(steps.model, options.compile)
        now = time.perf_counter()
        # what is compiled is what matters: it may use all the time that is left
        end = deadline if compiled else now + (deadline - now) / (len(plan) - index)
        made_up = make_batch(size, batch, device)
        # no target names "sdpa", and compiling it takes time from those that have one
        chosen = {name: steps for name, steps in models.items() if not compiled or name != SDPA}
        rows = section(
            chosen, kind, made_up, device, options.rounds, lambda end=end: end - time.perf_counter()
        )
        entry = {"kind": kind, "batch": batch, "compiled": options.compile if compiled else None}
        result["sections"].append(entry | {"rows": rows | absent})
        write_json(file, result)  # after every section: a run that is stopped leaves what it has
        show(result["sections"][-1])
    print(f"written to {file}", flush=True)


def show(entry: dict[str, Any]) -> None:
    """Print the table of one section."""
    compiled = f", compiled ({entry['compiled']})" if entry["compiled"] else ""
    print(f"\n{entry['kind']}, batch {entry['batch']}{compiled}")
    print(f"{'':18}{'samples/s':>11}{'±':>8}{'/ CLIP':>8}{'peak GiB':>10}{'/ CLIP':>8}{'first s':>9}")
    reference = entry["rows"][REFERENCE]
    for name, row in entry["rows"].items():
        if "why" in row:
            print(f"{name:18}  {row['why']}")
            continue
        rate, peak = row["samples_per_second"], row["peak_bytes"]
        base = reference.get("samples_per_second")
        line = f"{name:18}{rate:11.1f}{(row['high'] - row['low']) / 2:8.1f}"
        line += f"{rate / base:8.3f}" if base else f"{'':8}"
        if peak:
            ratio = peak / reference["peak_bytes"] if reference.get("peak_bytes") else float("nan")
            line += f"{peak / 2**30:10.2f}{ratio:8.3f}"
        else:
            line += f"{'':18}"
        print(f"{line}{row['first_s']:9.1f}")
    print("", flush=True)


if __name__ == "__main__":
    main()
