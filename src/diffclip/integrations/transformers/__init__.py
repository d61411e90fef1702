"""DiffCLIP as models of transformers. Importing this package registers them with the Auto classes."""

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

from diffclip.integrations.transformers.configuration import DiffCLIPConfig as DiffCLIPConfig
from diffclip.integrations.transformers.configuration import DiffCLIPTextConfig as DiffCLIPTextConfig
from diffclip.integrations.transformers.configuration import DiffCLIPVisionConfig as DiffCLIPVisionConfig
from diffclip.integrations.transformers.conversion import from_diffclip as from_diffclip
from diffclip.integrations.transformers.conversion import image_processor_of as image_processor_of
from diffclip.integrations.transformers.conversion import processor_of as processor_of
from diffclip.integrations.transformers.conversion import save_transformers as save_transformers
from diffclip.integrations.transformers.conversion import to_diffclip as to_diffclip
from diffclip.integrations.transformers.conversion import tokenizer_of as tokenizer_of
from diffclip.integrations.transformers.conversion import vision_from_diffclip as vision_from_diffclip
from diffclip.integrations.transformers.models import DiffCLIPModel as DiffCLIPModel
from diffclip.integrations.transformers.models import DiffCLIPTextModel as DiffCLIPTextModel
from diffclip.integrations.transformers.models import DiffCLIPVisionModel as DiffCLIPVisionModel
from diffclip.sources.transformers import load_transformers as load_transformers

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
