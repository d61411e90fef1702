"""Attention layers by name. The backend "eager" is the plain reference for every fast path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diffclip.attention.gated import GatedAttention, HeadwiseGatedAttention
from diffclip.attention.module import DifferentialAttention, SelfAttention, SoftmaxAttention
from diffclip.attention.variants import AddedDifferentialAttention, DifferentialAttentionV2

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
