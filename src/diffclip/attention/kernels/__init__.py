"""Differential attention as fused Triton kernels: one forward, two backward. No map is ever written to memory."""
