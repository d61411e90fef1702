"""Softmax attention and differential attention, each with a plain twin for every fast path."""

from diffclip.attention.dispatch import BACKENDS, differential_attention, softmax_attention
from diffclip.attention.module import AttentionMaps, DifferentialAttention, SelfAttention, SoftmaxAttention
from diffclip.attention.v2 import DifferentialAttentionV2

# what `attention` in a tower's configuration means
ATTENTION_LAYERS: dict[str, type[SelfAttention]] = {
    "softmax": SoftmaxAttention,
    "differential": DifferentialAttention,
    "differential-v2": DifferentialAttentionV2,
}

__all__ = [
    "ATTENTION_LAYERS",
    "BACKENDS",
    "AttentionMaps",
    "DifferentialAttention",
    "DifferentialAttentionV2",
    "SelfAttention",
    "SoftmaxAttention",
    "differential_attention",
    "softmax_attention",
]
