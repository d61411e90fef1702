"""Models of other libraries as they are, with the methods that evaluation calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from diffclip.config import PreprocessConfig
from diffclip.errors import InputError
from diffclip.preprocess import Transform, to_rgb

Statistics = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation by color channel."""


class WrappedModel(nn.Module):
    """A model of another library, in evaluation mode.

    Args:
        model: the model, whose parameters this module shares.
        source: the model's name in messages.
        encode_image: images [B, 3, S, S] → features [B, D].
        encode_text: what the model's tokenizer returns → features [B, D]; None for a model without texts.
        logit_scale: the logarithm of the factor of the logits; None: that of 100, at which CLIP's training stops.
    """

    def __init__(
        self,
        model: nn.Module,
        source: str,
        encode_image: Callable[[Tensor], Tensor],
        encode_text: Callable[[Any], Tensor] | None = None,
        logit_scale: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.model, self.source, self.has_texts = model.eval(), source, encode_text is not None
        self._image, self._text = encode_image, encode_text
        scale = torch.tensor(math.log(100)) if logit_scale is None else logit_scale.detach().float()
        self.register_buffer("logit_scale", scale.reshape(()).clone())

    def encode_image(self, images: Tensor, normalize: bool = False) -> Tensor:
        """Encode images [B, 3, S, S], as the model's own preparation makes them: [B, D]."""
        features = self._image(images)
        return F.normalize(features, dim=-1) if normalize else features

    def encode_text(self, tokens: Any, normalize: bool = False) -> Tensor:
        """Encode what the model's tokenizer returns: [B, D]."""
        if self._text is None:
            raise InputError(f"{self.source} has no text tower: use it for tasks on images")
        features = self._text(tokens)
        return F.normalize(features, dim=-1) if normalize else features


class LibraryTransform:
    """A library's own preparation of images, with the interface of `EvalTransform`: PIL image → float32 [3, S, S].

    Args:
        prepare: the library's function.
        statistics: the mean and standard deviation by which `prepare` normalizes as its last step.
        identity: everything that `prepare` depends on, as text.
    """

    def __init__(self, prepare: Transform, statistics: Statistics, identity: str) -> None:
        self._prepare = prepare
        mean, std = statistics
        self.preprocess = PreprocessConfig.model_validate({"mean": tuple(mean), "std": tuple(std)})
        self.image_size = self(Image.new("RGB", (64, 48))).shape[-1]
        self.identity: list[object] = [identity]

    def __call__(self, image: Image.Image) -> Tensor:
        return self._prepare(to_rgb(image))

    def pixels(self, image: Image.Image) -> Tensor:
        """Return the prepared image before it was normalized, uint8 [3, S, S]."""
        statistics = self.preprocess.mean, self.preprocess.std
        mean, std = (torch.tensor(values)[:, None, None] for values in statistics)
        return ((self(image) * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)

    def __str__(self) -> str:
        return f"the model's own preparation, {self.image_size} px"


def wrap(source: str, model: nn.Module, preprocess: Any, tokenizer: Any) -> tuple[Any, Any, Any]:
    """Wrap what a reader of `register_model_source` returns for `source`, unless it has the interfaces already."""
    if not isinstance(model, WrappedModel):
        encode_image = getattr(model, "encode_image", None)
        # results are kept by a digest of the parameters
        if encode_image is None or not isinstance(model, nn.Module) or not [*model.parameters()]:
            raise InputError(f"{source} is no torch module with encode_image and parameters: make it one")
        text = getattr(model, "encode_text", None) if tokenizer is not None else None
        scale = getattr(model, "logit_scale", None)
        model = WrappedModel(model, source, encode_image, text, scale)
    if not hasattr(preprocess, "pixels"):
        last = getattr(preprocess, "transforms", [preprocess])[-1]
        if not (hasattr(last, "mean") and hasattr(last, "std")):
            raise InputError(
                f"{source}: its preparation does not end in torchvision's Normalize: give a LibraryTransform"
            )
        preprocess = LibraryTransform(preprocess, (last.mean, last.std), repr(preprocess))
    return model, preprocess, tokenizer
