"""Where a model looks."""

from diffclip.focus.maps import class_token_maps, vision_maps

__all__ = ["class_token_maps", "vision_maps"]
