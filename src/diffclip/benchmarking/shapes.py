"""The attention of a layer as sizes, the work that it takes at least, and the time that this work takes at least.

(A1 − λ·A2)·V takes one product with values of twice the width, so plain attention with as many query heads has the
same counts: bytes, operations and exponentials below are those of both.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Self-attention of `heads` query heads of `size`, in pairs; half as many values, twice as wide."""

    batch: int
    heads: int
    tokens: int
    size: int = 64
    causal: bool = False

    @property
    def width(self) -> int:
        """C, of queries, keys and values each."""
        return self.heads * self.size

    def __str__(self) -> str:
        causal = ", causal" if self.causal else ""
        return f"batch {self.batch}, {self.heads} query heads of {self.size}, {self.tokens} tokens{causal}"


@dataclass(frozen=True)
class Work:
    """The least work of a shape: bytes moved through memory, operations of matrix products, exponentials."""

    bytes: float
    operations: float
    exponentials: float

    def __add__(self, other: Work) -> Work:
        return Work(
            self.bytes + other.bytes,
            self.operations + other.operations,
            self.exponentials + other.exponentials,
        )


def forward_work(shape: Shape, element: int) -> Work:
    """Q, K and V read and O written once, with `element` bytes each; two products Q·Kᵀ a pair and one with V."""
    scores = _scores(shape)
    # a product of scores [N, N] with a matrix of width d takes 2·d operations a score; V is twice as wide, once a pair
    return Work(4 * _matrix(shape, element), 2 * 2 * shape.size * scores, scores)


def backward_work(shape: Shape, element: int) -> Work:
    """Q, K, V, O and O's gradient read, three gradients written; two and a half times the products of the forward pass.

    The maps are not kept, so that their exponentials are taken again.
    """
    forward = forward_work(shape, element)
    return Work(8 * _matrix(shape, element), 2.5 * forward.operations, forward.exponentials)


def _scores(shape: Shape) -> float:
    """Entries of all maps that count."""
    each = shape.tokens * (shape.tokens + 1) / 2 if shape.causal else shape.tokens**2
    return shape.batch * shape.heads * each


def _matrix(shape: Shape, element: int) -> float:
    """Bytes of Q, which are those of K, V and O."""
    return float(shape.batch * shape.tokens * shape.width * element)


@dataclass(frozen=True)
class Ceilings:
    """Peak rates of a device per second, None where unknown, and the source of the numbers."""

    bandwidth: float | None
    operations: float | None
    exponentials: float | None
    sources: dict[str, str]

    def floor(self, work: Work) -> tuple[float, str] | None:
        """Milliseconds that `work` takes at least, and which part of it decides; None where nothing is known."""
        parts = {
            "bytes": (work.bytes, self.bandwidth),
            "products": (work.operations, self.operations),
            "exponentials": (work.exponentials, self.exponentials),
        }
        times = {name: 1000 * amount / rate for name, (amount, rate) in parts.items() if rate}
        if not times:
            return None
        slowest = max(times, key=lambda name: times[name])
        return times[slowest], slowest
