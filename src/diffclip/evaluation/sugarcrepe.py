"""SugarCrepe: is the true caption of an image nearer than a hard negative? Hsieh et al. (2023), arXiv:2306.14610.

As in the published script (RAIVNLab/sugar-crepe, `main_eval.py`), the captions have no template and a tie is wrong.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from diffclip.data.published_files import ChoiceSet
from diffclip.evaluation.scores import Score, mean_score, with_facts
from diffclip.evaluation.setting import Setting
from diffclip.evaluation.statistics import sums_interval


def sugarcrepe(setting: Setting[ChoiceSet]) -> list[Score]:
    """Measure `average`, the mean of the files' accuracies, and the accuracy of each file by its name.

    Items of one image are resampled together. Outcomes of `average` are weighted so that each file counts the same.

    Raises:
        InputError: no image can be read, or an embedding is not finite.
    """
    images, positions = setting.image_features()
    places = {position: place for place, position in enumerate(positions)}
    asked = [choice for choice in setting.data.choices if choice.image in places]
    captions = dict.fromkeys(text for choice in asked for text in (choice.caption, choice.negative))
    index, texts = {text: i for i, text in enumerate(captions)}, setting.text_features(list(captions))
    shown = images[[places[choice.image] for choice in asked]].double()
    own, other = (
        (shown * texts[[index[text] for text in side]].double()).sum(-1)
        for side in zip(*((choice.caption, choice.negative) for choice in asked), strict=True)
    )
    hits = torch.gt(own, other).double().cpu().numpy()
    names, files = np.unique([choice.file for choice in asked], return_inverse=True)
    clusters = np.array([choice.image for choice in asked])
    method = "the caption must be nearer to the image than the negative one; ties count against"
    return with_facts(_scores(hits, names.tolist(), files, clusters), protocol=method)


def _scores(
    hits: NDArray[np.float64], names: list[str], files: NDArray[np.int64], clusters: NDArray[np.int64]
) -> list[Score]:
    """Score items [n] by their file's number [n] and by image [n]."""
    member = files[:, None] == np.arange(len(names))
    counts = np.stack([member * hits[:, None], member], axis=1)
    low, high = sums_interval(counts, _average, clusters)
    weighted = hits * (len(hits) / len(names) / np.bincount(files))[files]
    average = float(_average(counts.sum(0)))
    facts = {"of": tuple(names)}
    parts = [
        mean_score(name, hits[files == number], 0.5, clusters[files == number])
        for number, name in enumerate(names)
    ]
    return [Score("average", average, len(hits), low, high, 0.5, weighted, clusters, facts), *parts]


def _average(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average accuracies over the files that occur; `sums` [..., 2, files] of hits and of items."""
    right, items = sums[..., 0, :], sums[..., 1, :]
    means: NDArray[np.float64] = (right / np.maximum(items, 1)).sum(-1) / (items > 0).sum(-1)
    return means
