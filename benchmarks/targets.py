"""What attention, training and reading have to reach, as ratios within one run, and what the results say of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.models import OPENCLIP, OURS, REFERENCE

Results = dict[str, dict[str, Any]]
_BUSY = "python -m benchmarks.attention --device cpu --busy"
_CPU, _GPU, _LOADER = "make bench", "make bench-gpu", "python -m benchmarks.loader"


@dataclass(frozen=True)
class Target:
    """A ratio that must be `least` at least or `most` at most; `measured` None where no result tells."""

    name: str
    command: str
    measured: float | None
    least: float | None = None
    most: float | None = None

    @property
    def wanted(self) -> str:
        """The limit in words."""
        return f"≥ {self.least}" if self.least is not None else f"≤ {self.most}"

    @property
    def met(self) -> bool:
        """Whether what was measured is within the limit."""
        if self.measured is None:
            return False
        return self.measured >= self.least if self.least is not None else self.measured <= (self.most or 0.0)


def targets(results: Results) -> list[Target]:
    """All targets, with the CPU's in float32 and the GPU's in bfloat16."""
    found = []
    cpu, gpu = results.get("attention_cpu_float32"), results.get("attention_cuda_bfloat16")
    for ours in ("auto", "sdpa"):
        for kind, least in (("forward", (2.0, 2.2)), ("both", (1.15, 2.2))):
            for other, wanted in zip(("timm", "eager"), least, strict=True):
                speed = _times(cpu, 2305, kind, f"differential {other}", f"differential {ours}")
                name = f"CPU, N = 2305, {_KIND[kind]}: speed of {ours} to {other}"
                found.append(Target(name, _CPU, speed, least=wanted))
    busy = results.get("attention_busy_cpu_float32")
    for kind in ("forward", "both"):
        speed = _times(busy, 2305, kind, "differential eager", "differential auto")
        name = f"CPU beside a busy process, N = 2305, {_KIND[kind]}: speed of auto to eager"
        found.append(Target(name, _BUSY, speed, least=1.5))
    for kind in ("forward", "both"):
        speed = _to_best(cpu, 197, kind)
        name = f"CPU, N = 197, {_KIND[kind]}: speed of auto to the best"
        found.append(Target(name, _CPU, speed, least=0.97))
    for tokens, limits in (
        (197, {"forward": 1.1, "backward": 1.2}),
        (4097, {"forward": 1.67, "backward": 1.67}),
    ):
        for kind, most in limits.items():
            cost = _times(gpu, tokens, kind, "differential triton", "plain flash")
            name = f"GPU, N = {tokens}, {_KIND[kind]}: time of triton to forced flash on plain attention"
            found.append(Target(name, _GPU, cost, most=most))
    for workers in (0, 1, 2):
        ratio = _loader(results.get("loader"), workers)
        readers = f"{workers} worker{'' if workers == 1 else 's'}"
        name = f"CPU, loader, {readers}: ours to OpenCLIP's, samples a second and core"
        found.append(Target(name, _LOADER, ratio, least=2.5))
    steps = results.get("training_cuda_bf16")
    for batch in (256, 1024):
        for other, least in ((REFERENCE, 0.98), (OPENCLIP, 0.98)):
            ratio = _step(steps, "training", batch, "samples_per_second", other)
            name = f"GPU, training step compiled, batch {batch}: DiffCLIP to {other}, samples a second"
            found.append(Target(name, _GPU, ratio, least=least))
        ratio = _step(steps, "training", batch, "peak_bytes", REFERENCE)
        name = f"GPU, training step compiled, batch {batch}: DiffCLIP to CLIP, peak memory"
        found.append(Target(name, _GPU, ratio, most=1.03))
    ratio = _step(steps, "inference", 256, "samples_per_second", REFERENCE)
    found.append(
        Target("GPU, inference compiled: DiffCLIP to CLIP, samples a second", _GPU, ratio, least=0.98)
    )
    return found


_KIND = {"forward": "forward", "both": "forward and backward", "backward": "backward"}


def _rows(result: dict[str, Any] | None, tokens: int) -> dict[str, dict[str, Any]]:
    shapes = result["shapes"].values() if result and isinstance(result.get("shapes"), dict) else ()
    for entry in shapes:
        if isinstance(entry, dict) and entry["shape"]["tokens"] == tokens:
            rows: dict[str, dict[str, Any]] = entry["rows"]
            return rows
    return {}


def _times(result: dict[str, Any] | None, tokens: int, kind: str, above: str, below: str) -> float | None:
    """Time of `above` over time of `below`."""
    rows = _rows(result, tokens)
    a, b = (rows.get(name, {}).get(kind, {}).get("median_ms") for name in (above, below))
    return a / b if a and b else None


def _to_best(result: dict[str, Any] | None, tokens: int, kind: str) -> float | None:
    rows = {
        name: row
        for name, row in _rows(result, tokens).items()
        if name.startswith("differential") and kind in row
    }
    if "differential auto" not in rows:
        return None
    least = min(row[kind]["median_ms"] for row in rows.values())
    return float(least / rows["differential auto"][kind]["median_ms"])


def _loader(result: dict[str, Any] | None, workers: int) -> float | None:
    ratio = (result or {}).get("workers", {}).get(str(workers), {}).get("ratio")
    return float(ratio["per_core"]["median"]) if ratio else None


def _step(result: dict[str, Any] | None, kind: str, batch: int, what: str, other: str) -> float | None:
    """Ours over another model in the compiled section."""
    for entry in (result or {}).get("sections", ()):
        if (entry["kind"], entry["batch"]) != (kind, batch) or not entry["compiled"]:
            continue
        a, b = (entry["rows"].get(name, {}).get(what) for name in (OURS, other))
        return a / b if a and b else None
    return None
