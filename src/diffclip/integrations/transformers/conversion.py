"""Models between the core and transformers: the same numbers, without loss."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from diffclip.config import PreprocessConfig
from diffclip.convert.assemble import check_end_of_text
from diffclip.integrations.transformers.configuration import DiffCLIPConfig, DiffCLIPVisionConfig
from diffclip.integrations.transformers.model import DiffCLIPModel
from diffclip.integrations.transformers.vision import DiffCLIPVisionModel
from diffclip.model import CLIP

Model = TypeVar("Model", bound=nn.Module)

_TRANSPOSED = ("image_projection", "text_projection")


def from_diffclip(model: CLIP) -> DiffCLIPModel:
    """A copy of `model` for transformers, on its device, of its type and in its mode."""
    with torch.device("meta"):  # nothing is drawn that is replaced at once
        made = DiffCLIPModel(DiffCLIPConfig.of(model.config))
    state = {_theirs(name): _turned(name, value) for name, value in model.state_dict().items()}
    return _filled(made, state, model.training)


def to_diffclip(model: DiffCLIPModel, preprocess: PreprocessConfig | None = None) -> CLIP:
    """A copy of `model` for the core, on its device, of its type and in its mode.

    Args:
        model: made by `from_diffclip`, trained, or loaded.
        preprocess: how pictures are prepared, which a model of transformers leaves to its processor.

    Raises:
        InputError: it reads texts at another id than the core would.
    """
    config, text = model.config.core(), model.config.text_config
    check_end_of_text(text.eos_token_id, text.vocab_size, "the model")
    if preprocess is not None:
        config.preprocess = preprocess
    with torch.device("meta"):
        made = CLIP(config, seed=0)
    theirs = model.state_dict()
    state = {name: _turned(name, theirs[_theirs(name)]) for name in made.state_dict()}
    return _filled(made, state, model.training)


def vision_from_diffclip(model: CLIP) -> DiffCLIPVisionModel:
    """A copy of the vision tower of `model`, on its device, of its type and in its mode."""
    with torch.device("meta"):
        made = DiffCLIPVisionModel(DiffCLIPVisionConfig.of(model.config))
    state = {f"visual.{name}": value.clone() for name, value in model.visual.state_dict().items()}
    return _filled(made, state, model.training)


def _theirs(name: str) -> str:
    """The name in `DiffCLIPModel` of the core's parameter `name`."""
    if name in _TRANSPOSED:
        return name.replace("image", "visual") + ".weight"
    if name in ("logit_scale", "logit_bias"):
        return name
    return f"vision_model.{name}" if name.startswith("visual.") else f"text_model.{name}"


def _turned(name: str, value: Tensor) -> Tensor:
    """A copy of `value` in the other's layout."""
    return (value.T if name in _TRANSPOSED else value).clone(memory_format=torch.contiguous_format)


def _filled(made: Model, state: dict[str, Tensor], training: bool) -> Model:
    made.load_state_dict(state, assign=True)
    made.train(training)
    return made
