"""Time and memory of the attention operators by backend and shape, beside plain attention and the floor.

    python -m benchmarks.attention [--device cpu|cuda] [--dtype TYPE] [--curve] [--busy] [--output FOLDER]

Writes attention_DEVICE_DTYPE.json, and with --curve also attention_curve_DEVICE_DTYPE.json: cost against length, with
about the same number of tokens in every batch. With --busy a process spins beside it all, and files are named _busy.
How it is timed: src/diffclip/benchmarking.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

import torch

from benchmarks import tables
from benchmarks.about import about, add_common_options, parser_of, run_ahead, write_json
from benchmarks.floor import add_floors, measure_ceilings
from diffclip.benchmarking.attention import measure
from diffclip.benchmarking.operators import Shape, make_inputs, operators, why_not

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
# ViT-B's heads and about as many tokens in every batch, so that what is left is the cost of length
CURVE = {
    "cpu": [Shape(max(1, 2304 // n), 12, n) for n in (50, 64, 128, 197, 256, 512, 577, 1025, 2305)],
    "cuda": [Shape(32768 // n, 12, n) for n in (50, 64, 128, 197, 256, 512, 577, 1025, 2048, 4097)],
}


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
    with spinning() if options.busy else nullcontext():
        run(options)


@contextmanager
def spinning() -> Iterator[None]:
    """Run a process that does nothing but use a core."""
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
    for part, named in parts.items():
        parts[part] = {k: one for k, one in named.items() if options.smallest <= one.tokens <= largest}
    deadline = time.perf_counter() + options.seconds
    if device.type == "cuda":
        jobs = [(shape, device, dtype) for named in parts.values() for shape in named.values()]
        run_ahead(compile_kernels, jobs, options.workers, options.seconds / 3)
    waiting = sum(map(len, parts.values()))
    for part, named in parts.items():
        result: dict[str, Any] = {
            "about": about("attention", options) | {"dtype": name, "rounds": options.rounds},
            "ceilings": asdict(ceilings),
            "shapes": {},
        }
        file = options.output / f"{part}{'_busy' if options.busy else ''}_{device.type}_{name}.json"
        for key, shape in named.items():
            left = deadline - time.perf_counter()
            share = max(1.0, left / waiting)
            waiting -= 1
            if left < 0 and part == "attention_curve":  # a point of the curve less, but never a shape
                result["not_reached"] = [*result.get("not_reached", []), key]
                continue
            rows = measure(shape, device, dtype, options.rounds, share)
            add_floors(rows, shape, dtype.itemsize, ceilings)
            result["shapes"][key] = {"shape": asdict(shape), "rows": rows}
            write_json(file, result)  # after every shape: a run that is stopped leaves what it has
            shown = result | {"shapes": {key: result["shapes"][key]}}
            print("\n".join(tables.attention(shown)), flush=True)
        print(f"written to {file}", flush=True)


def compile_kernels(shape: Shape, device: torch.device, dtype: torch.dtype) -> None:
    """Run every operator that has fused kernels once."""
    inputs = make_inputs(shape, device, dtype, seed=0)
    for name, operator in operators(device).items():
        if "triton" in name and why_not(name, inputs) is None:
            operator.forward_and_backward(inputs)
            with torch.no_grad():
                operator.forward(inputs)


if __name__ == "__main__":
    main()
