"""Compare the measures with scikit-learn on pixels, and with cases computed by hand."""

import numpy as np
import pytest
import torch

from diffclip.maps import measures


def random_case(seed: int, ties: bool) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(3, 4, 25, generator=generator)
    coverage = torch.rand(3, 1, 25, generator=generator, dtype=torch.float64)
    coverage = torch.where(coverage < 0.3, 0.0, torch.where(coverage > 0.8, 1.0, coverage))
    return (scores * 2).round() / 2 if ties else scores, coverage


@pytest.mark.parametrize("ties", [False, True])
def test_auroc_and_average_precision_equal_scikit_learns_on_pixels(ties):
    sklearn = pytest.importorskip("sklearn.metrics")
    scores, coverage = random_case(0, ties)
    area = measures.auroc(scores, coverage)
    precision = measures.average_precision(scores, coverage)
    assert area.shape == precision.shape == (3, 4)
    for i, j in np.ndindex(3, 4):
        values, covered = scores[i, j].numpy(), coverage[i, 0].numpy()
        # each patch is an object pixel of weight c and a background pixel of weight 1 − c
        args = (np.repeat([1, 0], 25), np.tile(values, 2))
        weight = np.concatenate([covered, 1 - covered])
        assert area[i, j] == pytest.approx(sklearn.roc_auc_score(*args, sample_weight=weight), abs=1e-9)
        wanted = sklearn.average_precision_score(*args, sample_weight=weight)
        assert precision[i, j] == pytest.approx(wanted, abs=1e-9)


def test_measures_of_a_perfect_a_reversed_and_a_uniform_map():
    covered = torch.tensor([1.0, 1, 0, 0, 0, 0, 0, 0], dtype=torch.float64)
    perfect = torch.tensor([5.0, 4, 1, 1, 1, 0, 0, 0])
    assert measures.auroc(perfect, covered) == 1
    assert measures.average_precision(perfect, covered) == 1
    assert measures.auroc(-perfect, covered) == 0
    uniform = torch.ones(8)
    assert measures.auroc(uniform, covered) == 0.5
    for measure in (measures.average_precision, measures.inside, measures.pointing):
        assert measure(uniform, covered) == pytest.approx(0.25)
    assert measures.entropy(uniform) == pytest.approx(1)
    assert measures.effective_patches(uniform) == pytest.approx(8)
    single = torch.eye(16)[5]
    assert (measures.entropy(single), measures.effective_patches(single), measures.top(single)) == (0, 1, 1)


def test_measures_match_values_by_hand():
    scores = torch.tensor([[3.0, 1, 0, 0], [-3, 1, 0, 0]])
    covered = torch.tensor([0.5, 1, 0, 0], dtype=torch.float64)
    # of 3 + 1 the first lies half inside; of a signed map only the positive part counts
    torch.testing.assert_close(
        measures.inside(scores, covered), torch.tensor([2.5 / 4, 1], dtype=torch.float64)
    )
    # the strongest patch is half covered; in the signed map the subtracted patch is not the strongest
    assert measures.pointing(scores, covered).tolist() == [0.5, 1]
    # measures of spread use magnitudes
    nats = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    assert measures.entropy(scores).tolist() == pytest.approx([nats / np.log(4)] * 2)
    assert measures.effective_patches(scores).tolist() == pytest.approx([np.exp(nats)] * 2)
    assert measures.class_token_share(scores).tolist() == pytest.approx([0.75] * 2)
    tied = torch.tensor([1.0, 0.5, 0], dtype=torch.float64)
    assert measures.pointing(torch.tensor([2.0, 2, 1]), tied) == pytest.approx(0.75)
    # both strong patches lie half or more on the object
    assert measures.background(scores, covered).tolist() == [0, 0]
    assert measures.background(scores, 1 - covered).tolist() == pytest.approx([0.25] * 2)
    # the ten strongest patches count, or all if there are fewer
    assert measures.top(torch.arange(40)) == pytest.approx(345 / 780)
    assert measures.top(torch.ones(4)) == pytest.approx(1)
    coverage = torch.zeros(40, dtype=torch.float64)
    coverage[:35] = 1
    assert measures.background(torch.ones(40), coverage) == pytest.approx(5 / 40)


@pytest.mark.parametrize("scale", [0.0, 1e-42])
def test_zero_and_tiny_maps_cause_no_division_by_zero(scale):
    scores, covered = torch.full((9,), scale), torch.linspace(0, 1, 9, dtype=torch.float64)
    assert measures.inside(scores, covered) == pytest.approx(0.5)
    assert measures.entropy(scores) == pytest.approx(1)
    # a map that is negative everywhere has no positive part and counts as uniform
    assert measures.inside(-torch.ones(9), covered) == pytest.approx(0.5)
