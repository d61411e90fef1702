"""Reading and writing: connected models, and the vision towers and language models that they are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
)
from transformers.utils import logging

from diffclip.errors import InputError
from diffclip.files import write_atomically
from diffclip.integrations.transformers import image_processor_of, vision_from_diffclip
from diffclip.loading import load
from diffclip.model_source import find_model
from diffclip.vlm.llava import connector_of
from diffclip.weights import as_disk_error

MODEL_FOLDER = "model"
"""Where a run keeps its model, beside its checkpoints."""
UNREADABLE = (
    *(OSError, ValueError, KeyError, RuntimeError, AttributeError, TypeError, ImportError),
    SafetensorError,
)
"""What transformers raises where files are missing, damaged, or of another kind."""
_CONFIG = "config.json"


def save_vlm(
    model: Any, processor: Any, folder: str | Path, state: Mapping[str, Tensor] | None = None
) -> None:
    """Save a connected model and its processor to a new `folder`, whole or not at all.

    `state` is the model's state dict where that has been brought together from several processes.

    Raises:
        InputError: there is something already, or it cannot be written.
    """
    if Path(folder).exists():
        raise InputError(f"{folder} exists already: choose another folder")
    with write_atomically(folder) as temporary, quiet():
        try:
            model.save_pretrained(temporary, state_dict=state)
            processor.save_pretrained(temporary)
        except SafetensorError as error:
            raise as_disk_error(error) from error


def load_vlm(source: str | Path) -> tuple[Any, Any]:
    """A connected model in evaluation mode on the CPU, and its processor.

    Args:
        source: a folder that `save_vlm` wrote, or a run folder of `diffclip vlm train`.

    Raises:
        InputError: there is none, it is another kind of model, or its files are damaged.
    """
    folder = model_folder(source)
    auto: Any = AutoProcessor
    pictures: Any = AutoImageProcessor
    with quiet():
        try:
            model = _read(AutoModelForImageTextToText, folder)
        except InputError:
            raise
        except UNREADABLE as error:
            raise InputError(f"{folder} holds no model to ask about pictures ({line_of(error)})") from None
        connector_of(model)
        try:
            processor = auto.from_pretrained(folder, trust_remote_code=False)
            # pixels as in stage 1, and as the tower learnt them: scaled with Pillow
            processor.image_processor = pictures.from_pretrained(folder, backend="pil")
        except UNREADABLE as error:
            raise InputError(f"{folder} has no processor ({line_of(error)}): save it again") from None
    return model, processor


def model_folder(source: str | Path) -> Path:
    """The folder with the weights: `source`, or the model in it where it is a run.

    Raises:
        InputError: there is none.
    """
    folder = Path(source)
    wanted = "give a run folder of `diffclip vlm train`, or a saved model's folder"
    if not folder.is_dir():
        raise InputError(f"{source} is no folder: {wanted}")
    for candidate in (folder, folder / MODEL_FOLDER):
        if (candidate / _CONFIG).is_file():
            return candidate
    if (folder / "recipe.yaml").is_file():
        raise InputError(
            f"{source} is a run that has not ended: go on with --resume, its model comes at the end"
        )
    raise InputError(f"{source} holds no model: {wanted}")


def load_vision(source: str) -> tuple[Any, Any]:
    """The vision tower that `source` names, a DiffCLIPVisionModel, and its image processor.

    Args:
        source: a run folder, a saved folder, a published file, or `hf-hub:OWNER/NAME`.

    Raises:
        InputError: nothing usable has that name.
    """
    path = find_model(source)
    if path is None:
        raise InputError(
            f"vision {source} is a model's name, which has no weights, and the tower is not trained: give a run, a "
            "saved folder or hf-hub:OWNER/NAME"
        )
    clip = load(path)[0]  # in evaluation mode, which the copy has too
    return vision_from_diffclip(clip), image_processor_of(clip.config)


def load_language_model(source: str, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """A causal language model in evaluation mode and its tokenizer, from a folder or the Hugging Face hub.

    Raises:
        InputError: there is none, it is of another kind, its weights are damaged, or it needs code of its own.
    """
    if not Path(source).is_dir() and (Path(source).exists() or source.count("/") != 1):
        raise InputError(f"language_model {source} is no folder: give one, or OWNER/NAME on the hub")
    with quiet():
        try:
            config = AutoConfig.from_pretrained(source, trust_remote_code=False)
            check_causal(config, source)
            model = _read(AutoModelForCausalLM, source, dtype=dtype)
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        except InputError:
            raise
        except UNREADABLE as error:
            raise InputError(f"language_model {source} cannot be used ({line_of(error)})") from None
    return model, tokenizer


def check_causal(config: Any, source: str) -> None:
    """Raise `InputError` where no causal language model has a configuration of this kind."""
    kinds: Any = AutoModelForCausalLM
    if type(config) not in kinds._model_mapping:
        raise InputError(f"language_model {source} is a {config.model_type}, no causal language model")


def line_of(error: BaseException) -> str:
    """The first line of an error, short enough to be part of one of ours."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip()[:150].rstrip(".:")


@contextmanager
def quiet() -> Iterator[None]:
    """transformers says nothing, and draws no bars, but for errors."""
    chatter: Any = logging
    before, bars = chatter.get_verbosity(), chatter.is_progress_bar_enabled()
    chatter.set_verbosity_error()
    chatter.disable_progress_bar()
    try:
        yield
    finally:
        chatter.set_verbosity(before)
        if bars:
            chatter.enable_progress_bar()


def _read(kind: Any, source: str | Path, **options: Any) -> Any:
    """A model of an Auto class in evaluation mode, all of whose weights are in its files."""
    model, report = kind.from_pretrained(
        source, use_safetensors=True, trust_remote_code=False, output_loading_info=True, **options
    )
    lacking = sorted(report["missing_keys"])
    if lacking:
        raise InputError(f"{source} is damaged, its weights lack {lacking[0]}: save or fetch it again")
    return model.eval()
