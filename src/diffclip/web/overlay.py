"""Pictures and maps as `data:` addresses, so that nothing on the page is a file that could be asked for."""

from __future__ import annotations

import base64
import io
from functools import cache

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from PIL import Image

from diffclip.report.style import data_uri

_EDGE = 96
"""Pixels of a map's edge; the browser smooths it further."""
_QUALITY = 88


def photo_uri(picture: Image.Image) -> str:
    """The picture as WebP."""
    buffer = io.BytesIO()
    picture.save(buffer, "WEBP", quality=_QUALITY)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def thumbnail(picture: Image.Image, edge: int) -> Image.Image:
    """The picture with its longer side scaled down to `edge` pixels, where it is larger."""
    width, height = picture.size
    scale = min(1.0, edge / max(width, height))
    return picture.resize(
        (max(1, round(width * scale)), max(1, round(height * scale))), Image.Resampling.LANCZOS
    )


def map_uri(values: npt.NDArray[np.float32]) -> str:
    """A map [h, w] as PNG: black at 0 to yellow at its largest value; one with a sign blue to red, white at 0. Small
    magnitudes let half of the picture beneath through."""
    signed = is_signed(values)
    limit = limit_of(values)
    shares = (values / limit + 1) / 2 if signed else values / limit
    grey = Image.fromarray((np.clip(shares, 0, 1) * 255).astype(np.float32))
    smooth = np.asarray(grey.resize((_EDGE, _EDGE), Image.Resampling.BICUBIC))
    image = Image.fromarray(np.clip(smooth + 0.5, 0, 255).astype(np.uint8))
    image.putpalette(_palette(signed))
    buffer = io.BytesIO()
    image.save(buffer, "PNG", transparency=_alphas(signed))
    return data_uri(buffer.getvalue())


def is_signed(values: npt.NDArray[np.float32]) -> bool:
    """Whether the map has a value below 0."""
    return bool((values < 0).any())


def is_empty(values: npt.NDArray[np.float32]) -> bool:
    """Whether the map is 0 everywhere, which has no scale."""
    return not values.any()


def limit_of(values: npt.NDArray[np.float32]) -> float:
    """Where the map's scale ends: its largest magnitude."""
    return float(np.abs(values).max())


def gradient(signed: bool) -> str:
    """The scale's colours as a CSS gradient, from left to right."""
    colours = np.array(_palette(signed)).reshape(-1, 3)[:: 255 // 5]
    return f"linear-gradient(90deg,{','.join(f'rgb({r},{g},{b})' for r, g, b in colours)})"


@cache
def _alphas(signed: bool) -> bytes:
    values = np.arange(256) / 255
    magnitudes = np.abs(2 * values - 1) if signed else values
    return bytes((255 * (0.5 + 0.5 * magnitudes)).astype(np.uint8).tolist())


@cache
def _palette(signed: bool) -> list[int]:
    table = colormaps["RdBu_r" if signed else "inferno"](np.arange(256) / 255)[:, :3]
    flat: list[int] = (table * 255).round().astype(int).ravel().tolist()
    return flat
