"""Advice on the backend for this machine: each one measured for both towers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch

from diffclip.attention import BACKENDS, dispatch
from diffclip.benchmarking.operators import TIMM, make_inputs
from diffclip.benchmarking.shapes import Shape

# ViT-B/16's towers; on a GPU the batch fills the chip
SHAPES = {
    "cpu": {"vision": Shape(8, 12, 197), "text": Shape(32, 8, 77, causal=True)},
    "cuda": {"vision": Shape(256, 12, 197), "text": Shape(256, 8, 77, causal=True)},
}
DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
_PREFIX = "differential "
_AS_GOOD = 1.05  # "auto" is advised unless another backend is quicker by more than what noise makes


@dataclass(frozen=True)
class Advice:
    """The backend to use, what "auto" stands for in each tower, and the line that says it."""

    backend: str
    auto: dict[str, str]
    line: str


def advise(rows: dict[str, dict[str, dict[str, Any]]], auto: dict[str, str]) -> Advice:
    """The backend to use.

    Args:
        rows: for each tower the rows of `attention.measure`.
        auto: for each tower the backend that "auto" stands for.
    """
    times = {
        name: [_time(of_tower, _PREFIX + name) for of_tower in rows.values()] for name in ("auto", *BACKENDS)
    }
    means = {name: math.prod(ts) for name, ts in times.items()}  # ratios of geometric means, but for the root
    best = min(means, key=lambda name: means[name])
    towers = len(rows)
    backend = "auto" if means["auto"] <= means[best] * _AS_GOOD**towers else best
    parts = []
    for (tower, of_tower), own in zip(rows.items(), times[backend], strict=True):
        ratio = _time(of_tower, TIMM) / own
        name = f"{auto[tower]} for {tower}" if backend == "auto" else tower
        parts.append(f"{name}, {ratio:.1f} times" if math.isfinite(ratio) else name)
    line = f'use attention_backend="{backend}": ' + "; ".join(parts)
    return Advice(backend, auto, f"{line} the speed of timm's arrangement, forward and backward")


def automatic(shape: Shape, device: torch.device, dtype: torch.dtype) -> str:
    """The backend that "auto" stands for."""
    one = Shape(1, shape.heads, shape.tokens, shape.size, shape.causal)
    inputs = make_inputs(one, device, dtype, seed=0)
    return dispatch.choose_backend("auto", inputs.q, inputs.v, 0.0)


def described(device: torch.device) -> dict[str, Any]:
    """The machine, for a result that is kept."""
    import platform

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {"device": name, "threads": torch.get_num_threads(), "torch": torch.__version__}


def result(
    device: torch.device, dtype: torch.dtype, rows: dict[str, dict[str, dict[str, Any]]], advice: Advice
) -> dict[str, Any]:
    """Measurements and advice as JSON values."""
    towers = SHAPES[device.type]
    return {
        "about": described(device) | {"dtype": str(dtype).removeprefix("torch.")},
        "towers": {
            name: {"shape": asdict(towers[name]), "auto": advice.auto[name], "rows": of_tower}
            for name, of_tower in rows.items()
        },
        "attention_backend": advice.backend,
        "advice": advice.line,
    }


def _time(rows: dict[str, dict[str, Any]], name: str) -> float:
    """Milliseconds forward and backward, infinite for what cannot run."""
    return float(rows.get(name, {}).get("both", {}).get("median_ms", math.inf))
