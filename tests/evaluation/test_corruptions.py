import numpy as np
import pytest
import torch
from PIL import Image

from diffclip.config import PreprocessConfig
from diffclip.evaluation.corruptions import CorruptedTransform, corrupt, parameter
from diffclip.preprocess import EvalTransform, normalize
from diffclip.scenes import draw_scene

SEVERITIES = range(1, 6)


def scene(size: int = 64, index: int = 1) -> Image.Image:
    return Image.fromarray(draw_scene(index, size=size).image)


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image, dtype=np.float64)


@pytest.mark.parametrize(
    ("name", "cifar", "imagenet"),
    [
        ("noise", (0.04, 0.06, 0.08, 0.09, 0.10), (0.08, 0.12, 0.18, 0.26, 0.38)),
        ("blur", (0.4, 0.6, 0.7, 0.8, 1.0), (1, 2, 3, 4, 6)),
        ("jpeg", (80, 65, 58, 50, 40), (25, 18, 15, 10, 7)),
        ("contrast", (0.75, 0.5, 0.4, 0.3, 0.15), (0.4, 0.3, 0.2, 0.1, 0.05)),
    ],
)
def test_published_sizes_have_published_parameters(name, cifar, imagenet):
    for size, values in ((32, cifar), (224, imagenet)):
        assert [parameter(name, k, size) for k in SEVERITIES] == pytest.approx(values)
    for k in SEVERITIES:
        assert parameter(name, k, 16) == parameter(name, k, 32)
        assert parameter(name, k, 1000) == parameter(name, k, 299)
        bounds = sorted([parameter(name, k, 64), parameter(name, k, 224)])
        assert bounds[0] <= parameter(name, k, 100) <= bounds[1]


def test_noise_has_its_deviation_and_one_pattern_for_all_severities():
    gray = Image.new("RGB", (224, 224), (128, 128, 128))
    noises = {k: pixels(corrupt(gray, "noise", k)) - 128 for k in (1, 2)}
    assert noises[1].std() == pytest.approx(255 * 0.08, rel=0.01)
    assert noises[1].mean() == pytest.approx(0, abs=0.3)
    assert np.corrcoef(noises[1].ravel(), noises[2].ravel())[0, 1] > 0.99
    assert abs(np.corrcoef(noises[1][..., 0].ravel(), noises[1][..., 1].ravel())[0, 1]) < 0.02


def test_blur_and_contrast_keep_the_mean_color():
    image = scene(224)
    for name in ("blur", "contrast"):
        change = pixels(corrupt(image, name, 5)).mean((0, 1)) - pixels(image).mean((0, 1))
        assert np.abs(change).max() < 1.0
    ratio = pixels(corrupt(image, "contrast", 3)).std((0, 1)) / pixels(image).std((0, 1))
    assert ratio == pytest.approx([0.2] * 3, abs=0.01)


def test_corruption_applies_to_the_crop_at_the_input_size():
    config = PreprocessConfig(resize=60, interpolation="bicubic", mean=(0.5, 0.4, 0.3))
    preprocess = EvalTransform(48, config)
    photo = scene(100).resize((130, 100))
    crop = Image.fromarray(preprocess.pixels(photo).permute(1, 2, 0).numpy())
    assert crop.size == (48, 48)
    image = torch.from_numpy(np.array(corrupt(crop, "blur", 2))).permute(2, 0, 1)
    result = CorruptedTransform(preprocess, "blur", 2)(photo)
    assert torch.equal(result, normalize(image[None], config)[0])
