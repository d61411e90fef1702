"""Suites: tasks on sets, the quick ones first; docs/evaluate.md explains the purpose of each suite.

`held-out` is `quick` with the half of Flickr8k's validation split that chose no checkpoint.
`folds` is for studies with folds: each fold of Flickr8k in pools of 500 images, as many as `held-out` has. `clutter`
needs, as --data-root, a folder that `diffclip data make-scenes` has written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from diffclip.data.published_sets import (
    BUILT_IN,
    PUBLISHED,
    command_for,
    is_there,
    parts_of,
    published_folder,
    set_folder,
)
from diffclip.errors import InputError

TRAIN, VALIDATION = "train", ("val", "validation")
LEARNING = ("linear-probe", "few-shot")  # tasks that learn from the set's split `train`
SLIP_TEMPLATES = (
    "itap of a {c}.",
    "a bad photo of the {c}.",
    "a origami {c}.",
    "a photo of the large {c}.",
    "a {c} in a video game.",
    "art of the {c}.",
    "a photo of the small {c}.",
)
"""The templates of SLIP's evaluation during training (facebookresearch/SLIP, `templates.json`)."""

_NINE = ("caltech101", "dtd", "pets", "flowers", "sun397", "fgvc_aircraft", "cifar10", "cifar100", "food101")
_SHIFTS = ("imagenetv2", "imagenet-a", "imagenet-r", "imagenet_sketch")


@dataclass(frozen=True)
class Entry:
    """One task (None: the set's default task) on a set, which is named by its folder or name.

    Attributes:
        splits: the first of these that the set has is measured.
        interpolation: the method to resize images; None: the model's own.
        templates, prompt, pool: as in `Setting`.
        words: with `prompt`, words that replace some names: words that the models of the suite have seen.
    """

    task: str | None
    dataset: str
    splits: tuple[str, ...] = ("test",)
    interpolation: str | None = None
    templates: tuple[str, ...] | None = None
    prompt: str | None = None
    words: tuple[tuple[str, str], ...] = ()
    pool: int | None = None

    def __str__(self) -> str:
        templates = "" if self.templates is None else f", {len(self.templates)} templates"
        return f"{self.task or 'evaluation'} on {self.dataset}{templates}"


def _each(task: str, *datasets: str, interpolation: str | None = None) -> tuple[Entry, ...]:
    return tuple(Entry(task, dataset, interpolation=interpolation) for dataset in datasets)


_SCENES = (
    *_each("retrieval", "scenes"),
    *_each("zero-shot", "scenes-shapes", "scenes-colours", "scenes-counts"),
    *_each("zero-shot", "scenes-shapes-sketch", "scenes-shapes-recoloured", "scenes-shapes-noisy"),
    *_each("mmvp", "scenes-mmvp"),
    *_each("sugarcrepe", "scenes-sugarcrepe"),
    *_each("few-shot", "scenes-shapes", "scenes-colours"),
    *_each("linear-probe", "scenes-shapes", "scenes-colours"),
    *_each("segmentation", "scenes-segmentation"),
    *_each("focus", "scenes"),
)
_BRIEF = (
    # test is better, because models trained on Flickr8k are validated on val, but few people have test
    Entry("retrieval", "flickr8k", ("test", "val")),
    *_each("zero-shot", "cifar10", "caltech101"),
)
_LEARNED = (*_each("few-shot", "cifar10", "caltech101"), *_each("linear-probe", "cifar10", "caltech101"))
_QUICK = (*_BRIEF, *_LEARNED)
_HELD_OUT = (Entry("retrieval", "flickr8k", ("val[500:]",)), *_BRIEF[1:], *_LEARNED)
_FOLDS = (Entry("retrieval", "flickr8k", ("test", "val"), pool=500), *_each("few-shot", "caltech101"))
_CLUTTER = (*_each("retrieval", "captions"), *_each("zero-shot", "colours", "counts", "shapes"))
# captions of Flickr8k mention cats and dogs, but no breeds
_CATS_AND_DOGS = (("Abyssinian", "cat"), ("American Bulldog", "dog"), ("Bengal", "cat"))
_PETS = Entry("focus", "oxford_pets3", prompt="a {c}", words=_CATS_AND_DOGS)
_ATTENTION = (
    *_each("segmentation", "scenes-segmentation", "coco_mini"),
    *_each("sugarcrepe", "scenes-sugarcrepe", "sugarcrepe"),
    *_each("focus", "scenes"),
    _PETS,
    *_each("faithfulness", "scenes"),
    replace(_PETS, task="faithfulness"),
    *_each("mechanics", "scenes", "oxford_pets3", "coco_mini"),
    # an attack costs as much as fifty times zero-shot
    *(Entry("robustness", name, ("test[:200]",)) for name in ("scenes-colours", "scenes", "cifar10")),
    *_each("robustness", "coco_mini"),
)
_PAPER = (
    *_each("mmvp", "mmvp"),
    *_each("retrieval", "flickr8k", "flickr30k", "mscoco_captions"),
    *_each("zero-shot", "imagenet1k", *_SHIFTS, *_NINE),
    Entry("zero-shot", "imagenet1k", templates=SLIP_TEMPLATES),
    # lgssl resizes images bicubically
    *_each("few-shot", *_NINE, interpolation="bicubic"),
    *_each("linear-probe", *_NINE, interpolation="bicubic"),
)
SUITES = {
    "scenes": _SCENES,
    "brief": _BRIEF,
    "quick": _QUICK,
    "held-out": _HELD_OUT,
    "folds": _FOLDS,
    "clutter": _CLUTTER,
    "study": (*_QUICK, _PETS),
    "attention": _ATTENTION,
    "paper": _PAPER,
}


def missing_of(entries: Iterable[Entry], root: Path | None) -> dict[str, str]:
    """Return the sets that `entries` need and that are not below `root`, with the way to get each.

    A published set is missing if it has none of the splits of its entry, or lacks the split that the task learns from.
    """
    missing: dict[str, str] = {}
    for entry in entries:
        name = entry.dataset
        if name in PUBLISHED:
            folder, command = published_folder(name, root or "FOLDER"), command_for(name, root or "FOLDER")
            if not any(is_there(name, parts_of(split)[0], folder) for split in entry.splits):
                missing[name] = command
            elif entry.task in LEARNING and not is_there(name, TRAIN, folder):
                ways = f"put shards into {folder / TRAIN}"
                if TRAIN in PUBLISHED[name].splits:
                    ways = command
                missing[name] = f"its split {TRAIN}, which {' and '.join(LEARNING)} learn from: {ways}"
        elif name not in BUILT_IN:
            try:
                set_folder(name, root)
            except InputError:
                missing[name] = "a folder of your own in clip_benchmark's layout"
    return missing
