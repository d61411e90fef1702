"""Convert models, image processors, tokenizers and folders between the core and transformers.

The tokenizer has open_clip's merges and ids. Its normalizer cleans texts as open_clip does, except for the steps of
ftfy that need the whole text (mojibake, full-width letters, unusual HTML entities).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from PIL.Image import Resampling
from torch import Tensor
from transformers import CLIPProcessor, PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from diffclip.config import VOCABULARY, CLIPConfig, PreprocessConfig, name_of
from diffclip.errors import InputError
from diffclip.files import write_atomically
from diffclip.integrations.transformers.configuration import DiffCLIPConfig, DiffCLIPVisionConfig
from diffclip.integrations.transformers.models import (
    DiffCLIPModel,
    DiffCLIPPreTrainedModel,
    DiffCLIPVisionModel,
)
from diffclip.model import CLIP, empty_model
from diffclip.sources.transformers import PROJECTIONS, core_name, hide_progress_bar
from diffclip.tensors import first_names
from diffclip.tokenizer import check_end_of_text

Converted = TypeVar("Converted", bound=DiffCLIPPreTrainedModel)

START, END = "<start_of_text>", "<end_of_text>"
# Id 0 is the padding, and also a `!` inside a word. A special token named `!` would be cut out of texts before all
# other steps. So the vocabulary names it by its byte, as the model does when it looks up characters that it lacks.
PAD = "<0x21>"

_LETTERS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_CONTROL = r"[\x00-\x08\x0b\x0e-\x1f\x7f\x{206a}-\x{206f}\x{feff}\x{fff9}-\x{fffc}]"
_ENTITIES = {
    "&lt;": "<",
    "&gt;": ">",
    "&quot;": '"',
    "&#34;": '"',
    "&#39;": "'",
    "&apos;": "'",
    "&nbsp;": " ",
}
_QUOTES = {r"[\x{2018}-\x{201b}\x{02bc}]": "'", r"[\x{201c}-\x{201f}]": '"'}
_LIGATURES = {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl"}


def from_diffclip(model: CLIP) -> DiffCLIPModel:
    """Copy `model` for transformers; the copy has the same device, dtype and mode."""
    return _copy_model(DiffCLIPModel, DiffCLIPConfig.of(model.config), model)


def vision_from_diffclip(model: CLIP) -> DiffCLIPVisionModel:
    """Copy the vision tower of `model` for transformers; the copy has the same device, dtype and mode."""
    return _copy_model(DiffCLIPVisionModel, DiffCLIPVisionConfig.of(model.config), model)


def _copy_model(kind: type[Converted], config: Any, model: CLIP) -> Converted:
    if lost := dict(model.named_buffers()).keys() - model.state_dict().keys():
        raise InputError(
            f"{name_of(model.config)} keeps {first_names(sorted(lost))} beside its weights, and transformers loses "
            "it: register it as a persistent buffer"
        )
    with torch.device("meta"):  # no random values: the copies replace them at once
        copy = kind(config)
    ours = model.state_dict()
    state = {name: _copy_parameter(name, ours[core_name(name)]) for name in copy.state_dict()}
    copy.load_state_dict(state, assign=True)
    copy.train(model.training)
    return copy


def to_diffclip(model: DiffCLIPModel, preprocess: PreprocessConfig | None = None) -> CLIP:
    """Copy `model` for the core; the copy has the same device, dtype and mode.

    Args:
        model: made by `from_diffclip`, trained, or loaded.
        preprocess: how images are prepared, if the model's processor differs from its configuration.

    Raises:
        InputError: the model takes text features at another token id than the core would.
    """
    config, text = model.config.core(), model.config.text_config
    check_end_of_text(text.eos_token_id, text.vocab_size, "the model")
    if preprocess is not None:
        config.preprocess = preprocess
    copy = empty_model(config)
    state = {core_name(name): _copy_parameter(name, value) for name, value in model.state_dict().items()}
    copy.load_state_dict(state, assign=True)
    return copy.to(model.device).train(model.training)


def _copy_parameter(name: str, value: Tensor) -> Tensor:
    """Copy a parameter (`name` in transformers); transpose projections, which the core stores transposed."""
    return (value.T if name in PROJECTIONS else value).clone(memory_format=torch.contiguous_format)


def image_processor_of(config: CLIPConfig) -> CLIPImageProcessorPil:
    """Make transformers' CLIP image processor that prepares images as `preprocess` of this model does.

    It scales with Pillow, as ours does. Its crop lies one pixel beside ours if a side is too long by 4k + 3 pixels.
    """
    preprocess, size = config.preprocess, config.vision.image_size
    square = {"height": size, "width": size}
    return CLIPImageProcessorPil(
        size=square if preprocess.resize == "squash" else {"shortest_edge": preprocess.resize or size},
        crop_size=square,
        do_center_crop=preprocess.resize != "squash",
        resample=Resampling[preprocess.interpolation.upper()],
        image_mean=list(preprocess.mean),
        image_std=list(preprocess.std),
    )


def processor_of(config: CLIPConfig) -> CLIPProcessor:
    """Make transformers' processor of images and texts for this model; raises `InputError` as `tokenizer_of` does."""
    return CLIPProcessor(image_processor_of(config), tokenizer_of(config))  # type: ignore[no-untyped-call]


