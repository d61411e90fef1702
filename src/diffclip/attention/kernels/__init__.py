"""Differential attention as fused Triton kernels: one pass forward, two backward, no map is ever written to memory."""
