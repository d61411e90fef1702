import math
import statistics

import numpy as np
import pytest
from run_folders import SIZE, make_run, records

from diffclip.report.compare import compare, measure_of
from diffclip.report.metrics import chance_of, headline_measures, metric_name, percentage, recall_chance
from diffclip.report.runs import read_run
from diffclip.report.series import collect
from diffclip.report.tables import result_tables, to_html, to_markdown
from diffclip.report.verdict import judge


def runs_of(folder, levels, seeds, **options):
    """Runs of each model in `levels` for each seed."""
    return [
        read_run(make_run(folder / f"{model}-s{seed}", model, seed, level=level, **options))
        for model, level in levels.items()
        for seed in range(seeds)
    ]


def record(variant, metric, value, seed=0, **changes):
    made = records(variant, seed, 0.5, f"{variant}.pt", np.random.default_rng(0))[0]
    return made.model_copy(update={"metric": metric, "value": value, **changes})


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


def test_two_runs_of_one_kind_are_told_apart_by_name(tmp_path):
    runs = [read_run(make_run(tmp_path / name, "CLIP")) for name in ("slow", "fast")]
    assert {series.label for series in collect(runs, []).series} == {"CLIP · slow", "CLIP · fast"}


def test_records_of_a_file_join_the_run_in_whose_folder_their_weights_lie(tmp_path):
    run = read_run(make_run(tmp_path / "clip-s0", "CLIP", seed=4, evaluated=False))
    loose = records("CLIP", None, 0.3, "elsewhere/clip-s0/checkpoints/best", np.random.default_rng(0))
    collection = collect([run], [*loose, *loose])
    assert len(collection.series) == 1
    assert [result.seed for result in collection.results] == [4, 4, 4]


def test_one_seed_has_the_interval_of_two_independent_proportions():
    ours = record("DiffCLIP", "acc1", 0.6, low=0.5, high=0.7)
    theirs = record("CLIP", "acc1", 0.5, low=0.41, high=0.59)
    (one,) = compare(collect([], [theirs, ours]))
    assert one.difference.mean == pytest.approx(0.1)
    assert one.difference.low == pytest.approx(0.1 - math.hypot(0.1, 0.09))
    assert one.difference.high == pytest.approx(0.1 + math.hypot(0.1, 0.09))
    assert one.outcome == "unclear"


def test_three_seeds_are_paired_with_a_t_interval():
    values = {"CLIP": [0.30, 0.40, 0.50], "DiffCLIP": [0.35, 0.46, 0.54]}
    found = [record(model, "acc1", v, seed) for model, own in values.items() for seed, v in enumerate(own)]
    (one,) = compare(collect([], found))
    half = 4.303 * statistics.stdev([0.05, 0.06, 0.04]) / math.sqrt(3)
    assert one.difference.mean == pytest.approx(0.05)
    assert one.difference.low == pytest.approx(0.05 - half)
    assert one.difference.high == pytest.approx(0.05 + half)
    assert one.outcome == "higher"


def test_two_seeds_never_tell():
    found = [
        record(model, "acc1", v, seed) for model, v in (("CLIP", 0.1), ("DiffCLIP", 0.9)) for seed in (0, 1)
    ]
    collection = collect([], found)
    (one,) = compare(collection)
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


def test_headlines_say_which_model_is_better_at_what(tmp_path):
    verdict = judge(collect(runs_of(tmp_path, {"CLIP": 0.2, "DiffCLIP": 0.6}, 1), []))
    assert verdict is not None
    assert verdict.headline == (
        "In one training run each on scenes (test), DiffCLIP is better than CLIP at top-1 accuracy, "
        "text→image R@5 and image→text R@5."
    )
    assert "only more seeds can tell" in verdict.caveat


def test_several_models_get_a_line_each(tmp_path):
    levels = {"CLIP": 0.5, "DiffCLIP": 0.5, "DiffCLIP-vision": 0.1}
    verdict = judge(collect(runs_of(tmp_path, levels, 3), []))
    assert verdict is not None
    assert verdict.headline == "Over 3 training seeds on scenes (test):"
    assert verdict.lines[0].startswith("DiffCLIP and CLIP cannot be told apart at ")
    assert verdict.lines[1].startswith("DiffCLIP-vision is worse than CLIP at ")
    assert "not corrected" in verdict.caveat


def test_tables_have_values_means_differences_and_chance(tmp_path):
    collection = collect(runs_of(tmp_path, {"CLIP": 0.2, "DiffCLIP": 0.6}, 3), [])
    zero_shot, retrieval = result_tables(collection)
    assert zero_shot.title == "Zero-shot on scenes, test split"
    assert [row.kind for row in zero_shot.rows] == [
        *["seed"] * 3,
        "mean",
        *["seed"] * 3,
        "mean",
        "difference",
        "chance",
    ]
    assert zero_shot.rows[-1].cells == ["chance", "10 %"]
    assert retrieval.columns[1:] == [
        "text→image R@5 (n\u00a0=\u00a01,000)",
        "image→text R@5 (n\u00a0=\u00a0200)",
    ]
    assert retrieval.rows[-1].cells == ["chance", "2.5 %", "2.5 %"]
    assert [row.kind for row in result_tables(collection, every_seed=False)[0].rows] == [
        *["mean"] * 2,
        "difference",
        "chance",
    ]
    first = collection.results[0].record
    assert zero_shot.rows[0].cells == [
        "CLIP, seed 0",
        f"{100 * first.value:.1f} % [{100 * first.low:.1f}, {100 * first.high:.1f}]",
    ]
    assert f"Init: matched. Architecture of all models: {SIZE}." in " ".join(zero_shot.notes)
    markdown = to_markdown(zero_shot)
    assert markdown.count("\n| ") == len(zero_shot.rows) + 2
    assert "| **DiffCLIP, mean of 3 seeds** |" in markdown
    assert 'class="difference"' in to_html(zero_shot)


def test_missing_values_are_dashes():
    found = [record("CLIP", "acc1", 0.5), record("CLIP", "acc5", None, low=None, high=None)]
    (table,) = result_tables(collect([], found))
    assert table.rows[0].cells[2] == "–"
    assert percentage(None) == "–"


def test_names_and_chance_of_metrics():
    assert metric_name("image_retrieval_recall@10") == "text→image R@10"
    assert metric_name("robust_accuracy") == "robust accuracy"
    assert recall_chance("image_retrieval_recall@5", 1000, 5000) == pytest.approx(0.005)
    assert recall_chance("text_retrieval_recall@5", 1000, 5000) == pytest.approx(0.005, rel=0.01)
    assert recall_chance("acc1", 10, 10) is None
    collection = collect([], [record("CLIP", "acc1", 0.5, protocol="no number of them")])
    assert chance_of(measure_of(collection.results[0]), collection.results) is None


def test_headline_measures_fall_back_to_a_tasks_first():
    collection = collect([], [record("CLIP", "pointing", 0.5), record("CLIP", "coverage", 0.5)])
    measures = [measure_of(result) for result in collection.results]
    assert headline_measures(measures) == measures[:1]
