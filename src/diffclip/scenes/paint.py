"""Paint backgrounds, and objects on them: as a clean image or as a pencil sketch, with their masks.

Backgrounds are large tiles painted once for an image size, from which each image takes its own crop.
"""

from __future__ import annotations

import math
import zlib
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from diffclip.scenes.layout import Dice, Spec
from diffclip.scenes.shapes import sample
from diffclip.scenes.vocabulary import COLORS

Array = NDArray[np.floating[Any]]
Mask = NDArray[np.bool_]
Color = tuple[float, float, float]

_TILE = 4  # edge of a tile, in edges of an image
_SIDE = 0.36  # width of a flat object seen from the side, as a share of its full width


def _column(color: Color) -> Array:
    """A color that broadcasts over planes [3, h, w]."""
    return np.array(color, np.float32)[:, None, None]


def _stain(canvas: Array, amount: Array, color: Color) -> Array:
    """Mix a color into the planes `canvas` [3, h, w], by its share in each pixel."""
    return canvas + amount * (_column(color) - canvas)


def _brightness(color: Color) -> float:
    red, green, blue = color
    return 0.3 * red + 0.59 * green + 0.11 * blue


def _contrast(color: Color) -> Color:
    """The second tone of a pattern: pale on a dark color, deep on a pale one, never another hue."""
    red, green, blue = color
    if _brightness(color) > 165:
        return (red * 0.62, green * 0.56, blue * 0.56)
    return (red + (255 - red) * 0.68, green + (255 - green) * 0.68, blue + (255 - blue) * 0.68)


def _stamens(color: Color) -> Color:
    """The middle of a flower: yellow, or brown in a warm or pale flower."""
    red, green, _blue = color
    return (120.0, 74.0, 40.0) if red > 200 and green > 120 else (252.0, 214.0, 84.0)


def _ink(color: Color) -> Color:
    """Black or white, whichever stands out."""
    return (34.0, 34.0, 40.0) if _brightness(color) > 120 else (250.0, 250.0, 246.0)


def _step(height: Array) -> Array:
    """Map heights from −0.5 … 0.5 to 0 … 1: the coverage of a pixel by an object whose edge is at that distance."""
    return np.clip(height + 0.5, 0, 1)


def _pattern(texture: str, u: Array, v: Array, sharp: float) -> Array:
    """Return the share of the second tone in each pixel [h, w], 0 to 1; u, v in radii, `sharp` in pixels per radius."""
    if texture == "striped":
        return _step(np.sin((u * 0.8 + v * 0.6) * (2 * math.pi / 0.6)) * (sharp * 0.1))
    if texture == "dotted":
        return _step((np.cos((u + v) * 7.6) + np.cos((u - v) * 7.6) - 0.8) * (sharp * 0.12))
    return _step(np.sin(u * (math.pi / 0.46)) * np.sin(v * (math.pi / 0.46)) * (sharp * 0.22))


@lru_cache(maxsize=256)
def _lettering(text: str, height: int) -> Array:
    """Return the coverage [h, w] of `text`, cropped tightly, with capitals about `height` pixels high."""
    scale = 4
    font = ImageFont.load_default(scale * height * 1.36)
    left, top, right, bottom = font.getbbox(text, stroke_width=scale * height * 0.035)
    width, tall = math.ceil((right - left) / scale), math.ceil((bottom - top) / scale)
    page = Image.new("L", (width * scale, tall * scale))
    stroke = scale * height * 0.035
    ImageDraw.Draw(page).text((-left, -top), text, fill=255, font=font, stroke_width=stroke)
    return np.asarray(page.reduce(scale), np.float32) / 255


def _write(area: Array, text: str, x: float, y: float, height: float, color: Color) -> None:
    letters = _lettering(text, max(3, round(height)))
    tall, wide = letters.shape
    top, left = round(y - tall / 2), round(x - wide / 2)
    y0, x0 = max(0, top), max(0, left)
    y1, x1 = min(area.shape[1], top + tall), min(area.shape[2], left + wide)
    part = area[:, y0:y1, x0:x1]
    part += letters[y0 - top : y1 - top, x0 - left : x1 - left] * (_column(color) - part)


