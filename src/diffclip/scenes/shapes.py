"""Shapes as tables of signed distances. A table is made once; any size, tilt and squash is sampled from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Array = NDArray[np.floating[Any]]
Points = list[tuple[float, float]]

REACH = 3.0
"""Half edge of a table in units of the shape's radius: room for a soft shadow or a glow around it."""
CELLS = 264
TURN = {"up": 0.0, "right": 0.5 * math.pi, "down": math.pi, "left": 1.5 * math.pi}


def _around(steps: int, radius: Callable[[int, float], float]) -> Points:
    """Corners clockwise from the top; `radius` takes a corner's number and angle."""
    angles = [2 * math.pi * step / steps for step in range(steps)]
    radii = [radius(step, angle) for step, angle in enumerate(angles)]
    return [(r * math.sin(angle), -r * math.cos(angle)) for r, angle in zip(radii, angles, strict=True)]


def _star(points: int, inner: float) -> Points:
    return _around(2 * points, lambda step, angle: inner if step % 2 else 1.16)


def _flower(petals: int) -> Points:
    return _around(96, lambda step, angle: 0.6 + 0.52 * abs(math.cos(petals * angle / 2)) ** 0.8)


def _heart() -> Points:
    corners = []
    for step in range(64):
        angle = 2 * math.pi * step / 64
        wave = 13 * math.cos(angle) - 5 * math.cos(2 * angle) - 2 * math.cos(3 * angle) - math.cos(4 * angle)
        corners.append((16 * math.sin(angle) ** 3 / 15.5, -(wave + 2.5) / 15.5))
    return corners


def _teardrop() -> Points:
    tip, middle, radius = -1.2, 0.34, 0.72
    opening = math.acos(radius / (middle - tip))
    corners = [(0.0, tip)]
    for step in range(49):
        angle = -0.5 * math.pi + opening + (2 * math.pi - 2 * opening) * step / 48
        corners.append((radius * math.cos(angle), middle + radius * math.sin(angle)))
    return corners


def _cross(arm: float) -> Points:
    corners = [(-arm, -1.0), (arm, -1.0), (arm, -arm)]
    for _ in range(3):
        corners += [(-y, x) for x, y in corners[-3:]]
    return corners


def _box(half: float) -> Points:
    return [(-half, -half), (half, -half), (half, half), (-half, half)]


def _mirrored(*right: tuple[float, float]) -> Points:
    """The corners `right` of the middle, from the top down, and their mirror images."""
    return [*right, *[(-x, y) for x, y in reversed(right) if x]]


_HOOK = [(-0.8, -1.0), (-0.3, -1.0), (-0.3, 0.5), (0.9, 0.5), (0.9, 1.0), (-0.8, 1.0)]
_ZIGZAG = [(-1, -0.2), (-0.5, -0.7), (0, -0.1), (0.5, -0.7), (1, -0.2), (1, 0.4), (0.5, -0.1), (0, 0.5)]
_ZIGZAG += [(-0.5, -0.1), (-1, 0.4)]
_ARROW = _mirrored((0, -1.1), (0.86, -0.12), (0.34, -0.12), (0.34, 1.05))
_TRIANGLE = _mirrored((0, -1.1), (0.86, 0.84))
_DIAMOND = _mirrored((0, -1.16), (0.82, 0), (0, 1.16))


def _polygon(corners: Points, x: Array, y: Array, rounding: float = 0.0) -> Array:
    """Return the exact signed distance [CELLS, CELLS] to a polygon, negative inside; `rounding` grows and rounds it."""
    nearest = np.full(x.shape, np.inf, np.float32)
    inside = np.zeros(x.shape, bool)
    for (ax, ay), (bx, by) in zip(corners, corners[1:] + corners[:1], strict=True):
        ex, ey = bx - ax, by - ay
        px, py = x - ax, y - ay
        along = np.clip((px * ex + py * ey) / (ex * ex + ey * ey), 0.0, 1.0)
        nearest = np.minimum(nearest, (px - along * ex) ** 2 + (py - along * ey) ** 2)
        if ey != 0.0:
            inside ^= ((y < ay) != (y < by)) & (px < ex * py / ey)
    return np.where(inside, -np.sqrt(nearest), np.sqrt(nearest)) - np.float32(rounding)


