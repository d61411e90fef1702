"""One scene: an image with its objects, masks and captions, determined by (seed, split, index) alone."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from diffclip.data.published_sets import SHIFTS, Shift
from diffclip.errors import InputError, unknown_name
from diffclip.scenes.captions import write_captions
from diffclip.scenes.layout import Dice, Spec, lay_out, make_generator, scatter
from diffclip.scenes.paint import Array, Mask, cut_background, paint, sketch
from diffclip.scenes.vocabulary import SHAPES

Style = Literal["plain"] | Shift
STYLES: tuple[Style, ...] = ("plain", *SHIFTS)
_SMALLEST, _LARGEST, _MOST_DISTRACTORS = 16, 8192, 64


@dataclass(frozen=True, eq=False)
class SceneObject:
    """One object of a scene.

    `center` (x, y) and `box` (left, top, right, bottom; right and bottom exclusive) are in pixels;
    `mask` is boolean [H, W]. `orientation` is None for shapes without a direction. In the sketch and
    recoloured styles `color` and `texture` are those of the plain image.
    """

    shape: str
    color: str
    size: str
    texture: str
    orientation: str | None
    detail: str | None
    center: tuple[float, float]
    box: tuple[int, int, int, int]
    mask: Mask


@dataclass(frozen=True, eq=False)
class Scene:
    """An `image` (uint8 [H, W, 3]) with its objects, its background's name and its captions."""

    image: NDArray[np.uint8]
    objects: tuple[SceneObject, ...]
    background: str
    captions: tuple[str, ...]
    style: Style

    @property
    def index_mask(self) -> NDArray[np.uint8]:
        """All masks in one, uint8 [H, W]: 0 is background, n is the n-th object."""
        union = np.zeros(self.image.shape[:2], np.uint8)
        for number, thing in enumerate(self.objects, start=1):
            union[thing.mask] = number
        return union


def draw_scene(
    index: int,
    *,
    split: str = "train",
    seed: int = 0,
    size: int = 64,
    style: Style = "plain",
    objects: int | None = None,
    shape: str | None = None,
    distractors: int = 0,
) -> Scene:
    """Draw scene number `index` of a split: the same for the same arguments, in any order and process.

    The styles share geometry and labels, so that each is a shifted version of the plain image. Only the mask of a
    sketched object seen from the side differs: it lacks the thick edge.

    Args:
        index, seed: whole numbers from 0 to 2³²−1.
        split: train, val or test; splits share no scene.
        size: edge of the image in pixels, 16 to 8192.
        style: plain, or one of the shifts sketch, recoloured and noisy. Captions of sketch and recoloured
            images name no color, texture or background; they may name a detail that a sketch does not draw.
        objects: number of objects, 1 to 4; None draws it.
        shape: the shape of one object (of all when `objects` is 1); None draws it.
        distractors: number of small objects of other shapes, 0 to 64, which no caption mentions. Everything else
            stays the same.

    Raises:
        InputError: an argument outside these ranges.
    """
    if style not in STYLES:
        raise unknown_name("style", style, STYLES)
    if shape is not None and shape not in SHAPES:
        raise unknown_name("shape", shape, SHAPES)
    if objects is not None and not 1 <= objects <= 4:
        raise InputError(f"a scene has 1 to 4 objects, not {objects}")
    if not 0 <= distractors <= _MOST_DISTRACTORS:
        raise InputError(
            f"distractors {distractors} is out of range: give a number from 0 to {_MOST_DISTRACTORS}"
        )
    dice = Dice(make_generator("scene", split, seed, index))
    background, specs = lay_out(dice, objects, shape)
    captions = write_captions(specs, background, dice, look=style in ("plain", "noisy"))
    clutter = scatter(distractors, specs, Dice(make_generator("distractors", split, seed, index)))
    image, masks = compose(specs, background, size, style, dice, clutter)
    things = [_scene_object(spec, mask) for spec, mask in zip(specs, masks, strict=True)]
    return Scene(image, tuple(things), background, captions, style)


def compose(
    specs: Sequence[Spec],
    background: str,
    size: int,
    style: Style,
    dice: Dice,
    distractors: Sequence[Spec] = (),
) -> tuple[NDArray[np.uint8], list[Mask]]:
    """Paint `specs`, over the distractors, on a fresh piece of `background`.

    Returns:
        The image [size, size, 3] and the mask of each of `specs`.
    """
    if not _SMALLEST <= size <= _LARGEST:
        wrong = "small" if size < _SMALLEST else "large"
        raise InputError(f"size {size} is too {wrong}: scenes have {_SMALLEST} to {_LARGEST:,} pixels")
    painted = [*distractors, *specs]
    if style == "sketch":
        canvas = cut_background("paper", size, dice)
        masks = [sketch(canvas, spec) for spec in painted]
    elif style == "recoloured":
        canvas = cut_background("velvet", size, dice)
        step = int(dice.random() * 16)
        masks = [paint(canvas, spec, _pastel(spec.color, step)) for spec in painted]
    else:
        canvas = cut_background(background, size, dice)
        masks = [paint(canvas, spec) for spec in painted]
    image = np.clip(canvas + 0.5, 0, 255).astype(np.uint8).transpose(1, 2, 0).copy()
    return _spoil(image, dice) if style == "noisy" else image, masks[len(distractors) :]


def _pastel(name: str, step: int) -> tuple[float, float, float]:
    """Return a pastel tone that plain images lack; within an image, objects of one color get one tone."""
    hue = (sum(map(ord, name)) * 0.137 + step / 16) % 1.0
    red, green, blue = colorsys.hls_to_rgb(hue, 0.74, 0.78)
    return (255 * red, 255 * green, 255 * blue)


def _spoil(image: NDArray[np.uint8], dice: Dice) -> NDArray[np.uint8]:
    """Blur, lower the contrast and add grain, each by a random amount."""
    blur, contrast, grain, level = (dice.random() for _ in range(4))
    radius = (0.3 + 0.6 * blur) * image.shape[0] / 64
    soft: Array = np.asarray(Image.fromarray(image).filter(ImageFilter.GaussianBlur(radius)), np.float32)
    soft = (soft - 128) * (0.55 + 0.3 * contrast) + (108 + 40 * level)
    soft += dice.grain(image.shape) * (10 + 14 * grain)
    return np.clip(soft, 0, 255).astype(np.uint8)


def _scene_object(spec: Spec, mask: Mask) -> SceneObject:
    box = Image.fromarray(mask).getbbox()
    assert box is not None, "a mask has at least one pixel"
    center = spec.x * len(mask), spec.y * len(mask)
    names = spec.shape, spec.color, spec.size, spec.texture, spec.orientation, spec.detail
    return SceneObject(*names, center, box, mask)
