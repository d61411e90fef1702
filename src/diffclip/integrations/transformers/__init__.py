"""DiffCLIP as models of transformers. Importing this registers them with the Auto classes."""

from typing import Any

from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoModelForZeroShotImageClassification,
    AutoProcessor,
    AutoTokenizer,
    CLIPImageProcessor,
    CLIPProcessor,
    PreTrainedTokenizerFast,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from diffclip.integrations.transformers.configuration import (
    DiffCLIPConfig,
    DiffCLIPTextConfig,
    DiffCLIPVisionConfig,
)
from diffclip.integrations.transformers.conversion import from_diffclip, to_diffclip, vision_from_diffclip
from diffclip.integrations.transformers.folders import load_transformers, save_transformers
from diffclip.integrations.transformers.model import DiffCLIPModel
from diffclip.integrations.transformers.processing import image_processor_of, preprocess_of, processor_of
from diffclip.integrations.transformers.text import DiffCLIPTextModel, DiffCLIPTextModelWithProjection
from diffclip.integrations.transformers.tokens import tokenizer_of
from diffclip.integrations.transformers.vision import DiffCLIPVisionModel, DiffCLIPVisionModelWithProjection

__all__ = [
    "DiffCLIPConfig",
    "DiffCLIPModel",
    "DiffCLIPTextConfig",
    "DiffCLIPTextModel",
    "DiffCLIPTextModelWithProjection",
    "DiffCLIPVisionConfig",
    "DiffCLIPVisionModel",
    "DiffCLIPVisionModelWithProjection",
    "from_diffclip",
    "image_processor_of",
    "load_transformers",
    "preprocess_of",
    "processor_of",
    "save_transformers",
    "to_diffclip",
    "tokenizer_of",
    "vision_from_diffclip",
]


def _register() -> None:
    models: dict[Any, Any] = {
        DiffCLIPConfig: DiffCLIPModel,
        DiffCLIPVisionConfig: DiffCLIPVisionModel,
        DiffCLIPTextConfig: DiffCLIPTextModel,
    }
    for config, model in models.items():
        AutoConfig.register(config.model_type, config, exist_ok=True)
        AutoModel.register(config, model, exist_ok=True)
    AutoModelForZeroShotImageClassification.register(DiffCLIPConfig, DiffCLIPModel, exist_ok=True)
    AutoProcessor.register(DiffCLIPConfig, CLIPProcessor, exist_ok=True)  # type: ignore[no-untyped-call]
    for config in (DiffCLIPConfig, DiffCLIPVisionConfig):
        AutoImageProcessor.register(
            config,
            image_processor_classes={"pil": CLIPImageProcessorPil, "torchvision": CLIPImageProcessor},
            exist_ok=True,
        )
    for config in (DiffCLIPConfig, DiffCLIPTextConfig):
        AutoTokenizer.register(config, PreTrainedTokenizerFast, exist_ok=True)  # type: ignore[no-untyped-call]


_register()
