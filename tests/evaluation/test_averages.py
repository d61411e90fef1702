import math

import pytest

from diffclip.evaluation.averages import (
    DROP,
    MEAN_OF_ALL,
    MEAN_OF_SHIFTS,
    OUT_OF_DOMAIN,
    SIX_TASKS,
    averages_of,
    with_averages,
)
from diffclip.evaluation.protocol import draw_of, drawn, method_of, with_particulars
from diffclip.evaluation.records import Record


def record(task, dataset, metric, value, draw=None, method="as they do", half=0.1, **changes):
    """A number with an interval of `half` on both sides."""
    protocol = f"{task}; {method}"
    made = Record(
        model="CLIP",
        weights="clip.pt",
        task=task,
        dataset=dataset,
        split="test",
        metric=metric,
        value=value,
        count=100,
        low=value - half,
        high=value + half,
        seed=0,
        protocol=protocol if draw is None else with_particulars(protocol, drawn(draw)),
    )
    return made.model_copy(update=changes)


def found(records, panel):
    return [one.record for one in averages_of(records) if one.record.dataset == panel]


def shift(name, value, **changes):
    return record("zero-shot", name, "acc1", value, **changes)


def test_a_panel_is_the_mean_over_its_sets_with_their_intervals_combined():
    sets = [shift("cifar10", 0.6, half=0.03), shift("dtd", 0.2, half=0.04)]
    (mean,) = found(sets, "zero-shot")
    assert mean.value == pytest.approx(0.4)
    assert mean.low == pytest.approx(0.4 - 0.05 / 2)
    assert mean.high == pytest.approx(0.4 + 0.05 / 2)
    assert (mean.task, mean.metric, mean.count, mean.seed) == (SIX_TASKS, "average", 200, 0)
    assert mean.protocol.startswith("mean of acc1 on cifar10 (test), dtd (test); zero-shot")


def test_a_set_without_an_interval_leaves_the_mean_without_one():
    (mean,) = found([shift("cifar10", 0.6), shift("dtd", 0.2, low=None, high=None)], "zero-shot")
    assert (mean.value, mean.low, mean.high) == (pytest.approx(0.4), None, None)


def test_each_task_goes_to_its_panel_by_its_headline_metric():
    records = [
        record("linear-probe", "cifar10", "acc1", 0.8),
        record("linear-probe", "cifar10", "mean_per_class_recall", 0.1),
        record("linear-probe", "pets", "acc1", 0.1),
        record("linear-probe", "pets", "mean_per_class_recall", 0.6),
        record("few-shot", "cifar10", "acc1", 0.9),
        record("retrieval", "flickr30k", "image_retrieval_recall@5", 0.5),
        record("retrieval", "flickr30k", "image_retrieval_recall@1", 0.1),
        record("retrieval", "flickr30k", "text_retrieval_recall@5", 0.4),
        shift("cifar10", 0.3),
        shift("imagenet1k", 0.25),
        shift("imagenet-a", 0.1),
        shift("imagenetv2", 0.2),
    ]
    panels = {
        one.record.dataset: one.record.value for one in averages_of(records) if one.record.task == SIX_TASKS
    }
    assert panels == {
        "linear probing": pytest.approx(0.7),
        "few-shot": 0.9,
        "image retrieval": 0.5,
        "text retrieval": 0.4,
        "zero-shot": 0.25,  # ImageNet alone where it is there, as in the paper
        "out of domain": pytest.approx(0.15),
    }


def test_the_shifts_of_a_base_have_two_means_and_a_drop_that_may_be_negative():
    records = [
        shift("imagenet1k", 0.3, half=0.03),
        shift("imagenet-a", 0.1, half=0.02),
        shift("imagenetv2", 0.2),
    ]
    own = {one.record.metric: one for one in averages_of(records) if one.record.task == OUT_OF_DOMAIN}
    assert {metric: one.record.value for metric, one in own.items()} == {
        MEAN_OF_SHIFTS: pytest.approx(0.15),
        MEAN_OF_ALL: pytest.approx(0.2),
        DROP: pytest.approx(0.15),
    }
    half = math.hypot(0.03, math.hypot(0.02, 0.1) / 2)
    assert own[DROP].record.low == pytest.approx(0.15 - half)
    assert {part.record.dataset: part.weight for part in own[DROP].parts} == {
        "imagenet1k": 1,
        "imagenet-a": -0.5,
        "imagenetv2": -0.5,
    }
    better_when_shifted = [shift("imagenet1k", 0.1), shift("imagenet-r", 0.3)]
    drop = [one.record for one in averages_of(better_when_shifted) if one.record.metric == DROP]
    assert drop[0].value == pytest.approx(-0.2)


