"""Zero-shot segmentation: each pixel gets the class whose text is nearest to the patches around it.

docs/protocols.md describes the method and the three maps: two readouts of `CLIP.encode_patches`, and the class with the
most pixels everywhere. Shapes: n images, K classes, g patches along an edge.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from diffclip.data.evaluation_set import EvaluationSet
from diffclip.data.masks import NOT_LABELED, classes_at
from diffclip.errors import InputError
from diffclip.evaluation.embed import Setting, check_embeddings, evaluation_mode
from diffclip.evaluation.scores import Score, with_facts
from diffclip.evaluation.statistics import sums_interval
from diffclip.model import READOUTS

MAJORITY = "majority class"


def segmentation(setting: Setting[EvaluationSet]) -> list[Score]:
    """Measure `mean_iou`, over the classes that occur, and `pixel_accuracy`, over all labeled pixels, of each map.

    `setting.preprocess` must not crop.
    """
    model, data, classes = setting.model, setting.data, len(setting.data.classnames)
    classifier = setting.classifier()
    grid = model.config.vision.image_size // model.config.vision.patch_size
    counts: dict[str, list[Tensor]] = {readout: [] for readout in READOUTS}
    with evaluation_mode(model):
        for batch in setting.batches():
            truths = [classes_at(data, position) for position in batch.positions]
            images = batch.images.to(classifier.device, model.logit_scale.dtype)
            for readout in READOUTS:
                patches = model.encode_patches(images, readout=readout).float()
                check_embeddings(patches.flatten(0, 1), "patches")
                cosines = (F.normalize(patches, dim=-1) @ classifier).mT.reshape(-1, classes, grid, grid)
                counts[readout] += [
                    count_pixels(image_cosines, torch.from_numpy(truth).to(image_cosines.device)).cpu()
                    for image_cosines, truth in zip(cosines, truths, strict=True)
                    if truth is not None
                ]
    if not counts[READOUTS[0]]:
        raise InputError(f"no image of {data.name}/{data.split} has labels: {data.faults[-1]}")
    tables = {readout: torch.stack(parts).double().numpy() for readout, parts in counts.items()}
    actual = tables[READOUTS[0]][:, 2]
    is_best = np.arange(classes) == actual.sum(0).argmax()
    tables[MAJORITY] = np.stack([actual * is_best, actual.sum(1, keepdims=True) * is_best, actual], axis=1)
    method = (
        f"{grid}×{grid} patches, cosines upsampled bilinearly to the labels; templates averaged after normalization; "
        "IoU over classes that occur; ties count against"
    )
    scores = [score for name, table in tables.items() for score in _scores(table, name)]
    return with_facts(scores, protocol=method, classes=classes, templates=len(setting.prompts))


def count_pixels(cosines: Tensor, truth: Tensor) -> Tensor:
    """Count the labeled pixels of an image by class.

    If the true class and another class share the largest cosine, the pixel gets the other class.

    Args:
        cosines: [K, g, g], of each patch with the text of each class.
        truth: int64 [H, W], the class of each pixel or NOT_LABELED.

    Returns:
        int64 [3, K]: right pixels of the class, pixels that get the class, pixels of the class.
    """
    maps = F.interpolate(cosines[None], tuple(truth.shape), mode="bilinear", align_corners=False)[0]
    labeled = truth != NOT_LABELED
    true_classes, columns = truth[labeled], maps[:, labeled]
    true_cosines = columns.gather(0, true_classes[None])[0]
    rival, other = columns.scatter(0, true_classes[None], -torch.inf).max(0)
    answer = torch.where(true_cosines > rival, true_classes, other)
    kinds = (true_classes[answer == true_classes], answer, true_classes)
    return torch.stack([torch.bincount(kind, minlength=len(cosines)) for kind in kinds])


def mean_iou(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average intersection over union over the classes that occur; `counts` [..., 3, K] are from `count_pixels`."""
    right, answered, actual = np.moveaxis(counts, -2, 0)
    occurs = actual > 0
    shares = right / np.where(occurs, answered + actual - right, 1)
    return (shares * occurs).sum(-1) / occurs.sum(-1)


def pixel_accuracy(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of right pixels; `counts` [..., 3, K] are from `count_pixels`."""
    right, _, actual = np.moveaxis(counts.sum(-1), -1, 0)
    return right / actual


def _scores(counts: NDArray[np.float64], name: str) -> list[Score]:
    """Score a map by its counts [n, 3, K]; for chance, each class gets an equal share of every class's pixels."""
    images, _, classes = counts.shape
    total = counts.sum(0)
    actual = total[2]
    guessed = np.stack([actual / classes, np.full(classes, actual.sum() / classes), actual])
    scores = [
        Score(metric, float(measure(total)), images, *sums_interval(counts, measure), float(measure(guessed)))
        for metric, measure in (("mean_iou", mean_iou), ("pixel_accuracy", pixel_accuracy))
    ]
    return with_facts(scores, map=name)
