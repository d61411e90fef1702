"""Differential attention as fused Triton kernels: one forward, two backward. No map is ever written to memory."""

KERNELS_VERSION = 2
"""Raise it when a kernel changes, so that older measurements are ignored."""
