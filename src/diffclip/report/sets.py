"""What sets are called in figures and tables, and which measure stands for a set where there are several."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from diffclip.data.shifts import base_of, shift_name
from diffclip.report.compare import Measure, by_series, measure_of
from diffclip.report.series import Collection, Measured, Series

_NAMES = {
    "caltech101": "Caltech-101",
    "dtd": "DTD",
    "pets": "Pets",
    "flowers": "Flowers",
    "sun397": "SUN397",
    "fgvc_aircraft": "Aircraft",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "food101": "Food-101",
    "flickr30k": "Flickr30k",
    "flickr8k": "Flickr8k",
    "mscoco_captions": "COCO",
    "imagenet1k": "ImageNet",
    "mmvp": "MMVP-VLM",
}
_ORDER = list(_NAMES)
_AVERAGED = re.compile(r"(\S+) \(([^()]+)\)")


def set_name(dataset: str) -> str:
    """A set's name for readers: "Aircraft" of `fgvc_aircraft`, "A" of `imagenet-a`."""
    return shift_name(dataset) if base_of(dataset) is not None else _NAMES.get(dataset, dataset)


def in_order(datasets: Sequence[str]) -> list[str]:
    """Each set once: those of the paper in its order, then the others in theirs."""
    unique = list(dict.fromkeys(datasets))
    return sorted(unique, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))


def sets_of(measure: Measure) -> list[tuple[str, str]]:
    """The sets, each with its split, that a derived average is over, as its protocol names them."""
    return _AVERAGED.findall(measure.protocol.partition(";")[0])


def widest(
    collection: Collection, fits: Callable[[Measure], bool]
) -> tuple[Measure, dict[Series, dict[int | None, Measured]]] | None:
    """Of the measures that `fits` the one that most models have (then the first), with its results.

    One quantity becomes several measures where models were measured on other sets or by other protocols;
    numbers of two measures must not stand side by side.
    """
    measures = dict.fromkeys(measure_of(one) for one in collection.results if one.record.value is not None)
    found = {measure: by_series(collection.results, measure) for measure in measures if fits(measure)}
    if not found:
        return None
    best = max(found, key=lambda measure: len(found[measure]))
    return best, found[best]
