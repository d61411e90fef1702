"""Measure time and memory of the attention operators by backend and shape, beside plain attention and a floor.

    python -m benchmarks.attention [--device cpu|cuda] [--dtype TYPE] [--curve | --busy] [--output FOLDER]

Writes attention_DEVICE_DTYPE.json, and with --curve also attention_curve_DEVICE_DTYPE.json: cost against length, with
about the same number of tokens in every batch. With --busy another process keeps a core busy all the time, and _busy is
added to the names of the files. How it is timed: src/diffclip/benchmarking.

The floor is the work of a layer divided by the device's peak rates. (A1 − λ·A2)·V takes one product with values of
twice the width. So plain attention with as many query heads needs equal bytes, operations and exponentials.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch

from benchmarks import tables
from benchmarks.about import about, add_common_options, parser_of, run_ahead, write_json
from diffclip.benchmarking.attention import measure
from diffclip.benchmarking.operators import OPERATORS, Shape, make_inputs, why_not
from diffclip.benchmarking.timing import make_sampler

SHAPES = {
    "cpu": {
        "Flickr8k recipe, vision": Shape(256, 6, 26, 32),
        "Flickr8k recipe, text": Shape(256, 6, 32, 32, causal=True),
        "ViT-B/16 text": Shape(32, 8, 77, causal=True),
        "ViT-B/16 at 224 px": Shape(8, 12, 197),
        "ViT-B/16 at 384 px": Shape(2, 12, 577),
        "ViT-B/16 at 768 px": Shape(1, 12, 2305),
    },
    "cuda": {
        "ViT-B/16 at 224 px": Shape(256, 12, 197),
        "ViT-B/16 text": Shape(256, 8, 77, causal=True),
        "ViT-B/32 at 224 px": Shape(256, 12, 50),
        "ViT-B/16 at 384 px": Shape(64, 12, 577),
        "ViT-B/16 at 512 px": Shape(16, 12, 1025),
        "ViT-B/16 at 1024 px": Shape(4, 12, 4097),
    },
}
# ViT-B's heads, and about the same number of tokens in every batch, so that cost depends on length alone
CURVE = {
    "cpu": [Shape(max(1, 2304 // n), 12, n) for n in (50, 64, 128, 197, 256, 512, 577, 1025, 2305)],
    "cuda": [Shape(32768 // n, 12, n) for n in (50, 64, 128, 197, 256, 512, 577, 1025, 2048, 4097)],
}

# per multiprocessor: CUDA C++ Programming Guide, throughput of native instructions
_EXPONENTIALS_PER_CLOCK = 16


def main() -> None:
    parser = parser_of(__doc__)
    add_common_options(parser, seconds=150.0)
    parser.add_argument("--rounds", type=int, default=15, help="at most, a shape")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), help="default: bfloat16 on a GPU, else float32"
    )
    parser.add_argument("--curve", action="store_true", help="cost against length too")
    parser.add_argument("--workers", type=int, default=1, help="processes that compile the kernels ahead")
    parser.add_argument("--largest", type=int, default=None, help="leave out shapes with more tokens")
    parser.add_argument("--smallest", type=int, default=0, help="leave out shapes with fewer tokens")
    parser.add_argument("--busy", action="store_true", help="beside a process that spins on one core")
    options = parser.parse_args()
    if options.busy and options.curve:
        parser.error("--curve is for a quiet machine: leave --busy out")
    with spinning() if options.busy else nullcontext():
        run(options)


@contextmanager
def spinning() -> Iterator[None]:
    """Run a process that only keeps a core busy."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def run(options: argparse.Namespace) -> None:
    """Measure all shapes and write the files."""
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    name = options.dtype or ("bfloat16" if device.type == "cuda" else "float32")
    dtype = getattr(torch, name)
    ceilings = measure_ceilings(device, dtype)
    parts = {"attention": SHAPES[device.type]}
    if options.curve:
        parts["attention_curve"] = {f"N = {shape.tokens}": shape for shape in CURVE[device.type]}
    largest = options.largest or math.inf
    for part, shapes in parts.items():
        parts[part] = {k: shape for k, shape in shapes.items() if options.smallest <= shape.tokens <= largest}
    deadline = time.perf_counter() + options.seconds
    if device.type == "cuda":
        jobs = [(shape, device, dtype) for shapes in parts.values() for shape in shapes.values()]
        run_ahead(compile_kernels, jobs, options.workers, options.seconds / 3)
    waiting = sum(map(len, parts.values()))
    for part, shapes in parts.items():
        result: dict[str, Any] = {
            "about": about("attention", options) | {"dtype": name, "rounds": options.rounds},
            "ceilings": asdict(ceilings),
            "shapes": {},
        }
        file = options.output / f"{part}{'_busy' if options.busy else ''}_{device.type}_{name}.json"
        for key, shape in shapes.items():
            remaining = deadline - time.perf_counter()
            share = max(1.0, remaining / waiting)
            waiting -= 1
            if remaining < 0 and part == "attention_curve":  # only points of the curve may be left out
                result["not_reached"] = [*result.get("not_reached", []), key]
                continue
            rows = measure(shape, device, dtype, options.rounds, share)
            add_floors(rows, shape, dtype.itemsize, ceilings)
            result["shapes"][key] = {"shape": asdict(shape), "rows": rows}
            write_json(file, result)  # after every shape, so that a stopped run keeps its results
            latest = result | {"shapes": {key: result["shapes"][key]}}
            print("\n".join(tables.attention_table(latest)), flush=True)
        print(f"written to {file}", flush=True)


