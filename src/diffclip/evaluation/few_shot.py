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
from diffclip.evaluation.embed import Features, Setting, one_thread
from diffclip.evaluation.scores import Score, with_facts
from diffclip.evaluation.statistics import mean_interval

Index = NDArray[np.int64]
WAY, SHOT, QUERIES, EPISODES = 5, 5, 6, 5000
_EPISODES_AT_ONCE = 50  # 6 MB of features 512 wide, which fit into a core's cache


def few_shot(setting: Setting[EvaluationSet]) -> list[Score]:
    """Measure `acc1` over episodes that learn from the split `train`."""
    names = setting.data.classnames
    score = score_episodes(*setting.train_and_test("few-shot"), names, setting.draw, setting.progress)
    method = (
        f"{EPISODES} episodes of {WAY} classes, {SHOT} train images and up to {QUERIES} queries each; "
        f"{setting.feature_kind}, less the mean of the supports, unit length; nearest prototype, "
        "ties count against"
    )
    return with_facts([score], protocol=method, classes=len(names), draw=setting.draw)


class Episodes(NamedTuple):
    """The draws of all episodes: train images `supports` [E, WAY, SHOT] and test images `queries` [E, WAY, QUERIES].
    `mask`, bool with the shape of `queries`, is False for the padding of a class with fewer test images.
    """

    supports: Tensor
    queries: Tensor
    mask: Tensor


def draw_episodes(
    train_labels: Tensor, test_labels: Tensor, classes: int, seed: int, episodes: int
) -> Episodes:
    """Draw episodes from the labels (int64 [N] and [M]) and the seed alone, so that every model gets the same ones."""
    generator = np.random.default_rng(seed)
    chosen = _draw_distinct(generator, np.full(episodes, classes), WAY)
    supports, _ = _draw_images(generator, train_labels.numpy(), classes, chosen, SHOT)
    queries, mask = _draw_images(generator, test_labels.numpy(), classes, chosen, QUERIES)
    return Episodes(torch.from_numpy(supports), torch.from_numpy(queries), torch.from_numpy(mask))


def episode_hits(train: Tensor, test: Tensor, episodes: Episodes, progress: Progress | None = None) -> Tensor:
    """Classify the queries by the nearest prototype, from features [N, D] and [M, D].

    Returns bool [E, WAY, QUERIES]: True if the query is right, False also for padding. A query that is as near to
    another prototype as to its own is wrong.
    """
    hits = []
    is_own = torch.eye(WAY, dtype=torch.bool)[None, :, None]  # [1, true class, 1, prototype]
    with one_thread():
        for start in range(0, len(episodes.supports), _EPISODES_AT_ONCE):
            part = slice(start, start + _EPISODES_AT_ONCE)
            supports, queries = train[episodes.supports[part]], test[episodes.queries[part]]
            center = supports.mean((1, 2), keepdim=True)
            supports, queries = F.normalize(supports - center, dim=-1), F.normalize(queries - center, dim=-1)
            prototypes = supports.mean(2)
            # the squared distance minus the query's squared length, which is the same for all prototypes
            distances = prototypes.square().sum(-1)[:, None] - 2 * queries.flatten(1, 2) @ prototypes.mT
            distances = distances.view(-1, WAY, QUERIES, WAY)
            to_own = distances.masked_fill(~is_own, torch.inf).amin(-1)
            to_others = distances.masked_fill(is_own, torch.inf).amin(-1)
            hits.append((to_own < to_others) & episodes.mask[part])
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
    """Score `acc1`, the mean accuracy over `EPISODES` episodes.

    Episodes share images, so as independent trials they would give intervals that are far too narrow. Therefore test
    images are resampled, each with all answers about it.
    """
    classes = len(classnames)
    if classes < WAY:
        raise InputError(
            f"{test.name}: few-shot draws {WAY} classes per episode, but the set has {classes}: use another set"
        )
    train.check(classnames, SHOT, "to learn from")
    test.check(classnames, 1, "to ask about")
    episodes = draw_episodes(train.labels, test.labels, classes, seed, EPISODES)
    right = episode_hits(train.values, test.values, episodes, progress)
    counts = episodes.mask.sum((1, 2)).double()
    accuracies = right.sum((1, 2)) / counts
    value, answers = float(accuracies.mean()), right[episodes.mask].double().numpy()
    # the interval of the plain mean over answers, which stays within 0 and 1, moved to the mean over episodes
    bounds, shift = mean_interval(answers, episodes.queries[episodes.mask]), value - float(answers.mean())
    low, high = (min(1.0, max(0.0, bound + shift)) for bound in bounds)
    return Score("acc1", value, len(accuracies), low, high, 1 / WAY)


def _draw_images(
    generator: np.random.Generator, labels: Index, classes: int, chosen: Index, count: int
) -> tuple[Index, NDArray[np.bool_]]:
    """Draw `count` images of each chosen class [E, WAY], and a mask that is False for padding: both [E, WAY, count]."""
    by_class = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels, minlength=classes)
    starts = np.cumsum(sizes) - sizes
    drawn = _draw_distinct(generator, sizes[chosen].ravel(), count).reshape(*chosen.shape, count)
    present = np.arange(count) < sizes[chosen][..., None]
    return by_class[starts[chosen][..., None] + np.where(present, drawn, 0)], present


def _draw_distinct(generator: np.random.Generator, sizes: Index, count: int) -> Index:
    """Draw `count` different numbers below n in random order for each size n [R]: [R, count]. If n is less than
    `count`, only the first n are below n."""
    drawn = np.empty((len(sizes), 0), dtype=np.int64)
    for already in range(count):
        # draw a position among the numbers that are left, then step over the numbers drawn before
        number = generator.integers(np.maximum(sizes - already, 1))
        for taken in np.sort(drawn, axis=1).T:
            number += number >= taken
        drawn = np.concatenate([drawn, number[:, None]], axis=1)
    return drawn
