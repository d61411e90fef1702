"""Softmax attention and differential attention, each with a plain twin for every fast path."""

from diffclip.attention.added import AddedDifferentialAttention
from diffclip.attention.dispatch import BACKENDS, differential_attention, softmax_attention
from diffclip.attention.module import (
    AttentionMaps,
    DifferentialAttention,
    LambdaAttention,
    SelfAttention,
    SoftmaxAttention,
)
from diffclip.attention.paired import PairedAttention
from diffclip.attention.v2 import DifferentialAttentionV2

# what `attention` in a tower's configuration means
ATTENTION_LAYERS: dict[str, type[SelfAttention]] = {
    "softmax": SoftmaxAttention,
    "differential": DifferentialAttention,
    "differential-v2": DifferentialAttentionV2,
    "differential-added": AddedDifferentialAttention,
}

__all__ = [
    "ATTENTION_LAYERS",
    "BACKENDS",
    "AddedDifferentialAttention",
    "AttentionMaps",
    "DifferentialAttention",
    "DifferentialAttentionV2",
    "LambdaAttention",
    "PairedAttention",
    "SelfAttention",
    "SoftmaxAttention",
    "differential_attention",
    "softmax_attention",
]
