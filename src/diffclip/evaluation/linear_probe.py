"""Linear probe of frozen features, El Banani et al. (2023), as github.com/mbanani/lgssl does it.

One linear layer starts at zero and is fitted by full-batch L-BFGS to mean cross entropy + 0.5·‖W‖₂ / C. The norm is
not squared, and the bias is not penalized. The cost C is searched in two stages on a validation split. The layer is
then fitted again on train and validation with the best cost, and tested once.

Shapes: N images, D feature width, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from diffclip.data.evaluation_set import EvaluationSet
from diffclip.data.published_sets import parts_of
from diffclip.data.workers import Progress
from diffclip.errors import InputError
from diffclip.evaluation.averages import headline_metric
from diffclip.evaluation.embed import Features, Setting, one_thread
from diffclip.evaluation.lbfgs import Vector, minimize
from diffclip.evaluation.metrics import classification_ranks, hits_at, mean_per_class
from diffclip.evaluation.scores import Score, accuracy_scores, with_facts
from diffclip.evaluation.suite import VALIDATION

MAX_ITERATIONS = 1000
_WORTH_THREADS = 1 << 26  # multiplications (a few milliseconds) from which threads pay off
_HELD_OUT = 0.2  # share of each class, if a set has no validation split

# All costs are 10^(step / 7), from 10⁻⁶ to 10⁶
_A_DECADE = 7
_COARSE = range(-6 * _A_DECADE, 6 * _A_DECADE + 1, 2 * _A_DECADE)
_REACH = 2 * _A_DECADE  # steps of the second stage, to either side of the best of the first


class Fit(NamedTuple):
    """A fitted layer: `weight` [K, D] and `bias` [K], float32, and the iterations that it took."""

    weight: Tensor
    bias: Tensor
    iterations: int

    def ranks(self, features: Features) -> Tensor:
        """Rank the true classes of features."""
        layer = torch.cat([self.weight, self.bias[:, None]], dim=1)
        return classification_ranks(F.pad(features.values, (0, 1), value=1.0), layer.T, features.labels)


def linear_probe(setting: Setting[EvaluationSet]) -> list[Score]:
    """Measure `acc1` and `mean_per_class_recall` of a layer that learns from the split `train`.

    The cost is chosen on the split `val` or `validation`. If the set has neither besides the tested split, it is
    chosen on a fifth of `train`.
    """
    data = setting.data
    train, test = setting.train_and_test("linear-probe")
    splits = (data.beside(name) for name in VALIDATION if name != parts_of(data.split)[0])
    validation_set = next((split for split in splits if split is not None), None)
    if validation_set is None:
        learned, held = stratified_split(train.labels, setting.draw)
        validation = Features(f"{train.name}, held out", train.values[held], train.labels[held])
        train = Features(train.name, train.values[learned], train.labels[learned])
    else:
        validation = setting.features(validation_set)
    metric = headline_metric(data.name)
    scores, cost, fits = fit_probe(train, validation, test, data.classnames, metric, setting.progress)
    stopped = sum(fit.iterations >= MAX_ITERATIONS for fit in fits)
    method = (
        f"{setting.feature_kind}; L-BFGS, un-squared L2 penalty; cost chosen by {metric} on "
        f"{validation_set.split if validation_set else 'a stratified fifth of train'} ({cost:.4g}); "
        f"fitted again on both, {len(train.labels) + len(validation.labels)} images; "
        f"{stopped} of {len(fits)} fits stopped after {MAX_ITERATIONS} iterations; ties count against"
    )
    draw = setting.draw if validation_set is None else None
    return with_facts(scores, protocol=method, classes=len(data.classnames), draw=draw)


def stratified_split(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Draw four fifths to learn from and a fifth to validate on, within each class.

    Returns two ascending index tensors that together hold each of the N labels once. A class with two or more images
    is in both; a class with a single image is in the first.
    """
    generator = np.random.default_rng(seed)
    classes = labels.numpy()
    held_out = np.zeros(len(classes), dtype=bool)
    for number in np.unique(classes):
        members = np.flatnonzero(classes == number)
        count = min(max(1, round(_HELD_OUT * len(members))), len(members) - 1)
        held_out[generator.permutation(members)[:count]] = True
    if not held_out.any():
        raise InputError(
            "no class has two images in train, so none can be held out to choose the cost on: add a split val"
        )
    return torch.from_numpy(np.flatnonzero(~held_out)), torch.from_numpy(np.flatnonzero(held_out))


