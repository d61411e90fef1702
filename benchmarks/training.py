"""Measure training steps (forward, loss, backward, AdamW) and inference in samples per second, by model and backend.

    python -m benchmarks.training [--device cpu|cuda] [--batch 256 1024] [--compile blocks]
    python -m benchmarks.training --texts | --patches RECIPE [key=value …]

The models are ViT-B/16 on a GPU and those of the Flickr8k recipe on a CPU.
The models take turns in each round, and are also given as ratios to our CLIP in the same section. Their batch is random
and on the device. Memory is the peak of a step on a GPU; on a CPU, what a forward pass keeps for the backward pass.
Writes training_DEVICE_bf16.json.

`--texts` prints the time of a step of a recipe whose texts are cut to their longest, as a ratio to a step with texts of
the whole context; text lengths are like those of Flickr8k's captions. `--patches` prints the ratio of a step whose
patches are embedded by our matrix product to one with timm's convolution. Both steps take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import timm.layers
import torch

from benchmarks import tables
from benchmarks.about import about, add_common_options, parser_of, write_json
from benchmarks.models import SDPA, Batch, Steps, compile_blocks, make_batch, make_models
from diffclip.benchmarking.timing import summarize, take_turns
from diffclip.towers.vision import PatchEmbed
from diffclip.training.plan import make_step
from diffclip.training.recipe import Recipe, read_recipe

PRECISION = "bf16"
_TURN = 2  # timed steps in a turn, after one that warms up


def turn(steps: Steps, kind: str, batch: Batch, device: torch.device) -> tuple[float, int]:
    """Return the milliseconds of a step, and the peak bytes of this model alone (0 on a CPU)."""
    cuda = device.type == "cuda"
    if cuda:
        free, total = torch.cuda.mem_get_info(device)
        if free < 0.3 * total:
            torch.cuda.empty_cache()  # cached blocks of other sizes from another model's step
    steps(kind, batch)
    before = torch.cuda.memory_allocated(device) if cuda else 0
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    for _ in range(_TURN):
        steps(kind, batch)
    if cuda:
        torch.cuda.synchronize(device)
    took = 1000 * (time.perf_counter() - started) / _TURN
    if not cuda:
        return took, 0
    resident = steps.resident() + sum(x.nbytes for x in batch)
    return took, torch.cuda.max_memory_allocated(device) - before + resident


def section(
    models: dict[str, Steps],
    kind: str,
    batch: Batch,
    device: torch.device,
    rounds: int,
    left: Callable[[], float],
) -> dict[str, dict[str, Any]]:
    """Measure a row per model; the row of a model that fails or has no time left says why. `left` is in seconds."""
    rows: dict[str, dict[str, Any]] = {name: {} for name in models}

    def sampler(name: str) -> Callable[[], float]:
        def sample() -> float:
            if not rows[name] and left() < 0:
                raise TimeoutError("no time was left")
            try:
                took, rows[name]["peak_bytes"] = turn(models[name], kind, batch, device)
            except Exception:  # its gradients must not take memory from the others
                models[name].optimizer.zero_grad()
                if device.type == "cuda":
                    torch.cuda.empty_cache()
                raise
            return took

        return sample

    samplers = {name: sampler(name) for name in models}
    _, failures = take_turns(samplers, rounds=0)  # compiles
    warm = {name: sample for name, sample in samplers.items() if name not in failures}
    if kind == "training" and device.type == "cpu":
        for name in warm:
            rows[name]["kept_bytes"] = models[name].kept(batch)
    taken, late = take_turns(warm, rounds, left() / 2)  # the sections after this one need time too
    for name, times in taken.items():
        rows[name] |= _rates(times, len(batch[0]))
    return rows | {name: {"why": why} for name, why in (failures | late).items()}


def _rates(times: list[float], batch: int) -> dict[str, float]:
    """Convert milliseconds per step to samples per second: median and quartiles."""
    timing = summarize(times)
    names = {"samples_per_second": "median_ms", "low": "high_ms", "high": "low_ms"}
    return {name: 1000 * batch / timing[key] for name, key in names.items()} | {"samples": timing["samples"]}


def compare_texts(recipe: Recipe, device: torch.device, rounds: int, seconds: float) -> str:
    """Compare a step with short texts to one with texts of the whole context."""
    count, context = recipe.batch_size, recipe.config().text.context_length
    # Flickr8k: mean 14 tokens, nine of ten captions up to 19, the longest of a batch of 128 about 30
    drawn = np.random.default_rng(0).gamma(shape=12, scale=14 / 12, size=count)
    lengths = np.clip(drawn.round(), 4, context).astype(int).tolist()
    cut, whole = (make_step(recipe, device, count, given) for given in (lengths, None))
    compared = _compare_steps(cut, whole, count, rounds, seconds)
    return f"{recipe.model}, batch {count}, context {context}, longest text {max(lengths)}: {compared}"


def compare_patches(recipe: Recipe, device: torch.device, rounds: int, seconds: float) -> str:
    """Compare a step with our patch embedding to one with timm's."""
    count, vision = recipe.batch_size, recipe.config().vision
    step = make_step(recipe, device, count)

    def convolution() -> float:
        with mock.patch.object(PatchEmbed, "forward", timm.layers.PatchEmbed.forward):
            return step()

    compared = _compare_steps(step, convolution, count, rounds, seconds)
    return (
        f"{recipe.model}, batch {count}, patches of {vision.patch_size} in {vision.image_size} px: {compared}"
    )


