"""transformers' Llava classes by their connector, registered with the Auto classes.

transformers' own Llava has a connector of two layers (`mlp2x_gelu`). The paper's is one layer (Section 5.1, "linear"),
as in LLaVA (arXiv:2304.08485) and TinyLLaVA; for it there is a subclass that differs in nothing else.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForImageTextToText,
    AutoProcessor,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaModel,
    LlavaProcessor,
    PreTrainedModel,
)
from transformers.models.llava.modeling_llava import LlavaPreTrainedModel

import diffclip.integrations.transformers  # noqa: F401 - our vision model, by its name in a configuration
from diffclip.errors import InputError

CONNECTORS = ("linear", "mlp2x_gelu")


class LinearLlavaConfig(LlavaConfig):  # type: ignore[no-untyped-call]
    """LlavaConfig; its name alone says that the connector is one layer."""

    model_type = "diffclip_llava"


class LinearLlavaModel(LlavaModel):  # type: ignore[no-untyped-call]
    """LlavaModel with one linear layer between vision tower and language model."""

    config_class = LinearLlavaConfig

    multi_modal_projector: Any

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.multi_modal_projector = nn.Linear(
            config.vision_config.hidden_size, config.text_config.hidden_size
        )


class LinearLlavaForConditionalGeneration(LlavaForConditionalGeneration):  # type: ignore[no-untyped-call]
    """LlavaForConditionalGeneration around `LinearLlavaModel`."""

    config_class = LinearLlavaConfig

    post_init: Any

    def __init__(self, config: Any) -> None:
        LlavaPreTrainedModel.__init__(self, config)
        self.model = LinearLlavaModel(config)
        self.lm_head = nn.Linear(config.text_config.hidden_size, config.text_config.vocab_size, bias=False)
        embedding = embedding_name(self.model.language_model)
        self._tied_weights_keys = {"lm_head.weight": f"model.language_model.{embedding}.weight"}
        self.post_init()


def embedding_name(decoder: Any) -> str:
    """What a language model calls its embedding: embed_tokens, wte, embed_in…"""
    embedding = decoder.get_input_embeddings()
    return str(next(name for name, module in decoder.named_modules() if module is embedding))


AutoConfig.register(LinearLlavaConfig.model_type, LinearLlavaConfig, exist_ok=True)
AutoModel.register(LinearLlavaConfig, LinearLlavaModel, exist_ok=True)
AutoModelForImageTextToText.register(LinearLlavaConfig, LinearLlavaForConditionalGeneration, exist_ok=True)
_processors: Any = AutoProcessor
_processors.register(LinearLlavaConfig, LlavaProcessor, exist_ok=True)

_MODELS: dict[str, Any] = {
    "linear": LinearLlavaForConditionalGeneration,
    "mlp2x_gelu": LlavaForConditionalGeneration,
}


def model_class(connector: str) -> Any:
    """The class of models with this connector, a name in `CONNECTORS`."""
    return _MODELS[connector]


def compute_again(model: Any) -> None:
    """Let the layers that learn keep no activations, and compute them again in the backward pass."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable()


def connector_of(model: PreTrainedModel) -> str:
    """The name in `CONNECTORS` of a connected model's connector.

    Raises:
        InputError: it is no such model.
    """
    for name, kind in _MODELS.items():
        if model.config.model_type == kind.config_class.model_type:
            return name
    raise InputError(
        f"a {model.config.model_type} model has no connector: give one that `diffclip vlm train` saved"
    )
