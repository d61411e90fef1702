import math
import statistics
from pathlib import Path

import numpy as np
import pytest
from made_results import measured, record, runs_of, with_items
from run_folders import SIZE, make_run, records

from diffclip.evaluation.averages import SIX_TASKS
from diffclip.evaluation.outcomes import ItemOutcomes, key_of
from diffclip.report.compare import Comparison, Estimate, by_series, compare, corrected, estimate, measure_of
from diffclip.report.metrics import (
    chance_of,
    dataset_name,
    headline_measures,
    measure_name,
    metric_name,
    p_text,
    percentage,
    place_of,
    recall_chance,
)
from diffclip.report.origin import origin_table
from diffclip.report.runs import Run, read_run
from diffclip.report.series import collect
from diffclip.report.tables import result_tables, to_markdown
from diffclip.report.verdict import judge


def test_series_are_in_the_order_of_the_variants_with_short_labels(tmp_path):
    collection = collect(runs_of(tmp_path, {"DiffCLIP": 0.5, "CLIP": 0.4}, 2), [])
    assert [series.label for series in collection.series] == ["CLIP", "DiffCLIP"]
    assert collection.architecture == SIZE
    assert [(series.label, run.seed) for series, run in collection.runs] == [
        ("CLIP", 0),
        ("CLIP", 1),
        ("DiffCLIP", 0),
        ("DiffCLIP", 1),
    ]


def test_an_unusual_init_is_in_the_label_and_compared_with_the_one_clip(tmp_path):
    runs = runs_of(tmp_path / "m", {"CLIP": 0.4, "DiffCLIP": 0.5}, 1)
    runs += runs_of(tmp_path / "p", {"DiffCLIP": 0.45}, 1, init="published")
    collection = collect(runs, [])
    assert [series.label for series in collection.series] == ["CLIP", "DiffCLIP", "DiffCLIP (published init)"]
    assert {one.baseline.label for one in compare(collection)} == {"CLIP"}


def fine_tuned(folder: Path, model: str, seed: int) -> Run:
    recipe = make_run(folder, model, seed) / "recipe.yaml"
    recipe.write_text(recipe.read_text() + "weights: /elsewhere/start/CLIP-s0\n")
    return read_run(folder)


def test_what_was_fine_tuned_is_compared_with_its_twin_and_stands_beside_the_start(tmp_path):
    models = ("CLIP", "DiffCLIP")
    runs = [fine_tuned(tmp_path / f"tuned-{m}-s{s}", m, s) for m in models for s in (0, 1)]
    assert [series.label for series in collect(runs, []).series] == list(models)
    rng = np.random.default_rng(0)
    starts = [one for s in (0, 1) for one in records("CLIP", s, 0.3, f"runs/CLIP-s{s}/checkpoints/best", rng)]
    collection = collect(runs, starts)
    tuned = "CLIP (fine-tuned)", "DiffCLIP (fine-tuned)"
    assert [series.label for series in collection.series] == ["CLIP", *tuned]
    assert {(one.series.label, one.baseline.label) for one in compare(collection)} == {tuned[::-1]}
    assert "Init:" not in "".join(map(to_markdown, result_tables(collection)))
    assert [row.cells[1] for row in origin_table(collection).rows] == ["fine-tuned from start/CLIP-s0"] * 4


def test_two_runs_of_one_kind_are_told_apart_by_name(tmp_path):
    runs = [read_run(make_run(tmp_path / name, "CLIP")) for name in ("slow", "fast")]
    assert {series.label for series in collect(runs, []).series} == {"CLIP · slow", "CLIP · fast"}


def test_records_of_a_file_join_the_run_in_whose_folder_their_weights_lie(tmp_path):
    run = read_run(make_run(tmp_path / "clip-s0", "CLIP", seed=4, evaluated=False))
    loose = records("CLIP", None, 0.3, "elsewhere/clip-s0/checkpoints/best", np.random.default_rng(0))
    collection = collect([run], [*loose, *loose])
    assert len(collection.series) == 1
    # three numbers, and the averages of three tasks that follow from them
    assert [result.seed for result in collection.results] == [4] * 6
    assert collection.datasets == ["scenes"]