def test_corrupted_copies_show_the_same_pictures_so_their_intervals_add_up():
    records = [
        shift("cifar10", 0.9),
        shift("cifar10+noise:1", 0.8, half=0.03),
        shift("cifar10+blur:1", 0.6, half=0.04),
    ]
    (mean,) = found(records, "out of domain")
    assert mean.high == pytest.approx(0.7 + 0.07 / 2)


def test_real_shifts_are_the_panel_and_corrupted_ones_a_measure_of_their_own():
    records = [shift("imagenet1k", 0.3), shift("imagenet1k+noise:1", 0.2), shift("imagenet-a", 0.1)]
    assert [one.value for one in found(records, "out of domain")] == [0.1]
    means = [one.record for one in averages_of(records) if one.record.metric == MEAN_OF_SHIFTS]
    assert [one.value for one in means] == [0.1, 0.2]
    assert means[0].protocol != means[1].protocol


def test_a_shift_without_its_base_has_no_average():
    assert averages_of([shift("imagenet-a", 0.1)]) == []


def test_every_draw_has_its_average_and_a_set_without_draws_is_part_of_each():
    probes = [record("linear-probe", "cifar10", "acc1", 0.6 + 0.1 * draw, draw) for draw in range(3)]
    probes.append(record("linear-probe", "dtd", "acc1", 0.4))
    means = found(probes, "linear probing")
    assert [draw_of(one.protocol) for one in means] == [0, 1, 2]
    assert [one.value for one in means] == [pytest.approx(v) for v in (0.5, 0.55, 0.6)]
    assert len({method_of(one.protocol) for one in means}) == 1


def test_a_draw_that_a_set_lacks_has_no_average():
    shots = [record("few-shot", "cifar10", "acc1", 0.6, draw) for draw in (0, 1)]
    shots.append(record("few-shot", "dtd", "acc1", 0.4, 0))
    assert [(draw_of(one.protocol), one.value) for one in found(shots, "few-shot")] == [(0, 0.5)]


def test_the_order_of_the_records_does_not_matter_and_other_sets_or_methods_make_another_measure():
    sets = [shift("cifar10", 0.6), shift("dtd", 0.2)]

    def protocol(records):
        return found(records, "zero-shot")[0].protocol

    assert protocol(sets) == protocol(sets[::-1])
    assert protocol(sets) != protocol(sets[:1])
    assert protocol(sets) != protocol([sets[0], shift("dtd", 0.2, method="otherwise")])


def test_a_set_counts_once_the_last_time_and_by_the_first_protocol_of_probes():
    twice = [shift("cifar10", 0.1), shift("cifar10", 0.6), shift("dtd", 0.2)]
    assert found(twice, "zero-shot")[0].value == pytest.approx(0.4)
    probes = [
        record("linear-probe", "cifar10", "acc1", 0.7),
        record("linear-probe", "cifar10", "acc1", 0.9, method="scikit-learn's LogisticRegression"),
    ]
    assert [one.value for one in found(probes, "linear probing")] == [0.7]
    assert [one.value for one in found(probes[1:], "linear probing")] == [0.9]


def test_averages_replace_those_that_were_there_and_are_one_a_model_and_seed():
    own = [
        shift("cifar10", 0.6),
        shift("cifar10", 0.2, seed=1),
        shift("cifar10", 0.1, weights="other.pt"),
    ]
    once = with_averages(own)
    assert [(one.seed, one.weights, one.value) for one in once if one.task == SIX_TASKS] == [
        (0, "clip.pt", 0.6),
        (1, "clip.pt", 0.2),
        (0, "other.pt", 0.1),
    ]
    assert with_averages(once) == once


def test_a_number_that_is_missing_is_not_averaged():
    missing = shift("cifar10", 0.5).model_copy(update={"value": None, "low": None, "high": None})
    assert [one.value for one in found([missing, shift("dtd", 0.2)], "zero-shot")] == [0.2]
    assert averages_of([missing]) == []


def test_sets_of_the_same_pictures_are_not_independent_samples():
    # by shape and by colour the scenes are the same pictures
    scenes = [shift("scenes-shapes", 0.6, half=0.03), shift("scenes-colours", 0.2, half=0.04)]
    (mean,) = found(scenes, "zero-shot")
    assert mean.high == pytest.approx(0.4 + 0.07 / 2)
    styled = [
        shift("scenes-shapes", 0.6, half=0.04),
        shift("scenes-shapes-noisy", 0.4, half=0.02),
        shift("scenes-shapes-sketch", 0.2, half=0.02),
    ]
    of_shifts, of_all, drop = found(styled, "scenes-shapes")
    assert of_shifts.high == pytest.approx(0.3 + 0.04 / 2)
    assert of_all.high == pytest.approx(0.4 + 0.08 / 3)
    assert drop.value == pytest.approx(0.3)
    assert drop.high == pytest.approx(0.3 + 0.04 + 0.02)
