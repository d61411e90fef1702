"""Run the entries of a suite on a model: skip tasks that are finished, and go on when a set fails."""

from __future__ import annotations

import hashlib
import json
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import diffclip
from diffclip.data.evaluation_set import EvaluationSet
from diffclip.data.evaluation_sets import has_split
from diffclip.data.published_sets import parts_of
from diffclip.data.transforms import EvalTransform
from diffclip.errors import DiffCLIPError, Fault, InputError
from diffclip.evaluation.corruptions import CorruptedTransform
from diffclip.evaluation.embed import Progress
from diffclip.evaluation.features import digest_of
from diffclip.evaluation.records import Record
from diffclip.evaluation.results_file import ResultsFile
from diffclip.evaluation.setting import Setting
from diffclip.evaluation.suite import LEARNING, TRAIN, VALIDATION, Entry
from diffclip.evaluation.tasks import TASKS, open_for, pick_task, run_task
from diffclip.model_source import Loaded


@dataclass
class Sets:
    """Evaluation sets by entry, each opened once; `root` is the folder of published sets."""

    root: Path | None = None
    _opened: dict[object, EvaluationSet] = field(default_factory=dict)

    def open(self, entry: Entry) -> EvaluationSet:
        """Open the set of an entry, in the first of its splits that is there."""
        task = TASKS[entry.task] if entry.task else None
        key = (task and (task.kind, task.also), entry.dataset, entry.splits)
        if key not in self._opened:
            split, *others = entry.splits
            if others and not has_split(entry.dataset, split, self.root):
                split = next((one for one in others if has_split(entry.dataset, one, self.root)), split)
            self._opened[key] = open_for(entry.task, entry.dataset, split, self.root)
        # a copy: one task's broken images are not another's
        return replace(self._opened[key], faults=list(self._opened[key].faults))


@dataclass(frozen=True)
class Measured:
    """One entry done: its records, or the `failure` (one line) that it ended in; `ours`: a fault of the program."""

    entry: Entry
    draw: int
    records: Sequence[Record] = ()
    faults: Sequence[Fault] = ()
    seconds: float = 0.0
    reused: bool = False
    failure: str = ""
    ours: bool = False


def run_entries(
    loaded: Loaded,
    entries: Sequence[Entry],
    results: ResultsFile,
    sets: Sets,
    draws: Sequence[int] = (0,),
    progress: Callable[[Entry, int], Progress] | None = None,
    **how: Any,
) -> Iterator[Measured]:
    """Run each entry on one model, in order, and each draw where there is something to draw.

    Bad input and errors of the system or of memory end one entry, not the others.

    Args:
        results: gets each result, and is written after it; a task that it holds already, measured on the same weights
            and files in the same way, is not run again.
        draws: seeds of the tasks that draw at random; others are done once.
        progress: makes the progress report of an entry from it and the number of its items.
        how: `batch_size`, `workers` and `prompt` of `Setting`.
    """
    digest = digest_of(loaded.model) if results.path else ""
    how["features"] = {}
    for entry in entries:
        for draw in draws:
            try:
                data = sets.open(entry)
                own = {"prompt": entry.prompt, "words": dict(entry.words)} if entry.prompt else {}
                setting = Setting(
                    model=loaded.model,
                    preprocess=_preprocess(loaded.preprocess, entry),
                    tokenizer=loaded.tokenizer,
                    data=data,
                    draw=draw,
                    init=loaded.init or "matched",
                    templates=entry.templates,
                    progress=progress(entry, len(data)) if progress else None,
                    **(how if how.get("prompt") else how | own),
                )
                measured = _measure(loaded, entry, setting, results, digest)
            except Exception as error:
                # also a fault of ours: the other tasks are worth having
                failure, ours = _explain(error)
                measured = Measured(entry, draw, failure=failure, ours=ours)
            yield measured
            if not any(record.draw is not None for record in measured.records):
                break


def _measure(
    loaded: Loaded, entry: Entry, setting: Setting[Any], results: ResultsFile, digest: str
) -> Measured:
    """Run an entry, or find its records among the results."""
    started = time.monotonic()
    task = pick_task(entry.task, setting.data)
    names = ("weights", "seed", "init", "data", "steps")
    model = {"model": loaded.label, **{name: getattr(loaded, name) for name in names}}
    options = [getattr(setting, name) for name in ("templates", *TASKS[task].options)]
    transform = setting.preprocess
    images = [transform.identity, transform.preprocess, *_files(setting.data, task)]
    # everything that a result depends on
    config = loaded.model.config.model_dump(mode="json")
    facts = [diffclip.__version__, model, digest, config, task, options, images]
    stamp = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
    if kept := results.find(stamp):
        return Measured(entry, setting.draw, kept, reused=True)
    scores = run_task(task, setting)
    seconds = time.monotonic() - started
    records = results.add(scores, stamp, **model, seconds=round(seconds, 3))
    return Measured(entry, setting.draw, records, setting.data.faults, seconds)


def _explain(error: Exception) -> tuple[str, bool]:
    """Describe an error in one line, and tell whether it is a fault of the program."""
    line = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, torch.OutOfMemoryError):
        return f"out of memory: use a smaller --batch-size ({line})", False
    if isinstance(error, (DiffCLIPError, OSError)):
        return line, not isinstance(error, (InputError, OSError))
    traceback.print_exc()
    return f"{type(error).__name__}: {line}", True


def _preprocess(own: EvalTransform, entry: Entry) -> EvalTransform:
    if entry.interpolation is not None:
        change = {"interpolation": entry.interpolation}
        own = EvalTransform(own.image_size, own.preprocess.model_copy(update=change))
    return own if entry.corruption is None else CorruptedTransform(own, entry.corruption, entry.severity)


def _files(data: EvaluationSet, task: str) -> list[object]:
    """Identify the set, and for a task that learns the splits that it learns from."""
    learned = (TRAIN, *VALIDATION) if task in LEARNING else ()
    splits = [data.beside(split) for split in learned if split != parts_of(data.split)[0]]
    return [data.identity, *(split.identity for split in splits if split is not None)]
