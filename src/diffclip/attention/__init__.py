"""Attention layers by name. The backend "eager" is the plain reference for every fast path.

Each idea is a file whose layers register themselves; a layer of one's own does the same.
"""

from diffclip.attention import added, differential, gated, grouped, one_map, softmax, v2
from diffclip.attention.module import AttentionMaps, SelfAttention, StartingValues
from diffclip.attention.registry import ATTENTION_LAYERS, attention_layer, register_attention

__all__ = ["ATTENTION_LAYERS", "AttentionMaps", "SelfAttention", "StartingValues"]
__all__ += ["attention_layer", "register_attention"]
__all__ += ["added", "differential", "gated", "grouped", "one_map", "softmax", "v2"]
