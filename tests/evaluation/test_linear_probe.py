import numpy as np
import pytest
import torch
import torch.nn.functional as F

from diffclip.errors import InputError
from diffclip.evaluation import linear_probe as module
from diffclip.evaluation.averages import headline_metric
from diffclip.evaluation.embed import Features
from diffclip.evaluation.linear_probe import Fit, fit_layer, fit_probe, search_cost, stratified_split


def blobs(seed: int, each: int, classes: int = 4, width: int = 6, spread: float = 1.0) -> tuple:
    """Features around one center per class, and labels."""
    centers = torch.randn(classes, width, generator=torch.Generator().manual_seed(99)) * 3
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat(each)
    return centers[labels] + spread * torch.randn(len(labels), width, generator=generator), labels


def a_split(name: str, seed: int, each: int = 10, **options) -> Features:
    return Features(name, *blobs(seed, each, **options))


NAMES = ["a", "b", "c", "d"]


@pytest.mark.parametrize("cost", [1e-6, 1.0, 1e4])
def test_fitted_layer_equals_torch_lbfgs_with_autograd(cost):
    values, labels = blobs(0, 15, spread=3.0)
    values = values.double()  # in float32 the two round differently where the loss is flat
    layer = torch.nn.Linear(6, 4, dtype=torch.float64)
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    optimizer = torch.optim.LBFGS(layer.parameters(), line_search_fn="strong_wolfe", max_iter=1000)

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(layer(values), labels) + (1 / cost) * 0.5 * layer.weight.norm()
        loss.backward()
        return loss

    optimizer.step(closure)
    fit = fit_layer(values, labels, 4, cost)
    torch.testing.assert_close(fit.weight, layer.weight.detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(fit.bias, layer.bias.detach(), atol=1e-5, rtol=1e-5)
    assert fit.iterations >= 1


def literal_search(score):
    """The search of lgssl with its lists and slices; a step of the cost is a seventh of a decade."""
    coarse = [-42, -28, -14, 0, 14, 28, 42]
    scores = [score(step) for step in coarse]
    best = coarse[scores.index(max(scores))]
    costs = [step for step in range(best - 14, best + 15) if -42 <= step <= 42]
    cache = {best: max(scores)}
    while len(costs) > 1:
        n = len(costs)
        quartiles = [costs[n // 4], costs[n // 2], costs[-n // 4]]
        for step in quartiles:
            if step not in cache:
                cache[step] = score(step)
        top = max(cache[step] for step in quartiles)
        if top == cache[quartiles[0]]:
            costs = costs[: n // 2]
        elif top == cache[quartiles[2]]:
            costs = costs[n // 2 :]
        else:
            costs = costs[n // 4 : -n // 4]
    return max(cache.items(), key=lambda item: item[1])[0]


def walked(score):
    """Search with a made-up score of the step; return the chosen step and all scored steps."""
    steps = []

    def score_cost(cost):
        steps.append(round(7 * np.log10(cost)))
        return score(steps[-1])

    return round(7 * np.log10(search_cost(score_cost))), steps


def test_cost_search_chooses_as_lgssl_and_fits_each_cost_once():
    for peak in range(-50, 51):
        chosen, steps = walked(lambda step, peak=peak: -abs(step - peak))
        assert chosen == literal_search(lambda step, peak=peak: -abs(step - peak)) == max(-42, min(42, peak))
        assert len(steps) == len(set(steps))
    for seed in range(200):
        values = np.random.default_rng(seed).integers(0, 4, 200)
        assert walked(lambda step, values=values: values[step + 60])[0] == literal_search(
            lambda step, values=values: values[step + 60]
        )


def test_last_layer_is_fitted_on_train_and_validation():
    train, validation = a_split("train", 0, 5), a_split("val", 1, 3)
    _, cost, fits = fit_probe(train, validation, a_split("test", 2), NAMES)
    values, labels = (torch.cat(parts) for parts in zip(train[1:], validation[1:], strict=True))
    assert torch.equal(fits[-1].weight, fit_layer(values, labels, 4, cost).weight)


def test_cost_is_tuned_for_the_given_metric(monkeypatch):
    def fake_fit(values, labels, classes, cost):
        """Predict the majority class 0 for costs below 1, and by the sign from 1 on."""
        sign, first = (1.0, 0.0) if cost >= 1 else (0.0, 1.0)
        return Fit(torch.tensor([[-sign], [sign]]), torch.tensor([first, 0.0]), 1)

    monkeypatch.setattr(module, "fit_layer", fake_fit)
    values = torch.tensor([1.0] * 4 + [-1.0] * 5 + [1.0])[:, None]
    features = Features("x", values, torch.tensor([0] * 9 + [1]))
    scores, cost, _ = fit_probe(features, features, features, ["a", "b"])
    assert cost == pytest.approx(1e-6)
    assert [score.value for score in scores] == pytest.approx([0.9, 0.5])
    scores, cost, _ = fit_probe(features, features, features, ["a", "b"], "mean_per_class_recall")
    assert cost >= 1
    assert [score.value for score in scores] == pytest.approx([0.6, (5 / 9 + 1) / 2])


def test_a_fifth_of_each_class_is_held_out():
    labels = torch.tensor([0] * 10 + [1] * 3 + [2])
    learned, held_out = stratified_split(labels, seed=0)
    assert sorted([*learned.tolist(), *held_out.tolist()]) == list(range(14))
    assert labels[held_out].tolist() == [0, 0, 1]
    assert not torch.equal(held_out, stratified_split(labels, seed=1)[1])
    with pytest.raises(InputError, match="no class has two images"):
        stratified_split(torch.tensor([0, 1]), seed=0)


def test_missing_images_are_refused():
    train, validation, test = a_split("s/train", 0), a_split("s/val", 1), a_split("s/test", 2)
    too_few = r"s/train: class 'e' has 0 images .2 classes have too few., and 1 are needed"
    with pytest.raises(InputError, match=too_few):
        fit_probe(train, validation, test, [*NAMES, "e", "f"])


def test_headline_metric_is_mean_per_class_recall_for_some_sets():
    by_class = "FGVCAircraft wds_vtab-pets oxford_pets OxfordIIITPet Caltech-101 flowers102"
    by_image = "cifar10 caltech256 scenes-colours carpets food101 cars"
    for metric, names in (("mean_per_class_recall", by_class), ("acc1", by_image)):
        assert {headline_metric(name) for name in names.split()} == {metric}
