import pytest

from diffclip.data.shifts import base_of, images_of


@pytest.mark.parametrize(
    ("dataset", "base", "images"),
    [
        ("imagenet-a", "imagenet1k", "imagenet-a"),
        ("imagenetv2", "imagenet1k", "imagenetv2"),
        ("scenes-shapes-sketch", "scenes-shapes", "scenes-shapes"),
        ("scenes-colours", None, "scenes-shapes"),
        ("cifar10", None, "cifar10"),
    ],
)
def test_base_and_images_of_a_set(dataset, base, images):
    assert (base_of(dataset), images_of(dataset)) == (base, images)
