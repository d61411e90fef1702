import math

import pytest

from diffclip.evaluation.averages import (
    MEAN_OF_SHIFTS,
    OUT_OF_DOMAIN,
    SIX_TASKS,
    with_averages,
)
from diffclip.evaluation.records import Record


def record(task, dataset, metric, value, half=0.1, **changes):
    """A record whose interval extends by `half` on both sides of its value."""
    fields = {"model": "CLIP", "weights": "clip.pt", "split": "test", "count": 100, "seed": 0, "protocol": ""}
    fields |= {"low": value - half, "high": value + half} | changes
    return Record(task=task, dataset=dataset, metric=metric, value=value, **fields)


def shift(name, value, **changes):
    return record("zero-shot", name, "acc1", value, **changes)


def averages(records, task, dataset=None):
    return [mean for mean in with_averages(records) if mean.task == task and dataset in (None, mean.dataset)]


def test_a_panel_is_the_mean_over_its_sets_with_their_intervals_combined():
    sets = [shift("cifar10", 0.6, half=0.03, chance=0.1), shift("dtd", 0.2, half=0.04, chance=0.02)]
    (mean,) = averages(sets, SIX_TASKS)
    assert (mean.dataset, mean.metric, mean.count, mean.seed) == ("zero-shot", "average", 200, 0)
    assert mean.of == ("cifar10", "dtd")
    assert mean.value == pytest.approx(0.4)
    assert (mean.low, mean.high) == (pytest.approx(0.375), pytest.approx(0.425))
    assert mean.chance == pytest.approx(0.06)


def test_each_task_enters_its_panel_with_its_headline_metric():
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
        shift("imagenet1k", 0.25, templates=80),
        shift("imagenet1k", 0.2, templates=7),
        shift("imagenet-a", 0.1),
        shift("imagenetv2", 0.2),
    ]
    assert {mean.dataset: mean.value for mean in averages(records, SIX_TASKS)} == {
        "linear probing": pytest.approx(0.7),
        "few-shot": 0.9,
        "image retrieval": 0.5,
        "text retrieval": 0.4,
        "zero-shot": 0.25,  # ImageNet alone if it was measured, as in the paper
        "out of domain": pytest.approx(0.15),
    }


def test_shifts_of_a_base_have_a_mean():
    records = [shift("imagenet1k", 0.3), shift("imagenet-a", 0.1, half=0.02), shift("imagenetv2", 0.2)]
    (mean,) = averages(records, OUT_OF_DOMAIN)
    assert (mean.metric, mean.value) == (MEAN_OF_SHIFTS, pytest.approx(0.15))
    assert mean.high == pytest.approx(0.15 + math.hypot(0.02, 0.1) / 2)


def test_a_set_counts_once_with_its_test_split_and_most_templates():
    splits = [
        record("retrieval", "flickr8k", f"{k}_retrieval_recall@5", v, split=s)
        for k in ("image", "text")
        for s, v in (("test", 0.4), ("val", 0.8))
    ]
    assert [mean.value for mean in averages(splits, SIX_TASKS)] == [0.4, 0.4]
    set_names = [averages([split], SIX_TASKS)[0].of for split in splits[:2]]
    assert set_names == [("flickr8k",), ("flickr8k, val",)]
    few, many = (shift("imagenet1k", 0.01 * n, templates=n) for n in (7, 80))
    (mean,) = averages([many, few], SIX_TASKS)
    assert (mean.value, mean.templates) == (0.8, 80)


def test_only_draws_that_all_sets_have_are_averaged():
    records = [record("few-shot", "cifar10", "acc1", 0.5 + draw / 10, draw=draw) for draw in (0, 1)]
    records += [record("few-shot", "dtd", "acc1", 0.3, draw=1)]
    (mean,) = averages(records, SIX_TASKS, "few-shot")
    assert mean.draw == 1
    assert mean.value == pytest.approx(0.45)
    # the split is chosen once for all draws
    records += [record("few-shot", "dtd", "acc1", 0.1, draw=draw, split="val") for draw in (0, 1, 2)]
    assert averages(records, SIX_TASKS, "few-shot") == [mean]


@pytest.mark.parametrize("prefix", ["scenes-", ""])
def test_scenes_by_shape_and_by_color_count_as_the_same_images(prefix):
    records = [shift(f"{prefix}{name}", 0.5) for name in ("colours", "shapes", "shapes-sketch")]
    (mean,) = averages(records, SIX_TASKS, "zero-shot")
    assert mean.of == (f"{prefix}colours", f"{prefix}shapes")
    assert mean.high - mean.value == pytest.approx(0.1)
    assert {mean.dataset for mean in averages(records, OUT_OF_DOMAIN)} == {f"{prefix}shapes"}


def test_averages_are_recomputed_and_separate_for_each_model():
    records = [shift("cifar10", 0.5), shift("cifar10", 0.7, model="DiffCLIP")]
    once = with_averages(records)
    assert with_averages(once) == once
    assert {row.model: row.value for row in once if row.task == SIX_TASKS} == {"CLIP": 0.5, "DiffCLIP": 0.7}
