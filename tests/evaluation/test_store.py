import numpy as np
import pytest

from diffclip.data.samples import Fault
from diffclip.errors import InputError
from diffclip.evaluation.scores import Result, Score
from diffclip.evaluation.store import Finished, Store

HITS = np.array([1.0, 0.0, 1.0])
SCORES = [
    Score("acc1", 2 / 3, 3, 0.1, 0.9, 0.5, HITS, np.array([0, 0, 1])),
    Score("mean_per_class_recall", 0.75, 3, 0.2, 1.0, 0.5),
]
FINISHED = Finished(
    Result("zero-shot", "set", "test", "how | cost 3", SCORES), [Fault("s1", "is broken")], 1.5
)


def test_a_finished_task_comes_back_whole(tmp_path):
    store = Store(tmp_path / "parts")
    store.keep("stamp", FINISHED)
    found = store.find("stamp")
    assert found is not None
    assert (found.faults, found.seconds) == (FINISHED.faults, 1.5)
    first, second = found.result.scores
    assert found.result.protocol == "how | cost 3"
    assert (first.metric, first.value, first.low, first.high, first.chance) == ("acc1", 2 / 3, 0.1, 0.9, 0.5)
    assert first.hits.tolist() == HITS.tolist()
    assert first.clusters.tolist() == [0, 0, 1]
    assert second.hits is None


def test_another_stamp_finds_nothing(tmp_path):
    store = Store(tmp_path)
    store.keep("stamp", FINISHED)
    assert store.find("other stamp") is None


def test_a_damaged_file_counts_as_none(tmp_path):
    store = Store(tmp_path)
    store.keep("stamp", FINISHED)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-40])
    assert store.find("stamp") is None
    file.write_bytes(b"")
    assert store.find("stamp") is None


def test_a_file_of_another_stamp_under_the_same_name_is_not_taken(tmp_path):
    store = Store(tmp_path)
    store.keep("stamp", FINISHED)
    (file,) = tmp_path.iterdir()
    store.keep("other", FINISHED)
    (other,) = set(tmp_path.iterdir()) - {file}
    file.rename(other)
    assert store.find("other") is None


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="in the way"):
        Store(tmp_path / "file").keep("stamp", FINISHED)
