"""Zero-shot classification, Radford et al. (2021), Section 3.1, as CLIP_benchmark measures it."""

from __future__ import annotations

import torch
from torch import Tensor

from diffclip.data.evaluation_set import EvaluationSet
from diffclip.evaluation.embed import fill_template
from diffclip.evaluation.metrics import chance_at, classification_ranks
from diffclip.evaluation.scores import Score, class_recall_score, recall_score, with_facts
from diffclip.evaluation.setting import Setting


def zero_shot(setting: Setting[EvaluationSet]) -> list[Score]:
    """Measure `acc1`, `acc5` (from five classes on) and `mean_per_class_recall`.

    Raises:
        InputError: no image, no class, no template, or a class without a name.
    """
    classifier, (images, positions) = setting.classifier(), setting.image_features()
    truth = torch.tensor([setting.data.labels[position] for position in positions])
    ranks, classes = classification_ranks(images, classifier, truth), classifier.shape[1]
    scores = [recall_score("acc1", ranks, 1, chance_at(1, classes))]
    if classes >= 5:
        scores.append(recall_score("acc5", ranks, 5, chance_at(5, classes)))
    scores.append(class_recall_score("mean_per_class_recall", ranks, truth, chance_at(1, classes)))
    method = "templates averaged after normalization; ties count against"
    return with_facts(scores, protocol=method, classes=classes, templates=len(setting.prompts))


def true_text(data: EvaluationSet, position: int) -> str:
    """Return the first caption of a sample, or its class in the set's first template."""
    if data.captions:
        return data.captions[position][0]
    return fill_template(data.templates[0], data.classnames[data.labels[position]])


def true_texts(setting: Setting[EvaluationSet]) -> tuple[Tensor, list[int]]:
    """Embed the different true texts of the set, [K, D], and return which of them is that of each sample."""
    own = [true_text(setting.data, position) for position in range(len(setting.data))]
    index = {text: i for i, text in enumerate(dict.fromkeys(own))}
    return setting.text_features(list(index)), [index[text] for text in own]
