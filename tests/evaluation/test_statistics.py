"""Each number against a direct computation by scipy."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from diffclip.evaluation import statistics


def test_detectable_difference_has_80_percent_power() -> None:
    sd, runs = 0.02, 6
    generator = np.random.default_rng(0)
    for paired, comparisons in ((True, 1), (False, 1), (False, 10)):
        df = runs - 1 if paired else 2 * (runs - 1)
        difference = statistics.detectable(sd, runs, df, comparisons)
        values = generator.normal([[difference], [0]], sd, (4000, 2, runs))
        test = stats.ttest_rel if paired else stats.ttest_ind
        found = test(values[:, 0], values[:, 1], axis=1).pvalue < 0.05 / comparisons
        assert np.mean(found) == pytest.approx(0.8, abs=0.025)


def test_spread_of_runs_is_within_arms_and_averages_draws() -> None:
    rows = [("a", 0, 0.3), ("a", 0, 0.5), ("a", 1, 0.44), ("b", 0, 0.9), ("b", 1, 0.94), ("c", 0, 0.1)]
    sd, df = statistics.run_sd(pd.DataFrame(rows, columns=["model", "seed", "value"]))
    assert (sd, df) == (pytest.approx(np.std([0.4, 0.44], ddof=1)), 2)
    chosen = [("d@1e-3", 0, 0.1), ("d@1e-3", 1, 0.2), ("d", 0, 0.1), ("d", 1, 0.2)]
    assert statistics.run_sd(pd.DataFrame(chosen, columns=["model", "seed", "value"]))[1] == 1
    assert statistics.run_sd(pd.DataFrame(rows[5:], columns=["model", "seed", "value"]))[1] == 0


def test_holm_leaves_missing_tests_out() -> None:
    p = pd.Series([0.01, np.nan, 0.04, 0.03])
    assert statistics.holm(p).tolist() == pytest.approx([0.03, np.nan, 0.06, 0.06], nan_ok=True)


def test_above_chance_combines_the_variance_of_items_and_seeds() -> None:
    items_only = statistics.above_chance([0.26], 0.25, [0.24], [0.28])
    assert items_only == pytest.approx(stats.norm.sf(0.01 / (0.04 / 2 / stats.norm.ppf(0.975))))
    # three seeds far apart are weaker evidence than their items alone
    spread = statistics.above_chance([0.26, 0.36, 0.31], 0.25, [0.30] * 3, [0.32] * 3)
    alike = statistics.above_chance([0.31, 0.31, 0.31], 0.25, [0.30] * 3, [0.32] * 3)
    assert alike < 1e-6 < 0.01 < spread


def test_mean_interval_agrees_with_scipys_bootstrap() -> None:
    values = np.random.default_rng(1).random(200)
    direct = stats.bootstrap((values,), np.mean, method="percentile", rng=0).confidence_interval
    assert statistics.mean_interval(values) == pytest.approx((direct.low, direct.high), abs=0.004)
    # items of a cluster that always agree count once
    assert statistics.mean_interval(np.repeat(values, 5), np.arange(1000) // 5) == pytest.approx(
        statistics.mean_interval(values), abs=0.004
    )


def test_intervals_without_spread_are_wilsons_and_classes_weigh_equally() -> None:
    assert statistics.mean_interval(np.ones(20)) == pytest.approx(statistics.wilson(20, 20))
    # outcomes that are equal but for the rounding of float32, as another processor gives them
    rounded = np.ones(20) - 2.0**-24 * (np.arange(20) % 2)
    assert statistics.mean_interval(rounded) == pytest.approx(statistics.wilson(20, 20), abs=1e-6)
    labels = np.arange(20) % 4
    assert statistics.class_mean_interval(np.zeros(20), labels) == pytest.approx(statistics.wilson(0, 20))
    # a model that always prefers the same answer is right once in each pair of images
    low, high = statistics.mean_interval(np.tile([1.0, 0.0], 50), np.arange(100) // 2)
    assert low < 0.5 < high
    assert high - low < 0.2
    hits, labels = np.array([1.0] * 90 + [0.0, 1.0] * 5), np.array([0] * 90 + [1] * 10)
    low, high = statistics.class_mean_interval(hits, labels)
    assert low < 0.75 < high
    assert high - low > 0.2  # as wide as ten items make it
