"""`metrics.jsonl` as arrays: of a run of any length, of one that is still writing it, and of one that was resumed.

A line cut short is left out and counted. Where a resumed run goes back to an earlier step, what it had written from
that step on is replaced.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic_core import from_json

Array = npt.NDArray[np.float64]

TOWERS = ("visual", "text")


class Columns:
    """Numbers by name, [T] each, and λ by tower, [T, layers]; what a record lacks is NaN."""

    def __init__(self) -> None:
        self.length = 0
        self.skipped = 0
        self._numbers: dict[str, array[float]] = {"step": array("d")}
        self._lambdas: dict[str, array[float]] = {tower: array("d") for tower in TOWERS}
        self._layers = dict.fromkeys(TOWERS, 0)

    @property
    def numbers(self) -> dict[str, Array]:
        return {name: np.array(values, dtype=np.float64) for name, values in self._numbers.items()}

    @property
    def lambdas(self) -> dict[str, Array]:
        return {
            tower: np.array(values, dtype=np.float64).reshape(self.length, self._layers[tower])
            for tower, values in self._lambdas.items()
        }

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a record; those of its step and later ones go."""
        steps = self._numbers["step"]
        while self.length and steps[self.length - 1] >= row["step"]:
            self.length -= 1
        if self.length < len(steps):
            self._cut()
        for name, value in row.items():
            if is_number(value):
                column = self._numbers.get(name)
                if column is None:
                    column = self._numbers[name] = array("d", [math.nan]) * self.length
                column.append(value)
        self._append_lambdas(row.get("lambda"))
        self.length += 1
        for column in self._numbers.values():
            if len(column) < self.length:
                column.append(math.nan)

    def _append_lambdas(self, lambdas: object) -> None:
        for tower, kept in self._lambdas.items():
            values = lambdas.get(tower) if isinstance(lambdas, dict) else None
            values = values if isinstance(values, list) else []
            if len(values) > self._layers[tower]:
                # records before had fewer layers, so they were of no such model
                self._layers[tower] = len(values)
                kept = self._lambdas[tower] = array("d", [math.nan]) * (self.length * len(values))
            whole = len(values) == self._layers[tower] and all(map(is_number, values))
            kept.extend(values if whole else [math.nan] * self._layers[tower])

    def _cut(self) -> None:
        for column in self._numbers.values():
            del column[self.length :]
        for tower, values in self._lambdas.items():
            del values[self.length * self._layers[tower] :]


def read_columns(path: Path) -> Columns:
    """The records of a file of steps."""
    columns = Columns()
    for row in rows_of(path):
        if row is None:
            columns.skipped += 1
        else:
            columns.append(row)
    return columns


def rows_of(path: Path) -> Iterator[dict[str, Any] | None]:
    """The records of a JSON-lines file that have a step, None in the place of each line that is none."""
    with path.open("rb") as lines:
        for line in lines:
            if not line.strip():
                continue
            try:
                row = from_json(line)
            except ValueError:
                row = None
            yield row if isinstance(row, dict) and is_number(row.get("step")) else None


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