def fit_probe(
    train: Features,
    validation: Features,
    test: Features,
    classnames: Sequence[str],
    metric: str = "acc1",
    progress: Progress | None = None,
) -> tuple[list[Score], float, list[Fit]]:
    """Fit candidates to `train`, choose the cost by `metric` ("acc1", or "mean_per_class_recall" over the classes that
    occur) on `validation`, fit the layer to both, and score it on `test`.

    Returns:
        The scores, the chosen cost, and every fit in order. The last fit is the layer that was tested.
    """
    classes = len(classnames)
    train.check(classnames, 1, "to learn from")
    fits: list[Fit] = []

    def ranks_after(learned: Features, cost: float, queries: Features) -> Tensor:
        fits.append(fit_layer(learned.values, learned.labels, classes, cost))
        if progress:
            progress("fits", 1, None)
        return fits[-1].ranks(queries)

    def score(cost: float) -> float:
        hits = hits_at(ranks_after(train, cost, validation), 1)
        return float(hits.mean()) if metric == "acc1" else mean_per_class(hits, validation.labels)

    cost = search_cost(score)
    values = torch.cat([train.values, validation.values])
    both = Features("train and validation", values, torch.cat([train.labels, validation.labels]))
    return accuracy_scores(ranks_after(both, cost, test), test.labels, classes), cost, fits


def fit_layer(values: Tensor, labels: Tensor, classes: int, cost: float) -> Fit:
    """Fit lgssl's layer to features [N, D] and labels [N], on the CPU."""
    with_one = F.pad(values, (0, 1), value=1.0).cpu()
    transposed, targets = with_one.T.contiguous(), F.one_hot(labels, classes).T.to(with_one)
    strength = 0.5 / cost

    def evaluate(parameters: Vector) -> tuple[float, Vector]:
        # gradients by hand, because autograd takes longer than the products themselves on sets of this size
        layer = torch.from_numpy(parameters).view(classes, -1)
        scores = F.log_softmax(layer @ transposed, dim=0)
        slope = (scores.exp() - targets).div_(len(values)) @ with_one
        weight = layer[:, :-1]
        norm = float(weight.norm())
        if norm > 0:  # at zero, the norm has the subgradient 0
            slope[:, :-1].add_(weight, alpha=strength / norm)
        return strength * norm - float((scores * targets).sum()) / len(values), slope.view(-1).numpy()

    # nothing is kept for a backward pass
    with torch.inference_mode(), one_thread(values.numel() * classes < _WORTH_THREADS):
        start = torch.zeros(classes * with_one.shape[1], dtype=values.dtype).numpy()
        parameters, iterations = minimize(evaluate, start, MAX_ITERATIONS)
    layer = torch.from_numpy(parameters).view(classes, -1)
    return Fit(layer[:, :-1].clone(), layer[:, -1].clone(), iterations)


def search_cost(score: Callable[[float], float]) -> float:
    """Search the cost with the highest `score` in lgssl's two stages, each cost once (ties: docs/protocols.md).

    Stage 1 tries seven costs a hundredfold apart. Stage 2 halves the list of 29 costs around the best, a seventh of a
    decade apart: it tries a quarter, a half and three quarters (index −len // 4), and keeps the half around the best.
    """
    score_at = cache(lambda step: score(10 ** (step / _A_DECADE)))
    center = max(_COARSE, key=score_at)
    steps = [step for step in range(center - _REACH, center + _REACH + 1) if abs(step) <= _COARSE[-1]]
    tried = [center]
    while len(steps) > 1:
        quarter, half, rest = len(steps) // 4, len(steps) // 2, -len(steps) // 4
        tried += [steps[quarter], steps[half], steps[rest]]
        best = max(map(score_at, tried[-3:]))
        if score_at(steps[quarter]) == best:
            steps = steps[:half]
        elif score_at(steps[rest]) == best:
            steps = steps[half:]
        else:
            steps = steps[quarter:rest]
    return float(10 ** (max(tried, key=score_at) / _A_DECADE))
