"""Convert models of other libraries to ours, and plain models to differential ones."""

from diffclip.convert.from_libraries import from_open_clip, from_transformers
from diffclip.convert.to_differential import to_differential

__all__ = ["from_open_clip", "from_transformers", "to_differential"]
