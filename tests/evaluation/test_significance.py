import math

import numpy as np
import pytest

from diffclip.errors import InputError
from diffclip.evaluation import sign_flips
from diffclip.evaluation.significance import (
    SeedSummary,
    compare_counts,
    detectable_difference,
    holm,
    mcnemar,
    over_seeds,
    paired_by_seed,
    paired_test,
    student_p,
    student_quantile,
)


def test_mcnemar_is_the_binomial():
    for b, c in [(0, 0), (1, 0), (6, 0), (5, 2), (4, 4), (30, 17), (2, 40)]:
        n = b + c
        tail = sum(math.comb(n, k) for k in range(min(b, c) + 1)) / 2**n
        assert mcnemar(b, c) == pytest.approx(min(1, 2 * tail), rel=1e-12)
        assert mcnemar(b, c) == mcnemar(c, b)
    stats = pytest.importorskip("scipy.stats")
    for b, c in [(29, 23), (12, 3), (1300, 1200), (9000, 8700)]:
        assert mcnemar(b, c) == pytest.approx(stats.binomtest(b, b + c).pvalue, rel=1e-9)


def test_hits_without_clusters_use_mcnemar():
    first = np.array([1, 1, 1, 1, 1, 1, 0, 0, 1, 0.0])
    second = np.array([0, 0, 0, 0, 0, 0, 0, 1, 1, 0.0])
    result = paired_test(first, second)
    assert (result.test, result.count, result.informative) == ("exact McNemar", 10, 7)
    assert result.difference == pytest.approx(0.5)
    assert result.p == mcnemar(6, 1) == 0.125
    assert paired_test(second, first).p == result.p
    assert paired_test(second, first).difference == -result.difference
    assert paired_test(first, first).p == 1


def test_one_item_a_cluster_is_mcnemar_but_for_chance():
    generator = np.random.default_rng(0)
    first, second = (generator.random(400) < 0.55).astype(float), (generator.random(400) < 0.46).astype(float)
    exact = paired_test(first, second).p
    flips = paired_test(first, second, np.arange(400))
    assert flips.test == "sign flips"
    assert flips.p == pytest.approx(exact, abs=4 * math.sqrt(exact / sign_flips.FLIPS))


