"""One run of a study: trained, put through its suite, condensed into the study's folder."""

from __future__ import annotations

import contextlib
import gc
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from diffclip.errors import DivergedError
from diffclip.evaluation.runner import Sets
from diffclip.files import disk_errors, lock_file, write_atomically
from diffclip.scenes import write_scenes
from diffclip.study.choose import DIVERGED, best_score
from diffclip.study.evaluate import evaluate_run
from diffclip.study.folder import COST_FILE, data_of, misfit, other_recipe
from diffclip.study.measure import MEASURED_FILE, cost_of, watch_training
from diffclip.study.plan import Group, Planned
from diffclip.study.recipe import Study
from diffclip.training.launch import Hardware
from diffclip.training.loop import train
from diffclip.training.recipe import Recipe, read_recipe, to_yaml
from diffclip.training.run_folder import LOCK_FILE, RECIPE_FILE, lock_folder

TELEMETRY_BYTES: dict[Group, int] = {"sweep": 4_000, "models": 10_000, "ablations": 4_000}
"""Of each run's telemetry in the study's folder: a grid has a hundred runs."""
SCENES = "scenes"
"""The folders in RUNS of scenes that a study draws, and of decoded pictures, which all workers share."""
_PATIENCE = 60.0  # seconds
_CHECKPOINT_EVERY = 500
"""Steps between two checkpoints of a run, but for the best ones: an epoch may take two seconds."""

Condense = Callable[[Path, Path, int], None]
"""(run folder, destination, bytes of telemetry): leaves there what is worth keeping of a run."""


@dataclass(frozen=True)
class Place:
    """Where a study is done.

    Attributes:
        data: the folder of published sets.
        runs: where runs are trained.
        output: the study's folder.
        device: "cpu" or "cuda".
        side_by_side: how many runs are trained at a time.
        condense: what makes a folder in `output` of a run.
        keep: whether checkpoints stay when their run is condensed.
        attention_backend: what all runs compute attention by; None: what the study says.
    """

    data: Path
    runs: Path
    output: Path
    device: str
    side_by_side: int
    condense: Condense
    keep: bool = False
    attention_backend: str | None = None

    def recipe(self, study: Study, planned: Planned) -> Recipe:
        """The training recipe of a run, with its data.

        Raises:
            InputError: as `Study.training`.
        """
        folder = (self.runs / SCENES if study.scenes else self.data) / study.data
        here = {f"data.{split}": str(folder / split) for split in ("train", "val")}
        if self.attention_backend is not None:
            here["attention_backend"] = self.attention_backend
        return study.training({"checkpoint_every": _CHECKPOINT_EVERY} | planned.change, here)

    def draw_scenes(self, study: Study, workers: int) -> bool:
        """Draw the scenes that the study trains on, if it does; whether there was something to draw.

        Raises:
            InputError: the folder holds other scenes, or cannot be written.
        """
        drawn = study.scenes
        return drawn is not None and write_scenes(
            self.runs / SCENES, drawn.size, drawn.train, drawn.val, test=1, seed=drawn.seed, workers=workers
        )