def _face(u: Array, v: Array, radius: float) -> Array:
    eyes = np.minimum(np.hypot(u - 0.32, v + 0.22), np.hypot(u + 0.32, v + 0.22)) - 0.13
    mouth = np.where(v > 0.18, np.abs(np.hypot(u, v + 0.02) - 0.48) - 0.085, 1.0)
    return _step(-np.minimum(eyes, mouth) * radius)


class Window:
    """The part of an image around one object; `distance` to the object's outline is in pixels, negative inside."""

    def __init__(self, spec: Spec, size: int) -> None:
        self.radius = spec.radius * size
        x, y = spec.x * size, spec.y * size
        room = spec.reach * size + 1 + 0.055 * size
        if spec.detail == "glowing":
            room = 1.9 * self.radius
        self.x0, self.y0 = max(0, int(x - room)), max(0, int(y - room))
        self.x1, self.y1 = min(size, math.ceil(x + room)), min(size, math.ceil(y + room))
        self.x, self.y = x - self.x0, y - self.y0
        width, height = self.x1 - self.x0, self.y1 - self.y0
        squash = _SIDE if spec.detail == "side" else 1.0
        self.distance = sample(spec.form, width, height, self.x, self.y, self.radius, spec.angle, squash)
        self.u = ((np.arange(width, dtype=np.float32) + (0.5 - self.x)) / self.radius)[None, :]
        self.v = ((np.arange(height, dtype=np.float32) + (0.5 - self.y)) / self.radius)[:, None]
        if spec.detail == "gap":
            opening = np.maximum(np.abs(self.v) - 0.34, -self.u) * self.radius
            self.distance = np.maximum(self.distance, -opening)
        elif spec.detail == "hollow":
            self.distance = np.maximum(self.distance, -self.distance - 0.26 * self.radius)
        elif spec.detail == "cracked":
            jag = 0.3 * (np.abs((self.v * 1.7) % 2 - 1) - 0.5)
            self.distance = np.maximum(self.distance, -(np.abs(self.u - jag) - 0.1) * self.radius)

    def of(self, canvas: Array) -> Array:
        return canvas[:, self.y0 : self.y1, self.x0 : self.x1]

    def mask(self, size: int) -> Mask:
        """Return the object's mask [size, size]; it has at least one pixel, even for a thin object in a tiny image."""
        whole = np.zeros((size, size), np.bool_)
        whole[self.y0 : self.y1, self.x0 : self.x1] = self.distance <= max(0.0, float(self.distance.min()))
        return whole


def paint(canvas: Array, spec: Spec, color: Color | None = None) -> Mask:
    """Paint `spec` on `canvas` [3, S, S] in place, with a soft shadow; return its mask [S, S].

    `color` replaces the named color (recoloured images).
    """
    size = canvas.shape[1]
    window = Window(spec, size)
    area, distance = window.of(canvas), window.distance
    rgb: Color = color or COLORS[spec.color]
    pixel = size / 64
    if spec.detail == "glowing":
        halo = np.exp(-np.square(np.maximum(distance, 0) / (0.42 * window.radius))) * 0.95
        halo *= np.clip((1.85 - np.hypot(window.u, window.v)) * 3, 0, 1)
        area += halo * (_column((255, 250, 200)) - area)
    else:
        shift = max(1, round(1.6 * pixel))
        area[:, shift:, shift:] *= 1 - 0.34 * _step(-distance[:-shift, :-shift] / (3 * pixel))
    if spec.detail == "side":
        _thicken(area, spec, window, rgb)
    area += _step(-distance) * (_fill(spec, window, rgb, pixel) - area)
    if spec.detail is not None and spec.detail.startswith(("letter ", "word ")):
        kind, text = spec.detail.split(" ", 1)
        height = window.radius * (1.0 if kind == "letter" else 0.72)
        _write(area, text, window.x, window.y, height, _ink(rgb))
    return window.mask(size)


def _thicken(area: Array, spec: Spec, window: Window, rgb: Color) -> None:
    """Paint the edge of a flat object that is seen from the side, and add the edge to the object's area."""
    height, width = window.distance.shape
    behind = window.distance
    for depth in (0.11, 0.22):
        x = window.x + depth * window.radius
        layer = sample(spec.form, width, height, x, window.y, window.radius, spec.angle, _SIDE)
        behind = np.minimum(behind, layer)
    area += _step(-behind) * (_column(rgb) * 0.5 - area)
    window.distance = behind


