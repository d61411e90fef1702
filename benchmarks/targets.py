"""What attention, training and reading have to reach, as ratios within one run, and what the results say of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.models import OPENCLIP, OURS, REFERENCE

Results = dict[str, dict[str, Any]]
_BUSY = "python -m benchmarks.attention --device cpu --busy"
_CPU, _GPU, _LOADER = "make bench", "make bench-gpu", "python -m benchmarks.loader"
_KIND = {"forward": "forward", "both": "forward and backward", "backward": "backward"}


class Target(NamedTuple):
    """A ratio with its limit ("≥ 2.0" or "≤ 1.1"); `measured` is None where no result tells."""

    name: str
    command: str
    measured: float | None
    wanted: str

    @property
    def met(self) -> bool:
        """Whether the measured ratio is within the limit."""
        sign, limit = self.wanted.split()
        if self.measured is None:
            return False
        return self.measured >= float(limit) if sign == "≥" else self.measured <= float(limit)


def targets(results: Results) -> Iterator[Target]:
    """Yield all targets, the CPU's in float32 and the GPU's in bfloat16."""
    cpu, gpu = results.get("attention_cpu_float32"), results.get("attention_cuda_bfloat16")
    for ours in ("auto", "sdpa"):
        for kind, other, least in (
            *(("forward", "timm", 2.0), ("forward", "eager", 2.2)),
            *(("both", "timm", 1.15), ("both", "eager", 2.2)),
        ):
            speed = _times(cpu, 2305, kind, f"differential {other}", f"differential {ours}")
            name = f"CPU, N = 2305, {_KIND[kind]}: speed of {ours} to {other}"
            yield Target(name, _CPU, speed, f"≥ {least}")
    for kind in ("forward", "both"):
        busy = results.get("attention_busy_cpu_float32")
        speed = _times(busy, 2305, kind, "differential eager", "differential auto")
        name = f"CPU beside a busy process, N = 2305, {_KIND[kind]}: speed of auto to eager"
        yield Target(name, _BUSY, speed, "≥ 1.5")
    for kind in ("forward", "both"):
        name = f"CPU, N = 197, {_KIND[kind]}: speed of auto to the best"
        yield Target(name, _CPU, _speed_to_best(cpu, 197, kind), "≥ 0.97")
    for tokens, kind, most in (
        *((197, "forward", 1.1), (197, "backward", 1.2)),
        *((4097, "forward", 1.67), (4097, "backward", 1.67)),
    ):
        cost = _times(gpu, tokens, kind, "differential triton", "plain flash")
        name = f"GPU, N = {tokens}, {_KIND[kind]}: time of triton to forced flash on plain attention"
        yield Target(name, _GPU, cost, f"≤ {most}")
    for workers, readers in enumerate(("0 workers", "1 worker", "2 workers")):
        entry = results.get("loader", {}).get("workers", {}).get(str(workers), {})
        ratio = entry["ratio"]["per_core"]["median"] if "ratio" in entry else None
        name = f"CPU, loader, {readers}: ours to OpenCLIP's, samples a second and core"
        yield Target(name, _LOADER, ratio, "≥ 2.5")
    steps = results.get("training_cuda_bf16")
    for batch in (256, 1024):
        step = f"GPU, training step compiled, batch {batch}: DiffCLIP to"
        for other in (REFERENCE, OPENCLIP):
            ratio = _step(steps, "training", batch, "samples_per_second", other)
            yield Target(f"{step} {other}, samples a second", _GPU, ratio, "≥ 0.98")
        ratio = _step(steps, "training", batch, "peak_bytes", REFERENCE)
        yield Target(f"{step} CLIP, peak memory", _GPU, ratio, "≤ 1.03")
    ratio = _step(steps, "inference", 256, "samples_per_second", REFERENCE)
    yield Target("GPU, inference compiled: DiffCLIP to CLIP, samples a second", _GPU, ratio, "≥ 0.98")


def _milliseconds(result: dict[str, Any] | None, tokens: int, kind: str) -> dict[str, float]:
    """Median times by operator."""
    entries = result["shapes"].values() if result else ()
    rows = next((entry["rows"] for entry in entries if entry["shape"]["tokens"] == tokens), {})
    return {name: row[kind]["median_ms"] for name, row in rows.items() if kind in row}


def _times(result: dict[str, Any] | None, tokens: int, kind: str, above: str, below: str) -> float | None:
    """Time of `above` over time of `below`."""
    times = _milliseconds(result, tokens, kind)
    return times[above] / times[below] if {above, below} <= times.keys() else None


def _speed_to_best(result: dict[str, Any] | None, tokens: int, kind: str) -> float | None:
    times = _milliseconds(result, tokens, kind)
    own = times.get("differential auto")
    return own and min(time for name, time in times.items() if name.startswith("differential")) / own


def _step(result: dict[str, Any] | None, kind: str, batch: int, what: str, other: str) -> float | None:
    """Ours over another model in the compiled section."""
    for entry in (result or {}).get("sections", ()):
        if (entry["kind"], entry["batch"]) == (kind, batch) and entry["compiled"]:
            ours, others = (entry["rows"].get(name, {}).get(what) for name in (OURS, other))
            return ours / others if ours and others else None
    return None
