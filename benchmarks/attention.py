"""Time of the attention operators by backend and length, as ratios within one run.

    python -m benchmarks.attention [--device cpu|cuda] [--dtype float32|bfloat16] [--output benchmarks/results]

Rows: plain attention, and differential attention with each backend, with timm's arrangement (two fused calls, values of
twice the width) as a yardstick. Backends take turns within each round, so that a machine's moods meet all of them.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from diffclip import differential_attention
from diffclip.attention import BACKENDS, softmax_attention
from diffclip.files import write_text

# name → (batch, query heads, tokens, head size, causal)
SHAPES = {
    "Flickr8k recipe, vision": (256, 6, 26, 32, False),
    "Flickr8k recipe, text": (256, 6, 32, 32, True),
    "ViT-B/16 text": (32, 8, 77, 64, True),
    "ViT-B/16 at 224 px": (8, 12, 197, 64, False),
    "ViT-B/16 at 384 px": (2, 12, 577, 64, False),
    "ViT-B/16 at 768 px": (1, 12, 2305, 64, False),
}
Operator = Callable[[Tensor, Tensor, Tensor, Tensor, bool], Tensor]


def timm_arrangement(q: Tensor, k: Tensor, v: Tensor, lam: Tensor, causal: bool) -> Tensor:
    """As timm's `DiffAttention` computes it (timm/layers/diff_attention.py)."""
    first, second = (
        F.scaled_dot_product_attention(q[:, i::2], k[:, i::2], v, is_causal=causal) for i in (0, 1)
    )
    return first - lam.to(first.dtype) * second


def operators() -> dict[str, Operator]:
    """Name → operator on q, k [B, 2H, N, d], v [B, H, N, 2d]; the plain ones see v as [B, 2H, N, d]."""
    plain: dict[str, Operator] = {
        f"plain {name}": lambda q, k, v, lam, causal, name=name: softmax_attention(
            q, k, v.unflatten(-1, (2, -1)).movedim(-2, 2).flatten(1, 2), causal, name
        )
        for name in ("auto", *BACKENDS)
    }
    differential: dict[str, Operator] = {
        f"differential {name}": lambda q, k, v, lam, causal, name=name: differential_attention(
            q, k, v, lam, causal, name
        )
        for name in ("auto", *BACKENDS)
    }
    return plain | differential | {"differential timm": timm_arrangement}


def measure(
    shape: tuple[int, int, int, int, bool], device: str, dtype: torch.dtype, rounds: int
) -> dict[str, dict]:
    """Name → median and spread in milliseconds, forward alone and forward with backward."""
    batch, heads, tokens, d, causal = shape
    generator = torch.Generator().manual_seed(0)
    sizes = [(heads, d), (heads, d), (heads // 2, 2 * d)]
    drawn = [torch.randn(batch, tokens, h, e, generator=generator) for h, e in sizes]
    q, k, v = (t.to(device, dtype).transpose(1, 2) for t in drawn)
    lam = torch.tensor(0.8, device=device)
    times: dict[str, dict[str, list[float]]] = {name: {"forward": [], "both": []} for name in operators()}
    for turn in range(rounds + 1):
        for name, operator in operators().items():
            with torch.no_grad():
                forward = _timed(partial(operator, q, k, v, lam, causal), device)
            both = _timed(partial(_forward_backward, operator, q, k, v, lam, causal), device)
            if turn:  # the first round warms up
                times[name]["forward"].append(forward)
                times[name]["both"].append(both)
    return {
        name: {
            kind: {"median_ms": statistics.median(values), "least_ms": min(values), "most_ms": max(values)}
            for kind, values in kinds.items()
        }
        for name, kinds in times.items()
    }


def _forward_backward(operator: Operator, q: Tensor, k: Tensor, v: Tensor, lam: Tensor, causal: bool) -> None:
    inputs = [t.detach().requires_grad_() for t in (q, k, v)]
    torch.autograd.grad(operator(*inputs, lam, causal).sum(), inputs)


def _timed(work: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = {}
    for name, shape in SHAPES.items():
        results[name] = measure(shape, options.device, getattr(torch, options.dtype), options.rounds)
        plain = results[name]["plain auto"]
        print(f"\n{name}: batch, query heads, tokens, head size, causal = {shape}")
        print(f"{'':22}{'forward ms':>12}{'/ plain':>9}{'fwd+bwd ms':>12}{'/ plain':>9}")
        for row, kinds in results[name].items():
            cells = "".join(
                f"{kinds[kind]['median_ms']:12.2f}{kinds[kind]['median_ms'] / plain[kind]['median_ms']:9.2f}"
                for kind in ("forward", "both")
            )
            print(f"{row:22}{cells}")
    device = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
    about = {
        "command": f"python -m benchmarks.attention --device {options.device} --dtype {options.dtype}",
        "device": device,
        "threads": options.threads,
        "torch": torch.__version__,
        "rounds": options.rounds,
    }
    file = options.output / f"attention_{options.device}_{options.dtype}.json"
    write_text(file, json.dumps({"about": about, "shapes": SHAPES, "times": results}, indent=1) + "\n")
    print(f"\nwritten to {file}")


if __name__ == "__main__":
    main()
