"""transformers' Llava classes around our vision tower, and `connect`, which builds a model from its parts.

The connector of transformers' Llava has two layers. The paper's connector is one linear layer (Section 5.1), as in
LLaVA (arXiv:2304.08485) and TinyLLaVA.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers
from torch import nn
from transformers import LlavaConfig, LlavaForConditionalGeneration

import diffclip.integrations.transformers  # noqa: F401 - registers our vision model
from diffclip.errors import InputError
from diffclip.vlm.chat import CHAT_TOKENS, chat_template

IMAGE_TOKENS = ("<image>", "<|image_pad|>")
"""Names of the token that stands for one patch, in LLaVA and in Qwen2.5. If both are missing, LLaVA's is added."""
FEATURE_LAYER = -2
"""Use the output of the second-to-last block without final norm and class token, as LLaVA and TinyLLaVA do."""

_untyped: Any = transformers  # mypy refuses calls of functions without types


class DiffCLIPLlavaConfig(LlavaConfig):  # type: ignore[no-untyped-call]
    """LlavaConfig with a name of its own, so that a folder of another kind is refused."""

    model_type = "diffclip_llava"


class DiffCLIPLlavaForConditionalGeneration(LlavaForConditionalGeneration):  # type: ignore[no-untyped-call]
    """LlavaForConditionalGeneration with a linear connector, and a frozen vision tower in evaluation mode."""

    config_class = DiffCLIPLlavaConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        sizes = config.vision_config.hidden_size, config.text_config.hidden_size
        self.model.multi_modal_projector = nn.Linear(*sizes)

    def train(self, mode: bool = True) -> DiffCLIPLlavaForConditionalGeneration:
        """Set the mode of connector and language model."""
        super().train(mode)
        self.model.vision_tower.eval()
        return self


_untyped.AutoConfig.register(DiffCLIPLlavaConfig.model_type, DiffCLIPLlavaConfig, exist_ok=True)
_untyped.AutoModelForImageTextToText.register(
    DiffCLIPLlavaConfig, DiffCLIPLlavaForConditionalGeneration, exist_ok=True
)
_untyped.AutoProcessor.register(DiffCLIPLlavaConfig, _untyped.LlavaProcessor, exist_ok=True)


def connect(
    vision: Any, language_model: Any, tokenizer: Any, image_processor: Any, seed: int = 0
) -> tuple[Any, Any]:
    """Build a model that answers questions about images, and its processor, from copies of the parts.

    Args:
        vision: a DiffCLIPVisionModel with at least two layers and no registers; `image_processor` is its processor.
        language_model: a causal language model of transformers in float32, with the structure of Llama and Qwen2.
        tokenizer: the language model's tokenizer; its copy gets ChatML's tokens if they are missing.
        seed: draws the connector's weights as torch initializes linear layers, as in LLaVA.

    Returns:
        model: in evaluation mode. For text without images its logits equal the language model's, bit by bit.
        processor: a LlavaProcessor; an image becomes one image token per patch of the tower.

    Raises:
        InputError: the vision tower has registers or a single layer, or Llava's classes would compute the language
            model differently.
    """
    if vision.config.registers:
        raise InputError(
            "the vision tower has registers, which Llava's classes take for patches: take one without"
        )
    if vision.config.num_hidden_layers < -FEATURE_LAYER:
        raise InputError(
            "the vision tower has one layer, and the one before the last is read: take two or more"
        )
    tokenizer = copy.deepcopy(tokenizer)
    vocabulary = tokenizer.get_vocab()
    image_token = next((token for token in IMAGE_TOKENS if token in vocabulary), IMAGE_TOKENS[0])
    lacking = [token for token in (image_token, *CHAT_TOKENS) if token not in vocabulary]
    tokenizer.add_tokens(lacking, special_tokens=True)
    model = _assemble(vision, language_model, seed)
    _check_same(model, language_model)
    old_size = model.config.text_config.vocab_size
    if len(tokenizer) > old_size:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        with torch.no_grad():
            for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
                layer.weight[old_size:] = layer.weight[:old_size].mean(dim=0)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    processor = _untyped.LlavaProcessor(
        image_processor=image_processor,
        tokenizer=tokenizer,
        patch_size=vision.config.patch_size,
        vision_feature_select_strategy="default",
        image_token=image_token,
        num_additional_image_tokens=1,  # the class token, which "default" removes again
    )
    processor.chat_template = chat_template(processor)
    model.config.image_token_index = processor.image_token_id
    model.config.image_seq_length = (vision.config.image_size // vision.config.patch_size) ** 2
    model.generation_config = _generation_config(language_model, tokenizer)
    return model.eval(), processor


def freeze(model: Any, stage: int) -> None:
    """Freeze all weights except those of the connector and, in stage 2, of the language model."""
    model.requires_grad_(False)
    model.model.multi_modal_projector.requires_grad_(True)
    if stage == 2:
        model.model.language_model.requires_grad_(True)
        model.lm_head.requires_grad_(True)


def _assemble(vision: Any, language_model: Any, seed: int) -> Any:
    """Build a model on the meta device, without weights, and put copies of the parts into it."""
    tower, decoder = copy.deepcopy(vision), copy.deepcopy(language_model.base_model)
    tied = bool(language_model.config.tie_word_embeddings)
    if not hasattr(decoder, "embed_tokens"):
        raise InputError(
            f"{type(language_model).__name__} is not built as Llama and Qwen2 are: take a language model of that kind"
        )
    config = DiffCLIPLlavaConfig(
        vision_config=tower.config,
        text_config=decoder.config,
        vision_feature_layer=FEATURE_LAYER,
        vision_feature_select_strategy="default",
        tie_word_embeddings=tied,
    )
    with torch.device("meta"):
        model = DiffCLIPLlavaForConditionalGeneration(config)
    projector = model.model.multi_modal_projector.to_empty(device=language_model.device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        projector.reset_parameters()
    model.model.vision_tower = tower.to(language_model.device)
    model.model.language_model = decoder
    output = decoder.get_input_embeddings() if tied else language_model.get_output_embeddings()
    model.lm_head.weight = output.weight if tied else nn.Parameter(output.weight.detach().clone())
    return model


def _check_same(model: Any, language_model: Any) -> None:
    """Refuse a language model if Llava's classes give other logits or lack the bias of its output layer."""
    rows = language_model.get_input_embeddings().weight.shape[0]
    probe = torch.arange(1, 9, device=language_model.device)[None] % rows
    with torch.no_grad():
        same = torch.equal(model(probe).logits, language_model(probe).logits)
    if not same or getattr(language_model.get_output_embeddings(), "bias", None) is not None:
        raise InputError(
            f"{type(language_model).__name__} has a bias or a scale after its last layer, which Llava's classes lack: "
            "take another language model"
        )


def _generation_config(language_model: Any, tokenizer: Any) -> Any:
    """Configure greedy generation to the end of a turn; drop the language model's sampling and repetition settings."""
    end = getattr(language_model.generation_config, "eos_token_id", None)
    ends = [tokenizer.get_vocab()[CHAT_TOKENS[1]], *(end if isinstance(end, list) else [end])]
    return _untyped.GenerationConfig(
        eos_token_id=list(dict.fromkeys(end for end in (*ends, tokenizer.eos_token_id) if end is not None)),
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
    )
