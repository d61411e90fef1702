"""The built-in set: drawn images of colored shapes with captions, masks and attributes for every task.

No downloads and no license questions; each image is determined by (seed, split, index) alone.
"""

from __future__ import annotations

from diffclip.scenes.scene import draw_scene
from diffclip.scenes.write import draw_built_in, write_scenes

__all__ = ["draw_built_in", "draw_scene", "write_scenes"]
