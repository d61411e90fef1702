"""Few-shot classification by the nearest prototype, El Banani et al. (2023), as github.com/mbanani/lgssl does it.

docs/protocols.md describes an episode. Shapes: N train and M test images, D feature width, E episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from diffclip.data.evaluation_set import EvaluationSet
from diffclip.data.workers import Progress
from diffclip.errors import InputError
from diffclip.evaluation.embed import Setting
from diffclip.evaluation.features import METHOD, Features, one_thread, train_and_test
from diffclip.evaluation.scores import Score, with_facts
from diffclip.evaluation.statistics import mean_interval

Index = NDArray[np.int64]
WAY, SHOT, QUERIES, EPISODES = 5, 5, 6, 5000
_EPISODES_AT_ONCE = 50  # 6 MB of features 512 wide: what a core's cache holds


def few_shot(setting: Setting[EvaluationSet]) -> list[Score]:
    """Measure `acc1` over episodes that learn from the split `train`."""
    train, test = train_and_test(setting, "few-shot")
    names = setting.data.classnames
    score = score_episodes(train, test, names, setting.draw, setting.progress)
    method = (
        f"{EPISODES} episodes of {WAY} classes, {SHOT} train images and up to {QUERIES} queries each; {METHOD}, "
        "less the mean of the supports, unit length; nearest prototype, ties count against"
    )
    return with_facts([score], protocol=method, classes=len(names), draw=setting.draw)


class Episodes(NamedTuple):
    """The draws of all episodes: `supports` [E, WAY, SHOT] of the train and `queries` [E, WAY, QUERIES] of the test
    images. `asked`, bool like `queries`, is False past the end of a class with fewer test images.
    """

    supports: Tensor
    queries: Tensor
    asked: Tensor


def draw_episodes(
    train_labels: Tensor, test_labels: Tensor, classes: int, seed: int, episodes: int
) -> Episodes:
    """Draw episodes that are determined by the labels (int64 [N] and [M]) and the seed, so the same for every model."""
    generator = np.random.default_rng(seed)
    chosen = _distinct(generator, np.full(episodes, classes), WAY)
    supports, _ = _of_classes(generator, train_labels.numpy(), classes, chosen, SHOT)
    queries, asked = _of_classes(generator, test_labels.numpy(), classes, chosen, QUERIES)
    return Episodes(torch.from_numpy(supports), torch.from_numpy(queries), torch.from_numpy(asked))


def episode_hits(train: Tensor, test: Tensor, episodes: Episodes, progress: Progress | None = None) -> Tensor:
    """Classify the queries by the nearest prototype, from features [N, D] and [M, D].

    Returns bool [E, WAY, QUERIES]: right or not, False where none was asked. A query as near to another prototype as
    to its own is wrong.
    """
    hits = []
    own = torch.eye(WAY, dtype=torch.bool)[None, :, None]  # [1, true class, 1, prototype]
    with one_thread():
        for start in range(0, len(episodes.supports), _EPISODES_AT_ONCE):
            part = slice(start, start + _EPISODES_AT_ONCE)
            supports, queries = train[episodes.supports[part]], test[episodes.queries[part]]
            center = supports.mean((1, 2), keepdim=True)
            supports, queries = F.normalize(supports - center, dim=-1), F.normalize(queries - center, dim=-1)
            prototypes = supports.mean(2)
            # the square of the distance less the query's own length, which all prototypes share
            distances = prototypes.square().sum(-1)[:, None] - 2 * queries.flatten(1, 2) @ prototypes.mT
            distances = distances.view(-1, WAY, QUERIES, WAY)
            to_own = distances.masked_fill(~own, torch.inf).amin(-1)
            to_others = distances.masked_fill(own, torch.inf).amin(-1)
            hits.append((to_own < to_others) & episodes.asked[part])
            if progress:
                progress("episodes", len(hits[-1]), len(episodes.supports))
    return torch.cat(hits)


def score_episodes(
    train: Features,
    test: Features,
    classnames: Sequence[str],
    seed: int = 0,
    progress: Progress | None = None,
) -> Score:
    """Score `acc1`, the mean over `EPISODES` episodes of each one's accuracy.

    Episodes share images, so as trials of their own they would make any two models differ "significantly". What is
    resampled, and paired with another model's, are the test images with all answers about them: `hits` holds an answer
    each, weighted so that their mean is that of the episodes, and `clusters` its image.
    """
    classes = len(classnames)
    if classes < WAY:
        raise InputError(
            f"{test.where}: few-shot draws {WAY} classes per episode, but the set has {classes}: use another set"
        )
    train.check(classnames, SHOT, "to learn from")
    test.check(classnames, 1, "to ask about")
    episodes = draw_episodes(train.labels, test.labels, classes, seed, EPISODES)
    right = episode_hits(train.values, test.values, episodes, progress)
    asked = episodes.asked.sum((1, 2)).double()
    accuracies = right.sum((1, 2)) / asked
    weights = (episodes.asked.sum() / (len(asked) * asked))[:, None, None].expand_as(right)
    images, order = episodes.queries[episodes.asked].sort(stable=True)
    hits = (right * weights)[episodes.asked][order].numpy()
    value, unweighted = float(accuracies.mean()), right[episodes.asked][order].double().numpy()
    # of the plain mean over answers, which stays within 0 and 1, moved to where the weighted one is
    moved = value - float(unweighted.mean())
    low, high = (min(1.0, max(0.0, bound + moved)) for bound in mean_interval(unweighted, images))
    return Score("acc1", value, len(accuracies), low, high, 1 / WAY, hits, images.numpy())


def _of_classes(
    generator: np.random.Generator, labels: Index, classes: int, chosen: Index, count: int
) -> tuple[Index, NDArray[np.bool_]]:
    """Draw `count` images of each chosen class [E, WAY], and where there are as many: both [E, WAY, count]."""
    by_class = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels, minlength=classes)
    starts = np.cumsum(sizes) - sizes
    drawn = _distinct(generator, sizes[chosen].ravel(), count).reshape(*chosen.shape, count)
    there = np.arange(count) < sizes[chosen][..., None]
    return by_class[starts[chosen][..., None] + np.where(there, drawn, 0)], there


def _distinct(generator: np.random.Generator, sizes: Index, count: int) -> Index:
    """Draw for each size n [R] `count` different numbers below n in random order, [R, count]; where n is less than
    `count`, the first n are."""
    drawn = np.empty((len(sizes), 0), dtype=np.int64)
    for already in range(count):
        # the place among the numbers not drawn yet, made the number itself by stepping over those drawn
        number = generator.integers(np.maximum(sizes - already, 1))
        for taken in np.sort(drawn, axis=1).T:
            number += number >= taken
        drawn = np.concatenate([drawn, number[:, None]], axis=1)
    return drawn
