"""Language models that see through DiffCLIP: transformers' Llava classes around our vision model.

Importing this package registers the classes with transformers, so that `AutoModelForImageTextToText.from_pretrained`
loads what `diffclip.vlm.files.save_vlm` saved.
"""

from __future__ import annotations

import diffclip.vlm.llava  # noqa: F401
