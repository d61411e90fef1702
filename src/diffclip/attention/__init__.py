"""Softmax attention and differential attention, each with a plain twin for every fast path."""

from diffclip.attention.dispatch import BACKENDS, differential_attention, softmax_attention
from diffclip.attention.module import ATTENTION_LAYERS, AttentionMaps, DifferentialAttention, SoftmaxAttention

__all__ = [
    "ATTENTION_LAYERS",
    "BACKENDS",
    "AttentionMaps",
    "DifferentialAttention",
    "SoftmaxAttention",
    "differential_attention",
    "softmax_attention",
]
