"""The task `faithfulness`: do the patches that a method calls relevant carry the model's answer?

Deletion and insertion of Petsiuk et al., "RISE" (BMVC 2018, arXiv:1806.07421), patch by patch, as docs/protocols.md
describes. The metric is the area under the curve of the true text's probability (trapezoid, in [0, 1]); the field `map`
names the order of the patches. An item is an image with its class, or with the text of an object in its mask; clusters
are images. An item takes 182 forward passes, so 256 images of a large set are drawn, the same for every model.

Shapes: n items, O orders, P patches, K texts, B images, S image size, D joint width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from diffclip.data.evaluation_set import EvaluationSet
from diffclip.data.masks import MaskedSet
from diffclip.errors import InputError
from diffclip.evaluation.embed import Setting, check_embeddings, embed_images, evaluation_mode
from diffclip.evaluation.focus import CENTER_PRIOR, IN_GRAPH, distinct_texts, texts_in_view
from diffclip.evaluation.scores import Score, mean_score, with_facts
from diffclip.maps.attention_maps import patch_grid
from diffclip.maps.measures import center_prior
from diffclip.maps.recording import images_at_once
from diffclip.maps.relevance import image_relevances
from diffclip.model import CLIP

STEPS = 16
MOST_IMAGES = 256
RANDOM = "random order"
_SEED = 0


def faithfulness(setting: Setting[EvaluationSet]) -> list[Score]:
    """Measure `insertion_auc` and `deletion_auc` of every order of the patches; `relevance` comes first."""
    if isinstance(setting.data, MaskedSet):
        words = distinct_texts(setting)
        texts = setting.text_features(words)  # [K, D]
    else:
        words, texts = setting.data.classnames, setting.classifier().T
    drawn = np.random.default_rng(_SEED).permutation(len(setting.data))[:MOST_IMAGES]
    # share the list of faults, because the caller reads it
    data = replace(setting.data.take(sorted(drawn.tolist())), faults=setting.data.faults)
    setting = replace(setting, data=data)
    model, grid = setting.model, patch_grid(setting.model)
    if len(words) < 2:
        raise InputError(
            f"{data.name} has one text only, {words[0]!r}, whose probability is always 1: give two or more"
        )
    index = {text: i for i, text in enumerate(words)}
    at_once, owners = images_at_once(model), list[int]()
    areas: dict[tuple[str, str], list[Tensor]] = {}
    for batch in setting.batches():
        items = [
            (row, position, index[text])
            for row, position in enumerate(batch.positions)
            for text in _true_texts(setting, position, grid)
        ]
        for start in range(0, len(items), at_once):
            rows, positions, truths = zip(*items[start : start + at_once], strict=True)
            images, truth = batch.images[list(rows)].to(texts), torch.tensor(truths, device=texts.device)
            maps = _maps(model, images, texts[truth], positions, grid)
            for key, values in _areas(model, images, texts, truth, maps, setting.batch_size).items():
                areas.setdefault(key, []).append(values)
            owners += positions
    if not owners:
        raise InputError(f"{data.name}/{data.split} has no object within the model's crop: give other images")
    hits = {key: torch.cat(parts).double().numpy() for key, parts in areas.items()}
    clusters = np.array(owners) if isinstance(data, MaskedSet) else None
    scores: list[Score] = []
    for (metric, order), outcomes in hits.items():
        score = mean_score(metric, outcomes, float(hits[metric, RANDOM].mean()), clusters)
        scores += with_facts([score], map=order)
    method = (
        f"{grid}×{grid} patches in {STEPS} steps, replaced by the mean of the statistics, the most relevant first; "
        f"probability of the true text among {len(words)}; relevance (Chefer et al.) and Grad-ECLIP of the last layer, "
        "LeGrad of all layers"
    )
    return with_facts(scores, protocol=method, classes=len(words))


def _true_texts(setting: Setting[EvaluationSet], position: int, grid: int) -> Iterable[str]:
    """Return the true texts of an image: its class, or the texts of the objects that the model sees."""
    if not isinstance(setting.data, MaskedSet):
        return [setting.data.classnames[setting.data.labels[position]]]
    return dict.fromkeys(texts_in_view(setting, position, grid)[0])


def _maps(
    model: CLIP, images: Tensor, texts: Tensor, positions: tuple[int, ...], grid: int
) -> dict[str, Tensor]:
    """Score the patches of images [n, 3, S, S] for their true texts [n, D]: [n, P] by order."""
    relevances = image_relevances(model, images, texts[:, None])
    graph = image_relevances(model, images, texts[:, None], norm="graph", methods=["relevance"])
    relevances[IN_GRAPH] = graph["relevance"]
    drawn = [np.random.default_rng([_SEED, position]).random(grid * grid) for position in positions]
    return {name: values[:, 0].flatten(1).cpu() for name, values in relevances.items()} | {
        CENTER_PRIOR: center_prior(grid).expand(len(images), -1),
        RANDOM: torch.from_numpy(np.stack(drawn)),
    }


def _areas(
    model: CLIP, images: Tensor, texts: Tensor, truth: Tensor, maps: Mapping[str, Tensor], at_once: int
) -> dict[tuple[str, str], Tensor]:
    """Compute the area of each item, [n], by metric and order, from `maps` [n, P] by order."""
    scores = torch.stack(list(maps.values()), dim=1).numpy()  # [n, O, P]
    count, orders, patches = scores.shape
    ties = np.broadcast_to(maps[RANDOM].numpy()[:, None], scores.shape)
    ranks = torch.from_numpy(np.lexsort((ties, -scores)).argsort(-1))
    limits = (torch.arange(STEPS + 1) * patches / STEPS).round()[1:-1, None]
    inserted = ranks[:, :, None] < limits  # [n, O, STEPS − 1, P]
    ends = torch.stack([torch.zeros(patches), torch.ones(patches)]).expand(count, -1, -1).bool()
    masks = torch.cat([ends, inserted.flatten(1, 2), ~inserted.flatten(1, 2)], dim=1)
    curves = _probabilities(model, images, texts, truth, masks, at_once)
    blank, whole, rest = curves[:, :1], curves[:, 1:2], curves[:, 2:].view(count, 2, orders, -1)
    areas = (rest.sum(-1) + (blank + whole)[:, None] / 2) / STEPS
    metrics = enumerate(("insertion_auc", "deletion_auc"))
    return {(name, map): areas[:, kind, order] for kind, name in metrics for order, map in enumerate(maps)}


def _probabilities(
    model: CLIP, images: Tensor, texts: Tensor, truth: Tensor, masks: Tensor, at_once: int
) -> Tensor:
    """Compute the probability [n, M] of the true texts [n] if an image shows only the patches `masks` [n, M, P]."""
    patch = model.config.vision.patch_size
    side = images.shape[-1] // patch
    owners = torch.arange(len(masks)).repeat_interleave(masks.shape[1]).to(images.device)
    parts = []
    with evaluation_mode(model):
        batches = (torch.split(values, at_once) for values in (owners, masks.flatten(0, 1)))
        for rows, batch_masks in zip(*batches, strict=True):
            pixels = batch_masks.view(-1, 1, side, side).to(images)
            pixels = pixels.repeat_interleave(patch, 2).repeat_interleave(patch, 3)
            features = check_embeddings(embed_images(model, images[rows] * pixels), "images")
            shares = (model.logit_scale.exp() * features @ texts.T).softmax(-1)
            parts.append(shares.gather(1, truth[rows][:, None])[:, 0].float().cpu())
        return torch.cat(parts).view(masks.shape[:2])
