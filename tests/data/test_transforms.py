import made_sets
import numpy as np
import pytest
import torch
from made_sets import photograph
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode

from diffclip.config import OPENAI_MEAN, OPENAI_STD, PreprocessConfig
from diffclip.data.transforms import TrainTransform
from diffclip.preprocess import EvalTransform, normalize

OPENAI = PreprocessConfig(mean=OPENAI_MEAN, std=OPENAI_STD, interpolation="bicubic")


def noise(width: int = 90, height: int = 60) -> Image.Image:
    return Image.fromarray(made_sets.noise(0, width, height))


@pytest.mark.parametrize("preprocess", [PreprocessConfig(), OPENAI, PreprocessConfig(resize=40)])
def test_eval_transform_equals_torchvisions_resize_crop_and_normalize(preprocess: PreprocessConfig) -> None:
    resize = v1.Resize(preprocess.resize or 32, InterpolationMode(preprocess.interpolation))
    normalized = v1.Normalize(preprocess.mean, preprocess.std)
    reference = v1.Compose([resize, v1.CenterCrop(32), v1.ToTensor(), normalized])
    for photo in (noise(), noise(60, 90), noise(32, 32), noise(5, 3), noise(1, 60)):
        image = EvalTransform(32, preprocess)(photo)
        assert image.dtype == torch.float32
        assert torch.equal(image, reference(photo))


def test_crops_are_drawn_as_by_torchvision() -> None:
    """Compare the means of 1500 crops, also for a wide image, in which some draws do not fit."""
    for height, width, scale in ((60, 90, (0.5, 1.0)), (20, 200, (0.1, 1.0)), (224, 224, (0.08, 1.0))):
        transform = TrainTransform(32, PreprocessConfig(), scale)
        ours = torch.tensor([transform.draw(seed, height, width)[:4] for seed in range(1500)]).float()
        torch.manual_seed(0)
        image = torch.empty(3, height, width, device="meta")
        arguments = (image, list(scale), [3 / 4, 4 / 3])
        theirs = torch.tensor([v1.RandomResizedCrop.get_params(*arguments) for _ in range(1500)]).float()
        limit = 5 * (ours.var(0) / 750 + 1e-4).sqrt()
        assert bool(((ours.mean(0) - theirs.mean(0)).abs() < limit).all())
        assert torch.allclose(ours.std(0), theirs.std(0), rtol=0.1, atol=0.05)


def pixels(image: Image.Image) -> torch.Tensor:
    """Return pixels as a decoder does: the three values of a pixel lie together in memory."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


@pytest.mark.parametrize("preprocess", [PreprocessConfig(), OPENAI])
def test_crops_match_those_of_pillow(preprocess: PreprocessConfig) -> None:
    """The limit is 2 levels of 255."""
    transform = TrainTransform(48, preprocess, (0.08, 1.0), 0.5)
    sizes = [(90, 60), (48, 48), (33, 200), (5, 3), (1, 1), (2, 500)]
    for seed, size in enumerate(sizes * 3):
        image = photograph(*size, seed)
        top, left, height, width, mirrored = transform.draw(seed, size[1], size[0])
        cropped = image.crop((left, top, left + width, top + height))
        resized = cropped.resize((48, 48), Image.Resampling[preprocess.interpolation.upper()])
        expected = pixels(resized.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else resized)
        assert int((transform(pixels(image), seed).int() - expected.int()).abs().max()) <= 2


def test_a_batch_is_normalized_into_a_buffer_and_stays_as_it_is() -> None:
    ordinary = v1.Compose([v1.ToTensor(), v1.Normalize(OPENAI.mean, OPENAI.std)])
    photos = [noise(), noise().rotate(180)]
    images, buffer = torch.stack([pixels(photo) for photo in photos]), torch.full((2, 3, 60, 90), 7.0)
    assert normalize(images, OPENAI, out=buffer) is buffer
    assert torch.equal(buffer, torch.stack([ordinary(photo) for photo in photos]))
    assert torch.equal(images[0], pixels(photos[0]))


def test_very_long_image_takes_little_memory() -> None:
    # Resized as a whole, this image would have 224 × 224,000,000 pixels.
    photo = Image.new("RGB", (1, 1_000_000), (255, 0, 0))
    image = EvalTransform(224, PreprocessConfig(mean=(0, 0, 0), std=(1, 1, 1)))(photo)
    assert image.amin((1, 2)).tolist() == [1, 0, 0]
