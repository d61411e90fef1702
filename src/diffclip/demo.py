"""The demonstration: draw scenes, train CLIP, DiffCLIP and the models of plugins on them, evaluate all, and write one
page.

All models have the same init (`matched`), data order and budget. Finished parts are reused.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

from diffclip.config import BUILT_IN_VARIANTS, VARIANTS
from diffclip.data.open_set import open_set
from diffclip.data.workers import Showing
from diffclip.errors import InputError
from diffclip.evaluation.records import RESULTS_FILE, Record
from diffclip.evaluation.results_file import ResultsFile
from diffclip.evaluation.run import Sets, run_entries
from diffclip.evaluation.suite import Entry
from diffclip.plugins import loaded_plugins, plugin_sources
from diffclip.report.examples import attention_examples, retrieval_examples
from diffclip.report.labels import percent
from diffclip.report.page import Extra, write_report
from diffclip.scenes import write_scenes
from diffclip.sources.load import load_clip, load_with_origin, pick_device
from diffclip.training.logging import duration
from diffclip.training.plan import measure_steps
from diffclip.training.recipe import Recipe, read_recipe
from diffclip.training.run import train

MODELS = ("CLIP", "DiffCLIP")
RECIPE = "scenes_demo"
_TRAIN, _VAL, _TEST = 6000, 500, 1000
_EXAMPLES, _ATTENTION_IMAGES = 4, 6


def run_demo(
    folder: Path, say: Callable[[str], None], showing: Showing, seeds: int
) -> tuple[Path, list[Record]]:
    """Make or complete the demonstration in `folder`; return its page, `report.html`, and the records of all models.

    `say` is called with a line for the user. The runs of each model's training `seeds` are `CLIP`, `CLIP-s1`, …

    Raises:
        InputError: the folder holds something else, or the disk is full.
        StoppedError: a signal asked a training to stop; the next call continues it.
    """
    scenes = folder / "scenes"
    sizes = {"size": 64, "train": _TRAIN, "val": _VAL, "test": _TEST}
    with showing("scenes") as progress:
        drawn = write_scenes(scenes, **sizes, seed=0, workers=2, progress=progress)
    say(f"scenes: {'drawn in' if drawn else 'reusing'} {scenes} ({_TRAIN + _VAL + _TEST:,} captioned images)")
    own = [name for name in VARIANTS if name not in BUILT_IN_VARIANTS]
    if loaded_plugins() and not own:
        raise InputError(
            "no plugin names a model to train: add diffclip.register_variant(…), or leave --plugin out"
        )
    compared = (*MODELS, *own)
    names = [model if seed == 0 else f"{model}-s{seed}" for seed, model in product(range(seeds), compared)]
    waiting = [name for name in names if not (folder / name / RESULTS_FILE).is_file()]
    seconds = estimate_seconds(recipe_on_scenes(scenes, compared[-1], 0), _TRAIN) if waiting else 0.0
    if waiting:
        say(
            f"{len(waiting)} models to train: about {duration(len(waiting) * seconds)}, with a page after each"
        )
    page, records, runs = folder / "report.html", list[Record](), list[Path]()
    for name, (seed, model) in zip(names, product(range(seeds), compared), strict=True):
        started = time.monotonic()
        runs.append(folder / name)
        train_on_scenes(runs[-1], scenes, model, seed, say)
        records += _evaluate(runs[-1], scenes, say)
        if name in waiting or name == names[-1]:
            command = ["diffclip", "demo", "--folder", str(folder), "--seeds", str(seeds)]
            for source in plugin_sources():
                command += ["--plugin", os.path.relpath(source) if os.sep in source else source]
            _write_page(page, runs, scenes, compared, records, shlex.join(command))
        if name in waiting:
            waiting.remove(name)
            seconds = time.monotonic() - started  # with its data and its page
        if waiting:
            say(f"{page}: {name} is there, about {duration(len(waiting) * seconds)} for {len(waiting)} more")
    return page, records


def estimate_seconds(recipe: Recipe, samples: int) -> float:
    """Estimate the seconds of a training on `samples`: a few timed steps, times the steps of the training."""
    return recipe.epochs * samples / measure_steps(recipe, pick_device("auto"), recipe.batch_size)[0]


def _write_page(
    page: Path,
    runs: Sequence[Path],
    scenes: Path,
    compared: Sequence[str],
    records: Sequence[Record],
    command: str,
) -> None:
    """Write the page about the runs that are finished; examples are of each model's first run."""
    first = [run for run in runs if run.name in compared]
    models = {run.name: load_clip(run / "checkpoints" / "best") for run in first}
    with_maps = {name: bundle for name, bundle in models.items() if bundle[0].config.vision.layer.has_maps()}
    test = open_set(scenes / "captions", "test")
    write_report(
        runs,
        page,
        title=f"{', '.join(compared[:-1])} and {compared[-1]} on the built-in scenes",
        command=command,
        extras=[
            Extra("Not learned", _not_learned(records), []),
            retrieval_examples(models, test, _EXAMPLES),
            attention_examples(with_maps, test, _ATTENTION_IMAGES),
        ],
    )


def _not_learned(records: Sequence[Record]) -> str:
    """Compare zero-shot accuracy by shape with chance: models of this size do not learn shapes in minutes."""
    shapes = [record for record in records if (record.dataset, record.metric) == ("shapes", "acc1")]
    by_model: dict[str, list[str]] = {}  # a value for each seed
    for record in shapes:
        by_model.setdefault(record.model, []).append(percent(record.value))
    values = "; ".join(f"{model} {', '.join(of_seeds)} %" for model, of_seeds in by_model.items())
    return (
        f"Zero-shot by shape: {values}; chance {percent(shapes[0].chance)} %. Models of this size learn colors in "
        "minutes, but not shapes: “two red stars” may find red squares."
    )


def train_on_scenes(
    run: Path, scenes: Path, model: str, seed: int, say: Callable[[str], None], changes: Sequence[str] = ()
) -> None:
    """Train `model` in the folder `run`, with `changes` to the recipe. Continue a stopped run; skip a finished one."""
    say(f"{run.name}: training in {run}")
    train(recipe_on_scenes(scenes, model, seed, changes), run, resume=True)


def recipe_on_scenes(scenes: Path, model: str, seed: int, changes: Sequence[str] = ()) -> Recipe:
    """Read the recipe of the demo for a model and its seed, with paths of the scenes and `changes`."""
    paths = {split: json.dumps(str(scenes / "captions" / split)) for split in ("train", "val")}
    data = [f"data.{split}={path}" for split, path in paths.items()]
    return read_recipe(RECIPE, [f"model={model}", f"seed={seed}", *data, *changes])


def _evaluate(run: Path, scenes: Path, say: Callable[[str], None]) -> Sequence[Record]:
    """Measure the best checkpoint of `run` on the held-out scenes; existing results are reused."""
    results = ResultsFile(run / RESULTS_FILE)
    sets = (("retrieval", "captions"), ("zero-shot", "colours"), ("zero-shot", "shapes"))
    entries = [Entry(task, str(scenes / name)) for task, name in sets]
    measured: list[Record] = []
    for entry in run_entries(load_with_origin(str(run)), entries, results, Sets()):
        if entry.error:
            raise type(entry.error)(f"{run.name}: {entry.entry} failed: {entry.error}")
        measured += entry.records
    say(f"{run.name}: {len(measured)} results in {results.path}")
    return measured
