"""The shapes of a model that is not here: what its recipe names, without weights and without the hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoConfig, Qwen2Config

from diffclip.config import MODEL_NAMES, CLIPConfig, named_config
from diffclip.errors import InputError, unknown
from diffclip.integrations.transformers import DiffCLIPVisionConfig
from diffclip.loading import HUB_PREFIX, read_config
from diffclip.model import CLIP
from diffclip.model_source import find_model
from diffclip.vlm.folders import UNREADABLE, check_causal, line_of, quiet
from diffclip.vlm.llava import model_class
from diffclip.vlm.recipe import VLMRecipe

# what the published files hold (huggingface.co/hammh0a); the hub is not asked
PUBLISHED = {"hf-hub:hammh0a/DiffCLIP_ViTB16_CC12M": "DiffCLIP-ViT-B-16"}
_QWEN = {"max_position_embeddings": 32768, "tie_word_embeddings": True, "vocab_size": 151936}
# hidden_size, intermediate_size, layers, heads, key-value heads: the config.json of each (huggingface.co/Qwen)
_QWEN_SIZES = {
    "0.5B": (896, 4864, 24, 14, 2),
    "1.5B": (1536, 8960, 28, 12, 2),
    "3B": (2048, 11008, 36, 16, 2),
    "7B": (3584, 18944, 28, 28, 4),
}
_KEYS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)
LANGUAGE_MODELS = {
    f"Qwen/Qwen2.5-{size}{kind}": dict(zip(_KEYS, sizes, strict=True))
    | _QWEN
    | ({"tie_word_embeddings": False, "vocab_size": 152064} if size == "7B" else {})
    for size, sizes in _QWEN_SIZES.items()
    for kind in ("", "-Instruct")
}


def vision_config(source: str) -> DiffCLIPVisionConfig:
    """The tower that `source` names: a run or saved folder, a published file, a model's name, or a known hub name.

    Raises:
        InputError: it is not here, and nothing is known of it.
    """
    return DiffCLIPVisionConfig.of(_clip_config(source))


def language_config(source: str) -> Any:
    """The configuration of a language model: a folder's, that of a known one, or what the hub's cache has.

    Raises:
        InputError: none of these.
    """
    if source in LANGUAGE_MODELS and not Path(source).is_dir():
        made: Any = Qwen2Config
        return made(**LANGUAGE_MODELS[source])
    try:
        with quiet():
            return AutoConfig.from_pretrained(source, local_files_only=True, trust_remote_code=False)
    except UNREADABLE as error:
        if Path(source).is_dir():
            raise InputError(
                f"language_model {source} has no usable config.json ({line_of(error)})"
            ) from None
        raise unknown("language_model", source, LANGUAGE_MODELS) from None


@contextmanager
def fake_model(recipe: VLMRecipe, attention: str) -> Iterator[Any]:
    """The recipe's model in training mode, with shapes and types but no values; tensors made within have none either.

    Args:
        attention: transformers' name for how the language model computes it, "sdpa" or "eager".
    """
    vision, language = vision_config(recipe.vision), language_config(recipe.language_model)
    check_causal(language, recipe.language_model)
    kind = model_class(recipe.connector)
    tied = bool(language.tie_word_embeddings)
    config = kind.config_class(vision_config=vision, text_config=language, tie_word_embeddings=tied)
    config._attn_implementation = {"text_config": attention}
    with quiet(), torch.device("meta"):
        model = kind(config).train()
        model.model.vision_tower.eval()
    # device types other than the CPU's have no autocast where their hardware is missing, so fake CPU tensors it is
    with FakeTensorMode():
        fakes: dict[int, Any] = {}  # tensors that modules share stay shared
        for module in model.modules():
            for tensors in (module._parameters, module._buffers):
                for name, tensor in tensors.items():
                    if tensor is not None and id(tensor) not in fakes:
                        fake = torch.empty(tensor.shape, dtype=tensor.dtype)
                        fakes[id(tensor)] = nn.Parameter(fake) if isinstance(tensor, nn.Parameter) else fake
                    tensors[name] = None if tensor is None else fakes[id(tensor)]
        yield model


def _clip_config(source: str) -> CLIPConfig:
    name = PUBLISHED.get(source, source)
    path = None if name in MODEL_NAMES else find_model(name)
    if path is not None and path.startswith(HUB_PREFIX):
        raise InputError(
            f"vision {source}: its size is not known without fetching it; plan with a folder, or with a model's name, "
            "vision=DiffCLIP-ViT-B-16"
        )
    config = named_config(name) if path is None else read_config(path)
    with torch.device("meta"):
        return CLIP(config, seed=0).config  # with what it leaves open filled in