def _fill(spec: Spec, window: Window, rgb: Color, pixel: float) -> Array:
    """The colors [3, h, w] of the surface: pattern, detail, light from the upper left, fine edge."""
    distance, u, v = window.distance, window.u, window.v
    surface: Array = _column(rgb)
    if spec.texture != "plain":
        cosine, sine = math.cos(spec.tilt), math.sin(spec.tilt)
        amount = _pattern(spec.texture, u * cosine + v * sine, v * cosine - u * sine, window.radius)
        surface = _stain(surface, amount, _contrast(rgb))
    elif spec.detail == "spot":
        surface = _stain(surface, _step((0.3 - np.hypot(u, v)) * window.radius), _ink(rgb))
    elif spec.detail == "face":
        surface = _stain(surface, _face(u, v, window.radius), _ink(rgb))
    elif spec.detail == "border":
        surface = _stain(surface, _step(distance + 0.26 * window.radius), (30, 30, 36))
    elif spec.detail == "half-filled":
        empty = _step(-v * window.radius) * _step(-distance - 0.2 * window.radius)
        surface = _stain(surface, empty, (250, 250, 247))
    if spec.shape == "flower":
        surface = _stain(surface, _step((0.27 - np.hypot(u, v)) * window.radius), _stamens(rgb))
    light = 1.04 - 0.055 * (u + v)
    edge = 0.42 * _step(distance + min(0.9 * pixel, 0.09 * window.radius))
    return surface * (light * (1 - edge))


def sketch(canvas: Array, spec: Spec) -> Mask:
    """Draw the outline of `spec` in pencil on `canvas` [3, S, S] in place; return its mask [S, S].

    Details within the outline, such as a face or letters, and a glow are not drawn. An object seen from the side lacks
    its thick edge, which `paint` draws and adds to the mask.
    """
    size = canvas.shape[1]
    window = Window(spec, size)
    area = window.of(canvas)
    pixel = size / 64
    pressure = 0.82 + 0.18 * np.sin(5 * window.u + 3 * window.v)
    line = _step(0.55 * pixel - np.abs(window.distance)) * pressure
    hatching = np.clip(np.sin((window.u + window.v) * window.radius * (1.7 / pixel)) - 0.55, 0, 1)
    shade = hatching * _step(-window.distance) * np.clip(0.35 + 0.4 * (window.u + window.v), 0, 1)
    alpha = 0.88 * np.maximum(line, 0.6 * shade)
    area += alpha * (_column((58, 58, 64)) - area)
    return window.mask(size)


def _clouds(rng: np.random.Generator, edge: int, rows: int, columns: int) -> Array:
    """Smooth noise [edge, edge] in about [-1, 1] with `rows` by `columns` bumps."""
    grid = rng.uniform(-1, 1, (max(2, rows), max(2, columns))).astype(np.float32)
    smooth = Image.fromarray(grid).resize((edge, edge), Image.Resampling.BICUBIC)
    return np.array(smooth, dtype=np.float32)


def _mottle(rng: np.random.Generator, edge: int, cells: int, octaves: int = 3) -> Array:
    layers = [_clouds(rng, edge, cells * 2**level, cells * 2**level) / 2**level for level in range(octaves)]
    return np.sum(layers, axis=0)


def _paper(rng: np.random.Generator, edge: int) -> Array:
    canvas: Array = _column((246, 241, 230)) + 4 * _mottle(rng, edge, 8)
    phase = np.arange(edge) * (30 / edge) % 1.0
    line = np.clip(1 - np.abs(phase - 0.5) * edge / 30, 0, 1).astype(np.float32) * 0.5
    canvas = _stain(canvas, np.maximum(line[:, None], line[None, :]), (196, 212, 228))
    return canvas + rng.normal(0, 2.0, (edge, edge)).astype(np.float32)


def _sand(rng: np.random.Generator, edge: int) -> Array:
    rows = np.arange(edge, dtype=np.float32)[:, None] / edge
    ripple = np.sin(2 * np.pi * (22 * rows + 1.6 * _clouds(rng, edge, 8, 8)))
    canvas: Array = _column((228, 205, 160)) + (6 * ripple + 6 * _mottle(rng, edge, 10))
    return canvas + rng.normal(0, 6, (edge, edge)).astype(np.float32)


