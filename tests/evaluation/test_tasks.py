from dataclasses import replace

import pytest
from class_sets import write_class_set
from subjects import setting, subject

from diffclip.config import OPENAI_MEAN, OPENAI_STD, PreprocessConfig
from diffclip.data.evaluation_sets import open_set
from diffclip.data.transforms import EvalTransform
from diffclip.errors import InputError
from diffclip.evaluation.corruptions import CORRUPTIONS, CorruptedTransform
from diffclip.evaluation.run import TASKS, describe_images, run_task
from diffclip.evaluation.suite import SUITES


def test_the_protocol_says_how_images_are_prepared():
    plain = EvalTransform(224, PreprocessConfig())
    assert describe_images(plain) == "shorter edge 224 px bilinear, center crop 224 px, imagenet statistics"
    fields = {"mean": OPENAI_MEAN, "std": OPENAI_STD, "interpolation": "bicubic", "resize": 256}
    openai = EvalTransform(224, PreprocessConfig(**fields))
    assert describe_images(openai) == "shorter edge 256 px bicubic, center crop 224 px, openai statistics"
    own = EvalTransform(224, PreprocessConfig(**fields | {"mean": (0.5, 0.5, 0.5)}))
    assert describe_images(own).endswith("own statistics")
    noisy = CorruptedTransform(plain, "noise", 3)
    assert describe_images(noisy).endswith("imagenet statistics, noise 3 of 5")


def test_every_entry_of_a_suite_names_a_task_and_a_corruption_that_exist():
    for entries in SUITES.values():
        assert len(set(entries)) == len(entries)
        for entry in entries:
            assert entry.task in TASKS
            assert entry.corruption in {None, *CORRUPTIONS}


def test_the_papers_suite_has_its_tables():
    by_task = {}
    for entry in SUITES["paper"]:
        by_task.setdefault(entry.task, set()).add(entry.dataset)
    assert len(by_task["linear-probe"]) == len(by_task["few-shot"]) == 9
    assert by_task["retrieval"] == {"flickr8k", "flickr30k", "mscoco_captions"}
    shifts = {"imagenet1k", "imagenetv2", "imagenet-a", "imagenet-r", "imagenet_sketch"}
    assert by_task["zero-shot"] == by_task["linear-probe"] | shifts


@pytest.mark.parametrize(("task", "other"), [("few-shot", "train"), ("linear-probe", "val")])
def test_splits_of_other_classes_are_refused(tmp_path, task, other):
    labels = [0, 1] * 6
    data = open_set(
        write_class_set(tmp_path / "set", dict.fromkeys(("train", "val", "test"), labels), 2), "test"
    )

    def beside(split):
        found = data.beside(split)
        return replace(found, classnames=data.classnames[::-1]) if split == other else found

    with pytest.raises(
        InputError, match=f"set: {other} and test have different classes: use shards or files"
    ):
        run_task(task, setting(subject(), replace(data, beside=beside)))
