"""Softmax attention and differential attention, each with a plain twin for every fast path."""

from diffclip.attention.dispatch import BACKENDS, differential_attention, softmax_attention
from diffclip.attention.module import AttentionMaps, DifferentialAttention, SoftmaxAttention

__all__ = [
    "BACKENDS",
    "AttentionMaps",
    "DifferentialAttention",
    "SoftmaxAttention",
    "differential_attention",
    "softmax_attention",
]