class Work:
    """What does runs of one study one after the other in one process, which keeps what they share."""

    def __init__(self, study: Study, place: Place) -> None:
        self._study, self._place = study, place
        self._device = torch.device(place.device)
        self._sets = Sets(place.data)

    def do(self, planned: Planned) -> float:
        """Bring a run to its end, from wherever it is, and condense it; returns its best score on the validation split,
        −inf for a run that diverged. One of other settings or data is removed first.

        What training and evaluation tell stands in `RUNS/GROUP/NAME.log`.

        Raises:
            InputError, StoppedError, DiffCLIPError: as `train`; or a task of the suite failed.
        """
        place = self._place
        run = place.runs / str(planned)
        recipe = place.recipe(self._study, planned)
        with logging_to(run.with_name(f"{run.name}.log")):
            wait_for_leftovers(run)
            _clear_unusable(recipe, run)
            train = partial(self._train, recipe, run)
            diverged = watch_training(run, self._device, place.side_by_side, train)
            score, seconds = DIVERGED, None
            if diverged is None:
                score = best_score(run)
                if planned.suite is not None:
                    seconds = self._evaluate(run, planned.suite, recipe.attention_backend)
            cost = cost_of(run, recipe, self._device, planned.suite, seconds) | data_of(self._study)
            self._condense(planned, cost if diverged is None else cost | {"diverged": diverged})
        if not place.keep:
            remove_checkpoints(run)
        self._tidy()
        return score

    def _train(self, recipe: Recipe, run: Path) -> int | None:
        """The step where the run diverged; None where it ended well."""
        hardware = Hardware(accelerator=self._device.type)
        try:
            train(recipe, run, True, hardware, memory=True)
        except DivergedError as error:
            _say(str(error))
            return error.step
        return None

    def _evaluate(self, run: Path, name: str, attention_backend: str) -> float:
        return evaluate_run(run, name, self._sets, self._device, _say, attention_backend)

    def _condense(self, planned: Planned, cost: dict[str, Any]) -> None:
        """Put what is worth keeping of a run into the study's folder, in the place of one of other settings."""
        run, target = self._place.runs / str(planned), self._place.output / str(planned)
        with disk_errors(target):
            shutil.rmtree(target, ignore_errors=True)
        with write_atomically(target) as temporary:
            if cost["step_seconds"] is None:  # it has not made a step
                recipe = to_yaml(self._study.training(planned.change))
                temporary.mkdir()
                (temporary / RECIPE_FILE).write_text(recipe, encoding="utf-8")
            else:
                self._place.condense(run, temporary, TELEMETRY_BYTES[planned.group])
            (temporary / COST_FILE).write_text(json.dumps(cost, indent=1) + "\n", encoding="utf-8")

    def _tidy(self) -> None:
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # workers share the GPU


def remove_checkpoints(run: Path) -> None:
    """Give back the disk that the checkpoints of a condensed run take."""
    shutil.rmtree(run / "checkpoints", ignore_errors=True)


@contextlib.contextmanager
def logging_to(file: Path) -> Iterator[None]:
    """What is printed within goes to the end of `file`.

    Raises:
        InputError: it cannot be written.
    """
    with disk_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        log = file.open("a", encoding="utf-8", buffering=1)
    with log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        yield


def wait_for_leftovers(run: Path) -> None:
    """Give a worker whose study was killed the time to save its run and leave; one that stays is told of by `train`."""
    until = time.monotonic() + _PATIENCE
    while (run / LOCK_FILE).is_file() and time.monotonic() < until:
        held = lock_file(run / LOCK_FILE)
        if not isinstance(held, str):
            held.close()
            return
        time.sleep(0.2)


def why_anew(study: Study, place: Place, planned: Planned) -> str | None:
    """Why a run is trained anew although there is one of its name, in words as `misfit`'s; None where there is none, or
    where that one is gone on with."""
    run = place.runs / str(planned)
    if (run / RECIPE_FILE).is_file() and _has_checkpoints(run):
        return _other_run(place.recipe(study, planned), run)
    return misfit(study, planned, place.output)


def _clear_unusable(recipe: Recipe, run: Path) -> None:
    """Remove a run that cannot be gone on with: one of other settings or data, and what is left of one that was
    condensed and is wanted anew."""
    if not (run / RECIPE_FILE).is_file():
        return
    other = _other_run(recipe, run)
    if other is not None:
        _say(f"{run} was {other}: removed, to be trained anew")
    elif _has_checkpoints(run) or not (run / MEASURED_FILE).is_file():
        return
    with lock_folder(run), disk_errors(run):
        shutil.rmtree(run)


def _has_checkpoints(run: Path) -> bool:
    return any((run / "checkpoints").glob("*"))


def _other_run(recipe: Recipe, run: Path) -> str | None:
    """How the run differs from one of `recipe`, in a few words; data that has moved is the same data."""
    other = other_recipe(recipe, run)
    if other is not None:
        return other
    before, now = read_recipe(run / RECIPE_FILE).data.train, recipe.data.train
    if Path(str(before)).parts[-2:] == Path(str(now)).parts[-2:]:
        return None
    return f"trained on {before}, not {now}"


def _say(line: str) -> None:
    print(line, file=sys.stderr)