def _compare_steps(
    new: Callable[[], float], old: Callable[[], float], count: int, rounds: int, seconds: float
) -> str:
    """Describe the ratio of the times of two steps, round by round, and the pairs that each takes in a second."""
    samplers = {"new": lambda: 1000 * new(), "old": lambda: 1000 * old()}
    taken, _ = take_turns(samplers, rounds, seconds)
    low, middle, high = np.quantile(np.divide(taken["new"], taken["old"]), [0.25, 0.5, 0.75])
    pairs = [count * 1000 / np.median(taken[name]) for name in ("old", "new")]
    return f"{pairs[0]:.0f} -> {pairs[1]:.0f} pairs a second, time {middle:.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    parser = parser_of(__doc__)
    add_common_options(parser, seconds=240.0)
    parser.add_argument("--batch", type=int, nargs="+", help="default: 256 1024 on a GPU, 128 on a CPU")
    parser.add_argument("--compile", choices=["blocks"], help="measure compiled as well")
    parser.add_argument("--rounds", type=int, default=10, help="at most, a section")
    parser.add_argument("--models", nargs="+", help="names of the models to compare; default: all")
    parser.add_argument("--texts", nargs="+", metavar="RECIPE", help="a recipe and changes: cut texts alone")
    parser.add_argument("--patches", nargs="+", metavar="RECIPE", help="a recipe and changes: patches alone")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    for words, compare in ((options.texts, compare_texts), (options.patches, compare_patches)):
        if words:
            print(compare(read_recipe(words[0], words[1:]), device, options.rounds, options.seconds))
    if options.texts or options.patches:
        return
    cuda = device.type == "cuda"
    size = "ViT-B-16" if cuda else None
    sizes = options.batch or ([256, 1024] if cuda else [128])
    deadline = time.perf_counter() + options.seconds

    models, absent = {}, {}
    for name, model in make_models(size, options.models):
        if isinstance(model, str):
            absent[name] = {"why": model}
        else:
            models[name] = Steps(model, device, PRECISION)
    plan = [("training", sizes[0], False)]
    if options.compile:
        plan = [] if cuda else plan  # on a GPU only compiled steps are of interest, and its time is short
        plan += [("training", batch, True) for batch in sizes] + [("inference", sizes[0], True)]
    else:
        plan += [("training", batch, False) for batch in sizes[1:]] + [("inference", sizes[0], False)]
    settings = {"size": size or "flickr8k_cpu", "precision": PRECISION}
    result: dict[str, Any] = {"about": about("training", options) | settings, "sections": []}
    file = options.output / f"training_{device.type}_{PRECISION}.json"

    for index, (kind, batch, compiled) in enumerate(plan):
        if compiled and (index == 0 or not plan[index - 1][2]):
            for steps in models.values():
                compile_blocks(steps.model)
        now = time.perf_counter()
        # compiled sections matter most, so they may use all the time that is left
        end = deadline if compiled else now + (deadline - now) / (len(plan) - index)
        # no target names "sdpa", and compiling it takes time from the models of the targets
        chosen = {name: steps for name, steps in models.items() if not compiled or name != SDPA}
        made_up = make_batch(size, batch, device)
        rows = section(
            chosen, kind, made_up, device, options.rounds, lambda end=end: end - time.perf_counter()
        )
        entry = {"kind": kind, "batch": batch, "compiled": options.compile if compiled else None}
        result["sections"].append(entry | {"rows": rows | absent})
        write_json(file, result)  # after every section, so that a stopped run keeps its results
        print("\n".join(tables.training_table(result | {"sections": result["sections"][-1:]})), flush=True)
    print(f"written to {file}", flush=True)


if __name__ == "__main__":
    main()
