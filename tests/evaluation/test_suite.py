from diffclip.data.evaluation_sets import BUILT_IN
from diffclip.evaluation.corruptions import CORRUPTIONS
from diffclip.evaluation.suite import SUITES, suite
from diffclip.evaluation.tasks import TASKS


def test_every_entry_names_a_task_and_a_corruption_that_exist():
    for entries in SUITES.values():
        assert len(set(entries)) == len(entries)
        for entry in entries:
            assert entry.task in TASKS
            assert entry.corruption in {None, *CORRUPTIONS}


def test_scenes_are_all_built_in():
    assert {entry.dataset for entry in suite("scenes")} == set(BUILT_IN)
    assert str(suite("scenes")[-1]) == "focus on scenes"


def test_the_papers_suite_has_its_tables():
    by_task = {}
    for entry in suite("paper"):
        by_task.setdefault(entry.task, set()).add(entry.dataset)
    assert len(by_task["linear-probe"]) == len(by_task["few-shot"]) == 9
    assert by_task["retrieval"] == {"flickr8k", "flickr30k", "mscoco_captions"}
    shifts = {"imagenet1k", "imagenetv2", "imagenet-a", "imagenet-r", "imagenet_sketch"}
    assert by_task["zero-shot"] == by_task["linear-probe"] | shifts


def test_an_entry_in_words():
    noisy = next(entry for entry in suite("quick") if entry.corruption)
    assert str(noisy) == "zero-shot on cifar10, noise 3"
