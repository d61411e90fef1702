"""Zero-shot classification (Radford et al. 2021, Section 3.1) and retrieval, as CLIP_benchmark measures them."""

from __future__ import annotations

from statistics import fmean

import torch
from torch import Tensor

from diffclip.data.evaluation_set import EvaluationSet
from diffclip.evaluation.embed import Setting, embed_captioned, evaluation_mode, fill_template
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
    classifier, (images, positions) = setting.classifier(), setting.image_features()
    truth = torch.tensor([setting.data.labels[position] for position in positions])
    ranks, classes = classification_ranks(images, classifier, truth), classifier.shape[1]
    scores = accuracy_scores(ranks, truth, classes)
    if classes >= 5:
        scores.insert(1, recall_score("acc5", ranks, 5, chance_at(5, classes)))
    method = "templates averaged after normalization; ties count against"
    return with_facts(scores, protocol=method, classes=classes, templates=len(setting.prompts))


def retrieval(setting: Setting[EvaluationSet]) -> list[Score]:
    """Measure `image_retrieval_recall@k` (text→image) and `text_retrieval_recall@k` (image→text), k = 1, 5, 10, and
    `mean_recall`, the mean of the six.

    Image retrieval is averaged over all captions, and its interval resamples images with all their captions. Text
    retrieval is averaged over the images that have captions; a hit is any own caption among the top k.
    """
    batches = ((batch.images, batch.captions or []) for batch in setting.batches())
    with evaluation_mode(setting.model):
        embedded = embed_captioned(setting.model, setting.tokenizer, batches, setting.progress)
    images, _, owners = embedded
    to_image, to_text = retrieval_ranks(*embedded)
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
