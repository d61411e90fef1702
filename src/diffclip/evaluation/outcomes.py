"""What each item of a result came to, kept beside the records, so that two files can be compared item by item.

The file is small enough to commit: a row of values is kept as the number of each among the different ones that it
has, a bit where there are at most two (right and wrong). Of items in clusters only the sum over each cluster is kept,
which is all that intervals and tests look at, and how many items there are in each, once for all results that share it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclip.errors import InputError
from diffclip.evaluation.protocol import draw_of, method_of
from diffclip.evaluation.records import Record
from diffclip.files import write_atomically

_SUFFIX = ".outcomes.npz"
_NO_CLUSTERS = -1


@dataclass(frozen=True, eq=False)
class ItemOutcomes:
    """The outcome of each item, float64 [n], and the cluster int64 [n] that it belongs to (None: each its own).

    Read from a file, the items of a cluster come one after the other and have their mean each.
    """

    hits: NDArray[np.float64]
    clusters: NDArray[np.int64] | None


def outcomes_file(records: str | Path) -> Path:
    """Where the outcomes of a file of records are: `results.outcomes.npz` beside `results.jsonl`."""
    return beside(records, _SUFFIX)


def beside(records: str | Path, suffix: str) -> Path:
    """What belongs to a file of records: `results` and `suffix` beside `results.jsonl`."""
    records = Path(records)
    return records.with_name(records.name.removesuffix(".jsonl") + suffix)


def key_of(record: Record) -> str:
    """What tells the outcomes of one record from those of others."""
    identity = [record.model, record.weights, record.seed, record.task, record.dataset, record.split]
    return json.dumps([*identity, record.metric, draw_of(record.protocol), method_of(record.protocol)])


def write_outcomes(path: str | Path, outcomes: Mapping[str, ItemOutcomes]) -> None:
    """Write outcomes by key, whole or not at all; values, or sums over clusters, are kept exactly.

    Raises:
        InputError: the place cannot be written.
    """
    values: list[NDArray[Any]] = []
    structures: dict[bytes, tuple[int, NDArray[Any], NDArray[Any]]] = {}
    structure_of = []
    for one in outcomes.values():
        if one.clusters is None:
            values.append(one.hits)
            structure_of.append(_NO_CLUSTERS)
            continue
        names, index, sizes = np.unique(one.clusters, return_inverse=True, return_counts=True)
        values.append(np.bincount(index, weights=one.hits))
        same = names.tobytes() + sizes.tobytes()
        structure_of.append(structures.setdefault(same, (len(structures), names, sizes))[0])
    arrays = {
        "keys": np.frombuffer(json.dumps(list(outcomes)).encode(), dtype=np.uint8),
        "structure_of": np.array(structure_of, dtype=np.int64),
        **_encoded("values", values),
        **_encoded("steps", [np.diff(names, prepend=0) for _, names, _ in structures.values()]),
        **_encoded("sizes", [sizes for *_, sizes in structures.values()]),
    }
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
            keys, structure_of = json.loads(data["keys"].tobytes()), data["structure_of"].tolist()
            values, steps = _decoded("values", data), _decoded("steps", data)
            sizes = [own.astype(np.int64) for own in _decoded("sizes", data)]
        # one array for all results that share it
        clusters = [
            np.repeat(np.cumsum(own.astype(np.int64)), count) for own, count in zip(steps, sizes, strict=True)
        ]
        found = {}
        for key, own, at in zip(keys, values, structure_of, strict=True):
            if at == _NO_CLUSTERS:
                found[key] = ItemOutcomes(own, None)
            else:
                found[key] = ItemOutcomes(np.repeat(own / sizes[at], sizes[at]), clusters[at])
    # zipfile and NumPy raise almost anything for damaged bytes
    except Exception as error:
        raise InputError(
            f"{path} is damaged: remove it, and differences are told from the records alone"
        ) from error
    return found


def _encoded(name: str, rows: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The rows as float64, in four arrays: how long each is, how many different values it has, those, and codes."""
    coded = [np.unique(row.astype(np.float64), return_inverse=True) for row in rows]
    packed = [_packed(codes, len(levels)) for levels, codes in coded]
    return {
        f"{name}_counts": np.array([len(codes) for _, codes in coded], dtype=np.int64),
        f"{name}_different": np.array([len(levels) for levels, _ in coded], dtype=np.int64),
        f"{name}_levels": np.concatenate([np.empty(0), *(levels for levels, _ in coded)]),
        f"{name}_codes": np.concatenate([np.empty(0, np.uint8), *packed]),
    }


def _decoded(name: str, data: Mapping[str, NDArray[Any]]) -> list[NDArray[np.float64]]:
    counts, different = data[f"{name}_counts"].tolist(), data[f"{name}_different"].tolist()
    levels, codes = data[f"{name}_levels"], data[f"{name}_codes"]
    rows = []
    for count, number in zip(counts, different, strict=True):
        width = _width(number)
        size = width * count if width else -(-count // 8)
        own, codes = codes[:size], codes[size:]
        if len(own) != size:
            raise ValueError("codes end too early")
        indices = np.frombuffer(own.tobytes(), f"<u{width}") if width else np.unpackbits(own, count=count)
        rows.append(levels[:number][indices])
        levels = levels[number:]
    return rows


def _packed(codes: NDArray[np.int64], different: int) -> NDArray[np.uint8]:
    width = _width(different)
    if not width:
        return np.packbits(codes.astype(np.bool_))
    return np.frombuffer(codes.astype(f"<u{width}").tobytes(), dtype=np.uint8)


def _width(different: int) -> int:
    """Bytes of a code, 0 for a bit."""
    return 0 if different <= 2 else 1 if different <= 1 << 8 else 2 if different <= 1 << 16 else 4
