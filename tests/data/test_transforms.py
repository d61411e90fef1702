import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode

from diffclip.config import OPENAI_MEAN, OPENAI_STD, PreprocessConfig
from diffclip.data.transforms import eval_transform, normalise, train_transform
from diffclip.errors import InputError

OPENAI = PreprocessConfig(mean=OPENAI_MEAN, std=OPENAI_STD, interpolation="bicubic")


def noise(width: int = 90, height: int = 60) -> Image.Image:
    values = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


@pytest.mark.parametrize("preprocess", [PreprocessConfig(), OPENAI, PreprocessConfig(resize=40)])
def test_evaluation_is_torchvisions_resize_crop_and_normalise(preprocess: PreprocessConfig) -> None:
    reference = v1.Compose(
        [
            v1.Resize(preprocess.resize or 32, InterpolationMode(preprocess.interpolation)),
            v1.CenterCrop(32),
            v1.ToTensor(),
            v1.Normalize(preprocess.mean, preprocess.std),
        ]
    )
    for picture in (noise(), noise(60, 90), noise(32, 32), noise(5, 3)):
        image = eval_transform(32, preprocess)(picture)
        assert image.dtype == torch.float32
        assert torch.equal(image, reference(picture))


def test_training_crop_is_torchvisions_and_draws_from_the_global_generator() -> None:
    picture = noise()
    reference = v1.Compose([v1.RandomResizedCrop(32, (0.5, 1.0), antialias=True), v1.PILToTensor()])
    transform = train_transform(32, PreprocessConfig())
    torch.manual_seed(3)
    ours = [transform(picture) for _ in range(4)]
    torch.manual_seed(3)
    theirs = [reference(picture) for _ in range(4)]
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert ours[0].dtype == torch.uint8
    assert ours[0].shape == (3, 32, 32)
    assert not torch.equal(ours[0], ours[1])


def pixels(picture: Image.Image) -> torch.Tensor:
    """As a decoder gives them: the three values of a pixel together."""
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def photograph(width: int, height: int, seed: int) -> Image.Image:
    rng = np.random.default_rng(seed)
    smooth = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize((width, height))
    grain = rng.normal(0, 8, (height, width, 3))
    return Image.fromarray(np.clip(np.asarray(smooth) + grain, 0, 255).astype(np.uint8))


@pytest.mark.parametrize("flip", [0.0, 0.5])
@pytest.mark.parametrize("preprocess", [PreprocessConfig(), OPENAI])
def test_tensors_are_cropped_as_pictures_are(preprocess: PreprocessConfig, flip: float) -> None:
    """The crop, the mirror and what is left of the random state are equal, the values within 2 levels."""
    transform = train_transform(48, preprocess, (0.08, 1.0), flip)
    sizes = [(90, 60), (60, 90), (48, 48), (33, 200), (5, 3), (1, 1), (2, 500)]
    for seed, size in enumerate(sizes * 4):
        picture = photograph(*size, seed)
        torch.manual_seed(seed)
        expected, state = transform(picture), torch.get_rng_state()
        torch.manual_seed(seed)
        image = transform(pixels(picture))
        assert image.dtype == torch.uint8
        assert torch.equal(torch.get_rng_state(), state)
        assert int((image.int() - expected.int()).abs().max()) <= 2


def test_tensors_of_noise_are_the_same_on_average() -> None:
    # Beyond black and white a bicubic filter is clipped after rows, or after columns.
    picture, transform = noise(300, 256), train_transform(224, OPENAI)
    torch.manual_seed(0)
    expected = transform(picture).float()
    torch.manual_seed(0)
    assert float((transform(pixels(picture)).float() - expected).abs().mean()) < 0.1


