"""Which sets are shifted versions of another: ImageNet's four, the built-in scenes' three, and any corrupted set."""

from __future__ import annotations

from typing import Literal, get_args

Shift = Literal["sketch", "recoloured", "noisy"]
SHIFTS: tuple[Shift, ...] = get_args(Shift)
"""The styles that the built-in scenes are drawn in beside the plain one."""

_BASES = {
    "imagenetv2": ("imagenet1k", "V2"),
    "imagenet-a": ("imagenet1k", "A"),
    "imagenet-r": ("imagenet1k", "R"),
    "imagenet_sketch": ("imagenet1k", "Sketch"),
} | {f"scenes-shapes-{style}": ("scenes-shapes", style) for style in SHIFTS}
_CORRUPTED = "+"
_SINGLE_OBJECTS = "scenes-shapes"


def corrupted_name(dataset: str, corruption: str, severity: int) -> str:
    """What a corrupted set is called in records: `cifar10+noise:3`."""
    return f"{dataset}{_CORRUPTED}{corruption}:{severity}"


def base_of(dataset: str) -> str | None:
    """The set that `dataset` is a shifted version of: "imagenet1k" of "imagenet-a"; None if it is no shift."""
    if _CORRUPTED in dataset:
        return dataset.partition(_CORRUPTED)[0]
    return _BASES[dataset][0] if dataset in _BASES else None


def pictures_of(dataset: str) -> str:
    """Whose pictures a set shows: a corrupted set those of its base; and the scenes by shape, by colour and in every
    style are one picture each, in the same order.
    """
    plain = dataset.partition(_CORRUPTED)[0]
    return _SINGLE_OBJECTS if plain == "scenes-colours" or plain.startswith(_SINGLE_OBJECTS) else plain


def shift_name(dataset: str) -> str:
    """What a shift is called beside its base: "A" of "imagenet-a", "noise 3" of "cifar10+noise:3".

    Raises:
        KeyError: `dataset` is no shift.
    """
    if _CORRUPTED in dataset:
        return dataset.partition(_CORRUPTED)[2].replace(":", " ")
    return _BASES[dataset][1]
