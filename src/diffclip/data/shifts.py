"""Sets that are shifted versions of another: ImageNet's four and the built-in scenes' three."""

from __future__ import annotations

from typing import Literal, get_args

Shift = Literal["sketch", "recoloured", "noisy"]
SHIFTS: tuple[Shift, ...] = get_args(Shift)
"""The styles that the built-in scenes are drawn in beside the plain one."""

_SINGLE_OBJECTS = "scenes-shapes"
_BASES = dict.fromkeys(("imagenetv2", "imagenet-a", "imagenet-r", "imagenet_sketch"), "imagenet1k")
_BASES |= {f"{_SINGLE_OBJECTS}-{style}": _SINGLE_OBJECTS for style in SHIFTS}


def base_of(dataset: str) -> str | None:
    """Return the set that `dataset` is a shifted version of: "imagenet1k" of "imagenet-a"; None if it is no shift."""
    return _BASES.get(dataset)


def images_of(dataset: str) -> str:
    """Return the set whose images `dataset` shows.

    The scenes by shape, by color and in every style show the same scenes in the same order.
    """
    shared = dataset == "scenes-colours" or dataset.startswith(_SINGLE_OBJECTS)
    return _SINGLE_OBJECTS if shared else dataset
