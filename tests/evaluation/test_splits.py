from dataclasses import replace

import pytest
import torch
from class_sets import write_class_set

from diffclip.data.evaluation_sets import open_set
from diffclip.errors import InputError
from diffclip.evaluation.splits import stratified_split, train_split, validation_split


@pytest.fixture
def folder(tmp_path):
    return write_class_set(tmp_path / "set", {"train": [0, 1], "test": [1, 0], "validation": [0]}, 2)


def test_the_splits_beside(folder):
    test = open_set(folder, "test")
    assert (train_split(test, "x").split, len(train_split(test, "x"))) == ("train", 2)
    assert validation_split(test).split == "validation"
    assert validation_split(open_set(folder, "validation")) is None
    write_class_set(folder, {"val": [0, 1, 1]}, 2)
    assert len(validation_split(test)) == 3


def test_no_train_split(folder, tmp_path):
    with pytest.raises(InputError, match="few-shot learns from the split train: give another"):
        train_split(open_set(folder, "train"), "few-shot")
    lone = write_class_set(tmp_path / "lone", {"test": [0, 1]}, 2)
    with pytest.raises(
        InputError, match=r"lone has no train split, which few-shot learns from: put .*/lone/train"
    ):
        train_split(open_set(lone, "test"), "few-shot")
    assert validation_split(open_set(lone, "test")) is None
    data = replace(open_set(lone, "test"), folder=None)
    with pytest.raises(InputError, match=r"lone has no train split, which few-shot learns from$"):
        train_split(data, "few-shot")


def test_a_fifth_of_each_class_is_held_out():
    labels = torch.tensor([0] * 20 + [1] * 2 + [2] + [3] * 7 + [0] * 5)
    learnt, held = stratified_split(labels, seed=0)
    assert sorted([*learnt.tolist(), *held.tolist()]) == list(range(35))
    assert torch.bincount(labels[held], minlength=4).tolist() == [5, 1, 0, 1]
    assert torch.bincount(labels[learnt]).tolist() == [20, 1, 1, 6]
    assert torch.equal(held, stratified_split(labels, seed=0)[1])
    assert not torch.equal(held, stratified_split(labels, seed=1)[1])
    with pytest.raises(InputError, match="no class has two pictures"):
        stratified_split(torch.tensor([0, 1, 2]), seed=0)
