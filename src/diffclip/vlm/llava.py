"""transformers' Llava classes around our vision tower, and `connect`, which puts a model together from its parts.

transformers' own Llava has a connector of two layers (`mlp2x_gelu`). The paper's is one layer (Section 5.1, "linear"),
as in LLaVA (arXiv:2304.08485) and TinyLLaVA; for it there is a subclass that differs in nothing else.
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
"""Names of the token that stands for a patch: LLaVA's, which is added if both are missing, and Qwen2.5's."""
FEATURE_LAYER = -2
"""The output of the block before the last, without the final norm and the class token, as LLaVA and TinyLLaVA do."""

_untyped: Any = transformers  # mypy refuses calls of functions without types


class LinearLlavaConfig(LlavaConfig):  # type: ignore[no-untyped-call]
    """LlavaConfig under another name, for models whose connector is one layer."""

    model_type = "diffclip_llava"


class LinearLlavaForConditionalGeneration(LlavaForConditionalGeneration):  # type: ignore[no-untyped-call]
    """LlavaForConditionalGeneration with one linear layer between vision tower and language model."""

    config_class = LinearLlavaConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        sizes = config.vision_config.hidden_size, config.text_config.hidden_size
        self.model.multi_modal_projector = nn.Linear(*sizes)


_untyped.AutoConfig.register(LinearLlavaConfig.model_type, LinearLlavaConfig, exist_ok=True)
_untyped.AutoModelForImageTextToText.register(
    LinearLlavaConfig, LinearLlavaForConditionalGeneration, exist_ok=True
)
_untyped.AutoProcessor.register(LinearLlavaConfig, _untyped.LlavaProcessor, exist_ok=True)

CONNECTORS: dict[str, Any] = {
    "linear": LinearLlavaForConditionalGeneration,
    "mlp2x_gelu": LlavaForConditionalGeneration,
}
"""The model class of each connector."""


def connector_of(config: Any) -> str:
    """Return the name in `CONNECTORS` of the connector of a model with this configuration."""
    for name, kind in CONNECTORS.items():
        if config.model_type == kind.config_class.model_type:
            return name
    raise InputError(
        f"a {config.model_type} model has no connector: give one that `diffclip vlm train` saved"
    )


def connect(
    vision: Any,
    language_model: Any,
    tokenizer: Any,
    image_processor: Any,
    connector: str = "linear",
    seed: int = 0,
) -> tuple[Any, Any]:
    """Put together a model that answers questions about images, and its processor; the parts are copied.

    Args:
        vision: a DiffCLIPVisionModel of two layers or more, without registers; `image_processor` is its own.
        language_model: a causal language model of transformers in float32, built as Llama and Qwen2 are.
        tokenizer: the language model's; ChatML's tokens are added if they are missing.
        connector: a name in `CONNECTORS`; its weights are drawn from `seed` as torch's linear layers are, like LLaVA's.

    Returns:
        model: in evaluation mode. On text alone it gives the language model's logits, bit by bit.
        processor: a LlavaProcessor; each image takes as many image tokens as the tower has patches.

    Raises:
        InputError: a vision tower with registers, or a language model that Llava's classes would compute in another
            way.
    """
    if vision.config.registers:
        raise InputError(
            "the vision tower has registers, which Llava's classes take for patches: take one without"
        )
    tokenizer = copy.deepcopy(tokenizer)
    vocabulary = tokenizer.get_vocab()
    image_token = next((token for token in IMAGE_TOKENS if token in vocabulary), IMAGE_TOKENS[0])
    lacking = [token for token in (image_token, *CHAT_TOKENS) if token not in vocabulary]
    tokenizer.add_tokens(lacking, special_tokens=True)
    model = _assemble(vision, language_model, connector, seed)
    _check_same(model, language_model)
    before = model.config.text_config.vocab_size
    if len(tokenizer) > before:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        with torch.no_grad():
            for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
                layer.weight[before:] = layer.weight[:before].mean(dim=0)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    processor = _untyped.LlavaProcessor(
        image_processor=image_processor,
        tokenizer=tokenizer,
        patch_size=vision.config.patch_size,
        vision_feature_select_strategy="default",
        image_token=image_token,
        num_additional_image_tokens=1,  # the class token, which "default" leaves out again
    )
    processor.chat_template = chat_template(processor)
    model.config.image_token_index = processor.image_token_id
    model.config.image_seq_length = (vision.config.image_size // vision.config.patch_size) ** 2
    model.generation_config = _generation(language_model, tokenizer)
    return model.eval(), processor


def freeze(model: Any, stage: int) -> None:
    """Leave trainable the connector, and in stage 2 the language model too."""
    model.requires_grad_(False)
    model.model.multi_modal_projector.requires_grad_(True)
    if stage == 2:
        model.model.language_model.requires_grad_(True)
        model.lm_head.requires_grad_(True)


def _assemble(vision: Any, language_model: Any, connector: str, seed: int) -> Any:
    """Put copies of the parts into a model that is made without weights of its own."""
    kind = CONNECTORS[connector]
    tower, decoder = copy.deepcopy(vision), copy.deepcopy(language_model.base_model)
    tied = bool(language_model.config.tie_word_embeddings)
    if not hasattr(decoder, "embed_tokens"):
        raise InputError(
            f"{type(language_model).__name__} is not built as Llama and Qwen2 are: take a language model of that kind"
        )
    config = kind.config_class(
        vision_config=tower.config,
        text_config=decoder.config,
        vision_feature_layer=FEATURE_LAYER,
        vision_feature_select_strategy="default",
        tie_word_embeddings=tied,
    )
    with torch.device("meta"):
        model = kind(config)
    projector = model.model.multi_modal_projector.to_empty(device=language_model.device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for layer in projector.modules():
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
    model.model.vision_tower = tower.to(language_model.device)
    model.model.language_model = decoder
    output = decoder.get_input_embeddings() if tied else language_model.get_output_embeddings()
    model.lm_head.weight = output.weight if tied else nn.Parameter(output.weight.detach().clone())
    return model


def _check_same(model: Any, language_model: Any) -> None:
    """Refuse a language model whose computation before or after its layers Llava's classes leave out."""
    rows = language_model.get_input_embeddings().weight.shape[0]
    probe = torch.arange(1, 9, device=language_model.device)[None] % rows
    with torch.no_grad():
        same = torch.equal(model(probe).logits, language_model(probe).logits)
    if not same or getattr(language_model.get_output_embeddings(), "bias", None) is not None:
        raise InputError(
            f"{type(language_model).__name__} has a bias or a scale after its last layer, which Llava's classes lack: "
            "take another language model"
        )


def _generation(language_model: Any, tokenizer: Any) -> Any:
    """Generate greedily, to the end of a turn, without the language model's own sampling and repetition settings."""
    own = getattr(language_model.generation_config, "eos_token_id", None)
    ends = [tokenizer.get_vocab()[CHAT_TOKENS[1]], *(own if isinstance(own, list) else [own])]
    return _untyped.GenerationConfig(
        eos_token_id=list(dict.fromkeys(end for end in (*ends, tokenizer.eos_token_id) if end is not None)),
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
    )