def test_few_clusters_are_tried_out():
    first, second = np.repeat([1.0, 0], [10, 2]), np.zeros(12)
    result = paired_test(first, second, np.arange(12) // 2)
    assert (result.count, result.informative) == (6, 5)
    assert result.p == 2 / 2**5
    assert paired_test(second, second, np.arange(12) // 2).p == 1


def test_flips_agree_with_scipy():
    stats = pytest.importorskip("scipy.stats")
    generator = np.random.default_rng(1)
    for size in (8, 40):
        first = generator.normal(0.4, 1, size)
        wanted = stats.permutation_test(
            (first, np.zeros(size)),
            lambda a, b: np.mean(a - b),
            permutation_type="samples",
            n_resamples=9999,
            rng=np.random.default_rng(2),
        ).pvalue
        assert paired_test(first, np.zeros(size)).p == pytest.approx(wanted, abs=1e-9 if size == 8 else 0.02)


def test_captions_of_one_picture_are_no_five_items():
    generator = np.random.default_rng(0)
    better = generator.random(60) < 0.62
    first, second = np.repeat(better.astype(float), 5), np.repeat((~better).astype(float), 5)
    clustered = paired_test(first, second, np.repeat(np.arange(60), 5))
    assert clustered.p == pytest.approx(mcnemar(int(better.sum()), int((~better).sum())), abs=0.02)
    assert paired_test(first, second).p < clustered.p / 10


def test_p_is_never_0_and_depends_on_the_seed_alone():
    ones = np.linspace(0.5, 1, 200)
    assert paired_test(ones, np.zeros(200)).p == 1 / (sign_flips.FLIPS + 1)
    noise = np.random.default_rng(0).normal(0.1, 1, 100)
    assert paired_test(noise, noise * 0, seed=3) == paired_test(noise, noise * 0, seed=3)
    assert paired_test(noise, noise * 0, seed=3).p != paired_test(noise, noise * 0, seed=4).p


def test_blocks_of_flips_do_not_change_the_result(monkeypatch):
    noise = np.random.default_rng(0).normal(0.1, 1, 100)
    whole = paired_test(noise, noise * 0)
    monkeypatch.setattr(sign_flips, "_FLIPS_AT_ONCE", 7000)
    assert paired_test(noise, noise * 0) == whole


def test_without_a_difference_5_in_100_tests_find_one():
    generator = np.random.default_rng(0)
    ps = []
    for seed in range(400):
        hits = generator.random((2, 40, 5)) < generator.random((40, 1))  # some pictures are harder
        first, second = hits.astype(float).reshape(2, 200)
        ps.append(paired_test(first, second, np.arange(200) // 5, seed).p)
    assert 8 <= sum(p <= 0.05 for p in ps) <= 34
    assert 0.4 < np.mean(ps) < 0.62


def test_the_papers_mmvp_gap():
    gap = compare_counts(29, 105, 23, 105)
    assert gap.difference == pytest.approx(6 / 105)
    assert gap.p == pytest.approx(0.4243, abs=1e-4)
    assert (gap.low, gap.high) == pytest.approx((-0.0596, 0.1721), abs=1e-4)
    assert gap.paired_p == (mcnemar(6, 0), mcnemar(29, 23)) == pytest.approx((0.03125, 0.4885), abs=1e-4)


def test_counts_agree_with_scipy():
    stats = pytest.importorskip("scipy.stats")
    for a, n, b, m in [(29, 105, 23, 105), (0, 5, 5, 5), (7, 9, 2, 30), (3, 3, 4, 4), (610, 1000, 540, 900)]:
        wanted = stats.fisher_exact([[a, n - a], [b, m - b]]).pvalue
        assert compare_counts(a, n, b, m).p == pytest.approx(wanted, rel=1e-9)
    assert compare_counts(1, 2, 1, 3).paired_p is None


def test_seeds():
    summary = over_seeds([0.71, 0.74, 0.69])
    assert summary.mean == pytest.approx(0.71333, abs=1e-5)
    assert summary.sd == pytest.approx(0.025166, abs=1e-6)
    assert summary.high - summary.mean == pytest.approx(4.3027 * 0.025166 / math.sqrt(3), abs=1e-5)
    assert over_seeds([0.5]) == SeedSummary(1, 0.5, None, None, None)


def test_student():
    stats = pytest.importorskip("scipy.stats")
    for freedom in (1, 2, 3, 4, 9, 30, 200):
        assert student_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)
        for t in (0.0, 0.3, 2.5, 12.0):
            assert student_p(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), abs=1e-13)
            assert student_p(-t, freedom) == student_p(t, freedom)
    assert 0 < student_p(1e12, 2) < 1e-12


def test_differences_are_paired_by_seed():
    stats = pytest.importorskip("scipy.stats")
    plain = {0: 0.50, 1: 0.60, 2: 0.70, 3: 0.55}
    better = {3: 0.58, 2: 0.71, 1: 0.63, 0: 0.52}
    test = paired_by_seed(better, plain)
    wanted = stats.ttest_rel([better[s] for s in plain], list(plain.values()))
    assert test.p == pytest.approx(wanted.pvalue, rel=1e-9)
    assert test.difference.mean == pytest.approx(0.0225)
    assert test.difference.low == pytest.approx(wanted.confidence_interval().low)
    assert test.detectable == detectable_difference(test.difference.sd, 4)


def test_detectable_difference_has_the_power():
    stats = pytest.importorskip("scipy.stats")
    for n in (2, 3, 5, 30):
        shift = detectable_difference(2.0, n) / 2 * math.sqrt(n)
        critical = stats.t.ppf(0.975, n - 1)
        assert stats.nct.sf(critical, n - 1, shift) == pytest.approx(0.8, abs=2e-4)  # but for the far tail
        simulated = (stats.norm.rvs(shift, size=(20000, 1), random_state=n))[:, 0]
        ratio = simulated / np.sqrt(stats.chi2.rvs(n - 1, size=20000, random_state=n + 1) / (n - 1))
        assert (abs(ratio) > critical).mean() == pytest.approx(0.8, abs=0.012)


def test_equal_differences_have_no_t():
    for first in ({0: 0.3, 1: 0.4, 2: 0.5}, {0: 0.2, 1: 0.3, 2: 0.4}):
        test = paired_by_seed(first, {0: 0.2, 1: 0.3, 2: 0.4})
        assert (test.p, test.detectable) == (None, None)
    single = paired_by_seed({7: 0.5}, {7: 0.4})
    assert (single.p, single.detectable, single.difference.sd) == (None, None, None)


def test_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.001, 0.9]) == pytest.approx([1, 0.003, 1])
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


@pytest.mark.parametrize("bad", [[], [1.0, float("nan")], [[1.0]]])
def test_bad_outcomes(bad):
    for call in (lambda: paired_test(bad, bad), lambda: over_seeds(bad)):
        with pytest.raises(InputError, match="row of finite numbers"):
            call()


def test_bad_pairs():
    with pytest.raises(InputError, match="1 and 2 items cannot be paired"):
        paired_test([1.0], [1.0, 0.0])
    with pytest.raises(InputError, match="1 clusters for 2"):
        paired_test([1.0, 0.0], [1.0, 0.0], [1])
    with pytest.raises(InputError, match="has seed 1, 2: compare"):
        paired_by_seed({0: 1.0, 1: 2.0}, {0: 1.0, 2: 2.0})
    with pytest.raises(InputError, match="finite"):
        paired_by_seed({}, {})
    with pytest.raises(InputError, match="finite"):
        paired_by_seed({0: math.inf}, {0: 1.0})
    for counts in [(1, 0, 1, 2), (3, 2, 1, 2), (1, 2, -1, 2)]:
        with pytest.raises(InputError, match="is no count"):
            compare_counts(*counts)
    with pytest.raises(InputError, match="p = nan"):
        holm([0.1, math.nan])
