"""L-BFGS with a line search for the strong Wolfe conditions (Nocedal & Wright 2006, algorithms 7.4, 3.5 and 3.6).

It decides as `torch.optim.LBFGS(line_search_fn="strong_wolfe")` does, which the published linear probe uses. Torch
walks the history one small tensor at a time, which takes most of the time of a small problem; NumPy walks it several
times faster (benchmarks/probe.py).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
    evaluations, iteration, scale = 1, 0, 1.0
    history: deque[tuple[Vector, Vector, float]] = deque(maxlen=HISTORY)
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
        curvature = float(change @ moved)
        if curvature > 1e-10:
            history.append((moved, change, 1 / curvature))
            scale = curvature / float(change @ change)
        direction, step = _direction(gradient, history, scale), 1.0
    return x, iteration


def _direction(gradient: Vector, history: deque[tuple[Vector, Vector, float]], scale: float) -> Vector:
    """Multiply −gradient by the inverse Hessian that the history of steps and changes of the gradient approximates."""
    q = -gradient
    weights = []
    for moved, change, inverse in reversed(history):
        weights.append(inverse * float(moved @ q))
        q -= weights[-1] * change
    q *= scale
    for (moved, change, inverse), weight in zip(history, reversed(weights), strict=True):
        q += (weight - inverse * float(change @ q)) * moved
    return q


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
