"""Turn an image into the model's input: random crops for training, center crops for evaluation.

As in SLIP's training code (facebookresearch/SLIP), which the paper trains with: `RandomResizedCrop` of 0.5 to
1 of the area without flips; `Resize` and `CenterCrop` for evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from diffclip.config import PreprocessConfig
from diffclip.data.images import to_rgb
from diffclip.data.order import BITS_64, INCREMENT, mix

Transform = Callable[[Image.Image], Tensor]
LONGEST_RATIO = 64
"""Ratio of its edges above which an image is cut at both ends before scaling: 1×100,000 at 224 px would take 15 GB."""
# As in torchvision: largest ratio of the sides of a training crop, and number of tries to find a crop that fits.
_RATIO, _TRIES = 4 / 3, 10


class TrainTransform:
    """Random resized crop to S = `image_size` pixels, as in training: uint8 [3, H, W] and a seed in [0, 2^64) → uint8
    [3, S, S], to be normalized later.

    Values in a photograph differ by 2 at most from those of Pillow's resize: torch and Pillow round differently.

    Args:
        preprocess: gives the interpolation.
        scale: least and greatest share of the image's area that a crop covers.
        flip: probability of a mirror image.
    """

    def __init__(
        self,
        image_size: int,
        preprocess: PreprocessConfig,
        scale: tuple[float, float] = (0.5, 1.0),
        flip: float = 0.0,
    ) -> None:
        self.image_size, self.scale, self.flip = image_size, scale, flip
        self._interpolation = InterpolationMode(preprocess.interpolation)

    def __call__(self, image: Tensor, seed: int) -> Tensor:
        top, left, height, width, mirrored = self.draw(seed, image.shape[1], image.shape[2])
        view = image[:, top : top + height, left : left + width]
        # Call the kernel directly: the dispatch by the input's type would add a tenth to its time.
        result: Tensor = F.resize_image(view, [self.image_size] * 2, self._interpolation, antialias=True)
        return F.horizontal_flip_image(result) if mirrored else result

    def draw(self, seed: int, height: int, width: int) -> tuple[int, int, int, int, bool]:
        """Draw the crop of an image of `height` × `width` as torchvision's `RandomResizedCrop` does.

        With given `scale` and `flip`, the crop depends only on the three arguments.

        Returns:
            top, left, height and width in pixels, and whether the crop is mirrored.
        """
        numbers = _uniform(seed)
        low, high = self.scale
        for _ in range(_TRIES):
            area = height * width * (low + (high - low) * next(numbers))
            ratio = _RATIO ** (2 * next(numbers) - 1)
            wide, tall = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < wide <= width and 0 < tall <= height:
                top, left = int(next(numbers) * (height - tall + 1)), int(next(numbers) * (width - wide + 1))
                break
        else:  # the largest crop at the center that the ratio allows
            wide, tall = min(width, round(height * _RATIO)), min(height, round(width * _RATIO))
            top, left = (height - tall) // 2, (width - wide) // 2
        return top, left, tall, wide, next(numbers) < self.flip


def _uniform(seed: int) -> Iterator[float]:
    """Yield 53-bit floats in [0, 1) by SplitMix64, 100 times as fast as seeding torch."""
    while True:
        yield (mix(seed) >> 11) * 2.0**-53
        seed = (seed + INCREMENT) & BITS_64


class EvalTransform:
    """PIL image → float32 [3, S, S], normalized, S = `image_size`.

    The shorter edge is resized to `preprocess.resize` (default: S), then the center is cropped. With "squash", the
    image is resized to S×S instead.
    """

    def __init__(self, image_size: int, preprocess: PreprocessConfig) -> None:
        self.image_size = image_size
        self.preprocess = preprocess
        self.resize = preprocess.resize or image_size  # as `crop_box` takes it
        self._interpolation = InterpolationMode(preprocess.interpolation)

    def __call__(self, image: Image.Image) -> Tensor:
        return normalize(self.pixels(image)[None], self.preprocess)[0]

    def pixels(self, image: Image.Image) -> Tensor:
        """Return the crop before normalization, uint8 [3, S, S]."""
        image, square = to_rgb(image), [self.image_size, self.image_size]
        size = square
        if self.resize != "squash":
            longest, size = LONGEST_RATIO * min(image.size), [self.resize]
            image = F.center_crop(image, [min(image.height, longest), min(image.width, longest)])
        image = F.resize(image, size, interpolation=self._interpolation, antialias=True)
        pixels: Tensor = F.pil_to_tensor(F.center_crop(image, square))
        return pixels

    @property
    def identity(self) -> list[object]:
        """The settings that decide `pixels`, in types that JSON has."""
        return [self.image_size, self.resize, self.preprocess.interpolation]


def normalize(images: Tensor, preprocess: PreprocessConfig, out: Tensor | None = None) -> Tensor:
    """Scale images to [0, 1], subtract the mean and divide by the standard deviation: float32 [B, 3, H, W].

    The arithmetic is torchvision's `ToTensor` and `Normalize`, bit for bit, on the device of `images`.

    Args:
        images: uint8 [B, 3, H, W].
        preprocess: gives mean and standard deviation.
        out: tensor for the result; None: a new one. On a CPU, new memory for a batch takes longer than the arithmetic,
            so a loop should reuse one tensor. A GPU's allocator reuses memory by itself.
    """
    result = torch.empty(images.shape, device=images.device) if out is None else out
    mean, std = _statistics(preprocess.mean, preprocess.std, images.device)
    # One image at a time stays in the cache of a CPU through all three steps.
    parts = zip(images, result, strict=True) if images.device.type == "cpu" else [(images, result)]
    for values, target in parts:
        torch.div(values, 255, out=target).sub_(mean).div_(std)
    return result


@lru_cache(maxsize=16)
def _statistics(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return both as [3, 1, 1]. They are cached, because sending numbers to a GPU waits for the GPU."""
    # tensors made in inference mode cannot be used outside it
    with torch.inference_mode(False):
        values = torch.tensor([mean, std], dtype=torch.float32, device=device)[..., None, None]
        return values[0], values[1]
