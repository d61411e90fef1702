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
from diffclip.integrations.transformers.conversion import (
    from_diffclip,
    image_processor_of,
    load_transformers,
    processor_of,
    save_transformers,
    to_diffclip,
    vision_from_diffclip,
)
from diffclip.integrations.transformers.models import (
    DiffCLIPModel,
    DiffCLIPTextModel,
    DiffCLIPTextModelWithProjection,
    DiffCLIPVisionModel,
    DiffCLIPVisionModelWithProjection,
)
from diffclip.integrations.transformers.tokens import tokenizer_of

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
    "processor_of",
    "save_transformers",
    "to_diffclip",
    "tokenizer_of",
    "vision_from_diffclip",
]

_KINDS: dict[Any, Any] = {
    DiffCLIPConfig: DiffCLIPModel,
    DiffCLIPVisionConfig: DiffCLIPVisionModel,
    DiffCLIPTextConfig: DiffCLIPTextModel,
}
for _config, _model in _KINDS.items():
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    AutoModel.register(_config, _model, exist_ok=True)
for _config in (DiffCLIPConfig, DiffCLIPVisionConfig):
    _processors: dict[str, type] = {"pil": CLIPImageProcessorPil, "torchvision": CLIPImageProcessor}
    AutoImageProcessor.register(_config, image_processor_classes=_processors, exist_ok=True)
for _config in (DiffCLIPConfig, DiffCLIPTextConfig):
    AutoTokenizer.register(_config, PreTrainedTokenizerFast, exist_ok=True)  # type: ignore[no-untyped-call]
AutoModelForZeroShotImageClassification.register(DiffCLIPConfig, DiffCLIPModel, exist_ok=True)
AutoProcessor.register(DiffCLIPConfig, CLIPProcessor, exist_ok=True)  # type: ignore[no-untyped-call]
