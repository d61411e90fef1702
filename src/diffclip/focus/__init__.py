"""Attention maps, relevance of patches for texts, and measures of both against masks."""

from diffclip.focus.maps import (
    class_token_maps,
    correlation_by_layer,
    map_correlation,
    named_maps,
    vision_maps,
)
from diffclip.focus.recording import recording
from diffclip.focus.relevance import image_relevance, image_relevances, text_relevance
from diffclip.focus.rollout import rollout

__all__ = [
    "class_token_maps",
    "correlation_by_layer",
    "image_relevance",
    "image_relevances",
    "map_correlation",
    "named_maps",
    "recording",
    "rollout",
    "text_relevance",
    "vision_maps",
]
