"""The built-in set: drawn images of colored shapes with captions, masks and attributes for every task.

No downloads and no license questions; each image is determined by (seed, split, index) alone.
"""

from __future__ import annotations

from diffclip.data.published_sets import PATTERNS
from diffclip.scenes.pairs import minimal_pair
from diffclip.scenes.questions import questions
from diffclip.scenes.scene import STYLES, Scene, draw_scene
from diffclip.scenes.vocabulary import BACKGROUNDS, COLORS, SHAPES, TEMPLATES, TEXTURES
from diffclip.scenes.write import draw_built_in, write_scenes

__all__ = [
    "BACKGROUNDS",
    "COLORS",
    "PATTERNS",
    "SHAPES",
    "STYLES",
    "TEMPLATES",
    "TEXTURES",
    "Scene",
    "draw_built_in",
    "draw_scene",
    "minimal_pair",
    "questions",
    "write_scenes",
]
