"""`load`: a model ready for use, with the image and text preparation that belongs to it."""

from __future__ import annotations

import math
from pathlib import Path

from diffclip.config import HUB_PREFIX, OPEN_CLIP, TRANSFORMERS, CLIPConfig, name_of, named_config, resized
from diffclip.data.transforms import EvalTransform
from diffclip.errors import InputError, explained
from diffclip.hub import fetch
from diffclip.model import CLIP
from diffclip.published import infer_config
from diffclip.tokenizer import Tokenizer
from diffclip.weights import Weights, put_weights, read_weights


def load(
    source: str | Path, model: str | None = None, image_size: int | None = None
) -> tuple[CLIP, EvalTransform, Tokenizer]:
    """Load a model in evaluation mode on the CPU, its `preprocess` (PIL image to [3, S, S]) and its tokenizer.

    Args:
        source: a run folder (its best checkpoint, else its last), a saved folder, a published `.pt` or `.safetensors`
            file, or `hf-hub:OWNER/NAME`, with `@REVISION` after it where it is not the newest; also a model of another
            library, `open_clip:NAME/PRETRAINED` or `transformers:FOLDER`, converted on the way.
        model: the model's name, where the file cannot tell it (a published DiffCLIP-dynamic).
        image_size: take images of this size; position embeddings are resampled.

    Raises:
        InputError: nothing usable at `source`, or it holds another model than `model`.
    """
    if str(source).startswith((OPEN_CLIP, TRANSFORMERS)):
        from diffclip.convert.from_libraries import read_foreign

        if model is not None:
            raise InputError(f"{source} tells what it is: leave the model's name out")
        return prepared(read_foreign(str(source)), image_size)
    path = locate(source)
    weights = read_weights(path)
    loaded = CLIP.unfilled(_config(weights, path, model))
    put_weights(loaded, weights, path)
    return prepared(loaded, image_size)


def prepared(model: CLIP, image_size: int | None = None) -> tuple[CLIP, EvalTransform, Tokenizer]:
    """`model` in evaluation mode, taking images of `image_size`, with its image and text preparation."""
    if image_size is not None and image_size != model.config.vision.image_size:
        model.set_image_size(image_size)
    model.eval()
    preprocess = EvalTransform(model.config.vision.image_size, model.config.preprocess)
    return model, preprocess, Tokenizer(model.config.text)


def read_config(source: str | Path) -> CLIPConfig:
    """Return the configuration of the model that `load` would read at `source`."""
    path = locate(source)
    return _config(read_weights(path), path, None)


def locate(source: str | Path, cache_dir: str | None = None) -> Path:
    """Return `source` as a path; a name on the hub is fetched into a local folder first, in
    `cache_dir` or the hub's own cache.
    """
    if not str(source).startswith(HUB_PREFIX):
        return Path(source)
    repository, _, revision = str(source).removeprefix(HUB_PREFIX).partition("@")
    with explained(f"{source} cannot be fetched", "check the name and the connection"):
        return fetch(repository, revision or None, cache_dir=cache_dir)


def _config(weights: Weights, path: Path, model: str | None) -> CLIPConfig:
    saved = weights.config
    if saved is not None:
        if model is not None and name_of(saved) != model:
            raise InputError(f"{path} holds {name_of(saved)}, not {model}: leave the model's name out")
        return saved
    if model is None:
        return infer_config(weights.state)
    named, positions = named_config(model), weights.state.get("visual.pos_embed")
    if positions is None or positions.ndim != 3:
        return named
    # the image size that it was trained with, which the name does not tell
    grid = math.isqrt(max(positions.shape[1] - 1 - named.vision.registers, 0))
    return resized(named, grid * named.vision.patch_size) if grid else named