def test_crops_cover_at_least_half_of_the_area() -> None:
    # Each pixel holds its column, so a crop's width can be read from what it spans.
    ramp = Image.fromarray(np.repeat(np.arange(200, dtype=np.uint8)[None, :, None], 200, 0).repeat(3, 2))
    transform = train_transform(64, PreprocessConfig(), scale=(0.5, 0.5))
    spans = [int(image.max()) - int(image.min()) for image in (transform(ramp) for _ in range(50))]
    sides = [200 * (0.5 * ratio) ** 0.5 for ratio in (3 / 4, 4 / 3)]
    assert all(sides[0] - 8 < span < sides[1] + 8 for span in spans)
    assert len(set(spans)) > 5


def test_flips_by_option_only() -> None:
    half = Image.fromarray(np.repeat(np.array([0, 255], dtype=np.uint8)[None, :, None], 2, 0).repeat(3, 2))
    half = half.resize((64, 64), Image.Resampling.NEAREST)
    never, always = (train_transform(16, PreprocessConfig(), (0.99, 1.0), flip) for flip in (0.0, 1.0))
    assert all(never(half)[0, 8, 0] < never(half)[0, 8, -1] for _ in range(20))
    assert all(always(half)[0, 8, 0] > always(half)[0, 8, -1] for _ in range(20))


@pytest.mark.parametrize("preprocess", [PreprocessConfig(), OPENAI])
def test_normalise_is_totensor_and_normalize_bit_for_bit(preprocess: PreprocessConfig) -> None:
    ordinary = v1.Compose([v1.ToTensor(), v1.Normalize(preprocess.mean, preprocess.std)])
    pictures = [noise(), noise().rotate(180)]
    images = torch.stack([v1.PILToTensor()(picture) for picture in pictures])
    before = images.clone()
    normalised = normalise(images, preprocess)
    assert torch.equal(normalised, torch.stack([ordinary(picture) for picture in pictures]))
    assert torch.equal(images, before)
    kept = torch.full((2, 3, 60, 90), 7.0)
    assert normalise(images, preprocess, out=kept) is kept
    assert torch.equal(kept, normalised)


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1), (3, 2000)])
def test_extreme_shapes(size: tuple[int, int]) -> None:
    picture = noise(*size)
    assert train_transform(24, PreprocessConfig())(picture).shape == (3, 24, 24)
    image = eval_transform(24, PreprocessConfig())(picture)
    assert image.shape == (3, 24, 24)
    reference = v1.Compose([v1.Resize(24), v1.CenterCrop(24), v1.ToTensor()])(picture)
    assert torch.allclose(image, v1.Normalize(PreprocessConfig().mean, PreprocessConfig().std)(reference))


def test_very_long_picture_takes_little_memory() -> None:
    # Scaled as a whole this would be 224 × 224,000,000 pixels.
    picture = Image.new("RGB", (1, 1_000_000), (255, 0, 0))
    image = eval_transform(224, PreprocessConfig(mean=(0, 0, 0), std=(1, 1, 1)))(picture)
    assert image.amin((1, 2)).tolist() == [1, 0, 0]


def test_resize_smaller_than_the_image_size_is_refused() -> None:
    with pytest.raises(InputError, match="resize 24 is smaller than the image size 32"):
        eval_transform(32, PreprocessConfig(resize=24))


def test_transforms_go_to_other_processes() -> None:
    picture = noise()
    evaluate = eval_transform(16, OPENAI)
    assert torch.equal(pickle.loads(pickle.dumps(evaluate))(picture), evaluate(picture))
    train = train_transform(16, OPENAI, flip=0.5)
    torch.manual_seed(0)
    expected = train(picture)
    torch.manual_seed(0)
    assert torch.equal(pickle.loads(pickle.dumps(train))(picture), expected)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "I;16"])
def test_pictures_of_any_mode_become_rgb(mode: str) -> None:
    picture = Image.new("RGB", (20, 30), (10, 200, 30)).convert("L" if mode == "I;16" else mode)
    if mode == "I;16":
        picture = Image.fromarray(np.asarray(picture, dtype=np.uint16) * 257)
    assert eval_transform(16, PreprocessConfig())(picture).shape == (3, 16, 16)
    assert train_transform(16, PreprocessConfig())(picture).shape == (3, 16, 16)
