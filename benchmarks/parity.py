"""Every attention backend on a device against the formula in float64 on the CPU: relative errors, forward and backward.

    python -m benchmarks.parity [--device cuda] [--output benchmarks/results]

Exits with 1 if an error is above 1e-5 in float32 (IEEE products) or 1e-2 in bfloat16.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from torch import Tensor

from diffclip import differential_attention
from diffclip.attention import BACKENDS
from diffclip.files import write_text

SHAPES = [(2, 6, 197, 64, False), (2, 4, 77, 64, True), (1, 4, 1025, 64, False), (3, 3, 50, 32, False)]
LIMITS = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def outputs(inputs: list[Tensor], weights: Tensor, causal: bool, backend: str) -> list[Tensor]:
    """The output, and the gradients of q, k, v, λ and the gain, for a loss that is linear in the output."""
    leaves = [t.detach().requires_grad_() for t in inputs]
    q, k, v, lam, gain = leaves
    out = differential_attention(q, k, v, lam, causal, backend, norm_weight=gain, out_scale=0.2)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), leaves)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    generator = torch.Generator().manual_seed(0)
    names = ("out", "q", "k", "v", "lambda", "gain")
    rows, failed = [], False
    for batch, heads, tokens, d, causal in SHAPES:
        shapes = [(batch, 2 * heads, tokens, d)] * 2 + [(batch, heads, tokens, 2 * d)]
        q, k, v = (torch.randn(shape, generator=generator) for shape in shapes)
        gain, weights = (
            1 + 0.1 * torch.randn(2 * d, generator=generator),
            torch.randn(shapes[2], generator=generator),
        )
        for dtype, limit in LIMITS.items():
            rounded = [t.to(dtype) for t in (q, k, v)] + [torch.tensor(0.8), gain]
            exact = outputs([t.double() for t in rounded], weights.double(), causal, "eager")
            for backend in BACKENDS:
                moved = [t.to(options.device) for t in rounded]
                got = outputs(moved, weights.to(options.device), causal, backend)
                errors = {
                    name: float((a.cpu().double() - b).norm() / b.norm())
                    for name, a, b in zip(names, got, exact, strict=True)
                }
                # a sum over all tokens may cancel: λ is held to the others' scale in the tests, and shown here
                worst = max(error for name, error in errors.items() if name != "lambda")
                failed |= worst > limit
                shape = f"B{batch} H{heads} N{tokens} d{d}{' causal' if causal else ''}"
                print(f"{shape:28}{dtype!s:16}{backend:8} worst {worst:.1e}  λ {errors['lambda']:.1e}")
                rows.append({"shape": shape, "dtype": str(dtype), "backend": backend, "errors": errors})
    device = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    write_text(
        options.output / f"parity_{options.device}.json",
        json.dumps({"device": device, "rows": rows}, indent=1),
    )
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
