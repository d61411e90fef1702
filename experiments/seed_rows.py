"""CSV files of experiments that train many seeds side by side: a row a metric, with a value per seed."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from diffclip.files import write_atomically

_NUMBERS = {"sigma": float, "lr": float, "steps": int}


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Read the rows, in the order of the file; none if it is missing."""
    if not file.is_file():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        return [
            dict(row)
            | {name: number(row[name]) for name, number in _NUMBERS.items() if name in row}
            | {"values": [float(value) for value in row["values"].split()]}
            for row in csv.DictReader(lines)
        ]


def write_rows(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows, whole or not at all."""
    with write_atomically(file) as temporary, temporary.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            dict(row) | {"values": " ".join(f"{value:.5g}" for value in row["values"])} for row in rows
        )
