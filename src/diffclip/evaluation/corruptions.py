"""Noise, blur, JPEG and contrast in five severities, after ImageNet-C (Hendrycks & Dietterich 2019,
arXiv:1903.12261). They can corrupt any set of images.

As in ImageNet-C, the crop at the model's input size is corrupted, not the photograph, because shrinking averages most
noise and blur away. The authors publish parameters for four sizes (hendrycks/robustness, `ImageNet-C/create_c`). For
sizes in between they are interpolated over the logarithm of the size. Unlike the published images, corrupted crops are
not saved as JPEG afterwards, and values are rounded, not truncated.
"""

from __future__ import annotations

import hashlib
import io
import math
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor

from diffclip.errors import InputError
from diffclip.preprocess import normalize

MOST_SEVERE = 5
PARAMETERS: dict[str, dict[int, tuple[float, ...]]] = {
    "noise": {
        32: (0.04, 0.06, 0.08, 0.09, 0.10),
        64: (0.04, 0.08, 0.12, 0.15, 0.18),
        224: (0.08, 0.12, 0.18, 0.26, 0.38),
        299: (0.09, 0.13, 0.19, 0.27, 0.40),
    },
    "blur": {
        32: (0.4, 0.6, 0.7, 0.8, 1.0),
        64: (0.5, 0.75, 1.0, 1.25, 1.5),
        224: (1.0, 2.0, 3.0, 4.0, 6.0),
        299: (1.5, 2.5, 3.5, 4.5, 6.5),
    },
    "jpeg": {
        32: (80, 65, 58, 50, 40),
        64: (65, 58, 50, 40, 25),
        224: (25, 18, 15, 10, 7),
        299: (23, 16, 13, 8, 5),
    },
    "contrast": {
        32: (0.75, 0.5, 0.4, 0.3, 0.15),
        64: (0.4, 0.3, 0.2, 0.1, 0.05),
        224: (0.4, 0.3, 0.2, 0.1, 0.05),
        299: (0.4, 0.3, 0.2, 0.1, 0.05),
    },
}
"""The parameters of severities 1 to 5, by corruption and size in pixels: the standard deviation of noise (1 is white
minus black) and of blur (pixels), the quality of a JPEG, and the factor on the distance from the mean color."""


def parameter(name: str, severity: int, size: int) -> float:
    """Return the parameter of a corruption (see `PARAMETERS`) for images of `size` pixels. Beyond the published sizes,
    the nearest size counts. An unknown corruption or a severity other than 1 to 5 raises `InputError`.
    """
    if name not in PARAMETERS or severity not in range(1, MOST_SEVERE + 1):
        advice = f"give {', '.join(PARAMETERS)} with a severity from 1 to {MOST_SEVERE}"
        raise InputError(f"there is no corruption {name}:{severity}: {advice}")
    sizes = PARAMETERS[name]
    logs = [math.log(published) for published in sizes]
    value = float(np.interp(math.log(size), logs, [values[severity - 1] for values in sizes.values()]))
    return float(round(value)) if name == "jpeg" else value


def corrupt(image: Image.Image, name: str, severity: int) -> Image.Image:
    """Return the corrupted image of an RGB image, in the same size.

    The noise depends on the image's own pixels alone, so it is the same in any order, batch or process; its pattern is
    the same in all severities.
    """
    value = parameter(name, severity, min(image.size))
    if name == "blur":
        return image.filter(ImageFilter.GaussianBlur(value))
    if name == "jpeg":
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=int(value))
        return Image.open(buffer).convert("RGB")
    pixels = np.asarray(image, dtype=np.float32)
    if name == "noise":
        digest = hashlib.blake2b(image.tobytes(), digest_size=16).digest()
        generator = np.random.default_rng([0, int.from_bytes(digest, "little")])
        pixels = pixels + 255 * value * generator.standard_normal(pixels.shape, dtype=np.float32)
    else:
        mean = pixels.mean(axis=(0, 1), keepdims=True)
        pixels = mean + value * (pixels - mean)
    return Image.fromarray(pixels.round().clip(0, 255).astype(np.uint8))


class CorruptedTransform:
    """PIL image → float32 [3, S, S], as `crop` makes it, but corrupted between cropping and normalization."""

    def __init__(self, crop: Any, name: str, severity: int) -> None:
        self.crop, self.name, self.severity = crop, name, severity
        self.image_size, self.preprocess = crop.image_size, crop.preprocess

    def __call__(self, image: Image.Image) -> Tensor:
        return normalize(self.pixels(image)[None], self.preprocess)[0]

    def pixels(self, image: Image.Image) -> Tensor:
        """Return the corrupted crop before it is normalized, uint8 [3, S, S]."""
        crop = Image.fromarray(self.crop.pixels(image).permute(1, 2, 0).contiguous().numpy())
        return torch.from_numpy(np.array(corrupt(crop, self.name, self.severity))).permute(2, 0, 1)

    def __str__(self) -> str:
        return f"{self.crop}, {self.name} {self.severity} of {MOST_SEVERE}"

    @property
    def identity(self) -> list[object]:
        """Everything that `pixels` depends on beside the image, as JSON values."""
        return [*self.crop.identity, self.name, self.severity]
