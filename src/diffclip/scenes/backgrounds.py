"""Backgrounds: large tiles painted once for an image size, from which each image takes its own crop."""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from diffclip.scenes.layout import Dice

Array = NDArray[np.floating[Any]]

_TILE = 4  # edge of a tile in images


def _clouds(rng: np.random.Generator, edge: int, rows: int, columns: int) -> Array:
    """Smooth noise [edge, edge] in about [-1, 1] with `rows` by `columns` bumps."""
    grid = rng.uniform(-1, 1, (max(2, rows), max(2, columns))).astype(np.float32)
    smooth = Image.fromarray(grid).resize((edge, edge), Image.Resampling.BICUBIC)
    return np.array(smooth, dtype=np.float32)


def _mottle(rng: np.random.Generator, edge: int, cells: int, octaves: int = 3) -> Array:
    layers = [_clouds(rng, edge, cells * 2**level, cells * 2**level) / 2**level for level in range(octaves)]
    total: Array = np.sum(layers, axis=0)
    return total


def _flat(edge: int, color: tuple[int, int, int]) -> Array:
    return np.broadcast_to(np.array(color, np.float32), (edge, edge, 3)).copy()


def _blend(canvas: Array, color: tuple[int, int, int], alpha: Array) -> Array:
    mixed: Array = canvas + alpha[..., None] * (np.array(color, np.float32) - canvas)
    return mixed


def _paper(rng: np.random.Generator, edge: int) -> Array:
    canvas: Array = _flat(edge, (246, 241, 230)) + (4 * _mottle(rng, edge, 8))[..., None]
    phase = np.arange(edge) * (30 / edge) % 1.0
    line = np.clip(1 - np.abs(phase - 0.5) * edge / 30, 0, 1).astype(np.float32) * 0.5
    canvas = _blend(canvas, (196, 212, 228), np.maximum(line[:, None], line[None, :]))
    return canvas + rng.normal(0, 2.0, (edge, edge, 1)).astype(np.float32)


def _sand(rng: np.random.Generator, edge: int) -> Array:
    rows = np.arange(edge, dtype=np.float32)[:, None] / edge
    ripple = np.sin(2 * np.pi * (22 * rows + 1.6 * _clouds(rng, edge, 8, 8)))
    canvas = _flat(edge, (228, 205, 160)) + (6 * ripple + 6 * _mottle(rng, edge, 10))[..., None]
    return canvas + rng.normal(0, 6, (edge, edge, 1)).astype(np.float32)


def _grass(rng: np.random.Generator, edge: int) -> Array:
    blades = _clouds(rng, edge, 40, 150) + 0.7 * _clouds(rng, edge, 24, 90)
    canvas: Array = _flat(edge, (160, 198, 116)) + 15 * blades[..., None] * np.array(
        [1.0, 0.9, 0.6], np.float32
    )
    canvas += 9 * _mottle(rng, edge, 6, 2)[..., None]
    return canvas


def _sky(rng: np.random.Generator, edge: int) -> Array:
    canvas = _flat(edge, (150, 196, 238)) + 6 * _mottle(rng, edge, 4, 1)[..., None]
    cover = _clouds(rng, edge, 16, 9) + 0.5 * _clouds(rng, edge, 32, 20) + 0.25 * _clouds(rng, edge, 64, 44)
    return _blend(canvas, (250, 251, 253), np.clip(cover * 0.9 - 0.05, 0, 0.8))


def _wood(rng: np.random.Generator, edge: int) -> Array:
    grain = _clouds(rng, edge, 130, 8) + 0.6 * _clouds(rng, edge, 60, 5)
    boards = np.arange(edge) * (10 / edge)
    shade = rng.uniform(-10, 10, 11).astype(np.float32)[boards.astype(int)]
    canvas = _flat(edge, (202, 160, 112)) + (11 * grain + shade[:, None])[..., None]
    seam = np.clip(1 - np.abs(boards % 1.0 - 0.5) * edge / 12, 0, 1).astype(np.float32) * 0.45
    return _blend(canvas, (120, 84, 50), np.broadcast_to(seam[:, None], (edge, edge)))


def _night(rng: np.random.Generator, edge: int) -> Array:
    canvas: Array = _flat(edge, (30, 34, 66)) + 8 * _mottle(rng, edge, 6)[..., None]
    canvas = _blend(canvas, (74, 58, 112), np.clip(_mottle(rng, edge, 5, 2) * 0.5, 0, 0.6))
    specks = np.zeros((edge, edge), np.float32)
    count = 260
    specks[rng.integers(0, edge, count), rng.integers(0, edge, count)] = rng.uniform(0.15, 0.7, count)
    return _blend(canvas, (235, 235, 250), specks)


def _stone(rng: np.random.Generator, edge: int) -> Array:
    canvas: Array = _flat(edge, (172, 172, 174)) + 12 * _mottle(rng, edge, 10, 4)[..., None]
    vein = np.clip(1 - np.abs(_mottle(rng, edge, 7, 3)) * 14, 0, 1) * 0.35
    canvas = _blend(canvas, (222, 220, 216), vein)
    return canvas + rng.normal(0, 4, (edge, edge, 1)).astype(np.float32)


def _velvet(rng: np.random.Generator, edge: int) -> Array:
    """Deep shifting colors that no named background has: the ground of recoloured images."""
    return np.stack([70 + 55 * _mottle(rng, edge, 6, 2) for _ in range(3)], axis=-1)


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
    tile = np.clip(PAINTERS[name](rng, _TILE * size), 0, 255)
    return np.ascontiguousarray(tile.transpose(2, 0, 1), dtype=np.float32)


def ground(name: str, size: int, dice: Dice) -> Array:
    """Cut out a fresh background [3, size, size], values about 0 to 255: a crop under its own soft light."""
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
    lit: Array = crop * light * tint[:, None]
    return lit
