import numpy as np
import pytest

from diffclip.errors import InputError
from diffclip.evaluation.focus_names import bounds
from diffclip.evaluation.intervals import (
    class_mean_interval,
    difference_interval,
    mean_interval,
    mean_intervals,
    wilson,
)
from diffclip.evaluation.scores import Score


def coins(n: int, share: float, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).random(n) < share).astype(float)


def test_the_interval_holds_the_value_and_has_the_width_of_theory():
    values = coins(2000, 0.3)
    low, high = mean_interval(values)
    mean = values.mean()
    error = (mean * (1 - mean) / 2000) ** 0.5
    assert low == pytest.approx(mean - 1.96 * error, abs=0.3 * error)
    assert high == pytest.approx(mean + 1.96 * error, abs=0.3 * error)


def test_it_covers_the_truth_about_95_times_in_100():
    covered = 0
    for seed in range(200):
        low, high = mean_interval(coins(300, 0.4, seed))
        covered += low <= 0.4 <= high
    assert 180 <= covered <= 199


def test_seeds():
    values = coins(100, 0.5)
    assert mean_interval(values, seed=1) == mean_interval(values, seed=1)
    assert mean_interval(values, seed=1) != mean_interval(values, seed=2)


def test_clusters_widen_the_interval():
    per_picture = coins(200, 0.5)
    values, clusters = np.repeat(per_picture, 5), np.repeat(np.arange(200), 5)
    low, high = mean_interval(values, clusters)
    assert (low, high) == pytest.approx(mean_interval(per_picture), abs=1e-12)
    narrow_low, narrow_high = mean_interval(values)
    assert high - low > 1.8 * (narrow_high - narrow_low)


def test_clusters_of_different_sizes_are_weighed_by_their_items():
    values, clusters = np.array([1.0, 1, 1, 1, 0]), np.array([7, 7, 7, 7, 2])
    low, high = mean_interval(values, clusters)
    assert (low, high) == (0, 1)
    many = np.tile(values, 100), np.arange(500) // 5 * 2 + np.tile([0, 0, 0, 0, 1], 100)
    low, high = mean_interval(*many)
    assert low < 0.8 < high
    assert high - low < 0.15


@pytest.mark.parametrize("n", [1, 2, 10, 1000])
def test_equal_outcomes_use_wilson(n):
    low, high = mean_interval(np.ones(n))
    assert high == 1
    assert low == pytest.approx(n / (n + 1.96**2), rel=1e-4)
    assert mean_interval(np.zeros(n)) == pytest.approx((0, 1 - low))


def test_one_picture_with_mixed_captions_is_not_certain():
    low, high = mean_interval([1, 0], [4, 4])
    assert low < 0.2 < 0.5 < 0.8 < high
    assert mean_interval([3.0, 3.0]) == (3.0, 3.0)


@pytest.mark.parametrize("value", [-1.0, -0.5, 0.0, 1.0])
def test_equal_signed_numbers_leave_a_margin_to_both_sides(value):
    margin = 1.96**2 / (100 + 1.96**2)
    low, high = mean_interval(np.full(100, value), bounds=(-1, 1))
    assert (low, high) == pytest.approx((max(-1, value - margin), min(1, value + margin)), rel=1e-3)
    first = np.full(100, value)
    low, high = difference_interval(first, -first, bounds=(-1, 1))
    assert (low, high) == pytest.approx((max(-2, 2 * value - margin), min(2, 2 * value + margin)), rel=1e-3)


def test_equal_numbers_without_bounds_stay_as_they_are():
    for value in (0.5, 5.0):
        assert mean_interval(np.full(50, value), bounds=None) == (value, value)
    low, high = difference_interval(np.full(50, 5.0), np.full(50, 2.0), bounds=None)
    assert low <= 3 <= high
    # where values differ, bounds do not matter
    values = coins(100, 0.5)
    assert mean_interval(values, bounds=None) == mean_interval(values)


def test_models_are_compared_within_what_a_metric_lies_between():
    wanted = {
        "acc1": (0, 1),
        "relevance_inside/layer 2": (0, 1),
        "A1_minus_A2_entropy/layer 1 head 2": (-1, 1),
        "A1_A2_correlation": (-1, 1),
        "A2_inside_over_area": None,
        "rollout_effective_patches": None,
    }
    assert {metric: bounds(metric) for metric in wanted} == wanted
    one, other = (
        Score("A1_effective_patches", value, 50, value, value, 64.0, np.full(50, value))
        for value in (5.0, 2.0)
    )
    assert one.gain_over(other) == (3.0, 3.0)
    signed = Score("A1_minus_A2_inside", 1.0, 50, 1.0, 1.0, 0.0, np.ones(50))
    opposite = Score("A1_minus_A2_inside", -1.0, 50, -1.0, -1.0, 0.0, -np.ones(50))
    low, high = signed.gain_over(opposite)
    assert 1.9 < low < high == 2


