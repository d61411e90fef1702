"""The least time that attention takes on a device: the work of a layer over the device's measured rates.

(A1 − λ·A2)·V takes one product with values of twice the width, so plain attention with as many query heads has the
same counts: bytes, operations and exponentials below are those of both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from diffclip.benchmarking.operators import Shape
from diffclip.benchmarking.timing import make_sampler

# of a multiprocessor: CUDA C++ Programming Guide, throughput of native instructions
_EXPONENTIALS_PER_CLOCK = 16


class Work(NamedTuple):
    """The least work of a shape: bytes moved through memory, operations of matrix products, exponentials."""

    bytes: float
    operations: float
    exponentials: float


def forward_work(shape: Shape, element: int) -> Work:
    """Count Q, K and V read and O written once, with `element` bytes per number, and the products Q·Kᵀ and with V."""
    rows = (shape.tokens + 1) / 2 if shape.causal else shape.tokens
    scores = shape.batch * shape.heads * shape.tokens * rows
    matrix = shape.batch * shape.tokens * shape.width * element
    # a product of scores [N, N] with a matrix of width d takes 2·d operations per score; V is twice as wide and
    # used once per pair
    return Work(4 * matrix, 2 * 2 * shape.size * scores, scores)


def backward_work(shape: Shape, element: int) -> Work:
    """Count Q, K, V, O and O's gradient read, three gradients written; two and a half times the forward products.

    The maps are not kept, so their exponentials are computed again.
    """
    forward = forward_work(shape, element)
    return Work(2 * forward.bytes, 2.5 * forward.operations, forward.exponentials)


@dataclass(frozen=True)
class Ceilings:
    """Peak rates of a device per second, None where unknown, and the source of the numbers."""

    bandwidth: float | None
    operations: float | None
    exponentials: float | None
    sources: dict[str, str]

    def floor(self, work: Work) -> float | None:
        """Return the milliseconds that `work` takes at least; None without any rate."""
        rates = (self.bandwidth, self.operations, self.exponentials)
        times = [1000 * amount / rate for amount, rate in zip(work, rates, strict=True) if rate]
        return max(times, default=None)


def measure_ceilings(device: torch.device, dtype: torch.dtype) -> Ceilings:
    """Measure a large product and a large copy; on a CPU only the product, with the threads that torch uses now."""
    on_gpu = device.type == "cuda"
    edge = 8192 if on_gpu else 2048
    a, b = (torch.randn(edge, edge, device=device).to(dtype) for _ in range(2))
    product = torch.empty(edge, edge, device=device, dtype=dtype)
    operations = 2 * edge**3 / _seconds(lambda: torch.mm(a, b, out=product), device)
    sources = {"operations": f"a product of two random {edge}×{edge} matrices, {dtype}"}
    if not on_gpu:
        return Ceilings(None, operations, None, sources)
    source = torch.randint(255, (2**31,), device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    bandwidth = 2 * source.numel() / _seconds(lambda: target.copy_(source), device)
    sources["bandwidth"] = "a copy of 2 GiB from device to device, bytes read and written"
    card = torch.cuda.get_device_properties(device)
    hertz, count = 1000 * getattr(card, "clock_rate", 0), card.multi_processor_count
    if hertz:
        sources["exponentials"] = (
            f"{_EXPONENTIALS_PER_CLOCK} a clock × {count} multiprocessors × {hertz / 1e9:.2f} GHz"
        )
    return Ceilings(bandwidth, operations, _EXPONENTIALS_PER_CLOCK * count * hertz or None, sources)


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    """Return the time of the fastest of some calls: a ceiling is what the device can do."""
    sampler = make_sampler([call], device, record=False)
    return min(sampler() for _ in range(20)) / 1000


def add_floors(rows: dict[str, dict[str, Any]], shape: Shape, element: int, ceilings: Ceilings) -> None:
    """Add `floor_ms` and `floor_share` to each time of the rows of `diffclip.benchmarking.measure`."""
    forward = ceilings.floor(forward_work(shape, element))
    backward = ceilings.floor(backward_work(shape, element))
    if forward is None or backward is None:
        return
    for row in rows.values():
        for kind, floor in {"forward": forward, "backward": backward, "both": forward + backward}.items():
            if kind in row:
                row[kind] |= {"floor_ms": floor}
                if row[kind]["median_ms"] > 0:
                    row[kind]["floor_share"] = floor / row[kind]["median_ms"]
