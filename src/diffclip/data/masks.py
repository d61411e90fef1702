"""Masks of objects, and how much of each patch of a model's crop they cover."""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from diffclip.data.images import MAX_PIXELS
from diffclip.errors import InputError

Box = tuple[float, float, float, float]
"""left, top, right, bottom as shares of a picture's width and height."""

# as `EvalTransform` cuts
_LONGEST_RATIO = 64
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_ORIENTATION = 0x0112
# Pillow warns of larger files, and a mask needs none of its pixels beyond a crop's few hundred
_MOST_PIXELS = MAX_PIXELS // 2
_TURNS: dict[int, Callable[[NDArray[Any]], NDArray[Any]]] = {
    1: lambda mask: mask,
    2: np.fliplr,
    3: lambda mask: np.rot90(mask, 2),
    4: np.flipud,
    5: np.transpose,
    6: lambda mask: np.rot90(mask, -1),
    7: lambda mask: np.rot90(mask, 2).T,
    8: np.rot90,
}


def read_mask(data: bytes) -> NDArray[Any]:
    """The values of a mask, numbers or booleans [H, W]: 0 is background; of a palette the index counts.

    Raises:
        InputError: no PNG, cut short or broken, too large, or with transparency.
    """
    if data[:8] != _SIGNATURE or len(data) < 24:
        raise InputError("has a mask that is no PNG")
    width, height = struct.unpack(">II", data[16:24])
    if width * height > _MOST_PIXELS:
        raise InputError(f"has a mask of more than {_MOST_PIXELS // 10**6} megapixels ({width}×{height})")
    try:
        with Image.open(io.BytesIO(data), formats=("PNG",)) as picture:
            mode, values = picture.mode, np.asarray(ImageOps.exif_transpose(picture))
    # a damaged file makes Pillow's reader raise nearly anything
    except Exception as error:
        raise InputError("has a mask that is cut short or broken") from error
    if mode in ("LA", "RGBA"):
        raise InputError("has a mask with transparency: save it as 1-bit, grey or palette")
    return np.any(values, axis=-1) if values.ndim == 3 else values


def geometry(data: bytes) -> tuple[tuple[int, int], int]:
    """Width and height of a picture as its pixels are stored, and its EXIF orientation from 1 to 8.

    Raises:
        InputError: it is no picture.
    """
    try:
        with warnings.catch_warnings():
            # what is too large is told by the one who reads the pixels
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data)) as picture:
                return picture.size, _orientation(picture)
    except Exception as error:
        raise InputError("has a picture that cannot be read") from error


def upright(mask: NDArray[Any], stored: tuple[int, int], orientation: int) -> NDArray[Any]:
    """The mask [H, W] turned as its picture is; one that has the upright picture's shape alone is so already.

    Args:
        mask: its size may be another than the picture's, its aspect may not.
        stored: width and height of the picture before it is turned.
        orientation: the picture's, by EXIF.

    Raises:
        InputError: the mask's shape is not the picture's.
    """
    if _same_aspect(mask, stored):
        return _TURNS[orientation](mask)
    width, height = upright_size(stored, orientation)
    if _same_aspect(mask, (width, height)):
        return mask
    raise InputError(
        f"has a mask of {mask.shape[1]}×{mask.shape[0]} pixels, another shape than its picture's {width}×{height}"
    )


def upright_size(stored: tuple[int, int], orientation: int) -> tuple[int, int]:
    """Width and height of a picture after it has been turned by EXIF."""
    return stored if orientation < 5 else stored[::-1]


def crop_box(size: tuple[int, int], image_size: int, edge: int | Literal["squash"]) -> Box:
    """What `EvalTransform` keeps of an upright picture of `size` (width, height).

    Args:
        image_size: of the crop.
        edge: what the shorter edge is scaled to first, or "squash": nothing is cropped.
    """
    if edge == "squash":
        return 0, 0, 1, 1
    # a very long picture loses its far ends before it is scaled
    kept = [min(length, _LONGEST_RATIO * min(size)) for length in size]
    ends = []
    for whole, part in zip(size, kept, strict=True):
        scaled = edge if part == min(kept) else int(edge * part / min(kept))
        first = round((scaled - image_size) / 2)
        start = (whole - part) // 2
        ends.append([(start + part * at / scaled) / whole for at in (first, first + image_size)])
    return ends[0][0], ends[1][0], ends[0][1], ends[1][1]


def coverage(mask: NDArray[np.bool_], box: Box, grid: int) -> NDArray[np.float64]:
    """The share of each of grid×grid patches of the crop `box` that a mask [H, W] covers: [grid, grid], exact."""
    left, top, right, bottom = box
    columns = _overlaps(mask.shape[1], left, right, grid)
    found = []
    for weights in _overlaps(mask.shape[0], top, bottom, grid):
        # as numbers a whole mask would take eight times its memory
        (touched,) = np.nonzero(weights)
        band = slice(touched[0], touched[-1] + 1)
        found.append(columns @ (weights[band] @ mask[band]))
    return np.clip(np.stack(found), 0, 1)


def _overlaps(length: int, low: float, high: float, parts: int) -> NDArray[np.float64]:
    """How much each of `length` pixels makes up of each of `parts` equal parts of low … high (of 0 … 1)."""
    edges = np.linspace(low, high, parts + 1) * length
    pixels = np.arange(length)
    ends = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    overlaps: NDArray[np.float64] = np.maximum(ends, 0) / np.diff(edges)[:, None]
    return overlaps


def _orientation(picture: Image.Image) -> int:
    try:
        found = int(picture.getexif().get(_ORIENTATION, 1))
    # damaged metadata says nothing about the pixels
    except Exception:
        return 1
    return found if found in _TURNS else 1


def _same_aspect(mask: NDArray[Any], size: tuple[int, int]) -> bool:
    """Whether the mask has the shape of `size` (width, height), but for rounding where it was scaled."""
    (height, width), (wanted, wanted_height) = mask.shape, size
    if width == wanted or height == wanted_height:
        return (width, height) == size
    return bool(abs(width * wanted_height - height * wanted) < max(size))
