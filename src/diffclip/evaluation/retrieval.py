"""Retrieval of images by captions and of captions by images, as CLIP_benchmark measures it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from diffclip.evaluation.embed import Encoder, Progress, Tokenizer, embed_captioned, evaluating
from diffclip.evaluation.metrics import (
    RECALL_AT,
    chance_at,
    chance_of_image_to_text,
    retrieval_ranks,
)
from diffclip.evaluation.scores import Score, recall_score

Captioned = Iterable[tuple[Tensor, Sequence[Sequence[str]]]]


def retrieval(
    model: Encoder,
    tokenizer: Tokenizer,
    batches: Captioned,
    batch_size: int = 256,
    progress: Progress | None = None,
) -> list[Score]:
    """`image_retrieval_recall@k` (text→image) and `text_retrieval_recall@k` (image→text), k = 1, 5, 10.

    The first is averaged over all captions, its interval resamples images with all their captions. The
    second is averaged over the images that have captions; a hit is any own caption among the top k.

    Args:
        batches: images [B, 3, S, S] prepared for the model, and the captions of each (any number).
        batch_size: texts embedded at once.

    Raises:
        InputError: no image, or no caption.
    """
    with evaluating(model):
        images, texts, owners = embed_captioned(model, tokenizer, batches, batch_size, progress)
        to_image, to_text = retrieval_ranks(images, texts, owners)
    return [
        recall_score(f"image_retrieval_recall@{k}", to_image, k, chance_at(k, len(images)), clusters=owners)
        for k in RECALL_AT
    ] + [
        recall_score(f"text_retrieval_recall@{k}", to_text, k, chance_of_image_to_text(k, owners))
        for k in RECALL_AT
    ]
