"""Where a model looks, against masks of what texts name: the task `focus`.

Items are pairs of a picture and a text, clusters are pictures. The measures are those of `diffclip.focus.measures`, of
five kinds of map: the text's relevance, rollout, and the class token's rows of what the layers attend by, of A1 and of
A2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diffclip.data.masks import MaskedSet
from diffclip.data.samples import Transform
from diffclip.errors import InputError
from diffclip.evaluation.embed import Progress, Tokenizer, embed_texts, evaluating
from diffclip.evaluation.focus_chance import chance_of_uniform
from diffclip.evaluation.focus_maps import ByLayer, measure
from diffclip.evaluation.focus_names import bounds, detail, is_detail, is_share, kind_of
from diffclip.evaluation.intervals import mean_intervals
from diffclip.evaluation.scores import Score
from diffclip.focus.recording import images_at_once
from diffclip.model import CLIP

__all__ = ["focus", "grid_of", "is_detail", "is_share", "texts_of"]

_STEPS = 1 << 12
"""Outcomes are kept in steps of 1/4096, which their mean over items does not feel, and a file of them does."""


@dataclass(frozen=True)
class _Column:
    """One number of each item: what it is called, its values, and whether they are kept."""

    metric: str
    values: NDArray[np.float64]
    kept: bool


@dataclass(frozen=True)
class _Picture:
    """A picture of the set: its position, itself [3, S, S], its texts and the coverage of each [texts, h, w]."""

    position: int
    image: Tensor
    texts: list[str]
    coverage: NDArray[np.float64]


@dataclass(frozen=True)
class _Items:
    """Pictures [B, 3, S, S], and of each item its picture among them, its text, its position in the set and coverage
    [n, P]."""

    images: Tensor
    owners: Tensor
    texts: list[str]
    positions: list[int]
    coverage: Tensor


def grid_of(model: CLIP) -> int:
    """How many patches a picture's edge has."""
    return model.config.vision.image_size // model.config.vision.patch_size


def texts_of(prompt: str | None) -> str:
    """What items are asked about, in the words of a record's protocol."""
    # what stands behind a bar is not part of how a number is measured
    return "texts of the set" if prompt is None else f"text {prompt.replace('|', '/')!r}"


def focus(
    model: CLIP,
    tokenizer: Tokenizer,
    preprocess: Transform,
    data: MaskedSet,
    prompt: str | None = None,
    batch_size: int = 64,
    workers: int = 0,
    progress: Progress | None = None,
) -> list[Score]:
    """Every measure of every map: headlines first, `relevance_auroc` the first of them, then layers, then heads.

    Layers and heads have intervals, heads no outcomes.

    Args:
        preprocess: PIL picture → [3, S, S] of the model's crop, perhaps corrupted.
        prompt: the text of every item, with its name where `{c}` stands; None: the set's own.
        batch_size: pictures read at once; maps are made of as many at once as 2 GiB hold.

    Raises:
        InputError: the model has a single patch; fewer than two pictures are left with an object and a background; an
            embedding is not finite.
    """
    if grid_of(model) < 2:
        raise InputError("the model sees a picture as a single patch: there is nowhere else to look")
    words = sorted({thing.worded(prompt) for own in data.things for thing in own})
    with evaluating(model):
        features = embed_texts(model, tokenizer, words, progress=progress)
    index = {text: i for i, text in enumerate(words)}
    device = next(model.parameters()).device
    found: list[dict[str, ByLayer]] = []
    positions: list[int] = []
    coverages: list[Tensor] = []
    for items in _batches(model, preprocess, data, prompt, batch_size, workers, progress):
        texts = features[[index[text] for text in items.texts]]
        found.append(measure(model, items.images.to(device), texts, items.owners, items.coverage))
        positions += items.positions
        coverages.append(items.coverage)
    data.faults = list(dict.fromkeys(data.faults))  # of every model that this set was put to
    if len(set(positions)) < 2:
        why = f": {data.faults[-1]}" if data.faults else ""
        raise InputError(
            f"{data.name}/{data.split} has {len(set(positions))} pictures whose mask has an object and a background, "
            f"and two are needed{why}"
        )
    joined = {name: ByLayer.joined([one[name] for one in found]) for name in found[0]}
    # as in the set, however it was cut into batches: another model's items are paired with these
    order = np.argsort(positions, kind="stable")
    return _scores(joined, np.array(positions), order, chance_of_uniform(torch.cat(coverages)))


def _batches(
    model: CLIP,
    preprocess: Transform,
    data: MaskedSet,
    prompt: str | None,
    batch_size: int,
    workers: int,
    progress: Progress | None,
) -> Iterator[_Items]:
    """The items of the set, in groups of pictures with as many items each, as many pictures as may go together."""
    vision = model.config.vision
    edge = model.config.preprocess.resize or vision.image_size
    together = images_at_once(model)
    for batch in data.batches(preprocess, batch_size, workers):
        groups: dict[int, list[_Picture]] = {}
        for image, position in zip(batch.images, batch.positions, strict=True):
            things, coverage = data.coverages(position, vision.image_size, edge, grid_of(model))
            texts = [thing.worded(prompt) for thing in things]
            groups.setdefault(len(things), []).append(_Picture(position, image, texts, coverage))
        for count, pictures in groups.items():
            for start in range(0, len(pictures) if count else 0, together):
                yield _items(pictures[start : start + together])
        if progress:
            progress("pictures", len(batch.positions), len(data))


def _items(pictures: list[_Picture]) -> _Items:
    counts = torch.tensor([len(one.texts) for one in pictures])
    return _Items(
        torch.stack([one.image for one in pictures]),
        torch.arange(len(pictures)).repeat_interleave(counts),
        [text for one in pictures for text in one.texts],
        [one.position for one in pictures for _ in one.texts],
        torch.from_numpy(np.concatenate([one.coverage for one in pictures])).flatten(1),
    )


def _scores(
    found: dict[str, ByLayer],
    pictures: NDArray[np.int64],
    order: NDArray[np.int64],
    uniform: dict[str, float],
) -> list[Score]:
    columns = sorted(_columns(found), key=lambda column: (is_detail(column.metric), not column.kept))
    table = np.round(np.stack([column.values[order] for column in columns], axis=1) * _STEPS) / _STEPS
    pictures = pictures[order]
    intervals = mean_intervals(table, pictures, bounds=[bounds(column.metric) for column in columns])
    scores = []
    for place, column in enumerate(columns):
        values = np.ascontiguousarray(table[:, place])
        kept = (values, pictures) if column.kept else (None, None)
        low, high = intervals[place].tolist()
        chance = _chance(column.metric, uniform)
        scores.append(Score(column.metric, float(values.mean()), len(values), low, high, chance, *kept))
    return scores


def _columns(found: dict[str, ByLayer]) -> Iterator[_Column]:
    for name, one in found.items():
        yield _Column(name, one.headline.double().numpy(), True)
        if one.layers is None or one.heads is None:
            continue
        for layer, (values, heads) in enumerate(
            zip(one.layers.unbind(1), one.heads.unbind(1), strict=True), 1
        ):
            yield _Column(detail(name, layer), values.double().numpy(), True)
            for head, own in enumerate(heads.unbind(1), 1):
                yield _Column(detail(name, layer, head), own.double().numpy(), False)


def _chance(metric: str, uniform: dict[str, float]) -> float:
    # between two maps that are the same everywhere there is no difference
    return uniform.get(kind_of(metric), 0.0)
