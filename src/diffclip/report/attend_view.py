"""A picture as a model sees it, and a map laid over it in colours that mean the same in every figure.

What has a colour is the value of a patch against the average patch of its map. Values themselves cannot be compared:
a derivative is smaller for a text that fits better, maps of differential layers sum to 1 − λ, and both shrink with
the number of patches. Against the average, every map of every model says where, and how much more than elsewhere.

That would also colour what rounding leaves of a map of nothing. So a map that sums to less than `FAINT` of what the
maps of the same model usually do in the figure (their median) is drawn as nothing: grey all over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from PIL import Image

from diffclip.data.transforms import EvalTransform

Picture = npt.NDArray[np.uint8]
Map = npt.NDArray[np.floating[Any]]

MOST = 16.0
"""Times the average patch, where the colours end. They begin at 1 and are logarithmic between."""
FAINT = 0.01
"""Of the usual sum of a model's maps: below it a map is nothing."""
_CONTRAST = 0.75
_COVER = 0.82
_POSITIVE, _SIGNED = colormaps["YlOrRd"], colormaps["RdBu_r"]


def as_seen(picture: Image.Image, preprocess: EvalTransform, side: int) -> Picture:
    """The square of an RGB picture that `preprocess` keeps, at its own sharpness, [side, side, 3]."""
    box = preprocess.visible_box(picture.size)
    return np.asarray(picture.resize((side, side), Image.Resampling.BICUBIC, box=box))


def usual_sum(maps: Sequence[Map]) -> float:
    """The median of what the maps of one model sum to, in magnitude; `maps` are arrays [..., h, w]."""
    return float(np.median(np.concatenate([np.abs(some).sum((-2, -1)).ravel() for some in maps])))


def is_nothing(values: Map, usual: float) -> bool:
    """Whether a map [h, w] of a model is 0, or practically, with `usual` as `usual_sum` says."""
    return float(np.abs(values).sum()) <= FAINT * usual


def against_average(values: Map) -> Map:
    """A map [h, w] in units of its mean magnitude; where nothing has a value it stays 0."""
    mean = float(np.abs(values).mean())
    return values / mean if mean > 0 else np.zeros_like(values)


def overlaid(picture: Picture, values: Map, signed: bool) -> Picture:
    """A map [h, w] over a picture [H, W, 3], smoothly upsampled: [H, W, 3].

    Below the average the picture is grey; from there on yellow to red, or if `signed` red above 0 and blue below.
    """
    height, width = picture.shape[:2]
    small = Image.fromarray(np.asarray(against_average(values), np.float32))
    smooth = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC))
    grey = picture.mean(-1, keepdims=True).repeat(3, -1)
    return _covered(255 - _CONTRAST * (255 - grey), _level(smooth, signed), signed)


def scale_strip(signed: bool, length: int = 256) -> Picture:
    """The colours of 1 … `MOST` over middle grey, [1, length, 3]; if `signed`, of −`MOST` … −1 before them."""
    level = np.linspace(-1 if signed else 0, 1, length)[None]
    return _covered(np.full((1, length, 3), 170.0), level, signed)


def _level(ratio: Map, signed: bool) -> Map:
    """0 where a colour begins to 1 where it ends, with the sign of the map."""
    level = np.clip(np.log(np.maximum(np.abs(ratio), 1)) / np.log(MOST), 0, 1)
    return level * np.sign(ratio) if signed else np.where(ratio > 0, level, 0)


def _covered(ground: npt.NDArray[np.floating[Any]], level: Map, signed: bool) -> Picture:
    # the palest end of either palette would not be seen
    strong = np.sign(level) * (0.15 + 0.85 * np.abs(level))
    colours = (_SIGNED(strong / 2 + 0.5) if signed else _POSITIVE(strong))[..., :3] * 255
    cover = (_COVER * np.sqrt(np.abs(level)))[..., None]
    return np.asarray((1 - cover) * ground + cover * colours + 0.5, dtype=np.uint8)
