"""Fused kernels: one launch forward for both maps, their difference, the product with V, head norm and factor.

Plain attention uses torch's own fused kernel.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from diffclip.attention.kernels import KERNELS_VERSION
from diffclip.attention.sdpa import softmax
from diffclip.errors import say_once
from diffclip.files import cache_folder, read_json, write_text

__all__ = ["differential", "softmax", "why_not_fused"]

_INSTALLED = importlib.util.find_spec("triton") is not None
# Triton's interpreter runs the kernels on a CPU, slowly, for tests; like Triton, read the variable once
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_TYPES = (torch.float16, torch.bfloat16, torch.float32)
_LARGEST = (128, 256)  # head sizes of queries and of values
_CAPABILITY = (8, 0)  # for bfloat16, and for shared memory that holds the backward pass's tiles


def why_not_fused(q: Tensor, v: Tensor) -> str | None:
    """Return why the kernels cannot take q [B, 2·H, N, d] and v [B, H, N, e], or None if they can."""
    if not _INSTALLED:
        return "Triton is not installed"
    if q.device.type != "cuda" and not _INTERPRETED:
        return f"the inputs are on {q.device.type}, and the kernels run on a GPU"
    if q.dtype not in _TYPES:
        return f"the inputs are {q.dtype}"
    if q.shape[-1] > _LARGEST[0] or v.shape[-1] > _LARGEST[1]:
        return f"head sizes {q.shape[-1]} and {v.shape[-1]} are above {_LARGEST[0]} and {_LARGEST[1]}"
    return why_no_kernel(q.device.index or 0) if q.device.type == "cuda" else None


def why_not_faster(q: Tensor, v: Tensor) -> str | None:
    """Return why "auto" does not take the kernels for q and v on a GPU, or None if it does: `diffclip bench` has found
    them right and faster than torch's attention on this kind of GPU."""
    found = verdict(q.device.index or 0, str(q.dtype).removeprefix("torch."))
    return why_not_fused(q, v) if found is None else found


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def verdict(index: int, dtype: str) -> str | None:
    """Return why the kernels are not to be preferred on GPU `index` for a type, or None."""
    name = torch.cuda.get_device_name(index)
    unknown = f"the fused kernels have not been measured on {name} in {dtype}: run diffclip bench"
    return _read_verdicts(verdict_file(name)).get(dtype, unknown)


def verdict_file(name: str) -> Path:
    """Return the path of the file with the verdicts on a GPU, named by its kind."""
    kind = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")
    return cache_folder() / "kernels" / f"verdict_v{KERNELS_VERSION}_{kind}_torch-{torch.__version__}.json"


@functools.cache
def _read_verdicts(file: Path) -> dict[str, str | None]:
    """Return the verdicts in `file`; none if it is missing or damaged."""
    verdicts = read_json(file)
    return verdicts if isinstance(verdicts, dict) else {}


def keep_verdict(name: str, dtype: str, why_not: str | None) -> Path:
    """Add the verdict for a type to the file of a GPU, and return its path."""
    file = verdict_file(name)
    _read_verdicts.cache_clear()
    write_text(file, json.dumps({**_read_verdicts(file), dtype: why_not}, indent=1) + "\n")
    _read_verdicts.cache_clear()
    return file


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def why_no_kernel(index: int) -> str | None:
    """Return why no kernel can run on GPU `index` (it is too old, or a first tiny launch failed), or None."""
    return _tried(index)


@functools.cache
def _tried(index: int) -> str | None:
    capability = torch.cuda.get_device_capability(index)
    if capability < _CAPABILITY:
        return f"the GPU has compute capability {capability[0]}.{capability[1]}, and the kernels need 8.0"
    try:
        with _disable_current_modes():  # tracing makes fake tensors, which kernels cannot take
            _launch(torch.device("cuda", index))
    except Exception as error:  # no C compiler for Triton's launcher, no room on the GPU, a driver too old, …
        line = next((line for line in str(error).splitlines() if line.strip()), "")
        say_once(f"the fused attention kernels do not run here: {type(error).__name__}: {line.strip()[:200]}")
        return "a first launch failed"
    return None


def _launch(device: torch.device) -> None:
    """Run the forward kernel once, for one head and 16 tokens."""
    from diffclip.attention.kernels import launch
    from diffclip.attention.kernels.plan import Blocks, Plan

    x, lam = torch.zeros(1, 2, 16, 16, device=device), torch.zeros(1, 1, 16, device=device)
    blocks = Blocks(16, 0, 4, 1)
    plan = Plan(blocks, blocks, blocks)
    launch.forward(x, x, x[:, :1], lam, None, False, 1e-5, 1.0, False, torch.empty_like(x[:, :1]), plan)
    torch.cuda.synchronize(device)


def differential(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor,
    causal: bool,
    gain: Tensor | None,
    eps: float,
    out_scale: float,
) -> Tensor:
    """Compute `diffclip.differential_attention`, with λ as `lambdas.per_head` shapes it."""
    from diffclip.attention.kernels.operator import fused_attention

    lam = lam.expand(*v.shape[:3], 1).squeeze(-1)
    inputs = (q, k, v, lam, gain)
    keep = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)  # for backward
    return fused_attention(q, k, v, lam, gain, causal, eps, out_scale, keep)[0]