def test_one_seed_has_the_interval_of_two_independent_proportions():
    ours = record("DiffCLIP", "acc1", 0.6, low=0.5, high=0.7)
    theirs = record("CLIP", "acc1", 0.5, low=0.41, high=0.59)
    (one,) = measured(collect([], [theirs, ours]))
    assert one.difference.mean == pytest.approx(0.1)
    assert one.difference.low == pytest.approx(0.1 - math.hypot(0.1, 0.09))
    assert one.difference.high == pytest.approx(0.1 + math.hypot(0.1, 0.09))
    # the p of a normal whose 95 % interval is that wide
    z = 1.959964 * 0.1 / math.hypot(0.1, 0.09)
    assert one.p == pytest.approx(2 * (1 - statistics.NormalDist().cdf(z)), rel=1e-5)
    assert (one.basis, one.outcome) == ("intervals", "unclear")


def test_three_seeds_are_paired_with_a_t_interval():
    values = {"CLIP": [0.30, 0.40, 0.50], "DiffCLIP": [0.35, 0.46, 0.54]}
    found = [record(model, "acc1", v, seed) for model, own in values.items() for seed, v in enumerate(own)]
    (one,) = measured(collect([], found))
    half = 4.302653 * statistics.stdev([0.05, 0.06, 0.04]) / math.sqrt(3)
    assert one.difference.mean == pytest.approx(0.05)
    assert one.difference.low == pytest.approx(0.05 - half)
    assert one.difference.high == pytest.approx(0.05 + half)
    # t = 0.05 / (0.01 / √3) = 8.66 with two degrees of freedom: p = 1 − t / √(2 + t²)
    assert one.p == pytest.approx(1 - math.sqrt(75) / math.sqrt(77))
    assert one.difference.sd == pytest.approx(0.01)
    assert one.own.sd == pytest.approx(statistics.stdev(values["DiffCLIP"]))
    assert (one.basis, one.outcome) == ("seeds", "higher")


def test_seeds_whose_differences_are_all_equal_do_not_tell():
    values = {"CLIP": [0.25, 0.5, 0.75], "DiffCLIP": [0.375, 0.625, 0.875]}
    found = [record(model, "acc1", v, seed) for model, own in values.items() for seed, v in enumerate(own)]
    (one,) = measured(collect([], found))
    assert (one.p, one.outcome) == (None, "unclear")


def test_one_seed_with_outcomes_is_tested_on_its_items():
    # six items that only DiffCLIP gets right: McNemar's p is 2 / 2⁶, where the intervals of both would tell nothing
    theirs, first = with_items("CLIP", [1] * 4 + [0] * 16)
    ours, second = with_items("DiffCLIP", [1] * 10 + [0] * 10)
    (one,) = measured(collect([], [theirs, ours], first | second))
    assert (one.basis, one.p, one.outcome) == ("items", pytest.approx(0.03125), "higher")
    assert 0 < one.difference.low < 0.3 < one.difference.high < 0.6
    (blind,) = measured(collect([], [theirs, ours], first))
    assert (blind.basis, blind.outcome) == ("intervals", "unclear")


