"""Attention layers and operators; the backend "eager" is the plain reference for every fast path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diffclip.attention.dispatch import BACKENDS, differential_attention, softmax_attention
from diffclip.attention.gated import GatedAttention, HeadwiseGatedAttention
from diffclip.attention.module import (
    AttentionMaps,
    DifferentialAttention,
    LambdaAttention,
    SelfAttention,
    SoftmaxAttention,
)
from diffclip.attention.variants import (
    AddedDifferentialAttention,
    DifferentialAttentionV2,
    PairedAttention,
)

if TYPE_CHECKING:
    from diffclip.config import AttentionKind, Differential

# the layer for each value of `attention` in a tower's configuration
ATTENTION_LAYERS: dict[str, type[SelfAttention]] = {
    "softmax": SoftmaxAttention,
    "differential": DifferentialAttention,
    "differential-v2": DifferentialAttentionV2,
    "differential-added": AddedDifferentialAttention,
    "gated": GatedAttention,
    "gated-headwise": HeadwiseGatedAttention,
}


def settings_of(kind: AttentionKind, differential: Differential | None) -> dict[str, Any]:
    """Return the arguments that `differential` changes in a layer of `kind`; only "differential" layers have any."""
    if kind != "differential" or differential is None:
        return {}
    return differential.model_dump(exclude_defaults=True)


__all__ = [
    "ATTENTION_LAYERS",
    "BACKENDS",
    "AddedDifferentialAttention",
    "AttentionMaps",
    "DifferentialAttention",
    "DifferentialAttentionV2",
    "GatedAttention",
    "HeadwiseGatedAttention",
    "LambdaAttention",
    "PairedAttention",
    "SelfAttention",
    "SoftmaxAttention",
    "differential_attention",
    "settings_of",
    "softmax_attention",
]