def compile_kernels(shape: Shape, device: torch.device, dtype: torch.dtype) -> None:
    """Run every operator that has fused kernels once, so that they are compiled."""
    inputs = make_inputs(shape, device, dtype)
    for name, operator in OPERATORS.items():
        if "triton" in name and why_not(name, inputs) is None:
            operator.forward_and_backward(inputs)
            with torch.no_grad():
                operator.forward(inputs)


class Work(NamedTuple):
    """The least work of a shape: bytes moved through memory, operations of matrix products, exponentials."""

    bytes: float
    operations: float
    exponentials: float


def forward_work(shape: Shape, element: int) -> Work:
    """Count the forward work: Q, K, V read and O written once (`element` bytes per number), products Q·Kᵀ and A·V."""
    rows = (shape.tokens + 1) / 2 if shape.causal else shape.tokens
    scores = shape.batch * shape.heads * shape.tokens * rows
    matrix = shape.batch * shape.tokens * shape.width * element
    # a product of scores [N, N] with a matrix of width d takes 2·d operations per score; V is twice as wide and
    # used once per pair
    return Work(4 * matrix, 2 * 2 * shape.size * scores, scores)


def backward_work(shape: Shape, element: int) -> Work:
    """Count the backward work: Q, K, V, O and O's gradient read, three gradients written, 2.5 × the forward products.

    The maps are not kept, so their exponentials are computed again.
    """
    forward = forward_work(shape, element)
    return Work(2 * forward.bytes, 2.5 * forward.operations, forward.exponentials)


@dataclass(frozen=True)
class Ceilings:
    """Peak rates of a device per second (None: unknown), and the sources of the numbers."""

    bandwidth: float | None
    operations: float | None
    exponentials: float | None
    sources: dict[str, str]

    def floor(self, work: Work) -> float | None:
        """Return the milliseconds that `work` takes at least; None if no rate is known."""
        rates = (self.bandwidth, self.operations, self.exponentials)
        times = [1000 * amount / rate for amount, rate in zip(work, rates, strict=True) if rate]
        return max(times, default=None)


def measure_ceilings(device: torch.device, dtype: torch.dtype) -> Ceilings:
    """Measure a large matrix product and, on a GPU, a large copy. A CPU uses as many threads as torch has now."""
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
    """Return the time of the fastest of 20 samples, because a ceiling is the best that the device can do."""
    sampler = make_sampler(call, device)
    return min(sampler() for _ in range(20)) / 1000


def add_floors(rows: dict[str, dict[str, Any]], shape: Shape, element: int, ceilings: Ceilings) -> None:
    """Add `floor_ms` and `floor_share` to each time of the rows of `diffclip.benchmarking.attention.measure`."""
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


if __name__ == "__main__":
    main()
