"""`diffclip train RECIPE --dry-run`: the needs of a run, and whether it could start."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffclip.cli.console import print_table
from diffclip.errors import DiffCLIPError, InputError
from diffclip.files import printable

if TYPE_CHECKING:
    from diffclip.training.launch import Hardware
    from diffclip.training.plan import Plan
    from diffclip.training.recipe import Recipe

# images of each split that are read
_READ = 8


def show_dry_run(
    recipe: Recipe, run: Path, resume: bool, hardware: Hardware, gpu: str, as_json: bool
) -> None:
    """Print the plan of a run on `hardware`, whose GPUs need not be here, after a look at its data; write nothing.

    Raises:
        InputError: the run could not start; all reasons but the last have been told on stderr.
    """
    from diffclip.training.plan import plan_run

    devices = hardware.devices
    if devices == "auto":  # of this node, which may plan for many
        devices = replace(hardware, nodes=1).resolved().devices
    world = int(devices) * hardware.nodes
    if world < 1:
        raise InputError(f"{devices} devices on {hardware.nodes} nodes: both must be at least 1")
    samples, found, problems = look(recipe, run, resume, world)
    try:
        plan = plan_run(recipe, world, hardware.strategy, gpu, samples)
        if not plan["fits"]:
            problems.insert(0, f"{plan['gpu']}: {plan['advice']}")
        if as_json:
            data = {"found": found, "problems": problems}
            print(json.dumps(plan | {"data": data}, indent=1))
        else:
            show_plan(plan)
            print(*map(printable, found), sep="\n")
    except DiffCLIPError as error:
        problems.append(str(error))
    for problem in problems[:-1]:
        print(f"diffclip: {problem}", file=sys.stderr)
    if problems:
        raise InputError(problems[-1])


def look(recipe: Recipe, run: Path, resume: bool, world: int) -> tuple[int | None, list[str], list[str]]:
    """Open everything that a run opens: (samples an epoch, findings, reasons why it could not start)."""
    from diffclip.errors import require_group
    from diffclip.training.run import build_model, take_weights
    from diffclip.training.run_folder import check_folder

    memory = recipe.data.memory
    recipe = recipe.model_copy(
        update={"data": recipe.data.model_copy(update={"workers": 0, "memory": False})}
    )
    samples: list[int] = []
    weights = recipe.weights
    checks: list[Callable[[], Any]] = [
        lambda: require_group("train", "lightning"),
        lambda: _look_at_training_data(recipe, world, samples, memory),
        lambda: _look_at_validation_data(recipe),
        lambda: take_weights(build_model(recipe), weights) if weights else None,
        lambda: check_folder(recipe, run, resume),
    ]
    found: list[str] = []
    problems: list[str] = []
    for check in checks:
        try:
            found += check() or []
        except DiffCLIPError as error:
            problems.append(str(error))
    return next(iter(samples), None), found, problems


def _look_at_training_data(recipe: Recipe, world: int, samples: list[int], memory: bool) -> Iterator[str]:
    from contextlib import closing

    from diffclip.data.memory import check_whole
    from diffclip.errors import Fault
    from diffclip.training.run import open_training_data

    try:
        loader = open_training_data(recipe, 0, world)
    except DiffCLIPError as error:
        command = how_to_get(recipe)
        raise InputError(f"training data: {error}" + (f"; to get it: {command}" if command else "")) from None
    if memory:  # which the dry run leaves alone
        check_whole(loader.corpus)
    samples.append(loader.samples)
    yield (
        f"training data: {loader.samples:,} samples an epoch in {loader.batches_per_epoch:,} batches, "
        f"{loader.dropped:,} left out of each"
    )
    expected = recipe.data.expected_samples
    if expected is not None and abs(loader.samples - expected) > 0.02 * expected:
        yield f"training data: {loader.samples:,} samples where the recipe expects {expected:,}"
    corpus, tried = loader.corpus, min(_READ, loader.corpus.samples)
    # of remote shards with an index beside them only the first is fetched
    step = 1 if corpus.is_remote else corpus.samples // tried
    with closing(loader):
        read = [corpus.read(i * step) for i in range(tried)]
    broken = [one for one in read if isinstance(one, Fault)]
    yield from (f"training data: {fault}" for fault in (*loader.faults[:3], *broken[:3]))
    whole = f"{tried - len(broken)} of {tried} images that were tried can be read"
    if len(broken) == tried:
        raise InputError(f"training data: {whole}")
    yield f"training data: {whole}"


def _look_at_validation_data(recipe: Recipe) -> Iterator[str]:
    from diffclip.training.run import open_validation_data

    data = open_validation_data(recipe)
    if data is None:
        yield "validation data: none, so that no checkpoint is kept as the best (data.val)"
        return
    yield f"validation data: {len(data):,} images with {sum(map(len, data.captions)):,} captions"
    yield from (f"validation data: {fault}" for fault in data.faults[:3])


def how_to_get(recipe: Recipe) -> str | None:
    """The command that fetches the training data, where it lies in a folder that has a published set's name."""
    from diffclip.data.download import CAPTION_SETS
    from diffclip.data.remote import is_remote
    from diffclip.training.recipe import WeightedShards

    train = recipe.data.train
    for source in train if isinstance(train, list) else [train]:
        shards = source.shards if isinstance(source, WeightedShards) else source
        for path in (
            Path(one) for one in ([shards] if isinstance(shards, str) else shards) if not is_remote(one)
        ):
            for folder in () if path.exists() else (path, *path.parents):
                command = f"diffclip data download {folder.name} --root {shlex.quote(str(folder.parent))}"
                if folder.name in ("flickr8k", "flickr30k"):
                    place = shlex.quote(str(folder))
                    return f"{command}, then diffclip data make-shards {place} {place}"
                if folder.name in CAPTION_SETS:
                    return command
    return None


