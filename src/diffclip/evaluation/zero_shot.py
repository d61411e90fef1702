"""Zero-shot classification, Radford et al. (2021), Section 3.1, as CLIP_benchmark measures it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch.nn.functional as F
from torch import Tensor

from diffclip.errors import InputError
from diffclip.evaluation.embed import Encoder, Progress, Tokenizer, embed_labelled, embed_texts, evaluating
from diffclip.evaluation.metrics import chance_at, classification_ranks
from diffclip.evaluation.scores import Score, class_recall_score, recall_score


def build_classifier(
    model: Encoder,
    tokenizer: Tokenizer,
    classnames: Sequence[str],
    templates: Sequence[str],
    batch_size: int = 256,
    progress: Progress | None = None,
) -> Tensor:
    """A unit column a class, [D, K]: every template filled in, embedded and normalised, averaged, normalised
    again.

    Args:
        templates: texts with a place for the class name, written `{c}` or `{}`.
        batch_size: texts embedded at once, of any classes.

    Raises:
        InputError: no class, no template, or a template without a place for the name.
    """
    if not classnames or not templates:
        raise InputError(
            f"zero-shot needs class names and templates, got {len(classnames)} and {len(templates)}"
        )
    texts = [fill_template(template, name) for name in classnames for template in templates]
    with evaluating(model):
        features = embed_texts(model, tokenizer, texts, batch_size, progress)
        return F.normalize(features.view(len(classnames), len(templates), -1).mean(1), dim=-1).T.contiguous()


def zero_shot(
    model: Encoder,
    tokenizer: Tokenizer,
    batches: Iterable[tuple[Tensor, Sequence[int]]],
    classnames: Sequence[str],
    templates: Sequence[str],
    batch_size: int = 256,
    progress: Progress | None = None,
) -> list[Score]:
    """`acc1`, `acc5` (from five classes on) and `mean_per_class_recall`.

    Args:
        batches: images [B, 3, S, S] prepared for the model, and the class of each.
        classnames: K names, in the order of the classes.
        batch_size: texts embedded at once.

    Raises:
        InputError: no image, no class, no template, or a class without a name.
    """
    classifier = build_classifier(model, tokenizer, classnames, templates, batch_size, progress)
    with evaluating(model):
        features, labels = embed_labelled(model, batches, progress)
        ranks = classification_ranks(features, classifier, labels)
    classes = len(classnames)
    scores = [recall_score("acc1", ranks, 1, chance_at(1, classes))]
    if classes >= 5:
        scores.append(recall_score("acc5", ranks, 5, chance_at(5, classes)))
    return [*scores, class_recall_score("mean_per_class_recall", ranks, labels, chance_at(1, classes))]


def fill_template(template: str, name: str) -> str:
    """The class name in place of `{c}` (or `{}`); other braces in either are left alone.

    Raises:
        InputError: the template has no such place.
    """
    for place in ("{c}", "{}"):
        if place in template:
            return template.replace(place, name)
    raise InputError(f"template {template!r} has no place for the class name: write {{c}} where it goes")
