"""Relevance of patches for a text, and of tokens for an image.

Gradient-weighted attention of Chefer, Gur and Wolf, "Generic Attention-model Explainability" (ICCV 2021), with their
settings for CLIP: y is the pair's logit, Ā = mean over heads of (∂y/∂A ⊙ A)⁺, and from the first chosen layer on
R ← R + Ā·R, R = 1 at the start. The paper's Figure 2 shows the row of the class token for the last layer.

Of a differential layer A is A1 − λ·A2, what multiplies the values. Its entries have a sign, and so has their
derivative: a patch that is subtracted and whose weight speaks against the text speaks for it, and counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from diffclip.attention import AttentionMaps
from diffclip.focus.maps import as_patches, patch_part
from diffclip.focus.recording import recording
from diffclip.model import CLIP


def image_relevance(model: CLIP, images: Tensor, texts: Tensor, first_layer: int = -1) -> Tensor:
    """Relevance of each patch for each text: ≥ 0, [B, T, h, w].

    Args:
        model: in any mode; evaluated, and left as it was.
        images: [B, 3, S, S] as the model takes them.
        texts: unit-length text features, [T, D] for all images or [B, T, D] for each its own.
        first_layer: where R begins; −1, as in the paper's figures, is the last layer alone, 0 all layers.

    Raises:
        InputError: no such layer, or images of another size.
    """
    with recording(model, "visual", first_layer, gradients=True) as seen:
        logits = image_logits(model, images, texts)
        rows = [relevance_of(seen, gradients(logits[:, t], seen))[:, 0] for t in range(logits.shape[1])]
    return as_patches(patch_part(torch.stack(rows, dim=1)))


def image_logits(model: CLIP, images: Tensor, texts: Tensor) -> Tensor:
    """The logit of each image with each text, [B, T], with gradients to what records; `texts` as above."""
    features = model.encode_image(_usable(images), normalize=True)
    texts = _usable(texts.detach()).to(features.dtype)
    return (
        model.logit_scale.detach().exp() * (texts.expand(len(features), -1, -1) @ features[..., None])[..., 0]
    )


def text_relevance(model: CLIP, tokens: Tensor, images: Tensor, first_layer: int = -1) -> Tensor:
    """Relevance of each token for each image: ≥ 0, [T, I, L]; 0 from the end of the text on and at its start.

    Args:
        model: in any mode; evaluated, and left as it was.
        tokens: ids [T, L], with a start and an end of text each.
        images: unit-length image features [I, D].
        first_layer: as in `image_relevance`.

    Raises:
        InputError: no such layer, or more tokens than the context.
    """
    ends = tokens.argmax(-1)
    with recording(model, "text", first_layer, gradients=True) as seen:
        features = model.encode_text(tokens, normalize=True)
        logits = model.logit_scale.detach().exp() * features @ _usable(images.detach()).to(features.dtype).T
        rows = []
        for i in range(logits.shape[1]):
            full = relevance_of(seen, gradients(logits[:, i], seen))
            rows.append(full[torch.arange(len(tokens), device=full.device), ends])
    places = torch.arange(tokens.shape[1], device=tokens.device)
    inside = (places > 0) & (places < ends[:, None])
    return torch.stack(rows, dim=1) * inside[:, None]


def gradients(logits: Tensor, maps: Sequence[AttentionMaps]) -> tuple[Tensor, ...]:
    """∂(sum of `logits` [B])/∂A of each layer, [B, H, N, N]: each image's own, as they do not mix."""
    return torch.autograd.grad(logits.sum(), [one.combined for one in maps], retain_graph=True)


def weighted(maps: AttentionMaps, gradient: Tensor) -> Tensor:
    """(∂y/∂A ⊙ A)⁺ of one layer, [B, H, N, N]."""
    return (gradient * maps.combined.detach()).clamp_min(0)


def relevance_of(maps: Sequence[AttentionMaps], of: Sequence[Tensor], head: int | None = None) -> Tensor:
    """R [B, N, N] after the layers `maps`, whose gradients are `of`; Ā is the mean over heads, or one `head`'s."""
    tokens = maps[0].first.shape[-1]
    relevance = torch.eye(tokens, dtype=of[0].dtype, device=of[0].device).expand(len(of[0]), -1, -1)
    for one, gradient in zip(maps, of, strict=True):
        positive = weighted(one, gradient)
        relevance = relevance + (positive.mean(1) if head is None else positive[:, head]) @ relevance
    return relevance


def _usable(tensor: Tensor) -> Tensor:
    """A tensor made in inference mode as one that a graph may keep."""
    return tensor.clone() if tensor.is_inference() else tensor
