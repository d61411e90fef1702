"""Pictures and texts prepared by transformers' own classes as the core prepares them."""

from __future__ import annotations

from typing import Any, Literal

from PIL.Image import Resampling
from transformers import CLIPProcessor
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from diffclip.config import CLIPConfig, PreprocessConfig
from diffclip.errors import InputError
from diffclip.integrations.transformers.tokens import tokenizer_of

_INTERPOLATIONS: dict[int, Literal["bilinear", "bicubic"]] = {
    Resampling.BILINEAR: "bilinear",
    Resampling.BICUBIC: "bicubic",
}


def image_processor_of(config: CLIPConfig) -> CLIPImageProcessorPil:
    """transformers' CLIP image processor that prepares pictures as `preprocess` of this model does.

    It scales with Pillow, as ours does; its crop lies one pixel beside ours where a side is 4k + 3 pixels too long.
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


def preprocess_of(processor: Any, image_size: int, source: str) -> PreprocessConfig:
    """What `image_processor_of` made `processor` from; `source` names where it comes from.

    Raises:
        InputError: it prepares pictures in another way than a model of ours can.
    """
    size, square = dict(processor.size), {"height": image_size, "width": image_size}
    crop = dict(processor.crop_size) if processor.do_center_crop else None
    edge = size.get("shortest_edge", 0)
    squash = size == square and crop in (None, square)
    steps = processor.do_resize and processor.do_rescale and processor.do_normalize
    usual = steps and abs(processor.rescale_factor * 255 - 1) < 1e-6
    fits = squash or (size.keys() == {"shortest_edge"} and edge >= image_size and crop == square)
    if not (fits and usual and processor.resample in _INTERPOLATIONS):
        raise InputError(
            f"{source}: its image processor (size {size}, crop {crop}, resample {processor.resample}) has no "
            "counterpart here: give one that scales the shorter edge and crops the center, or scales to a square, "
            "and then rescales and normalizes"
        )
    return PreprocessConfig(
        mean=tuple(processor.image_mean),
        std=tuple(processor.image_std),
        interpolation=_INTERPOLATIONS[processor.resample],
        resize="squash" if squash else None if edge == image_size else edge,
    )


def processor_of(config: CLIPConfig) -> CLIPProcessor:
    """transformers' processor of pictures and texts for this model.

    Raises:
        InputError: as `tokenizer_of`.
    """
    return CLIPProcessor(image_processor_of(config), tokenizer_of(config))  # type: ignore[no-untyped-call]
