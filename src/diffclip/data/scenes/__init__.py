"""The built-in set: drawn pictures of coloured shapes with captions, masks and attributes for every task.

No downloads and no licence questions; each picture is determined by (seed, split, index) alone.
"""

from __future__ import annotations

from diffclip.data.scenes.pairs import PATTERNS, MinimalPair, minimal_pair
from diffclip.data.scenes.questions import Question, colour_questions, question_scene, questions
from diffclip.data.scenes.scene import STYLES, Scene, SceneObject, draw_scene
from diffclip.data.scenes.sheet import contact_sheet
from diffclip.data.scenes.vocabulary import BACKGROUNDS, COLOURS, SHAPES, SIZES, TEMPLATES, TEXTURES
from diffclip.data.scenes.write import write_scenes

__all__ = [
    "BACKGROUNDS",
    "COLOURS",
    "PATTERNS",
    "SHAPES",
    "SIZES",
    "STYLES",
    "TEMPLATES",
    "TEXTURES",
    "MinimalPair",
    "Question",
    "Scene",
    "SceneObject",
    "colour_questions",
    "contact_sheet",
    "draw_scene",
    "minimal_pair",
    "question_scene",
    "questions",
    "write_scenes",
]
