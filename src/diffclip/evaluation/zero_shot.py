"""Zero-shot classification (Radford et al. 2021, Section 3.1) and retrieval, as CLIP_benchmark measures them."""

from __future__ import annotations

from statistics import fmean

import torch
from torch import Tensor

from diffclip.data.evaluation_set import EvaluationSet
from diffclip.errors import InputError
from diffclip.evaluation.embed import Setting, fill_template
from diffclip.evaluation.metrics import (
    RECALL_AT,
    chance_at,
    chance_of_image_to_text,
    classification_ranks,
    retrieval_ranks,
)
from diffclip.evaluation.scores import Score, accuracy_scores, recall_score, with_facts


def zero_shot(setting: Setting[EvaluationSet]) -> list[Score]:
    """Measure `acc1`, `acc5` (from five classes on) and `mean_per_class_recall`."""
    classifier, encoded = setting.classifier(), setting.encoded()
    truth = torch.tensor([setting.data.labels[position] for position in encoded.positions])
    ranks, classes = classification_ranks(encoded.embeddings, classifier, truth), classifier.shape[1]
    scores = accuracy_scores(ranks, truth, classes)
    if classes >= 5:
        scores.insert(1, recall_score("acc5", ranks, 5, chance_at(5, classes)))
    method = "templates averaged after normalization; ties count against"
    return with_facts(scores, protocol=method, classes=classes, templates=len(setting.prompts))


def retrieval(setting: Setting[EvaluationSet]) -> list[Score]:
    """Measure `image_retrieval_recall@k` (text→image) and `text_retrieval_recall@k` (image→text), k = 1, 5, 10, and
    `mean_recall`, the mean of the six.

    Image retrieval is averaged over all captions, and its interval resamples images with all their captions. Text
    retrieval is averaged over the images that have captions; a hit is any own caption among the top k. With
    `setting.pool`, images and captions compete within pools of that many images, in the order of the set; a last pool
    that is smaller is left out, because its recalls would be higher.
    """
    encoded = setting.encoded()
    images, captions = encoded.embeddings, [setting.data.captions[position] for position in encoded.positions]
    owners = torch.tensor([image for image, own in enumerate(captions) for _ in own], device=images.device)
    texts = setting.text_features([text for own in captions for text in own])
    size = setting.pool or len(images)
    if size > len(images):
        raise InputError(
            f"{setting.data.name} has {len(images)} images, fewer than a pool of {size}: give more"
        )
    images = images[: len(images) // size * size]
    texts, owners = texts[owners < len(images)], owners[owners < len(images)]
    pools = []
    for start in range(0, len(images), size):
        own = (owners >= start) & (owners < start + size)
        pools.append(retrieval_ranks(images[start : start + size], texts[own], owners[own] - start))
    to_image, to_text = map(torch.cat, zip(*pools, strict=True))
    scores = [
        recall_score(f"image_retrieval_recall@{k}", to_image, k, chance_at(k, size), clusters=owners)
        for k in RECALL_AT
    ]
    text_chances = [chance_of_image_to_text(k, owners[owners < size]) for k in RECALL_AT]
    scores += [
        recall_score(f"text_retrieval_recall@{k}", to_text, k, chance)
        for k, chance in zip(RECALL_AT, text_chances, strict=True)
    ]
    recall, chance = fmean(score.value for score in scores), fmean(score.chance or 0.0 for score in scores)
    scores.append(Score("mean_recall", recall, len(images), None, None, chance))
    pooled = "" if setting.pool is None else f"in pools of {size} images, "
    method = f"{pooled}all captions, any own caption in the top k is a hit; ties count against"
    return with_facts(scores, protocol=method)


def true_text(data: EvaluationSet, position: int) -> str:
    """Return the first caption of a sample, or its class in the set's first template."""
    if data.captions:
        return data.captions[position][0]
    return fill_template(data.templates[0], data.classnames[data.labels[position]])


def true_texts(setting: Setting[EvaluationSet]) -> tuple[Tensor, list[int]]:
    """Embed the different true texts of the set, [K, D], and return the number of each sample's text among them."""
    texts = [true_text(setting.data, position) for position in range(len(setting.data))]
    index = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    return setting.text_features(list(index)), [index[text] for text in texts]
