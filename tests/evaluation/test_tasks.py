import pytest

from diffclip.config import OPENAI_MEAN, OPENAI_STD, CLIPConfig
from diffclip.data.evaluation_set import EvaluationSet
from diffclip.errors import InputError
from diffclip.evaluation.tasks import TASKS, describe_images, pick_task


def a_set(kind: str) -> EvaluationSet:
    return EvaluationSet("mine", "test", kind, [], [], source=None, indices=[])


def test_every_task_can_be_picked_for_its_kind():
    for name, task in TASKS.items():
        assert pick_task(name, a_set(task.kind)) == name


def test_a_set_has_a_task_of_its_own():
    assert pick_task(None, a_set("classification")) == "zero-shot"
    assert pick_task(None, a_set("retrieval")) == "retrieval"


def test_the_wrong_task_names_the_right_one():
    with pytest.raises(InputError, match="unknown task 'retreival': did you mean 'retrieval'"):
        pick_task("retreival", a_set("retrieval"))
    with pytest.raises(InputError, match="unknown task 'fewshot': did you mean 'few-shot'"):
        pick_task("fewshot", a_set("classification"))
    with pytest.raises(InputError, match=r"which few-shot cannot use: try --task retrieval"):
        pick_task("few-shot", a_set("retrieval"))
    with pytest.raises(InputError, match=r"mine is a set for retrieval.*--task retrieval"):
        pick_task("zero-shot", a_set("retrieval"))


def test_the_protocol_says_how_images_are_prepared():
    config = CLIPConfig()
    assert describe_images(config) == "shorter edge 224 px bilinear, center crop 224 px, imagenet statistics"
    config.preprocess.mean, config.preprocess.std = OPENAI_MEAN, OPENAI_STD
    config.preprocess.interpolation, config.preprocess.resize = "bicubic", 256
    assert describe_images(config) == "shorter edge 256 px bicubic, center crop 224 px, openai statistics"
    config.preprocess.mean = (0.5, 0.5, 0.5)
    assert describe_images(config).endswith("own statistics")
