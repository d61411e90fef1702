"""`diffclip vlm demo`: towers, language model and both stages on the built-in scenes, for CLIP and DiffCLIP.

Both models have the same images, language model, conversations, order and budget. A second call reuses finished parts
and continues a stopped part.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from diffclip.data.workers import Showing
from diffclip.demo import MODELS, estimate_seconds, recipe_on_scenes, train_on_scenes
from diffclip.evaluation.records import Record
from diffclip.evaluation.results_file import ResultsFile
from diffclip.report.page import write_report
from diffclip.scenes import write_scenes
from diffclip.scenes.questions import TOPICS
from diffclip.scenes.write import write_questions
from diffclip.training.logging import duration
from diffclip.vlm.language_model import make_language_model
from diffclip.vlm.pope import evaluate_models, open_questions
from diffclip.vlm.scenes import STAGE_FILES, write_conversations
from diffclip.vlm.settings import STAGES, read_vlm_recipe
from diffclip.vlm.train import is_finished, train_stage

RECIPE = "vlm_scenes"
_SIZE, _SEED = 64, 0
_WHOLE = 2.9  # time of all parts over the time of the towers, on one core


@dataclass(frozen=True)
class DemoSettings:
    """Image counts, `talks` conversations about each of `talked` images, and changes to recipes (`tower`, `recipe`)."""

    train: int = 6000
    val: int = 500
    test: int = 100  # the questions have images of their own
    questioned: int = 100
    talked: int = 6000
    talks: int = 2
    language_steps: int = 800
    # smaller patches than those of the demo: the language model reads one token a patch
    tower: Sequence[str] = (
        *("architecture.vision.patch_size=8", "epochs=6", "batch_size=128"),
        "validate_every=6",
    )
    recipe: Sequence[str] = ()


def run_vlm_demo(
    folder: Path,
    seeds: Sequence[int],
    say: Callable[[str], None],
    showing: Showing,
    settings: DemoSettings | None = None,
) -> tuple[Path, list[Record]]:
    """Train and evaluate everything in `folder`; return its page, `report.html`, and the records of all models. `say`
    is called with a line for the user.

    Raises:
        InputError: the folder has other files, or the disk is full.
        StoppedError: a signal asked to stop a training; the next call continues it.
    """
    settings = settings or DemoSettings()
    scenes, pairs = folder / "scenes", list(product(seeds, MODELS))
    counts = {"size": _SIZE, "train": settings.train, "val": settings.val, "test": settings.test}
    with showing("scenes") as progress:
        drawn = write_scenes(scenes, **counts, seed=_SEED, workers=2, progress=progress)
    say(f"scenes: {'made' if drawn else 'reusing'} {scenes}")
    runs = [folder / f"{model}-s{seed}-stage{STAGES[-1]}" for seed, model in pairs]
    waiting = sum(not is_finished(run) for run in runs)
    if waiting:
        tower = recipe_on_scenes(scenes, MODELS[-1], _SEED, settings.tower)
        seconds = waiting * _WHOLE * estimate_seconds(tower, settings.train)
        say(f"{waiting} models to train, and their language model: about {duration(seconds)} in all")
    _make_data(folder, settings, say, showing)
    for run, (seed, model) in zip(runs, pairs, strict=True):
        started, is_new = time.monotonic(), not is_finished(run)
        _train_model(folder, model, seed, say, settings)
        waiting -= is_new
        if waiting:
            seconds = waiting * (time.monotonic() - started)
            say(f"{run.name} is there, about {duration(seconds)} for {waiting} more, and the questions")
    results = ResultsFile(folder / "pope.jsonl")
    records: list[Record] = []
    for blind, topic in product((True, False), TOPICS):
        questions = open_questions(folder / "questions" / topic, None, f"scenes-{topic}", blind)
        cpu = torch.device("cpu")
        records += evaluate_models([str(run) for run in runs], questions, results, 100, cpu, showing, say)
    page = write_report(
        [folder / "pope.jsonl"],
        folder / "report.html",
        title="Language models that see scenes through CLIP and DiffCLIP",
        command=shlex.join(["diffclip", "vlm", "demo", "--folder", str(folder), "--seeds", str(len(seeds))]),
    )
    return page, records


def _make_data(folder: Path, settings: DemoSettings, say: Callable[[str], None], showing: Showing) -> None:
    """Make what all seeds share besides the scenes: conversations, questions and the language model."""

    def make(part: str, path: Path, last_file: str, write: Callable[..., object], *sizes: Any) -> None:
        is_new = not (path / last_file).exists()
        if is_new:
            with showing(part) as progress:
                write(path, *sizes, progress)
        say(f"{part}: {'made' if is_new else 'reusing'} {path}")

    talks = (settings.talked, settings.talks, _SIZE, _SEED)
    make("conversations", folder / "conversations", STAGE_FILES[-1], write_conversations, *talks)
    for topic in TOPICS:
        questions = (settings.questioned, _SIZE, _SEED, topic)
        make(f"questions about {topic}", folder / "questions" / topic, "", write_questions, *questions)
    language = folder / "language_model"
    make("language model", language, "", lambda path, _: make_language_model(path, settings.language_steps))


def _train_model(
    folder: Path, model: str, seed: int, say: Callable[[str], None], settings: DemoSettings
) -> None:
    """Train a tower and both stages. The seed decides the tower, the connector and the order of samples."""
    tower, talks = folder / f"{model}-s{seed}", folder / "conversations"
    train_on_scenes(tower, folder / "scenes", model, seed, say, settings.tower)
    runs = [folder / f"{tower.name}-stage{stage}" for stage in STAGES]
    paths = {"vision": tower, "language_model": folder / "language_model", "stage2.start": runs[0]}
    for stage, file in zip(STAGES, STAGE_FILES, strict=True):
        paths |= {f"stage{stage}.images": talks / "images", f"stage{stage}.json": talks / file}
    changes = [f"{key}={json.dumps(str(path))}" for key, path in paths.items()]
    recipe = read_vlm_recipe(RECIPE, [*changes, f"seed={seed}", *settings.recipe])
    for stage, run in zip(STAGES, runs, strict=True):
        say(f"{run.name}: {'reusing' if is_finished(run) else 'training in'} {run}")
        if not is_finished(run):
            train_stage(recipe, stage, run, resume=True, say=say)