def _crescent(x: Array, y: Array) -> Array:
    y = y + 0.22
    outer, cut = np.hypot(x, y) - 1.06, np.hypot(x, y + 0.46) - 0.86
    return np.maximum(outer, -cut)


def _ring(half_width: float) -> Callable[[Array, Array], Array]:
    return lambda x, y: np.abs(np.hypot(x, y) - (1.0 - half_width)) - half_width


FORMS: dict[str, Callable[[Array, Array], Array]] = {
    "circle": lambda x, y: np.hypot(x, y) - 0.98,
    "square": lambda x, y: _polygon(_box(0.84), x, y, 0.03),
    "square, rounded corners": lambda x, y: _polygon(_box(0.44), x, y, 0.43),
    "triangle": lambda x, y: _polygon(_TRIANGLE, x, y, 0.03),
    "diamond": lambda x, y: _polygon(_DIAMOND, x, y, 0.02),
    "star": lambda x, y: _polygon(_star(5, 0.5), x, y, 0.02),
    "star, four points": lambda x, y: _polygon(_star(4, 0.42), x, y, 0.02),
    "star, eight points": lambda x, y: _polygon(_star(8, 0.6), x, y, 0.02),
    "heart": lambda x, y: _polygon(_heart(), x, y),
    "ring": _ring(0.25),
    "ring, thin": _ring(0.1),
    "cross": lambda x, y: _polygon(_cross(0.34), x, y, 0.02),
    "cross, thin": lambda x, y: _polygon(_cross(0.12), x, y, 0.02),
    "crescent": _crescent,
    "arrow": lambda x, y: _polygon(_ARROW, x, y, 0.02),
    "flower": lambda x, y: _polygon(_flower(6), x, y),
    "flower, four petals": lambda x, y: _polygon(_flower(4), x, y),
    "teardrop": lambda x, y: _polygon(_teardrop(), x, y),
    "bar": lambda x, y: _polygon([(-0.3, -1.0), (0.3, -1.0), (0.3, 1.0), (-0.3, 1.0)], x, y),
    "hook": lambda x, y: _polygon(_HOOK, x, y),
    "zigzag": lambda x, y: _polygon(_ZIGZAG, x, y),
}
"""Every drawable form; forms with a direction point up. x grows right, y grows down, in units of the radius."""


@cache
def distance_table(form: str) -> Image.Image:
    """The signed distance of `form` as a float image of CELLS x CELLS over [-REACH, REACH]²."""
    axis = ((np.arange(CELLS, dtype=np.float32) + 0.5) / CELLS * 2 - 1) * np.float32(REACH)
    y, x = np.meshgrid(axis, axis, indexing="ij")
    return Image.fromarray(np.ascontiguousarray(FORMS[form](x, y), dtype=np.float32))


@cache
def extent(form: str) -> float:
    """The distance from the center to the farthest point of `form`, in radii."""
    axis = ((np.arange(CELLS) + 0.5) / CELLS * 2 - 1) * REACH
    y, x = np.nonzero(np.asarray(distance_table(form)) < 0)
    return float(np.hypot(axis[y], axis[x]).max())


def sample(
    form: str, width: int, height: int, x: float, y: float, radius: float, angle: float, squash: float = 1.0
) -> Array:
    """Return the signed distance in pixels to `form` centered at (x, y) of a window: [height, width].

    `angle` turns clockwise, in radians; `squash` below 1 narrows the form, like a flat object seen from the side.
    """
    scale = CELLS / (2 * REACH * radius)
    cosine, sine = math.cos(angle) * scale, math.sin(angle) * scale
    a, b, d, e = cosine / squash, sine, -sine / squash, cosine
    middle = CELLS / 2
    matrix = (a, b, middle - a * x - b * y, d, e, middle - d * x - e * y)
    window = distance_table(form).transform(
        (width, height), Image.Transform.AFFINE, matrix, resample=Image.Resampling.BILINEAR, fillcolor=REACH
    )
    return np.asarray(window) * np.float32(radius * min(1.0, squash * 1.4))
