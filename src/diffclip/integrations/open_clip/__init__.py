"""Our models in open_clip (mlfoundations/open_clip): by name in its functions, and in its training program.

from diffclip.integrations.open_clip import register
register()
model, preprocess_train, preprocess = open_clip.create_model_and_transforms("DiffCLIP-ViT-B-16")

python -m diffclip.integrations.open_clip --model DiffCLIP-ViT-B-16 --train-data …
"""

from diffclip.integrations.open_clip.registry import register
from diffclip.integrations.open_clip.train import run_command

__all__ = ["register", "run_command"]