def tokenizer_of(config: CLIPConfig) -> Any:
    """Make transformers' fast tokenizer with the ids of this model; a smaller vocabulary than the tokenizer's raises
    `InputError`. With `padding="max_length", truncation=True`, its rows equal those of our tokenizer."""
    if config.text.vocab_size < VOCABULARY:
        raise InputError(
            f"the vocabulary of {config.text.vocab_size} is smaller than the tokenizer's {VOCABULARY}"
        )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=_backend(),
        bos_token=START,
        eos_token=END,
        pad_token=PAD,
        model_max_length=config.text.context_length,
        model_input_names=["input_ids", "attention_mask"],
        padding_side="right",
        truncation_side="right",
        clean_up_tokenization_spaces=False,
    )


@cache
def _backend() -> Any:
    # open_clip takes seconds to import
    from open_clip.tokenizer import SimpleTokenizer
    from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
    from tokenizers.models import BPE

    bpe = SimpleTokenizer()
    vocabulary = {_rename_token(token): number for token, number in bpe.encoder.items()}
    merges = [(_rename_token(first), _rename_token(second)) for first, second in bpe.bpe_ranks]
    tokenizer = Tokenizer(BPE(vocabulary, merges, end_of_word_suffix="</w>", byte_fallback=True))
    # an entity may be escaped twice (`&amp;lt;`), so there are two rounds; the ampersand is last in each
    entities = 2 * [*_ENTITIES.items(), ("&amp;", "&")]
    tokenizer.normalizer = normalizers.Sequence(
        [
            *(normalizers.Replace(written, meant) for written, meant in entities),
            *(normalizers.Replace(written, meant) for written, meant in _LIGATURES.items()),
            *(normalizers.Replace(Regex(written), meant) for written, meant in _QUOTES.items()),
            normalizers.Replace(Regex(_CONTROL), ""),
            normalizers.NFC(),
            normalizers.Lowercase(),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_LETTERS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {END}", special_tokens=[(START, vocabulary[START]), (END, vocabulary[END])]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(PAD, "!"),
            decoders.ByteLevel(),
            decoders.Replace("</w>", " "),
            decoders.Strip(" ", 0, 1),
        ]
    )
    return tokenizer


def _rename_token(token: str) -> str:
    """Replace each `!` inside a word by PAD; a `!` at the end of a word has an id of its own."""
    word = token.removesuffix("</w>")
    end = word[-1:] if token != word else ""
    return word[: len(word) - len(end)].replace("!", PAD) + end + token[len(word) :]


def save_transformers(model: CLIP, folder: str | Path) -> None:
    """Save `model` to the new folder `folder`, for the Auto classes, whole or not at all.

    A model with a smaller vocabulary than the tokenizer's is saved without a tokenizer.
    """
    config = model.config
    whole = config.text.vocab_size >= VOCABULARY
    with write_atomically(folder) as temporary, hide_progress_bar():
        from_diffclip(model).save_pretrained(temporary)
        (processor_of(config) if whole else image_processor_of(config)).save_pretrained(temporary)
