"""The two towers."""

from diffclip.towers.text import TextTransformer
from diffclip.towers.vision import build_vision

__all__ = ["TextTransformer", "build_vision"]
