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
from pathlib import Path

import torch

from diffclip.data.picture_memory import PictureMemory
from diffclip.data.pictures import keeping
from diffclip.data.scenes import write_scenes
from diffclip.errors import DiffCLIPError, InputError
from diffclip.evaluation.ledger import Ledger
from diffclip.evaluation.runner import Runner, Sets
from diffclip.evaluation.store import Store
from diffclip.evaluation.suite import suite
from diffclip.files import disk_errors, lock_file, write_atomically
from diffclip.model_source import load_for_use
from diffclip.study.choose import best_score
from diffclip.study.folder import COST_FILE
from diffclip.study.measure import MEASURED_FILE, cost_of, watch_training
from diffclip.study.plan import Group, Planned
from diffclip.study.recipe import Study
from diffclip.training.complete import complete_run
from diffclip.training.distributed import Hardware
from diffclip.training.recipe import Recipe
from diffclip.training.run_folder import LOCK_FILE, RECIPE_FILE

DRAWS = range(3)
"""Of the tasks that draw at random."""
TELEMETRY_BYTES: dict[Group, int] = {"sweep": 4_000, "models": 10_000, "ablations": 4_000}
"""Of each run's telemetry in the study's folder: a grid has a hundred runs."""
SCENES, PICTURES = "scenes", "pictures"
"""The folders in RUNS of scenes that a study draws, and of decoded pictures, which all workers share."""
_BATCH = 256
_PATIENCE = 60.0  # seconds
_SPACING = 30.0
"""Seconds between two checkpoints of a run, but for the best ones: an epoch may take two."""

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
        return study.training(planned.change, here)

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
        self._memory = PictureMemory(place.runs / PICTURES)

    def do(self, planned: Planned) -> float:
        """Bring a run to its end, from wherever it is, and condense it; returns its best score on the validation split.

        What training and evaluation tell stands in `RUNS/GROUP/NAME.log`.

        Raises:
            InputError, StoppedError, DiffCLIPError: as `train`; or a task of the suite failed.
        """
        place = self._place
        run = place.runs / str(planned)
        recipe = place.recipe(self._study, planned)
        with logging_to(run.with_name(f"{run.name}.log")):
            wait_for_leftovers(run)
            _clear_condensed(run)
            watch_training(run, self._device, place.side_by_side, lambda: self._train(recipe, run))
            score, seconds = best_score(run), None
            if planned.suite is not None:
                seconds = self._evaluate(run, planned.suite, recipe.attention_backend)
            cost = cost_of(run, recipe, self._device, planned.suite, seconds)
            target = place.output / str(planned)
            with disk_errors(target):
                shutil.rmtree(target, ignore_errors=True)  # of other settings
            with write_atomically(target) as temporary:
                place.condense(run, temporary, TELEMETRY_BYTES[planned.group])
                (temporary / COST_FILE).write_text(json.dumps(cost, indent=1) + "\n", encoding="utf-8")
        if not place.keep:
            remove_checkpoints(run)
        self._tidy()
        return score

    def _train(self, recipe: Recipe, run: Path) -> None:
        complete_run(recipe, run, _say, self._memory, Hardware(accelerator=self._device.type), _SPACING)

    def _evaluate(self, run: Path, name: str, attention_backend: str) -> float:
        """The suite called `name` of a run's best checkpoint into its `results.jsonl`; the seconds that it took."""
        loaded = load_for_use(str(run))
        loaded.model.to(self._device)
        loaded.model.set_attention_backend(attention_backend)
        ledger = Ledger(run / "results.jsonl")
        runner = Runner(self._sets, DRAWS, Store(run / "results.parts"), batch_size=_BATCH)
        seconds = 0.0
        with keeping(self._memory.for_evaluation):
            for measured in runner.run(loaded, suite(name)):
                if measured.result is None:
                    kind = DiffCLIPError if measured.ours else InputError
                    raise kind(f"{measured.entry} failed: {measured.failure}")
                ledger.add(measured.result, loaded.label, loaded.weights, loaded.seed)
                seconds += measured.seconds
                score = measured.result.scores[0]
                _say(f"{measured.entry}: {score.metric} {score.value:.1%}, {measured.seconds:.1f} s")
        ledger.write()
        return seconds

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


def _clear_condensed(run: Path) -> None:
    """Remove what is left of a run that was condensed, and that is wanted anew: it cannot be gone on with."""
    gone = not any((run / "checkpoints").glob("*"))
    if gone and (run / RECIPE_FILE).is_file() and (run / MEASURED_FILE).is_file():
        with disk_errors(run):
            shutil.rmtree(run)


def _say(line: str) -> None:
    print(line, file=sys.stderr)
