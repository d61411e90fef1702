"""What the names of models, runs and sets may be without two things becoming one, or a file breaking."""

import pytest
from made_results import record, with_items
from run_folders import make_run

from diffclip.errors import InputError
from diffclip.report.compare import compare
from diffclip.report.course import course_chart
from diffclip.report.save import _shortened, save_results
from diffclip.report.series import collect
from diffclip.report.sheet import stem_of
from diffclip.report.sources import read_sources
from diffclip.report.verdict import judge


def test_weights_whose_paths_end_alike_stay_two_models():
    found = [
        record("CLIP", "acc1", value, weights=f"/{place}/CLIP/checkpoints/best")
        for place, value in (("a", 0.5), ("b", 0.7))
    ]
    found.append(record("DiffCLIP", "acc1", 0.6, weights="/c/DiffCLIP/checkpoints/best"))
    collection = collect([], found)
    labels = [series.label for series in collection.series]
    assert len(labels) == len(set(labels)) == 3
    assert {one.value for one in collection.results if one.series.variant == "CLIP"} == {0.5, 0.7}
    assert compare(collection)


def test_a_runs_name_that_a_folder_around_it_has_too():
    class Run:
        def __init__(self, seed):
            self.seed = seed

    runs = {"clip": Run(7), "diffclip": Run(1)}
    made = record("DiffCLIP", "acc1", 0.5, weights="/data/clip/runs/diffclip/checkpoints/best")
    short = _shortened(made.model_copy(update={"seed": None}), runs)
    assert (short.weights, short.seed) == ("diffclip/checkpoints/best", 1)


def test_the_same_pictures_are_matched_by_number_though_one_set_lacks_some():
    """A corrupted copy without its first picture: the sets' outcomes agree picture by picture, not place by place."""
    ours = [0, 1] * 6
    made = []
    for model, hits in (("CLIP", [0] * 12), ("DiffCLIP", ours)):
        made.append(with_items(model, hits, range(12), dataset="cifar10"))
        made.append(with_items(model, hits[1:], range(1, 12), dataset="cifar10+noise:3"))
    outcomes = {key: one for _, own in made for key, one in own.items()}
    comparisons = compare(collect([], [one for one, _ in made], outcomes))
    both = next(one for one in comparisons if one.measure.metric == "mean_of_all")
    assert both.basis == "items"
    # six pictures speak for the second model, however often they are shown
    assert both.p == 2 / 2**6


def test_a_verdict_over_unequal_numbers_of_seeds_says_so():
    found = [
        record(model, "acc1", value + 0.01 * seed, seed, dataset=name)
        for name, seeds in (("cifar10", 3), ("dtd", 1))
        for model, value in (("CLIP", 0.3), ("DiffCLIP", 0.5))
        for seed in range(seeds)
    ]
    verdict = judge(collect([], found))
    assert verdict.headline.startswith("Over 1 to 3 training seeds")
    assert verdict.caveat.startswith("Not everything has equally many training seeds")


def test_several_draws_of_a_checkpoint_are_one_point():
    found = [
        record(
            "CLIP",
            "acc1",
            0.1 * step + 0.02 * draw,
            draw=draw,
            weights=f"run/checkpoints/step_{step}",
            dataset="dtd",
        )
        for step in (1, 2, 3)
        for draw in (0, 1)
    ]
    (axes,) = course_chart(collect([], found)).panels[0].figure().axes
    line = axes.lines[0]
    assert line.get_xdata().tolist() == [1, 2, 3]
    assert [round(y, 6) for y in line.get_ydata()] == [0.11, 0.21, 0.31]


def test_names_of_sets_are_fit_for_files_and_labels():
    assert stem_of("imagenet-a") == "imagenet_a"
    assert stem_of("a%b/c#") == "a_b_c"
    assert stem_of("%") == "set"


def test_saved_results_of_runs_of_one_name_are_not_mixed(tmp_path):
    saved = []
    for place, level in (("a", 0.3), ("b", 0.6)):
        make_run(tmp_path / place / "CLIP-s0", "CLIP", level=level)
        saved.append(save_results([tmp_path / place / "CLIP-s0"], tmp_path / "saved" / place))
    runs, records = read_sources(saved)
    with pytest.raises(InputError, match="several runs are called as in CLIP-s0/checkpoints/best"):
        collect(runs, records)
    assert collect(*read_sources(saved[:1])).results
    # where they lie side by side their own files tell
    assert len(collect(*read_sources([tmp_path / "a", tmp_path / "b"])).series) == 2
