"""Compare the fused kernels with the formula in float64, on a GPU if there is one, else in Triton's interpreter."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from diffclip import differential_attention
from diffclip.attention import fused as kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCES = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 1e-2}
# Triton's interpreter truncates bfloat16 where a GPU rounds
KERNEL_TYPES = [torch.float32, torch.float16, *([torch.bfloat16] if DEVICE == "cuda" else [])]


@contextmanager
def poisoned() -> Iterator[None]:
    """Fill newly allocated memory with NaN, so that memory that is never written reads as NaN."""
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.utils.deterministic.fill_uninitialized_memory = before[1]


@dataclass
class Inputs:
    """Inputs of one call. λ is [B, H, N], so its gradient holds the terms that the gradient of a smaller λ sums."""

    q: Tensor
    k: Tensor
    v: Tensor
    lam: Tensor
    gain: Tensor | None
    grad: Tensor

    def double(self) -> "Inputs":
        """Copy the inputs to float64, as new leaves."""

        def widen(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.detach().double().requires_grad_(x.requires_grad)

        return Inputs(*map(widen, vars(self).values()))

    @property
    def qkv(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.q, self.k, self.v

    def leaves(self) -> dict[str, Tensor]:
        tensors = {"q": self.q, "k": self.k, "v": self.v, "lam": self.lam, "gain": self.gain}
        return {name: x for name, x in tensors.items() if x is not None}


def draw(
    batch: int,
    heads: int,
    tokens: int,
    d: int,
    e: int,
    dtype: torch.dtype = torch.float32,
    norm: bool = True,
    device: str = DEVICE,
) -> Inputs:
    """Draw random inputs, seeded by their sizes."""
    seed = hash((batch, heads, tokens, d, e, norm)) % 2**31  # a hash of numbers is the same in every process
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    lam = torch.rand(batch, heads, tokens, generator=generator).to(device) + 0.2
    gain = torch.rand(e, generator=generator).to(device) + 0.5
    inputs = Inputs(
        normal(batch, 2 * heads, tokens, d),
        normal(batch, 2 * heads, tokens, d),
        normal(batch, heads, tokens, e),
        lam,
        gain if norm else None,
        normal(batch, heads, tokens, e),
    )
    for leaf in inputs.leaves().values():
        leaf.requires_grad_()
    return inputs


def fused(inputs: Inputs, causal: bool, out_scale: float = 1.0) -> dict[str, Tensor]:
    """Compute the output and every gradient with the kernels; unwritten memory reads as NaN."""
    assert kernels.why_not_fused(inputs.q, inputs.v) is None
    with poisoned():
        return _run(inputs, causal, out_scale, "triton")


def exact(inputs: Inputs, causal: bool, out_scale: float = 1.0) -> dict[str, Tensor]:
    """Compute the output and every gradient with the formula in float64."""
    return _run(inputs.double(), causal, out_scale, "eager")


def _run(inputs: Inputs, causal: bool, out_scale: float, backend: str) -> dict[str, Tensor]:
    out = differential_attention(
        inputs.q, inputs.k, inputs.v, inputs.lam, causal, backend, inputs.gain, 1e-5, out_scale
    )
    leaves = inputs.leaves()
    grads = torch.autograd.grad(out, list(leaves.values()), inputs.grad)
    return {"out": out, **dict(zip(leaves, grads, strict=True))}


def error(found: Tensor, expected: Tensor) -> float:
    """Compute ‖found − expected‖ / ‖expected‖, which is NaN if `found` contains NaN."""
    return float((found.detach().double() - expected.detach()).norm() / expected.detach().norm())


def assert_near(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    errors = {name: error(found[name], expected[name]) for name in expected}
    assert all(value < tolerance for value in errors.values()), errors
