"""Vision tower, connector and language model put together as one of transformers' Llava models."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig, LlavaProcessor

from diffclip.errors import InputError, unknown
from diffclip.vlm.chat import chat_template
from diffclip.vlm.llava import CONNECTORS, embedding_name, model_class

# what a picture's place in the text is called, by preference: LLaVA's name, and the one that Qwen2.5's tokenizer has
IMAGE_TOKENS = ("<image>", "<|image_pad|>")
END_OF_TURN = "<|im_end|>"
# the output of the block before the last, not normed, without the class token: LLaVA's choice and TinyLLaVA's
FEATURE_LAYER = -2


def connect(
    vision: Any,
    language_model: Any,
    tokenizer: Any,
    image_processor: Any,
    connector: str = "linear",
    image_token: str | None = None,
    seed: int = 0,
) -> tuple[Any, Any]:
    """A model that answers in words about pictures, and its processor; vision tower and language model are copied.

    Args:
        vision: a DiffCLIPVisionModel of two layers or more.
        language_model: any causal language model of transformers; its dtype is the whole model's.
        tokenizer: the language model's.
        image_processor: the vision tower's.
        connector: a name in `CONNECTORS`; its start is drawn from `seed` as torch's linear layers start, like LLaVA's.
        image_token: what stands for a patch in the text; it is added to the vocabulary if it is not there. None: what
            the tokenizer has of `IMAGE_TOKENS`.

    Returns:
        model: in evaluation mode. Its text alone is the language model's, to the bit.
        processor: a LlavaProcessor; its pictures have as many image tokens as the tower has patches.

    Raises:
        InputError: unknown connector, no image token, a vision tower without a layer before its last, or a language
            model that is not causal or that Llava's classes would compute otherwise than it does.
    """
    if connector not in CONNECTORS:
        raise unknown("connector", connector, CONNECTORS)
    if vision.config.num_hidden_layers < 2:
        raise InputError(
            "the vision tower has 1 layer: features come from the layer before the last, so take one of 2"
        )
    tokenizer = copy.deepcopy(tokenizer)
    image_token = _image_token(tokenizer, image_token)
    name = type(language_model).__name__
    probe = _check_causal(language_model, name)
    model = _assemble(vision, language_model, name, connector, seed)
    _check_same(model, language_model, name, probe)
    if len(tokenizer) > model.config.text_config.vocab_size:
        _add_rows(model, len(tokenizer))
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    make: Any = LlavaProcessor
    processor = make(
        image_processor=image_processor,
        tokenizer=tokenizer,
        patch_size=vision.config.patch_size,
        vision_feature_select_strategy="default",
        image_token=image_token,
        num_additional_image_tokens=1,  # the class token, which "default" leaves out again
    )
    with suppress(InputError):  # said where the template "chat" is first asked for; "plain" needs none
        processor.chat_template = chat_template(processor)
    model.config.image_token_index = processor.image_token_id
    model.config.image_seq_length = (vision.config.image_size // vision.config.patch_size) ** 2
    model.generation_config = _generation(language_model, tokenizer)
    return model.eval(), processor


def _image_token(tokenizer: Any, wanted: str | None) -> str:
    vocabulary = tokenizer.get_vocab()
    if wanted is None:
        found = next((token for token in IMAGE_TOKENS if token in vocabulary), None)
        if found is None:
            raise InputError(
                f"the language model's tokenizer ({type(tokenizer).__name__}) has no image token "
                f"({' or '.join(IMAGE_TOKENS)}): image_token={IMAGE_TOKENS[0]!r} in the recipe adds one"
            )
        return found
    if not wanted.strip():
        raise InputError(
            f"image_token {wanted!r} is empty: write for example image_token={IMAGE_TOKENS[0]!r}"
        )
    if wanted not in vocabulary:
        tokenizer.add_tokens([wanted], special_tokens=True)
    return wanted


def _check_causal(language_model: Any, name: str) -> Any:
    """A few tokens [1, n] to compare models with, after a look at whether a token changes what stands before it."""
    if language_model.get_output_embeddings() is None or language_model.config.is_encoder_decoder:
        raise InputError(f"{name} is no causal language model: take another language model")
    rows = language_model.get_input_embeddings().weight.shape[0]
    probe = torch.arange(1, 9, device=language_model.device)[None] % rows
    changed = probe.clone()
    changed[0, -1] = (changed[0, -1] + 1) % rows
    with torch.no_grad():
        first, second = (language_model(ids).logits[:, :-1] for ids in (probe, changed))
    if not torch.allclose(first, second, rtol=1e-4, atol=1e-6):
        raise InputError(
            f"{name} is no causal language model, its words see later ones: take another language model"
        )
    return probe


def _assemble(vision: Any, language_model: Any, name: str, connector: str, seed: int) -> Any:
    """The parts' copies in a model that is made without weights of its own."""
    kind = model_class(connector)
    head, tied = language_model.get_output_embeddings(), bool(language_model.config.tie_word_embeddings)
    if getattr(head, "bias", None) is not None:
        raise _beyond_llava(name)
    embedding = embedding_name(language_model.base_model)
    if tied and connector != "linear" and embedding != "embed_tokens":
        raise InputError(
            f"{name} shares its output's weights with `{embedding}`, which Llava's own class cannot: "
            "use connector=linear, or another language model"
        )
    tower, decoder = copy.deepcopy(vision), copy.deepcopy(language_model.base_model)
    dtype, device = language_model.dtype, language_model.device
    config = kind.config_class(
        vision_config=tower.config,
        text_config=decoder.config,
        vision_feature_layer=FEATURE_LAYER,
        vision_feature_select_strategy="default",
        tie_word_embeddings=tied,
    )
    with torch.device("meta"):
        model = kind(config)
    if type(model.model.language_model) is not type(decoder):
        raise InputError(f"{name} cannot be built from its configuration alone: take another language model")
    projector = model.model.multi_modal_projector.to_empty(device=device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for layer in projector.modules():
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
    projector.to(dtype)
    model.model.vision_tower = _of_type(tower, dtype).to(device)
    model.model.language_model = decoder
    shared = decoder.get_input_embeddings().weight
    model.lm_head.weight = shared if tied else nn.Parameter(head.weight.detach().clone())
    model.config.dtype = dtype
    return model


def _of_type(tower: Any, dtype: torch.dtype) -> Any:
    """`tower` in `dtype`, but for what it is to keep in float32 (λ's vectors), as it is when it is loaded."""
    kept = set(tower._keep_in_fp32_modules_strict or ())
    wide = {name: value.data for name, value in tower.named_parameters() if name.rpartition(".")[2] in kept}
    tower.to(dtype)
    for name, value in wide.items():
        tower.get_parameter(name).data = value
    return tower


def _check_same(model: Any, language_model: Any, name: str, probe: Any) -> None:
    """Raise `InputError` where Llava's classes leave out what a language model does before or after its layers."""
    with torch.no_grad():
        try:
            same = torch.equal(model(probe).logits, language_model(probe).logits)
        except AttributeError:  # a model with a state instead of attention
            same = False
    if not same:
        raise _beyond_llava(name)


def _beyond_llava(name: str) -> InputError:
    return InputError(
        f"{name} does more to its words than Llava's classes can (a bias or a scale after its last layer): "
        "take another language model"
    )


def _add_rows(model: Any, rows: int) -> None:
    """Grow the vocabulary to `rows`; new words start as the mean of those that are there."""
    before = model.config.text_config.vocab_size
    model.resize_token_embeddings(rows, mean_resizing=False)
    with torch.no_grad():
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            layer.weight[before:] = layer.weight[:before].mean(dim=0)


def _generation(language_model: Any, tokenizer: Any) -> Any:
    """Greedy, to the end of a turn; what the language model's own says of sampling and repetition is left out."""
    ends = getattr(language_model.generation_config, "eos_token_id", None)
    ends = ends if isinstance(ends, list) else [ends]
    vocabulary = tokenizer.get_vocab()
    ends = [vocabulary.get(END_OF_TURN), *ends, tokenizer.eos_token_id]
    made: Any = GenerationConfig
    return made(
        eos_token_id=list(dict.fromkeys(end for end in ends if end is not None)),
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
    )