def test_outcomes_in_clusters_flip_together():
    theirs, first = with_items("CLIP", [0] * 12, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
    ours, second = with_items("DiffCLIP", [1] * 12, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
    (one,) = measured(collect([], [theirs, ours], first | second))
    assert one.p == pytest.approx(2 / 2**3)


def test_outcomes_of_another_measurement_or_of_other_items_are_not_used():
    theirs, first = with_items("CLIP", [1] * 4 + [0] * 16)
    ours, second = with_items("DiffCLIP", [1] * 10 + [0] * 10)
    stale = {key_of(ours): ItemOutcomes(np.ones(20), None)}
    fewer = {key_of(ours): ItemOutcomes(np.array([1.0, 0.0]), None)}
    for other in (stale, fewer):
        (one,) = measured(collect([], [theirs, ours], first | other))
        assert one.basis == "intervals"
    assert second


def test_draws_are_repetitions_and_not_seeds():
    values = {0: 0.6, 1: 0.7, 2: 0.8}
    own = [record("CLIP", "acc1", v, draw=draw, low=v - 0.1, high=v + 0.2) for draw, v in values.items()]
    collection = collect([], own[::-1])
    (seeds,) = by_series(collection.results, measure_of(collection.results[0])).values()
    assert [result.draw for result in seeds[0].results] == [0, 1, 2]
    mean = estimate(seeds)
    assert (mean.n, mean.draws, mean.sd) == (1, 3, pytest.approx(0.1))
    assert (mean.mean, mean.low, mean.high) == (pytest.approx(0.7), pytest.approx(0.6), pytest.approx(0.9))


def test_seeds_with_draws_are_told_by_the_means_of_their_draws():
    own = [
        record("CLIP", "acc1", v, seed, draw)
        for seed, values in enumerate([(0.1, 0.3), (0.4, 0.6)])
        for draw, v in enumerate(values)
    ]
    collection = collect([], own)
    (seeds,) = by_series(collection.results, measure_of(collection.results[0])).values()
    mean = estimate(seeds)
    assert (mean.n, mean.draws, mean.mean) == (2, 2, pytest.approx(0.35))
    assert mean.sd == pytest.approx(statistics.stdev([0.2, 0.5]))
    assert mean.values == {0: pytest.approx(0.2), 1: pytest.approx(0.5)}


def test_only_draws_that_both_have_are_compared():
    clip = [record("CLIP", "acc1", v, draw=draw) for draw, v in ((0, 0.5), (1, 0.9))]
    diff = [record("DiffCLIP", "acc1", v, draw=draw) for draw, v in ((0, 0.6), (2, 0.1))]
    (one,) = measured(collect([], clip + diff))
    assert (one.difference.mean, one.difference.draws) == (pytest.approx(0.1), 1)


def test_draws_on_the_same_items_are_averaged_item_by_item():
    # five items where DiffCLIP is right in one draw more: 2 of 2⁵ sign patterns are as far from 0
    made = [with_items("CLIP", [0] * 8, draw=draw) for draw in (0, 1)]
    made += [
        with_items("DiffCLIP", hits, draw=draw) for draw, hits in enumerate(([1] * 5 + [0] * 3, [0] * 8))
    ]
    outcomes = {key: one for _, own in made for key, one in own.items()}
    (one,) = measured(collect([], [record for record, _ in made], outcomes))
    assert (one.basis, one.p) == ("items", pytest.approx(2 / 2**5))
    assert (one.difference.mean, one.difference.draws) == (pytest.approx(5 / 16), 2)


def test_draws_that_ask_about_other_pictures_count_together_for_a_picture():
    # pictures 0 and 1 in one draw, 1 and 2 in the other: three pictures, 2 of 2³ sign patterns
    made = [
        with_items(model, [hit] * 2, clusters, draw=draw)
        for model, hit in (("CLIP", 0), ("DiffCLIP", 1))
        for draw, clusters in enumerate(([0, 1], [1, 2]))
    ]
    outcomes = {key: one for _, own in made for key, one in own.items()}
    (one,) = measured(collect([], [record for record, _ in made], outcomes))
    assert (one.basis, one.p, one.difference.mean) == ("items", pytest.approx(2 / 2**3), 1)


def _panel(collection, panel="zero-shot"):
    return next(
        one for one in compare(collection) if (one.measure.task, one.measure.dataset) == (SIX_TASKS, panel)
    )


def test_an_average_is_tested_on_the_items_of_all_its_sets():
    # 6 of 10 and 2 of 20 items tell the models apart, all one way: 2 of 2⁸ sign patterns
    sets = {"cifar10": ([0] * 10, [1] * 6 + [0] * 4), "dtd": ([0] * 20, [1] * 2 + [0] * 18)}
    made = [
        with_items(model, hits[side], dataset=name)
        for name, hits in sets.items()
        for side, model in enumerate(("CLIP", "DiffCLIP"))
    ]
    outcomes = {key: one for _, own in made for key, one in own.items()}
    collection = collect([], [record for record, _ in made], outcomes)
    one = _panel(collection)
    assert (one.basis, one.p) == ("items", pytest.approx(2 / 2**8))
    assert one.difference.mean == pytest.approx((0.6 + 0.1) / 2)
    single = [other.difference for other in measured(collection)]
    half = math.hypot(*(other.mean - other.low for other in single)) / 2
    assert one.difference.low == pytest.approx(one.difference.mean - half)
    partly = collect([], [record for record, _ in made], dict(list(outcomes.items())[:2]))
    assert _panel(partly).basis == "intervals"
    assert _panel(partly).difference.low < one.difference.low


def test_corrupted_copies_of_a_picture_flip_together():
    sets = ("cifar10", "cifar10+noise:1", "cifar10+blur:1")
    made = [
        with_items(model, [hit] * 5 + [0] * 5, dataset=name)
        for name in sets
        for model, hit in (("CLIP", 0), ("DiffCLIP", 1))
    ]
    outcomes = {key: one for _, own in made for key, one in own.items()}
    one = _panel(collect([], [record for record, _ in made], outcomes), "out of domain")
    assert one.p == pytest.approx(2 / 2**5)
    # as wide as that of one of the two, which are equal
    alone = measured(collect([], [record for record, _ in made[2:4]], outcomes))[0].difference
    assert (one.difference.low, one.difference.high) == (pytest.approx(alone.low), pytest.approx(alone.high))


def test_p_are_corrected_for_what_is_shown_together():
    (measure,) = {measure_of(one) for one in collect([], [record("CLIP", "acc1", 0.5)]).results[:1]}
    (clip,) = collect([], [record("CLIP", "acc1", 0.5)]).series
    number = Estimate(0.1, 0.0, 0.2, {0: 0.1})
    given = [
        Comparison(measure, clip, clip, number, number, number, "items", p) for p in (0.01, None, 0.04, 0.03)
    ]
    assert [one.outcome for one in given] == ["higher", "unclear", "higher", "higher"]
    shown = corrected(given)
    assert [one.shown_p for one in shown] == [
        pytest.approx(0.03),
        None,
        pytest.approx(0.06),
        pytest.approx(0.06),
    ]
    assert [one.outcome for one in shown] == ["higher", "unclear", "unclear", "unclear"]
    assert [one.tests for one in shown] == [3, 1, 3, 3]


def test_p_are_written_short_and_never_rounded_to_five_percent():
    ps = (0.00099, 0.0012, 0.0496, 0.0501, 0.344, 1.0)
    assert [p_text(p) for p in ps] == ["p < 0.001", "p 0.001", "p 0.049", "p 0.05", "p 0.34", "p 1"]


def test_two_seeds_never_tell():
    found = [
        record(model, "acc1", v, seed) for model, v in (("CLIP", 0.1), ("DiffCLIP", 0.9)) for seed in (0, 1)
    ]
    collection = collect([], found)
    (one,) = measured(collection)
    assert (one.p, one.difference.low, one.difference.high) == (None, pytest.approx(0.8), pytest.approx(0.8))
    assert one.outcome == "unclear"
    verdict = judge(collection)
    assert verdict is not None
    assert "cannot be told apart" in verdict.headline
    assert "too few" in verdict.caveat
    assert "too few" in to_markdown(result_tables(collection)[0])


def test_only_equal_measures_sizes_and_seeds_are_compared():
    clip = record("CLIP", "acc1", 0.5)
    others = [
        record("DiffCLIP", "acc5", 0.6),
        record("DiffCLIP", "acc1", 0.6, protocol="another"),
        record("DiffCLIP", "acc1", 0.6, seed=7),
        record("DiffCLIP", "acc1", 0.6, model="DiffCLIP-ViT-B-16"),
        record("DiffCLIP", "acc1", None, low=None, high=None),
    ]
    assert all(not compare(collect([], [clip, other])) for other in others)
    verdict = judge(collect([], [clip, others[0]]))
    assert verdict is not None
    assert verdict.headline == "There is no pair to compare."


def test_names_and_chance_of_metrics():
    assert metric_name("image_retrieval_recall@10") == "text→image R@10"
    assert metric_name("robust_accuracy") == "robust accuracy"
    assert recall_chance("image_retrieval_recall@5", 1000, 5000) == pytest.approx(0.005)
    assert recall_chance("text_retrieval_recall@5", 1000, 5000) == pytest.approx(0.005, rel=0.01)
    assert recall_chance("acc1", 10, 10) is None
    collection = collect([], [record("CLIP", "acc1", 0.5, protocol="no number of them")])
    assert chance_of(measure_of(collection.results[0]), collection.results) is None


def test_names_of_measures_and_places():
    collection = collect(
        [],
        [
            record("CLIP", "acc1", 0.5, dataset="cifar10+noise:3"),
            record("CLIP", "acc1", 0.5, task="few-shot", dataset="imagenet-a"),
            record("CLIP", "pair_accuracy/Texts", 0.5, task="mmvp", dataset="mmvp"),
        ],
    )
    measures = [measure_of(one) for one in collection.results]
    assert [measure_name(one) for one in measures] == [
        "top-1 accuracy",
        "few-shot top-1 accuracy",
        "right pairs: Texts",
        "few-shot",
    ]
    assert [place_of(one) for one in measures] == [
        "CIFAR-10 noise 3 (test)",
        "ImageNet A (test)",
        "MMVP-VLM (test)",
        "ImageNet A (test)",  # an average over this set alone
    ]
    assert dataset_name("scenes-shapes-sketch") == "scenes-shapes sketch"
    assert percentage(-0.012) == "−1.2 %"


@pytest.mark.parametrize(
    ("task", "metric", "protocol", "chance"),
    [
        ("mmvp", "pair_accuracy", "mmvp; 135 pairs", 0.25),
        ("mmvp", "pair_accuracy/Texts", "mmvp; 135 pairs", 0.25),
        ("mmvp", "mean_per_pattern_accuracy", "mmvp; 135 pairs", 0.25),
        ("mmvp", "statement_accuracy", "mmvp; 135 pairs", 0.5),
        ("few-shot", "acc1", "few-shot; 5 classes an episode of 37, 5 train pictures", 0.2),
        ("linear-probe", "mean_per_class_recall", "linear-probe; 37 classes, features", 1 / 37),
        ("six-tasks", "average", "mean of acc1 on a (test); 10 classes", None),
    ],
)
def test_chance_of_each_task(task, metric, protocol, chance):
    measure = measure_of(collect([], [record("CLIP", "acc1", 0.5)]).results[0])
    found = chance_of(measure._replace(task=task, metric=metric, protocol=protocol), [])
    assert found == (None if chance is None else pytest.approx(chance))


def test_headline_measures_fall_back_to_a_tasks_first():
    collection = collect([], [record("CLIP", "pointing", 0.5), record("CLIP", "coverage", 0.5)])
    measures = [measure_of(result) for result in collection.results]
    assert headline_measures(measures) == measures[:1]


def test_headline_measures_are_the_averages_and_mmvp_where_they_are_fewer():
    sets = [record("CLIP", "acc1", 0.5, dataset=name) for name in ("cifar10", "dtd")]
    pairs = [
        record("CLIP", metric, 0.3, task="mmvp", dataset="mmvp")
        for metric in ("mean_per_pattern_accuracy", "pair_accuracy", "pair_accuracy/Texts")
    ]
    measures = [measure_of(result) for result in collect([], [*sets, *pairs]).results]
    assert [measure_name(one) for one in headline_measures(measures)] == ["zero-shot", "right pairs"]
    one_set = [measure_of(result) for result in collect([], sets[:1]).results]
    assert [place_of(one) for one in headline_measures(one_set)] == ["CIFAR-10 (test)"]