def test_columns_have_bounds_of_their_own():
    found = mean_intervals(np.zeros((100, 3)), bounds=[(0, 1), (-1, 1), None])
    high = 1.96**2 / (100 + 1.96**2)
    assert found == pytest.approx(np.array([[0, high], [-high, high], [0, 0]]), rel=1e-3)


def test_wilson_matches_the_textbook():
    assert wilson(29, 105) == pytest.approx((0.1997, 0.3683), abs=1e-3)  # 29 of 105 pairs
    assert wilson(0, 10)[0] == 0
    assert wilson(10, 10)[1] == 1


def test_paired_difference_sees_what_two_intervals_do_not():
    generator = np.random.default_rng(0)
    hard = generator.random(1000)
    first = (hard < 0.50).astype(float)
    second = (hard < 0.47).astype(float)  # right wherever it is, but for the 3 % in between
    low, high = difference_interval(first, second)
    assert low > 0
    assert low < first.mean() - second.mean() < high
    assert mean_interval(first)[0] < mean_interval(second)[1]
    assert difference_interval(second, first) == pytest.approx((-high, -low), abs=1e-12)


def test_models_that_agree_everywhere_leave_a_margin():
    values = coins(100, 0.5)
    low, high = difference_interval(values, values)
    assert low == -high
    assert high == pytest.approx(1.96**2 / (100 + 1.96**2), rel=1e-3)
    low, high = difference_interval(np.ones(5), np.zeros(5))
    assert 0 < low < high == 1


def test_class_mean_of_even_classes_is_the_mean():
    right, labels = coins(1000, 0.6), np.arange(1000) % 10
    low, high = class_mean_interval(right, labels)
    plain_low, plain_high = mean_interval(right)
    assert low < right.mean() < high
    assert high - low == pytest.approx(plain_high - plain_low, rel=0.15)


def test_class_mean_of_a_rare_class_is_unsure():
    labels = np.repeat([0, 1], [990, 10])
    right = np.concatenate([coins(990, 0.9), coins(10, 0.5)])
    low, high = class_mean_interval(right, labels)
    value = (right[:990].mean() + right[990:].mean()) / 2
    assert low < value < high
    assert high - low > 5 * np.subtract(*mean_interval(right)[::-1])


def test_class_mean_when_all_is_right_counts_the_classes_evenly():
    even = class_mean_interval(np.ones(100), np.arange(100) % 10)
    assert even == pytest.approx(mean_interval(np.ones(100)))
    uneven = class_mean_interval(np.ones(100), np.repeat([0, 1], [99, 1]))
    assert uneven[0] < even[0]
    assert class_mean_interval([0.0], [3]) == pytest.approx(wilson(0, 1))


def test_blocks_of_draws_do_not_change_the_result(monkeypatch):
    from diffclip.evaluation import intervals

    values, labels = coins(50, 0.5), np.arange(50) % 5
    whole = mean_interval(values), class_mean_interval(values, labels)
    monkeypatch.setattr(intervals, "_DRAWS_AT_ONCE", 1000)
    assert (mean_interval(values), class_mean_interval(values, labels)) == whole


@pytest.mark.parametrize("clusters", [None, np.arange(60) // 3, np.arange(60) ** 2 // 300])
def test_columns_at_once_are_columns_one_by_one(clusters, monkeypatch):
    from diffclip.evaluation import intervals

    table = np.random.default_rng(0).random((60, 5))
    table[:, 3], table[:, 4] = 1.0, -2.5
    monkeypatch.setattr(intervals, "_DRAWS_AT_ONCE", 7000)
    found = mean_intervals(table, clusters)
    for column, interval in zip(table.T, found, strict=True):
        assert interval == pytest.approx(mean_interval(column, clusters))


@pytest.mark.parametrize("bad", [[1.0], [[]], [[float("inf")]]])
def test_bad_tables(bad):
    with pytest.raises(InputError, match="finite numbers"):
        mean_intervals(bad)


@pytest.mark.parametrize("bad", [[], [1.0, float("nan")], [[1.0]]])
def test_bad_values(bad):
    with pytest.raises(InputError, match="finite numbers"):
        mean_interval(bad)


def test_other_lengths():
    with pytest.raises(InputError, match="paired"):
        difference_interval([1.0], [1.0, 0.0])
    with pytest.raises(InputError, match="1 clusters for 2"):
        mean_interval([1.0, 0.0], [1])
