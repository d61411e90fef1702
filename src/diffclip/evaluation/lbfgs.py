"""L-BFGS with a line search for the strong Wolfe conditions (Nocedal & Wright 2006, algorithms 7.4, 3.5 and 3.6).

It decides as `torch.optim.LBFGS(line_search_fn="strong_wolfe")` does, which the published linear probe uses. Torch
walks the history one small tensor at a time, which takes most of the time of a small problem. A few matrix products
give the same direction, up to rounding, several times faster (benchmarks/probe.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dtrtrs  # solves a triangular system

Vector = NDArray[np.floating]
Evaluate = Callable[[Vector], tuple[float, Vector]]
"""From parameters to the loss and its gradient."""

HISTORY = 100
_DECREASE, _CURVATURE = 1e-4, 0.9  # the constants c₁ and c₂ of the Wolfe conditions
_GRADIENT_TOLERANCE, _CHANGE_TOLERANCE = 1e-7, 1e-9
_SEARCH_STEPS = 25


class _Point(NamedTuple):
    """The loss at a step along the direction, its gradient, and its slope along the direction."""

    step: float
    loss: float
    gradient: Vector
    slope: float


def minimize(evaluate: Evaluate, start: Vector, iterations: int) -> tuple[Vector, int]:
    """Minimize from `start`; return the parameters and the number of iterations, at most `iterations`."""
    x = start.copy()
    loss, gradient = evaluate(x)
    evaluations, iteration, history = 1, 0, _History(start)
    direction = -gradient
    step = min(1.0, 1 / max(float(np.abs(gradient).sum()), 1e-30))
    while np.abs(gradient).max() > _GRADIENT_TOLERANCE:
        iteration += 1
        slope = float(gradient @ direction)
        if slope > -_CHANGE_TOLERANCE:
            break
        found, used = _search(evaluate, x, direction, _Point(0.0, loss, gradient, slope), step)
        evaluations += used
        moved, change = found.step * direction, found.gradient - gradient
        x, before, loss, gradient = x + moved, loss, found.loss, found.gradient
        if iteration == iterations or evaluations >= iterations * 5 // 4:
            break
        if np.abs(moved).max() <= _CHANGE_TOLERANCE or abs(loss - before) < _CHANGE_TOLERANCE:
            break
        if float(change @ moved) > 1e-10:
            history.add(moved, change)
        direction, step = -history.multiply(gradient), 1.0
    return x, iteration


class _History:
    """The last steps S and changes Y of the gradient, and the inverse Hessian that they approximate, in the compact
    form of Byrd, Nocedal and Schnabel (1994), equation 3.1."""

    def __init__(self, start: Vector) -> None:
        # S and Y; the newest takes the oldest's place
        self._pairs = np.empty((2, HISTORY, start.size), start.dtype)
        self._products = np.zeros((2, HISTORY, HISTORY))  # SYᵀ and YYᵀ, from the oldest to the newest
        self._added, self._order = 0, np.arange(0)  # the places of the pairs, from the oldest to the newest

    def add(self, moved: Vector, change: Vector) -> None:
        self._added += 1
        count = min(self._added, HISTORY)
        self._order = np.arange(self._added - count, self._added) % HISTORY
        if self._added > HISTORY:
            self._products[:, :-1, :-1] = self._products[:, 1:, 1:]
        self._pairs[:, self._order[-1]] = moved, change
        self._products[:, :count, count - 1] = self._dot(change)
        self._products[1, count - 1] = self._products[1, :, count - 1]

    def multiply(self, gradient: Vector) -> Vector:
        """Multiply a gradient by the inverse Hessian."""
        count = len(self._order)
        if not count:
            return gradient
        (upper, changes), (by_step, by_change) = self._products[:, :count, :count], self._dot(gradient)
        scale = upper[-1, -1] / changes[-1, -1]
        weights = np.empty((2, count))
        solved, _ = dtrtrs(upper, by_step)
        right = upper.diagonal() * solved + scale * (changes @ solved - by_change)
        weights[0, self._order], _ = dtrtrs(upper, right, trans=1)
        weights[1, self._order] = -scale * solved
        steps, changes = self._pairs[:, :count]
        step_weights, change_weights = weights.astype(gradient.dtype)
        product: Vector = step_weights @ steps + change_weights @ changes
        product += gradient * gradient.dtype.type(scale)
        return product

    def _dot(self, vector: Vector) -> NDArray[np.float64]:
        """Multiply each step and change by a vector: [2, n], from the oldest to the newest."""
        products: NDArray[np.float64] = (self._pairs[:, : len(self._order)] @ vector)[:, self._order]
        return products.astype(np.float64)


def _search(
    evaluate: Evaluate, x: Vector, direction: Vector, start: _Point, step: float
) -> tuple[_Point, int]:
    """Find a step that meets the strong Wolfe conditions; return its point and the number of evaluations."""

    def point_at(step: float) -> _Point:
        loss, gradient = evaluate(x + step * direction)
        return _Point(step, loss, gradient, float(gradient @ direction))

    def is_too_high(point: _Point) -> bool:
        return point.loss > start.loss + _DECREASE * point.step * start.slope

    def is_flat(point: _Point) -> bool:
        return abs(point.slope) <= -_CURVATURE * start.slope

    previous, point = start, point_at(step)
    for used in range(1, _SEARCH_STEPS + 1):
        if is_too_high(point) or (used > 2 and point.loss >= previous.loss):
            break
        if is_flat(point):
            return point, used
        if point.slope >= 0:
            break
        limits = point.step + 0.01 * (point.step - previous.step), 10 * point.step
        previous, point = point, point_at(_lowest(previous, point, limits))
    else:
        used, previous = _SEARCH_STEPS + 1, start
    low, high = (previous, point) if previous.loss <= point.loss else (point, previous)
    largest = float(np.abs(direction).max())
    is_slow = False
    while used <= _SEARCH_STEPS:
        left, right = min(low.step, high.step), max(low.step, high.step)
        if (right - left) * largest < _CHANGE_TOLERANCE:
            break
        step, margin = _lowest(low, high, (left, right)), 0.1 * (right - left)
        is_close = min(right - step, step - left) < margin
        if is_close and (is_slow or not left < step < right):
            step = right - margin if right - step < step - left else left + margin
            is_close = False
        is_slow = is_close
        point, used = point_at(step), used + 1
        if is_too_high(point) or point.loss >= low.loss:
            low, high = (low, point) if low.loss <= point.loss else (point, low)
        elif is_flat(point):
            return point, used
        else:
            low, high = point, low if point.slope * (high.step - low.step) >= 0 else high
    return low, used


def _lowest(a: _Point, b: _Point, limits: tuple[float, float]) -> float:
    """Return the minimum, within `limits`, of the cubic through two points with their slopes (equation 3.59)."""
    a, b = (a, b) if a.step <= b.step else (b, a)
    d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.step - b.step)
    square = d1 * d1 - a.slope * b.slope
    if square < 0:
        return (limits[0] + limits[1]) / 2
    d2 = math.sqrt(square)
    step = b.step - (b.step - a.step) * (b.slope + d2 - d1) / (b.slope - a.slope + 2 * d2)
    return min(max(step, limits[0]), limits[1])
