"""What a suite measures: tasks on sets, in an order that gives the quick answers first.

`scenes` needs no download. `brief` and `quick` want small real sets, and `study` is `quick` with where models look.
`paper` is everything the paper tabulates (its Tables 1 and 2, Figures 3 and 4), with zero-shot on its nine sets too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from diffclip.data.evaluation_sets import BUILT_IN
from diffclip.data.shifts import corrupted_name
from diffclip.errors import unknown
from diffclip.evaluation.corruptions import CORRUPTIONS

_SEVERITY = 3  # the middle one
_NINE = ("caltech101", "dtd", "pets", "flowers", "sun397", "fgvc_aircraft", "cifar10", "cifar100", "food101")
_SHIFTS = ("imagenetv2", "imagenet-a", "imagenet-r", "imagenet_sketch")


@dataclass(frozen=True)
class Entry:
    """One task on one set. Of `splits` the first that the set has is measured; `severity` 0 corrupts nothing."""

    task: str | None
    dataset: str
    splits: tuple[str, ...] = ("test",)
    corruption: str = "noise"
    severity: int = 0

    def __str__(self) -> str:
        return f"{self.task or 'evaluation'} on {self._corrupted(self.dataset)}"

    @property
    def dataset_in_records(self) -> str:
        """What records call the set."""
        return self._corrupted(
            self.dataset if self.dataset in BUILT_IN else Path(self.dataset).resolve().name
        )

    def _corrupted(self, name: str) -> str:
        return corrupted_name(name, self.corruption, self.severity) if self.severity else name


def _each(task: str, *datasets: str) -> tuple[Entry, ...]:
    return tuple(Entry(task, dataset) for dataset in datasets)


def _corrupted(dataset: str) -> tuple[Entry, ...]:
    return tuple(Entry("zero-shot", dataset, corruption=name, severity=_SEVERITY) for name in CORRUPTIONS)


_SCENES = (
    *_each("retrieval", "scenes"),
    *_each("zero-shot", "scenes-shapes", "scenes-colours"),
    *_each("zero-shot", "scenes-shapes-sketch", "scenes-shapes-recoloured", "scenes-shapes-noisy"),
    *_corrupted("scenes-colours"),
    *_each("mmvp", "scenes-mmvp"),
    *_each("few-shot", "scenes-shapes", "scenes-colours"),
    *_each("linear-probe", "scenes-shapes", "scenes-colours"),
    *_each("focus", "scenes"),
)
_BRIEF = (
    # few have the test split of Flickr8k, and models trained on its train split are validated on val
    Entry("retrieval", "flickr8k", ("test", "val")),
    *_each("zero-shot", "cifar10", "caltech101"),
)
_QUICK = (
    *_BRIEF,
    *_corrupted("cifar10"),
    *_each("few-shot", "cifar10", "caltech101"),
    *_each("linear-probe", "cifar10", "caltech101"),
)
_STUDY = (*_QUICK, *_each("focus", "oxford_pets3"))
_PAPER = (
    *_each("mmvp", "mmvp"),
    *_each("retrieval", "flickr8k", "flickr30k", "mscoco_captions"),
    *_each("zero-shot", "imagenet1k", *_SHIFTS, *_NINE),
    *_each("few-shot", *_NINE),
    *_each("linear-probe", *_NINE),
)

SUITES = {"scenes": _SCENES, "brief": _BRIEF, "quick": _QUICK, "study": _STUDY, "paper": _PAPER}


def suite(name: str) -> tuple[Entry, ...]:
    """The entries of the suite called `name`.

    Raises:
        InputError: there is none (the nearest one is offered).
    """
    if name not in SUITES:
        raise unknown("suite", name, SUITES)
    return SUITES[name]
