"""Models through the entries of a suite: what is finished is found again, and a set that fails fails alone."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

import diffclip
from diffclip.data.evaluation_sets import EvaluationSet, has_split
from diffclip.data.samples import Fault
from diffclip.errors import DiffCLIPError, InputError
from diffclip.evaluation.corruptions import corrupted
from diffclip.evaluation.embed import Progress
from diffclip.evaluation.features import digest_of
from diffclip.evaluation.mmvp import PairSet
from diffclip.evaluation.protocol import draw_of
from diffclip.evaluation.records import Record
from diffclip.evaluation.scores import Result
from diffclip.evaluation.splits import TRAIN, VALIDATION
from diffclip.evaluation.store import Finished, Store
from diffclip.evaluation.suite import Entry
from diffclip.evaluation.tasks import LEARNING, Setting, open_for, pick_task, run_task
from diffclip.model_source import Loaded


@dataclass
class Sets:
    """Evaluation sets by entry, each opened once; `root` is where published sets lie."""

    root: Path | None = None
    _opened: dict[tuple[str | None, str], EvaluationSet | PairSet | Exception] = field(default_factory=dict)
    _faults: dict[int, list[Fault]] = field(default_factory=dict)
    _beside: dict[int, list[object]] = field(default_factory=dict)

    def open(self, entry: Entry) -> EvaluationSet | PairSet:
        """The set of an entry, in the first of its splits that is there.

        Raises:
            InputError: as `open_for`; the same for every entry of a set that cannot be opened.
        """
        key = (entry.task if entry.task in ("mmvp", "focus") else None, f"{entry.dataset}\0{entry.splits}")
        if key not in self._opened:
            self._opened[key] = self._try(entry)
        found = self._opened[key]
        if isinstance(found, Exception):
            raise found
        if isinstance(found, EvaluationSet):
            # what one task met in it is not another's
            found.faults = list(self._faults.setdefault(id(found), found.faults))
        return found

    def beside(self, data: EvaluationSet | PairSet) -> list[object]:
        """The identities of the splits that a probe may learn from."""
        if isinstance(data, PairSet):
            return []
        if id(data) not in self._beside:
            splits = [data.beside(split) for split in (TRAIN, *VALIDATION) if split != data.split]
            self._beside[id(data)] = [split.identity for split in splits if split is not None]
        return self._beside[id(data)]

    def _try(self, entry: Entry) -> EvaluationSet | PairSet | Exception:
        try:
            splits = entry.splits
            if len(splits) > 1:
                there = [split for split in splits if has_split(entry.dataset, split, self.root)]
                splits = (*there, splits[0])
            return open_for(entry.task, entry.dataset, splits[0], self.root)
        except (DiffCLIPError, OSError) as error:
            return error


@dataclass(frozen=True)
class Measured:
    """One entry done: its result, or the `failure` (one line) that it ended in; `ours` says it was no bad input."""

    entry: Entry
    draw: int
    result: Result | None = None
    faults: Sequence[Fault] = ()
    seconds: float = 0.0
    reused: bool = False
    failure: str = ""
    ours: bool = False

    def records(self, subject: Loaded) -> list[Record]:
        """The records of the result; none of a failure."""
        return self.result.records(subject.label, subject.weights, subject.seed) if self.result else []


@dataclass(frozen=True)
class Runner:
    """How entries are run.

    Attributes:
        sets: where they are opened.
        draws: the seeds of tasks that draw at random; others are done once.
        store: where finished tasks are kept and found again; None keeps nothing.
        batch_size, workers: as in `Setting`.
        probe: the linear probe's solver.
        prompt: the text that focus asks about, see `Setting`.
    """

    sets: Sets
    draws: Sequence[int] = (0,)
    store: Store | None = None
    batch_size: int = 64
    workers: int = 0
    probe: str = "torch"
    prompt: str | None = None

    def run(
        self,
        subject: Loaded,
        entries: Sequence[Entry],
        progress: Callable[[Entry, int], Progress] | None = None,
    ) -> Iterator[Measured]:
        """Each entry of one model, in order, each draw where there is something to draw. Bad input and errors of the
        system or of memory end one entry, not the others.
        """
        digest = digest_of(subject.model) if self.store else ""
        for entry in entries:
            for draw in self.draws:
                measured = self._measure(subject, digest, entry, draw, progress)
                yield measured
                if measured.result is None or draw_of(measured.result.protocol) is None:
                    break

    def _measure(
        self,
        subject: Loaded,
        digest: str,
        entry: Entry,
        draw: int,
        progress: Callable[[Entry, int], Progress] | None,
    ) -> Measured:
        started = time.monotonic()
        try:
            data = self.sets.open(entry)
            task = pick_task(entry.task, data)
            stamp = self._stamp(subject, digest, entry, task, data, draw) if self.store else ""
            kept = self.store.find(stamp) if self.store else None
            if kept is not None:
                return Measured(entry, draw, kept.result, kept.faults, kept.seconds, reused=True)
            setting = Setting(
                subject.model,
                corrupted(subject.preprocess, entry.corruption, entry.severity, draw),
                subject.tokenizer,
                data,
                self.batch_size,
                self.workers,
                progress(entry, len(data)) if progress else None,
                draw,
                self.probe,
                self.prompt,
            )
            result = run_task(task, setting)
        except (DiffCLIPError, OSError) as error:
            return Measured(
                entry, draw, failure=_line(error), ours=not isinstance(error, (InputError, OSError))
            )
        except torch.OutOfMemoryError as error:
            advice = f"out of memory, use a smaller --batch-size than {self.batch_size} ({_line(error)})"
            return Measured(entry, draw, failure=advice)
        except Exception as error:
            # a fault of ours in one task: told, and with its traceback, but the others are worth having
            traceback.print_exc()
            return Measured(entry, draw, failure=f"{type(error).__name__}: {_line(error)}", ours=True)
        faults = [] if isinstance(data, PairSet) else data.faults
        finished = Finished(result, list(faults), time.monotonic() - started)
        if self.store:
            self.store.keep(stamp, finished)
        return Measured(entry, draw, result, finished.faults, finished.seconds)

    def _stamp(
        self, subject: Loaded, digest: str, entry: Entry, task: str, data: EvaluationSet | PairSet, draw: int
    ) -> str:
        """What a finished task belongs to, as text; `digest` is that of the model's weights."""
        config = subject.model.config.model_dump(mode="json")
        identity = {
            "version": diffclip.__version__,
            "model": [subject.label, config, digest, str(subject.weights)],
            "pictures": [
                subject.preprocess.image_size,
                subject.preprocess.preprocess.model_dump(mode="json"),
            ],
            "task": [task, self._how(task), draw],
            "corruption": [entry.corruption, entry.severity] if entry.severity else None,
            "set": data.identity,
            "learnt from": self.sets.beside(data) if task in LEARNING else [],
        }
        return json.dumps(identity, sort_keys=True)

    def _how(self, task: str) -> str | None:
        return {"linear-probe": self.probe, "focus": self.prompt}.get(task)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
