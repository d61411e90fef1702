"""Each number against a direct computation by scipy, and the committed study against an independent recomputation."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

import diffclip
from diffclip.evaluation import statistics

STUDY = Path(__file__).parents[2] / "benchmarks" / "results" / "study_cpu"


def arms(**values: list[float]) -> pd.DataFrame:
    rows = [(model, seed, value) for model, scores in values.items() for seed, value in enumerate(scores)]
    return pd.DataFrame(rows, columns=["model", "seed", "value"])


@pytest.fixture(scope="module")
def committed() -> pd.DataFrame:
    records = diffclip.load_records(STUDY)
    return records[(records.task == "validation") & (records.metric == "score")]


def test_pooled_difference_of_the_committed_study(committed: pd.DataFrame) -> None:
    row = statistics.compare_arms(committed, [("DiffCLIP", "CLIP")], primary=("DiffCLIP", "CLIP")).iloc[0]
    assert 100 * row.difference == pytest.approx(0.00, abs=0.005)
    assert 100 * (row.high - row.low) / 2 == pytest.approx(0.58, abs=0.005)
    assert row.verdict == "equivalent"


def test_arms_below_diffclip_in_the_committed_study(committed: pd.DataFrame) -> None:
    pairs = [(model, "DiffCLIP") for model in committed.model.unique() if model != "DiffCLIP"]
    assert len(pairs) == 15
    table = statistics.compare_arms(committed, pairs).set_index("model")
    known = {"no-norm": 0.0001, "lambda0.5": 0.030, "no-factor": 0.030, "lambda0.2": 0.036, "dynamic": 0.043}
    worse = table[table.verdict == "worse"]
    assert set(worse.index) == {f"DiffCLIP-{arm}" for arm in known}
    for arm, p in known.items():
        assert table.p_holm[f"DiffCLIP-{arm}"] <= p + 0.0005
        assert table.p_holm[f"DiffCLIP-{arm}"] > p - 0.0005 or arm == "no-norm"


def test_comparison_of_two_arms_equals_scipys_paired_t_test() -> None:
    a, b = [0.31, 0.35, 0.30, 0.36], [0.29, 0.30, 0.31, 0.32]
    row = statistics.compare_arms(arms(a=a, b=b), [("a", "b")], primary=("a", "b")).iloc[0]
    direct = stats.ttest_rel(a, b)
    low, high = direct.confidence_interval()
    assert row.p == pytest.approx(direct.pvalue)
    assert row.p_paired == pytest.approx(direct.pvalue)
    assert (row.low, row.high) == pytest.approx((low, high))
    upper, lower = (
        stats.ttest_rel(np.add(a, shift), b, alternative=side).pvalue
        for shift, side in ((0.01, "greater"), (-0.01, "less"))
    )
    assert row.p_equivalent == pytest.approx(max(upper, lower))


def test_detectable_difference_has_80_percent_power() -> None:
    error, df = 0.004, 18.0
    difference = statistics.detectable_difference(error, df)
    assert statistics.power(difference, error, df) == pytest.approx(0.8, abs=1e-6)
    generator = np.random.default_rng(0)
    errors = error * np.sqrt(generator.chisquare(df, 20_000) / df)
    t = generator.normal(difference, error, 20_000) / errors
    assert np.mean(np.abs(t) > stats.t.ppf(0.975, df)) == pytest.approx(0.8, abs=0.02)


def test_max_t_of_two_arms_is_the_sign_flip_test() -> None:
    a, b = [0.3, 0.5, 0.2, 0.6, 0.9], [0.1, 0.2, 0.3, 0.4, 0.5]
    p_max_t = statistics.compare_arms(arms(a=a, b=b), [("a", "b")]).iloc[0].p_max_t
    direct = stats.permutation_test((np.subtract(a, b),), np.sum, permutation_type="samples").pvalue
    assert p_max_t == pytest.approx(direct, abs=0.02)


def test_one_run_or_equal_values_give_no_significant_verdict() -> None:
    row = statistics.compare_arms(arms(a=[0.9], b=[0.1]), [("a", "b")]).iloc[0]
    assert row.verdict == "one run"
    assert row.difference == pytest.approx(0.8)
    assert np.isnan([row.p, row.p_holm, row.low, row.detectable]).all()
    equal = statistics.compare_arms(arms(a=[0.5, 0.6], b=[0.5, 0.6]), [("a", "b")]).iloc[0]
    assert equal.verdict == "undecided"


def test_without_degrees_of_freedom_nothing_is_tested() -> None:
    values = arms(a=[0.1, 0.15], b=[0.2])
    assert np.isnan(statistics.residual_sd(values)[0])
    assert np.isnan(statistics.compare_arms(values, [("b", "a")]).iloc[0].p)


def test_the_primary_contrast_is_not_corrected() -> None:
    values = arms(a=[0.31, 0.35, 0.30, 0.36], b=[0.29, 0.30, 0.31, 0.32], c=[0.3, 0.31, 0.3, 0.33])
    pairs = [("a", "b"), ("c", "b"), ("a", "c")]
    table = statistics.compare_arms(values, pairs, primary=("a", "b"))
    assert table.p_holm[0] == table.p[0]
    assert list(table.p_holm[1:]) == pytest.approx(list(multipletests(table.p[1:], method="holm")[1]))


def test_above_chance_combines_the_variance_of_items_and_seeds() -> None:
    items_only = statistics.above_chance([0.26], 0.25, [0.24], [0.28])
    assert items_only == pytest.approx(stats.norm.sf(0.01 / (0.04 / 2 / stats.norm.ppf(0.975))))
    # three seeds far apart are weaker evidence than their items alone
    spread = statistics.above_chance([0.26, 0.36, 0.31], 0.25, [0.30] * 3, [0.32] * 3)
    alike = statistics.above_chance([0.31, 0.31, 0.31], 0.25, [0.30] * 3, [0.32] * 3)
    assert alike < 1e-6 < 0.01 < spread


def test_item_test_is_mcnemar_or_sign_flips() -> None:
    generator = np.random.default_rng(0)
    a, b = ((generator.random(400) < share).astype(float) for share in (0.5, 0.4))
    only_a, only_b = int(((a == 1) & (b == 0)).sum()), int(((a == 0) & (b == 1)).sum())
    result = statistics.compare_two_trained_weights(a, b)
    assert result.p == pytest.approx(stats.binomtest(only_a, only_a + only_b).pvalue)
    assert result.low < result.difference < result.high
    clusters = np.arange(400) // 40
    sums = (a - b).reshape(10, 40).sum(1)
    direct = stats.permutation_test((sums,), np.sum, permutation_type="samples").pvalue
    assert statistics.compare_two_trained_weights(a, b, clusters).p == pytest.approx(direct, abs=0.01)


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
