"""Models of other libraries as ours, and plain ones made differential."""

from diffclip.convert.from_open_clip import from_open_clip
from diffclip.convert.from_transformers import from_transformers
from diffclip.convert.to_differential import to_differential

__all__ = ["from_open_clip", "from_transformers", "to_differential"]
