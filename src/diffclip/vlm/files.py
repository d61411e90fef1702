"""Load and save connected models, and load the vision towers and language models that they are made of."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import transformers

from diffclip.config import name_of
from diffclip.errors import InputError, explain_errors
from diffclip.files import write_atomically
from diffclip.integrations.transformers import image_processor_of, vision_from_diffclip
from diffclip.sources.load import load_with_origin, recipe_of
from diffclip.sources.registry import find_model
from diffclip.sources.transformers import read_whole
from diffclip.training.run_folder import RECIPE_FILE
from diffclip.vlm.llava import DiffCLIPLlavaForConditionalGeneration

MODEL_FOLDER = "model"  # the folder of a run's model
_NO_MODEL = "holds no model that answers questions about images"
_WANTED = "give a run folder of `diffclip vlm train`, or a model that it saved"

_untyped: Any = transformers  # mypy refuses calls of functions without types


def save_vlm(model: Any, processor: Any, folder: str | Path) -> None:
    """Save a connected model and its processor to a new `folder`, whole or not at all."""
    with write_atomically(folder) as temporary:
        model.save_pretrained(temporary)
        processor.save_pretrained(temporary)


def load_vlm(source: str | Path) -> tuple[Any, Any]:
    """Load a connected model (evaluation mode, on the CPU) and its processor, from a run or a saved model."""
    folder = model_folder(source)
    with explain_errors(f"{folder} {_NO_MODEL}", _WANTED):
        # a folder of another kind would be read as a LLaVA of 7 billion parameters
        config = _untyped.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        model = read_whole(DiffCLIPLlavaForConditionalGeneration, folder, folder, config=config)
        processor = _untyped.AutoProcessor.from_pretrained(folder, trust_remote_code=False)
        # resize with Pillow, as in stage 1 and in the tower's own training
        options = {"backend": "pil", "trust_remote_code": False}
        processor.image_processor = _untyped.AutoImageProcessor.from_pretrained(folder, **options)
    return model, processor


def model_folder(source: str | Path) -> Path:
    """Return the folder with the weights: `source` itself, or the model folder in the run `source`."""
    folder = Path(source)
    for candidate in (folder, folder / MODEL_FOLDER):
        if (candidate / "config.json").is_file():
            return candidate
    if not folder.exists():
        raise InputError(f"{source} does not exist: {_WANTED}")
    if "language_model" in (recipe_of(folder) or {}):
        raise InputError(
            f"{source} is a run that has not ended: finish it with `diffclip vlm train … --resume`"
        )
    raise InputError(f"{source} {_NO_MODEL}: {_WANTED}")


def load_vision(source: str) -> tuple[Any, Any]:
    """Load a vision tower (a DiffCLIPVisionModel) and its image processor; `source` is as in `load_with_origin`."""
    if find_model(source) is None:
        raise InputError(
            f"vision {source} is a model's name and has no weights: give a run, a saved folder or hf-hub:OWNER/NAME"
        )
    clip = load_with_origin(source).model
    if clip.config.vision.layer_options(clip.config.differential):
        raise InputError(
            f"vision {source}: {name_of(clip.config)} lacks a part of attention: give a tower with all parts"
        )
    return vision_from_diffclip(clip), image_processor_of(clip.config)


def load_language_model(source: str) -> tuple[Any, Any]:
    """Load a causal language model (float32, evaluation mode) and its tokenizer from a folder or the hub."""
    with explain_errors(f"language_model {source} cannot be used", "give a folder, or OWNER/NAME on the hub"):
        config = _untyped.AutoConfig.from_pretrained(source, trust_remote_code=False)
        options = {"config": config, "dtype": torch.float32, "trust_remote_code": False}
        model = read_whole(_untyped.AutoModelForCausalLM, source, source, **options)
        tokenizer = _untyped.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    return model, tokenizer


def identify(source: str | Path) -> dict[str, Any]:
    """Return the fields `model`, `weights` and `seed` for records of the model in `source`, a saved model or a run.

    `model` is the name of the run or of the saved folder, without seed and stage.
    """
    folder = model_folder(source)
    run = folder.resolve().parent
    owner = run if (run / RECIPE_FILE).is_file() else folder.resolve()
    name = re.sub(r"-(s\d+|stage\d)(?=-|$)", "", owner.name)
    return {"model": name, "weights": str(folder), "seed": (recipe_of(run) or {}).get("seed")}
