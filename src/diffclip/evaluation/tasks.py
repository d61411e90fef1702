"""The evaluation tasks by name.

A task is one function in a file of its own: it takes a `Setting` (model, preparation, set) and returns its `Score`s,
with the method in words as the fact `protocol`. To add a task:

1. Write `evaluation/NAME.py` with the function, and if it learns from the split `train`, name it in `suite.LEARNING`.
2. Add a line to `TASKS`: the kinds of set that it reads, and the fields of `Setting` that change its numbers alone.
3. Name it in `report/names.py` (`_TASKS`, `METRICS`), `report/frame.py` (`HEADLINES`) and the suites that measure it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from diffclip.data.evaluation_set import EvaluationSet, Kind
from diffclip.data.evaluation_sets import open_set, set_folder, set_name
from diffclip.errors import InputError, unknown
from diffclip.evaluation.corruptions import CorruptedTransform
from diffclip.evaluation.faithfulness import faithfulness
from diffclip.evaluation.few_shot import few_shot
from diffclip.evaluation.focus import focus
from diffclip.evaluation.linear_probe import linear_probe
from diffclip.evaluation.mechanics import mechanics
from diffclip.evaluation.mmvp import QUESTIONS, mmvp, open_pairs
from diffclip.evaluation.retrieval import retrieval
from diffclip.evaluation.robustness import robustness
from diffclip.evaluation.scores import Score, with_facts
from diffclip.evaluation.segmentation import segmentation
from diffclip.evaluation.setting import Setting, describe_images, squashed
from diffclip.evaluation.sugarcrepe import sugarcrepe
from diffclip.evaluation.zero_shot import zero_shot


class Task(NamedTuple):
    """A task: the kind of set that it reads, its function, the options of `Setting` that not every task has, and other
    kinds that it reads; with `squash` images are not cropped."""

    kind: Kind
    run: Callable[[Setting[Any]], list[Score]]
    options: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    squash: bool = False


TASKS = {
    "zero-shot": Task("classification", zero_shot),
    "retrieval": Task("retrieval", retrieval),
    "linear-probe": Task("classification", linear_probe, ("draw",)),
    "few-shot": Task("classification", few_shot, ("draw",)),
    "mmvp": Task("mmvp", mmvp),
    "focus": Task("masks", focus, ("prompt", "words", "init")),
    "mechanics": Task("retrieval", mechanics, also=("classification", "masks")),
    "robustness": Task("classification", robustness, ("draw",), also=("retrieval", "masks")),
    "faithfulness": Task("classification", faithfulness, ("prompt", "words"), also=("masks",)),
    "segmentation": Task("segmentation", segmentation, squash=True),
    "sugarcrepe": Task("sugarcrepe", sugarcrepe),
}


def open_for(task: str | None, source: str | Path, split: str, root: Path | None = None) -> EvaluationSet:
    """Open a set as `open_set` does, for tasks that need masks with them, or MMVP-VLM, which has no splits.

    Of a set with a class for each pixel, tasks that read captions get those of its samples.
    """
    kind, kinds = (TASKS[task].kind, (TASKS[task].kind, *TASKS[task].also)) if task else (None, ())
    if kind in ("masks", "segmentation", "sugarcrepe"):
        return open_set(source, split, root, kind)
    folder = set_folder(source, root)
    if kind == "mmvp" or (folder / QUESTIONS).is_file():
        if split != "test":
            raise InputError(f"{source} has no splits: leave --split out")
        return open_pairs(folder, set_name(source, folder))
    data = open_set(source, split, root)
    if data.kind == "segmentation" and "retrieval" in kinds:
        return open_set(source, split, root, "retrieval")
    if "masks" in kinds and data.kind not in kinds:
        return open_set(source, split, root, "masks")
    return data


def pick_task(name: str | None, data: EvaluationSet) -> str:
    """Return the task called `name`, or if None the first that sets of this kind are for.

    Raises:
        InputError: unknown name (the nearest one is offered), or the set is for another task.
    """
    fitting = next(task for task, what in TASKS.items() if what.kind == data.kind)
    name = name or fitting
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    if data.kind not in (TASKS[name].kind, *TASKS[name].also):
        raise InputError(
            f"{data.name} is a set for {data.kind}, which {name} cannot use: try --task {fitting}"
        )
    return name


def run_task(name: str | None, setting: Setting[Any]) -> list[Score]:
    """Run task `name` (None: the one that the set is for); broken images are left out, see `data.faults`.

    Every score has what its record needs to know about task, set and images among its facts.

    Raises:
        InputError: unknown task, a set for another task, one of a single image, or one that the task cannot use.
    """
    data = setting.data
    name = pick_task(name, data)
    transform = squashed(setting.preprocess) if TASKS[name].squash else setting.preprocess
    if len(data) < 2:
        raise InputError(
            f"{data.name}/{data.split} has a single item, which says nothing about a model: give more"
        )
    facts: dict[str, Any] = {"task": name, "dataset": data.name, "split": data.split}
    if isinstance(transform, CorruptedTransform):
        facts |= {"corruption": transform.name, "severity": transform.severity}
    scores = TASKS[name].run(replace(setting, preprocess=transform))
    return with_facts(
        scores, **facts, protocol=f"{scores[0].facts['protocol']}; {describe_images(transform)}"
    )
