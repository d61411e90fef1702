"""Finished tasks of a suite on disk, one file each, so that a suite that was stopped goes on where it was.

A file belongs to a stamp: the content of the model's weights, the set (its samples, and the name, size and time of each
file), the task and how it is done. So a model that has been trained further, or a set that has changed, is measured
again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from diffclip.data.samples import Fault
from diffclip.evaluation.scores import Result, Score
from diffclip.files import write_atomically

_NUMBERS = ("metric", "value", "count", "low", "high", "chance")


@dataclass(frozen=True)
class Finished:
    """The result of one task, what was skipped in its set, and the seconds that it took."""

    result: Result
    faults: list[Fault]
    seconds: float


class Store:
    """The finished tasks in `folder`, which is made when the first one is kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, stamp: str) -> Finished | None:
        """The finished task of this stamp; a damaged file counts as none."""
        try:
            with np.load(self._file(stamp), allow_pickle=False) as data:
                kept = json.loads(str(data["task"]))
                if kept["stamp"] != stamp:
                    return None
                scores = [
                    Score(**numbers, hits=data.get(f"hits_{i}"), clusters=data.get(f"clusters_{i}"))
                    for i, numbers in enumerate(kept["scores"])
                ]
            result = Result(**kept["result"], scores=scores)
            return Finished(result, [Fault(*fault) for fault in kept["faults"]], kept["seconds"])
        # zipfile, NumPy and JSON raise almost anything for damaged bytes, and the task can be done again
        except Exception:
            return None

    def keep(self, stamp: str, finished: Finished) -> None:
        """Keep a finished task, whole or not at all.

        Raises:
            InputError: the folder cannot be written.
        """
        result = finished.result
        task = {
            "stamp": stamp,
            "result": {name: getattr(result, name) for name in ("task", "dataset", "split", "protocol")},
            "scores": [{name: getattr(score, name) for name in _NUMBERS} for score in result.scores],
            "faults": [(fault.name, fault.reason) for fault in finished.faults],
            "seconds": finished.seconds,
        }
        arrays: dict[str, NDArray[np.generic]] = {"task": np.array(json.dumps(task))}
        for i, score in enumerate(result.scores):
            if score.hits is not None:
                arrays[f"hits_{i}"] = score.hits
            if score.clusters is not None:
                arrays[f"clusters_{i}"] = score.clusters
        with write_atomically(self._file(stamp)) as temporary, temporary.open("wb") as handle:
            np.savez_compressed(handle, **arrays)  # type: ignore[arg-type]

    def _file(self, stamp: str) -> Path:
        return self.folder / f"{hashlib.sha256(stamp.encode()).hexdigest()[:20]}.npz"
