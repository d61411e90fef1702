import pytest

from diffclip.data.shifts import base_of, corrupted_name, shift_name


@pytest.mark.parametrize(
    ("dataset", "base", "name"),
    [
        ("imagenetv2", "imagenet1k", "V2"),
        ("imagenet-a", "imagenet1k", "A"),
        ("imagenet-r", "imagenet1k", "R"),
        ("imagenet_sketch", "imagenet1k", "Sketch"),
        ("scenes-shapes-sketch", "scenes-shapes", "sketch"),
        ("scenes-shapes-noisy", "scenes-shapes", "noisy"),
        ("cifar10+noise:3", "cifar10", "noise 3"),
    ],
)
def test_a_shift_has_a_base_and_a_name_beside_it(dataset, base, name):
    assert (base_of(dataset), shift_name(dataset)) == (base, name)


def test_a_corrupted_set_is_a_shift_of_what_was_corrupted():
    assert base_of(corrupted_name("imagenet-a", "blur", 5)) == "imagenet-a"
    assert shift_name(corrupted_name("imagenet-a", "blur", 5)) == "blur 5"


@pytest.mark.parametrize("dataset", ["imagenet1k", "scenes-shapes", "scenes", "mmvp", "imagenet"])
def test_other_sets_are_no_shift(dataset):
    assert base_of(dataset) is None
    with pytest.raises(KeyError):
        shift_name(dataset)
