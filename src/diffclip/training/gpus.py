"""GPUs that runs are planned for: what they hold, how fast they multiply, what an hour of one costs.

Rates are the makers' for dense matrices, memory is what the driver reports. Prices are list prices on demand for one
GPU of a machine, in US dollars; they move by the month and differ several times between providers, so give your own.
"""

from __future__ import annotations

from dataclasses import dataclass

from diffclip.errors import InputError, unknown

GIB = 2**30


@dataclass(frozen=True)
class GPU:
    """One GPU. `bf16` is None where the hardware has no such products; `price` is in dollars an hour, of `month`."""

    name: str
    memory_gib: float
    bf16_tflops: float | None
    fp32_tflops: float
    price: float
    month: str
    provider: str

    @property
    def memory(self) -> int:
        """Bytes."""
        return int(self.memory_gib * GIB)

    def tflops(self, precision: str) -> float:
        """The rate for a recipe's `precision`, 10¹² operations a second.

        Raises:
            InputError: this GPU has no bfloat16.
        """
        if precision == "fp32":
            return self.fp32_tflops  # torch's default: no TF32
        if self.bf16_tflops is None:
            raise InputError(f"{self.name} has no bfloat16: plan with precision=fp32, or for another GPU")
        return self.bf16_tflops


GPUS = {
    gpu.name: gpu
    for gpu in (
        GPU("h200", 140.4, 989, 67, 3.59, "2026-03", "RunPod"),
        GPU("h100", 79.6, 989, 67, 2.69, "2026-05", "RunPod"),
        GPU("a100-80gb", 79.3, 312, 19.5, 1.39, "2026-03", "RunPod"),
        GPU("a100-40gb", 39.4, 312, 19.5, 1.48, "2026-05", "Lambda"),
        GPU("l40s", 44.4, 362, 91.6, 0.79, "2026-03", "RunPod"),
        GPU("l4", 22.0, 121, 30.3, 0.44, "2026-03", "RunPod"),
        GPU("rtx4090", 23.5, 165, 82.6, 0.34, "2026-03", "RunPod"),
        GPU("v100", 15.8, None, 15.7, 0.55, "2025-06", "Lambda"),
    )
}


def find_gpu(name: str) -> GPU:
    """The GPU called `name`.

    Raises:
        InputError: none is; the nearest name is offered.
    """
    if name.lower() not in GPUS:
        raise unknown("gpu", name, GPUS)
    return GPUS[name.lower()]
