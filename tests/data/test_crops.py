import numpy as np
import pytest
import torch
from torch import Tensor

from diffclip.config import PreprocessConfig
from diffclip.data.crops import resized_crops
from diffclip.data.draws import draw_crops
from diffclip.data.transforms import Crop, train_transform
from diffclip.scenes.scene import draw_scene

COUNT = 40
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def pictures(height: int, width: int) -> Tensor:
    """Scenes with noise, from a tenth of it to nothing but noise."""
    generator = np.random.default_rng(0)
    shown = []
    for i in range(COUNT):
        scene = draw_scene(i, seed=0, size=max(height, width)).image[:height, :width].astype(float)
        noise = generator.integers(0, 256, scene.shape)
        share = 0.1 + 0.9 * i / COUNT
        shown.append(torch.from_numpy(((1 - share) * scene + share * noise).astype(np.uint8)))
    return torch.stack(shown).permute(0, 3, 1, 2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    ("height", "width", "size"), [(48, 64, 32), (64, 40, 24), (30, 30, 48), (33, 50, 33)]
)
def test_crops_are_those_of_the_transform(
    height: int, width: int, size: int, interpolation: str, device: str
) -> None:
    transform = train_transform(size, PreprocessConfig(interpolation=interpolation), (0.2, 1.0), flip=0.5)
    shown = pictures(height, width)
    seeds = np.arange(COUNT, dtype=np.uint64)
    crops = draw_crops(transform, seeds, np.full((COUNT, 2), (height, width)))
    padded = torch.full((COUNT, 3, height + 5, width + 9), 255, dtype=torch.uint8)
    padded[:, :, :height, :width] = shown
    chosen = torch.arange(COUNT).flip(0)
    made = resized_crops(
        padded.to(device),
        chosen.to(device),
        torch.from_numpy(crops[::-1].copy()).to(device),
        size,
        interpolation,
    )
    assert made.dtype == torch.uint8
    assert made.device.type == device
    differ = []
    for i, image in zip(chosen.tolist(), made.cpu(), strict=True):
        top, left, high, wide, mirrored = crops[i].tolist()
        wanted = transform.cut(shown[i], Crop(top, left, high, wide, bool(mirrored)))
        difference = (image.int() - wanted.int()).abs()
        assert difference.max() <= 2
        differ.append((difference > 0).float().mean().item())
    assert np.mean(differ) < 0.05
    assert 0 < crops[:, 4].sum() < COUNT


def test_a_whole_picture_of_the_right_size_stays_as_it_is() -> None:
    shown = pictures(32, 32)
    crops = torch.tensor([[0, 0, 32, 32, 0], [0, 0, 32, 32, 1]])
    for interpolation in ("bilinear", "bicubic"):
        made = resized_crops(shown, torch.tensor([3, 7]), crops, 32, interpolation)
        assert torch.equal(made[0], shown[3])
        assert torch.equal(made[1], shown[7].flip(2))
