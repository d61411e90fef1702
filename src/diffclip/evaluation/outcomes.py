"""What each item of a result came to, kept beside the records, so that two files can be compared item by item."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from diffclip.errors import InputError
from diffclip.evaluation.protocol import draw_of, method_of
from diffclip.evaluation.records import Record
from diffclip.files import write_atomically

_SUFFIX = ".outcomes.npz"


@dataclass(frozen=True)
class ItemOutcomes:
    """The outcome of each item, float64 [n], and the cluster int64 [n] that it belongs to (None: each its own)."""

    hits: NDArray[np.float64]
    clusters: NDArray[np.int64] | None


def outcomes_file(records: str | Path) -> Path:
    """Where the outcomes of a file of records are: `results.outcomes.npz` beside `results.jsonl`."""
    return Path(records).with_suffix(_SUFFIX)


def key_of(record: Record) -> str:
    """What tells the outcomes of one record from those of others."""
    identity = [record.model, record.weights, record.seed, record.task, record.dataset, record.split]
    return json.dumps([*identity, record.metric, draw_of(record.protocol), method_of(record.protocol)])


def write_outcomes(path: str | Path, outcomes: Mapping[str, ItemOutcomes]) -> None:
    """Write outcomes by key, whole or not at all.

    Raises:
        InputError: the place cannot be written.
    """
    arrays: dict[str, NDArray[np.generic]] = {"keys": np.array(list(outcomes), dtype=np.str_)}
    for number, one in enumerate(outcomes.values()):
        arrays[f"hits_{number}"] = one.hits
        if one.clusters is not None:
            arrays[f"clusters_{number}"] = one.clusters
    with write_atomically(path) as temporary, temporary.open("wb") as handle:
        np.savez_compressed(handle, **arrays)  # type: ignore[arg-type]


def read_outcomes(path: str | Path) -> dict[str, ItemOutcomes]:
    """The outcomes by key; none where there is no such file.

    Raises:
        InputError: the file is damaged.
    """
    path = Path(path)
    if not path.is_file():
        return {}
    try:
        with np.load(path, allow_pickle=False) as data:
            return {
                str(key): ItemOutcomes(
                    data[f"hits_{number}"].astype(np.float64),
                    data.get(f"clusters_{number}"),
                )
                for number, key in enumerate(data["keys"])
            }
    # zipfile and NumPy raise almost anything for damaged bytes
    except Exception as error:
        raise InputError(
            f"{path} is damaged: remove it, and differences are told from the records alone"
        ) from error
