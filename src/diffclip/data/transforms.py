"""From a picture to the model's input: random crops for training, the centre for evaluation.

As in SLIP's training code (facebookresearch/SLIP), which the paper trains with: `RandomResizedCrop` of 0.5 to
1 of the area without flips; `Resize` and `CenterCrop` for evaluation.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

from diffclip.config import PreprocessConfig
from diffclip.data.images import to_rgb
from diffclip.errors import InputError

# A longer picture loses its far ends before it is scaled: 1×100,000 at 224 px would otherwise take 15 GB.
_LONGEST_RATIO = 64


class Crop(NamedTuple):
    """A part of a picture, in its pixels, and whether it is shown as in a mirror."""

    top: int
    left: int
    height: int
    width: int
    mirrored: bool


class TrainTransform:
    """A picture, PIL or uint8 [3, H, W] → uint8 [3, S, S], cropped at random. See `train_transform`."""

    def __init__(
        self, image_size: int, preprocess: PreprocessConfig, scale: tuple[float, float], flip: float
    ) -> None:
        self.image_size, self.scale, self.flip = image_size, scale, flip
        self.interpolation = preprocess.interpolation
        self._interpolation = InterpolationMode(preprocess.interpolation)
        self._crop = v2.RandomResizedCrop(image_size, scale=scale)
        self.ratio: tuple[float, float] = self._crop.ratio

    def __call__(self, picture: Image.Image | Tensor) -> Tensor:
        return self.cut(picture, self.draw(picture))

    def draw(self, picture: Image.Image | Tensor) -> Crop:
        """What is shown of a picture: nothing but its size and torch's global generator decide."""
        drawn = self._crop.make_params([picture])
        mirrored = bool(self.flip) and float(torch.rand(1)) < self.flip
        return Crop(drawn["top"], drawn["left"], drawn["height"], drawn["width"], mirrored)

    def cut(self, picture: Image.Image | Tensor, crop: Crop) -> Tensor:
        """`crop` of a picture, resized to uint8 [3, S, S]."""
        # The kernels are called directly: finding them by the input's type takes as long as a tenth of their work.
        size, (top, left, height, width, mirrored) = [self.image_size, self.image_size], crop
        image: Tensor
        if isinstance(picture, Tensor):
            view = picture[:, top : top + height, left : left + width]
            image = F.resize_image(view, size, self._interpolation, antialias=True)
        else:
            part = to_rgb(picture).crop((left, top, left + width, top + height))
            image = F.pil_to_tensor(F.resize(part, size, self._interpolation, antialias=True))
        return F.horizontal_flip_image(image) if mirrored else image


class EvalTransform:
    """PIL picture → float32 [3, S, S], normalised. See `eval_transform`."""

    def __init__(self, image_size: int, preprocess: PreprocessConfig) -> None:
        self.image_size = image_size
        self.preprocess = preprocess
        self.squash = preprocess.resize == "squash"
        self.edge = preprocess.resize if isinstance(preprocess.resize, int) else image_size
        self._interpolation = InterpolationMode(preprocess.interpolation)
        if self.edge < image_size:
            raise InputError(
                f"resize {self.edge} is smaller than the image size {image_size}: "
                "the crop would have black edges, give a resize that is not smaller"
            )

    def __call__(self, picture: Image.Image) -> Tensor:
        return normalise(self.pixels(picture)[None], self.preprocess)[0]

    def pixels(self, picture: Image.Image) -> Tensor:
        """The crop before it is normalised, uint8 [3, S, S]."""
        picture = to_rgb(picture) if self.squash else _shorten(to_rgb(picture))
        size = [self.image_size, self.image_size] if self.squash else [self.edge]
        picture = F.resize(picture, size, interpolation=self._interpolation, antialias=True)
        image: Tensor = F.pil_to_tensor(F.center_crop(picture, [self.image_size, self.image_size]))
        return image

    @property
    def identity(self) -> list[object]:
        """What `pixels` depends on beside the picture; JSON can hold it."""
        return [self.image_size, "squash" if self.squash else self.edge, self.preprocess.interpolation]

    def visible_box(self, size: tuple[int, int]) -> tuple[float, float, float, float]:
        """Part of an image of `size` (width, height) that the model sees: left, top, right, bottom in its pixels."""
        width, height = size
        if self.squash:
            return 0, 0, width, height
        side = min(size) * self.image_size / self.edge
        left, top = (width - side) / 2, (height - side) / 2
        return left, top, left + side, top + side


def train_transform(
    image_size: int, preprocess: PreprocessConfig, scale: tuple[float, float] = (0.5, 1.0), flip: float = 0.0
) -> TrainTransform:
    """Random resized crop to S = `image_size` pixels, as in training.

    Args:
        image_size: S.
        preprocess: gives the interpolation.
        scale: least and greatest share of the picture's area that a crop covers.
        flip: probability of a mirror image.

    Returns:
        A callable, PIL picture or uint8 [3, H, W] → uint8 [3, S, S], to be normalised later by `normalise`. Its
        randomness comes from torch's global generator. From the same state both kinds of picture are cropped
        alike, and their values in a photograph differ by 2 at most: torch and Pillow round differently, and may
        filter rows and columns in another order, which shows where a bicubic filter overshoots black or white.
    """
    return TrainTransform(image_size, preprocess, scale, flip)


def eval_transform(image_size: int, preprocess: PreprocessConfig) -> EvalTransform:
    """Shorter edge to `preprocess.resize` (or S = `image_size`), crop the center S×S, normalize; or squash to S×S.

    Returns:
        A callable, PIL RGB picture → float32 [3, S, S].

    Raises:
        InputError: `preprocess.resize` is smaller than S.
    """
    return EvalTransform(image_size, preprocess)


def normalise(images: Tensor, preprocess: PreprocessConfig, out: Tensor | None = None) -> Tensor:
    """uint8 [B, 3, H, W] → float32 [B, 3, H, W]: to [0, 1], less the mean, by the standard deviation.

    The arithmetic is torchvision's `ToTensor` and `Normalize`, bit for bit, on the device of `images`.

    Args:
        images: the pictures.
        preprocess: gives mean and standard deviation.
        out: where the result goes. On a CPU the system takes longer to hand out new memory for a batch than the
            arithmetic takes, so a loop had better keep one; a GPU's allocator keeps it by itself.
    """
    result = torch.empty(images.shape, device=images.device) if out is None else out
    mean, std = _statistics(preprocess.mean, preprocess.std, images.device)
    # One picture at a time stays in a CPU's cache through all three steps.
    parts = zip(images, result, strict=True) if images.device.type == "cpu" else [(images, result)]
    for values, target in parts:
        torch.div(values, 255, out=target).sub_(mean).div_(std)
    return result


@lru_cache(maxsize=16)
def _statistics(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Both as [3, 1, 1]; kept, since a GPU is waited for whenever numbers are sent to it."""
    # what is made in inference mode could not be used outside it
    with torch.inference_mode(False):
        values = torch.tensor([mean, std], dtype=torch.float32, device=device)[..., None, None]
        return values[0], values[1]


def _shorten(picture: Image.Image) -> Image.Image:
    width, height = picture.size
    longest = _LONGEST_RATIO * min(width, height)
    if max(width, height) <= longest:
        return picture
    keep_width, keep_height = min(width, longest), min(height, longest)
    left, top = (width - keep_width) // 2, (height - keep_height) // 2
    return picture.crop((left, top, left + keep_width, top + keep_height))