def show_plan(plan: Plan) -> None:
    """Print the plan as one table: parameters, operations a sample, memory of one process, and the run."""
    from diffclip.training.logging import duration
    from diffclip.training.plan import GIB, UTILIZATION, find_gpu

    gpu, world = find_gpu(plan["gpu"]), plan["world"]
    passes = -(-plan["share"] // plan["pass_size"])
    print(
        f"{plan['model']}, {plan['precision']}, batch {plan['batch_size']:,}: "
        + ("1 process" if world == 1 else f"{world} processes ({plan['strategy']})")
        + f", {plan['share']:,} samples each"
        + (f" in {passes} passes of {plan['pass_size']:,}" if passes > 1 else "")
    )
    rows: list[tuple[str, str] | None] = []
    for title, name, unit, digits in (
        ("parameters", "parameters", 1, 0),
        ("GFLOP per sample", "flops", 1e9, 2),
        ("GiB per process", "memory", GIB, 2),
    ):
        rows.append((title, ""))
        rows += [(f"  {part}", f"{value / unit:,.{digits}f}") for part, value in plan[name].items() if value]
        rows.append(None)
    if plan["steps"] is not None:
        rows.append(("samples per epoch", f"{plan['samples_per_epoch']:,}"))
        epochs = plan["steps"] // plan["steps_per_epoch"]
        rows.append(("steps", f"{epochs} epochs × {plan['steps_per_epoch']:,} = {plan['steps']:,}"))
    needed = f"{plan['memory']['total'] / GIB:,.1f} of {gpu.memory_gib:,.1f} GiB"
    rows.append((f"memory of one {gpu.name}", f"{needed}: {'fits' if plan['fits'] else 'does not fit'}"))
    rate = gpu.tflops(plan["precision"])
    rows.append((f"{world} × {gpu.name}, assumed", f"{100 * UTILIZATION:.0f} % of {rate:,.0f} TFLOP/s each"))
    rows.append(("samples per second", f"{plan['samples_per_second']:,.0f}"))
    if plan["hours"] is not None:
        rows.append(("time", f"{duration(3600 * plan['hours'])}, {world * plan['hours']:,.1f} GPU hours"))
    print_table(("", "value"), "lr", rows)
