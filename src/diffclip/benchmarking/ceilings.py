"""A device's ceilings, measured where a program can: a large copy and a large product of matrices."""

from __future__ import annotations

import subprocess

import torch

from diffclip.benchmarking.shapes import Ceilings
from diffclip.benchmarking.timing import Call, make_sampler

_EXPONENTIALS_A_CLOCK = (
    16  # of a multiprocessor: CUDA C++ Programming Guide, throughput of native instructions
)


def measure_ceilings(device: torch.device, dtype: torch.dtype) -> Ceilings:
    """The ceilings of `device`; on a CPU only that of products, with the threads that torch uses now."""
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
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    clock = _clock(device)
    exponentials = None
    if clock is not None:
        hertz, where = clock
        exponentials = _EXPONENTIALS_A_CLOCK * processors * hertz
        sources["exponentials"] = (
            f"{_EXPONENTIALS_A_CLOCK} a clock × {processors} multiprocessors × {hertz / 1e9:.2f} GHz ({where})"
        )
    return Ceilings(bandwidth, operations, exponentials, sources)


def _seconds(call: Call, device: torch.device) -> float:
    """Of the quickest of some calls: a ceiling is what the device can do."""
    sampler = make_sampler([call], device, record=False)
    return min(sampler() for _ in range(20)) / 1000


def _clock(device: torch.device) -> tuple[float, str] | None:
    """The highest clock of the multiprocessors in hertz, and who says so; None where nobody does."""
    kilohertz = getattr(torch.cuda.get_device_properties(device), "clock_rate", 0)
    if kilohertz:
        return 1000.0 * kilohertz, "the device's properties"
    query = ["nvidia-smi", "--query-gpu=clocks.max.sm", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
        return 1e6 * float(said.split()[device.index or 0]), "nvidia-smi, highest"
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
