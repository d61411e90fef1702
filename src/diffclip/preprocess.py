"""An image as the model takes it in evaluation: RGB, resized, cropped and normalized, as in SLIP's evaluation."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from diffclip.config import STATISTICS, PreprocessConfig

Transform = Callable[[Image.Image], Tensor]
LONGEST_RATIO = 64
"""Ratio of its edges above which an image is cut at both ends before scaling: 1×100,000 at 224 px would take 15 GB."""
_TO_8_BIT = np.round(np.arange(65536) / 257).astype(np.uint8)


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
        return normalize(self.pixels(image), self.preprocess)

    def pixels(self, image: Image.Image) -> Tensor:
        """Return the crop before normalization, uint8 [3, S, S]."""
        image, square = to_rgb(image), [self.image_size, self.image_size]
        size = square
        if image.size == (self.image_size, self.image_size) and self.resize in (self.image_size, "squash"):
            return F.pil_to_tensor(image)
        if self.resize != "squash":
            longest, size = LONGEST_RATIO * min(image.size), [self.resize]
            image = F.center_crop(image, [min(image.height, longest), min(image.width, longest)])
        image = F.resize(image, size, interpolation=self._interpolation, antialias=True)
        return F.pil_to_tensor(F.center_crop(image, square))

    def __str__(self) -> str:
        """Describe the preparation, for the protocol of a record."""
        size, preprocess = self.image_size, self.preprocess
        names = [name for name, pair in STATISTICS.items() if pair == (preprocess.mean, preprocess.std)]
        cut = f"shorter edge {preprocess.resize or size} px {preprocess.interpolation}, center crop {size} px"
        if preprocess.resize == "squash":
            cut = f"squashed to {size} px {preprocess.interpolation}"
        return f"{cut}, {names[0] if names else 'own'} statistics"

    @property
    def identity(self) -> list[object]:
        """The settings that decide `pixels`, in types that JSON has."""
        return [self.image_size, self.resize, self.preprocess.interpolation]


def normalize(images: Tensor, preprocess: PreprocessConfig, out: Tensor | None = None) -> Tensor:
    """Scale images to [0, 1], subtract the mean and divide by the standard deviation, in float32.

    The arithmetic is torchvision's `ToTensor` and `Normalize`, bit for bit, on the device of `images`.

    Args:
        images: uint8 [B, 3, H, W] or [3, H, W].
        preprocess: gives mean and standard deviation.
        out: tensor for the result; None: a new one. On a CPU, new memory for a batch takes longer than the arithmetic;
            a GPU's allocator reuses memory by itself.
    """
    result = torch.empty(images.shape, device=images.device) if out is None else out
    mean, std = _statistics(preprocess.mean, preprocess.std, images.device)
    # One image at a time stays in the cache of a CPU through all three steps.
    is_split = images.ndim == 4 and images.device.type == "cpu"
    parts = zip(images, result, strict=True) if is_split else [(images, result)]
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


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to RGB, with transparency over white."""
    if image.mode.startswith("I") or image.mode == "F":
        image = _gray_to_8_bit(image)
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        white = Image.new("RGB", layer.size, (255, 255, 255))
        white.paste(layer, mask=layer)
        return white
    return image if type(image) is Image.Image and image.mode == "RGB" else image.convert("RGB")


def _gray_to_8_bit(image: Image.Image) -> Image.Image:
    """Convert gray to mode L: scale 16 bits from their full range, 32 bits and floats from the range of the image."""
    values: Any = np.asarray(image)
    if image.mode.startswith("I;16"):
        return Image.fromarray(_TO_8_BIT[values])
    values = np.where(np.isfinite(values), values, 0)
    low, high = float(values.min()), float(values.max())
    return Image.fromarray(np.round((values - low) * (255 / ((high - low) or 1.0))).astype(np.uint8))
