"""Retrieval of images by captions and of captions by images, as CLIP_benchmark measures it."""

from __future__ import annotations

from statistics import fmean

from diffclip.data.evaluation_set import EvaluationSet
from diffclip.evaluation.embed import embed_captioned, evaluating
from diffclip.evaluation.metrics import RECALL_AT, chance_at, chance_of_image_to_text, retrieval_ranks
from diffclip.evaluation.scores import Score, recall_score, with_facts
from diffclip.evaluation.setting import Setting


def retrieval(setting: Setting[EvaluationSet]) -> list[Score]:
    """Measure `image_retrieval_recall@k` (text→image) and `text_retrieval_recall@k` (image→text), k = 1, 5, 10, and
    `mean_recall`, the mean of the six.

    The first is averaged over all captions, and its interval resamples images with all their captions. The second is
    averaged over the images that have captions; a hit is any own caption among the top k.

    Raises:
        InputError: no image, or no caption.
    """
    batches = ((batch.images, batch.captions or []) for batch in setting.batches())
    with evaluating(setting.model):
        found = embed_captioned(setting.model, setting.tokenizer, batches, setting.progress)
    images, _, owners = found
    to_image, to_text = retrieval_ranks(*found)
    scores = [
        recall_score(f"image_retrieval_recall@{k}", to_image, k, chance_at(k, len(images)), clusters=owners)
        for k in RECALL_AT
    ]
    scores += [
        recall_score(f"text_retrieval_recall@{k}", to_text, k, chance_of_image_to_text(k, owners))
        for k in RECALL_AT
    ]
    recalls = [score.value for score in scores]
    chances = [score.chance or 0.0 for score in scores]
    scores.append(Score("mean_recall", fmean(recalls), len(images), None, None, fmean(chances)))
    method = "all captions, any own caption in the top k is a hit; ties count against"
    return with_facts(scores, protocol=method)
