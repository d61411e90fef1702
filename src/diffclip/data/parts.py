"""What a recipe names as training data: parts with weights, and the shards of each."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from diffclip.data.shards import expand_shards
from diffclip.errors import InputError


@dataclass(frozen=True)
class Part:
    """One source: shards as `expand_shards` or `expand_remote` take them, and how often an epoch shows each sample."""

    shards: str | Sequence[str]
    weight: float = 1.0


class Place(NamedTuple):
    """A shard's path or address, and whether it is remote."""

    place: str
    remote: bool


def parts_of(train: Any) -> list[Part]:
    """The parts that `train` stands for: a path or an address, a `Part`, a mapping with its fields; or several.

    Raises:
        InputError: nothing is named, or a weight is not greater than 0.
    """
    if isinstance(train, str | Path | Mapping) or hasattr(train, "shards"):
        train = [train]
    parts = [_part(one) for one in train]
    for part in parts:
        if not 0 < part.weight < math.inf:
            raise InputError(f"weight {part.weight} of {spec_of(part)} must be a number greater than 0")
    if not parts or not all(map(_specs, parts)):
        raise InputError("no shards given: name .tar files, a folder of them or a range '{0..9}.tar'")
    return parts


def _part(one: Any) -> Part:
    if isinstance(one, str | Path):
        return Part(str(one))
    if isinstance(one, Mapping):
        return Part(one["shards"], one.get("weight", 1.0))
    return Part(one.shards, one.weight)


def spec_of(part: Part) -> str:
    """What names the part, in one line."""
    return ", ".join(_specs(part))


def _specs(part: Part) -> list[str]:
    return [str(part.shards)] if isinstance(part.shards, str | Path) else [str(one) for one in part.shards]


def places_of(part: Part) -> list[Place]:
    """The shards of a part.

    Raises:
        InputError: shards that do not exist, or an address that cannot be opened.
    """
    found: list[Place] = []
    for spec in _specs(part):
        if ":" in spec and not os.path.exists(spec):
            from diffclip.data.remote import expand_remote, is_remote

            if is_remote(spec):
                found += [Place(address, True) for address in expand_remote(spec)]
                continue
        found += [Place(str(path), False) for path in expand_shards(spec)]
    return found
