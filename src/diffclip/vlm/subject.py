"""What records call a connected model, and what tells it from others."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffclip.config import MODEL_NAMES, VARIANTS, named_config
from diffclip.errors import InputError
from diffclip.model_source import seed_of_run
from diffclip.vlm.folders import model_folder
from diffclip.vlm.llava import connector_of

# what the answers follow from: weights, configuration, tokenizer, processor and the template of a conversation
_ANSWERING = (".safetensors", ".json", ".jinja", ".txt", ".model")


@dataclass(frozen=True)
class Subject:
    """The folder of a model (`weights`), a digest of what is in it, and the seed of its run, where that is known."""

    weights: Path
    digest: str
    seed: int | None


def subject_of(source: str | Path) -> Subject:
    """What `source`, a saved model or the run that made it, is.

    Raises:
        InputError: it holds no model, or cannot be read.
    """
    folder = model_folder(source)
    digest = hashlib.sha256()
    try:
        for file in sorted(folder.iterdir()):
            if file.suffix in _ANSWERING and file.is_file():
                digest.update(file.name.encode())
                with file.open("rb") as handle:
                    digest.update(hashlib.file_digest(handle, "sha256").digest())
    except OSError as error:
        raise InputError(f"cannot read {error.filename or folder}: {error.strerror}") from error
    return Subject(folder, digest.hexdigest()[:12], seed_of_run(folder.parent))


def label_of(model: Any) -> str:
    """The model's name in records: "DiffCLIP-ViT-B-16-linear-qwen2-24x896".

    It begins with the variant and ends in what models have in common that may be compared: the vision tower's size, the
    connector, and the language model's kind, layers and width.
    """
    vision, text = model.config.vision_config, model.config.text_config
    sizes = (vision.patch_size, vision.hidden_size, vision.num_hidden_layers, vision.num_attention_heads)
    size = _named_size(sizes) or f"v{sizes[1]}x{sizes[2]}x{sizes[3]}p{sizes[0]}"
    language = f"{text.model_type}-{text.num_hidden_layers}x{text.hidden_size}"
    return f"{_variant(vision)}-{size}-{connector_of(model)}-{language}"


def _variant(vision: Any) -> str:
    for variant, (attention, _, lambda_init) in VARIANTS.items():
        plain = attention != "differential" or vision.lambda_init == lambda_init
        if vision.attention == attention and plain:
            return variant
    return "custom"


def _named_size(sizes: tuple[int, int, int, int]) -> str | None:
    for name in MODEL_NAMES:
        if name.startswith("CLIP-"):
            tower = named_config(name).vision
            if (tower.patch_size, tower.width, tower.layers, tower.heads) == sizes:
                return name.removeprefix("CLIP-")
    return None
