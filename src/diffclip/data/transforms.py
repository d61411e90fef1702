"""Random crops for training, as in SLIP's training code (facebookresearch/SLIP), which the paper trains with:
`RandomResizedCrop` of 0.5 to 1 of the area without flips.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from diffclip.config import PreprocessConfig
from diffclip.data.order import BITS_64, INCREMENT, mix

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
        crop = image[:, top : top + height, left : left + width]
        # with equal results, a copy in which a pixel's values are adjacent is resized faster than a view
        crop = crop.permute(1, 2, 0).contiguous().permute(2, 0, 1)
        # Call the kernel directly: the dispatch by the input's type would add a tenth to its time.
        result: Tensor = F.resize_image(crop, [self.image_size] * 2, self._interpolation, antialias=True)
        return F.horizontal_flip_image(result) if mirrored else result

    def draw(self, seed: int, height: int, width: int) -> tuple[int, int, int, int, bool]:
        """Draw the crop of an image of `height` × `width` as torchvision's `RandomResizedCrop` does: top, left, height
        and width in pixels, and whether the crop is mirrored. It depends only on the arguments, `scale` and `flip`."""
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