def _grass(rng: np.random.Generator, edge: int) -> Array:
    blades = _clouds(rng, edge, 40, 150) + 0.7 * _clouds(rng, edge, 24, 90)
    canvas: Array = _column((160, 198, 116)) + 15 * blades * _column((1.0, 0.9, 0.6))
    return canvas + 9 * _mottle(rng, edge, 6, 2)


def _sky(rng: np.random.Generator, edge: int) -> Array:
    canvas: Array = _column((150, 196, 238)) + 6 * _mottle(rng, edge, 4, 1)
    cover = _clouds(rng, edge, 16, 9) + 0.5 * _clouds(rng, edge, 32, 20) + 0.25 * _clouds(rng, edge, 64, 44)
    return _stain(canvas, np.clip(cover * 0.9 - 0.05, 0, 0.8), (250, 251, 253))


def _wood(rng: np.random.Generator, edge: int) -> Array:
    grain = _clouds(rng, edge, 130, 8) + 0.6 * _clouds(rng, edge, 60, 5)
    boards = np.arange(edge) * (10 / edge)
    shade = rng.uniform(-10, 10, 11).astype(np.float32)[boards.astype(int)]
    canvas: Array = _column((202, 160, 112)) + (11 * grain + shade[:, None])
    seam = np.clip(1 - np.abs(boards % 1.0 - 0.5) * edge / 12, 0, 1).astype(np.float32) * 0.45
    return _stain(canvas, seam[:, None], (120, 84, 50))


def _night(rng: np.random.Generator, edge: int) -> Array:
    canvas: Array = _column((30, 34, 66)) + 8 * _mottle(rng, edge, 6)
    canvas = _stain(canvas, np.clip(_mottle(rng, edge, 5, 2) * 0.5, 0, 0.6), (74, 58, 112))
    specks = np.zeros((edge, edge), np.float32)
    count = 260
    specks[rng.integers(0, edge, count), rng.integers(0, edge, count)] = rng.uniform(0.15, 0.7, count)
    return _stain(canvas, specks, (235, 235, 250))


def _stone(rng: np.random.Generator, edge: int) -> Array:
    canvas: Array = _column((172, 172, 174)) + 12 * _mottle(rng, edge, 10, 4)
    vein = np.clip(1 - np.abs(_mottle(rng, edge, 7, 3)) * 14, 0, 1) * 0.35
    canvas = _stain(canvas, vein, (222, 220, 216))
    return canvas + rng.normal(0, 4, (edge, edge)).astype(np.float32)


def _velvet(rng: np.random.Generator, edge: int) -> Array:
    """Paint the background of recoloured images: dark, shifting colors that no named background has."""
    return np.stack([70 + 55 * _mottle(rng, edge, 6, 2) for _ in range(3)])


PAINTERS = {
    "paper": _paper,
    "sand": _sand,
    "grass": _grass,
    "sky": _sky,
    "wood": _wood,
    "night": _night,
    "stone": _stone,
    "velvet": _velvet,
}


@lru_cache(maxsize=32)
def _tile(name: str, size: int) -> Array:
    rng = np.random.Generator(np.random.Philox(zlib.crc32(name.encode())))
    return np.clip(PAINTERS[name](rng, _TILE * size), 0, 255).astype(np.float32)


def cut_background(name: str, size: int, dice: Dice) -> Array:
    """Cut a background [3, size, size] out of its tile, and give it its own soft light; values are about 0 to 255."""
    left, top, flip, slope_x, slope_y, *gains = (dice.random() for _ in range(8))
    room = (_TILE - 1) * size
    x, y = int(left * room), int(top * room)
    crop = _tile(name, size)[:, y : y + size, x : x + size]
    if flip < 0.5:
        crop = crop[:, :, ::-1]
    axis = np.linspace(-1, 1, size, dtype=np.float32)
    across, down = axis * ((slope_x - 0.5) * 0.16), axis * ((slope_y - 0.5) * 0.16)
    fall = axis * axis * 0.045
    light = (1.0 + across - fall)[None, :] + (down - fall)[:, None]
    tint = np.array([0.985 + 0.03 * gain for gain in gains], np.float32)[:, None]
    return crop * light * tint[:, None]
